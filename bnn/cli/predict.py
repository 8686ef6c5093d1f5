"""`bayesianize predict`: new inputs in, a table with answers and their uncertainty out."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn._common.progress import progress_of
from bnn._common.text import listed
from bnn.cli.console import print_json, print_table, say
from bnn.cli.mistakes import Mistake, one_of
from bnn.cli.options import Json, Quiet, Run, Samples, Seed

if TYPE_CHECKING:
    from bnn.cli.predicting.abstain import Rule
    from bnn.cli.predicting.answers import Answers
    from bnn.cli.predicting.inputs import Inputs
    from bnn.evaluation.predictor import Outputs
    from bnn.train.outcome import Outcome

SHOWN = 50  # rows of a table on a terminal
LEVEL = 0.9

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
    from bnn.cli.draws import whole_draws_
    from bnn.cli.finished import finished
    from bnn.cli.predicting.inputs import read_inputs
    from bnn.cli.predicting.table_files import checked_file, write_table
    from bnn.evaluation.predictor import Predictor

    _check_abstaining(abstain_above, coverage, by)
    file = None if out is None else checked_file(out, inputs)
    folder, outcome = os.fspath(run), finished(run)
    _check_task(outcome, level, probs)
    samples = _samples(outcome, samples, by)
    given = read_inputs(outcome, inputs, keep or ())
    rule = _rule(folder, outcome, abstain_above, coverage, by or "total", samples, quiet)
    whole_draws_(outcome.net)
    predictor = Predictor(outcome.net, outcome.likelihood, samples, batch_size, seed, outcome.target)
    with progress_of(False if quiet else None, len(given)) as advance:
        outputs = predictor(given.part, None, lambda done: advance("predicting", done), listed(inputs))
    answers = _answers(outcome, given, outputs, rule, LEVEL if level is None else level, probs)
    about = _about(folder, outcome, outputs, rule, seed, LEVEL if level is None else level)
    if file is not None:
        write_table(file, answers, about)
    if as_json:
        print_json(about | {"rows": answers.records()})
    elif file is None:
        _print(answers, outcome.task)
    if not quiet:
        say(_summary(answers, rule, file))


def _check_abstaining(abstain_above: float | None, coverage: float | None, by: str | None) -> None:
    from bnn.cli.predicting.abstain import KINDS, check_thresholds

    if abstain_above is not None and coverage is not None:
        raise Mistake("--abstain-above gives the threshold and --coverage looks for one; give one of them, not both")
    check_thresholds(abstain_above, coverage)
    if by is None:
        return
    one_of("uncertainty", by, KINDS)
    if abstain_above is None and coverage is None:
        raise Mistake(f"--by {by} says when to abstain; give a threshold, too: --abstain-above X or --coverage 0.9")


def _check_task(outcome: Outcome, level: float | None, probs: bool) -> None:
    if outcome.task == "classification" and level is not None:
        raise Mistake("--level is for intervals of real targets, and this run predicts classes; leave it out")
    if outcome.task == "regression" and probs:
        raise Mistake("--probs is for classes, and this run predicts real targets; leave it out")
    if level is not None and not 0 < level < 1:
        raise Mistake(f"--level is the probability of the interval, between 0 and 1, as 0.9; got {level:g}")


def _samples(outcome: Outcome, samples: int | None, by: str | None) -> int | None:
    """The draws to make: 0 runs a plain network as it is."""
    from bnn.train.monitor import is_bayesian

    if not is_bayesian(outcome.net):
        if by == "epistemic":
            raise Mistake(
                "--by epistemic: this run is a plain network, which is one function without doubt about itself, so its "
                "epistemic uncertainty is 0 everywhere; use --by total"
            )
        return 0
    if by == "epistemic" and _draws(outcome, samples) == 1:
        raise Mistake(f"--by epistemic: with --samples {samples} nothing can disagree, so it is 0 everywhere; use more")
    return samples


def _draws(outcome: Outcome, samples: int | None) -> int:
    from bnn._engine.members import combinations, default_samples

    return default_samples(outcome.net) if samples is None else samples or combinations(outcome.net)


def _rule(
    folder: str,
    outcome: Outcome,
    abstain_above: float | None,
    coverage: float | None,
    by: str,
    samples: int | None,
    quiet: bool,
) -> Rule | None:
    """When to abstain; None: never."""
    from bnn.cli.predicting.abstain import above
    from bnn.cli.predicting.coverage import covering, stated

    if abstain_above is not None:
        rule, note = above(abstain_above, by, outcome.task, len(outcome.classes))
        if note:
            say(f"note: {note}")
        return rule
    if coverage is None:
        return None
    rule = covering(folder, outcome, coverage, by, samples)
    assert rule.validation is not None
    if not quiet:
        say(stated(rule))
    draws, then = _draws(outcome, samples), _draws(outcome, rule.validation["samples"])
    if draws != then:
        say(f"note: the threshold was picked with {then} draws, these predictions use {draws}")
    return rule


def _answers(
    outcome: Outcome, given: Inputs, outputs: Outputs, rule: Rule | None, level: float, probs: bool
) -> Answers:
    from bnn.cli.predicting.answers import class_answers, real_answers

    if outcome.task == "classification":
        return class_answers(given, outputs, outcome.classes, rule, probs)
    return real_answers(given, outputs, level, rule)


def _about(
    folder: str, outcome: Outcome, outputs: Outputs, rule: Rule | None, seed: int, level: float
) -> dict[str, Any]:
    """Everything about the table but its rows."""
    about: dict[str, Any] = {"run": folder, "task": outcome.task, "draws": outputs.draws, "seed": seed}
    if outcome.task == "regression":
        about["level"] = level
    about["threshold"] = None if rule is None else rule.threshold
    if rule is not None:
        about |= {"by": rule.by, "validation": rule.validation}
    return about


def _print(answers: Answers, task: str) -> None:
    """A table on terminals; CSV elsewhere, so that `> table.csv` works."""
    from bnn.cli.predicting.table_files import as_csv

    if not sys.stdout.isatty():
        print(as_csv(answers), end="")
        return
    form = ".4f" if task == "classification" else ".5g"
    rows = [[format(cell, form) if isinstance(cell, float) else cell for cell in row] for row in answers.rows(SHOWN)]
    left = next(i for i, name in enumerate(answers.columns) if name not in answers.text)
    print_table(list(answers.columns), rows, left=left)
    if len(answers) > SHOWN:
        print(f"... {len(answers) - SHOWN} more: --out FILE.csv")


def _summary(answers: Answers, rule: Rule | None, file: str | None) -> str:
    text = f"{len(answers)} input{'s' if len(answers) != 1 else ''}"
    if rule is not None:
        limits = " and ".join(f"{one:.6g}" for one in rule.thresholds)
        text += f", {answers.abstained} abstained ({rule.by} uncertainty above {limits})"
    return text if file is None else f"{text}: written to {file}"
