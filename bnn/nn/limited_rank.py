"""Families whose mean weights have a limited rank: what a budget, a fit to activations and summaries need of them.

The options of such a family have its sizes (`size_names`), `prior_sd`, `sqrt_width_scaling`, `kernel`, `init` and
`budget`. A size that is None is left to the budget: of all layers that are converted together, or of one by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from bnn.functional.kernels import settled_kernel
from bnn.nn.base import BayesianLayer, Start, Weights

FROM_WEIGHTS = "weights"  # a prior sd that is taken from the weights at hand
HALF = 0.5  # the budget where nobody gives one, nor sizes


class LimitedRank(BayesianLayer):
    """A layer whose mean is a matrix of limited rank; a family says what a rank costs and how a matrix is kept."""

    size_names: ClassVar[tuple[str, ...]]  # the options that are sizes; the rank is the smallest of them
    smallest: ClassVar[str]  # what a rank of 1 is called in messages

    options: Any

    @classmethod
    def cost(cls, shape: Sequence[int], options: Any, *sizes: int) -> int:
        """How many parameters a layer takes with these sizes, by the shape of W as `kernel` arranges it."""
        raise NotImplementedError

    @classmethod
    def start(cls, weights: Weights, options: Any, matrix: Tensor | None = None) -> Start:
        """The tensors of the posterior around the weights to keep, or around another W in their place."""
        raise NotImplementedError

    def reset_cache(self) -> None:
        """Forgets what is kept between calls, if anything is. Nobody needs to: it is refreshed by itself."""

    # ---- W -----------------------------------------------------------------------------------------------------------

    @classmethod
    def kernel_of(cls, weights: Weights, options: Any) -> str:
        """The arrangement that `kernel` means for these weights."""
        return settled_kernel(options.kernel, weights.weight.shape) if cls.splits else "paper"

    @classmethod
    def arranged(cls, weights: Weights, options: Any) -> Tensor:
        """The weights of a plain layer as the matrix W that `kernel` asks for."""
        return cls.to_split(weights) if cls.kernel_of(weights, options) == "split" else cls.to_matrix(weights)

    @property
    def split(self) -> bool:
        """Whether W is the split matrix, (d_out kw) x (d_in / kw), of `bnn.functional.kernels`."""
        kernel: str = self.options.kernel
        return kernel == "split"

    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns of W as `kernel` arranges it, the column of a bias counted."""
        taps = self.weight_shape[-1] if self.split else 1
        return self.d_out * taps, (self.d_in - self.has_bias) // taps + self.has_bias

    def prior_sd(self) -> float:
        """The prior standard deviation sigma of the weights."""
        return prior_sd(self.options, self.d_in)

    # ---- sizes -------------------------------------------------------------------------------------------------------

    def sizes(self) -> tuple[int, ...]:
        """The sizes of this layer."""
        return self.settled_sizes(self.options)

    @classmethod
    def given_sizes(cls, options: Any) -> tuple[int, ...] | None:
        """All sizes if one of them is given: more of another would not raise the rank of the mean."""
        sizes = [getattr(options, name) for name in cls.size_names]
        known = [size for size in sizes if size is not None]
        return tuple(size or known[0] for size in sizes) if known else None

    @classmethod
    def settled_sizes(cls, options: Any) -> tuple[int, ...]:
        """The sizes of options that are settled."""
        sizes: list[int | None] = [getattr(options, name) for name in cls.size_names]
        known = tuple(size for size in sizes if size is not None)
        if len(known) < len(sizes):
            raise ValueError(f"{' or '.join(cls.size_names)} is open: settle the options first, with `settled`")
        return known

    @classmethod
    def of_rank(cls, options: Any, rank: int) -> Any:
        """The options with all sizes set to a rank."""
        return replace(options, **dict.fromkeys(cls.size_names, rank), budget=None)

    @classmethod
    def parameters_for(cls, weights: Weights, options: Any, *sizes: int) -> int:
        """How many parameters a layer takes with these sizes, by the weights it had."""
        return cls.cost(cls.arranged(weights, options).shape, options, *sizes)

    @classmethod
    def cost_of_rank(cls, shape: Sequence[int], options: Any, rank: int) -> int:
        """How many parameters a layer takes with all sizes set to a rank."""
        return cls.cost(shape, options, *[rank] * len(cls.size_names))

    @classmethod
    def settled(cls, options: Any, weights: Weights) -> Any:
        options = replace(options, kernel=cls.kernel_of(weights, options))
        if options.prior_sd == FROM_WEIGHTS:
            W = cls.to_matrix(weights)
            options = replace(options, prior_sd=_rms(W) or W.shape[1] ** -0.5, sqrt_width_scaling=False)
        sizes = cls.given_sizes(options)
        if sizes is None:
            return cls.of_rank(options, cls._rank_of_one(weights, options))
        return replace(options, **dict(zip(cls.size_names, sizes, strict=True)), budget=None)

    @classmethod
    def _rank_of_one(cls, weights: Weights, options: Any) -> int:
        """The largest rank of a layer by itself within its budget; at least 1 where nobody gave one."""
        budget = HALF if options.budget is None else options.budget
        plain = sum(part.numel() for part in weights if part is not None)
        limit = budget if isinstance(budget, int) else budget * plain
        m, shape = 1, cls.arranged(weights, options).shape
        while m < min(shape) and cls.cost_of_rank(shape, options, m + 1) <= limit:
            m += 1
        least = cls.cost_of_rank(shape, options, 1)
        if least > limit and options.budget is not None:
            said = f"{cls.smallest} takes {least}, the least possible"
            raise ValueError(f"budget={budget!r} of {plain} parameters: {said}")
        return m


def prior_sd(options: Any, d_in: int) -> float:
    """sigma: `prior_sd`, over sqrt(d_in) with `sqrt_width_scaling`."""
    sd: float = options.prior_sd / (math.sqrt(d_in) if options.sqrt_width_scaling else 1.0)
    return sd


def _rms(W: Tensor) -> float:
    """The root mean square; 1 for a tensor without data."""
    return 1.0 if W.is_meta else float(W.double().square().mean().sqrt())
