"""How an inducing layer draws its outputs: which of the five ways keep the guarantee, which is cheapest, running it.

What the user chooses is a guarantee, `sampling`, never an algorithm:

    "auto"    every input's output is distributed exactly as under q(W)
    "weight"  one function per draw for the whole batch, as in the paper
    "local"   every position's output is; the residual's correlation between positions is lost
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from bnn.functional import draws
from bnn.functional.cost import Size, Way, cheapest
from bnn.functional.inducing import Factors
from bnn.functional.linalg import (
    at_least_float32,
    residual_cholesky,
    safe_sqrt,
    semidefinite_cholesky,
    without_autocast,
)
from bnn.nn.base import BayesianLayer, Rows
from bnn.nn.draw import Draw

PER_ROW = [Way.PER_ROW, Way.PER_ROW_WITHOUT_COLUMNS]
JOINT = [Way.JOINT, Way.JOINT_WITHOUT_COLUMNS]


class DrawnInStages(BayesianLayer):
    """What a layer needs for its outputs to be drawn in two stages: u gives C, C gives W or the outputs."""

    options: Any  # with `sampling`
    z_row: Tensor  # (M_out, d_out)
    z_col: Tensor  # (M_in, d_in)

    @abstractmethod
    def factors(self, draw: Draw | None = None) -> tuple[Factors, Factors]:
        """The factors of rows and columns."""

    @abstractmethod
    def prior_sd(self) -> float:
        """sigma."""

    @abstractmethod
    def lamda(self) -> Tensor | None:
        """lamda, or None where W is a point given u."""

    @abstractmethod
    def noisy(self, draw: Draw) -> bool:
        """Whether W varies given u in this draw."""

    @abstractmethod
    def sample_u(self, draw: Draw) -> Tensor:
        """The whitened u of every draw, (K, M_out, M_in)."""

    @abstractmethod
    def sample_columns(self, draw: Draw) -> Tensor:
        """The first stage C of every draw, (K, d_out, M_in)."""


def choose(layer: DrawnInStages, input: Tensor, draw: Draw) -> Way:
    """The cheapest way that keeps the guarantee; decided once for all draws and batches of a `predict`."""
    rows = layer.rows(input[0])
    if rows is None or not rows.whole:
        return Way.DENSE
    inputs = input.shape[1] if rows.batched else 1
    ways = allowed(layer, rows, inputs, draw)
    known = draw.plan.ways.get(layer)
    if known in ways:
        return known
    (m_out, d_out), (m_in, d_in) = layer.z_row.shape, layer.z_col.shape
    count = draw.plan.draws or draw.count
    shared, noisy = len(input) == 1 and count > 1, layer.noisy(draw)
    size = Size(count, inputs, rows.number, d_out, d_in, m_out, m_in, rows.gram, rows.taps, shared, noisy)
    draw.plan.ways[layer] = cheapest(ways, size)
    return draw.plan.ways[layer]


def allowed(layer: DrawnInStages, rows: Rows, inputs: int, draw: Draw) -> list[Way]:
    """The ways that keep what `sampling` guarantees, for a call with so many inputs of so many rows."""
    if not layer.noisy(draw):
        return [Way.DENSE, *PER_ROW]  # without a residual all ways are the same function of u
    if layer.options.sampling == "weight" or layer.repeats or draw.frozen(layer):
        return [Way.DENSE]
    if layer.options.sampling == "local":
        return [Way.DENSE, *JOINT, *PER_ROW]
    apart = rows.batched and draw.inputs in (None, inputs) and not draw.couples_inputs()
    if not apart:  # dimension 0 does not count the network's inputs, or BatchNorm mixes them
        return [Way.DENSE]
    return [Way.DENSE, *JOINT, *(PER_ROW if rows.number == 1 else [])]


def row_output(layer: DrawnInStages, input: Tensor, draw: Draw, way: Way) -> Tensor:
    """The outputs (K, ...) without building W, for inputs (K, ...), or (1, ...) where all draws see the same."""
    rows = layer.rows(input[0])
    assert rows is not None
    noisy = layer.noisy(draw)
    if noisy:
        draw.drew_rows(layer)
    x = input if rows.batched else input[:, None]
    batch = x.shape[:2]  # (K or 1, N)
    x = x.flatten(0, 1)
    if draw.token is not None:
        x = layer.fast_layout(x)
    dtype = _output_dtype(x)
    with without_autocast(x) if noisy else contextlib.nullcontext():  # |x|^2 - |t|^2 would cancel in half precision
        x = at_least_float32(x) if noisy else x
        y = _draw_rows(layer, x, batch, draw, way)  # (K, N, p, d_out)
    output = layer.from_rows(y.flatten(0, 1).to(dtype), rows, x).unflatten(0, y.shape[:2])
    return output if rows.batched else output[:, 0]


def _draw_rows(layer: DrawnInStages, x: Tensor, batch: torch.Size, draw: Draw, way: Way) -> Tensor:
    """Ways 2 to 5 of `bnn.functional.draws` on inputs x (K N, ...), or (N, ...)."""
    (row, col), sigma = layer.factors(draw), layer.prior_sd()
    T = layer.project(x, col.A.to(x.dtype)).unflatten(0, batch)  # (K or 1, N, p, M_in)
    if not layer.noisy(draw):
        if way is Way.PER_ROW:
            return draws.mean_rows(T, layer.sample_columns(draw).to(T.dtype))
        row = row._replace(A=row.A.to(T.dtype))
        return draws.mean_rows_without_columns(T, layer.sample_u(draw).to(T.dtype), row, sigma)

    scale = layer.lamda() * sigma  # type: ignore[operator]
    inputs, p = T.shape[1:3]
    wide, small = (inputs, p, layer.d_out), (inputs, p, len(row.A))

    def noise(name: str, shape: tuple[int, ...]) -> Tensor:
        return draw.normals(layer, name, *shape, like=T, by_input=True)

    if way in PER_ROW:
        squares = layer.squares(x).unflatten(0, batch)  # |x|^2, (K or 1, N, p)
        b = safe_sqrt(squares - T.square().sum(-1))
        if way is Way.PER_ROW:
            return draws.per_row(T, layer.sample_columns(draw), b, scale, noise("n", wide))
        both = draws.RowNoise(noise("n", wide), noise("m", small))
        return draws.per_row_without_columns(T, layer.sample_u(draw), row, safe_sqrt(squares), b, scale, sigma, both)

    L = residual_cholesky(layer.gram(x), T.flatten(0, 1)).unflatten(0, batch)  # (K or 1, N, p, p)
    if way is Way.JOINT:
        return draws.joint(T, layer.sample_columns(draw), L, scale, noise("N1", wide))
    three = draws.JointNoise(noise("N1", wide), noise("N2", wide), noise("N3", small))
    L_T = semidefinite_cholesky(T @ T.mT)
    return draws.joint_without_columns(T, layer.sample_u(draw), row, L, L_T, scale, sigma, three)


def _output_dtype(x: Tensor) -> torch.dtype:
    """The type in which the plain layer would return its output."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
