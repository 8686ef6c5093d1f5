"""The guarantee of a run: from the part of its data that nothing else has seen to intervals and sets of new inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from bnn._common.checks import whole
from bnn._common.errors import OptionError, braced
from bnn._common.records import stored_fields
from bnn.conformal import Guarantee, calibrate
from bnn.data.dataset import Data, Part, TargetScale
from bnn.evaluation.coverage import as_predicted, guaranteed, own_units
from bnn.evaluation.pieces import Guaranteed
from bnn.evaluation.predictor import Array, Outputs, Predictor
from bnn.evaluation.scores import class_labels, own_targets
from bnn.train.monitor import is_bayesian
from bnn.train.step import Sampling

BATCH, SEED = 500, 0  # as `Run.predict` has them
BETWEEN = "; "  # the classes of a set, in a table


@dataclass(frozen=True)
class RunGuarantee:
    """A `bnn.conformal.Guarantee`, and the draws that it holds for.

    Args:
        guarantee: of the predictions, real ones in the units that the network was trained in.
        draws, seed: of the predictions.
    """

    guarantee: Guarantee
    draws: int
    seed: int = SEED

    @classmethod
    def of(cls, network: nn.Module, likelihood: Any, data: Data) -> RunGuarantee | None:
        """That of a trained network, predicted exactly as `Run.predict` does; None where no part was set aside."""
        part = data.guarantee
        if part is None or part.y is None:
            return None
        samples = None if is_bayesian(network) else 0
        predictor = Predictor(network, likelihood, samples, BATCH, SEED, data.target)
        with Sampling(network, "weight").in_force():
            outputs = predictor(part, what="guarantee")
        return cls(calibrate(as_predicted(outputs), part.y), outputs.draws)

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
        return guaranteed(self.guarantee, outputs, y, data.target, on, data.targets)

    @property
    def rows(self) -> int:
        """How many inputs stand behind it."""
        return self.guarantee.rows

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

    def intervals(
        self, outputs: Outputs, level: float, target: TargetScale | None, names: Sequence[str] = ()
    ) -> tuple[Array, Array]:
        """Lower and upper ends (N, ...), in the target's own units, whose order is that of the network's."""
        found = _refused(lambda: self.guarantee.intervals(as_predicted(outputs), level, names=names), level)
        return own_units(found, target)

    def sets(self, outputs: Outputs, level: float, classes: Sequence[str]) -> list[str]:
        """The classes of every set, the most probable first, in one text with semicolons between."""
        sets = _refused(lambda: self.guarantee.sets(as_predicted(outputs), level), level)
        order = np.argsort(-outputs.mean, axis=1, kind="stable")
        rows = zip(sets, order, strict=True)
        return [BETWEEN.join(classes[c] for c in ranked if inside[c]) for inside, ranked in rows]

    def stated(self, level: float) -> str:
        """What is guaranteed, in a sentence."""
        return f"guarantee: {self.guarantee.statement(level)}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"guarantee": self.guarantee.to_dict(), "draws": self.draws, "seed": self.seed}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunGuarantee:
        """What `to_dict` gave."""
        found = stored_fields(stored, "guarantee of a run", guarantee=dict, draws=int, seed=int)
        return cls(Guarantee.from_dict(found["guarantee"]), whole("draws", found["draws"]), found["seed"])


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
