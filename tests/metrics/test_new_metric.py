"""What is registered is measured, reported and documented; the metric of docs/extending.md, run as printed."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest
import torch

import bnn
from bnn.metrics import bootstrap, classification_metrics, metric, registry, regression_metrics, rmse

DOCS = pathlib.Path(__file__).parents[2] / "docs"
RNG = np.random.default_rng(0)
MEAN, SD, Y = RNG.normal(size=(50, 2)), RNG.uniform(0.5, 2.0, size=(50, 2)), RNG.normal(size=(50, 2))
PROBS, LABELS = RNG.dirichlet([1.0, 1.0, 1.0], size=50), RNG.integers(3, size=50)


@pytest.fixture(autouse=True)
def same_metrics():
    """Forgets the metrics that a test registers."""
    before = dict(registry._REGISTERED)
    yield
    registry._REGISTERED.clear()
    registry._REGISTERED.update(before)


def test_the_docs_have_the_table_of_the_registry() -> None:
    page = (DOCS / "metrics.md").read_text().split("\n## What evaluations report\n")[1].split("\n## ")[0]
    assert [line for line in page.splitlines() if line.startswith("|")] == registry.table()


def test_what_is_registered() -> None:
    names = {task: [one.name for one in registry.metrics(task)] for task in registry.GIVEN}
    assert names["classification"] == [
        *("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc", "balanced_accuracy"),
        "nll_after_temperature",
    ]
    assert names["regression"] == ["rmse", "nll", "crps", "coverage", "sharpness"]
    assert names["detection"] == ["auroc", "aupr", "fpr95"]
    assert [one.name for one in registry.shown("classification")] == ["accuracy", "nll", "ece"]
    assert [one.name for one in registry.shown("regression")] == ["rmse", "nll", "crps", "coverage_90"]
    assert registry.shown("regression")[-1].better == 0.9


def test_names_of_intervals_are_found() -> None:
    one = registry.find("regression", "coverage_99.5")
    assert one is not None
    assert (one.title, one.better) == ("99.5 % coverage", 0.995)
    assert registry.find("regression", "rmse_90") is None
    assert registry.find("classification", "unheard_of") is None


def test_brief_are_the_same_numbers() -> None:
    every, few = (regression_metrics(MEAN, SD, Y, resamples=20, brief=brief) for brief in (False, True))
    assert few == {name: every[name] for name in ("rmse", "nll", "crps")}
    every, few = (classification_metrics(PROBS, LABELS, resamples=20, brief=brief) for brief in (False, True))
    assert few == {name: every[name] for name in ("accuracy", "nll", "ece")}


def test_losses_of_a_likelihood_are_the_nll() -> None:
    found = regression_metrics(MEAN, SD, Y, losses=np.arange(50.0), resamples=20)
    assert found["nll"].value == 24.5
    assert found["crps"] == regression_metrics(MEAN, SD, Y, resamples=20)["crps"]


def test_the_example_of_the_page(tmp_path: pathlib.Path) -> None:
    section = (DOCS / "extending.md").read_text().split("\n## A metric\n")[1].split("\n## ")[0]
    x = torch.randn(40, 3)
    net = torch.nn.Linear(3, 1)
    history = bnn.fit(net, (x, x.sum(1)), epochs=1, progress=False)
    namespace: dict[str, Any] = {"bnn": bnn, "net": net, "x": x, "y": x.sum(1, keepdim=True), "history": history}
    for block in re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "extending.md", "exec", dont_inherit=True), namespace)
    found = namespace["found"]
    mean = bnn.predict(net, x, 0, history.likelihood).mean
    assert found.metrics["mae"].value == pytest.approx(float((mean - x.sum(1, keepdim=True)).abs().mean()), rel=1e-5)
    assert found.metrics["mae"].low < found.metrics["mae"].value < found.metrics["mae"].high
    assert "mae" in str(found)
    found.save(tmp_path / "found.json")
    entries = [bnn.report.Entry(name, bnn.Evaluation.load(tmp_path / "found.json")) for name in "ab"]
    comparison = bnn.report.comparison(entries)
    assert comparison.header[comparison.header.index("90 % coverage") + 1] == "MAE"
    assert any("In MAE the 95 % intervals of both runs" in "".join(one) for one in bnn.report.summary(comparison))
    assert "MAE" in bnn.report.html(entries)
    assert any("| `mae` | regression | MAE | low |" in row for row in registry.table())


def test_a_metric_that_is_no_mean_runs_on_every_resample() -> None:
    """With intervals and draws among what it is given: as `bootstrap` has it."""

    @metric("regression", "worst error", "the largest error")
    def worst(mean: Any, targets: Any, draws: Any = None, bins: int = 3) -> float:
        assert draws is None or draws[0].shape[1:] == mean.shape
        return float(np.abs(mean - targets).max())

    @metric("regression", "narrowest", "of a level", name="narrowest")
    def narrowest(low: Any, high: Any, level: float) -> float:
        return float((high - low).min() / level)

    found = regression_metrics(MEAN, SD, Y, levels=[0.8], resamples=25, seed=3)
    assert found["worst"] == bootstrap(lambda m, y: float(np.abs(m - y).max()), MEAN, Y, resamples=25, seed=3)
    assert found["narrowest_80"].value > 0
    assert found["rmse"] == bootstrap(rmse, MEAN, Y, resamples=25, seed=3)
    assert "worst" in regression_metrics(MEAN, 1.0, Y, draws=(np.stack([MEAN, Y]), 0.5), resamples=5)


def test_a_detection_metric_resamples_the_sets_apart() -> None:
    @metric("detection", "gap", "between the means", better="higher")
    def gap(scores_in: Any, scores_out: Any) -> float:
        return float(np.mean(scores_out) - np.mean(scores_in))

    found = bnn.metrics.detection_metrics([0.0, 1.0, 2.0], [5.0, 6.0], resamples=20)
    assert found["gap"] == bootstrap(gap, [0.0, 1.0, 2.0], [5.0, 6.0], groups=[0, 1], resamples=20)


def test_mistakes_show_where_a_metric_is_defined() -> None:
    with pytest.raises(TypeError, match=r"'odd' asks for \['logits'\]; one of classification is given \['probs', "):

        @metric("classification", "odd", "nothing")
        def odd(logits: Any, labels: Any) -> float:
            return 0.0

    with pytest.raises(ValueError, match="there is a metric 'accuracy' of classification already"):

        @metric("classification", "accuracy", "another", name="accuracy")
        def other(probs: Any, labels: Any) -> float:
            return 0.0

    with pytest.raises(ValueError, match="unknown task 'sorting'"):
        metric("sorting", "a", "b")
    with pytest.raises(ValueError, match="unknown better 'up'"):
        metric("regression", "a", "b", better="up")
