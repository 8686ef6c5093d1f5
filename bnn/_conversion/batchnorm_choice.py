"""Whether a converted network keeps the original statistics of BatchNorm, or gets its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from bnn._conversion.activation_inputs import copied
from bnn._engine.fold import call
from bnn._engine.inputs import number_of_inputs

Statistics = list[tuple[Tensor, Tensor]]  # buffers, and values for them


def better_statistics(network: nn.Module, batches: list[Any], outputs: list[tuple[Any, Any]]) -> Statistics:
    """Running statistics estimated on `batches`, where they bring the outputs closer to the original ones; else [].

    Whether they do is seen on every other batch, with statistics of those between: a single batch tells nothing.

    Args:
        network: in evaluation mode, with the weights it is converted to; it is left as it was.
        outputs: for each batch, of the original network and of this one.
    """
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in norms if norm.running_mean is not None]
    whole = [i for i, x in enumerate(batches) if (number_of_inputs(x) or 1) > 1]  # BatchNorm needs two
    if not norms or len(whole) < 2:
        return []
    shown, held = whole[::2], whole[1::2]
    try:
        with _estimated(network, norms, [batches[i] for i in shown]):
            after = sum(_distance(outputs[i][0], call(network, copied(batches[i]))) for i in held)
    except ValueError:  # a norm that sees one value per channel cannot estimate a variance
        return []
    if not after < sum(_distance(*outputs[i]) for i in held):
        return []
    with _estimated(network, norms, [batches[i] for i in whole]) as buffers:
        return [(buffer, buffer.clone()) for buffer in buffers]


@contextmanager
def _estimated(
    network: nn.Module, norms: list[nn.modules.batchnorm._BatchNorm], batches: list[Any]
) -> Iterator[list[Tensor]]:
    """`norms` with the statistics of `batches`; afterwards they are as they were. Gives means and variances."""
    held = [(norm, norm.momentum, norm.training) for norm in norms]
    kept = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers(recurse=False)]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
            norm.momentum = None  # the average over all batches
        for x in batches:
            call(network, copied(x))
        for norm in norms:
            norm.eval()
        yield [b for norm in norms for b in (norm.running_mean, norm.running_var) if b is not None]
    finally:
        for norm, momentum, training in held:
            norm.momentum = momentum
            norm.training = training
        for buffer, value in kept:
            buffer.copy_(value)


def _distance(one: Any, other: Any) -> float:
    """The sum of squares between outputs: tensors, also in tuples and dicts."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.shape == other.shape and one.is_floating_point()
        return float((one.double() - other.double()).square().sum()) if same else 0.0
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return sum(_distance(one[name], other[name]) for name in one if name in other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return sum(_distance(*pair) for pair in zip(one, other, strict=False))
    return 0.0
