"""The posteriors q(U) of the inducing family. Each is a small object without state; its tensors live on the layer.

U is (M_out, M_in). When whitened, its prior is N(0, I) and `prior` is None; else MN(0, L_r L_r^T, L_c L_c^T).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from bnn._engine.draw import SHARED, Draw
from bnn.functional.gaussian import TrilPair, kl_diagonal_u, kl_full_u, kl_matrix_u, standard_normal, whiten
from bnn.functional.linalg import at_least_float32, inverse_softplus, pack_tril, positive, unpack_tril

INIT_SD = 1e-3  # of U, as in the paper
MEMBER_NOISE = 0.1  # sd of each member around the shared start, as in the paper, whose start is N(0, 1)


class QInducing(ABC):
    """A posterior over the inducing matrix of a layer."""

    members: int = 0  # of an ensemble

    @abstractmethod
    def start(self, u: Tensor) -> dict[str, Tensor]:
        """The tensors it trains, by name, around the matrix u (M_out, M_in)."""

    @abstractmethod
    def fixed(self, u: Tensor) -> dict[str, Tensor]:
        """Tensors it keeps in the state dict but does not use."""

    @abstractmethod
    def mean(self, layer: Any) -> Tensor:
        """E[U], (M_out, M_in)."""

    def spread_of(self, layer: Any) -> list[Tensor]:
        """The parameters that its spread follows from."""
        return []

    def scale(self, layer: Any) -> tuple[Tensor, float | None] | None:
        """A raw scale and its cap, where the spread is simply its positive value."""
        return None

    def spread(self, layer: Any) -> Any:
        """What samples and the KL need beside the mean: standard deviations, triangles; None for points."""
        return None

    @abstractmethod
    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        """The shape of the standard normals behind one U; () for a U without noise of its own."""

    @abstractmethod
    def sample(self, layer: Any, spread: Any, noise: Any, draw: Draw) -> Tensor:
        """Samples of U, one for each of the K draws, (K, M_out, M_in), from their noise (K, *noise_shape), if any."""

    @abstractmethod
    def kl(self, layer: Any, spread: Any, prior: TrilPair | None) -> Tensor:
        """KL[q(U) || p(U)], a scalar."""


class Diagonal(QInducing):
    """FFG-U: independent entries N(mean_ij, sd_ij^2), sd <= max_sd."""

    def __init__(self, max_sd: float | None = None) -> None:
        self.max_sd = max_sd

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return {"inducing_mean": u, "_inducing_sd": _raw_sds(u, self.max_sd)}

    def fixed(self, u: Tensor) -> dict[str, Tensor]:
        return {}

    def mean(self, layer: Any) -> Tensor:
        return at_least_float32(layer.inducing_mean)

    def sd(self, layer: Any) -> Tensor:
        """The standard deviations (M_out, M_in)."""
        return positive(layer._inducing_sd, self.max_sd)

    def spread_of(self, layer: Any) -> list[Tensor]:
        return [layer._inducing_sd]

    def scale(self, layer: Any) -> tuple[Tensor, float | None]:
        return layer._inducing_sd, self.max_sd

    def spread(self, layer: Any) -> Tensor:
        return self.sd(layer)

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return tuple(layer.inducing_mean.shape)

    def sample(self, layer: Any, spread: Tensor, noise: Tensor, draw: Draw) -> Tensor:
        return torch.addcmul(self.mean(layer), spread, noise)

    def kl(self, layer: Any, spread: Tensor, prior: TrilPair | None) -> Tensor:
        return kl_diagonal_u(self.mean(layer), spread, prior)


class Point(QInducing):
    """A MAP estimate of U (`max_sd_u=0`): charges -log N(u; 0, I) = |u|^2 / 2 up to a constant."""

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return {"inducing_mean": u}

    def fixed(self, u: Tensor) -> dict[str, Tensor]:
        return {"_inducing_sd": _raw_sds(u, None)}  # so that state dicts have the names of `Diagonal`

    def mean(self, layer: Any) -> Tensor:
        return at_least_float32(layer.inducing_mean)

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return ()

    def sample(self, layer: Any, spread: None, noise: None, draw: Draw) -> Tensor:
        mean = self.mean(layer)
        return mean.expand(draw.count, *mean.shape)

    def kl(self, layer: Any, spread: None, prior: TrilPair | None) -> Tensor:
        return 0.5 * whiten(self.mean(layer), prior).square().sum()


class Matrix(QInducing):
    """A matrix normal MN(mean, T_r T_r^T, T_c T_c^T)."""

    def start(self, u: Tensor) -> dict[str, Tensor]:
        m_out, m_in = u.shape  # sd = T_r T_c on the diagonals: the square root each
        return {
            "inducing_mean": u,
            "_inducing_row_scale_tril": pack_tril(INIT_SD**0.5 * _eye(m_out, u)),
            "_inducing_col_scale_tril": pack_tril(INIT_SD**0.5 * _eye(m_in, u)),
        }

    def fixed(self, u: Tensor) -> dict[str, Tensor]:
        return {}

    def mean(self, layer: Any) -> Tensor:
        return at_least_float32(layer.inducing_mean)

    def spread_of(self, layer: Any) -> list[Tensor]:
        return [layer._inducing_row_scale_tril, layer._inducing_col_scale_tril]

    def spread(self, layer: Any) -> TrilPair:
        return self.trils(layer)

    def trils(self, layer: Any) -> TrilPair:
        """The scales T_r (M_out, M_out) and T_c (M_in, M_in)."""
        m_out, m_in = layer.inducing_mean.shape
        row, col = layer._inducing_row_scale_tril, layer._inducing_col_scale_tril
        return unpack_tril(row, m_out), unpack_tril(col, m_in)

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return tuple(layer.inducing_mean.shape)

    def sample(self, layer: Any, spread: TrilPair, noise: Tensor, draw: Draw) -> Tensor:
        row, col = spread
        return self.mean(layer) + row @ noise @ col.mT

    def kl(self, layer: Any, spread: TrilPair, prior: TrilPair | None) -> Tensor:
        return kl_matrix_u(self.mean(layer), *spread, prior)


class Full(QInducing):
    """FCG-U: N(mean, T T^T) over vec U, row-major."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return {"inducing_mean": u.flatten(), "_inducing_scale_tril": pack_tril(INIT_SD * _eye(u.numel(), u))}

    def fixed(self, u: Tensor) -> dict[str, Tensor]:
        return {}

    def mean(self, layer: Any) -> Tensor:
        return at_least_float32(layer.inducing_mean).reshape(self.shape)

    def spread_of(self, layer: Any) -> list[Tensor]:
        return [layer._inducing_scale_tril]

    def spread(self, layer: Any) -> Tensor:
        return self.tril(layer)

    def tril(self, layer: Any) -> Tensor:
        """The scale T (M_out M_in, M_out M_in)."""
        return unpack_tril(layer._inducing_scale_tril, layer.inducing_mean.numel())

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return tuple(layer.inducing_mean.shape)

    def sample(self, layer: Any, spread: Tensor, noise: Tensor, draw: Draw) -> Tensor:
        return self.mean(layer) + (noise @ spread.mT).unflatten(1, self.shape)

    def kl(self, layer: Any, spread: Tensor, prior: TrilPair | None) -> Tensor:
        return kl_full_u(self.mean(layer), spread, prior)


