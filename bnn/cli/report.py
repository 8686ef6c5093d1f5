"""`bayesianize report`: any number of runs side by side, as one page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bnn.cli.console import open_page, print_json, say
from bnn.cli.mistakes import Mistake, one_of
from bnn.cli.options import Json, Quiet, Runs

FORMATS = ("png", "svg", "pdf")


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="Of the page.")] = None,
    plots: Annotated[Path | None, typer.Option("--plots", help="Write every picture into this folder, too.")] = None,
    formats: Annotated[str, typer.Option("--format", help="Of these files: png, svg, pdf, or several.")] = "png",
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Writes one self-contained HTML page that compares runs; those not evaluated yet are, on their test data."""
    from bnn.cli.evaluated_runs import Wanted, evaluate_run, print_comparisons, with_plain
    from bnn.report import comparison, grouped, read_entry, save_pictures, write
    from bnn.train.runs.opening import open_run

    wanted_formats = [one_of("format", part.strip(), FORMATS) for part in formats.split(",")]
    if out.suffix.lower() not in (".html", ".htm"):
        raise Mistake(f"the page is an .html file, got --out {out}; try --out {out.with_suffix('.html')}")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise Mistake(f"cannot write {out}: {'it is a folder' if out.is_dir() else 'there is no folder for it'}")
    if plots is not None and plots.exists() and not plots.is_dir():
        raise Mistake(f"--plots names a folder, and {plots} is a file")
    runs = only_runs(runs)
    opened = [open_run(run) for run in runs]  # all are looked at before one is evaluated
    for run in opened:
        if run.evaluation is None:
            say(f"{run.folder} is not evaluated yet: doing it on its test data (`bayesianize evaluate` can do more)")
            evaluate_run(run, Wanted(progress=False if quiet else None))
    if not quiet:
        say(f"writing {out}{'' if plots is None else f' and the pictures in {plots}'}")
    entries = with_plain([read_entry(run) for run in runs], opened, Wanted(progress=False if quiet else None))
    options = {} if title is None else {"title": title}
    write(entries, out, **options)
    files = [] if plots is None else save_pictures(entries, plots, formats=tuple(wanted_formats))
    if as_json:
        found = {"report": str(out), "plots": [str(file) for file in files]}
        print_json(found | {"comparisons": [comparison(group).to_dict() for group in grouped(entries)]})
    else:
        print_comparisons(entries)
        say(f"report: {out} ({os.path.getsize(out) / 1024:,.0f} kB)")
        if files:
            say(f"pictures: {len(files)} files in {plots}")
    if show:
        open_page(out)


def only_runs(paths: list[Path]) -> list[Path]:
    """Without what is no run at all, with a note, if something is left: `report runs/*` finds other files, too."""
    from bnn.train.runs.folder import RunFolder

    held = [path for path in paths if RunFolder(path).state != "fresh"]
    others = [str(path) for path in paths if path.exists() and path not in held]
    if not held or not others:
        return paths
    say(f"note: left out, because they hold no run: {', '.join(others)}")
    return [path for path in paths if str(path) not in others]
