"""`bayesianize evaluate`: what a finished run is worth, in and out of distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn.cli.console import print_json, print_table, say
from bnn.cli.mistakes import Mistake
from bnn.cli.options import Json, Quiet, Runs, Samples, Seed

if TYPE_CHECKING:
    from bnn.evaluation import Evaluation

SHARES = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0)


def evaluate(
    runs: Runs,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            metavar="NAME|FOLDER",
            help="Out-of-distribution inputs: a data set by name, a folder of images, or synthetic: noise, shuffled, "
            "inverted, letters (images), far (tables). May be repeated.",
        ),
    ] = None,
    corruptions: Annotated[
        list[str] | None,
        typer.Option(
            "--corruptions",
            metavar="WHAT",
            help="Of test images: all, kinds (fog,snow), severities (1,3,5) or kind:severities (fog:1,5). May be "
            "repeated.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="PATH", help="Where the run's data are, if they have moved.")
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            "--test",
            metavar="FILE",
            help="Labelled rows of your own instead of the run's test data: every row counts, prepared as new inputs "
            "are. Kept nowhere but with --json.",
        ),
    ] = None,
    first: Annotated[int | None, typer.Option("--first", min=1, help="Only so many test inputs.")] = None,
    samples: Samples = None,
    seed: Seed = 0,
    resamples: Annotated[int, typer.Option("--resamples", min=10, help="Of the 95 % intervals.")] = 1000,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Inputs that run at a time.")] = 500,
    timed: Annotated[bool, typer.Option("--time/--no-time", help="Measure how long a prediction takes.")] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measures finished runs on their test data, on out-of-distribution inputs and under corruptions."""
    from bnn.cli.evaluated_runs import Wanted, corruptions_of, evaluate_run, print_comparisons
    from bnn.report import Entry, read_entry
    from bnn.train.runs.folder import EVALUATION
    from bnn.train.runs.opening import open_run

    if data is not None and test is not None:
        raise Mistake("--data says where the run's own data are, --test which others to measure on: give one of them")
    wanted = Wanted(
        ood=tuple(ood or ()),
        corruptions=corruptions_of(corruptions or []),
        data=data,
        test=test,
        first=first,
        samples=samples,
        seed=seed,
        resamples=resamples,
        batch_size=batch_size,
        timed=timed,
        progress=False if quiet else None,
    )
    found = {}
    for run in runs:
        found[str(run)] = evaluate_run(open_run(run), wanted)
        if not quiet and test is None:
            say(f"{run / EVALUATION} written")
    if as_json:
        print_json({run: one.to_dict() | _verdicts(one) for run, one in found.items()})
        return
    for name, one in found.items():
        typer.echo(f"{name}\n\n{one.table()}\n")
        _print_selective(one)
    if len(found) > 1:
        own = test is None
        print_comparisons([read_entry(run) if own else Entry(str(run), found[str(run)]) for run in runs])


def _verdicts(found: Evaluation) -> dict[str, Any]:
    """What is said about the numbers, for JSON."""
    best = found.ood_choice
    which = None if best is None else {"score": best.score, "why": best.why}
    promise = found.promise
    kept, said = (None, None) if promise is None else (promise.kept, promise.sentence)
    about = {"verdict": found.verdict, "ood_choice": which, "abstaining": found.abstaining}
    return about | {"promise_kept": kept, "promise_sentence": said}


def _print_selective(found: Evaluation) -> None:
    """How well the most certain inputs are answered: by the largest probability, by total and epistemic uncertainty."""
    real = found.task == "regression"
    curves = {f"by {kind}": (one.coverage, one.risk) for kind, one in found.risk_coverage.items()}
    if not real:
        curves = {name: (coverage, tuple(1 - r for r in risk)) for name, (coverage, risk) in curves.items()}
    if found.selective is not None:
        curves = {"by max probability": (found.selective.coverage, found.selective.accuracy)} | curves
    if not curves:
        return
    rows = [[f"{share:.0%}", *(_at(share, *curve, real) for curve in curves.values())] for share in SHARES]
    first, *others = curves
    in_sds = any(one.unit == "sd" for one in found.risk_coverage.values())
    rmse = "RMSE, in sds of each target," if in_sds else "RMSE"
    header = ["answering the most certain", f"{rmse if real else 'accuracy'} {first}", *others]
    print_table(header, rows, title="selective prediction")
    verdict = found.abstaining
    if verdict:
        typer.echo(f"which uncertainty: {verdict}\n")


def _at(share: float, coverage: Sequence[float], values: Sequence[float], real: bool) -> str:
    """The value at the first place that answers so many."""
    from bnn.metrics import written

    place = next((i for i, one in enumerate(coverage) if one >= share - 1e-9), len(values) - 1)
    return written.real(values[place]) if real else written.percent(values[place])
