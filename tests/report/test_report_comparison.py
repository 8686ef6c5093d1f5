"""The comparison and its summary: which numbers, which marks, and no more than the intervals allow."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from made_runs import around, bare, full, out_of, real

from bnn.evaluation import Size, Time
from bnn.metrics.bootstrap import Interval
from bnn.report import Entry, comparison, summary


def marks(key: str, *runs: Any) -> list[str]:
    """The marks of a column."""
    column = comparison([Entry(f"run {i}", run) for i, run in enumerate(runs)]).column(key)
    assert column is not None
    return [cell.mark for cell in column.cells]


def text(*entries: Entry) -> str:
    """The summary as one line."""
    return " ".join("".join(sentence) for sentence in summary(comparison(entries)))


def accurate(value: float, half: float = 0.02) -> Any:
    return bare(metrics={"accuracy": around(value, half)})


def test_the_best_and_those_about_the_same_are_marked() -> None:
    assert marks("accuracy", accurate(0.9), accurate(0.95), accurate(0.97)) == ["", "same", "best"]
    # intervals that touch overlap; those that do not, do not
    assert marks("accuracy", accurate(0.5, 0.25), accurate(1.0, 0.25)) == ["same", "best"]
    assert marks("accuracy", accurate(0.5, 0.25), accurate(1.0, 0.2)) == ["", "best"]


def test_lower_is_better_where_it_is() -> None:
    low, high = bare(metrics={"nll": around(0.1)}), bare(metrics={"nll": around(0.5)})
    assert marks("nll", low, high) == ["best", ""]


def test_coverage_is_best_nearest_its_level() -> None:
    runs = [real(metrics={"coverage_90": Interval(v, v - 0.01, v + 0.01)}) for v in (1.0, 0.88, 0.75)]
    assert marks("coverage_90", *runs) == ["", "best", ""]


def test_parameters_have_no_interval_and_ties_are_exact() -> None:
    sizes = [bare(size=Size(n, 4 * n, 1, 1000, n / 1000)) for n in (500, 501, 500)]
    assert marks("parameters", *sizes) == ["best", "", "best"]


def test_times_within_a_tenth_are_about_the_same() -> None:
    times = [full(time=Time(1000, seconds, None, 5)) for seconds in (1.0, 1.09, 1.11)]
    assert marks("time", *times) == ["best", "same", ""]


def test_one_run_alone_is_best_of_nothing() -> None:
    assert all(not cell.mark for column in comparison([Entry("a", full())]).columns for cell in column.cells)


def test_a_run_that_was_not_measured_has_no_mark_and_no_number() -> None:
    found = comparison([Entry("a", full()), Entry("b", bare()), Entry("c", full(ood={"letters": out_of(0.99)}))])
    column = found.column("auroc:entropy:letters")
    assert column is not None
    assert [(cell.value, cell.mark) for cell in column.cells] == [(0.9, ""), (None, ""), (0.99, "best")]
    assert found.rows[1][found.header.index("AUROC letters by entropy")] == "-"


def test_several_sets_have_a_mean_by_every_score_and_each_set_as_detail() -> None:
    one = {name: out_of(value, others={"mutual_information": value + 0.05}) for name, value in (("a", 0.7), ("b", 0.9))}
    other = {name: out_of(0.6) for name in "ab"}
    found = comparison([Entry("x", full(ood=one)), Entry("y", full(ood=other)), Entry("z", bare())])
    mean = found.column("auroc:mutual_information")
    assert mean is not None
    assert (mean.group, mean.title, mean.detail) == ("AUROC, mean of 2 sets", "by mutual information", False)
    assert mean.full_title == "AUROC on average by mutual information"
    assert [cell.value for cell in mean.cells] == [pytest.approx(0.85), None, None]
    entropy = found.column("auroc:entropy")
    assert entropy is not None
    assert [cell.value for cell in entropy.cells] == [pytest.approx(0.8), pytest.approx(0.6), None]
    assert [cell.mark for cell in entropy.cells] == ["best", "", ""]
    each = found.column("auroc:mutual_information:b")
    assert each is not None
    assert (each.detail, each.group, each.full_title) == (True, "AUROC of b", "AUROC b by mutual information")
    keys = [column.key for column in found.columns if column.key.startswith("auroc:")]
    assert keys == [f"auroc:{s}{n}" for n in ("", ":a", ":b") for s in ("entropy", "mutual_information")]


def test_a_mean_is_over_the_sets_that_all_runs_have_seen() -> None:
    three, two = ({name: out_of(0.9 if name < "c" else 0.3) for name in names} for names in ("abc", "ab"))
    column = comparison([Entry("x", full(ood=three)), Entry("y", full(ood=two))]).column("auroc:entropy")
    assert column is not None
    assert [cell.value for cell in column.cells] == [pytest.approx(0.9)] * 2
    apart = comparison([Entry("x", full(ood={"a": out_of(0.9)})), Entry("y", full(ood={"b": out_of(0.9)}))])
    assert apart.column("auroc:entropy") is None


def test_the_summary_takes_the_best_score_of_each_run() -> None:
    spots = full(ood={"letters": out_of(0.7, others={"mutual_information": 0.95})})
    found = text(Entry("plain", full(ood={"letters": out_of(0.8)})), Entry("drawn", spots))
    assert "letters is drawn (0.950 by mutual information), its interval clear of all others." in found
    assert "The AUROC against letters is 0.950 by mutual information (95 % interval [0.930, 0.970])." in text(
        Entry("drawn", spots)
    )


def test_columns_with_nothing_in_them_are_left_out() -> None:
    keys = [column.key for column in comparison([Entry("a", bare())]).columns]
    assert keys == ["parameters", "draws", "accuracy", "nll", "ece", "epistemic"]
    keys = [column.key for column in comparison([Entry("a", real(draws=1))]).columns]
    assert keys == ["parameters", "draws", "rmse", "nll", "crps", "coverage_90"]


def test_a_nan_is_no_number() -> None:
    nan = float("nan")
    assert marks("nll", bare(metrics={"nll": Interval(nan, nan, nan)}), bare()) == ["", ""]


def test_texts_and_json() -> None:
    found = comparison([Entry("a", full()), Entry("b", full(metrics={"accuracy": around(0.8)}))])
    assert found.header[:5] == ["run", "parameters", "draws", "accuracy", "NLL"]
    assert found.rows[0] == ["a", "2,500*", "20", "95.0 %*", "0.200*", "3.0 %*", "0.900*", "0.050", "0.30", "100 ms*"]
    cell = comparison([Entry("a", full())]).column("parameters").cells[0]  # type: ignore[union-attr]
    assert cell.small == "25 % of plain"
    stored = json.loads(json.dumps(found.to_dict()))
    assert stored["runs"]["b"]["accuracy"] == {"value": 0.8, "low": 0.78, "high": 0.8200000000000001, "mark": ""}
    assert stored["runs"]["a"]["time"] == {"value": 0.1, "mark": "best"}


def test_times_are_compared_with_the_plain_network() -> None:
    cell = comparison([Entry("a", full())]).column("time").cells[0]  # type: ignore[union-attr]
    assert (cell.text, cell.small) == ("100 ms", "10 times plain")


def test_different_data_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"same data, got digits \(classification\), houses \(regression\)"):
        comparison([Entry("a", bare()), Entry("b", real())])
    with pytest.raises(ValueError, match="at least one run"):
        comparison([])


def test_the_summary_says_what_is_best() -> None:
    a, b, c = (Entry(name, accurate(value)) for name, value in (("a", 0.8), ("b", 0.93), ("c", 0.95)))
    assert "Most accurate is c (95.0 %), with b within its interval." in text(a, b, c)
    assert "Most accurate is c (95.0 %), its interval clear of all others." in text(a, c)
    assert "In accuracy the 95 % intervals of both runs overlap (93.0 % to 95.0 %)." in text(b, c)
    assert "In likelihood (NLL) the 95 % intervals of all 3 runs overlap (0.200)." in text(a, b, c)
    assert "Each has 2,500 parameters, 25 % of those of the plain network." in text(a, b)


def test_runs_on_other_numbers_of_inputs_are_said_to_be() -> None:
    assert "scored on 400 to 500 test inputs" in text(Entry("a", bare()), Entry("b", bare(inputs=400)))


def test_the_summary_names_the_smallest_and_the_best_outside() -> None:
    plain = full(size=Size(10_000, 40_000, 1, 10_000, 1.0), ood={"letters": out_of(0.7)})
    found = text(Entry("plain", plain), Entry("small", full()))
    assert "Best at spotting letters is small (0.900 by entropy), its interval clear of all others." in found
    assert "Smallest is small: 2,500 parameters, 25 % of those of the plain network." in found


def test_many_sets_share_a_sentence() -> None:
    good, bad = ({name: out_of(value) for name in "xyz"} for value in (0.9, 0.6))
    found = text(Entry("a", full(ood=good)), Entry("b", full(ood=bad)))
    assert "Best at spotting out-of-distribution inputs is a, clear of all others in 3 of 3 sets." in found
    close = {name: out_of(0.901) for name in "xyz"}
    assert "no run is clear of all others in any of 3 sets" in text(
        Entry("a", full(ood=good)), Entry("b", full(ood=close))
    )


def test_the_summary_of_one_run_gives_its_numbers() -> None:
    found = text(Entry("a", full()))
    assert found.startswith(
        "a was scored on 500 test inputs of digits. Accuracy is 95.0 % (95 % interval [93.0, 97.0])."
    )
    assert found.endswith("It has 2,500 parameters, 25 % of those of the plain network.")


def test_real_targets_have_a_summary_too() -> None:
    worse = replace(real(), metrics=real().metrics | {"rmse": around(9.0, 0.1)})
    found = text(Entry("a", real()), Entry("b", worse))
    assert "The smallest error (RMSE) is that of a (3.00), its interval clear of all others." in found
