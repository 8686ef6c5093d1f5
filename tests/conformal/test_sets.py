"""Sets of classes: scores against counting by hand, by class, randomised, and as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bnn
from bnn.conformal import Aps, Guarantee, Lac, Raps, calibrate

RNG = np.random.default_rng(1)
N, C = 80, 5
PROBS = RNG.dirichlet(np.full(C, 0.7), size=N)
Y = np.array([RNG.choice(C, p=row) for row in PROBS])
NEW = RNG.dirichlet(np.full(C, 0.7), size=11)
METHODS: list[dict[str, Any]] = [
    {"method": "lac"},
    {"method": "aps"},
    {"method": "aps", "randomized": True},
    {"method": "raps", "lamda": 0.2, "k_reg": 1},
    {"method": "raps", "randomized": True},
]


def score_by_hand(p: Any, c: int, u: float = 0.0, lamda: float = 0.0, k_reg: int = 0) -> float:
    order = sorted(range(len(p)), key=lambda j: (-p[j], j))
    r = order.index(c) + 1
    return sum(p[j] for j in order[: r - 1]) + u * p[c] + lamda * max(0, r - k_reg)


def test_scores_by_hand() -> None:
    probs = np.concatenate([PROBS, [[0.2, 0.4, 0.4, 0.0, 0.0]]])  # with ties
    u = RNG.uniform(size=(len(probs), 1))
    aps = [[score_by_hand(p, c, v) for c in range(C)] for p, v in zip(probs, u[:, 0], strict=True)]
    raps = [[score_by_hand(p, c, v, 0.3, 2) for c in range(C)] for p, v in zip(probs, u[:, 0], strict=True)]
    np.testing.assert_array_equal(Lac().of(probs, u), 1 - probs)
    np.testing.assert_allclose(Aps().of(probs, u), aps, atol=1e-15)
    np.testing.assert_allclose(Raps(lamda=0.3, k_reg=2).of(probs, u), raps, atol=1e-15)


@pytest.mark.parametrize("options", METHODS)
def test_a_set_holds_the_classes_whose_scores_are_at_most_that_of_rank_k(options: dict[str, Any]) -> None:
    guarantee = calibrate(PROBS, Y, generator=torch.Generator().manual_seed(3), **options)
    score = guarantee.score
    assert isinstance(score, Aps | Lac | Raps)
    u, v = (score.uniforms(rows, torch.Generator().manual_seed(seed)) for rows, seed in ((N, 3), (11, 4)))
    assert (u == 0).all() == (not options.get("randomized", False))
    q = sorted(score.of(PROBS, u)[np.arange(N), Y])[int(np.ceil(round(81 * 0.8, 9))) - 1]
    sets = guarantee.sets(NEW, 0.8, generator=torch.Generator().manual_seed(4))
    assert sets.dtype == bool
    np.testing.assert_array_equal(sets, score.of(NEW, v) <= q)


def test_sets_are_never_empty_with_aps_and_grow_with_the_level() -> None:
    for method in ("aps", "raps"):
        guarantee = calibrate(PROBS, Y, method)
        narrow, wide = guarantee.sets(NEW, 0.2), guarantee.sets(NEW, 0.95)
        assert narrow[np.arange(11), NEW.argmax(1)].all()
        assert (narrow <= wide).all()
        assert narrow.sum() < wide.sum()


def test_by_class_is_every_class_alone() -> None:
    guarantee = calibrate(PROBS, Y, "aps", by_class=True)
    scores = Aps().of(PROBS, np.zeros((N, 1)))
    new = Aps().of(NEW, np.zeros((11, 1)))
    sets = guarantee.sets(NEW, 0.75)
    for c in range(C):
        rows = sorted(scores[c == Y, c])
        q = rows[int(np.ceil(round((len(rows) + 1) * 0.75, 9))) - 1]
        np.testing.assert_array_equal(sets[:, c], new[:, c] <= q)
    assert guarantee.rows == np.bincount(Y).min()


def test_by_class_refuses_a_class_with_too_few_rows() -> None:
    keep = (Y != 2) | (np.cumsum(Y == 2) <= 3)
    guarantee = calibrate(PROBS[keep], Y[keep], by_class=True)
    few = r"takes 4 calibration rows of each, and there are 3 of class 2: .* a level of at most 0.75"
    with pytest.raises(ValueError, match=few):
        guarantee.sets(NEW, 0.8)
    guarantee.sets(NEW, 0.75)
    calibrate(PROBS[keep], Y[keep]).sets(NEW, 0.8)  # of all classes together there are enough


def test_too_few_rows_refuse() -> None:
    with pytest.raises(ValueError, match=r"level 0.99 takes 99 calibration rows, and there are 80"):
        calibrate(PROBS, Y).sets(NEW, 0.99)


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("options", METHODS)
def test_json_and_back(options: dict[str, Any], by_class: bool) -> None:
    guarantee = calibrate(PROBS, Y, by_class=by_class, generator=torch.Generator().manual_seed(0), **options)
    again = Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict())))
    assert again == guarantee
    for level in (0.3, 0.75):
        one, other = (g.sets(NEW, level, generator=torch.Generator().manual_seed(1)) for g in (guarantee, again))
        np.testing.assert_array_equal(one, other)


def test_the_probability_of_a_one_is_two_classes() -> None:
    p, y = RNG.uniform(size=30), RNG.integers(2, size=30)
    both = np.stack([1 - p, p], 1)
    for form in (p, p[:, None], torch.from_numpy(p)):
        assert calibrate(form, y) == calibrate(both, y)
    np.testing.assert_array_equal(calibrate(p, y).sets(p[:4]), calibrate(both, y).sets(both[:4]))


def test_a_network_from_predict_to_sets() -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 4)
    bnn.bayesianize_(net, "ffg", init_sd=0.1)
    x, y = torch.randn(50, 3), torch.randint(4, (50,))
    found = bnn.predict(net, x, 8, generator=torch.Generator().manual_seed(1))
    sets = calibrate(found, y).sets(found, 0.9)
    assert sets[torch.arange(50), y].sum() == 46  # ceil(51 * 0.9)


def test_mistakes_say_what_to_do() -> None:
    guarantee = calibrate(PROBS, Y)
    with pytest.raises(ValueError, match=r"without intervals: use .sets"):
        guarantee.intervals((NEW, NEW))
    with pytest.raises(ValueError, match="calibrated for 5 classes; got probabilities of 4"):
        guarantee.sets(np.full((3, 4), 0.25))
    with pytest.raises(ValueError, match="class indices from 0 to 4"):
        calibrate(PROBS, Y + 1)
    with pytest.raises(ValueError, match="are they logits"):
        calibrate(PROBS * 7 - 2, Y)
    with pytest.raises(TypeError, match=r"for real targets give what bnn.predict gives"):
        calibrate(PROBS, Y, "normalized")
    with pytest.raises(ValueError, match="scale is for real targets"):
        calibrate(PROBS, Y, scale="log")
    with pytest.raises(ValueError, match="lamda must be a finite number >= 0"):
        calibrate(PROBS, Y, "raps", lamda=-1.0)
    with pytest.raises(ValueError, match="randomized must be true or false"):
        calibrate(PROBS, Y, "aps", randomized="yes")
