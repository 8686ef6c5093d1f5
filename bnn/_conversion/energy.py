"""How much of the weights (or outputs) of its layers a conversion keeps, and what to say where it is little."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bnn._common.text import listed
from bnn.nn.base import Weights
from bnn.nn.limited_rank import LimitedRank

LITTLE = 0.8  # of a layer's energy: below, networks were seen to lose many points of accuracy
ENOUGH = 100  # weights to tell whether they are normal: a stem of 3 x 3 kernels from one channel to 16 has more


class EnergyWarning(UserWarning):
    """A conversion keeps little of what some layers computed."""


def note_energy_(layer: nn.Module, weights: Weights) -> None:
    """Sets `energy_kept` of a converted layer, in place: 1 - |W - E[W]|^2 / |W|^2 for the weights W it had.

    Only where a limited rank keeps the weights at hand, and nobody has set it: families that keep all of them, and
    random starts, have nothing to tell.
    """
    keeps = isinstance(layer, LimitedRank) and layer.options.init == "weights"
    if not keeps or layer.energy_kept is not None or weights.weight.is_meta:
        return
    W = layer.to_matrix(weights).double()
    with torch.no_grad():
        mean = layer.to_matrix(layer.mean_weights())
    layer.reset_cache()  # factors are computed when the layer runs
    energy = float(W.square().sum())
    layer.energy_kept = 1.0 if energy == 0 else 1.0 - float((W - mean.double()).square().sum()) / energy


def warn_of_losses(
    layers: Mapping[str, tuple[nn.Module, Weights]], stacklevel: int, outputs: Sequence[float] = ()
) -> None:
    """Warns, once, of layers that keep little of their energy, or a network of its outputs: names the worst.

    Not of a network whose weights are all a random start still: there is nothing to lose in them. A few weights, or
    some that training hardly moved, may look like one, so that a single layer that does not speaks for all.
    """
    little: dict[str, float] = {}
    for name, (layer, _) in layers.items():
        kept = layer.energy_kept if isinstance(layer, LimitedRank) else None
        if kept is not None and kept < LITTLE:
            little[name] = kept
    together = min(outputs, default=1.0)  # losses of many layers add up
    if not (little or together < LITTLE) or all(looks_untrained(weights.weight) for _, weights in layers.values()):
        return
    if not little:
        warnings.warn(
            f"the network keeps {max(together, 0.0):.0%} of the variance of its outputs on the inputs of activations=: "
            "fine-tune it (bnn.fit), or take a larger budget or sizes; bnn.summary(net) shows all layers",
            EnergyWarning,
            stacklevel=stacklevel,
        )
        return
    worst = sorted(little, key=lambda name: little[name])
    shown = listed(f"{name or 'the network'} {little[name]:.0%}" for name in worst)
    number = "1 layer keeps" if len(worst) == 1 else f"{len(worst)} layers keep"
    warnings.warn(
        f"{number} less than {LITTLE:.0%} of the energy of the weights: {shown}. If they were trained, fine-tune the "
        "network (bnn.fit), take a larger budget or sizes, or give activations=; bnn.summary(net) shows all layers",
        EnergyWarning,
        stacklevel=stacklevel,
    )


def looks_untrained(weight: Tensor) -> bool:
    """Whether a weight has the distribution with which layers begin: torch's uniform one, or He's normal one; or is 0.

    Uniform within +-1/sqrt(fan-in), with the root mean square of that, and training moves some of many weights beyond;
    normal with the sd sqrt(2 / fan-out) (ResNets), or sqrt(2 / fan-in), and a kurtosis of 3. Fewer than `ENOUGH`
    weights are never taken for normal ones: those of small trained networks would pass.
    """
    if weight.is_meta or not bool(weight.any()):
        return True
    w, n = weight.detach().double(), weight.numel()
    fan_in, fan_out = w[0].numel(), n // max(1, w.shape[1])
    rms, bound = float(w.square().mean().sqrt()), 1 / math.sqrt(max(1, fan_in))
    few = 4 / math.sqrt(n)  # four standard errors of a root mean square, and more of the other moments
    within = float(w.abs().max()) <= bound * (1 + torch.finfo(weight.dtype).eps)
    if within and abs(rms * math.sqrt(3) / bound - 1) < few:
        return True
    if n < ENOUGH:
        return False
    kurtosis = float(w.pow(4).mean()) / rms**4
    sds = (math.sqrt(2 / fan) for fan in (fan_in, fan_out))
    return any(abs(rms / sd - 1) < few for sd in sds) and abs(kurtosis - 3) < 5 * few
