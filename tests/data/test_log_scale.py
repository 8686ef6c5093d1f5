"""Targets on a log scale: what is trained on, what comes back, what is refused, and when it is suggested."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import skew

import bnn
from bnn.data import TargetScale
from bnn.data.target_scale import LARGEST, scale_hint, skewness

HINT = "positive and skewed; positive=True trains on a log scale"
WHOSE = {1: "the target is ", 2: "all targets are "}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 2))
Y = np.exp(3 + X[:, 0] + 0.3 * RNG.normal(size=200))


def houses(folder: pathlib.Path, y: Any = Y) -> pathlib.Path:
    path = folder / "houses.csv"
    rows = "\n".join(f"{a!r},{b!r},{c!r}" for (a, b), c in zip(X.tolist(), np.asarray(y).tolist(), strict=True))
    path.write_text(f"a,b,price\n{rows}\n")
    return path


def test_the_logarithm_is_scaled_by_the_training_part(tmp_path: pathlib.Path) -> None:
    of_csv = bnn.data.csv(houses(tmp_path), "price", positive=True)
    of_arrays = bnn.data.arrays(X, Y, test=0.2, validation=0.1, positive=True)
    for data in (of_csv, of_arrays):
        assert data.target is not None
        assert data.target.log
        assert data.hint is None
        y = data.train.y.double()
        assert (float(y.mean()), float(y.std(correction=0))) == pytest.approx((0.0, 1.0), abs=1e-6)
        own = torch.cat([data.target.own_units(part.y) for part in (data.train, data.validation, data.test)])
        np.testing.assert_allclose(np.sort(own[:, 0]), np.sort(Y), rtol=1e-6)
    assert of_csv.targets == ("price",)
    assert of_arrays.targets == ()


def test_as_they_are_but_for_the_logarithm() -> None:
    data = bnn.data.arrays(X, Y, scale=False, positive=True)
    np.testing.assert_allclose(data.train.y[:, 0], np.log(Y), rtol=1e-6)
    assert data.target == TargetScale((0.0,), (1.0,), log=True)


def test_a_scale_says_what_it_is() -> None:
    scale = TargetScale((1.0, 2.0), (0.5, 3.0), log=True)
    z = torch.tensor([[0.3, -1.0], [float("nan"), 400.0]], dtype=torch.float64)
    own = scale.own_units(z)
    torch.testing.assert_close(own[0], torch.tensor([1.15, -1.0]).double().exp())
    assert own[1, 0].isnan()
    assert own[1, 1] == LARGEST
    torch.testing.assert_close(scale.scaled(own[0]), z[0])
    torch.testing.assert_close(scale.linear(z)[0], torch.tensor([1.15, -1.0], dtype=torch.float64))
    assert scale.own_units(torch.full((1, 2), 1e3)).tolist() == [[LARGEST, LARGEST]]  # float32 has no such numbers
    assert TargetScale.from_dict(scale.to_dict()) == scale
    assert TargetScale.from_dict({"mean": [1], "sd": [2]}) == TargetScale((1.0,), (2.0,))  # of old runs
    with pytest.raises(ValueError, match="log must be true or false"):
        TargetScale.from_dict({"mean": [1], "sd": [2], "log": "yes"})


def test_targets_that_are_not_positive_are_named(tmp_path: pathlib.Path) -> None:
    wrong = Y.copy()
    wrong[[4, 17]] = 0.0, -2.5
    with pytest.raises(
        ValueError,
        match=r"houses\.csv: positive=True takes targets above 0, and 2 rows have others: line 6, line 19; the first "
        r"is 0 in 'price'; correct or leave out such rows, or train on a linear scale",
    ):
        bnn.data.csv(houses(tmp_path, wrong), "price", positive=True)
    with pytest.raises(ValueError, match=r"y: positive=True .* row 4, row 17; the first is 0 in column 0;"):
        bnn.data.arrays(X, wrong, positive=True, test=0.5)
    pair = (X[:3], np.array([1.0, 2.0, -1.0]))
    with pytest.raises(ValueError, match=r"y of test: positive=True .* 1 row has another: row 2; the first is -1"):
        bnn.data.arrays(X, Y, positive=True, test=pair)


def test_classes_have_no_scale(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="positive is for real targets, and 'price' holds classes"):
        bnn.data.csv(houses(tmp_path, (Y > 20).astype(int)), "price", positive=True)
    with pytest.raises(ValueError, match="positive is for real targets; y holds classes"):
        bnn.data.arrays(X, Y > 20, positive=True)
    with pytest.raises(ValueError, match="positive must be true or false, got 1"):
        bnn.data.arrays(X, Y, positive=1)  # type: ignore[arg-type]


def test_a_hint_names_the_targets() -> None:
    both = np.stack([Y, Y**0.9], 1)
    assert scale_hint(both[:, :1], ["price"]) == f"the target 'price' is {HINT}"
    assert scale_hint(both, ["price", "rent"]) == f"the targets 'price', 'rent' are all {HINT}"


def test_skewness_is_scipys() -> None:
    assert skewness(Y) == pytest.approx(skew(Y))
    assert skewness(np.ones(5)) == 0.0


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (Y, True),
        (np.stack([Y, Y**0.9], 1), True),
        (np.stack([Y, X[:, 0]], 1), False),  # one is not positive
        (np.where(np.arange(200) == 7, 0.0, Y), False),
        (Y[:40], False),  # too few to tell
        (10 + X[:, 0], False),  # positive, but not skewed
        (np.exp(-Y / Y.mean()), False),  # the logarithm is more skewed
        (np.stack([np.where(np.arange(200) < 30, np.nan, Y), Y], 1), True),
    ],
)
def test_a_log_scale_is_suggested_by_a_plain_rule(y: np.ndarray, said: bool) -> None:
    columns = y.reshape(len(y), -1)
    hint = WHOSE[columns.shape[1]] + HINT if said else None
    assert scale_hint(columns) == hint
    data = bnn.data.arrays(X[: len(y)], y)
    assert data.hint == hint
    assert data.target is not None
    assert not data.target.log  # never unasked