class Ensemble(QInducing):
    """Ensemble-U: K points; all layers of a forward show the same member. No KL on U, as in the paper."""

    def __init__(self, size: int, around: bool = False) -> None:
        self.size = self.members = size
        self.around = around  # members start around weights to keep: noise in units of U's size, and with mean 0

    def start(self, u: Tensor) -> dict[str, Tensor]:
        noise = MEMBER_NOISE * standard_normal(self.size, *u.shape, like=u)
        if self.around:
            rms = u.square().mean().sqrt()
            noise = torch.where(rms > 0, rms, 1.0) * (noise - noise.mean(0))
        return {"inducing_mean": u + noise}

    def fixed(self, u: Tensor) -> dict[str, Tensor]:
        return {}

    def mean(self, layer: Any) -> Tensor:
        return at_least_float32(layer.inducing_mean).mean(0)

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return ()

    def sample(self, layer: Any, spread: None, noise: None, draw: Draw) -> Tensor:
        members = at_least_float32(layer.inducing_mean)
        return members.index_select(0, draw.member(layer, self.size).to(members.device))

    def kl(self, layer: Any, spread: None, prior: TrilPair | None) -> Tensor:
        return layer.inducing_mean.new_zeros((), dtype=at_least_float32(layer.inducing_mean).dtype)


class GlobalSlice(QInducing):
    """The layer's slice of V, the matrix of all layers' inducing weights, which the global module draws.

    The module is held in a tuple, so that it is no child of the layer: it has one place in the network, the root.
    """

    def __init__(self, module: nn.Module, dim: int, start: int, length: int) -> None:
        self.held = (module,)
        self.dim, self.first, self.length = dim, start, length

    def start(self, u: Tensor) -> dict[str, Tensor]:
        return {}

    def fixed(self, u: Tensor) -> dict[str, Tensor]:
        return {}

    def mean(self, layer: Any) -> Tensor:
        return self._slice(self.held[0].mean_weights().weight)  # type: ignore[operator]

    def noise_shape(self, layer: Any) -> tuple[int, ...]:
        return ()

    def sample(self, layer: Any, spread: None, noise: None, draw: Draw) -> Tensor:
        owner: Any = self.held[0]
        return self._slice(draw.once(owner, SHARED, owner.sample_weights, whole=True).weight)

    def kl(self, layer: Any, spread: None, prior: TrilPair | None) -> Tensor:
        return torch.zeros_like(layer._lamda, dtype=at_least_float32(layer._lamda).dtype)  # the global module's

    def _slice(self, V: Tensor) -> Tensor:
        return at_least_float32(V.narrow(self.dim - 2, self.first, self.length))


def _eye(n: int, like: Tensor) -> Tensor:
    return torch.eye(n, dtype=like.dtype, device=like.device)


def _raw_sds(u: Tensor, cap: float | None) -> Tensor:
    sd = INIT_SD if cap is None else min(INIT_SD, cap)
    return inverse_softplus(torch.full_like(u, sd, dtype=at_least_float32(u).dtype)).to(u.dtype)
