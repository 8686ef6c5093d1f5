"""The inducing family: W is a conditional Gaussian given a small inducing matrix U, and only U has a posterior.

Storage d_in M_in + d_out M_out + M_in + M_out + 1, and what q(U) takes (2 M_in M_out for `diagonal`); time
O(N K d_in d_out + d_in M_in^2 + d_out M_out^2 + K (d_in d_out M_in + d_out M_in^2)) where W is built. Ritter, Kukla,
Zhang and Li, *Sparse Uncertainty Representation in Deep Learning with Inducing Weights*, NeurIPS 2021. Choose it for a
posterior that takes less than the network.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.checks import check_bool, check_budget, check_choice, check_positive, check_size
from bnn._engine.cache import Cache
from bnn._engine.draw import Draw
from bnn.functional.factors import factor_together, positive_together
from bnn.functional.gaussian import TrilPair, whiten
from bnn.functional.inducing import Factors, conditional_mean, factor, rescaling_kl
from bnn.functional.linalg import at_least_float32, inverse_softplus, positive, without_autocast
from bnn.functional.projection import project, random_start
from bnn.functional.pruning import output_changes
from bnn.nn.base import KL, Start, Weights
from bnn.nn.families.posterior import Posterior
from bnn.nn.families.q.base import QInducing, relative_sd
from bnn.nn.families.q.choice import q_class, q_from, record_of
from bnn.nn.families.ways import DrawnInStages
from bnn.nn.limited_rank import FROM_WEIGHTS, prior_sd
from bnn.nn.memory import refuse_covariance
from bnn.nn.options import Options
from bnn.nn.pruning import Prunable

BUILT_BYTES = 2**20  # of a W that is kept, where it is a point
INIT_D = 1e-3  # the diagonal of D, as in the paper: small, so that A is nearly orthonormal


@dataclass(frozen=True)
class InducingOptions(Options):
    """Options of `inducing` and `inducingdeterministic`."""

    inducing_rows: int | None = None  # M_out; None: as inducing_cols; neither: as the budget allows
    inducing_cols: int | None = None  # M_in
    prior_sd: Any = 1.0  # a number, or "weights": the root mean square of the weights at hand
    init_lamda: float = 1e-4  # nearly deterministic given U: training first finds the mean
    learn_lamda: bool = True
    max_lamda: float | None = None  # the paper: 0.03 or 0.1; 0 makes W given U a point
    q_inducing: Any = "diagonal"  # a name, or a QInducing class or object; kept as the name, with own options if any
    whitened_u: bool = True  # the prior of U is N(0, I), which is better conditioned
    max_sd_u: float | None = None  # the paper: 0.1; 0 makes U a MAP estimate
    sqrt_width_scaling: bool = False  # divides prior_sd by sqrt(d_in), the bias counted
    cache_cholesky: bool = False  # accepted for old configurations, without effect
    ensemble_size: int = 8
    kernel: str = "paper"  # a convolution's weights as c_out x (c_in kh kw); "split": (c_out kw) x (c_in kh); "auto"
    init: str = "weights"  # keep the weights at hand, projected; "paper": random, as in the paper
    sampling: str = "auto"  # exact for every input; "weight": one function for the batch; "local": for every position
    budget: float | None = None  # of all layers together: a fraction of their parameters, or an integer number of them

    def __post_init__(self) -> None:
        check_size("inducing_rows", self.inducing_rows, none=True)
        check_size("inducing_cols", self.inducing_cols, none=True)
        check_budget("budget", self.budget)
        if self.prior_sd != FROM_WEIGHTS:
            check_positive("prior_sd", self.prior_sd, other=repr(FROM_WEIGHTS))
        check_positive("init_lamda", self.init_lamda)
        check_positive("max_lamda", self.max_lamda, zero=True, none=True)
        check_positive("max_sd_u", self.max_sd_u, zero=True, none=True)
        check_size("ensemble_size", self.ensemble_size)
        check_choice("kernel", self.kernel, ["paper", "split", "auto"])
        check_choice("init", self.init, ["weights", "paper"])
        check_choice("sampling", self.sampling, ["auto", "weight", "local"])
        for name in ("learn_lamda", "whitened_u", "sqrt_width_scaling", "cache_cholesky"):
            check_bool(name, getattr(self, name))
        record = record_of(self.q_inducing)
        object.__setattr__(self, "q_inducing", record)
        q = q_class(record if isinstance(record, str) else record["name"])
        if self.max_sd_u is not None and not q.takes_cap:
            warnings.warn(f"max_sd_u has no effect: q_inducing={q.name!r} has no such cap", UserWarning, stacklevel=2)
            object.__setattr__(self, "max_sd_u", None)


class InducingBase(DrawnInStages):
    """What the inducing families share: parameters, factors, conditional, KL. They differ in lamda."""

    options_type = InducingOptions
    prunable = ("z_row", "z_col")
    size_names = ("inducing_rows", "inducing_cols")
    smallest = "a U of 1 x 1"

    options: InducingOptions
    caching_mode = False  # old code sets it; factors are cached and refreshed by themselves
    q: QInducing
    cache: Cache[Posterior]
    z_row: Tensor  # (M_out, d_out), or (M_out, d_out kw) of a split kernel
    z_col: Tensor  # (M_in, d_in), or (M_in, d_in / kw) of a split kernel
    _d_row: Tensor  # (M_out,), through softplus
    _d_col: Tensor  # (M_in,), through softplus
    _lamda: Tensor  # scalar, through softplus

    @classmethod
    def has_lamda(cls, options: InducingOptions) -> bool:
        """Whether W varies given U."""
        raise NotImplementedError

    @classmethod
    def cost(cls, shape: Sequence[int], options: InducingOptions, *sizes: int) -> int:
        (rows, columns), (m_out, m_in) = shape, sizes
        of_q = q_from(options.q_inducing, options).parameters(m_out, m_in)
        lamda = options.learn_lamda and cls.has_lamda(options)
        return m_out * (rows + 1) + m_in * (columns + 1) + of_q + lamda

    @classmethod
    def start(cls, weights: Weights, options: InducingOptions, matrix: Tensor | None = None) -> Start:
        W = cls.arranged(weights, options) if matrix is None else matrix.to(weights.weight)  # another one to keep
        m_out, m_in = cls.settled_sizes(options)
        refuse_covariance(cls.covariance_size(weights, options), W, cls.family)
        d_row, d_col = (
            torch.full((m,), INIT_D, dtype=at_least_float32(W).dtype, device=W.device) for m in (m_out, m_in)
        )
        if options.init == "paper":
            z_row, z_col, u = random_start(W.shape[0], W.shape[1], m_out, m_in, like=W)
        else:
            sigma = prior_sd(options, cls.to_matrix(weights).shape[1])  # the layer's own d_in, however it is arranged
            z_row, z_col, u = project(W, m_out, m_in, sigma, d_row, d_col)
        q = q_from(options.q_inducing, options)
        if not options.whitened_u:
            row, col = factor(z_row, d_row), factor(z_col, d_col)
            u = (row.L @ u.to(row.L) @ col.L.mT).to(u)
        trained = {"z_row": z_row, "z_col": z_col} | q.start(u)
        if options.init == "weights":
            trained |= q.spread_start(u, relative_sd(u))
        trained |= {"_d_row": inverse_softplus(d_row).to(W.dtype), "_d_col": inverse_softplus(d_col).to(W.dtype)}
        lamda = min(options.init_lamda, options.max_lamda or math.inf)
        raw = {"_lamda": inverse_softplus(torch.tensor(lamda, dtype=torch.double)).to(W)}
        learned, fixed = (raw, {}) if options.learn_lamda and cls.has_lamda(options) else ({}, raw)
        return Start(trained | learned, q.fixed(u) | fixed, {"q": q, "cache": Cache()})

    @classmethod
    def covariance_size(cls, weights: Weights, options: InducingOptions) -> int:
        m_out, m_in = cls.settled_sizes(options)
        return q_from(options.q_inducing, options).covariance_size(m_out, m_in)

    @property
    def scales(self) -> tuple[str, ...]:
        return *self.q.scales, "_lamda"

    @property
    def sized(self) -> tuple[str, ...]:
        return self.q.sized

    def units(self) -> dict[str, Tensor | float]:
        return self.q.units(self)

    def sds_and_cap(self) -> tuple[Tensor | None, float | None]:
        return self.q.sds(self), self.q.max_sd

    # ---- the mathematics, on this layer's parameters -----------------------------------------------------------------

    def lamda(self) -> Tensor | None:
        """lamda, or None where W is a point given U."""
        return positive(self._lamda, self.options.max_lamda) if self.has_lamda(self.options) else None

    def noisy(self, draw: Draw) -> bool:
        return self.has_lamda(self.options) and not draw.call.at_mean

    @classmethod
    def member_number(cls, options: InducingOptions) -> int:
        return q_from(options.q_inducing, options).members

    def member_count(self) -> int:
        return self.q.members

    def is_point(self) -> bool:
        return self.q.is_point and not self.has_lamda(self.options)

    def is_settled(self) -> bool:
        return self.is_point() and not self._differentiates() and not torch.compiler.is_compiling()

    def keeps_weights(self) -> bool:
        return self.d_in * self.d_out * self.z_row.element_size() <= BUILT_BYTES

    # ---- what follows from the parameters ----------------------------------------------------------------------------

    def posterior(self, draw: Draw | None = None) -> Posterior:
        """Factors, lamda and the spread of q(U): where gradients flow once per call, else once per value of them."""
        return self.shared("posterior", lambda: self._posterior(draw), draw)

    def factors(self) -> tuple[Factors, Factors]:
        """The factors of rows and columns."""
        own = self.posterior()
        return own.row, own.col

    def _posterior(self, draw: Draw | None) -> Posterior:
        if self._differentiates():
            call = None if draw is None else draw.call
            if call is None or call.scope is None or torch.compiler.is_compiling():
                return self._posterior_alone()
            if self not in call.posteriors and id(call.scope) not in call.prepared:
                call.prepared.add(id(call.scope))
                call.posteriors.update(posteriors_together(call.scope))  # of all layers that are about to run
            own: Posterior | None = call.posteriors.get(self)
            return self._posterior_alone() if own is None else own
        if self.is_point():
            sources = [*self._sides(), self.q.mean(self)]  # W follows from it
        else:
            sources = [*self._sides(), self._lamda, *self.q.spread_of(self)]
        return self.cache.get(sources, self._posterior_alone, self.options.max_lamda)

    def _differentiates(self) -> bool:
        """Whether gradients flow to its parameters."""
        return torch.is_grad_enabled() and any(p.requires_grad for p in self._parameters.values() if p is not None)

    def _posterior_alone(self) -> Posterior:
        z_row, d_row, z_col, d_col = self._sides()
        row = factor(z_row, positive(d_row), "Psi_r = Z_r Z_r^T + D_r^2")
        col = factor(z_col, positive(d_col), "Psi_c = Z_c Z_c^T + D_c^2")
        return Posterior(row, col, self.lamda(), self.q.spread(self))

    def _sides(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.kept("z_row"), self._d_row, self.kept("z_col"), self._d_col

    def is_ready(self) -> bool:
        """Whether its parameters are what they will be when it runs: hooks, as torch's pruning has, may change them."""
        return not self._forward_pre_hooks and {"z_row", "z_col", "_d_row", "_d_col"} <= self._parameters.keys()

    def reset_cache(self) -> None:
        """Forgets the factors. Nobody needs to: they are computed anew whenever a parameter has changed."""
        self.cache = Cache()

    # ---- u, means, KL ------------------------------------------------------------------------------------------------

    def u_noise(self) -> tuple[int, ...]:
        return self.q.noise_shape(self)

    def mean_u(self, own: Posterior) -> Tensor:
        return whiten(self.q.mean(self), self.prior(own))

    def u_from(self, noise: Tensor | None, draw: Draw, own: Posterior) -> Tensor:
        with without_autocast(self.z_row):
            if draw.call.at_mean:
                u = self.q.mean(self).expand(draw.count, -1, -1)
            else:
                u = self.q.sample(self, own.spread, noise, draw)
            return whiten(u, self.prior(own))

    def prune_scores(self, inputs: Weights | None) -> list[Prunable]:
        """|Z|; by the output, the share of it that `bnn.functional.pruning.output_changes` says."""
        z_row, z_col = (at_least_float32(self.kept(name)) for name in self.prunable)
        if inputs is not None:
            own, rms = self.posterior(), self.arranged(inputs, self.options).square().mean(0).sqrt()
            u = whiten(self.q.mean(self).to(own.row.L), self.prior(own))
            z_row, z_col = output_changes(u, own.row, own.col, z_row, z_col, rms.to(u))
        return [Prunable(("z_row",), z_row.abs()), Prunable(("z_col",), z_col.abs())]

    def mean_weights(self) -> Weights:
        own = self.posterior()
        with without_autocast(self.z_row):
            W = conditional_mean(self.mean_u(own), own.row, own.col, self.prior_sd()).to(self.z_row.dtype)
            return self.from_split(W) if self.split else self.from_matrix(W)

    def kl_parts(self) -> KL:
        own = self.posterior()
        with without_autocast(self.z_row):
            kl_u = self.q.kl(self, own.spread, self.prior(own))
            n = self.d_in * self.d_out  # the layer's weights, however they are arranged
            kl_lamda = torch.zeros_like(kl_u) if own.lamda is None else n * rescaling_kl(own.lamda)
        return KL(kl_u, kl_lamda)

    def prior(self, own: Posterior) -> TrilPair | None:
        """(L_r, L_c) of the prior of U; None where that is N(0, I), because U is whitened."""
        return None if self.options.whitened_u else (own.row.L, own.col.L)

    def summary(self) -> str:
        m_out, m_in = len(self.z_row), len(self.z_col)
        cap = "" if self.options.max_lamda is None else f", max_lamda={self.options.max_lamda:g}"
        kernel = ", kernel=split" if self.split else ""
        return f"family={self.family}, M={m_out}x{m_in}, q={self.q.name}, prior_sd={self.prior_sd():.3g}{cap}{kernel}"


