"""Class weights, "balanced", by name or in order, as those of a likelihood: with mean 1 over the training data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bnn import likelihoods
from bnn.data.batches import Batches, InMemory
from bnn.data.dataset import Data
from bnn.train.class_weight_options import asked_for, scaled


def weighted(likelihood: Any, asked: Any, source: Batches, data: Any, classes: int | None) -> Any:
    """The likelihood with class weights, a new object; without any asked for, the likelihood itself.

    Args:
        likelihood: an object.
        asked: as for `bnn.fit`.
        source: of the training data, whose labels are counted.
        data: what `bnn.fit` was given; a `Data` knows the names of its classes.
        classes: outputs of the network.
    """
    if asked is None:
        return likelihood
    if not isinstance(source, InMemory):
        raise ValueError(
            "class weights are scaled by how often each class occurs, which a data set or loader does not say: pass "
            "likelihood=bnn.likelihoods.Categorical(class_weights=[...]), whose weights count as they are"
        )
    names = data.classes if isinstance(data, Data) else ()
    return of_labels(likelihood, asked, source.part.y, names, classes)


def for_data(name: str | None, data: Data, asked: Any = None) -> Any:
    """The likelihood of this name, or the usual one, for a data set; with class weights where they are asked for."""
    targets = data.out_features if data.task == "regression" else 1
    likelihood = likelihoods.for_task(name, data.task, targets, log=data.target is not None and data.target.log)
    return likelihood if asked is None else of_labels(likelihood, asked, data.train.y, data.classes, None)


def of_labels(likelihood: Any, asked: Any, y: Tensor | None, names: Sequence[str], classes: int | None) -> Any:
    """`likelihood` with the weights that are asked for, scaled to mean 1 over the labels y.

    Args:
        names: of the classes; empty where they have none.
        classes: how many; None: as many as names.
    """
    found = likelihoods.about(likelihood)
    if found.with_class_weights([1.0, 1.0]) is None:
        kind = f"the likelihood {found.name}, of {found.task}" if found.name else "a function of your own"
        raise ValueError(f"class weights are for the likelihood categorical, of one class per input; this is {kind}")
    if found.options().get("class_weights") is not None:
        raise ValueError("the likelihood has class weights already: give them there or here, not both")
    if y is None or y.is_floating_point():
        raise ValueError("class weights need class labels in the training data: whole numbers, one for each input")
    counted = y[y != found.ignore_index].reshape(-1).long().cpu()
    counts = torch.bincount(counted, minlength=max(len(names), classes or 0)).tolist()
    weights = scaled(asked_for(asked, counts, names), counts)
    return found.with_class_weights(weights)
