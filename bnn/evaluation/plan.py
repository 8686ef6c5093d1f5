"""What an evaluation is going to predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bnn import likelihoods
from bnn.data.dataset import Data, Part
from bnn.evaluation import corruptions as corrupted
from bnn.evaluation.outside import ood_parts
from bnn.evaluation.parts import scored_part, validation_part


@dataclass(frozen=True)
class Plan:
    """What is to be predicted."""

    name: str
    task: str | None  # None: what the likelihood says
    classes: tuple[str, ...]
    part: Part
    validation: Part | None
    ood: dict[str, Part]
    corruptions: list[tuple[str, int]]

    @property
    def inputs(self) -> int:
        """Predictions to make."""
        others = [*self.ood.values(), *([] if self.validation is None else [self.validation])]
        return (1 + len(self.corruptions)) * len(self.part) + sum(map(len, others))


def plan_of(data: Any, ood: Any, corruptions: Any, validation: Any, batch_size: int) -> Plan:
    """Everything checked, and loaded, before the first prediction."""
    known = isinstance(data, Data)
    chosen = corrupted.chosen(corruptions)
    part = scored_part(data, batch_size)
    if chosen:
        corrupted.check_images(part)
    real = known and data.task == "regression"
    held_out = None if real and validation is None else validation_part(validation, data, batch_size)
    name, task, classes = (data.name, data.task, data.classes) if known else ("data", None, ())
    return Plan(name, task, classes, part, held_out, ood_parts(ood, data, part), chosen)


def likelihood_of(likelihood: Any, plan: Plan) -> Any:
    """The likelihood object: the one asked for, or that of the task."""
    assert plan.part.y is not None
    real = plan.task == "regression" or (plan.task is None and plan.part.y.is_floating_point())
    usual = likelihoods.for_task(None, "regression" if real else "classification")
    found = usual if likelihood is None else likelihoods.get(likelihood)
    if (likelihood is None or isinstance(likelihood, str)) and likelihoods.about(found).learns:
        raise ValueError(
            "real targets need the noise that was trained: pass likelihood=history.likelihood (what bnn.fit returns), "
            'elbo.likelihood, bnn.likelihoods.Gaussian(sd=...), or "heteroscedastic"'
        )
    return found
