"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jinja2
import torch
from markupsafe import Markup

from bnn import plots
from bnn._common.atomic import write_atomically
from bnn.report.entry import Entry, grouped
from bnn.report.summary import Name
from bnn.report.svg import palette_style
from bnn.report.view import GroupView, group_view

HERE = Path(__file__).parent
TEMPLATE, STYLE, SCRIPT = "report.html.jinja", "report.css", "report.js"


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
        return f"{groups[0].comparison.runs[0]} on {groups[0].comparison.data}"
    data = list(dict.fromkeys(group.comparison.data for group in groups))
    return f"{runs} runs on {' and '.join(data)}"


def versions() -> dict[str, str]:
    """What the page was made with."""
    try:
        own = version("bayesianize")
    except PackageNotFoundError:
        own = "unknown"
    return {"bayesianize": own, "torch": str(torch.__version__), "python": platform.python_version()}


def _own_file(name: str) -> Markup:
    return Markup((HERE / name).read_text(encoding="utf-8"))
