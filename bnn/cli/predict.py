"""`bayesianize predict`: new inputs in, a table with answers and their uncertainty out, shown or as a file."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from bnn._common.atomic import write_atomically
from bnn.cli.console import console, print_json, print_table, say
from bnn.cli.mistakes import Mistake
from bnn.cli.options import Json, Quiet, Run, Samples, Seed

if TYPE_CHECKING:
    from bnn.train.runs.answers import Answers

SHOWN = 50  # rows of a table on a terminal
BETWEEN = 3  # letters between columns
LEAST = ("aleatoric", "epistemic")  # columns that are left out first: either is what the other leaves of the total
MEAN = "mean_"  # begins the first column of each of several targets

Input = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="Images and folders of images, CSV files, or .npy and .npz files."),
]
Out = Annotated[str | None, typer.Option(help="Write the table to this file: .csv, .tsv, .json or .jsonl.")]
Level = Annotated[float | None, typer.Option(help="Probability of the interval of a real target; by default 0.9.")]
Guarantee = Annotated[
    float | None,
    typer.Option(
        help="Intervals, or sets of classes, that hold with this probability; of a run with --guarantee. Sets hold "
        "over inputs of all classes, within each class only of a run with --guarantee-by-class."
    ),
]
Above = Annotated[
    float | None, typer.Option(help="Abstain where the uncertainty is above this: nats, or an sd of a real target.")
]
Coverage = Annotated[
    float | None, typer.Option(help="Abstain above the smallest threshold that answers this share of validation data.")
]
By = Annotated[str | None, typer.Option(help="Abstain by this uncertainty: total (default), aleatoric or epistemic.")]
Batch = Annotated[int, typer.Option("--batch-size", min=1, help="Inputs that run at a time.")]
Keep = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Carry this column of the CSV along; may be repeated.")
]
Probs = Annotated[bool, typer.Option("--probs", help="A column for the probability of every class.")]


def predict(
    run: Run,
    inputs: Input,
    out: Out = None,
    samples: Samples = None,
    seed: Seed = 0,
    level: Level = None,
    guarantee: Guarantee = None,
    abstain_above: Above = None,
    coverage: Coverage = None,
    by: By = None,
    batch_size: Batch = 500,
    keep: Keep = None,
    probs: Probs = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Predicts new inputs with a finished run: a table of answers, each with its uncertainty taken apart."""
    from bnn.cli.training.run_summary import HEAVY
    from bnn.train.runs.opening import open_run

    file = None if out is None else checked_file(out, inputs)
    answers = open_run(run).predict(
        inputs,
        samples=samples,
        seed=seed,
        level=level,
        guarantee=guarantee,
        abstain_above=abstain_above,
        coverage=coverage,
        by=by,
        keep=keep or (),
        probs=probs,
        batch_size=batch_size,
        progress=False if quiet else None,
    )
    if not quiet and answers.rule is not None and answers.rule.validation is not None:
        say(answers.rule.stated)
    if not quiet and answers.stated is not None:
        say(answers.stated)
    df = answers.about.get("df")
    if not quiet and df is not None and df < HEAVY:
        say(_noise(df))
    if file is not None:
        write_table(file, answers)
    if as_json:
        print_json(answers.to_dict())
    elif file is None:
        _print(answers)
    if not quiet:
        say(_summary(answers, file))


def _print(answers: Answers) -> None:
    """A table on terminals, of several targets one for each; CSV elsewhere, so that `> table.csv` works."""
    if not sys.stdout.isatty():
        print(as_csv(answers), end="")
        return
    from bnn.metrics import written

    text = partial(written.decimals, places=4) if answers.about["task"] == "classification" else written.real
    left = next(i for i, name in enumerate(answers.columns) if name not in answers.text)
    for title, columns in blocks(list(answers.columns), left):
        cells = {heading: answers[name][:SHOWN] for heading, name in columns.items()}
        shown = {k: [text(one) if isinstance(one, float) else one for one in each] for k, each in cells.items()}
        shown, left_out = fitting(shown, console().width)
        print_table(list(shown), list(zip(*shown.values(), strict=True)), title=title, left=left)
        if left_out:
            print(f"(without {' and '.join(left_out)}, for lack of width: --out FILE.csv)\n")
    if len(answers) > SHOWN:
        print(f"... {len(answers) - SHOWN} more: --out FILE.csv")


