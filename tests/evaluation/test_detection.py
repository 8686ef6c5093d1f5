"""Which score tells out-of-distribution inputs: the table, the marks, and a verdict that hides nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bnn
from bnn.evaluation import OOD, Detection, Evaluation, RiskCoverage, Uncertainty
from bnn.evaluation.detection import abstaining, averages, choice, marks, ood_lines
from bnn.metrics import Interval
from bnn.metrics.registry import metrics

CLASSES = ("max_prob", "entropy", "mutual_information")
UNSURE = Uncertainty(1.0, 0.7, 0.3)


def near(value: float, half: float = 0.01) -> Interval:
    return Interval(value, value - half, value + half)


def outside(*aurocs: float | None, scores: tuple[str, ...] = CLASSES, **more: Any) -> OOD:
    """A set with an AUROC for each score; None: it has none."""
    found = {
        score: {"auroc": near(value), "aupr": near(0.8), "fpr95": near(0.3)}
        for score, value in zip(scores, aurocs, strict=True)
        if value is not None
    }
    return OOD(50, **({"uncertainty": UNSURE, "detection": found} | more))


def why(*sets: OOD, task: str = "classification", draws: int = 20, inside: Uncertainty = UNSURE, **more: Any) -> Any:
    found = choice(task, draws, inside, {f"set {i}": one for i, one in enumerate(sets)}, **more)
    assert found is not None
    return found.score, found.why


# ---- the verdict -----------------------------------------------------------------------------------------------------


def test_the_best_score_is_named_with_all_numbers() -> None:
    assert why(outside(0.83, 0.84, 0.96)) == (
        "mutual_information",
        "mutual information tells set 0 best: AUROC 0.960 against 0.840 by entropy and 0.830 by max probability",
    )
    assert why(outside(0.83, 0.84, 0.96), outside(0.73, 0.74, 0.86))[1] == (
        "mutual information tells out-of-distribution inputs best: AUROC 0.910 on average against 0.790 by entropy and "
        "0.780 by max probability"
    )
    assert why(outside(0.9, 0.7, 0.8))[0] == "max_prob"


def test_where_nothing_is_clear_the_usual_one_is_used() -> None:
    score, text = why(outside(0.90, 0.905, 0.91))
    assert score == "entropy"
    assert text == (
        "no score tells set 0 clearly better: AUROC 0.900 by max probability, 0.905 by entropy and 0.910 by mutual "
        "information; use entropy, the usual one"
    )
    # a lead that is certain but tiny is no reason either
    tiny = {"entropy": {"auroc": Interval(0.003, 0.002, 0.004)}, "max_prob": {"auroc": Interval(0.004, 0.003, 0.005)}}
    one = outside(0.906, 0.907, 0.91, behind=tiny)
    assert why(one)[0] == "entropy"
    # two alike, the usual one worse than both
    score, text = why(outside(0.95, 0.8, 0.951))
    assert score == "mutual_information"
    assert "all above entropy (0.800); use mutual information" in text
    assert "usual" not in text


def test_paired_differences_decide_before_intervals_do() -> None:
    gaps = {"max_prob": {"auroc": near(0.04)}, "entropy": {"auroc": near(0.03)}}
    wide = {s: {"auroc": near(v, 0.2)} for s, v in zip(CLASSES, (0.86, 0.87, 0.9), strict=True)}
    assert why(outside(*[0.9] * 3, detection=wide))[0] == "entropy"
    assert why(outside(*[0.9] * 3, detection=wide), stored=Detection(wide, gaps))[0] == "mutual_information"
    # being behind in another number, the best one is not behind in this
    other = gaps | {"mutual_information": {"fpr95": near(0.1)}}
    assert why(outside(*[0.9] * 3, detection=wide), stored=Detection(wide, other))[0] == "mutual_information"


def test_a_plain_network_has_no_mutual_information() -> None:
    score, text = why(outside(0.8, 0.9, None), draws=1, inside=Uncertainty(1.0, 1.0, 0.0))
    assert score == "entropy"
    assert text == (
        "one pass has no draws that could disagree, so mutual information is 0 and no score; entropy tells set 0 best: "
        "AUROC 0.900 against 0.800 by max probability"
    )
    assert why(outside(0.9, 0.8, None), draws=1)[0] == "max_prob"
    score, text = why(outside(0.9, None, scores=("total", "epistemic")), task="regression", draws=1)
    assert (score, "epistemic sd is 0 and no score; total sd is the only score" in text) == ("total", True)


@pytest.mark.parametrize("mutual", [0.7, 0.899, None])
def test_draws_that_hardly_disagree_add_nothing(mutual: float | None) -> None:
    hardly = Uncertainty(1.0, 1.0, 9e-4)
    score, text = why(outside(0.8, 0.9, mutual, uncertainty=hardly), inside=hardly)
    assert score == "entropy"
    assert ("the draws agree up to rounding" if mutual is None else "the draws hardly disagree") in text
    assert "adds nothing to one network; a Laplace posterior around its weights would; entropy tells set 0 best" in text
    assert "hardly" not in why(outside(0.8, 0.9, 0.7, uncertainty=UNSURE), inside=hardly)[1]  # they do somewhere


def test_little_disagreement_that_tells_much_is_said_to() -> None:
    hardly = Uncertainty(1.0, 1.0, 4e-4)
    score, text = why(outside(0.8, 0.8, 0.95, uncertainty=hardly), inside=hardly)
    assert score == "mutual_information"
    assert text.startswith(
        "the draws hardly disagree (mutual information 0.0004 nats at most), yet where they do tells"
    )
    assert "Laplace" not in text
    reals = outside(0.9, 0.7, scores=("total", "epistemic"), uncertainty=Uncertainty(1000.0**0.5, 999.5**0.5, 0.5**0.5))
    text = why(reals, task="regression", inside=Uncertainty(1000.0, 1000.0, 0.0))[1]
    assert "(epistemic sd 2.2 % of the total sd at most)" in text  # a share, whatever the unit


def test_sets_on_which_the_score_fails_are_named() -> None:
    good = outside(0.7, 0.7, 0.99)
    text = why(good, good, outside(0.55, 0.58, 0.59), outside(0.7, 0.75, 0.4))[1]
    assert text.startswith("mutual information tells out-of-distribution inputs best")
    assert text.endswith("; it fails on set 3 (AUROC 0.400, entropy 0.750) and set 2 (AUROC 0.590)")
    many = why(good, *[outside(0.3, 0.3, 0.5)] * 5)[1]
    assert many.count("AUROC 0.500") == 3
    assert many.endswith(" and 2 more")
    assert "fails" not in why(good)[1]


def test_nothing_to_choose_from() -> None:
    assert choice("classification", 20, UNSURE, {}) is None
    assert choice("classification", 20, UNSURE, {"x": OOD(5, UNSURE, {})}) is None


def test_by_which_uncertainty_to_abstain() -> None:
    def curve(area: float, behind: Interval | None = None) -> RiskCoverage:
        return RiskCoverage((1.0,), (area,), near(area), behind)

    clear = {"total": curve(0.03, near(0.02)), "epistemic": curve(0.01)}
    assert abstaining("classification", clear) == (
        "on test inputs abstain by epistemic: mean error rate over all shares 0.01 against 0.03 by total"
    )
    unclear = abstaining("regression", {"total": curve(3.0), "epistemic": curve(3.1, near(0.1, 0.2))})
    assert unclear is not None
    assert "not clearly better: mean RMSE over all shares 3 against 3.1 by epistemic; use total" in unclear
    assert abstaining("classification", {"total": curve(0.1)}) is None


# ---- marks and the table ---------------------------------------------------------------------------------------------


def test_the_best_of_a_row_is_marked_and_what_is_not_clearly_worse() -> None:
    auroc, _, fpr95 = metrics("detection")
    found = {s: {"auroc": near(v), "fpr95": near(v)} for s, v in zip(CLASSES, (0.7, 0.89, 0.9), strict=True)}
    assert marks(found, {}, auroc) == {"max_prob": "", "entropy": "same", "mutual_information": "best"}
    assert marks(found, {}, fpr95) == {"max_prob": "best", "entropy": "", "mutual_information": ""}
    behind = {"entropy": {"auroc": Interval(0.01, 0.001, 0.02)}, "max_prob": {"auroc": Interval(0.2, -0.1, 0.5)}}
    assert marks(found, behind, auroc) == {"max_prob": "same", "entropy": "", "mutual_information": "best"}
    assert marks({"entropy": {"auroc": near(0.7)}}, {}, auroc) == {"entropy": ""}  # the best of one is no news


def test_the_table_has_scores_side_by_side_in_80_columns() -> None:
    ood = {"letters": outside(0.7, 0.89, 0.9), "/a/long/path/of/a/folder": outside(0.5, 0.5, None)}
    lines = ood_lines("classification", ood, None)
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["out", "of", "max", "probability", "entropy", "mutual", "information"]
    assert lines[1].split() == ["distribution", *["auroc", "aupr", "fpr95"] * 3]
    assert lines[2].replace("*", "* ").split() == [
        *("letters", "0.700", "0.800*", "0.300*", "0.890~0.800*", "0.300*", "0.900*", "0.800*", "0.300*"),
    ]
    assert lines[3].split()[-3:] == ["-", "-", "-"]
    assert lines[3].split()[0] == "…/path/of/a/folder"
    assert lines[4].split()[:4] == ["mean", "of", "2", "sets"]
    assert ood_lines("classification", {}, None) == []


def test_means_of_older_files_are_never_too_certain() -> None:
    found = averages({"a": outside(0.5, 0.6, 0.7), "b": outside(0.7, 0.8, None)})
    assert found.mean.keys() == {"max_prob", "entropy"}
    one = found.mean["entropy"]["auroc"]
    assert (one.value, one.low, one.high) == pytest.approx((0.7, 0.69, 0.71))
    stored = Detection({"entropy": {}}, {})
    assert averages({}, stored) is stored


# ---- evaluations -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Evaluation:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=4, inducing_cols=4, init_lamda=0.3)
    sets = {"far": 5 * torch.randn(30, 4), "near": torch.randn(20, 4)}
    return bnn.evaluate(net, (torch.randn(60, 4), torch.arange(60) % 3), ood=sets, resamples=30)


def test_an_evaluation_has_all_scores_of_all_sets_and_their_mean(found: Evaluation) -> None:
    assert found.detection is not None
    assert list(found.detection.mean) == list(CLASSES)
    for score in CLASSES:
        for name, one in found.detection.mean[score].items():
            values = [each.detection[score][name].value for each in found.ood.values()]
            assert one.value == pytest.approx(sum(values) / 2)
            assert min(values) <= one.high
    assert found.ood_choice is not None
    assert f"which score: {found.ood_choice.why}" in found.table()
    assert max(len(line) for line in ood_lines(found.task, found.ood, found.detection)) <= 80


def test_risk_is_measured_by_total_and_epistemic(found: Evaluation) -> None:
    assert list(found.risk_coverage) == ["total", "epistemic"]
    for one in found.risk_coverage.values():
        assert one.coverage[-1] == 1
        assert one.risk[-1] == pytest.approx(1 - found.metrics["accuracy"].value)
        assert one.area.value == pytest.approx(sum(one.risk) / len(one.risk))  # 60 places: all are kept
    assert sum(one.behind is None for one in found.risk_coverage.values()) == 1
    assert found.abstaining is not None
    plain = bnn.evaluate(nn.Linear(4, 3), (torch.randn(20, 4), torch.arange(20) % 3), resamples=10)
    assert list(plain.risk_coverage) == ["total"]
    assert (plain.abstaining, plain.ood_choice, plain.detection) == (None, None, None)


def test_the_risk_of_real_targets_is_their_rmse() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    bnn.bayesianize_(net, "ffg", init_sd=0.1, max_sd=0.5)
    noise = bnn.likelihoods.Gaussian(sd=0.5)
    x, y = torch.randn(40, 4), torch.randn(40, 2)
    real = bnn.evaluate(net, (x, y), likelihood=noise, ood={"x": torch.randn(9, 4)})
    assert list(real.risk_coverage) == ["total", "epistemic"]
    each = [one.metrics["rmse"].value / float(y[:, int(d)].std(correction=0)) for d, one in real.by_target.items()]
    shared = real.risk_coverage["epistemic"]
    assert (shared.risk[-1], shared.unit) == (pytest.approx(np.sqrt(np.mean(np.square(each)))), "sd")
    net[2] = nn.Linear(8, 1)
    alone = bnn.evaluate(net, (x, y[:, :1]), likelihood=noise)
    assert alone.risk_coverage["total"].risk[-1] == pytest.approx(alone.metrics["rmse"].value)
    assert alone.risk_coverage["total"].unit == "own"
    assert real.detection is not None
    assert list(real.detection.mean) == ["total", "epistemic"]
    assert "total sd" in real.table()


def test_older_files_have_what_they_had(found: Evaluation) -> None:
    stored = json.loads(json.dumps(found.to_dict()))
    del stored["detection"], stored["risk_coverage"]
    for one in stored["ood"].values():
        del one["behind"], one["detection"]["max_prob"]
    old = Evaluation.from_dict(stored)
    assert (old.detection, old.risk_coverage, old.abstaining) == (None, {}, None)
    row = next(line for line in ood_lines(old.task, old.ood, old.detection) if line.startswith("  far"))
    assert row in old.table()
    assert row.split()[1:4] == ["-", "-", "-"]  # shown as missing
    assert old.ood_choice is not None
    assert Evaluation.from_dict(json.loads(json.dumps(old.to_dict()))) == old
