"""A new posterior for an inducing layer: a Gaussian over u around the mean it has, diagonal in a basis of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bnn._conversion.curvature import Curvature
from bnn.functional.gaussian import whiten
from bnn.functional.inducing import Factors, conditional_mean, factor
from bnn.functional.laplace import Basis, rotated_side
from bnn.functional.linalg import inverse_softplus, positive
from bnn.nn.families.inducing import InducingBase
from bnn.nn.families.q.diagonal import Diagonal

WHOLE_D = 1e-6  # of a layer of full size: its prior is then N(0, sigma^2 I) up to the square of it


class Before(NamedTuple):
    """A layer's posterior as it was, in float64."""

    row: Factors
    col: Factors
    mean: Tensor  # of the whitened u, (M_out, M_in)
    sigma: float
    lamda: float | None  # None: W is a point given u


def before(layer: InducingBase) -> Before:
    """What the posterior of a layer is now."""
    with torch.no_grad():
        row, col = (
            factor(z.detach().double(), positive(d.detach().double()))
            for z, d in ((layer.z_row, layer._d_row), (layer.z_col, layer._d_col))
        )
        mean = layer.q.mean(layer).detach().double()
        mean = whiten(mean, None if layer.options.whitened_u else (row.L, col.L))
        lamda = layer.lamda()
        return Before(row, col, mean, layer.prior_sd(), None if lamda is None else float(lamda))


def set_whole_(layer: InducingBase, W: Tensor) -> None:
    """Gives a layer of full size, in place, the plainest factors, Z = I, and the mean W (d_out, d_in)."""
    with torch.no_grad():
        for z, d in ((layer.z_row, layer._d_row), (layer.z_col, layer._d_col)):
            z.copy_(torch.eye(len(z), dtype=z.dtype, device=z.device))
            d.fill_(float(inverse_softplus(torch.tensor(WHOLE_D, dtype=torch.double))))
        layer.inducing_mean.copy_(W.double() * (1 + WHOLE_D**2) / layer.prior_sd())  # type: ignore[operator]
    layer.reset_cache()


def to_plain_(layer: InducingBase) -> None:
    """Turns a layer without noise, in place, into the plain layer that it is: its sizes go, its weights stay."""
    with torch.no_grad():
        weights, trains = layer.mean_weights(), layer.z_row.requires_grad
    layer._parameters.clear()
    layer._buffers.clear()
    layer.__class__ = layer.plain  # type: ignore[assignment]
    for name, value in weights._asdict().items():
        kept = None if value is None else nn.Parameter(value.contiguous(), requires_grad=trains)
        layer.register_parameter(name, kept)


def set_gaussian_(
    layer: InducingBase, was: Before, basis: Basis, sd: Tensor, tau: float, lamda: float | None = None
) -> None:
    """Gives a layer, in place, independent entries v = Q_out^T u Q_in around its mean; the prior is N(0, I / tau).

    Z takes up the rotations, and sigma the precision: sigma / sqrt(tau), u sqrt(tau), sd sqrt(tau), lamda sqrt(tau), so
    that the prior of u is N(0, I) as everywhere. The layer is whitened then, q(U) is diagonal, its sds have no cap.

    Args:
        was: what `before` said.
        basis: (M_out, M_out) and (M_in, m), m <= M_in; with m < M_in the other directions are left to lamda.
        sd: of v, (M_out, m), in the units of `was`.
        lamda: in the units of `was`, without a cap from then on; None: as it was.
    """
    root, like = math.sqrt(tau), layer.z_row
    (z_row, d_row), (z_col, d_col) = rotated_side(was.row, basis.out), rotated_side(was.col, basis.into)
    mean, sigma = root * (basis.out.mT @ was.mean @ basis.into), was.sigma / root
    if like.dtype in (torch.float16, torch.bfloat16):
        mean = _fitted_again(was, (z_row, d_row), (z_col, d_col), sigma, like.dtype)
    options, cap = layer.options, None
    if lamda is None and options.max_lamda is not None:
        cap = options.max_lamda * root
    lamda = was.lamda if lamda is None else lamda
    layer.options = replace(
        options,
        inducing_rows=len(z_row),
        inducing_cols=len(z_col),
        prior_sd=sigma,
        sqrt_width_scaling=False,
        whitened_u=True,
        q_inducing="diagonal",
        max_sd_u=None,
        max_lamda=cap,
    )
    tensors = {"z_row": z_row, "z_col": z_col, "inducing_mean": mean, "_inducing_sd": inverse_softplus(root * sd)}
    tensors |= {"_d_row": inverse_softplus(d_row), "_d_col": inverse_softplus(d_col)}
    if lamda is not None:
        tensors["_lamda"] = inverse_softplus(torch.tensor(lamda * root, dtype=torch.double, device=like.device))
    _replace_(layer, tensors)


