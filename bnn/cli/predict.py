"""`bayesianize predict`: new inputs in, a table with answers and their uncertainty out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bnn.cli.console import print_json, print_table, say
from bnn.cli.options import Json, Quiet, Run, Samples, Seed

if TYPE_CHECKING:
    from bnn.train.runs.answers import Answers

SHOWN = 50  # rows of a table on a terminal

Input = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="Images and folders of images, CSV files, or .npy and .npz files."),
]
Out = Annotated[str | None, typer.Option(help="Write the table to this file: .csv, .tsv, .json or .jsonl.")]
Level = Annotated[float | None, typer.Option(help="Probability of the interval of a real target; by default 0.9.")]
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
    from bnn.cli.table_files import checked_file, write_table
    from bnn.train.runs.opening import open_run

    file = None if out is None else checked_file(out, inputs)
    answers = open_run(run).predict(
        inputs,
        samples=samples,
        seed=seed,
        level=level,
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
    if file is not None:
        write_table(file, answers)
    if as_json:
        print_json(answers.to_dict())
    elif file is None:
        _print(answers)
    if not quiet:
        say(_summary(answers, file))


def _print(answers: Answers) -> None:
    """A table on terminals; CSV elsewhere, so that `> table.csv` works."""
    from bnn.cli.table_files import as_csv

    if not sys.stdout.isatty():
        print(as_csv(answers), end="")
        return
    form = ".4f" if answers.about["task"] == "classification" else ".5g"
    rows = [[format(cell, form) if isinstance(cell, float) else cell for cell in row] for row in answers.rows(SHOWN)]
    left = next(i for i, name in enumerate(answers.columns) if name not in answers.text)
    print_table(list(answers.columns), rows, left=left)
    if len(answers) > SHOWN:
        print(f"... {len(answers) - SHOWN} more: --out FILE.csv")


def _summary(answers: Answers, file: str | None) -> str:
    text = f"{len(answers)} input{'s' if len(answers) != 1 else ''}"
    rule = answers.rule
    if rule is not None:
        limits = " and ".join(f"{one:.6g}" for one in rule.thresholds)
        text += f", {answers.abstained} abstained ({rule.by} uncertainty above {limits})"
    return text if file is None else f"{text}: written to {file}"
