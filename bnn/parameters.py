"""The parameters of a network: how many there are, and groups of them with learning rates of their own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bnn._common.checks import check_positive
from bnn._engine.inputs import check_network
from bnn.likelihoods.base import Likelihood
from bnn.nn.base import BayesianLayer
from bnn.nn.pruning import pruned_entries


def parameter_count(network: nn.Module, keep: float = 1.0) -> int:
    """The number of parameters of `network`, tied ones counted once, without those that `bnn.prune_` took.

    Args:
        keep: the fraction of prunable parameters that pruning would leave: Z of inducing layers, mean and sd of the
            weights of `ffg` layers (the paper's choice); everything else stays. Rounded once, over the whole network.
            What is gone does not come back: no more are counted than there are.

    >>> from bnn import bayesianize_, prune_
    >>> net = nn.Linear(100, 50)
    >>> parameter_count(net)
    5050
    >>> bayesianize_(net, "inducing", inducing_rows=8, inducing_cols=8)
    >>> parameter_count(net), parameter_count(net, keep=0.5)
    (1353, 749)
    >>> prune_(net, keep=0.5)
    >>> parameter_count(net)
    749
    """
    check_keep(keep)
    total = sum(parameter.numel() for parameter in network.parameters())
    layers = [module for module in network.modules() if isinstance(module, BayesianLayer)]
    prunable = sum(prunable_count(layer) for layer in layers)
    return min(total - prunable + number_kept(total, prunable, keep), total - sum(map(pruned_entries, layers)))


def check_keep(keep: float) -> None:
    """Raises ValueError unless it is a fraction."""
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 <= keep <= 1:
        raise ValueError(f"keep must be a fraction between 0 and 1, got {keep!r}")


def prunable_count(layer: BayesianLayer) -> int:
    """How many parameters of a layer can be pruned, or were."""
    return sum(getattr(layer, name).numel() for name in layer.prunable)


def number_kept(total: int, prunable: int, keep: float) -> int:
    """How many of the prunable parameters are kept, where all `total` parameters are rounded once, as in the paper."""
    return round(total - (1 - keep) * prunable) - (total - prunable)


def parameter_groups(network: nn.Module, lr: float, *, scales: float = 10.0, u: float = 1.0) -> list[dict[str, Any]]:
    """Groups for any torch optimiser, with a rate for each: `Adam(bnn.parameter_groups(net, lr=1e-3))`.

    A step of Adam moves every entry by about its rate, whatever the gradient, so rates set relative speeds:

    - the inducing matrix u of a layer: u * lr * rms(u). After a start from trained weights rms(u) runs from 1 to 30
      over the layers, so one rate cannot suit all.
    - scales (posterior sds, lamda, the noise of a likelihood): scales * lr. They are kept through softplus, where a
      step moves the logarithm of a small scale: from 1e-4 to a cap of 0.1 it is a way of 7.
    - everything else: lr. Triangles of a covariance hold more than scales, so they are here, too.

    Args:
        network: a converted network, or anything that holds one, such as `bnn.ELBO`; frozen parameters are left out.
        lr: the base rate, as for the deterministic network.
        scales, u: factors of the two kinds above.

    Returns:
        Groups with `params`, `lr` and `name`: "rest", "scales", and "u of <layer>" for each inducing layer.

    >>> import torch, bnn
    >>> net = torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    >>> [group["name"] for group in bnn.parameter_groups(net, lr=1e-3)]
    ['rest', 'scales', 'u of 0', 'u of 2']
    """
    check_network(network)
    check_positive("lr", lr)
    check_positive("scales", scales)
    check_positive("u", u)
    rest, small, sized = _kinds(network)
    groups: list[dict[str, Any]] = []
    if rest:
        groups.append({"params": rest, "lr": lr, "name": "rest"})
    if small:
        groups.append({"params": small, "lr": scales * lr, "name": "scales"})
    for name, parameters in sized.items():
        rms = max(_rms(parameter) for parameter in parameters)
        groups.append({"params": parameters, "lr": u * lr * (rms or 1.0), "name": f"u of {name or 'the network'}"})
    if not groups:
        raise ValueError("no parameter of this network trains: nothing to optimise")
    return groups


def _kinds(network: nn.Module) -> tuple[list[Tensor], list[Tensor], dict[str, list[Tensor]]]:
    """Every trained parameter once: ordinary ones, scales, and by layer those whose size sets their rate."""
    rest: list[Tensor] = []
    small: list[Tensor] = []
    sized: dict[str, list[Tensor]] = {}
    seen: set[int] = set()
    for prefix, module in network.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if name in _scales(module):
                small.append(parameter)
            elif isinstance(module, BayesianLayer) and name in module.sized:
                sized.setdefault(prefix, []).append(parameter)
            else:
                rest.append(parameter)
    return rest, small, sized


def _scales(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's own parameters that are standard deviations or lamda."""
    if isinstance(module, Likelihood):
        return module.noise
    return tuple(module.scales) if isinstance(module, BayesianLayer) else ()


def _rms(tensor: Tensor) -> float:
    return float(tensor.detach().float().square().mean().sqrt()) if tensor.numel() else 0.0
