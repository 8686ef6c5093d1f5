"""The sentence that opens a report: right whatever the numbers are, and silent where there is nothing to compare."""

from __future__ import annotations

from typing import Any

import pytest
from made_runs import around, bare, out_of, real

from bnn.evaluation import Size, Time
from bnn.report import Entry, gain, html

ONE = Size(10_000, 40_000, 1, 10_000, 1.0)
THREE = Size(30_000, 120_000, 3, 10_000, 3.0)


def plain(**changes: Any) -> Entry:
    given = {"draws": 1, "size": ONE, "metrics": {"accuracy": around(0.9), "nll": around(0.3)}}
    return Entry("Plain", bare(**(given | changes)))


def small(accuracy: float, nll: float, **changes: Any) -> Entry:
    given = {"time": Time(500, 0.013, 0.01, 5), "metrics": {"accuracy": around(accuracy), "nll": around(nll)}}
    return Entry("Small", bare(**(given | changes)))


def text(*entries: Entry) -> str:
    return " ".join("".join(sentence) for sentence in gain(entries))


def test_better() -> None:
    assert text(plain(), small(0.95, 0.2)) == (
        "Small takes 25 % of the parameters and 1.3 times the time per prediction of the plain network (Plain): "
        "accuracy 95.0 % against 90.0 % and NLL 0.200 against 0.300; all of these are better."
    )


def test_worse() -> None:
    said = text(plain(), small(0.85, 0.4))
    assert said.endswith(": accuracy 85.0 % against 90.0 % and NLL 0.400 against 0.300; all of these are worse.")


def test_no_difference() -> None:
    said = text(plain(), small(0.93, 0.31))
    same = ": accuracy 93.0 % against 90.0 % and NLL 0.310 against 0.300; no clear difference in any of these."
    assert said.endswith(same)


def test_some_of_each() -> None:
    said = text(plain(), small(0.85, 0.31))
    assert said.endswith("accuracy 85.0 % against 90.0 % (worse) and NLL 0.310 against 0.300 (no clear difference).")


def test_each_run_tells_other_inputs_by_the_score_that_suits_it() -> None:
    seen = {"letters": out_of(0.9, others={"mutual_information": 0.97}), "noise": out_of(0.9)}
    seen["noise"].detection["mutual_information"] = {"auroc": around(0.99)}
    known = {name: out_of(0.8) for name in ("letters", "noise", "only here")}
    said = text(plain(ood=known), small(0.9, 0.3, ood=seen))
    assert said.endswith(
        "and AUROC on letters and noise 0.980 by mutual information against 0.800 by entropy (better)."
    )
    many = {f"set {i}": out_of(0.8) for i in range(4)}
    said = text(plain(ood=many), small(0.9, 0.3, ood=many))
    assert "AUROC on 4 sets of out-of-distribution inputs 0.800 against 0.800, both by entropy; no clear" in said


def test_without_out_of_distribution_inputs_or_times() -> None:
    for seen, others in (({}, {}), ({"letters": out_of(0.9)}, {}), ({"letters": out_of(0.9)}, {"noise": out_of(0.9)})):
        said = text(plain(ood=others), small(0.9, 0.3, ood=seen, time=None))
        assert "AUROC" not in said
        assert said.startswith("Small takes 25 % of the parameters of the plain network (Plain): accuracy")


def test_what_more_parameters_would_bring() -> None:
    large = Entry("Large", bare(draws=3, size=THREE, time=Time(500, 0.03, 0.01, 5), ood={"letters": out_of(0.95)}))
    said = text(large, plain(ood={"letters": out_of(0.9)}), small(0.9, 0.3))
    assert said.startswith("Small takes 25 %")
    assert said.endswith(
        ". Large, at 300 % of the parameters and 3.0 times the time per prediction, reaches accuracy 95.0 %, NLL 0.200 "
        "and AUROC 0.950 by entropy."
    )
    alone = text(large, plain())
    assert alone.startswith("Large takes 300 % of the parameters")
    assert "reaches" not in alone


def test_without_a_plain_network_nothing_is_said() -> None:
    assert gain([small(0.9, 0.3)]) == []
    assert gain([plain()]) == []
    another = plain(size=Size(900, 3600, 1, 900, 1.0))  # of another architecture
    assert gain([another, small(0.9, 0.3)]) == []
    assert 'class="gain"' not in html([another, small(0.9, 0.3)])


def test_of_several_plain_networks_the_best_is_the_one_to_beat() -> None:
    better = Entry("Better", bare(draws=1, size=ONE, metrics={"nll": around(0.25)}))
    assert "(Better): " in text(plain(), better, small(0.9, 0.3))


def test_real_targets() -> None:
    own = Entry("Small", real())
    other = Entry("Plain", real(draws=1, size=ONE, metrics={"rmse": around(4.0, 0.2)}))
    assert "RMSE 3.00 against 4.00 (better) and NLL 2.500 against 2.500 (no clear difference)." in text(own, other)


@pytest.mark.parametrize("groups", [1, 2])
def test_it_opens_the_page(groups: int) -> None:
    entries = [plain(), small(0.95, 0.2)] + [Entry("other", bare("letters"))] * (groups - 1)
    page = html(entries)
    assert page.count('class="gain"') == 1
    assert "<strong>Small</strong> takes 25" in page
    assert page.index('class="gain"') < page.index('class="summary"')
