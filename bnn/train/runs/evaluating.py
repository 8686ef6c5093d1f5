"""What a finished run is worth: `bnn.evaluate` with its likelihood, its guarantee, and the advice that fits them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from bnn.data.dataset import Data
from bnn.evaluation import Evaluation, evaluate
from bnn.train.runs.guaranteeing import RunGuarantee
from bnn.train.step import Sampling


def evaluation_of(
    network: nn.Module, likelihood: Any, data: Data, guarantee: RunGuarantee | None, target: str | None, **options: Any
) -> Evaluation:
    """Everything that is known on the test part of `data`.

    Every draw is one function of all inputs, as in `Run.predict`: by the same number and seed the very same draws.

    Args:
        data: prepared as those of training.
        guarantee: of the run, which is measured, too.
        target: what the real targets are called.
        options: as for `bnn.evaluate`.
    """
    with Sampling(network, "weight").in_force():
        found = replace(evaluate(network, data, likelihood=likelihood, **options), target=target)
    if guarantee is None or data.test is None:
        return found
    weighted = found.classes is not None and bool(found.classes.weights)
    promise = None if found.promise is None else found.promise.advised(guarantee.level, weighted)
    return replace(found, promise=promise, guarantee=guarantee.measured(network, likelihood, data, data.test))
