"""AUROC, AUPR and FPR95 against scikit-learn and loops over thresholds; torchmetrics where it is right."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from metric_inputs import scores
from numpy.testing import assert_allclose
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

import bnn
from bnn.metrics import aupr, auroc, fpr95, ood_scores

Scores = list[float]
CASES: dict[str, tuple[Scores, Scores]] = {
    "random": tuple(np.random.default_rng(0).normal([[0], [1]], 1, (2, 300)).tolist()),
    "ties": (
        np.random.default_rng(1).integers(0, 5, 70).tolist(),
        np.random.default_rng(2).integers(1, 7, 45).tolist(),
    ),
    "one each": ([0.3], [0.7]),
    "one each, a tie": ([0.5], [0.5]),
    "constant": ([0.2] * 5, [0.2] * 9),
    "apart": ([1, 2, 3], [10, 20]),
    "the wrong way round": ([10, 20], [1, 2, 3]),
    "infinite": ([-math.inf, 0.0, 1.0], [0.5, math.inf]),
}
every_case = pytest.mark.parametrize(("inside", "outside"), list(CASES.values()), ids=list(CASES))


def joined(inside: Scores, outside: Scores) -> tuple[np.ndarray, np.ndarray]:
    return np.array([0] * len(inside) + [1] * len(outside)), np.clip([*inside, *outside], -1e9, 1e9)


def fpr95_loop(inside: Scores, outside: Scores) -> float:
    """The threshold, from the highest score down, that first catches 95 in 100."""
    for t in sorted({*inside, *outside}, reverse=True):
        if 100 * sum(s >= t for s in outside) >= 95 * len(outside):
            return sum(s >= t for s in inside) / len(inside)
    raise AssertionError


def check_all(inside: Scores, outside: Scores) -> None:
    y, s = joined(inside, outside)
    pairs = [(o > i) + 0.5 * (o == i) for i in inside for o in outside]
    assert auroc(inside, outside) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(y, s), abs=1e-12)
    assert aupr(inside, outside) == pytest.approx(average_precision_score(y, s), abs=1e-12)
    assert fpr95(inside, outside) == pytest.approx(fpr95_loop(inside, outside), abs=1e-12)
    fpr, tpr, _ = roc_curve(y, s, drop_intermediate=False)
    assert fpr95(inside, outside) == pytest.approx(fpr[tpr >= 0.95 - 1e-12].min(), abs=1e-12)


@every_case
def test_sklearn_and_loops(inside: Scores, outside: Scores) -> None:
    check_all(inside, outside)


@settings(max_examples=50)
@given(scores, scores)
def test_sklearn_and_loops_on_ties(inside: Scores, outside: Scores) -> None:
    check_all(inside, outside)


@settings(max_examples=50)
@given(scores, scores)
def test_torchmetrics_agrees_on_scores_in_0_1(inside: Scores, outside: Scores) -> None:
    """Scores are mapped to their rank over 64, which is exact in float32 and keeps order and ties."""
    y, s = joined(inside, outside)
    ranks = np.unique(s, return_inverse=True)[1] / 64
    p, t = torch.tensor(ranks), torch.tensor(y)
    assert auroc(inside, outside) == pytest.approx(binary_auroc(p, t).item(), abs=1e-6)
    assert aupr(inside, outside) == pytest.approx(binary_average_precision(p, t).item(), abs=1e-6)


def test_large_scores_do_not_become_ties() -> None:
    """torchmetrics sends scores outside [0, 1] through a sigmoid, where these are all 1."""
    inside, outside = [20.0, 40.0], [30.0, 50.0]
    y, s = joined(inside, outside)
    assert auroc(inside, outside) == 0.75
    assert binary_auroc(torch.tensor(s, dtype=torch.float32), torch.tensor(y)).item() == 0.5


def test_extremes() -> None:
    assert [m(*CASES["apart"]) for m in (auroc, aupr, fpr95)] == [1.0, 1.0, 0.0]
    assert [m(*CASES["constant"]) for m in (auroc, aupr, fpr95)] == [0.5, pytest.approx(9 / 14), 1.0]
    assert auroc(*CASES["the wrong way round"]) == 0.0
    assert fpr95(*CASES["the wrong way round"]) == 1.0


def test_95_percent_is_exact() -> None:
    """19 of 20 are enough, 18 of 19 are not."""
    assert fpr95([0.5], [0.0] + [1.0] * 19) == 0.0
    assert fpr95([0.5], [0.0] + [1.0] * 18) == 1.0


@pytest.mark.parametrize("metric", [auroc, aupr, fpr95])
def test_wrong_scores(metric) -> None:
    with pytest.raises(ValueError, match="scores_in must not be empty"):
        metric([], [1.0])
    with pytest.raises(ValueError, match="scores_out must be not NaN; 1 of 2"):
        metric([1.0], [1.0, math.nan])
    with pytest.raises(ValueError, match=r"scores_in must have shape \(N,\); got \(1, 2\)"):
        metric([[1.0, 2.0]], [1.0])
    assert type(metric(torch.tensor([1.0, 0.0]), np.float32([0.5]))) is float


def test_scores_of_a_prediction() -> None:
    """From the definition, on draws of logits."""
    logits = torch.randn(6, 8, 3, dtype=torch.double)
    prediction = bnn.likelihoods.Categorical().predictive(logits)
    p = logits.softmax(-1).numpy()
    mean = p.mean(0)
    entropy = -(mean * np.log(mean)).sum(1)
    found = ood_scores(prediction)
    assert list(found) == ["max_prob", "entropy", "mutual_information"]
    assert_allclose(found["max_prob"], 1 - mean.max(1), rtol=1e-12)
    assert_allclose(found["entropy"], entropy, rtol=1e-12)
    assert_allclose(found["mutual_information"], entropy + (p * np.log(p)).sum(-1).mean(0), rtol=1e-9)
    assert all(score.dtype == np.float64 for score in found.values())


def test_only_predictions_of_one_class_per_input_have_scores() -> None:
    images = bnn.likelihoods.Categorical().predictive(torch.randn(2, 4, 3, 5, 5))
    with pytest.raises(ValueError, match=r"probs must have shape \(N, C\); got \(4, 3, 5, 5\)"):
        ood_scores(images)
    flags = bnn.likelihoods.Bernoulli().predictive(torch.zeros(2, 4, 2))  # rows happen to sum to 1
    with pytest.raises(ValueError, match=r"total must have shape \(N,\)"):
        ood_scores(flags)
