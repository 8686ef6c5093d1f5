"""The temperature of a network: one number by which `bnn.predict` divides every draw's logits; 1 is none.

It is a plain attribute of the network that was calibrated, of no module inside it: `copy.deepcopy` keeps it, the state
dict does not hold it, and files keep it among their metadata. This file alone reads and writes it.
"""

from __future__ import annotations

import warnings

from torch import nn

NAME = "_bnn_temperature"


def temperature_of(network: nn.Module) -> float:
    """T of `network`; 1.0 for one that was not calibrated."""
    found: float = getattr(network, NAME, 1.0)  # of a compiled network it is that of the one inside
    return found


def set_temperature_(network: nn.Module, temperature: float) -> None:
    """Gives `network` this T, in place; 1 takes it off."""
    if temperature != 1:
        setattr(network, NAME, float(temperature))
    elif hasattr(network, NAME):
        delattr(network, NAME)


def calibrated(network: nn.Module) -> list[nn.Module]:
    """The modules of `network`, itself included, that have a temperature of their own."""
    return [module for module in network.modules() if NAME in vars(module)]


def forget_temperature_(network: nn.Module) -> None:
    """Takes the temperatures of `network` and of all modules in it off, in place."""
    for module in calibrated(network):
        set_temperature_(module, 1.0)


def warn_of_temperature(network: nn.Module, why: str, stacklevel: int = 2) -> None:
    """Warns that a temperature is about to be taken off, because of `why`; says nothing where there is none."""
    found = calibrated(network)
    if found:
        warnings.warn(
            f"the network was calibrated (T = {temperature_of(found[0]):.4g}), and {why}: its temperature is taken "
            "off. Call bnn.calibrate_ again afterwards",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
