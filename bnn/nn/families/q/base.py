"""What a posterior q(U) is: a small object with options of its own and no state; its tensors live on the layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from bnn._engine.draw import Draw
from bnn.functional.gaussian import TrilPair
from bnn.functional.linalg import at_least_float32, inverse_softplus

INIT_SD = 1e-3  # of U, as in the paper

CLASSES: dict[str, type[QInducing]] = {}  # by name


class QInducing(ABC):
    """A posterior over the inducing matrix of a layer. A subclass that sets `name` is what `q_inducing=name` means.

    Options of its own are the fields of a dataclass, which files record beside the name.
    """

    name: ClassVar[str]  # what `q_inducing=` knows, and files record
    takes_cap: ClassVar[bool] = False  # whether the option `max_sd_u` means anything to it
    scales: ClassVar[tuple[str, ...]] = ()  # those of its parameters that are scales, kept through softplus
    sized: ClassVar[tuple[str, ...]] = ("inducing_mean",)  # those whose starting size says how fast they should train
    is_point: ClassVar[bool] = False  # U is the same in all draws
    members: int = 0  # of an ensemble
    max_sd: float | None = None  # the cap of its standard deviations

    def __init_subclass__(cls, registered: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if registered and "name" in cls.__dict__:
            if cls.name in CLASSES:
                raise TypeError(f"q_inducing={cls.name!r} is {CLASSES[cls.name].__name__} already: use another name")
            CLASSES[cls.name] = cls

    @classmethod
    def of(cls, options: Any, **own: Any) -> QInducing:
        """The posterior of a layer with these options of the family, and with options of its own."""
        return cls(**own)

    # ---- its tensors -------------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, u: Tensor) -> dict[str, Tensor]:
        """The tensors it trains, by name, around the matrix u (M_out, M_in)."""

    def spread_start(self, u: Tensor, sd: Tensor) -> dict[str, Tensor]:
        """Those tensors of `start` that hold standard deviations, for a start at `sd` (a scalar), where it has some."""
        return {}

    def parameters(self, m_out: int, m_in: int) -> int:
        """How many numbers it trains."""
        return sum(one.numel() for one in self.start(torch.empty(m_out, m_in, device="meta")).values())

    def fixed(self, u: Tensor) -> dict[str, Tensor]:
        """Tensors it keeps in the state dict but does not use."""
        return {}

    def tensors(self) -> list[str]:
        """The names of all its tensors."""
        u = torch.empty(0, 0, device="cpu")  # draws nothing; on "meta" torch would load sympy
        return [*self.start(u), *self.fixed(u)]

    def covariance_size(self, m_out: int, m_in: int) -> int:
        """n where it keeps an n x n covariance, which must fit in memory; else 0."""
        return 0

    def units(self, layer: Any) -> dict[str, Tensor | float]:
        """What entries of its parameters are multiplied by in the state dict, where that is not 1."""
        return {}

    # ---- its distribution --------------------------------------------------------------------------------------------

    def mean(self, layer: Any) -> Tensor:
        """E[U], (M_out, M_in)."""
        return at_least_float32(layer.inducing_mean)

    def spread_of(self, layer: Any) -> list[Tensor]:
        """The parameters that its spread follows from."""
        return []

    def scale(self, layer: Any) -> tuple[Tensor, float | None] | None:
        """A raw scale and its cap, where the spread is simply its positive value."""
        return None

    def spread(self, layer: Any) -> Any:
        """What samples and the KL need beside the mean: standard deviations, triangles; None for points."""
        return None

    def sds(self, layer: Any) -> Tensor | None:
        """The standard deviations of the entries of U, of any shape, for reports; None for a point."""
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


# ---- starts ----------------------------------------------------------------------------------------------------------


def eye(n: int, like: Tensor) -> Tensor:
    """The n x n identity, of the type and on the device of `like`."""
    return torch.eye(n, dtype=like.dtype, device=like.device)


def paper_sd(u: Tensor) -> Tensor:
    """The paper's start of the standard deviations, a scalar."""
    return torch.full((), INIT_SD, dtype=at_least_float32(u).dtype, device=u.device)


def relative_sd(u: Tensor) -> Tensor:
    """A start in proportion to u, a scalar: the rms of u differs between layers by a factor of 30."""
    rms = u.double().square().mean().sqrt()  # squares of what a narrow prior makes of u are too large for float32
    return (INIT_SD * torch.where(rms > 0, rms, 1.0)).to(at_least_float32(u).dtype)


def raw_sds(u: Tensor, sd: Tensor, cap: float | None = None) -> Tensor:
    """Starting standard deviations of the entries of u, through softplus."""
    sd = sd if cap is None else sd.clamp(max=cap)
    return torch.zeros_like(u) + inverse_softplus(sd).to(u.dtype)
