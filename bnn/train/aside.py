"""The guarantee of `bnn.fit`: rows set aside before anything else, and what they make of the trained network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from bnn import likelihoods
from bnn._common.seeds import derived
from bnn._engine.inputs import device_of
from bnn.conformal import Guarantee, calibrate
from bnn.data.dataset import Data, Part
from bnn.data.forms import gathered, taken, to_device
from bnn.data.split import ASIDE, inputs_aside, warn_gone
from bnn.prediction import predict
from bnn.train.monitor import is_bayesian

BATCH, SEED = 500, 0  # of the predictions, as `bnn.evaluate` makes them


def set_aside(data: Any, wanted: Any, seed: int | None) -> tuple[Any, Any]:
    """What is left to train on, and a plain random sample of rows for a guarantee; None where none is asked for.

    Args:
        data: as for `bnn.fit`; of a `Data` the rows are taken from its training part, unless it has a part for it.
        wanted: a share of the rows (at least 50 are set aside), or their number; None or 0 for none.
        seed: of the sample, which is the same whenever a run resumes.
    """
    if isinstance(data, Data) and data.guarantee is not None:
        if wanted:
            raise ValueError(
                f"{data.name} has set {len(data.guarantee)} inputs aside for a guarantee already: leave guarantee= out"
            )
        return data, data.guarantee
    if not wanted:
        return data, None
    if isinstance(data, DataLoader):
        raise ValueError("guarantee= sets rows aside, which a DataLoader cannot: pass its dataset, or a pair (x, y)")
    found = data.train if isinstance(data, Data) else taken(data)
    names = data.classes if isinstance(data, Data) else ()
    aside, others = _sample(found, inputs_aside(wanted, len(found)), SEED if seed is None else int(seed), names)
    return (replace(data, train=others, guarantee=aside) if isinstance(data, Data) else others), aside


def _sample(found: Part | Dataset[Any], count: int, seed: int, names: Sequence[str]) -> tuple[Any, Any]:
    """So many rows at random, whatever their class, as exchangeable with new ones as the others; and the others.

    Args:
        names: of the classes, where they have some.
    """
    if isinstance(found, Part) and found.y is None:
        raise ValueError("a guarantee needs targets, and these data have none")
    rows = len(found)  # type: ignore[arg-type]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(derived(seed, ASIDE)), device="cpu")
    aside, others = order[:count].sort().values, order[count:].sort().values
    if isinstance(found, Part):
        if found.y is not None and not found.y.is_floating_point() and found.y.numel() == rows:
            warn_gone(found.y.reshape(-1), others, names, "the data")
        return found.subset(aside), found.subset(others)
    return Subset(found, aside.tolist()), Subset(found, others.tolist())


def guarantee_of(net: nn.Module, likelihood: Any, aside: Any) -> Guarantee | None:
    """The guarantee of a trained network, for predictions as `bnn.predict` makes them with a generator of seed 0."""
    if aside is None:
        return None
    part = gathered(aside, BATCH)
    x = to_device(part.inputs(), device_of(net))
    generator = torch.Generator().manual_seed(SEED)
    prediction = predict(net, x, None if is_bayesian(net) else 0, likelihood, generator, BATCH)
    assert part.y is not None
    classes = isinstance(prediction, likelihoods.ClassPrediction)
    return calibrate(prediction, part.y.reshape(-1).long() if classes else part.y)
