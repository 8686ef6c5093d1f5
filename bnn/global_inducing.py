"""Global inducing weights: one small matrix for all layers, which correlates them (paper, hierarchical inducing).

The whitened inducing matrices of all layers, stacked to V, have the prior N(0, I): V is augmented exactly as a weight
matrix with sigma = 1 and no bias is. With A, R, P of the global Z and D:

    q(V|u_g) = N(A_gr^T u_g A_gc, lamda_g^2 (I - P_gc (x) P_gr))
    KL       = KL[q(u_g) || N(0, I)] + S m r(lamda_g) + sum_l d_in,l d_out,l r(lamda_l)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bnn._engine.forward import mark_root_
from bnn._engine.temperature import forget_temperature_, warn_of_temperature
from bnn.nn.families.inducing import InducingBase, InducingOptions
from bnn.nn.families.q.base import QInducing
from bnn.nn.families.q.global_slice import GlobalSlice
from bnn.nn.global_inducing import NAME, GlobalInducing


class GlobalInducingHandle:
    """Undoes `register_global_inducing_weights_`: `remove()` gives every layer its own q(U) back, as it was."""

    def __init__(self, network: nn.Module, own: dict[InducingBase, tuple[QInducing, dict[str, Any]]]) -> None:
        self._network, self._own = network, own

    def remove(self) -> None:
        """Removes the global module and restores the layers, in place. A second call does nothing."""
        for layer, (q, tensors) in self._own.items():
            layer.q = q
            for name, tensor in tensors.items():
                tensor.data = tensor.data.to(layer.z_row)
                (layer._parameters if isinstance(tensor, nn.Parameter) else layer._buffers)[name] = tensor
        if self._own:
            delattr(self._network, NAME)
        self._own = {}


def register_global_inducing_weights_(
    network: nn.Module, inducing_rows: int, inducing_cols: int, cat_dim: int = 0, **options: Any
) -> GlobalInducingHandle:
    """Puts one global inducing matrix over all inducing layers of `network`, in place.

    The layers' own q(U) leave the parameters and the state dict; a module `_global_inducing_module` on the network
    draws V once per forward, and each layer takes its slice, in the order of `network.modules()`. V starts from the
    layers' current means, projected to the global size (`init="weights"`), or as in the paper (`init="paper"`).

    Args:
        inducing_rows, inducing_cols: G_r x G_c, the size of the global matrix.
        cat_dim: 0 stacks the layers' matrices by rows (all need the same inducing_cols), 1 by columns.
        options: options of the inducing family for V: `q_inducing`, `max_lamda`, `max_sd_u`, `init_lamda`, ...

    Returns:
        A handle whose `remove()` undoes the registration.

    Raises:
        ValueError: a bad cat_dim, fewer than two inducing layers, sizes that do not stack, unwhitened layers, a prior
            other than N(0, 1), or a network that has global weights already.

    >>> import bnn
    >>> net = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 4))
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=4)
    >>> handle = bnn.register_global_inducing_weights_(net, inducing_rows=2, inducing_cols=2)
    >>> net._global_inducing_module
    GlobalInducing(V=6x4, family=inducing, M=2x2, q=diagonal, prior_sd=1)
    """
    layers = [module for module in network.modules() if isinstance(module, InducingBase)]
    parsed = InducingOptions.parse(
        "global inducing weights", {"inducing_rows": inducing_rows, "inducing_cols": inducing_cols, **options}
    )
    _check(network, layers, cat_dim, parsed)
    warn_of_temperature(network, "its layers share global weights now")
    forget_temperature_(network)
    with torch.no_grad():
        V = torch.cat([layer.q.mean(layer) for layer in layers], dim=cat_dim).to(layers[0].z_row.dtype)
    module = GlobalInducing(V, cat_dim, parsed, trains=any(layer.z_row.requires_grad for layer in layers))
    own: dict[InducingBase, tuple[QInducing, dict[str, Any]]] = {}
    first = 0
    for layer in layers:
        length = layer.q.mean(layer).shape[cat_dim]
        own[layer] = (layer.q, _take_q_(layer))
        layer.q = GlobalSlice(module, cat_dim, first, length)
        first += length
    network.add_module(NAME, module)
    mark_root_(network)  # one V per forward of what it was registered on
    return GlobalInducingHandle(network, own)


def _take_q_(layer: InducingBase) -> dict[str, Any]:
    """Takes the tensors of q(U) off the layer."""
    holders = {name: layer._parameters if name in layer._parameters else layer._buffers for name in layer.q.tensors()}
    return {name: holder.pop(name) for name, holder in holders.items()}


def _check(network: nn.Module, layers: list[InducingBase], cat_dim: int, options: InducingOptions) -> None:
    if cat_dim not in (0, 1):
        raise ValueError(f"cat_dim must be 0 (stack rows) or 1 (stack columns), got {cat_dim!r}")
    if NAME in network._modules or any(isinstance(layer.q, GlobalSlice) for layer in layers):
        raise ValueError("this network has global inducing weights already; remove() its handle first")
    if len(layers) < 2:
        raise ValueError(f"global inducing weights tie at least two inducing layers together, found {len(layers)}")
    if options.prior_sd != 1 or options.sqrt_width_scaling:
        raise ValueError("the whitened inducing weights have the prior N(0, 1): leave out prior_sd, sqrt_width_scaling")
    if any(not layer.options.whitened_u for layer in layers):
        raise ValueError("global inducing weights need whitened layers: convert with whitened_u=True")
    sizes = [(len(layer.z_row), len(layer.z_col)) for layer in layers]
    if len({size[1 - cat_dim] for size in sizes}) > 1:
        side = ("inducing_cols", "inducing_rows")[cat_dim]
        raise ValueError(f"with cat_dim={cat_dim} all layers need the same {side}; their sizes are {sizes}")
