"""Classes in the report: a matrix of counts and shares, a compact form for many classes, tables and sentences."""

from __future__ import annotations

import re

import pytest
from made_runs import bare, classes, full, real
from matplotlib.figure import Figure

from bnn import plots
from bnn.plots.confusion import matrix_size
from bnn.report import Entry, comparison, html
from bnn.report.figures import figure_of, pictures
from bnn.report.sections import confusion

NAMES = ("nein", "ja")


def entry(names: tuple[str, ...] = NAMES, name: str = "mine") -> Entry:
    return Entry(name, bare(classes=classes(names), metrics={"balanced_accuracy": full().metrics["accuracy"]}))


def drawn_texts(counts: list[list[int]], names: tuple[str, ...]) -> list[tuple[str, float, float]]:
    ax = Figure().subplots()
    plots.confusion_matrix(ax, counts, names)
    return [(text.get_text(), *map(round, text.get_position())) for text in ax.texts]


def test_cells_hold_counts_and_shares_of_the_row() -> None:
    """Column (x) is what is predicted, row (y) what is true; 0 is left empty."""
    assert drawn_texts([[30, 10], [0, 1000]], NAMES) == [
        *(("30", 0, 0), ("75 %", 0, 0), ("10", 1, 0), ("25 %", 1, 0)),
        *(("1,000", 1, 1), ("100 %", 1, 1)),
    ]


def test_shade_is_the_share_of_the_row() -> None:
    ax = Figure().subplots()
    plots.confusion_matrix(ax, [[3, 1], [0, 0]], NAMES)
    assert [round(patch.get_facecolor()[3], 3) for patch in ax.patches] == [0.45, 0.15, 0, 0]


@pytest.mark.parametrize(("counts", "names"), [([[1, 2]], NAMES), ([[1]], NAMES), ([[1, -1], [0, 0]], NAMES)])
def test_what_is_no_confusion_matrix(counts: list[list[int]], names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="expected counts"):
        plots.confusion_matrix(Figure().subplots(), counts, names)


def test_nothing_but_right_answers_has_no_mistakes_to_draw() -> None:
    with pytest.raises(ValueError, match="no mistakes"):
        plots.frequent_mistakes(Figure().subplots(), [])


@pytest.mark.parametrize("count", [2, 7, 20])
def test_numbers_of_a_matrix_do_not_overlap(count: int) -> None:
    names = tuple(f"rather long name {i}" for i in range(count))
    (picture,) = [one for one in pictures([entry(names)]) if one.section == "classes"]
    with plots.theme():
        figure = figure_of(picture, 1)
        figure.draw_without_rendering()
        assert tuple(figure.get_size_inches()) == pytest.approx(matrix_size(names))
        boxes = [text.get_window_extent() for text in figure.axes[0].texts]
        assert len(boxes) == 2 * count  # all are taken for the first class
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_many_classes_are_shown_by_their_most_frequent_mistakes() -> None:
    many = entry(tuple(f"c{i}" for i in range(21)))
    (picture,) = [one for one in pictures([many]) if one.section == "classes"]
    assert picture.title == "Most frequent mistakes of mine"
    ax = Figure().subplots()
    picture.draw(ax)
    assert len(ax.patches) == 12
    assert ax.get_yticklabels()[0].get_text() == "c1 → c0"
    ((title, rows),) = confusion.tables([many])
    assert title == "mine, class by class, the 10 of 21 found least"
    assert len(rows) == 1 + 10


def test_the_page_says_who_is_never_predicted() -> None:
    page = html([entry()])
    summary = re.search(r'<p class="summary">(.*?)</p>', page, re.DOTALL)
    assert summary is not None
    assert "By <strong>mine</strong>, &#39;ja&#39; (10\N{NO-BREAK SPACE}% of the test inputs) is never predicted." in (
        summary[1].replace("10 %", "10\N{NO-BREAK SPACE}%")
    )
    section = page.split('class="classes"')[1].split("</section>")[0]
    assert "--class-weights balanced" in section
    row = re.search(r'<tr><th scope="row">ja</th>(.*?)</tr>', section)
    assert row is not None
    assert re.findall("<td>(.*?)</td>", row[1]) == ["50", "10.0 %", "10.0 %", "0", "-", "0.0 %", "0.0 %"]


def test_runs_without_classes_have_no_such_section() -> None:
    for one in (bare(), real()):
        assert 'class="classes"' not in html([Entry("a", one)])


def test_balanced_accuracy_has_a_column_where_classes_are_unequal() -> None:
    equal = Entry("even", bare(classes=classes(("a", "b", "c", "d", "e")), metrics=entry().evaluation.metrics))
    assert comparison([entry()]).column("balanced_accuracy") is not None
    assert comparison([equal]).column("balanced_accuracy") is None
