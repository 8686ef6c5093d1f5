"""The report as one HTML file that needs nothing else, and, as plain data, everything its template lays out."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path

import jinja2
import torch
from markupsafe import Markup, escape

from bnn import plots
from bnn._common.atomic import write_atomically
from bnn.evaluation import Evaluation
from bnn.evaluation.pieces import Corrupted
from bnn.metrics import written
from bnn.report.comparison import Column, Comparison, comparison
from bnn.report.entry import Entry, grouped
from bnn.report.figures import figure_of, inline_svg, palette_style, pictures
from bnn.report.gain import gain
from bnn.report.scores import ScoreTable, score_table
from bnn.report.sections import confusion
from bnn.report.sections.corruptions import shared
from bnn.report.sections.examples import Strip, strips
from bnn.report.sections.guarantee import guarantee_tables
from bnn.report.sections.picture import Picture, slug
from bnn.report.summary import Name, Sentence, summary
from bnn.report.views import TableView

HERE = Path(__file__).parent
TEMPLATE, STYLE, SCRIPT = "report.html.jinja", "report.css", "report.js"
LARGE, SMALL = (3.5, 2.75), (2.7, 2.3)  # inches: their letters can be read on a phone, and with four side by side
SECTIONS = {  # id -> title, the question it answers
    "comparison": ("Comparison", "What does each run achieve, and at what size?"),
    "classes": ("Classes", "Which class is taken for which?"),
    "calibration": ("Calibration", "Do probabilities mean what they say?"),
    "ood": ("Out of distribution", "Does the network notice inputs unlike those it was trained on?"),
    "corruptions": ("Corruptions", "What happens as images get worse?"),
    "selective": ("Selective prediction", "What is gained by leaving the least sure inputs to somebody else?"),
    "training": ("Training", "How did training go?"),
    "tradeoff": ("Size and time", "What does quality cost?"),
    "examples": ("Most and least certain inputs", "What do sure and unsure look like?"),
    "reproduce": ("Reproduce", "How is each run made again?"),
}


def write(
    entries: Sequence[Entry],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    about: str = "",
    made: str | None = None,
) -> None:
    """Writes the report to one HTML file, whole or not at all.

    Args:
        entries: any number of runs; those on other data are compared apart.
        path: the file, in a folder that exists.
        title: of the page; None says how many runs on what.
        about: a paragraph below it.
        made: when it was made, as it should be shown; None leaves that out.

    Raises:
        FileNotFoundError: there is no such folder.
        IsADirectoryError: the path is a folder.
    """
    place = os.path.realpath(path)
    if not os.path.isdir(os.path.dirname(place)):
        raise FileNotFoundError(f"cannot write {os.fspath(path)}: there is no such folder; create it first")
    if os.path.isdir(place):
        raise IsADirectoryError(f"cannot write {os.fspath(path)}: it is a folder; name a file in it, as report.html")
    write_atomically(html(entries, title=title, about=about, made=made).encode(), place)


def html(entries: Sequence[Entry], *, title: str | None = None, about: str = "", made: str | None = None) -> str:
    """The report as the text of a page; arguments as for `write`. Equal arguments give equal pages."""
    groups = [group_view(group, f"g{i}") for i, group in enumerate(grouped(entries), 1)]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.tests["run_name"] = lambda piece: isinstance(piece, Name)
    page = environment.get_template(TEMPLATE).render(
        title=title or default_title(groups),
        about=about,
        made=made,
        groups=groups,
        colors=len(plots.PALETTE),
        versions=versions(),
        style=_own_file(STYLE) + Markup(palette_style()),
        script=_own_file(SCRIPT),
    )
    return page.strip() + "\n"


def default_title(groups: Sequence[GroupView]) -> str:
    """How many runs, on what."""
    runs = sum(len(group.comparison.runs) for group in groups)
    if runs == 1:
        return f"{groups[0].comparison.runs[0]} on {groups[0].comparison.data}{groups[0].target}"
    data = list(dict.fromkeys(group.comparison.data for group in groups))
    return f"{runs} runs on {' and '.join(data)}{groups[0].target if len(groups) == 1 else ''}"


def versions() -> dict[str, str]:
    """What the page was made with."""
    try:
        own = version("bayesianize")
    except PackageNotFoundError:
        own = "unknown"
    return {"bayesianize": own, "torch": str(torch.__version__), "python": platform.python_version()}


def _own_file(name: str) -> Markup:
    return Markup((HERE / name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class FigureView:
    """One picture, or one for each run, with a title and one sentence."""

    id: str
    title: str
    how: str
    drawings: list[tuple[str, Markup]]  # short title, SVG
    width: float | None = None  # inches that it needs to be readable

    @property
    def alone(self) -> bool:
        """Whether it holds one picture only."""
        return len(self.drawings) == 1


@dataclass(frozen=True)
class RecipeView:
    """How to make a run again."""

    name: str
    file: str
    text: str
    evaluated: str
    command: str
    part_of: str = ""


@dataclass(frozen=True)
class SectionView:
    """One section: its pictures, and tables below them."""

    id: str
    kind: str
    title: str
    question: str
    figures: list[FigureView] = field(default_factory=list)
    tables: list[TableView] = field(default_factory=list)


@dataclass(frozen=True)
class GroupView:
    """Runs on the same data."""

    id: str
    title: str
    comparison: Comparison
    columns: list[Column]  # of the comparison, those that its table shows
    spans: list[tuple[str, int]]  # headings above several columns, and how many
    gain: list[Sentence]
    summary: list[Sentence]
    promises: list[tuple[str, bool, str]]  # run, whether it is kept, the sentence
    verdicts: list[tuple[str, str, tuple[str, ...]]]
    sections: list[SectionView]
    strips: dict[str, list[Strip]]
    recipes: list[RecipeView]
    scores: ScoreTable | None  # of out-of-distribution inputs
    abstaining: list[tuple[str, str]]  # run, by which uncertainty
    classes: list[tuple[str, str]]  # run, a sentence about its classes
    target: str = ""  # ": price", where a real target has a name


def group_view(entries: Sequence[Entry], id: str) -> GroupView:
    """What the page shows about runs on the same data; `id` starts every anchor."""
    found = comparison(entries)
    drawn: dict[str, list[FigureView]] = {}
    with plots.theme():
        for (section, *_), members in groupby(pictures(entries), _frame):
            drawn.setdefault(section, []).append(_figure(list(members), len(entries), id))
    shown: dict[str, list[Strip]] = {}
    for strip in strips(entries):
        shown.setdefault(strip.run, []).append(strip)
    recipes = [_recipe(entry) for entry in entries]
    by_class = [TableView(name, rows[0], rows[1:], open=True) for name, rows in confusion.tables(entries)]
    tables = {
        "corruptions": _kinds(entries),
        "calibration": guarantee_tables(entries),
        confusion.SECTION: by_class,
    }
    scores = score_table(entries)
    there = {
        "comparison",
        "reproduce",
        *drawn,
        *(kind for kind, found_ in tables.items() if found_),
        *(["examples"] if shown else []),
        *(["ood"] if scores else []),
    }
    sections = [
        SectionView(f"{id}-{kind}", kind, title, question, drawn.get(kind, []), tables.get(kind, []))
        for kind, (title, question) in SECTIONS.items()
        if kind in there
    ]
    kept = [(one.name, one.evaluation.promise) for one in entries]
    promises = [(name, one.kept, _capital(one.sentence.replace("`", ""))) for name, one in kept if one is not None]
    verdicts = [(one.name, one.evaluation.verdict, one.evaluation.notes) for one in entries]
    named = next((one.evaluation.target for one in entries if one.evaluation.target), None)
    title = f"{found.data} ({found.task}{'' if named is None else f' of {named}'})"
    columns = [column for column in found.columns if not column.detail]
    spans = [(name, len(list(each))) for name, each in groupby(column.group for column in columns)]
    abstain = [(one.name, _capital(one.evaluation.abstaining)) for one in entries if one.evaluation.abstaining]
    return GroupView(
        id,
        title,
        found,
        columns,
        spans,
        gain(entries),
        [*summary(found), *_warned(entries)],
        promises,
        verdicts,
        sections,
        shown,
        recipes,
        scores,
        abstain,
        [(name, _capital(text)) for name, text in confusion.sentences(entries)],
        "" if named is None else f": {named}",
    )


def _warned(entries: Sequence[Entry]) -> list[Sentence]:
    """Runs that never predict a class, as sentences of the summary."""
    return [["By ", Name(name), ", ", f"{text}."] for name, text in confusion.warnings(entries)]


def _capital(text: str | None) -> str:
    return "" if not text else text[:1].upper() + text[1:]


def _frame(picture: Picture) -> tuple[str, str, str]:
    """What pictures in the same frame have in common."""
    return picture.section, picture.panel, "" if picture.panel else picture.key


def _figure(members: Sequence[Picture], runs: int, id: str) -> FigureView:
    """Pictures that share a frame, or one alone."""
    first, shared = members[0], len(members) > 1
    drawings = [(one.short, _drawing(one, runs, f"{id}-{one.key}", SMALL if shared else LARGE)) for one in members]
    width = None if first.size is None else first.size[0]
    return FigureView(f"{id}-{first.key}", first.panel if shared else first.title, first.how, drawings, width)


def _drawing(picture: Picture, runs: int, id: str, size: tuple[float, float]) -> Markup:
    facts = f"{picture.title}: {picture.facts}" if picture.facts else picture.title
    return Markup(inline_svg(figure_of(picture, runs, size), f"{id}-", str(escape(facts))))


def _recipe(entry: Entry) -> RecipeView:
    one = entry.evaluation
    text = "" if entry.recipe is None else json.dumps(entry.recipe, indent=2, ensure_ascii=False)
    passes = "one pass" if one.draws == 1 else f"{one.draws} draws"
    evaluated = f"evaluated with {passes} and seed {one.seed} on {one.inputs:,} inputs"
    evaluated += "" if one.network_temperature == 1 else f", logits divided by T = {one.network_temperature:.3g}"
    return RecipeView(entry.name, slug(entry.name), text, evaluated, _command(one, slug(entry.name)), entry.part_of)


def _command(one: Evaluation, file: str) -> str:
    """What measures the run again."""
    kinds: dict[str, list[int]] = {}
    for row in one.corruptions:
        kinds.setdefault(row.kind, []).append(row.severity)
    words = [f"bayesianize evaluate runs/{file}", *(f"--ood {shlex.quote(name)}" for name in one.ood)]
    words += [f"--corruptions {kind}:{','.join(map(str, levels))}" for kind, levels in kinds.items()]
    if one.draws > 1:
        words.append(f"--samples {one.draws}")
    return " ".join([*words, f"--seed {one.seed}"] if one.seed else words)


def _kinds(entries: Sequence[Entry]) -> list[TableView]:
    """Kind by kind, a table for each run."""
    return [_kinds_of(entry) for entry in entries if entry.evaluation.corruptions]


def _kinds_of(entry: Entry) -> TableView:
    rows = {(row.kind, row.severity): row for row in entry.evaluation.corruptions}
    kinds = list(dict.fromkeys(kind for kind, _ in rows))
    severities = sorted({severity for _, severity in rows})
    task = entry.evaluation.task
    names = shared(entry.evaluation, entry.evaluation.corruptions[0].metrics)
    title = f"{entry.name}, kind by kind: {', '.join(written.metric_title(task, name) for name in names)}"
    header = ["kind", *(f"severity {severity}" for severity in severities)]
    cells = [
        [kind.replace("_", " "), *(_corrupted(task, rows.get((kind, s)), names) for s in severities)] for kind in kinds
    ]
    return TableView(title, header, cells)


def _corrupted(task: str, row: Corrupted | None, names: Sequence[str]) -> str:
    if row is None:
        return "-"
    return " · ".join(written.metric_text(task, name, row.metrics[name].value) for name in names if name in row.metrics)
