"""Scores side by side: the same numbers as one by one, differences on the same resamples, and risk against coverage."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bnn import metrics
from bnn.metrics.paired import behind_best
from bnn.metrics.resampling import resamples_of

RNG = np.random.default_rng(0)
NOISE_IN, NOISE_OUT = RNG.normal(size=80), RNG.normal(size=60)
INSIDE = {"good": NOISE_IN, "poor": NOISE_IN + RNG.normal(size=80)}
FAR = {"good": 2 + NOISE_OUT, "poor": 1 + NOISE_OUT + RNG.normal(size=60)}
NEAR = {"good": 1 + RNG.normal(size=50), "poor": 0.3 + RNG.normal(size=50)}


def test_one_set_is_as_detection_metrics_says() -> None:
    each, mean = metrics.detection_comparison(INSIDE, {"far": FAR}, resamples=50, seed=3)
    for score in INSIDE:
        want = metrics.detection_metrics(INSIDE[score], FAR[score], resamples=50, seed=3)
        assert each["far"].detection[score] == want
        for name, one in want.items():
            assert mean.detection[score][name].value == one.value


def test_differences_are_those_on_the_same_resamples() -> None:
    each, mean = metrics.detection_comparison(INSIDE, {"far": FAR, "near": NEAR}, resamples=40, seed=1)
    ((n, far, near),) = resamples_of([80, 60, 50], 40, 1)
    gaps, means = [], []
    for counts in zip(n, far, near, strict=True):
        rows = [np.repeat(np.arange(len(c)), c.astype(int)) for c in counts]

        def area(score: str, out: np.ndarray, drawn: np.ndarray, inside: np.ndarray = rows[0]) -> float:
            return metrics.auroc(INSIDE[score][inside], out[drawn])

        of_far, of_near = ({s: area(s, out[s], drawn) for s in out} for out, drawn in ((FAR, rows[1]), (NEAR, rows[2])))
        gaps.append(of_far["good"] - of_far["poor"])
        means.append(0.5 * (of_far["good"] + of_near["good"] - of_far["poor"] - of_near["poor"]))
    for found, drawn in ((each["far"], gaps), (mean, means)):
        gap = found.behind["poor"]["auroc"]
        assert_allclose([gap.low, gap.high], np.quantile(drawn, [0.025, 0.975]), rtol=1e-9)
        assert gap.value == pytest.approx(
            found.detection["good"]["auroc"].value - found.detection["poor"]["auroc"].value
        )
        assert "good" not in found.behind or "auroc" not in found.behind["good"]


def test_pairing_tells_apart_what_overlapping_intervals_do_not() -> None:
    inside = {"one": NOISE_IN, "two": NOISE_IN}
    outside = {"one": 1 + NOISE_OUT, "two": 1 + NOISE_OUT - 0.1 * (NOISE_OUT > 0)}  # always a little less
    found = metrics.detection_comparison(inside, {"far": outside}, resamples=200)[0]["far"]
    one, two = (found.detection[name]["auroc"] for name in ("one", "two"))
    assert two.high > one.low  # they overlap
    assert found.behind["two"]["auroc"].low > 0


def test_a_lower_false_positive_rate_is_better_and_equal_scores_are_behind_by_nothing() -> None:
    found = metrics.detection_comparison(INSIDE, {"far": FAR}, resamples=20)[0]["far"]
    worse = found.detection["poor"]["fpr95"].value - found.detection["good"]["fpr95"].value
    assert found.behind["poor"]["fpr95"].value == pytest.approx(worse)
    assert worse > 0
    same = metrics.detection_comparison({"a": NOISE_IN, "b": NOISE_IN}, {"x": {"a": NOISE_OUT, "b": NOISE_OUT}})[1]
    gap = same.behind["b"]["auroc"]
    assert (gap.value, gap.low, gap.high) == (0, 0, 0)
    assert behind_best({}, "higher") == {}


def test_a_score_that_a_set_does_not_have_has_no_mean() -> None:
    each, mean = metrics.detection_comparison(INSIDE, {"far": FAR, "near": {"good": NEAR["good"]}}, resamples=10)
    assert list(each["near"].detection) == list(mean.detection) == ["good"]
    assert list(each["far"].detection) == ["good", "poor"]


def test_scores_must_be_of_the_same_inputs() -> None:
    with pytest.raises(ValueError, match=r"scores_in must hold scores of the same inputs.*'b': 3"):
        metrics.detection_comparison({"a": NOISE_IN, "b": NOISE_IN[:3]}, {"x": {"a": NOISE_OUT}})
    with pytest.raises(ValueError, match=r"scores_out\['x'\] must hold scores of the same inputs"):
        metrics.detection_comparison(INSIDE, {"x": {"good": NOISE_OUT, "poor": NOISE_OUT[:3]}})


# ---- risk against coverage -------------------------------------------------------------------------------------------


def test_of_right_and_wrong_it_is_the_accuracy_coverage_curve() -> None:
    hits, sure = RNG.random(60) > 0.3, RNG.integers(9, size=60) / 9  # with ties
    found, want = metrics.risk_coverage(~hits, -sure), metrics.accuracy_coverage_of_hits(hits, sure)
    assert_allclose(found.risk, 1 - want.accuracy, atol=1e-12)
    assert_allclose(found.coverage, want.coverage)
    assert metrics.risk_area(~hits, -sure) == pytest.approx(metrics.aurc_of_hits(hits, sure))


def test_of_squared_errors_it_is_the_rmse_of_the_first() -> None:
    errors, sd = RNG.normal(size=50), RNG.random(50)
    order = np.argsort(sd)
    found = metrics.risk_coverage(errors**2, sd, root=True)
    for k in (1, 7, 50):
        assert found.risk[k - 1] == pytest.approx(metrics.rmse(errors[order[:k]], np.zeros(k)))
    assert metrics.risk_area(errors**2, sd, root=True) == pytest.approx(found.risk.mean())


def test_areas_are_those_of_bootstrap_and_differences_are_paired() -> None:
    errors = RNG.normal(size=90) ** 2
    kinds = {"total": errors + 0.5 * RNG.random(90), "epistemic": RNG.random(90)}
    areas, behind = metrics.risk_areas(errors, kinds, resamples=60, seed=2)
    for kind, values in kinds.items():
        assert areas[kind] == metrics.bootstrap(metrics.risk_area, errors, values, resamples=60, seed=2)
    assert list(behind) == ["epistemic"]
    assert behind["epistemic"].value == pytest.approx(areas["epistemic"].value - areas["total"].value)
    assert behind["epistemic"].low > 0
    with pytest.raises(ValueError, match="shapes must be equal"):
        metrics.risk_areas(errors, {"total": [0.1]})
