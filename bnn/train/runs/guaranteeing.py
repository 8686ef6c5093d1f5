"""The guarantee of a run: from the part of its data that nothing else has seen to intervals and sets of new inputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from bnn._common.checks import whole
from bnn._common.errors import OptionError, braced
from bnn._common.records import stored_fields
from bnn._common.text import listed
from bnn.conformal import Guarantee, calibrate
from bnn.conformal.class_scores import ClassScore
from bnn.conformal.ranks import usual_level
from bnn.data.dataset import Data, Part, TargetScale
from bnn.evaluation.coverage import as_predicted, guaranteed, own_units
from bnn.evaluation.pieces import Guaranteed
from bnn.evaluation.predictor import Array, Outputs, Predictor
from bnn.evaluation.scores import class_labels, own_targets
from bnn.train.monitor import is_bayesian
from bnn.train.step import Sampling

BATCH, SEED = 500, 0  # as `Run.predict` has them
BETWEEN = "; "  # the classes of a set, in a table
WITHIN = (
    "`bayesianize train --guarantee-by-class` (guarantee_by_class=True of a Recipe in Python) makes one that holds "
    "within each"
)

ANSWERED = (
    "it holds over all inputs, answered or not: among those that are answered alone it may hold less or more often"
)


@dataclass(frozen=True)
class RunGuarantee:
    """A `bnn.conformal.Guarantee`, and the draws that it holds for.

    Args:
        guarantee: of the predictions, real ones in the units that the network was trained in.
        draws, seed: of the predictions.
        inputs: how many were set aside, of which some targets may be missing; None in older files.
        names: of the real targets, or of the classes where it is made for each; runs know them, so they are not stored.
    """

    guarantee: Guarantee
    draws: int
    seed: int = SEED
    inputs: int | None = None
    names: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, network: nn.Module, likelihood: Any, data: Data, by_class: bool = False) -> RunGuarantee | None:
        """That of a trained network, predicted exactly as `Run.predict` does; None where no part was set aside."""
        part = data.guarantee
        if part is None or part.y is None:
            return None
        samples = None if is_bayesian(network) else 0
        predictor = Predictor(network, likelihood, samples, BATCH, SEED, data.target)
        with Sampling(network, "weight").in_force():
            outputs = predictor(part, what="guarantee")
        found = calibrate(as_predicted(outputs), part.y, by_class=by_class)
        return cls(found, outputs.draws, inputs=len(part))

    def named(self, targets: Sequence[str], classes: Sequence[str]) -> RunGuarantee:
        """The same, which calls what it is of by these names."""
        return replace(self, names=tuple(classes if self.guarantee.by_class else targets))

    def measured(self, network: nn.Module, likelihood: Any, data: Data, part: Part, on: str = "test") -> Guaranteed:
        """Coverage and size before and after, on inputs that nothing has seen, predicted as `Run.predict` does."""
        predictor = Predictor(
            network, likelihood, self.draws if is_bayesian(network) else 0, BATCH, self.seed, data.target
        )
        with Sampling(network, "weight").in_force():
            outputs = predictor(part, what=on)
        assert part.y is not None
        real = data.task == "regression"
        y = own_targets(outputs, part.y, data.target) if real else class_labels(outputs, part.y, data.classes)
        found = guaranteed(self.guarantee, outputs, y, data.target, on, data.classes, data.targets)
        named = self.named(data.targets, data.classes)
        statement = named.statement(max(one.level for one in found.after)) if found.after else ""
        return replace(found, inputs=self.rows, rows_of_each=named.rows_of_each, statement=statement)

    @property
    def rows(self) -> int:
        """How many inputs were set aside; what older files do not say is the most that are known of any target."""
        of_all = sum if self.guarantee.by_class else max
        return self.inputs or of_all(map(len, self.guarantee.scores))

    @property
    def rows_of_each(self) -> dict[str, int]:
        """How many of them stand behind each of several targets, or classes; {} of a single one."""
        return self.guarantee.rows_of_each(self._called)

    @property
    def level(self) -> float | None:
        """The level to suggest, 0.9 where there are inputs enough for it; None where there are for none."""
        return usual_level(self.guarantee.rows)

    @property
    def _called(self) -> tuple[str, ...]:
        """The names of what it is of, where there are several."""
        return self.names if len(self.names) == len(self.guarantee.scores) else ()

    def check(self, draws: int, seed: int) -> None:
        """Raises OptionError unless predictions are made as those that it was made from."""
        others = ({"samples": draws} if draws != self.draws else {}) | ({"seed": seed} if seed != self.seed else {})
        if others:
            raise OptionError(
                f"{{guarantee}} holds for the predictions that it was made from, of {self.draws} draws with seed "
                f"{self.seed}: leave {' and '.join(f'{{{name}}}' for name in others)} out",
                guarantee=None,
                **others,
            )

    def intervals(self, outputs: Outputs, level: float, target: TargetScale | None) -> tuple[Array, Array]:
        """Lower and upper ends (N, ...), in the target's own units, whose order is that of the network's."""
        found = _refused(lambda: self.guarantee.intervals(as_predicted(outputs), level, names=self._called), level)
        return own_units(found, target)

    def sets(self, outputs: Outputs, level: float, classes: Sequence[str]) -> list[str]:
        """The classes of every set, the most probable first, in one text with semicolons between."""
        sets = _refused(lambda: self.guarantee.sets(as_predicted(outputs), level, names=self._called), level)
        order = np.argsort(-outputs.mean, axis=1, kind="stable")
        rows = zip(sets, order, strict=True)
        return [BETWEEN.join(classes[c] for c in ranked if inside[c]) for inside, ranked in rows]

    def statement(self, level: float, abstaining: bool = False) -> str:
        """What is guaranteed at this level, under which assumptions, in a sentence; of classes how to have more.

        Args:
            abstaining: whether some inputs are left unanswered: it is then said that they count, too.
        """
        found = self.guarantee.statement(level, names=self._called, inputs=self.rows)
        marginal = isinstance(self.guarantee.score, ClassScore) and not self.guarantee.by_class
        return "; ".join([found, *([WITHIN] if marginal else []), *([ANSWERED] if abstaining else [])])

    def about(self, level: float, abstaining: bool = False) -> dict[str, Any]:
        """As JSON beside predictions: level, method, how many inputs stand behind it, and what is guaranteed."""
        return {
            "level": level,
            "rows": self.rows,
            "rows_of_each": self.rows_of_each,
            "method": self.guarantee.method,
            "by_class": self.guarantee.by_class,
            "statement": self.statement(level, abstaining),
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"guarantee": self.guarantee.to_dict(), "draws": self.draws, "seed": self.seed, "inputs": self.inputs}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunGuarantee:
        """What `to_dict` gave."""
        all_of = {"inputs": None, **stored} if isinstance(stored, Mapping) else stored
        kinds: dict[str, Any] = {"guarantee": dict, "draws": int, "seed": int, "inputs": (int, type(None))}
        found = stored_fields(all_of, "guarantee of a run", **kinds)
        inputs = None if found["inputs"] is None else whole("inputs", found["inputs"])
        return cls(Guarantee.from_dict(found["guarantee"]), whole("draws", found["draws"]), found["seed"], inputs)


def check_guarantee(data: Data, by_class: bool) -> None:
    """Raises OptionError where a guarantee within every class makes no sense; warns where none will be of any use."""
    part = data.guarantee
    if by_class and data.task == "regression":
        raise OptionError("{guarantee_by_class} is for classes, and these are real targets", guarantee_by_class=None)
    if part is None or part.y is None:
        if by_class:
            raise OptionError(
                "{guarantee_by_class} needs inputs that are set aside, and these data have none: give {guarantee}, too",
                guarantee_by_class=None,
                guarantee=None,
            )
        return
    lacking = [] if not by_class else _without_inputs(part.y, data.classes)
    if lacking:
        warnings.warn(
            f"{data.name}: the guarantee will be of no use at any level, as it is to hold within every class, and of "
            f"the {len(part):,} inputs set aside none is of {listed(lacking)}: set more aside, or leave "
            "--guarantee-by-class (guarantee_by_class in Python) out",
            stacklevel=3,
        )


def _without_inputs(labels: Tensor, classes: Sequence[str]) -> list[str]:
    """Classes that no input is of."""
    counts = labels.bincount(minlength=len(classes)).tolist()
    return [repr(name) for name, count in zip(classes, counts, strict=True) if not count]


def missing() -> OptionError:
    """The error of a run that has none."""
    return OptionError(
        "{guarantee} needs inputs that were set aside before training, and this run has none: train again with "
        "`bayesianize train --guarantee`, or with data.guarantee = 0.1 in the recipe",
        guarantee=None,
    )


def _refused(made: Any, level: float) -> Any:
    """What `made` gives; its refusal is an OptionError."""
    try:
        return made()
    except ValueError as error:
        raise OptionError(f"{{guarantee}}: {braced(error)}", guarantee=level) from error
