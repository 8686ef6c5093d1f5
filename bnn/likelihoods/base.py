"""What all likelihoods share: the interface and the checks of what they are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Likelihood(nn.Module):
    """The interface of a likelihood object."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood of every datum (N,), in nats."""
        raise NotImplementedError

    def predictive(self, outputs: Tensor) -> Any:
        """The prediction from the outputs (K, N, ...) of K draws."""
        raise NotImplementedError


def per_datum(nll: Tensor) -> Tensor:
    """(N, ...) summed over all but dimension 0; (N,) and scalars as they are."""
    return nll.flatten(1).sum(1) if nll.ndim > 1 else nll


def check_tensors(output: Any, target: Any) -> None:
    """Raises TypeError unless both are tensors."""
    for name, value in ("output", output), ("target", target):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} is a {type(value).__name__}, expected a tensor; to pick the right part of it pass a function "
                "(output, target) -> negative log-likelihood instead"
            )


def check_draws(outputs: Tensor) -> None:
    """Raises unless `outputs` can be (K, N, ...)."""
    if outputs.ndim < 2:
        raise ValueError(f"outputs have shape {tuple(outputs.shape)}, expected (K, N, ...): K draws first")


def check_shape(target: Tensor, expected: torch.Size) -> None:
    """Raises unless `target` has exactly the expected shape."""
    if target.shape == expected:
        return
    shape = tuple(expected)
    fits = target.numel() == expected.numel()
    hint = f"; if the order of its values is right, use target.reshape({shape})" if fits else ""
    raise ValueError(f"target has shape {tuple(target.shape)}, expected {shape} (nothing is broadcast){hint}")
