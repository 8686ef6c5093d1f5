"""Looking at data and network before a run starts, so that errors show at once and in plain words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._engine.inputs import evaluating
from bnn.data.batches import Batches, InMemory
from bnn.data.dataset import Data, Part, tensors_in
from bnn.data.forms import to_device
from bnn.likelihoods.base import fitting_targets
from bnn.prediction import draws

FEW = 2  # inputs to try the network on


def checked(source: Batches, net: nn.Module, likelihood: Any, data: Any, given: bool) -> tuple[Batches, int | None]:
    """The source with targets of the shape the likelihood wants, and the number of outputs; errors for what cannot go.

    Only data in memory are looked at: numbers that are not finite, labels the network has no output for, inputs it
    cannot take, targets that do not fit. (N,) and (N, 1) are taken for each other where only one of them can be meant.

    Args:
        data: what `bnn.fit` was given.
        given: whether the user chose the likelihood.
    """
    if not isinstance(source, InMemory):
        return source, None
    part = source.part
    for x in tensors_in(part.x):
        _check_finite("x", x)
    if part.y is not None:
        _check_targets(part.y, likelihood)
        if not given:
            _check_kind(part.y)
    output = _tried(net, part)
    if output is None:
        return source, None
    if part.y is not None:  # a teacher does without
        part = replace(part, y=fitting_targets(part.y, output, likelihood))
        _check_width(part, output, likelihood, data)
        _check_likelihood(part, output, likelihood, given)
    return replace(source, part=part), output.shape[1] if output.ndim > 1 else None


def _check_finite(name: str, values: Tensor) -> None:
    if not values.is_floating_point():
        return
    bad = ~torch.isfinite(values).flatten(1).all(1) if values.ndim > 1 else ~torch.isfinite(values)
    if bool(bad.any()):
        rows = bad.nonzero()[:, 0].tolist()
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        raise ValueError(f"{name} is not finite in row {rows[0]}{more}: remove such rows, or fill them in, first")


def _check_targets(y: Tensor, likelihood: Any) -> None:
    """Finite numbers; of several real targets some may be NaN, which are missing, but not all of a row."""
    several = y.is_floating_point() and y.ndim > 1 and y[:1].numel() > 1
    if several and likelihoods.about(likelihood).task == "regression":
        gone = y.isnan().flatten(1).all(1).nonzero()[:, 0].tolist()
        if gone:
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            raise ValueError(f"all targets are NaN in row {gone[0]}{more} of y: remove such rows first")
        y = torch.where(y.isnan(), 0.0, y)
    _check_finite("y", y)


def _check_kind(y: Tensor) -> None:
    """Targets that do not say whether they are classes or real numbers."""
    if y.dtype == torch.bool:
        raise ValueError("y is boolean: use y.long() for two classes")
    one_hot = y.is_floating_point() and y.ndim == 2 and y.shape[1] > 1
    if one_hot and bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all()):
        raise ValueError(
            'y looks one-hot: use y.argmax(1), or likelihood="categorical" to keep it; likelihood="gaussian" if these '
            "are real numbers after all"
        )


def _tried(net: nn.Module, part: Part) -> Tensor | None:
    """The network's output at a few inputs, (FEW, ...); None if it is not one tensor."""
    place = next((p for p in net.parameters() if p.is_floating_point()), None)
    x = part.inputs(slice(0, FEW))
    try:
        with torch.no_grad(), evaluating(net):
            given = x if place is None else to_device(x, place.device)
            outputs = draws(net, given, samples=0, generator=torch.Generator())
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        x = tensors_in(x)[0]
        differs = place is not None and x.dtype != place.dtype and not isinstance(error, TypeError)
        hint = f"; the network is {place.dtype}: use x.to({place.dtype})" if differs and place is not None else ""
        what = f"{x.dtype} of shape {tuple(x.shape[1:])} each"
        raise ValueError(f"the network cannot take these inputs, {what}: {error}{hint}") from error
    return outputs[0] if isinstance(outputs, Tensor) else None


def _check_width(part: Part, output: Tensor, likelihood: Any, data: Any) -> None:
    found = likelihoods.about(likelihood)
    if found.task != "classification" or output.ndim < 2:
        return
    width = output.shape[1] // found.outputs_per_target
    if isinstance(data, Data) and data.task == "classification" and width != len(data.classes):
        classes = f"{data.name} has {len(data.classes)} classes"
        raise ValueError(f"the network has {width} outputs, {classes}: change its last layer")
    assert part.y is not None
    if part.y.is_floating_point():
        return
    counted = part.y if found.ignore_index is None else part.y[part.y != found.ignore_index]
    if counted.numel() and (int(counted.min()) < 0 or int(counted.max()) >= width):
        raise ValueError(
            f"labels run from {int(counted.min())} to {int(counted.max())}, but the network has {width} outputs: "
            f"expected 0 to {width - 1}"
        )


def _check_likelihood(part: Part, output: Tensor, likelihood: Any, given: bool) -> None:
    """Tries the likelihood on a few targets; its own message, and what the targets were taken for."""
    assert part.y is not None
    if not isinstance(likelihood, likelihoods.Likelihood):
        return  # a function of the user's own may count its calls
    try:
        with torch.no_grad():
            likelihood(output, part.y[: len(output)].to(output.device))
    except (ValueError, TypeError) as error:
        if given:
            raise
        taken = "real numbers" if part.y.is_floating_point() else "class labels"
        other = "y.long() for class labels" if part.y.is_floating_point() else "y.float() for real numbers"
        raise type(error)(f"{error}. y is {part.y.dtype}, so targets were taken for {taken}: use {other}") from error
