"""How large a network is, in parameters, also after pruning."""

from __future__ import annotations

from torch import nn

from bnn.nn.base import BayesianLayer


def parameter_count(network: nn.Module, keep: float = 1.0) -> int:
    """The number of parameters of `network`, tied ones counted once.

    Args:
        keep: the fraction of prunable parameters that pruning would leave: Z of inducing layers, mean and sd of the
            weights of `ffg` layers (the paper's choice); everything else stays. Rounded once, over the whole network.

    >>> from bnn import bayesianize_
    >>> net = nn.Linear(100, 50)
    >>> parameter_count(net)
    5050
    >>> bayesianize_(net, "inducing", inducing_rows=8, inducing_cols=8)
    >>> parameter_count(net), parameter_count(net, keep=0.5)
    (1353, 749)
    """
    if not 0 <= keep <= 1:
        raise ValueError(f"keep must be a fraction between 0 and 1, got {keep!r}")
    total = sum(parameter.numel() for parameter in network.parameters())
    layers = [module for module in network.modules() if isinstance(module, BayesianLayer)]
    prunable = sum(getattr(layer, name).numel() for layer in layers for name in layer.prunable)
    return round(total - (1 - keep) * prunable)
