"""Checkpoints of the code that came with the paper in 2020."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from bnn.files import state_mismatch
from bnn.functional.linalg import inverse_softplus, positive
from bnn.nn.base import LEGACY_BUFFERS, BayesianLayer
from bnn.nn.inducing import InducingBase
from bnn.record import listed

JITTER = 1e-4  # what that code added to Psi, in units of its mean diagonal


def load_legacy_(network: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Loads a checkpoint of the 2020 code into a converted network, in place, with the same posterior mean and KL.

    That code worked with Psi + 1e-4 mean(diag Psi) I, which moves E[W] by several per cent where M >= d; ours leaves
    Psi alone. Each side's D takes up the difference: d <- sqrt(d^2 + 1e-4 mean(diag(Z Z^T + D^2))). The buffers in
    which that code kept the prior are ignored: the prior follows from the options given to `bayesianize_`.

    Args:
        network: converted with the options that the checkpoint was trained with.
        state_dict: the checkpoint, as `torch.load(path, weights_only=True)` reads it; it is left alone.

    Raises:
        ValueError: the network is not Bayesian, or names or shapes do not agree; the network is left alone then.
    """
    layers = dict(network.named_modules(remove_duplicate=False))
    bayesian = {name for name, layer in layers.items() if isinstance(layer, BayesianLayer)}
    if not bayesian:
        raise ValueError("the network is not Bayesian: convert it with bnn.bayesianize_ as it was trained, then load")
    own = {key: value for key, value in state_dict.items() if not _is_prior(key, bayesian)}
    mismatch = state_mismatch(network.state_dict(), own)
    if mismatch:
        raise ValueError(f"the checkpoint does not fit this network: {listed(mismatch, shown=10)}")
    for name, layer in layers.items():
        for side in ("row", "col") if isinstance(layer, InducingBase) else ():
            z, d = (f"{name}.{part}_{side}".removeprefix(".") for part in ("z", "_d"))
            own[d] = _with_jitter(own[z], own[d])
    network.load_state_dict(own)


def _with_jitter(z: Tensor, raw: Tensor) -> Tensor:
    """The raw values of sqrt(d^2 + 1e-4 mean(diag(Z Z^T + D^2))) for Z (M, d_side) and the raw values of d (M,)."""
    variance = positive(raw.double()).square()  # (M,)
    mean_diagonal = (z.double().square().sum(1) + variance).mean()
    return inverse_softplus((variance + JITTER * mean_diagonal).sqrt()).to(raw.dtype)


def _is_prior(key: str, bayesian: set[str]) -> bool:
    layer, _, name = key.rpartition(".")
    return name in LEGACY_BUFFERS and layer in bayesian
