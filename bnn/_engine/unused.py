"""Bayesian layers that take part in no forward: their posterior changes no output, and nobody would notice."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator

import torch
from torch import nn

from bnn._common.text import listed
from bnn._engine.call import Call
from bnn._engine.forward import ever_ran
from bnn._engine.inputs import modules_of
from bnn._engine.members import Drawing, Mixture

_reported: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # every layer is named at most once


class UnusedLayerWarning(UserWarning):
    """A Bayesian layer has not run in any forward."""


def warn_unused(network: nn.Module, call: Call) -> None:
    """Names, once, the Bayesian layers of `network` that have never run, now that a call of it has ended.

    A layer that ran before counts as used: a network may pick its branches at random. So do members of an ensemble that
    this call did not show, and copies that `DataParallel` runs on several devices.
    """
    if torch.compiler.is_compiling():
        return
    idle = [m for m in _seen(network, call) if isinstance(m, Drawing) and m.runs and m not in ever_ran]
    idle = [module for module in idle if module not in _reported]
    if not idle:
        return
    names = {module: name or "the network" for name, module in network.named_modules()}
    first = names[idle[0]]
    _reported.update(idle)
    warn_outside(
        f"Bayesian layers took part in no forward so far: {listed(f'{names[m]} ({type(m).__name__})' for m in idle)}. "
        f"Their posterior changes no output, but their KL counts. A module that computes with {first}.weight reads the "
        f"posterior mean: let it call the layer, {first}(x). Leave a layer that is not used out of the conversion, "
        f"{{{first!r}: None}} in an inference dict. If the network picks its branches at random, this may be chance",
        UnusedLayerWarning,
    )


def _seen(network: nn.Module, call: Call) -> Iterator[nn.Module]:
    """The modules that could have run in `call`, each once."""
    hidden: set[int] = set()
    for module in modules_of(network):
        if isinstance(module, nn.DataParallel) and len(module.device_ids) > 1:
            hidden.update(map(id, module.modules()))
        if isinstance(module, Mixture):
            for member in module.members:
                hidden.update(map(id, member.modules() if id(member) not in call.entered else ()))
        if id(module) not in hidden:
            yield module


def warn_outside(message: str, category: type[Warning]) -> None:
    """Warns at the line outside this library, and torch, that led here."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("bnn.", "torch.")):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth)
