"""The Gaussian over the outputs of an inducing layer at given inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from bnn.functional.linalg import at_least_float32, without_autocast
from bnn.functional.output_gaussian import (
    RowGaussian,
    draw_outputs,
    noise_width,
    output_mean,
    output_variance,
    row_gaussian,
)
from bnn.nn.base import Rows
from bnn.nn.families.inducing import InducingBase
from bnn.nn.families.q.diagonal import Diagonal
from bnn.nn.families.q.point import Point


class OutputGaussian:
    """Mean, variance and draws of a layer's outputs at `input`, arranged as the plain layer arranges them.

    Every position by itself: the distribution of each is exact, what positions or inputs have in common is left out.
    """

    def __init__(self, layer: InducingBase, input: Tensor) -> None:
        found = layer.rows(input.shape)
        assert found is not None
        self.layer, self.arrangement = layer, found
        self.x = (input if found.batched else input[None])[None]  # (1, N, ...)
        with without_autocast(input):
            self.rows = _rows(layer, at_least_float32(self.x))

    def mean(self) -> Tensor:
        """E[y] in the shape of the layer's output."""
        return self._arranged(output_mean(self.rows)[None])[0]

    def variance(self) -> Tensor:
        """Var[y] of every entry, in the shape of the layer's output."""
        return self._arranged(output_variance(self.rows)[None])[0]

    def noise_width(self) -> int:
        """How many standard normals `draws` takes."""
        return noise_width(self.rows)

    def draws(self, noise: Tensor) -> Tensor:
        """K draws (K, ...) of the output from normals (K, noise_width), which all inputs and positions share."""
        with without_autocast(noise):
            return self._arranged(draw_outputs(self.rows, noise[:, None].to(self.rows.center)))

    def _arranged(self, y: Tensor) -> Tensor:
        rows: Rows = self.arrangement
        output = self.layer.from_rows(y, rows, self.x)
        return output if rows.batched else output[:, 0]


def _rows(layer: InducingBase, x: Tensor) -> RowGaussian:
    own, sigma = layer.posterior(), layer.prior_sd()
    T = layer.project(x, layer.from_matrix(own.col.A))  # (1, N p, M_in)
    norms = None
    if own.lamda is not None:
        a, b = (own.scale(sigma) * norm[0] for norm in layer.norms(x, T))
        norms = (a, b)
    return row_gaussian(T[0], layer.q.mean(layer), own.spread, own.row, sigma, layer.prior(own), norms)


def why_none(layer: torch.nn.Module) -> str:
    """Why the outputs of a layer have no Gaussian in closed form here; "" where they have."""
    if not isinstance(layer, InducingBase):
        return f"its family is {getattr(layer, 'family', type(layer).__name__)!r}, not 'inducing'"
    if not isinstance(layer.q, Diagonal | Point):
        return f"its q(U) is {layer.q.name!r}, not 'diagonal'"
    if layer.split:
        return "its kernel is split, so that an output depends on several positions of t"
    if getattr(layer, "groups", 1) > 1:
        return "its convolution has groups"
    return ""
