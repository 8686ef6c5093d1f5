"""Draws of the command line: each is one function of all inputs."""

from __future__ import annotations

from torch import nn

from bnn.prediction import layers_with_sampling, set_sampling_


def whole_draws_(net: nn.Module) -> None:
    """Makes every draw one function, in place: an input's answer does not depend on those beside it."""
    if layers_with_sampling(net):
        set_sampling_(net, "weight")