def _replace_(layer: InducingBase, tensors: dict[str, Tensor]) -> None:
    """New tensors, in place of those of the layer's q(U) and of its own that have these names."""
    like, trains = layer.z_row, layer.z_row.requires_grad
    learned = layer.options.learn_lamda and layer.has_lamda(layer.options)
    for name in {*layer.q.tensors(), *tensors}:
        layer._parameters.pop(name, None)
        layer._buffers.pop(name, None)
    for name, value in tensors.items():
        value = value.to(like.dtype)
        if name == "_lamda" and not learned:
            layer.register_buffer(name, value)
        else:
            layer.register_parameter(name, nn.Parameter(value.contiguous(), requires_grad=trains))
    layer.q = Diagonal(None)
    layer.reset_cache()


def _fitted_again(
    was: Before, row: tuple[Tensor, Tensor], col: tuple[Tensor, Tensor], sigma: float, dtype: torch.dtype
) -> Tensor:
    """The mean of u that gives the same E[W] after Z and D were rounded, which would move it otherwise."""
    sides = [factor(z.to(dtype).double(), positive(inverse_softplus(d).to(dtype).double())) for z, d in (row, col)]
    W = conditional_mean(was.mean, was.row, was.col, was.sigma)
    return torch.linalg.pinv(sides[0].A.mT) @ (W / sigma) @ torch.linalg.pinv(sides[1].A)


# ---- by Laplace's approximation --------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What the posterior of one layer follows from."""

    layer: InducingBase
    was: Before
    basis: Basis
    curvature: Tensor  # Lambda (M_out, m), in float64
    mean: Tensor  # Q_out^T u Q_in
    left_out: Tensor | None  # second moments (sums over rows) of t along the directions that are left out
    output_curvature: Tensor  # with these, Lambda is in proportion to them: (M_out,)

    @classmethod
    def of(cls, curvature: Curvature, eigenvalues: list[Tensor], scale: float) -> Found:
        """In the basis in which the product of all precisions is smallest: no basis gets below the true one's."""
        volumes = [float((scale * one + 1).log().sum()) for one in eigenvalues]
        best = volumes.index(min(volumes))
        basis, was = curvature.bases()[best], before(curvature.layer)
        # by rounding, moments of what is always 0 may be below it: units that never fire, the sum of logits
        left_out = None if curvature.columns is None else curvature.columns.left_out.clamp(min=0)
        g, _ = curvature.moments.of_rows
        outputs = scale * (basis.out.mT @ g @ basis.out).diagonal().clamp(min=0) / curvature.rows
        mean = basis.out.mT @ was.mean @ basis.into
        return cls(curvature.layer, was, basis, scale * eigenvalues[best], mean, left_out, outputs)

    def all_entries(self) -> Tensor:
        """Lambda of every direction of the input, of those that are left out as far as it is a product: (M_out, M)."""
        if self.left_out is None:
            return self.curvature
        return torch.cat([self.curvature, self.output_curvature[:, None] * self.left_out], dim=1)

    def set_(self, tau: float, variance: float) -> None:
        """Gives the layer its posterior, in place, for noise whose variance is so many times what Lambda was for."""
        lamda = None if self.left_out is None else self._lamda(tau, variance)
        set_gaussian_(self.layer, self.was, self.basis, (self.curvature / variance + tau).rsqrt(), tau, lamda)

    def _lamda(self, tau: float, variance: float) -> float | None:
        """That gives the directions that are left out the variance, in the mean, which they would have had."""
        assert self.left_out is not None
        energy = float(self.left_out.sum())
        if energy <= 0:
            return None
        variances = 1 / (self.all_entries()[:, self.curvature.shape[1] :] / variance + tau)
        return math.sqrt(float((self.left_out * variances.mean(0)).sum()) / energy)
