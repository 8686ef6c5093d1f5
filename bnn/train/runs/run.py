"""A run as an object: what training leaves behind, read back from its folder, and what it says about new inputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from bnn import likelihoods
from bnn._common.errors import OptionError, braced, message_of
from bnn._common.progress import progress_of
from bnn._engine.temperature import temperature_of
from bnn.data.dataset import Data, TargetScale
from bnn.data.sources import source_of
from bnn.evaluation.classes import weights_of
from bnn.evaluation.predictor import Outputs, Predictor
from bnn.evaluation.promise import NOT_KNOWN, Promise, promise_of
from bnn.evaluation.result import Evaluation
from bnn.files import save
from bnn.train.build import build_data
from bnn.train.history import History
from bnn.train.laplace import record
from bnn.train.recipe import Recipe
from bnn.train.retry import Retry
from bnn.train.runs.abstaining import Rule, Validation, above, covering, predictions
from bnn.train.runs.answers import LEVEL, Answers, PredictOptions, class_answers, draws_of, real_answers
from bnn.train.runs.evaluating import evaluation_of
from bnn.train.runs.folder import EVALUATION, GUARANTEE, NET, PROMISE, RUN, VALIDATION, RunFolder, State
from bnn.train.runs.guaranteeing import RunGuarantee, missing
from bnn.train.runs.labelled import LabelledRows
from bnn.train.runs.new_inputs import read_inputs
from bnn.train.runs.same_data import other_meaning, other_rows, rows_by_part
from bnn.train.settling import Comparison
from bnn.train.step import Sampling

OWN_ROWS = "`bayesianize evaluate RUN --test FILE` (run.evaluate(FILE) in Python)"


@dataclass
class Run:
    """A finished run: what `bnn.open_run` and `bnn.train.run_recipe` give.

    Args:
        network: the trained network.
        likelihood: the likelihood as trained; `bnn.predict(network, x, likelihood=...)` takes it.
        task, classes, target, preparation: what is needed to read new inputs and to understand predictions, as in
            `bnn.data.Data`.
        in_shape, out_features: of the network: the shape of one prepared input, and how many outputs.
        recipe: what was carried out, with the KL weight that was chosen; None for a run of `bnn.fit`.
        history: of the main training.
        candidates: validation NLL by KL weight, where it was chosen.
        likelihoods: validation NLL of the plain network by likelihood, where it was chosen.
        plain: how it compares with its plain network on the validation data, where there are both.
        retry: how two trainings compare, where the first was worse than the plain network; None: there was one.
        folder: its files; None for a run in memory.
        guarantee: of its predictions, where inputs were set aside for it.
        targets: names of what is predicted, as in `bnn.data.Data`; empty where they have none, and in older runs.
        rows: of its data, by part; None in older runs.
    """

    network: nn.Module
    likelihood: Any
    task: str
    in_shape: tuple[int, ...]
    out_features: int
    classes: tuple[str, ...] = ()
    target: TargetScale | None = None
    preparation: Any = None
    recipe: Recipe | None = None
    history: History | None = None
    candidates: dict[str, float] | None = None
    likelihoods: dict[str, float] | None = None
    plain: Comparison | None = None
    retry: Retry | None = None
    folder: RunFolder | None = None
    guarantee: RunGuarantee | None = None
    targets: tuple[str, ...] = ()
    rows: dict[str, int] | None = None

    @classmethod
    def of(cls, network: nn.Module, data: Data, likelihood: Any, outputs: int, **more: Any) -> Run:
        """The run that trained `network` with `outputs` outputs on `data`."""
        about = (data.task, data.in_shape, outputs, data.classes, data.target, data.preparation)
        recipe: Recipe | None = more.get("recipe")
        by_class = recipe is not None and recipe.guarantee_by_class
        guarantee = RunGuarantee.of(network, likelihood, data, by_class)
        more |= {"guarantee": guarantee, "targets": data.targets, "rows": rows_by_part(data)}
        return cls(network, likelihood, *about, **more)

    @property
    def net(self) -> nn.Module:
        """The network, by its short name."""
        return self.network

    @property
    def temperature(self) -> float:
        """The T that its predictions divide logits by (`bnn.calibrate_`); 1 where it was not calibrated."""
        return temperature_of(self.network)

    @property
    def state(self) -> State:
        """How far it is; "finished", unless somebody takes its files away."""
        return "finished" if self.folder is None else self.folder.state

    @property
    def evaluation(self) -> Evaluation | None:
        """What `bayesianize evaluate` found; None if the run was not evaluated yet."""
        if self.folder is None or not self.folder.has(EVALUATION):
            return None
        return Evaluation.load(self.folder.file(EVALUATION))

    @property
    def promise(self) -> Promise | None:
        """Whether its intervals, or probabilities, keep their promise: by its evaluation, or as training ended."""
        evaluation = self.evaluation
        if evaluation is not None and evaluation.promise is not None:
            return evaluation.promise
        if self.folder is None or (stored := self.folder.read(PROMISE)) is None:
            return None
        return Promise.from_dict(stored)

    @property
    def validation(self) -> Validation | None:
        """Predictions on the validation data, as the folder holds them; None if it does not."""
        if self.folder is None or (stored := self.folder.read(VALIDATION)) is None:
            return None
        return Validation.from_dict(stored, self.folder.file(VALIDATION))

    # -- its files -----------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes the network, and what is needed to use it, into the run's folder."""
        assert self.folder is not None
        self.folder.remove(VALIDATION)  # of the network that was there before
        self.folder.remove(GUARANTEE)
        self.folder.remove(PROMISE)
        save(self.network, self.folder.file(NET))
        if self.guarantee is not None:
            self.folder.write(GUARANTEE, self.guarantee.to_dict(), indent=None)
        self.folder.write(RUN, self.to_dict())

    def write_validation(self, data: Data, samples: int | None = None) -> Validation:
        """Predicts the validation part of `data` and keeps the result in the run's folder.

        Raises:
            ValueError: the data have no validation part.
        """
        assert self.folder is not None
        found = Validation.of(self.network, self.likelihood, data, samples)
        self.folder.write(VALIDATION, found.to_dict(), indent=None)
        return found

    def write_promise(self, data: Data) -> Promise | None:
        """Whether intervals, or probabilities, keep their promise on (at most 10,000 inputs of) the test part of
        `data`, or, without one, the validation part; kept in the run's folder. None where there is neither.
        """
        on = "validation" if data.test is None else "test"
        part = data.validation if data.test is None else data.test
        if part is None or part.y is None:
            return None
        outputs, targets = predictions(self.network, self.likelihood, data, part)
        weighted = bool(weights_of(self.likelihood))
        level = None if self.guarantee is None else self.guarantee.level
        named = {"classes": self.classes, "names": self.targets}
        found = promise_of(outputs, targets, on, level=level, weighted=weighted, **named)
        if found is not None and self.folder is not None:
            self.folder.write(PROMISE, found.to_dict())
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without the network."""
        return {
            "recipe": None if self.recipe is None else self.recipe.to_dict(),
            "likelihood": likelihoods.record(self.likelihood),
            "task": self.task,
            "in_shape": list(self.in_shape),
            "out_features": self.out_features,
            "classes": list(self.classes),
            "target": None if self.target is None else self.target.to_dict(),
            "targets": list(self.targets),
            "rows": self.rows,
            "preparation": None if self.preparation is None else self.preparation.to_dict(),
            "candidates": self.candidates,
            "likelihoods": self.likelihoods,
            "plain": None if self.plain is None else asdict(self.plain),
            "retry": None if self.retry is None else asdict(self.retry),
            "noise": None if self.history is None else self.history.noise,
            "temperature": self.temperature,
            "best": None if self.history is None else self.history.best,
            "stopped": None if self.history is None else self.history.stopped,
            "laplace": None if self.history is None else record(self.history.laplace),
            "tuned": None if self.history is None else _ended(self.history.tuned),
        }

    def data(self, moved: str | None = None) -> Data:
        """The data that it was trained on, read again as its recipe says; others are an error.

        Args:
            moved: where they are now; None: where they were.

        Raises:
            FileNotFoundError: they are not there.
            ValueError: these are others: of other rows, or such that they would be prepared otherwise.
        """
        data, differ = self._read_again(moved)
        if differ:
            raise ValueError(
                f"these are not the data of {self._name}: what differs is {'; '.join(differ)}. Split again, they would "
                "mix rows that were trained on with those of the test: give the data as they were, train again, or "
                f"measure the run on labelled rows of their own: {OWN_ROWS}"
            )
        return data

    def _read_again(self, moved: str | None = None) -> tuple[Data, list[str]]:
        """The data where they are now, and in what they differ from those of training, in words."""
        if self.recipe is None:
            raise ValueError("a run of bnn.fit does not know where its data are")
        description = dict(self.recipe.data)
        kind = source_of(description).kind
        if moved is not None and kind == "name":
            name = description["name"]
            raise ValueError(
                f"this run is of the named set {name!r}: set BNN_DATA to its folder, and name no other place"
            )
        data: Data = build_data(description | ({} if moved is None else {kind: moved}))
        return data, other_rows(data, self.rows) + self._other_meaning(data)

    def _other_meaning(self, data: Data) -> list[str]:
        """What of the inputs and targets of these data is not as it was in training."""
        return other_meaning(data, self.in_shape, self.classes, self.preparation, self.target)

    # -- evaluations ---------------------------------------------------------------------------------------------------

    def labelled(self, rows: Any) -> Data:
        """Labelled rows of one's own as the test part of a `bnn.data.Data`, prepared as new inputs are.

        Every row counts, and nothing is learned anew: missing values and categories that training never showed are
        what they are in `predict`.

        Args:
            rows: of a table a CSV file, a list of dicts, a dict of columns or a DataFrame, with the target; of images a
                folder with one folder per class; else an .npz file with x and y, or a pair (x, y).
        """
        of_recipe = {} if self.recipe is None else self.recipe.data
        named = of_recipe.get("target", ())  # what older runs have
        targets = self.targets or ((named,) if isinstance(named, str) else tuple(named))
        task: Any = self.task
        about = (task, self.in_shape, self.preparation, self.classes, self.target, targets)
        return LabelledRows(*about, numbered="classes" in of_recipe).read(rows)

    def evaluate(self, rows: Any = None, **options: Any) -> Evaluation:
        """What it is worth: `bnn.evaluate` with its likelihood, and with its guarantee, where there is one.

        Args:
            rows: labelled rows of one's own, as for `labelled`, that it was not trained on; None: its own test part,
                read again; or a `bnn.data.Data` that is prepared as its own, such as `run.data("moved.csv")`.
            options: as for `bnn.evaluate`: ood, corruptions, samples, seed, resamples, batch_size, progress, ....
        """
        if rows is None:
            data = self.data()
        elif isinstance(rows, Data):
            data = rows
            if differ := self._other_meaning(data):
                raise ValueError(
                    f"these data are not prepared as those of {self._name}: what differs is {'; '.join(differ)}. Give "
                    "the labelled file itself, which the run prepares: run.evaluate(FILE)"
                )
        else:
            data = self.labelled(rows)
        return evaluation_of(self.network, self.likelihood, data, self.guarantee, self.target_name, **options)

    @property
    def target_name(self) -> str | None:
        """What its real targets are called, where they have names; older runs have that of their recipe."""
        if self.task != "regression":
            return None
        named = None if self.recipe is None else self.recipe.data.get("target")
        return ", ".join(self.targets) or (named if isinstance(named, str) else None)

    @property
    def _name(self) -> str:
        return "this run" if self.folder is None else str(self.folder)

    # -- predictions ---------------------------------------------------------------------------------------------------

    def predict(
        self,
        rows: Any,
        *,
        samples: int | None = None,
        seed: int = 0,
        level: float | None = None,
        guarantee: float | None = None,
        abstain_above: float | None = None,
        coverage: float | None = None,
        by: str | None = None,
        keep: Iterable[str] = (),
        probs: bool = False,
        batch_size: int = 500,
        progress: bool | None = False,
    ) -> Answers:
        """What the run says about new inputs, each with its uncertainty: the table of `bayesianize predict`, exactly.

        Classes come by name, with uncertainties in nats; real targets with mean, interval and standard deviations in
        the target's own units. Every draw is one function of all inputs, so that company does not matter.

        Args:
            rows: files as the run was trained on (a path, or several: CSV, images, folders of images, .npy, .npz); rows
                of a table as a list of dicts, a dict of columns or a pandas DataFrame; arrays or tensors (N, ...) as
                the files would hold them; a part of a `bnn.data.Data`.
            samples: posterior draws; None: as many as `bnn.predict` takes by default.
            seed: of the draws.
            level: probability of the interval of a real target; None is 0.9.
            guarantee: instead of `level`, a probability that is guaranteed (`bnn.conformal`), by inputs that were set
                aside before training: of the interval of a real target, or of a set of classes, a column of its own.
            abstain_above: the largest uncertainty to answer with: nats, or a standard deviation of a real target.
            coverage: instead, the share of the validation data to answer; they choose the smallest such threshold.
            by: abstain by this uncertainty: "total" (the default), "aleatoric" or "epistemic".
            keep: columns of a table to carry along.
            probs: a column for the probability of every class, too.
            batch_size: inputs that run at a time.
            progress: None shows a bar on terminals.

        Raises:
            ValueError, TypeError, OSError: inputs or options that make no sense; the message says what would.
        """
        options = PredictOptions(samples, seed, level, abstain_above, coverage, by, probs, batch_size, guarantee)
        options = options.of_run(self.network, self.task)
        promised = self._guarantee(options)
        given = read_inputs(self.preparation, self.in_shape, rows, keep)
        rule = self._rule(options)
        predictor = Predictor(self.network, self.likelihood, options.samples, batch_size, seed, self.target)
        with progress_of(progress, len(given)) as advance, Sampling(self.network, "weight").in_force():
            outputs = predictor(given.part, None, lambda done: advance("predicting", done), given.source)
        if self.task == "classification":
            sets = None if promised is None else promised.sets(outputs, options.promised, self.classes)
            answers = class_answers(given, outputs, self.classes, rule, probs, sets)
        else:
            ends = None if promised is None else promised.intervals(outputs, options.promised, self.target)
            answers = real_answers(given, outputs, LEVEL if level is None else level, rule, ends, self.targets)
        kept = self.promise if promised is None else None
        if promised is not None:
            stated = f"guarantee: {promised.statement(options.promised, rule is not None)}"
        else:
            stated = NOT_KNOWN if kept is None else kept.sentence
        about = self._about(options, outputs, rule, promised) | {"promise": None if kept is None else kept.to_dict()}
        return replace(answers, about=about, rule=rule, stated=stated)

    def _guarantee(self, options: PredictOptions) -> RunGuarantee | None:
        """The guarantee, where it is asked for; OptionError where there is none, or not of such predictions."""
        if options.guarantee is None:
            return None
        if self.guarantee is None:
            raise missing()
        self.guarantee.check(draws_of(self.network, options.samples), options.seed)
        return self.guarantee.named(self.targets, self.classes)

    def _rule(self, options: PredictOptions) -> Rule | None:
        """When to abstain; None: never."""
        by = options.by or "total"
        if options.abstain_above is not None:
            return above(options.abstain_above, by, self.task, len(self.classes))
        if options.coverage is None:
            return None
        found = self._validation(options.samples)
        targets = (
            1
            if self.task == "classification"
            else self.out_features // likelihoods.about(self.likelihood).outputs_per_target
        )
        rule = covering(found, options.coverage, by, targets)
        draws, then = (draws_of(self.network, number) for number in (options.samples, found.samples))
        if draws != then:
            warnings.warn(f"the threshold was picked with {then} draws, these predictions use {draws}", stacklevel=3)
        return rule

    def _validation(self, samples: int | None) -> Validation:
        """Predictions on the validation data as stored, or made from the recipe's data."""
        found = self.validation
        if found is not None:
            return found
        try:
            data, differ = self._read_again()
            if data.validation is None:
                raise ValueError("the run was trained without validation data")
            if differ:
                raise ValueError(f"the data have changed since the run was trained ({'; '.join(differ)})")
            if self.folder is None:
                return Validation.of(self.network, self.likelihood, data, samples)
            warnings.warn(
                f"{self.folder} has no {VALIDATION}: predicting the validation data of its recipe", stacklevel=4
            )
            return self.write_validation(data, samples)
        except (ValueError, TypeError, LookupError, OSError, ImportError) as error:
            raise OptionError(
                f"{{coverage}} needs the run's validation data, and they are not at hand: {braced(message_of(error))}; "
                "give a threshold of your own with {abstain_above}",
                coverage=None,
                abstain_above=None,
            ) from error

    def _about(
        self, options: PredictOptions, outputs: Outputs, rule: Rule | None, promised: RunGuarantee | None
    ) -> dict[str, Any]:
        """Everything about the table but its rows, as JSON."""
        about: dict[str, Any] = {"run": None if self.folder is None else self.folder.path, "task": self.task}
        about |= {"draws": outputs.draws, "seed": options.seed}
        if self.targets:
            about["targets"] = list(self.targets)
        if self.task == "regression":
            about["level"] = next((one for one in (options.guarantee, options.level) if one is not None), LEVEL)
            about["df"] = outputs.df if math.isfinite(outputs.df) else None
        if promised is not None:
            about["guarantee"] = promised.about(options.promised, rule is not None)
        about["threshold"] = None if rule is None else rule.threshold
        return about if rule is None else about | {"by": rule.by, "validation": rule.validation}


def _ended(history: History | None) -> dict[str, Any] | None:
    """How training after pruning ended, as JSON."""
    return None if history is None else {"best": history.best, "stopped": history.stopped}
