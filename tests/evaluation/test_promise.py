"""Coverage and promises against definitions, simulation and scipy; guarantees in evaluations; older files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import bnn
from bnn.evaluation.coverage import LEVELS, as_predicted, guaranteed, own_coverage, wilson
from bnn.evaluation.guaranteed_classes import class_coverage_rows
from bnn.evaluation.interval_promise import z_of
from bnn.evaluation.predictor import Outputs
from bnn.evaluation.promise import Promise, promise_of


def reals(means: np.ndarray, sds: np.ndarray) -> Outputs:
    """Of draws (K, N)."""
    mean, epistemic, aleatoric = means.mean(0), means.var(0), np.square(sds).mean(0)
    total = aleatoric + epistemic
    scores = {"total": np.sqrt(total), "epistemic": np.sqrt(epistemic)}
    return Outputs(mean, total, aleatoric, epistemic, scores, (means, sds), len(means), scaled=(mean, np.sqrt(total)))


def normal(n: int, sd: float = 1.0) -> Outputs:
    return reals(np.zeros((1, n)), np.full((1, n), sd))


def classes(probs: np.ndarray) -> Outputs:
    zeros = np.zeros(len(probs))
    return Outputs(probs, zeros, zeros, zeros, {"max_prob": 1 - probs.max(1)}, None, 1)


@pytest.mark.parametrize(("inside", "n"), [(0, 10), (10, 10), (83, 111), (500, 1000)])
def test_wilson_is_that_of_scipy(inside: int, n: int) -> None:
    expected = stats.binomtest(inside, n).proportion_ci(0.95, method="wilson")
    found = wilson(inside / n, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert z_of(3) == pytest.approx(stats.norm.ppf(1 - 0.05 / 6))


def test_coverage_is_the_share_inside_the_intervals_of_the_mixture() -> None:
    rng = np.random.default_rng(0)
    outputs = reals(rng.normal(size=(5, 200)), rng.uniform(0.3, 1.5, size=(5, 200)))
    y = rng.normal(size=200) * 1.3
    for one in own_coverage(outputs, y):
        low, high = outputs.interval(one.level)
        assert one.covered.value == pytest.approx(((low <= y) & (y <= high)).mean())
        assert one.inputs == 200


def test_targets_that_are_missing_do_not_count() -> None:
    y = np.where(np.arange(40) < 10, np.nan, 0.0)
    (found,) = own_coverage(normal(40), y, [0.5])
    assert (found.covered.value, found.inputs) == (1.0, 30)
    assert promise_of(normal(3), np.full(3, np.nan)) is None


def several(n: int, targets: int) -> Outputs:
    """N(0, 1) for every target."""
    return reals(np.zeros((1, n, targets)), np.ones((1, n, targets)))


def quantiles(n: int, sd: float = 1.0) -> np.ndarray:
    """n targets (n,) that are spread as N(0, sd^2) is: of its intervals every one holds what it says."""
    return sd * stats.norm.ppf((np.arange(n) + 0.5) / n)


def test_of_several_targets_inputs_are_not_called_targets() -> None:
    """40 inputs of 2 targets, of which 20 are missing: there are 60 targets."""
    y = np.full((40, 2), np.nan)
    y[:, 0], y[20:, 1] = quantiles(40), quantiles(20)
    found = promise_of(several(40, 2), y)
    assert found is not None
    assert found.sentence == (
        "90 % intervals hold 90.0 % of the targets of 40 test inputs (50 %: 50.0 %, 80 %: 80.0 %): as promised for "
        "each of 2 targets, within what 20 to 40 inputs can tell"
    )
    assert Promise.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    one = promise_of(normal(40), quantiles(40))
    assert one is not None
    assert one.sentence == (
        "90 % intervals hold 90.0 % of 40 test targets (50 %: 50.0 %, 80 %: 80.0 %): as promised, within what 40 "
        "targets can tell"
    )
    assert (one.by_target, one.worst) == ({}, "")


def test_one_of_several_targets_that_is_off() -> None:
    """Together they hold what they say; `hours`, mostly missing, is judged by its own values, `none` has none."""
    n, names = 90, ("income", "share", "hours", "none")
    y = np.full((n, 4), np.nan)
    y[:, 0], y[:, 1], y[::3, 2] = quantiles(n, 0.9), quantiles(n, 0.9), quantiles(30, 2.5)
    found = promise_of(several(n, 4), y, names=names, level=0.8)
    assert found is not None
    assert abs(found.levels[-1].covered.value - 0.9) < 0.03  # over all targets, which says nothing
    assert {name: one.verdict for name, one in found.by_target.items()} == {
        "income": "as promised",
        "share": "as promised",
        "hours": "too narrow",
    }
    for d, (name, one) in enumerate(found.by_target.items()):
        values = y[~np.isnan(y[:, d]), d]
        shares = [(np.abs(values) <= stats.norm.ppf(0.5 + level / 2)).mean() for level in LEVELS]
        assert [each.covered.value for each in one.levels] == pytest.approx(shares)
        assert one.inputs == len(values) == (30 if name == "hours" else 90)
        of = (stats.binomtest(round(share * len(values)), len(values)) for share in shares)
        found_in = [one.proportion_ci(1 - 0.05 / 9, method="wilson") for one in of]  # three levels of three targets
        assert one.kept == all(ci.low <= level <= ci.high for ci, level in zip(found_in, LEVELS, strict=True))
    worst = found.by_target["hours"]
    assert (found.verdict, found.worst, found.kept) == ("too narrow", "hours", False)
    assert (found.promised, found.held, found.low, found.high, found.inputs) == (
        *(worst.promised, worst.held, worst.low, worst.high, 30),
    )
    held = {level: f"{100 * one.covered.value:.1f} %" for level, one in zip(LEVELS, worst.levels, strict=True)}
    first, share = f"{100 * worst.promised:.0f} % intervals of 'hours'", held.pop(worst.promised)
    others = ", ".join(f"{100 * level:.0f} %: {share}" for level, share in held.items())
    start = f"{first} hold {share} of its 30 known test targets ({others}): too narrow; this run has a guarantee: "
    assert found.sentence.startswith(start)
    assert Promise.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    both = promise_of(several(n, 4), np.where(np.arange(4) == 1, 3 * y, y))
    assert both is not None
    assert both.sentence.split(")")[0].endswith("; 1 more target is off")
    assert list(both.by_target) == ["0", "1", "2"]


def test_a_promise_of_several_targets_in_an_older_file() -> None:
    """It has no verdict for each, and reads as it did."""
    found = promise_of(several(40, 2), np.stack([quantiles(40)] * 2, 1))
    assert found is not None
    stored = found.to_dict()
    del stored["by_target"]
    assert Promise.from_dict(stored).sentence.endswith("80 %: 80.0 %): as promised, within what 40 inputs can tell")


def test_promises_that_are_kept_are_seldom_called_broken() -> None:
    """Of 1,000 sets drawn as promised at most 5 %, and two standard errors, count as broken."""
    rng = np.random.default_rng(1)
    reports = [promise_of(normal(200), rng.normal(size=200)) for _ in range(1000)]
    assert np.mean([not one.kept for one in reports if one is not None]) < 0.064
    reports = [promise_of(several(200, 6), rng.normal(size=(200, 6))) for _ in range(1000)]
    assert np.mean([not one.kept for one in reports if one is not None]) < 0.064
    p = rng.dirichlet(np.ones(3), size=(1000, 300))
    labels = (rng.random((1000, 300, 1)) < p.cumsum(2)).argmax(2)
    reports = [promise_of(classes(one), y) for one, y in zip(p, labels, strict=True)]
    assert np.mean([not one.kept for one in reports if one is not None]) < 0.064


@pytest.mark.parametrize(("concentrations", "n"), [((8.0, 1.0, 0.15), 60), ((0.3,) * 8, 150), ((30.0, 0.2), 400)])
def test_classes_that_are_given_their_share_are_seldom_called_off(concentrations: tuple[float, ...], n: int) -> None:
    """Rare classes, many, and one of which most samples hold no input; of 1,000 at most 5 %, and two errors."""
    rng = np.random.default_rng(5)
    p = rng.dirichlet(concentrations, size=(1000, n))
    labels = (rng.random((1000, n, 1)) < p.cumsum(2)).argmax(2)
    reports = [promise_of(classes(one), y) for one, y in zip(p, labels, strict=True)]
    assert np.mean([not one.kept for one in reports if one is not None]) < 0.064


def test_classes_that_count_alike_are_not_as_frequent_as_they_are_probable() -> None:
    """Probabilities of classes of equal weight, of data in which they are not: sure as often as right, yet skewed."""
    rng = np.random.default_rng(6)
    labels = rng.choice(3, 800, p=[0.85, 0.13, 0.02])
    hit = rng.random(800) < 0.6
    p = np.full((800, 3), 0.2)
    p[np.arange(800), np.where(hit, labels, (labels + rng.integers(1, 3, 800)) % 3)] = 0.6
    names = ("healthy", "mild", "severe")
    found = promise_of(classes(p), labels, classes=names, weighted=True)
    assert found is not None
    assert (found.verdict, found.kept) == ("skewed over the classes", False)
    given, shares = p.mean(0), np.bincount(labels) / 800
    assert [one.name for one in found.classes] == ["healthy", "severe", "mild"]
    assert [one.probability for one in found.classes] == pytest.approx(given[[0, 2, 1]])
    assert [one.share for one in found.classes] == pytest.approx(shares[[0, 2, 1]])
    wanted = (
        f"'healthy' has a probability of {100 * given[0]:.1f} % on average, and is {100 * shares[0]:.1f} % of these "
        "inputs (2 more classes are off): skewed over the classes; these are probabilities of reweighted classes: "
        "train without --class-weights (without class_weights= in Python)"
    )
    assert wanted in found.sentence
    assert Promise.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    other = promise_of(classes(p), labels)
    assert other is not None
    assert [one.name for one in other.classes] == ["0", "2", "1"]
    assert "calibrate on validation data, or use more data" in other.sentence
    assert "--class-weights" not in other.sentence


def test_a_rare_class_is_off_by_a_factor() -> None:
    """1 % of 20,000 inputs that are given 2.5 %: fewer than 3 points, but more than twice as much."""
    labels = (np.arange(20_000) % 100 == 0).astype(int)
    for given, off in ((0.025, ["1"]), (0.0145, []), (0.01, [])):
        found = promise_of(classes(np.tile([1 - given, given], (20_000, 1))), labels)
        assert found is not None
        assert [one.name for one in found.classes] == off
        assert found.kept == (not off)


def test_promises_that_are_broken_are_called_so() -> None:
    rng = np.random.default_rng(2)
    y = rng.normal(size=1000)
    for sd, verdict in ((0.7, "too narrow"), (1.5, "too wide"), (1.0, "as promised")):
        found = promise_of(normal(1000, sd), y)
        assert found is not None
        assert found.verdict == verdict
        assert found.kept == (verdict == "as promised")
        inside = np.abs(y) <= sd * stats.norm.ppf(0.5 + found.promised / 2)
        assert found.held == pytest.approx(inside.mean())
        assert verdict in found.sentence
        assert f"hold {100 * found.held:.1f} % of 1,000 test targets" in found.sentence
        assert ("guarantee" in found.sentence) == (not found.kept)
    tails = promise_of(normal(1000), np.where(rng.random(1000) < 0.25, 30.0, 0.3 * y))
    assert tails is not None
    assert tails.verdict == "of the wrong shape"


def test_classes_sure_of_more_than_they_know() -> None:
    labels = np.arange(500) % 10 == 0  # 90 % are of class 0
    for sure, verdict in ((0.99, "overconfident"), (0.9, "as promised"), (0.6, "underconfident")):
        found = promise_of(classes(np.tile([sure, 1 - sure], (500, 1))), labels.astype(int), "validation")
        assert found is not None
        assert (found.verdict, found.held, found.promised) == (verdict, 0.9, pytest.approx(sure))
        assert "right on 90.0 % of 500 validation inputs" in found.sentence


def test_a_gap_that_is_certain_but_small_is_no_matter() -> None:
    labels = (np.arange(100_000) % 100 < 9).astype(int)  # 91 % against 93 %
    found = promise_of(classes(np.tile([0.93, 0.07], (100_000, 1))), labels)
    assert found is not None
    assert found.kept


def test_a_guarantee_before_and_after() -> None:
    rng = np.random.default_rng(3)
    held, new = normal(400, 0.5), normal(20_000, 0.5)
    guarantee = bnn.conformal.calibrate(as_predicted(held), rng.normal(size=400))
    y = rng.normal(size=20_000)
    found = guaranteed(guarantee, new, y, None)
    for before, after in zip(found.before, found.after, strict=True):
        width = 2 * 0.5 * stats.norm.ppf(0.5 + before.level / 2)
        assert before.size == pytest.approx(width)
        assert before.covered.value == pytest.approx((np.abs(y) <= width / 2).mean())
        lower, upper = guarantee.intervals(as_predicted(new), before.level)
        assert after.size == pytest.approx(float((upper - lower).mean()))
        assert after.covered.value == pytest.approx(before.level, abs=0.08)  # four sds of 400 rows at 0.5, and less
    assert "with 400 inputs set aside" in found.statement
    few = bnn.conformal.calibrate(as_predicted(normal(5)), rng.normal(size=5))
    assert [one.level for one in guaranteed(few, new, y, None).after] == [0.5, 0.8]


def test_sets_before_and_after_by_definition() -> None:
    rng = np.random.default_rng(4)
    p = rng.dirichlet(np.ones(4), size=300)
    y = rng.integers(0, 4, 300)
    guarantee = bnn.conformal.calibrate(p[:100], y[:100])
    found = guaranteed(guarantee, classes(p[100:]), y[100:], None)
    for before, after in zip(found.before, found.after, strict=True):
        sizes, inside = [], []
        for row, label in zip(p[100:], y[100:], strict=True):
            chosen: list[int] = []
            for c in np.argsort(-row):
                if sum(row[chosen]) < before.level:
                    chosen.append(int(c))
            sizes.append(len(chosen))
            inside.append(label in chosen)
        assert (before.size, before.covered.value) == pytest.approx((np.mean(sizes), np.mean(inside)))
        sets = guarantee.sets(p[100:], before.level)
        assert (after.size, after.covered.value) == pytest.approx(
            (sets.sum(1).mean(), sets[range(200), y[100:]].mean())
        )


def test_what_sets_hold_of_each_class() -> None:
    """By definition, at every level; of many classes a table has those of which least is held, none without inputs."""
    rng = np.random.default_rng(7)
    p = rng.dirichlet(np.linspace(0.2, 3, 15), size=900)
    y = (rng.random((900, 1)) < p.cumsum(1)).argmax(1)
    y[y == 4] = 5
    guarantee = bnn.conformal.calibrate(p[:300], y[:300])
    names = [f"kind {c}" for c in range(15)]
    found = guaranteed(guarantee, classes(p[300:]), y[300:], None, classes=names)
    held = {}
    for c, name in enumerate(names):
        of = y[300:] == c
        for one in found.classes[name]:
            assert one.inputs == of.sum()
            if one.inputs:
                held[name] = guarantee.sets(p[300:], one.level)[of, c].mean()
                assert one.covered.value == pytest.approx(held[name])
    header, *rows = class_coverage_rows(found)
    there = f"of class (worst 8 of {len(held)})"
    assert header == [f"guaranteed sets hold, {there}", "test inputs", "at 50 %", "at 80 %", "at 90 %"]
    assert [row[0] for row in rows] == sorted(held, key=lambda name: held[name])[:8]
    assert "kind 4" not in held
    of_reals = bnn.conformal.calibrate(as_predicted(normal(9)), np.arange(9.0))
    assert class_coverage_rows(guaranteed(of_reals, normal(5), np.zeros(5), None)) == []


def test_the_spread_of_coverage_is_that_of_beta() -> None:
    guarantee = bnn.conformal.calibrate((np.zeros((1, 66)), np.ones((1, 66))), np.arange(66.0))
    k = math.ceil(67 * 0.9)
    assert f"by {100 * stats.beta(k, 67 - k).std():.1f} points" in guarantee.statement(0.9)
    with pytest.raises(ValueError, match="takes 99 calibration rows"):
        guarantee.statement(0.99)


def evaluated() -> bnn.Evaluation:
    torch.manual_seed(0)
    x = torch.randn(120, 2)
    y = 1000 * x[:, :1] + 100 * torch.randn(120, 1)
    net = nn.Linear(2, 1)
    data = bnn.data.arrays(x, y, task="regression", test=0.4, guarantee=30)
    noise = bnn.fit(net, data, epochs=5, progress=False).likelihood
    assert data.guarantee is not None
    guarantee = bnn.conformal.calibrate(
        bnn.predict(net, data.guarantee.x, samples=0, likelihood=noise), data.guarantee.y
    )
    far = {"far": 10 * torch.randn(20, 2)}
    return bnn.evaluate(net, data, likelihood=noise, guarantee=guarantee, ood=far, resamples=20)


def test_an_evaluation_says_it_all_and_keeps_it() -> None:
    found = evaluated()
    assert found.promise is not None
    assert found.guarantee is not None
    text = found.table()
    assert found.promise.sentence in text
    assert found.guarantee.statement in text
    assert "variance" not in text.split("verdict")[0]
    again = bnn.Evaluation.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found
    assert [one.level for one in found.guarantee.before] == list(LEVELS)


def test_variances_of_older_files_are_read_as_sds() -> None:
    found = evaluated()
    stored = json.loads(json.dumps(found.to_dict()))

    def squared(one: dict[str, float]) -> None:
        one.update({name: one[name] ** 2 for name in ("total", "aleatoric", "epistemic")})

    squared(stored["uncertainty"])
    squared(stored["ood"]["far"]["uncertainty"])
    groups = [stored["examples"], stored["ood"]["far"]["examples"]]
    for example in [one for group in groups for part in group.values() for one in part]:
        squared(example)
    for histogram in stored["ood"]["far"]["histograms"].values():
        histogram["edges"] = [edge**2 for edge in histogram["edges"]]
    for name in ("coverage", "promise", "guarantee", "target"):
        del stored[name]
    again = bnn.Evaluation.from_dict(stored | {"format_version": 1})
    assert again.uncertainty.total == pytest.approx(found.uncertainty.total)
    assert again.ood["far"].uncertainty.aleatoric == pytest.approx(found.ood["far"].uncertainty.aleatoric)
    assert again.examples is not None
    assert found.examples is not None
    assert again.examples.certain[0].total == pytest.approx(found.examples.certain[0].total)
    edges = [one.ood["far"].histograms["total"].edges for one in (again, found)]
    assert edges[0] == pytest.approx(edges[1])
    assert again.promise is None
