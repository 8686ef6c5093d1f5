"""Evaluating a finished run: its data built again, everything measured, the result kept beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from bnn.cli.finished import finished
from bnn.cli.mistakes import Mistake, described
from bnn.data import CORRUPTIONS
from bnn.data.dataset import Data
from bnn.data.sources import source_of
from bnn.evaluation import Evaluation, evaluate
from bnn.evaluation.evaluator import drawn
from bnn.evaluation.network import prediction_time
from bnn.evaluation.predictor import Predictor
from bnn.train.build import build_data, build_net
from bnn.train.outcome import Outcome

FILE = "evaluation.json"


@dataclass(frozen=True)
class Wanted:
    """What an evaluation covers.

    Args:
        ood: names of data sets, synthetic inputs or folders of images.
        corruptions: as for `bnn.evaluate`.
        data: where the run's data are, if they have moved.
        first: only so many test inputs; None: all.
        timed: whether the time of a prediction is measured.
    """

    ood: tuple[str, ...] = ()
    corruptions: Any = None
    data: str | None = None
    first: int | None = None
    samples: int | None = None
    seed: int = 0
    resamples: int = 1000
    batch_size: int = 500
    timed: bool = True
    progress: bool | None = None


def evaluate_run(folder: str | os.PathLike[str], wanted: Wanted) -> Evaluation:
    """Evaluates the run in `folder` on its test data, and writes evaluation.json into it."""
    run = finished(folder)
    data = run_data(run, os.fspath(folder), wanted.data)
    if data.test is None:
        raise Mistake(f"{data.name} has no test part: train with --test 0.2, or with data that have one")
    if wanted.first is not None:
        data = replace(data, test=data.test.subset(slice(0, wanted.first)))
    found = evaluate(
        run.net,
        data,
        ood=list(wanted.ood) or None,
        corruptions=wanted.corruptions,
        samples=wanted.samples,
        likelihood=run.likelihood,
        seed=wanted.seed,
        resamples=wanted.resamples,
        batch_size=wanted.batch_size,
        progress=wanted.progress,
    )
    if wanted.timed:
        found = replace(found, time=_time(run, data, wanted))
    found.save(os.path.join(folder, FILE))
    return found


def run_data(run: Outcome, folder: str, moved: str | None = None) -> Data:
    """The data of a run, as its recipe describes them, perhaps from another place."""
    assert run.recipe is not None  # `finished` sees to it
    description = dict(run.recipe.data)
    kind = source_of(description).kind
    if moved is not None:
        if kind == "name":
            raise Mistake(
                f"this run is of the named set {description['name']!r}: set BNN_DATA to its folder, not --data"
            )
        description[kind] = moved
    try:
        data: Data = build_data(description)
    except FileNotFoundError as error:
        hint = "BNN_DATA says where named sets are" if kind == "name" else "--data says where they are now"
        raise Mistake(f"the data of {folder} are not there: {described(error)}; {hint}") from error
    if data.in_shape != run.in_shape or data.classes != run.classes:
        raise Mistake(
            f"these are not the data of {folder}: it was trained on inputs {run.in_shape} and the classes "
            f"{list(run.classes)}, these are {data.in_shape} and {list(data.classes)}"
        )
    return data


def _time(run: Outcome, data: Data, wanted: Wanted) -> Any:
    assert run.recipe is not None
    assert data.test is not None
    predictor = Predictor(run.net, run.likelihood, drawn(run.net, wanted.samples), wanted.batch_size, wanted.seed)
    plain = build_net(run.recipe.net, run.in_shape, run.out_features)
    return prediction_time(predictor, data.test.inputs(slice(0, 500)), plain)


def corruptions_of(given: list[str]) -> Any:
    """What `--corruptions` asks for: "all", kinds, severities, or kind:severity.

    >>> corruptions_of(["fog", "snow"]), corruptions_of(["1,5"]), corruptions_of(["fog:3,5"]), corruptions_of(["all"])
    ({'fog': [1, 2, 3, 4, 5], 'snow': [1, 2, 3, 4, 5]}, [1, 5], {'fog': [3, 5]}, 'all')
    """
    words = [word for one in given for word in _words(one)]
    if not words:
        return None
    if words == ["all"]:
        return "all"
    if all(word[0].isdigit() for word in words):
        return sorted({severity for word in words for severity in _severities(word)})
    found: dict[str, list[int]] = {}
    for word in words:
        kind, _, severities = word.partition(":")
        found[kind] = _severities(severities) if severities else [1, 2, 3, 4, 5]
    return found


def _words(one: str) -> list[str]:
    """Kinds between commas; numbers stay together."""
    return [one] if ":" in one or one[:1].isdigit() else [word.strip() for word in one.split(",") if word.strip()]


def _severities(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not set(found) <= {1, 2, 3, 4, 5}:
        raise Mistake(
            f"--corruptions takes all, kinds, severities 1 to 5, or kind:severities, such as fog:1,3,5; got {text!r}; "
            f"the kinds are {', '.join(CORRUPTIONS)}"
        )
    return found
