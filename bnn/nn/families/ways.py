"""How an inducing layer draws: u gives C, C gives W or the outputs; which of five ways is cheapest, running it.

What the user chooses is a guarantee, `sampling`, never an algorithm:

    "auto"    every input's output is distributed exactly as under q(W)
    "weight"  one function per draw for the whole batch, as in the paper
    "local"   every position's output is; the residual's correlation between positions is lost
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bnn._engine.draw import Draw
from bnn.functional import draws
from bnn.functional.cost import Size, Way, cheapest
from bnn.functional.linalg import (
    at_least_float32,
    difference_cholesky,
    fits,
    largest,
    over,
    residual_cholesky,
    safe_sqrt,
    semidefinite_cholesky,
    squared_norm,
    without_autocast,
)
from bnn.nn.base import Rows, Weights
from bnn.nn.families.posterior import Posterior
from bnn.nn.limited_rank import LimitedRank

COLUMN_BYTES = 2**23  # that C of all draws of a call may take, per layer, to be drawn at once
UNIT_BYTES = 2**22  # of noise that is made at a time: of a unit of inputs, for eight draws
UNIT_DRAWS = 8

PER_ROW = (Way.PER_ROW, Way.PER_ROW_WITHOUT_COLUMNS)
JOINT = (Way.JOINT, Way.JOINT_WITHOUT_COLUMNS)
WITH_COLUMNS = (Way.JOINT, Way.PER_ROW)
WITHOUT_RESIDUAL = (Way.DENSE, *PER_ROW)
SETTLED = (Way.DENSE, Way.PER_ROW)  # the plain layer with W, or W = C A_c as two plain layers


class DrawnInStages(LimitedRank):
    """A layer that is drawn in two stages; a family says what its posterior is and what u."""

    options: Any  # with `sampling`, too
    z_row: Tensor  # (M_out, rows of W)
    z_col: Tensor  # (M_in, columns of W)

    @abstractmethod
    def posterior(self, draw: Draw | None = None) -> Posterior:
        """What follows from the parameters."""

    @abstractmethod
    def noisy(self, draw: Draw) -> bool:
        """Whether W varies given u in this draw."""

    @abstractmethod
    def is_settled(self) -> bool:
        """Whether W is the same in all draws and without a gradient now, so that what follows from it may be kept."""

    @abstractmethod
    def keeps_weights(self) -> bool:
        """Whether W is so small that it is kept, once it is settled and built."""

    @abstractmethod
    def u_noise(self) -> tuple[int, ...]:
        """The shape of the noise behind one u; () for a u without noise of its own."""

    @abstractmethod
    def mean_u(self, own: Posterior) -> Tensor:
        """The mean of the whitened u, (M_out, M_in)."""

    @abstractmethod
    def u_from(self, noise: Tensor | None, draw: Draw, own: Posterior) -> Tensor:
        """The whitened u of every draw, (K, M_out, M_in), from its noise (K, ...)."""

    # ---- the stages --------------------------------------------------------------------------------------------------

    def sample_u(self, draw: Draw) -> Tensor:
        """The whitened u of every draw, (K, M_out, M_in); its mean in a draw at the mean."""
        return draw.once(self, "u", self._sample_u, whole=True)

    def _sample_u(self, draw: Draw) -> Tensor:
        own = self.posterior(draw)
        shape = () if draw.call.at_mean else self.u_noise()
        noise = draw.normals(self, "u", *shape, like=own.row.A) if shape else None
        return self.u_from(noise, draw, own)

    def sample_columns(self, draw: Draw) -> Tensor:
        """The first stage C of every draw, (K, rows of W, M_in)."""
        small = draw.call.draws * self.z_row.shape[1] * self.z_col.shape[0] * 4 <= COLUMN_BYTES
        return draw.once(self, "columns", self._sample_columns, whole=True) if small else self._sample_columns(draw)

    def _sample_columns(self, draw: Draw) -> Tensor:
        own, u, sigma = self.posterior(draw), self.sample_u(draw), self.prior_sd()
        with without_autocast(self.z_row):
            if not self.noisy(draw):
                return draws.draw_columns(u, own.row, 0.0, sigma, None)
            assert own.lamda is not None
            E2 = draw.normals(self, "columns", own.row.A.shape[1], own.col.A.shape[0], like=own.row.A)
            if torch.is_grad_enabled():
                return draws.draw_columns(u, own.row, own.lamda, sigma, E2)
            return draws.draw_columns(u, own.row, own.scale(1.0), sigma, E2, own.taken())

    def sample_weights(self, draw: Draw) -> Weights:
        """The second stage: W of every draw."""
        own, sigma = self.posterior(draw), self.prior_sd()
        col = own.col._replace(A=self.fast_order(own.col.A))  # so that the weights need not be rearranged
        with without_autocast(self.z_row):
            if not self.noisy(draw):
                W = draws.draw_dense(self.sample_columns(draw), col, 0.0, sigma, None)
                return self._from_fast(W if W.dtype == self.z_row.dtype else W.to(self.z_row.dtype))
            assert own.lamda is not None
            E1 = draw.normals(self, "weights", own.row.A.shape[1], col.A.shape[1], like=col.A)
            if torch.is_grad_enabled():
                E2 = draw.normals(self, "columns", own.row.A.shape[1], col.A.shape[0], like=col.A)
                W = draws.draw_weights(self.sample_u(draw), own.row, col, own.lamda, sigma, E2, E1)
            else:
                W = draws.draw_dense(self.sample_columns(draw), col, own.lamda, sigma, E1)
            return self._from_fast(W if W.dtype == self.z_row.dtype else W.to(self.z_row.dtype))

    def _from_fast(self, W: Tensor) -> Weights:
        return self.from_fast_split(W) if self.split else self.from_fast_order(W)

    # ---- outputs -----------------------------------------------------------------------------------------------------

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        """The outputs (K, ...), by the cheapest way that keeps the guarantee."""
        rows, settled = self.rows_in(draw, input), self.is_settled()
        way = choose(self, input, draw, rows, settled)
        if settled and rows is not None:
            return self._settled_output(input, draw, way, rows)
        if way is Way.DENSE:
            return self.dense_output(input, draw)
        assert rows is not None
        return self.row_output(input, draw, way, rows)

    # ---- of a W that all draws share ---------------------------------------------------------------------------------

    def _settled_output(self, input: Tensor, draw: Draw, way: Way, rows: Rows) -> Tensor:
        """The outputs (K, ...) of a W that all draws share: one run of one or two plain layers on all their inputs."""
        own = self.posterior(draw)
        x = input.flatten(0, 1) if rows.batched else input
        if draw.folded and x.ndim > 2:
            x = self.fast_layout(x)
        y = self.run(x, *self._built(own)) if way is Way.DENSE else self.run_pair(x, *self._pair(own))
        outputs = y.unflatten(0, input.shape[:2]) if rows.batched else y
        return outputs if len(outputs) == draw.count else outputs.repeat(draw.count, *[1] * (outputs.ndim - 1))

    def _built(self, own: Posterior) -> Weights:
        """W as the weights of the plain layer."""
        if own.built is not None:
            return own.built
        with torch.inference_mode(False), torch.no_grad():  # it may be kept
            built = self.mean_weights().copied()
        if self.keeps_weights():
            own.built = built
        return built

    def _pair(self, own: Posterior) -> tuple[Weights, Weights]:
        """W = C A_c as the weights of two plain layers, x -> t = A_c x and t -> C t, the bias in the second."""
        if own.pair is None:
            with torch.inference_mode(False), torch.no_grad(), without_autocast(self.z_row):  # they are kept
                C = draws.draw_columns(self.mean_u(own), own.row, 0.0, self.prior_sd(), None)
                A, bias = self._as_projection(own.col.A.to(self.z_row.dtype))
                C = C.to(A.dtype)
                if bias is not None:  # every tap of a split kernel has its share
                    bias = C.unflatten(0, (self.d_out, -1)).sum(1) @ bias
                own.pair = Weights(A, None).copied(), Weights(self.back_weight(C), bias).copied()
        return own.pair

    def _as_projection(self, A: Tensor) -> Weights:
        """A_c as weights of the layer that makes t."""
        return self.split_projection(A) if self.split else self.from_matrix(A)

    # ---- without W ---------------------------------------------------------------------------------------------------

    def row_output(self, input: Tensor, draw: Draw, way: Way, rows: Rows) -> Tensor:
        """The outputs (K, ...) without building W, for inputs (K, ...), or (1, ...) where all draws see the same."""
        x = input if rows.batched else input[:, None]  # (K or 1, N, ...)
        if draw.folded and x.ndim > 3:
            x = self.fast_layout(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        dtype = _output_dtype(x)
        if self.noisy(draw):
            draw.call.by_rows.add(id(self))
            with without_autocast(x):  # |x|^2 - |t|^2 would cancel in half precision
                y = self._noisy_rows(at_least_float32(x), draw, way)
        else:
            y = self._mean_rows(x, draw, way)
        output = self.from_rows(y if y.dtype == dtype else y.to(dtype), rows, x)
        return output if rows.batched else output[:, 0]

    def _mean_rows(self, x: Tensor, draw: Draw, way: Way) -> Tensor:
        """Outputs (K, N p, d_out) where W is a function of u: with C, or through the inducing rows."""
        own = self.posterior(draw)
        T = self._project(x, own)
        if way is Way.PER_ROW:
            return self._through(T, self.sample_columns(draw).to(T.dtype))
        u, sigma = self.sample_u(draw).to(T.dtype), self.prior_sd()
        S = draws.mean_rows(T, u if sigma == 1 else sigma * u)  # (K, ..., M_out)
        return self.from_neighbours(S, own.back().to(T.dtype)[None]) if self.split else S @ own.row.A.to(T.dtype)

    def _through(self, T: Tensor, C: Tensor) -> Tensor:
        """T C^T, (K, N p, d_out); of a split kernel the sum over the kw neighbours that a row sees."""
        return self.from_neighbours(T, C) if self.split else draws.mean_rows(T, C)

    def _project(self, x: Tensor, own: Posterior) -> Tensor:
        """T = X A_c^T, (K or 1, N p, M_in); of a split kernel at all positions of t, (K or 1, N, *space, M_in)."""
        if own.projection is None:
            own.projection = self._projection(own.col.A)
        weight, bias = own.projection
        if weight.dtype != x.dtype:
            weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
        return self.project_split(x, Weights(weight, bias)) if self.split else self.project(x, Weights(weight, bias))

    def _projection(self, A: Tensor) -> Weights:
        if torch.is_grad_enabled():
            return self._as_projection(A)
        with torch.inference_mode(False), torch.no_grad():  # it may be kept
            weight, bias = self._as_projection(A)
            return Weights(weight if weight.ndim < 4 else self.fast_layout(weight), bias)

    def _noisy_rows(self, x: Tensor, draw: Draw, way: Way) -> Tensor:
        """Ways 2 to 5 of `bnn.functional.draws` on inputs x (K or 1, N, ...): outputs (K, N p, d_out)."""
        own, sigma = self.posterior(draw), self.prior_sd()
        row, scale = own.row, own.scale(sigma)
        T, inputs = self._project(x, own), x.shape[1]
        with_columns = way in WITH_COLUMNS
        C_or_u = self.sample_columns(draw) if with_columns else self.sample_u(draw)
        whole = self.from_neighbours(T, C_or_u) if self.split and with_columns else None
        if way in PER_ROW:
            a, b = self.norms(x, T)
            space = b.shape[1:]  # (N p,)
        else:
            L = self._residual_root(x, T)
            space = L.shape[1:3]  # (N, p)
            whole = None if whole is None else whole.unflatten(1, space)
        if not self.split and way in JOINT:
            T = T.unflatten(1, space)  # (K or 1, N, p, M_in)
        L_T = self._root(x, T) if way is Way.JOINT_WITHOUT_COLUMNS or (self.split and not with_columns) else None

        def mean(part: slice) -> Tensor:
            """T C^T of some inputs."""
            return draws.mean_rows(T[:, part], C_or_u) if whole is None else whole[:, part]

        def without_columns(part: slice, noise: Callable[..., Tensor]) -> Tensor:
            """T C^T of some inputs with a split kernel, (K, N, p, d_out), where C is not drawn."""
            assert L_T is not None
            t, root, kw = T[:, part], L_T[:, part], row.A.shape[1] // self.d_out
            N2 = noise(
                "N2", row.A.shape[1], t.shape[2:-1].numel()
            )  # (K, N, q, kw d_out), the outputs of a tap together
            GA = own.taken().unflatten(-1, (-1, kw)).mT.flatten(-2)
            S = draws.inducing_rows_on_rows(t.flatten(2, -2), C_or_u, GA, root, scale, sigma, N2)
            y = self.from_neighbours(S.unflatten(2, t.shape[2:-1]), own.back()[None])
            y = y.unflatten(1, (S.shape[1], y.shape[1] // max(1, S.shape[1])))
            N2 = N2.unflatten(-1, (kw, -1)).flatten(2, 3)
            return draws.joint_around(y, self.taps_of(root, t.shape[2:-1]), scale, N2)

        def some(part: slice, noise: Callable[..., Tensor]) -> Tensor:
            """The outputs of some inputs, with noise of their own; where rows are drawn one by one, of some rows."""
            wide = self.d_out
            match way:
                case Way.PER_ROW:
                    return draws.per_row_around(mean(part), b[:, part], scale, noise("n", wide))
                case Way.PER_ROW_WITHOUT_COLUMNS:
                    if self.split:
                        y = without_columns(_inputs(part, space[0] // max(1, inputs)), noise).flatten(1, 2)
                        return draws.per_row_around(y, b[:, part], scale, noise("n", wide))
                    both = noise("n", wide + row.A.shape[0])
                    t, joined = T[:, part], own.joined()
                    return draws.per_row_without_columns(
                        t, C_or_u, row, a[:, part], b[:, part], scale, sigma, both, joined
                    )
                case Way.JOINT:
                    return draws.joint_around(mean(part), L[:, part], scale, noise("N1", wide))
            if self.split:
                return draws.joint_around(without_columns(part, noise), L[:, part], scale, noise("N1", wide))
            assert L_T is not None
            pair = draws.JointNoise(noise("N1", wide), noise("N2", wide))
            return draws.joint_without_columns(T[:, part], C_or_u, row, L[:, part], L_T[:, part], scale, sigma, pair)

        return self._in_units(some, T, space, inputs, draw)

    def _in_units(
        self,
        some: Callable[[slice, Callable[..., Tensor]], Tensor],
        T: Tensor,
        space: torch.Size,
        inputs: int,
        draw: Draw,
    ) -> Tensor:
        """`some` of all inputs, (K, N p, d_out); without gradients a unit at a time, so that noise stays in caches.

        What the units are follows from the layer and the inputs alone: neither the number of draws nor gradients
        change the noise of an input. `space` is (N p,) where rows are drawn one by one, else (N, p).
        """
        p = math.prod(space) // max(1, inputs)
        each = p if len(space) == 1 else 1  # entries of dimension 1 for each input
        unit = max(1, UNIT_BYTES // max(1, UNIT_DRAWS * p * self.d_out * T.element_size()))

        def noise_of(number: int, n: int) -> Callable[..., Tensor]:
            def noise(name: str, width: int, rows: int = 0) -> Tensor:
                """Normals (K, n p, width) or (K, n, p, width); with `rows` in the place of p (K, n, rows, width)."""
                shape = (n, rows) if rows else (n * each, *space[1:])
                return draw.normals(self, name, *shape, width, like=T, by_input=True, unit=number)

            return noise

        if inputs <= unit:
            return some(slice(None), noise_of(0, inputs)).flatten(1, -2)
        starts = range(0, inputs, unit)
        makers = [noise_of(number, min(unit, inputs - start)) for number, start in enumerate(starts)]
        if torch.is_grad_enabled():
            noise = lambda *asked: torch.cat([make(*asked) for make in makers], dim=1)  # noqa: E731
            return some(slice(None), noise).flatten(1, -2)
        whole = T.new_empty(draw.count, *space, self.d_out)
        for start, make in zip(starts, makers, strict=True):
            part = slice(start * each, min(start + unit, inputs) * each)
            whole[:, part] = some(part, make)
        return whole.flatten(1, -2)

    # |x|^2 must not overflow where x does not: where it would, squares are taken of x over its largest entry.

    def norms(self, x: Tensor, T: Tensor) -> tuple[Tensor, Tensor]:
        """a = |x| and b = sqrt(|x|^2 - |t|^2) of every row, the bias's 1 included: (K or 1, N p)."""
        squares = self.squares(x)
        if fits(squares):
            return safe_sqrt(squares), safe_sqrt(squares - self._projected_squares(T))
        size = largest(x, least=float(self.has_bias))  # (K or 1, N)
        squares = self.squares(x / over(size, x.ndim), one=1 / size)
        of_rows = size.repeat_interleave(squares.shape[1] // size.shape[1], dim=1)
        rest = squares - self._projected_squares(T / (over(size, T.ndim) if self.split else of_rows[..., None]))
        return of_rows * safe_sqrt(squares), of_rows * safe_sqrt(rest)

    def _projected_squares(self, T: Tensor) -> Tensor:
        """|t|^2 of every row, (K or 1, N p); of a split kernel over the kw neighbours that a row sees."""
        return self.sum_of_neighbours(squared_norm(T)) if self.split else squared_norm(T)

    def _residual_root(self, x: Tensor, T: Tensor) -> Tensor:
        """A root L of X X^T - T T^T, (K or 1, N, p, p)."""
        squares = self.squares(x).unflatten(1, (x.shape[1], -1)) if self.split and x.numel() else None
        if squares is not None and fits(squares):
            rest = self.residual_gram(x, T)
            if rest is not None:
                return difference_cholesky(rest.flatten(0, 1), squares.flatten(0, 1)).reshape(rest.shape)
        gram, size = self.gram(x), None
        if not fits(gram.diagonal(dim1=-2, dim2=-1)):
            size = largest(x, least=float(self.has_bias))
            gram = self.gram(x / over(size, x.ndim), one=1 / size)
        t = (self.side_by_side(T) if self.split else T).unflatten(1, gram.shape[1:3])
        t = t if size is None else t / over(size, t.ndim)
        L = residual_cholesky(gram.flatten(0, 1), t.flatten(0, 1)).reshape(gram.shape)
        return L if size is None else L * over(size, 4)

    def _root(self, x: Tensor, T: Tensor) -> Tensor:
        """A root L_T of T T^T, (K or 1, N, q, q), for T (K or 1, N, ..., M_in) at q positions."""
        t = T.flatten(2, -2)
        gram = t @ t.mT
        if fits(gram.diagonal(dim1=-2, dim2=-1)):
            return semidefinite_cholesky(gram)
        size = largest(x, least=float(self.has_bias))
        t = t / over(size, t.ndim)
        return semidefinite_cholesky(t @ t.mT) * over(size, 4)


# ---- choosing --------------------------------------------------------------------------------------------------------


def choose(layer: DrawnInStages, input: Tensor, draw: Draw, rows: Rows | None, settled: bool) -> Way:
    """The cheapest way that keeps the guarantee; decided once for all draws and batches of a call.

    Args:
        rows, settled: of the layer, for this input.
    """
    call = draw.call
    known = call.ways.get(layer)
    if known is not None and call.restarts and not layer.repeats:
        return known
    if rows is None or not rows.whole:
        return Way.DENSE
    inputs = input.shape[1] if rows.batched else 1
    ways = SETTLED if settled else allowed(layer, rows, inputs, draw)
    if known not in ways:
        of_layer = layer.d_out, layer.d_in, layer.z_row.shape[0], layer.z_col.shape[0]
        of_split = (rows.last_taps, rows.projected) if layer.split else (1, 0)
        if settled:  # one run for all draws that see the same
            k, built = 1 if input.shape[0] == 1 else call.draws, layer.keeps_weights()
            size = Size(k, inputs, rows.number, *of_layer, 0, rows.taps, False, False, *of_split, True, built)
        else:
            how = rows.gram, rows.taps, len(input) < draw.count, layer.noisy(draw)
            size = Size(call.draws, inputs, rows.number, *of_layer, *how, *of_split)
        known = cheapest(ways, size) if torch.compiler.is_compiling() else _cheapest(ways, size)
    call.ways[layer] = known
    return known


_cheapest = functools.lru_cache(maxsize=4096)(cheapest)  # a network asks the same again and again


def allowed(layer: DrawnInStages, rows: Rows, inputs: int, draw: Draw) -> tuple[Way, ...]:
    """The ways that keep what `sampling` guarantees, for a call with so many inputs of so many rows."""
    if not layer.noisy(draw):
        return WITHOUT_RESIDUAL  # all ways are the same function of u
    if layer.options.sampling == "weight" or layer.repeats or draw.frozen(layer):
        return (Way.DENSE,)
    if layer.options.sampling == "local":
        return (Way.DENSE, *JOINT, *PER_ROW)
    apart = rows.batched and draw.inputs in (None, inputs) and not draw.call.couples_inputs()
    if not apart:  # dimension 0 does not count the network's inputs, or BatchNorm mixes them
        return (Way.DENSE,)
    return (Way.DENSE, *JOINT, *PER_ROW) if rows.number == 1 else (Way.DENSE, *JOINT)


def _inputs(rows: slice, p: int) -> slice:
    """The inputs that these rows belong to, p each."""
    return rows if rows.start is None else slice(rows.start // max(1, p), rows.stop // max(1, p))


def _output_dtype(x: Tensor) -> torch.dtype:
    """The type in which the plain layer would return its output."""
    kind = x.device.type
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if autocast else x.dtype
