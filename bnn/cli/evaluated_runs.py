"""Finished runs measured on their data, which are read again, the result kept in their folders; and side by side."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bnn.cli.console import print_table, say
from bnn.cli.mistakes import Mistake, described
from bnn.data import CORRUPTIONS
from bnn.data.dataset import Data
from bnn.evaluation import Evaluation
from bnn.evaluation.evaluator import drawn
from bnn.evaluation.network import prediction_time
from bnn.evaluation.predictor import Predictor
from bnn.report import Entry, comparison, gain, grouped, read_entry
from bnn.report.comparison import is_plain
from bnn.train.build import build_net
from bnn.train.runs.folder import EVALUATION, PRETRAIN, RUN, RunFolder
from bnn.train.runs.opening import open_run
from bnn.train.runs.run import Run

WIDTH = 100  # of a paragraph on a terminal
SIDE_BY_SIDE = 5  # runs as columns, up to so many: a table that fits on a terminal


@dataclass(frozen=True)
class Wanted:
    """What an evaluation covers.

    Args:
        ood: out-of-distribution inputs: names of data sets, synthetic ones, or folders of images.
        corruptions: as for `bnn.evaluate`.
        data: where the run's data are, if they have moved.
        test: labelled rows of one's own, to be measured on instead.
        first: only so many test inputs; None: all.
        timed: whether the time of a prediction is measured.
    """

    ood: tuple[str, ...] = ()
    corruptions: Any = None
    data: str | None = None
    test: str | None = None
    first: int | None = None
    samples: int | None = None
    seed: int = 0
    resamples: int = 1000
    batch_size: int = 500
    timed: bool = True
    progress: bool | None = None


def evaluate_run(run: Run, wanted: Wanted) -> Evaluation:
    """Evaluates a run on its test data, and writes evaluation.json into its folder; on others it writes nothing."""
    assert run.folder is not None
    data = run_data(run, wanted.data) if wanted.test is None else run.labelled(wanted.test)
    if data.test is None:
        raise Mistake(
            f"{data.name} has no test part: train with --test 0.2, or with data that have one, or give a file of "
            "labelled rows: --test FILE"
        )
    if wanted.first is not None:
        data = replace(data, test=data.test.subset(slice(0, wanted.first)))
    found = run.evaluate(
        data,
        ood=list(wanted.ood) or None,
        corruptions=wanted.corruptions,
        samples=wanted.samples,
        seed=wanted.seed,
        resamples=wanted.resamples,
        batch_size=wanted.batch_size,
        progress=wanted.progress,
    )
    if wanted.timed:
        found = replace(found, time=_time(run, data, wanted))
    if wanted.test is None:
        found.save(run.folder.file(EVALUATION))
    return found


def with_plain(entries: Sequence[Entry], runs: Sequence[Run], wanted: Wanted) -> list[Entry]:
    """The runs, and before those on data of which there is no plain network the one that the first of them began with.

    It is evaluated on what that run was: test data, out-of-distribution inputs, corruptions. Its evaluation is kept in
    the folder of that stage.
    """
    found: list[Entry] = []
    for group in grouped(entries):
        run = next((one for one in runs for entry in group if _is(one, entry) and _plain_stage(one) is not None), None)
        if run is not None and not any(is_plain(entry.evaluation) for entry in group):
            found.append(_plain_entry(run, wanted))
        found += group
    return found


def _is(run: Run, entry: Entry) -> bool:
    return run.evaluation == entry.evaluation


def _plain_stage(run: Run) -> RunFolder | None:
    """The stage of the plain network that was trained first; where a likelihood was chosen, the one with it."""
    if run.folder is None or run.recipe is None:
        return None
    places = [run.folder.stage(PRETRAIN), run.folder.stage(f"{PRETRAIN}/{run.recipe.likelihood}")]
    return next((place for place in places if place.has(RUN)), None)


def _plain_entry(run: Run, wanted: Wanted) -> Entry:
    place = _plain_stage(run)
    assert place is not None
    assert run.recipe is not None
    assert run.folder is not None
    assert run.evaluation is not None
    stage = open_run(place, net=build_net(run.recipe.net, run.in_shape, run.out_features))
    if stage.evaluation is None or not _as_much(stage.evaluation, run.evaluation):
        _evaluate_alike(replace(stage, recipe=run.recipe, rows=run.rows), run.evaluation, wanted)
    name = os.path.basename(os.path.realpath(run.folder))
    return replace(read_entry(place, f"plain network of {name}"), training={}, part_of=name)


def _as_much(found: Evaluation, other: Evaluation) -> bool:
    """Whether all that is in the other evaluation was measured here, on as many inputs."""
    kinds, others = ({(row.kind, row.severity) for row in one.corruptions} for one in (found, other))
    return found.inputs == other.inputs and other.ood.keys() <= found.ood.keys() and others <= kinds


def _evaluate_alike(run: Run, other: Evaluation, wanted: Wanted) -> None:
    """Evaluates a run as another was; without out-of-distribution inputs that cannot be read again, which it says."""
    corruptions: dict[str, list[int]] = {}
    for row in other.corruptions:
        corruptions.setdefault(row.kind, []).append(row.severity)
    alike = replace(wanted, corruptions=corruptions or None, first=other.inputs, seed=other.seed)
    try:
        evaluate_run(run, replace(alike, ood=tuple(other.ood)))
    except (OSError, ValueError) as error:
        if not other.ood:
            raise
        say(f"note: the plain network is shown without out-of-distribution inputs: {described(error)}")
        evaluate_run(run, alike)


def run_data(run: Run, moved: str | None = None) -> Data:
    """The data of a run, perhaps from another place; where they are not, a mistake says how to say where they are."""
    try:
        return run.data(moved)
    except FileNotFoundError as error:
        named = run.recipe is not None and "name" in run.recipe.data
        hint = "BNN_DATA says where named sets are" if named else "--data says where they are now"
        raise Mistake(f"the data of {run.folder} are not there: {described(error)}; {hint}") from error


def _time(run: Run, data: Data, wanted: Wanted) -> Any:
    assert run.recipe is not None
    assert data.test is not None
    samples = drawn(run.network, wanted.samples)
    predictor = Predictor(run.network, run.likelihood, samples, wanted.batch_size, wanted.seed)
    plain = build_net(run.recipe.net, run.in_shape, run.out_features)
    return prediction_time(predictor, data.test.inputs(slice(0, 500)), plain)


def print_comparisons(entries: Sequence[Entry]) -> None:
    """One table for the runs of each data set."""
    for group in grouped(entries):
        found = comparison(group)
        title = f"{found.data}: {found.task}, {found.inputs:,} test inputs; * best, ~ intervals overlap"
        table = [found.header, *found.rows]
        if len(found.runs) <= SIDE_BY_SIDE:
            table = [list(row) for row in zip(*table, strict=True)]
        print_table(table[0], table[1:], title=title)
        said = " ".join("".join(sentence) for sentence in gain(group))
        if said:
            print(textwrap.fill(said, WIDTH), end="\n\n")


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
