"""How an inducing layer draws its outputs: which of the five ways keep the guarantee, which is cheapest, running it.

What the user chooses is a guarantee, `sampling`, never an algorithm:

    "auto"    every input's output is distributed exactly as under q(W)
    "weight"  one function per draw for the whole batch, as in the paper
    "local"   every position's output is; the residual's correlation between positions is lost
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable
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

BLOCK_BYTES = 2**22  # of outputs drawn at a time
BLOCK_INPUTS = 16  # or a multiple of them: torch makes normals by sixteens, so that blocks do not change any

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
    known = draw.plan.ways.get(layer)
    if known is not None and draw.plan.restarts and not layer.repeats:
        return known
    rows = layer.rows_in(draw, input)
    if rows is None or not rows.whole:
        return Way.DENSE
    inputs = input.shape[1] if rows.batched else 1
    ways = allowed(layer, rows, inputs, draw)
    (m_out, d_out), (m_in, d_in) = layer.z_row.shape, layer.z_col.shape
    count = draw.plan.draws or draw.count
    shared, noisy = draw.shared, layer.noisy(draw)
    size = Size(count, inputs, rows.number, d_out, d_in, m_out, m_in, rows.gram, rows.taps, shared, noisy)
    draw.plan.ways[layer] = cheapest(ways, size) if known not in ways else known
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
    rows = layer.rows_in(draw, input)
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
        y = _noisy_rows(layer, x, batch, draw, way) if noisy else _mean_rows(layer, x, batch, draw, way)
    output = layer.from_rows(y.flatten(0, 1).to(dtype), rows, x)
    output = output.reshape(*y.shape[:2], *output.shape[1:])
    return output if rows.batched else output[:, 0]


def _mean_rows(layer: DrawnInStages, x: Tensor, batch: torch.Size, draw: Draw, way: Way) -> Tensor:
    """Outputs (K, N, p, d_out) where W is a function of u: with C, or through the inducing rows."""
    row, col = layer.factors(draw)
    T = _project(layer, x, col.A.to(x.dtype), batch)
    if way is Way.PER_ROW:
        return draws.mean_rows(T, layer.sample_columns(draw).to(T.dtype))
    row = row._replace(A=row.A.to(T.dtype))
    return draws.mean_rows_without_columns(T, layer.sample_u(draw).to(T.dtype), row, layer.prior_sd())


def _noisy_rows(layer: DrawnInStages, x: Tensor, batch: torch.Size, draw: Draw, way: Way) -> Tensor:
    """Ways 2 to 5 of `bnn.functional.draws` on inputs x (K N, ...), or (N, ...): outputs (K, N, p, d_out)."""
    (row, col), sigma = layer.factors(draw), layer.prior_sd()
    scale = layer.lamda() * sigma  # type: ignore[operator]
    T = _project(layer, x, col.A, batch)  # (K or 1, N, p, M_in)
    with_columns = way in (Way.PER_ROW, Way.JOINT)
    C_or_u = layer.sample_columns(draw) if with_columns else layer.sample_u(draw)
    if way in PER_ROW:
        squares = layer.squares(x).reshape(T.shape[:3])  # |x|^2
        a, b = safe_sqrt(squares), safe_sqrt(squares - T.square().sum(-1))
    else:
        L = residual_cholesky(layer.gram(x), T.flatten(0, 1)).reshape(*T.shape[:3], T.shape[2])
        L_T = None if with_columns else semidefinite_cholesky(T @ T.mT)

    def some(part: slice, number: int) -> Tensor:
        """The outputs of some inputs, with noise of their own."""
        t = T[:, part]

        def noise(name: str, width: int) -> Tensor:
            return draw.normals(layer, name, *t.shape[1:3], width, like=T, by_input=True, block=number)

        wide = layer.d_out
        match way:
            case Way.PER_ROW:
                return draws.per_row(t, C_or_u, b[:, part], scale, noise("n", wide))
            case Way.PER_ROW_WITHOUT_COLUMNS:
                both = draws.RowNoise(noise("n", wide), noise("m", len(row.A)))
                return draws.per_row_without_columns(t, C_or_u, row, a[:, part], b[:, part], scale, sigma, both)
            case Way.JOINT:
                return draws.joint(t, C_or_u, L[:, part], scale, noise("N1", wide))
        pair = draws.JointNoise(noise("N1", wide), noise("N2", wide))
        assert L_T is not None
        return draws.joint_without_columns(t, C_or_u, row, L[:, part], L_T[:, part], scale, sigma, pair)

    return _in_blocks(some, T.shape[1], draw.count * T.shape[2] * layer.d_out * T.element_size())


def _in_blocks(some: Callable[[slice, int], Tensor], inputs: int, size: int) -> Tensor:
    """`some` of all inputs, of `size` bytes each; without gradients a few at a time, so that noise stays in caches."""
    step = max(1, BLOCK_BYTES // max(1, size) // BLOCK_INPUTS) * BLOCK_INPUTS
    if torch.is_grad_enabled() or inputs < 2 * step:
        return some(slice(None), 0)
    whole: Tensor | None = None
    count = inputs // step  # the last block takes what is left over
    for number in range(count):
        part = slice(number * step, inputs if number == count - 1 else (number + 1) * step)
        block = some(part, number)
        if whole is None:
            whole = block.new_empty(len(block), inputs, *block.shape[2:])
        whole[:, part] = block
    assert whole is not None
    return whole


def _project(layer: DrawnInStages, x: Tensor, A: Tensor, batch: torch.Size) -> Tensor:
    """T = X A^T, (K or 1, N, p, M_in)."""
    T = layer.project(x, A)
    return T.reshape(*batch, *T.shape[1:])


def _output_dtype(x: Tensor) -> torch.dtype:
    """The type in which the plain layer would return its output."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