def fitting(columns: dict[str, list[str]], width: int) -> tuple[dict[str, list[str]], list[str]]:
    """The columns that a terminal of this width has room for, and those of `LEAST` that are left out.

    >>> fitting({"mean": ["1.25"], "aleatoric": ["0.5"], "epistemic": ["0.25"]}, 20)
    ({'mean': ['1.25'], 'epistemic': ['0.25']}, ['aleatoric'])
    """
    left_out: list[str] = []
    for name in LEAST:
        widths = [max(len(one) for one in [heading, *cells]) for heading, cells in columns.items()]
        if name in columns and sum(widths) + BETWEEN * len(widths) > width:
            columns = {heading: cells for heading, cells in columns.items() if heading != name}
            left_out.append(name)
    return columns, left_out


def blocks(columns: list[str], left: int) -> list[tuple[str, dict[str, str]]]:
    """Tables as narrow as a terminal: of several targets one for each, with its name and {heading: column}.

    Args:
        columns: of all answers; those of a target end with its name, as `mean_price` does.
        left: how many of them, the first ones, say what the input is.

    >>> blocks(["input", "mean_a", "mean_b"], 1)
    [('a', {'input': 'input', 'mean': 'mean_a'}), ('b', {'input': 'input', 'mean': 'mean_b'})]
    """
    first, others = {name: name for name in columns[:left]}, columns[left:]
    targets = [name.removeprefix(MEAN) for name in others if name.startswith(MEAN)]
    if len(targets) < 2:
        return [("", {name: name for name in columns})]
    width = len(others) // len(targets)  # every target has as many
    parts = [others[i * width : (i + 1) * width] for i in range(len(targets))]
    return [
        (target, first | {name.removesuffix(f"_{target}"): name for name in part})
        for target, part in zip(targets, parts, strict=True)
    ]


def _noise(df: float) -> str:
    """What sds alone do not say, where the noise has clearly heavier tails than a Gaussian's."""
    return (
        f"noise: heavier tails than a Gaussian's, as Student's t with {df:.3g} degrees of freedom; low and high allow "
        "for them, a likelihood made of mean and sds alone would not"
    )


def _summary(answers: Answers, file: str | None) -> str:
    text = f"{len(answers)} input{'s' if len(answers) != 1 else ''}"
    rule = answers.rule
    if rule is not None:
        from bnn.metrics import written

        limits = " and ".join(written.real(one) for one in rule.thresholds)
        text += f", {answers.abstained} abstained ({rule.by} uncertainty above {limits})"
    return text if file is None else f"{text}: written to {file}"


def _json(answers: Answers) -> str:
    return json.dumps(answers.to_dict(), indent=1, allow_nan=False) + "\n"


def _json_lines(answers: Answers) -> str:
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in answers.records())


def as_csv(answers: Answers, delimiter: str = ",") -> str:
    """A line of names, then one line per row."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(answers.columns)
    writer.writerows(answers.rows())
    return text.getvalue()


WRITERS: dict[str, Callable[[Answers], str]] = {
    ".csv": as_csv,
    ".tsv": lambda answers: as_csv(answers, "\t"),
    ".json": _json,
    ".jsonl": _json_lines,
}


def checked_file(path: str, inputs: Iterable[str]) -> str:
    """`path`, if a table can be written there that replaces none of the inputs; otherwise a mistake."""
    if _ending(path) not in WRITERS:
        raise Mistake(f"--out {path}: a table is written as {', '.join(WRITERS)}, by the ending of the file")
    if os.path.isdir(path):
        raise Mistake(f"--out {path} is a folder; name a file in it")
    parent = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(parent):
        raise Mistake(f"--out {path}: there is no folder {os.path.dirname(path)}; create it first")
    if os.path.exists(path) and any(os.path.exists(one) and os.path.samefile(path, one) for one in inputs):
        raise Mistake(f"--out {path} would replace one of the inputs; give another file")
    return path


def write_table(path: str, answers: Answers) -> None:
    """Writes the table; the file appears whole or not at all."""
    text = WRITERS[_ending(path)](answers)
    write_atomically(text.encode(), os.path.realpath(path))  # a link stays a link


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower()
