"""Which pictures a report has, what is drawn, and pictures as files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import HOSTILE, bare, corrupted, epochs, full, out_of, real, trained, two
from matplotlib.figure import Figure
from scipy import stats

from bnn import plots
from bnn.evaluation import Corrupted, Histogram
from bnn.metrics.bootstrap import Interval
from bnn.report import Entry, Picture, pictures, save_pictures
from bnn.report.sections import corruptions, examples, training
from bnn.report.sections.picture import in_key


def of(entries: list[Entry], key: str) -> Picture:
    return next(one for one in pictures(entries) if one.key == key)


def drawn(picture: Picture) -> Any:
    """The axes after drawing."""
    with plots.theme():
        axes = Figure().subplots()
        picture.draw(axes)
    return axes


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    """What is drawn, by label."""
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def test_every_section_has_its_pictures() -> None:
    found = list(pictures(two()))
    assert list(dict.fromkeys(one.section for one in found)) == [
        "classes",
        "calibration",
        "ood",
        "corruptions",
        "selective",
        "training",
        "tradeoff",
    ]
    keys = [one.key for one in found]
    assert len(keys) == len(set(keys)) == 2 + 2 + 1 + 2 + 3 + 1 + 4 + 2
    assert [one.key for one in found if one.section == "training"] == [
        "training-validation-nll",
        "training-validation-accuracy",
        "training-data-term",
        "training-kl",
    ]


def test_sections_with_nothing_to_show_have_none() -> None:
    assert not list(pictures([Entry("a", bare())]))
    assert {one.section for one in pictures([Entry("a", full())])} == {
        "classes",
        "calibration",
        "ood",
        "corruptions",
        "selective",
    }


def test_real_targets_have_coverage_and_predictions() -> None:
    entries = [Entry("a", real()), Entry("b", real())]
    assert [one.key for one in pictures(entries)] == [
        "interval-coverage",
        "predicted-a",
        "predicted-b",
        "tradeoff-size",
    ]
    x, y = lines(drawn(of(entries, "interval-coverage")))["b"]
    assert (x, y) == ([0.5, 0.9, 0.95], [0.55, 0.93, 0.96])


def test_names_with_the_same_slug_keep_keys_of_their_own() -> None:
    keys = [one.key for one in pictures([Entry("a b", real()), Entry("a-b", real())])]
    assert keys[1:3] == ["predicted-a-b", "predicted-a-b-2"]


@pytest.mark.parametrize("entries", [two(), [Entry("a", real()), Entry("b", real())]], ids=["classes", "reals"])
def test_each_picture_has_one_sentence_and_says_its_content(entries: list[Entry]) -> None:
    for one in [*pictures(entries), *examples.strips(entries)]:
        assert len(re.findall(r"[.!?](?:\s|$)", one.how)) == 1, one.how
        assert one.how.endswith(".")
        assert one.title
    assert all(one.facts for one in pictures(entries))


def test_runs_keep_their_colour() -> None:
    entries = two()
    for picture in pictures(entries):
        if picture.overlaid:
            named = {line.get_label(): line.get_color() for line in drawn(picture).lines}
            for label, color in named.items():
                if label.startswith("plain"):
                    assert color == plots.PALETTE[0]
                elif not label.startswith("_"):
                    assert color == plots.PALETTE[1]


def test_few_kinds_have_intervals_over_test_inputs() -> None:
    """The mean of the values, and of the limits; severity 0 is the test inputs as they are."""
    found = corruptions.means(full(corruptions=corrupted(kinds=2)), "accuracy")
    expected = [(0, 0.95, 0.93, 0.97), (1, 0.795, 0.775, 0.815), (3, 0.595, 0.575, 0.615)]
    np.testing.assert_allclose([one[:4] for one in found], expected)
    assert "interval over test inputs" in corruptions.how({2}, shared=True)


@pytest.mark.parametrize("kinds", [10, 15, 18, 19])
def test_many_kinds_have_a_t_interval_over_kinds(kinds: int) -> None:
    rows = corrupted(kinds)
    values = [row.metrics["accuracy"].value for row in rows if row.severity == 3]
    low, high = stats.t.interval(0.95, kinds - 1, np.mean(values), stats.sem(values))
    found = corruptions.means(full(corruptions=rows), "accuracy")[2]
    np.testing.assert_allclose([found.value, found.low, found.high], [np.mean(values), low, high], rtol=2e-4)
    sentence = corruptions.how({kinds}, shared=False)
    assert f"{kinds} kinds" in sentence
    assert "if these kinds stand for others" in sentence
    assert "same images" not in sentence


def test_shares_stay_shares() -> None:
    rows = tuple(
        Corrupted(f"k{i}", 1, {"ece": Interval(v, v, v)}, full().uncertainty) for i, v in enumerate([0.0] * 9 + [1.0])
    )
    assert corruptions.means(full(corruptions=rows), "ece")[1].low == 0


def test_a_network_that_diverged_is_left_out_of_pictures_that_cannot_show_it() -> None:
    nan = float("nan")
    rows = tuple(Corrupted("fog", s, {"nll": Interval(v, v, v)}, full().uncertainty) for s, v in ((1, nan), (3, 2.0)))
    lost = bare(metrics={"nll": Interval(nan, nan, nan)}, corruptions=rows)
    entries = [Entry("lost", lost), Entry("found", bare(corruptions=corrupted()))]
    assert "tradeoff-size" not in [one.key for one in pictures(entries)]
    assert lines(drawn(of(entries, "corruption-nll")))["lost"] == ([3], [2.0])
    assert "lost" not in lines(drawn(of(entries, "corruption-ece")))


def test_stages_follow_each_other() -> None:
    """Two members after two of pretraining: the members begin where the longer pretraining ends."""
    run = {"pretrain/member0": epochs(2), "pretrain/member1": epochs(3), "train": epochs(2)}
    curves = training.curves_of(run, training.QUANTITIES[0])
    assert [(curve.epochs, curve.dashed) for curve in curves] == [([1, 2], True), ([1, 2, 3], True), ([4, 5], False)]
    assert curves[2].values == [1.1, 0.55]


def test_an_rmse_in_other_units_is_called_so() -> None:
    run = {"train": epochs(2, validation_rmse=0.5)}
    captions = {
        units: of([Entry("a", real(), None, run, units)], "training-validation-rmse") for units in ("", "scaled")
    }
    captions["log"] = of([Entry("a", real(), None, run, "of the logarithm")], "training-validation-rmse")
    ends = {units: one.how.rpartition("; ")[2] for units, one in captions.items() if units}
    assert ends == {"scaled": "RMSEs are scaled.", "log": "RMSEs are of the logarithm."}
    assert "RMSEs" not in captions[""].how


def test_epochs_without_a_number_are_left_out() -> None:
    run = {"train": [{"data": None}, {"data": float("nan")}, {"data": 2.0}, {}]}
    assert training.curves_of(run, training.QUANTITIES[3])[0][:2] == ([3], [2.0])


def test_the_kl_is_the_sum_of_its_parts_and_plain_networks_have_none() -> None:
    picture = of([Entry("a", bare(), None, trained())], "training-kl")
    assert lines(drawn(picture)) == {"a": ([4, 5, 6, 7], [3.0, 3.0, 3.0, 3.0])}


def test_histograms_of_all_runs_have_the_same_scale() -> None:
    other = out_of(0.9)
    other.histograms["entropy"] = Histogram((0.5, 3.0), (10,), (20,))
    entries = [Entry("a", full()), Entry("b", full(ood={"letters": other}))]
    for name in "ab":
        assert drawn(of(entries, f"histogram-letters-{name}")).axis() == pytest.approx((0.0, 3.0, 0.0, 1.05))


def test_names_are_text_not_formulas() -> None:
    assert in_key("a_$x^{$") == r"a_\$x^{\$"
    long = in_key("a long name of a run, with number 17")
    assert long.startswith("a long name")
    assert long.endswith("number 17")


def test_a_strip_is_shortened_until_its_pictures_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    many = full().examples
    assert many is not None
    entry = Entry("a", full(examples=examples.Examples(many.certain * 4, many.uncertain * 4)))
    assert [len(strip.cards) for strip in examples.strips([entry])] == [8, 8, 3]
    monkeypatch.setattr(examples, "BUDGET", 0)
    assert [len(strip.cards) for strip in examples.strips([entry])] == [3, 3, 3]


def test_wrong_predictions_are_marked_and_sureness_is_not_rounded_up() -> None:
    strip = examples.strips([Entry("a", full())])[0]
    assert [card.right for card in strip.cards] == [True, False, True]
    assert examples.caption(strip.cards[1]) == "✗ 7 40.0 %, truly 9"
    assert [card.right for card in examples.strips([Entry("a", full())])[2].cards] == [None] * 3


def test_one_noise_for_all_leaves_no_inputs_to_show() -> None:
    same = full().examples
    assert same is not None
    first = same.certain[:1]
    assert not examples.strips([Entry("a", real(examples=examples.Examples(first, first)))])


def test_pictures_as_files(tmp_path: Path) -> None:
    some = bare(selective=full().selective, ood=full().ood, examples=full().examples)
    entries = [Entry(HOSTILE, some), Entry("b", real())]
    paths = save_pictures(entries, tmp_path / "new", ("png", "svg"))
    assert sorted(tmp_path.rglob("*.*")) == sorted(paths)
    assert {path.parent.name for path in paths} == {"digits-classification", "houses-regression"}
    assert {path.read_bytes()[:4] for path in paths if path.suffix == ".png"} == {b"\x89PNG"}
    assert len([path for path in paths if path.suffix == ".svg"]) == len(paths) / 2
    names = {path.stem for path in paths}
    assert {"accuracy-coverage", "interval-coverage", "roc-letters"} <= names
    assert sum(name.startswith(("certain-", "uncertain-", "most-certain-")) for name in names) == 3


def test_formats_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"some of \['png', 'svg', 'pdf'\]"):
        save_pictures(two(), tmp_path, ("gif",))
    with pytest.raises(ValueError, match="got 'png'"):
        save_pictures(two(), tmp_path, "png")
