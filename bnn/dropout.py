"""`bnn.keep_dropout_`: the Dropout layers that a network has go on dropping at prediction."""

from __future__ import annotations

from torch import nn

from bnn._engine.forward import mark_root_
from bnn._engine.inputs import check_network
from bnn.nn.kept_dropout import KEPT, Kept


def keep_dropout_(network: nn.Module, keep: bool = True) -> None:
    """Keeps the Dropout layers of `network` on in evaluation mode, in place: MC dropout with those that it has.

    They become parts of a draw: `bnn.predict` runs K masks in one pass, the same seed gives the same masks,
    `bnn.frozen_draw` holds them, `samples=0` drops nothing, files remember it, and `bnn.set_sampling_(network,
    "weight")` has one mask for the whole batch. nn.Dropout, Dropout1d, Dropout2d and Dropout3d are kept, at the p that
    they have; dropout that is no such layer (`F.dropout`, inside nn.MultiheadAttention and nn.LSTM) is not. Together
    with Bayesian layers it works, too.

    Args:
        keep: False makes them torch's own again, which drop in train mode alone.

    Raises:
        ValueError: there is no such layer.

    >>> import torch, bnn
    >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3)).eval()
    >>> bnn.keep_dropout_(net)
    >>> bnn.predict(net, torch.randn(5, 4), samples=8).epistemic.shape
    torch.Size([5])
    """
    check_network(network)
    found = [module for module in network.modules() if type(module) in KEPT or isinstance(module, Kept)]
    if not found:
        raise ValueError(
            "this network has no layer of nn.Dropout, Dropout1d, Dropout2d or Dropout3d to keep on; to drop inputs of "
            'its layers, use bnn.bayesianize_(network, "mc-dropout")'
        )
    for module in found:
        if isinstance(module, Kept):
            if not keep:
                module.revert_()
        elif keep:
            KEPT[type(module)].convert_(module)
    if keep:
        mark_root_(network)