class Inducing(InducingBase):
    """q(W, U) = q(W|U) q(U) with q(W|U) = N(E[W|U], lamda^2 Cov[W|U]); lamda = 0 where `max_lamda=0`."""

    family = "inducing"

    @classmethod
    def has_lamda(cls, options: InducingOptions) -> bool:
        return options.max_lamda != 0


class InducingDeterministic(InducingBase):
    """lamda = 0: W is a function of U. `_lamda` stays in the state dict, unused."""

    family = "inducingdeterministic"

    @classmethod
    def has_lamda(cls, options: InducingOptions) -> bool:
        return False


def posteriors_together(network: nn.Module) -> dict[nn.Module, Posterior]:
    """What follows from the parameters of all inducing layers of `network`, in a few large steps; {} if it cannot."""
    layers = [m for m in network.modules() if isinstance(m, InducingBase) and m.is_ready()]
    factors = factor_together([layer._sides() for layer in layers])
    scales = {layer: layer.q.scale(layer) for layer in layers}
    raws = [(layer._lamda, layer.options.max_lamda) for layer in layers if layer.has_lamda(layer.options)]
    raws += [scale for scale in scales.values() if scale is not None]
    if not factors or len({(raw.device, raw.dtype) for raw, _ in raws}) > 1:
        return {}
    values = iter(positive_together(*zip(*((raw, cap or math.inf) for raw, cap in raws), strict=True)) if raws else [])
    try:
        lamdas = {layer: next(values) for layer in layers if layer.has_lamda(layer.options)}
        spreads = {layer: layer.q.spread(layer) if scales[layer] is None else next(values) for layer in layers}
    except StopIteration:
        return {}
    pairs = zip(layers, factors, strict=True)
    return {layer: Posterior(row, col, lamdas.get(layer), spreads[layer]) for layer, (row, col) in pairs}
