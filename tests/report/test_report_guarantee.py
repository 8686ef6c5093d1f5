"""Reports of real targets: promises, guarantees, names and values of rows, the baseline that training left behind."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from made_runs import around, real
from matplotlib.figure import Figure

import bnn
from bnn.cli import app
from bnn.data.tables.columns import CategoryColumn, NumberColumn
from bnn.data.tables.preparation import TablePreparation
from bnn.evaluation import Coverage, Guaranteed, Promise, TargetPromise
from bnn.evaluation.pieces import BeforeAfter, Example, Examples, TargetScores, Uncertainty
from bnn.plots.style import short
from bnn.report import Entry, comparison, html, read_entry

OFF = Coverage(0.9, around(0.7), 12.0, 100)


def told() -> bnn.Evaluation:
    promise = Promise("regression", "too narrow", 0.9, 0.7, 0.6, 0.78, 100, "test", "do this", (OFF,))
    after = (Coverage(0.5, around(0.52), 63_410.0, 100),)
    guarantee = Guaranteed(8, "normalized", "test", (Coverage(0.5, around(0.4), 5.0, 100), OFF), after, "with 8 inputs")
    return real(promise=promise, guarantee=guarantee, target="price of <b>", coverage=(OFF,))


def test_the_page_says_whether_the_promise_is_kept_and_what_a_guarantee_changes() -> None:
    page = html([Entry("mine", told())])
    assert "<b>Not kept:</b> 90\u00a0% intervals hold 70.0\u00a0% of 100 test targets: too narrow; do this." in page
    assert "mine on houses: price of &lt;b&gt;" in page
    assert "mine: before and after its guarantee, on 100 test inputs" in page
    for cell in ("63,410", "too few inputs set aside", "With 8 inputs."):
        assert cell in page
    assert "Is the promise kept?" not in html([Entry("old", real())])


def test_the_page_names_the_target_that_is_off() -> None:
    levels = (Coverage(0.5, around(0.243), np.nan, 37), Coverage(0.9, around(0.757), np.nan, 37))
    hours = TargetPromise("too narrow", 0.5, 0.243, 0.13, 0.4, 37, levels)
    income = TargetPromise("as promised", 0.9, 0.9, 0.8, 0.95, 87, ())
    each = {"<i>hours": hours, "income": income}
    promise = Promise("regression", "too narrow", 0.5, 0.243, 0.13, 0.4, 37, "test", "do this", (), 2, by_target=each)
    page = html([Entry("mine", real(promise=promise))])
    said = "50 % intervals of &#39;&lt;i&gt;hours&#39; hold 24.3 % of its 37 known test targets (90 %: 75.7 %)"
    said = said.replace(" %", "\u00a0%")
    assert f"<b>Not kept:</b> {said}: too narrow; do this." in page


def test_cells_of_a_row_are_those_that_were_encoded() -> None:
    columns = (NumberColumn("age", 40.0, 10.0, True), CategoryColumn("near", ("bay", "coast"), True))
    table = TablePreparation(columns)
    rows = [{"age": 50, "near": "coast"}, {"age": "", "near": ""}]
    assert [table.cells(features) for features in table(rows)] == [
        {"age": pytest.approx(50.0), "near": "coast"},
        {"age": "", "near": ""},
    ]


def test_predictions_and_truth_have_the_same_axes() -> None:
    ax = Figure().subplots()
    bnn.plots.predicted_against_true(
        ax, dataclasses.make_dataclass("P", ["target", "mean", "sd"])([1e5, 6e5], [2e5, 4e5], [1e4, 1e4]), name="price"
    )
    assert ax.get_xlim() == ax.get_ylim()
    assert ax.get_aspect() == 1
    assert ax.get_xlabel() == "price"
    ticks = [value for value in ax.get_xticks() if ax.get_xlim()[0] <= value <= ax.get_xlim()[1]]
    assert 2 <= len(ticks) <= 5
    assert short(ticks[-1]).endswith("k")


def test_a_run_has_its_plain_network_beside_it(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one it began with, on the same test inputs; training curves end at what was found, in the target's units."""
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{1e5 + 2e4 * a + 1e4 * e:.0f}" for a, e in rng.normal(size=(200, 2))]
    (tmp_path / "t.csv").write_text("\n".join(["a,price", *lines]) + "\n")
    out = tmp_path / "run"
    options = ["--target", "price", "--epochs", "2", "--pretrain-epochs", "2", "--hidden", "8", "--out", str(out)]
    assert app.run(["train", "--data", str(tmp_path / "t.csv"), *options, "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == "price"
    assert found["promise"]["sentence"]
    assert app.run(["evaluate", str(out), "--quiet", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)[str(out)]
    assert printed["promise_kept"] == printed["promise"]["verdict"].startswith("as promised")
    assert app.run(["report", str(out), "--out", str(tmp_path / "r.html"), "--quiet", "--json"]) == 0
    (compared,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert list(compared["runs"]) == ["plain network of run", "run"]
    plain = compared["runs"]["plain network of run"]
    assert plain["draws"]["value"] == 1
    assert plain["rmse"]["value"] > 1000
    entry = read_entry(out)
    assert entry.training["train"][-1]["validation_rmse"] == pytest.approx(found["metrics"]["rmse"], rel=0.2)
    assert entry.evaluation.target == "price"
    assert "price" in (tmp_path / "r.html").read_text()


def test_several_targets_have_columns_of_their_own() -> None:
    def scores(rmse: float, sd: float) -> TargetScores:
        return TargetScores(100, {"rmse": around(rmse, 0.1 * rmse)}, Uncertainty(sd, 0.8 * sd, 0.6 * sd))

    each = {"power": scores(47.0, 70.0), "loss": scores(0.0004, 0.0005)}
    guarantee = told().guarantee
    assert guarantee is not None
    by_target = {
        name: BeforeAfter((dataclasses.replace(OFF, size=s),), ()) for name, s in (("power", 99.0), ("loss", 0.002))
    }
    one = told()
    found = dataclasses.replace(one, by_target=each, guarantee=dataclasses.replace(guarantee, by_target=by_target))
    sure = Example(0, "765.1; 0.003148", "760; 0.003", None, 50.0, 40.0, 30.0)
    sds = tuple(scores.uncertainty for scores in each.values())
    found = dataclasses.replace(
        found, examples=Examples((dataclasses.replace(sure, each=sds),), (dataclasses.replace(sure, total=60.0),))
    )
    table = comparison([Entry("mine", found)])
    titles = dict(zip(table.header, table.rows[0], strict=True))
    assert (titles["RMSE of power"], titles["RMSE of loss"]) == ("47.0", "0.000400")
    assert (titles["epistemic test, power"], titles["epistemic test, loss"]) == ("42", "0.00030")
    assert "RMSE" not in titles
    page = html([Entry("mine", found)])
    assert "± 70.0; 0.000500" in page
    assert "<td>0.002</td>" in page
    assert "RMSE is" not in page
