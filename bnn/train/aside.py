"""The guarantee of `bnn.fit`: rows set aside before anything else, and what they make of the trained network."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from bnn import likelihoods
from bnn._common.seeds import derived
from bnn._engine.inputs import device_of
from bnn._engine.seen_rows import Seen, known_rows, remember_
from bnn.conformal import Guarantee, calibrate
from bnn.data.dataset import Data, Part
from bnn.data.forms import gathered, taken, to_device
from bnn.data.split import ASIDE, inputs_aside, warn_gone
from bnn.prediction import predict
from bnn.train.monitor import is_bayesian

BATCH, SEED = 500, 0  # of the predictions, as `bnn.evaluate` makes them


def set_aside(data: Any, wanted: Any, seed: int | None, net: nn.Module | None = None) -> tuple[Any, Any]:
    """What is left to train on, and a plain random sample of rows for a guarantee; None where none is asked for.

    Args:
        data: as for `bnn.fit`; of a `Data` the rows are taken from its training part, unless it has a part for it.
        wanted: a share of the rows (at least 50 are set aside), or their number; None or 0 for none.
        seed: of the sample, which is the same whenever a run resumes.
        net: what is to be trained: a warning says if it has been trained on rows that are set aside now.
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
    count, seed = inputs_aside(wanted, len(found)), SEED if seed is None else int(seed)
    if net is not None:
        _warn_of_known(net, Seen.of(found, count, seed))
    aside, others = _sample(found, count, seed, names)
    return (replace(data, train=others, guarantee=aside) if isinstance(data, Data) else others), aside


def _sample(found: Part | Dataset[Any], count: int, seed: int, names: Sequence[str]) -> tuple[Any, Any]:
    """So many rows at random, whatever their class, as exchangeable with new ones as the others; and the others.

    Args:
        names: of the classes, where they have some.
    """
    if isinstance(found, Part) and found.y is None:
        raise ValueError("a guarantee needs targets, and these data have none")
    rows = len(found)  # type: ignore[arg-type]
    order = _order(rows, seed)
    aside, others = order[:count].sort().values, order[count:].sort().values
    if isinstance(found, Part):
        if found.y is not None and not found.y.is_floating_point() and found.y.numel() == rows:
            warn_gone(found.y.reshape(-1), others, names, "the data")
        return found.subset(aside), found.subset(others)
    return Subset(found, aside.tolist()), Subset(found, others.tolist())


def _order(rows: int, seed: int) -> Tensor:
    """The order of rows (rows,), of which the first are set aside."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(derived(seed, ASIDE)), device="cpu")


def remember_rows_(net: nn.Module, data: Any, wanted: Any, seed: int | None) -> None:
    """Notes on the network, in place, that it is trained on the rows that `set_aside` leaves; of loaders nothing."""
    found = data.train if isinstance(data, Data) else taken(data)
    if isinstance(found, DataLoader):
        return
    own = isinstance(data, Data) and data.guarantee is not None
    count = 0 if own else inputs_aside(wanted, len(found))
    remember_(net, Seen.of(found, count, SEED if seed is None else int(seed)))


def _warn_of_known(net: nn.Module, wanted: Seen) -> None:
    known = known_rows(net, wanted, _order)
    if known:
        warnings.warn(
            f"the guarantee will not hold: of the {wanted.aside:,} rows set aside for it now, this network has been "
            f"trained on {known:,} before, by bnn.fit with another seed= or guarantee=, or without guarantee=. Give "
            "every bnn.fit of a network the same seed= and guarantee=, or begin with one that is not trained (if its "
            "parameters were reset since, this does not concern you)",
            stacklevel=4,
        )


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
