"""What every Bayesian layer is: a plain torch layer whose weights were replaced by a posterior over them.

A pairing joins a family (how the posterior looks: `ffg`, `inducing`, ...) and a layer type (how weights act on inputs:
`Linear`, `Conv2d`, ...) in one line of `bnn.nn.pairings`. The families know nothing of each other, nor of layer types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from bnn._engine.draw import Draw
from bnn._engine.fold import Drawn, join_draws
from bnn._engine.forward import running
from bnn.functional.gaussian import check_kl
from bnn.functional.linalg import positive
from bnn.nn.options import Options
from bnn.nn.pruning import Prunable, expect_masks_, kept, masked
from bnn.nn.registry import Registry, joins
from bnn.nn.start import Start as Start
from bnn.nn.start import Weights as Weights
from bnn.nn.start import adopt_, fresh_weights, restart_, state_units
from bnn.nn.start import plain_weights as plain_weights

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class KL(NamedTuple):
    """The two parts of a layer's KL divergence, in nats."""

    u: Tensor  # KL[q(U) || p(U)]; for families without U, KL[q(W) || p(W)]
    lamda: Tensor  # KL[q(W|U) || p(W|U)] = d_in d_out r(lamda)


class Rows(NamedTuple):
    """How one input of a layer splits into rows: the vectors that W multiplies."""

    batched: bool  # whether dimension 0 counts the inputs; else there is one
    number: int  # p
    gram: int  # multiplies of the rows' Gram matrix
    taps: int = 1  # entries of a row that come from one channel
    space: tuple[int, ...] = ()  # how the rows are laid out
    whole: bool = True  # every output sees the whole row; else (groups) the layer has to run dense
    projected: int = 0  # of a split kernel: positions of t per input, and
    last_taps: int = 1  # how many of them a row of the output sees


DUTIES = ["options_type", "start", "mean_weights", "sample_weights", "output", "kl_parts", "summary"]  # of a family
DUTIES += ["run", "to_matrix", "from_matrix"]  # of a layer type

PAIRINGS: Registry[BayesianLayer] = Registry(DUTIES)
pairing, families, layer_types = PAIRINGS.pairing, PAIRINGS.families, PAIRINGS.layer_types

WEIGHT_BYTES = 2**23  # of sampled weights held at a time, where draws are seeded

# Buffers in which checkpoints of the 2020 code kept the prior; ours follows from the options.
LEGACY_BUFFERS = frozenset(
    ["prior_weight_mean", "prior_weight_sd", "prior_bias_mean", "prior_bias_sd", "prior_mean", "prior_scale_tril"]
)


class BayesianLayer(Drawn):
    """The interface of a pairing. A family fills the first part, a layer type the second, the base does the rest."""

    family: ClassVar[str]  # the name `inference=` knows
    options_type: ClassVar[type[Options]]
    prunable: ClassVar[tuple[str, ...]] = ()  # parameters whose small entries may be pruned
    plain: ClassVar[type[nn.Module]]  # the torch layer it replaces
    splits: ClassVar[bool] = False  # whether it knows its kernel as the split matrix, too

    options: Any  # an instance of options_type
    energy_kept: float | None = None  # of the weights (or outputs) it was converted from, where that is known
    weight_shape: torch.Size
    has_bias: bool
    d_out: int  # W is d_out x d_in; a bias is its last column
    d_in: int
    groups: int = 1  # parts into which inputs and outputs of a convolution fall

    # ---- a family provides -------------------------------------------------------------------------------------------

    @classmethod
    def start(cls, weights: Weights, options: Any) -> Start:
        """The tensors of the posterior from the weights to keep; changes no layer."""
        raise NotImplementedError

    @classmethod
    def settled(cls, options: Any, weights: Weights) -> Any:
        """The options with what the layer decides, by its weights or their shape: what is stored says what it is."""
        return options

    @classmethod
    def covariance_size(cls, weights: Weights, options: Any) -> int:
        """n where the posterior keeps an n x n covariance, which must fit in memory; else 0."""
        return 0

    @classmethod
    def member_number(cls, options: Any) -> int:
        """How many members each draw shows one of, by the options, where the posterior is a mixture; else 0."""
        return 0

    @property
    def scales(self) -> tuple[str, ...]:
        """The names of the parameters that are scales, kept through softplus; a family may set them as an attribute."""
        return ()

    @property
    def sized(self) -> tuple[str, ...]:
        """The names of the parameters whose starting size says how fast they should train."""
        return ()

    def units(self) -> dict[str, Tensor | float]:
        """What entries of parameters are multiplied by in the state dict, by name, where that is not 1.

        Powers of two, so that nothing is rounded.
        """
        return {}

    def sds_and_cap(self) -> tuple[Tensor | None, float | None]:
        """All standard deviations of the posterior, of any shape, and their cap, for reports; None for a point."""
        own = [positive(getattr(self, name)).flatten() for name in self.scales if name in self._parameters]
        return (torch.cat(own) if own else None), None

    def prune_scores(self, inputs: Weights | None) -> list[Prunable]:
        """How much every entry of the parameters in `prunable` matters, each of them once; see `bnn.prune_`.

        Args:
            inputs: the root mean square of what every weight multiplies, in the shape of the weights, where entries
                are to be judged by the layer's output; None: by themselves.
        """
        raise NotImplementedError

    def mean_weights(self) -> Weights:
        """The posterior mean."""
        raise NotImplementedError

    def sample_weights(self, draw: Draw) -> Weights:
        """Samples of the posterior, one for each of the K draws: weight (K, ...), bias (K, d_out)."""
        raise NotImplementedError

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        """The layer's outputs (K, ...) under K draws; `self.dense_output(input, draw)` unless there is a better way.

        `input` is (K, ...), or (1, ...) where all draws see the same.
        """
        raise NotImplementedError

    def kl_parts(self) -> KL:
        """The KL divergence from posterior to prior, in its two parts."""
        raise NotImplementedError

    def summary(self) -> str:
        """A few words for `extra_repr`: sizes and prior."""
        raise NotImplementedError

    # ---- a layer type provides ---------------------------------------------------------------------------------------

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The plain layer's forward with the given weights."""
        raise NotImplementedError

    @classmethod
    def to_matrix(cls, weights: Weights) -> Tensor:
        """The weights as W (d_out, d_in), the bias as the last column."""
        raise NotImplementedError

    def from_matrix(self, W: Tensor) -> Weights:
        """The inverse of `to_matrix`, for W (..., d_out, d_in)."""
        raise NotImplementedError

    # ---- and, if it can do better than K runs of the plain layer -----------------------------------------------------

    def run_each(self, input: Tensor, weights: Weights) -> Tensor:
        """The plain layer's outputs (K, ...) with K weights, for inputs (K, ...) or one (1, ...) for all."""
        inputs = input.expand(len(weights.weight), *input.shape[1:])
        biases = [None] * len(inputs) if weights.bias is None else list(weights.bias)
        return join_draws([self.run(*args)[None] for args in zip(inputs, weights.weight, biases, strict=True)])

    def fast_layout(self, input: Tensor) -> Tensor:
        """The input in the memory layout in which this layer runs fastest."""
        return input

    def fast_order(self, A: Tensor) -> Tensor:
        """Columns of matrices (..., d_in) in the order in which that layout keeps them."""
        return A

    def from_fast_order(self, W: Tensor) -> Weights:
        """`from_matrix` for a W with its columns in `fast_order`."""
        return self.from_matrix(W)

    def rows(self, shape: torch.Size) -> Rows | None:
        """How one draw's input of `shape` splits into rows; None for a layer that has to run dense."""
        return None

    # Inputs below are (K, N, ...): N inputs of each of K draws, or of one where all draws see the same.

    def project(self, input: Tensor, A: Weights) -> Tensor:
        """T = X A^T (K, N p, M) for the rows X of `input`, the bias's 1 included, and A (M, d_in) as weights."""
        raise NotImplementedError

    def from_rows(self, outputs: Tensor, rows: Rows, input: Tensor) -> Tensor:
        """Outputs (K, N p, d_out) of the rows as the plain layer would arrange them for `input`."""
        raise NotImplementedError

    def to_rows(self, outputs: Tensor) -> Tensor:
        """The inverse of `from_rows`: outputs (K, N, ...) as rows (K, N p, channels), of however many channels."""
        raise NotImplementedError

    def squares(self, input: Tensor, one: Tensor | float = 1.0) -> Tensor:
        """|x|^2 of every row, (K, N p), the bias's input included: 1, or `one` (K, N) where inputs were divided."""
        raise NotImplementedError

    def gram(self, input: Tensor, one: Tensor | float = 1.0) -> Tensor:
        """X X^T of the rows of every input, (K, N, p, p), the bias's input included; one that may be overwritten."""
        raise NotImplementedError

    # ---- and, for `splits`: the matrix of `bnn.functional.kernels` ---------------------------------------------------

    @classmethod
    def to_split(cls, weights: Weights) -> Tensor:
        """The weights as the split W (d_out kw, d_in / kw), the bias over all taps of the last column."""
        raise NotImplementedError

    def from_split(self, W: Tensor) -> Weights:
        """The inverse of `to_split`, for W (..., d_out kw, d_in / kw)."""
        raise NotImplementedError

    def from_fast_split(self, W: Tensor) -> Weights:
        """`from_split` for a W with its columns in `fast_order`."""
        raise NotImplementedError

    def split_projection(self, A: Tensor) -> Weights:
        """A (M, d_in / kw) as weights for `project_split`."""
        raise NotImplementedError

    def project_split(self, input: Tensor, A: Weights) -> Tensor:
        """t at all positions (K, N, *space, M), the bias's input included; a padding of zeros in w may be missing."""
        raise NotImplementedError

    def side_by_side(self, T: Tensor) -> Tensor:
        """What every row of the output sees of T (K, N, *space, M): its kw neighbours, (K, N p, kw M)."""
        raise NotImplementedError

    def sum_of_neighbours(self, values: Tensor) -> Tensor:
        """The sum over the kw neighbours that a row sees, (K, N p), of values at all positions (K, N, *space)."""
        raise NotImplementedError

    def residual_gram(self, input: Tensor, T: Tensor) -> Tensor | None:
        """X X^T - T T^T (K, N, p, p) for what rows see of T (K, N, *space, M); None where it takes both alone."""
        raise NotImplementedError

    def taps_of(self, L: Tensor, at: tuple[int, ...]) -> Tensor:
        """What every row of the output sees of the rows of L (K, N, q, q), which lie `at`: (K, N, p, q kw)."""
        raise NotImplementedError

    def back_weight(self, C: Tensor) -> Tensor:
        """C (rows of W, M), of one draw, as the weight of a plain layer from t to the outputs."""
        raise NotImplementedError

    def run_pair(self, input: Tensor, first: Weights, second: Weights) -> Tensor:
        """The outputs of W = C A as two plain layers: `first` makes t = A x, without a bias, `second` C t + bias."""
        raise NotImplementedError

    def from_neighbours(self, T: Tensor, C: Tensor) -> Tensor:
        """The outputs (K, N p, d_out) of T (K, N, *space, M) with C (K, d_out kw, M); one T or C may serve all K."""
        raise NotImplementedError

    # ---- construction ------------------------------------------------------------------------------------------------

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if joins(cls):
            PAIRINGS.join(cls, BayesianLayer)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        known = self.options_type.names()
        options = self.options_type.parse(self.family, {k: v for k, v in kwargs.items() if k in known})
        try:
            layer = self.plain(*args, **{k: v for k, v in kwargs.items() if k not in known})
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}; options of {self.family!r} are {known}") from None
        self.__dict__.update(layer.__dict__)  # a layer built from scratch is a plain one, converted
        options = self.settled(options, plain_weights(layer))
        adopt_(self, options, self.start(plain_weights(layer), options))

    @classmethod
    def convert_(cls, layer: nn.Module, options: Options, start: Start) -> Self:
        """Turns a plain layer, in place, into this pairing: swaps its class and its parameters."""
        layer.__class__ = cls
        assert isinstance(layer, cls)
        adopt_(layer, options, start)
        return layer

    # ---- what users see ----------------------------------------------------------------------------------------------

    def dense_output(self, input: Tensor, draw: Draw) -> Tensor:
        """The outputs with weights drawn once per draw, shared by the whole batch."""
        if draw.folded and input.ndim > 2:
            input = self.fast_layout(input.flatten(0, 1)).unflatten(0, input.shape[:2])
        if draw.call.at_mean:
            mean = self.mean_weights()
            return self.run_each(input, Weights(mean.weight[None], None if mean.bias is None else mean.bias[None]))
        if draw.seeds is None or draw.frozen(self) or self.repeats:
            return self.run_each(input, draw.once(self, "weights", self.sample_weights))
        size = max(1, WEIGHT_BYTES // max(1, 4 * self.d_in * self.d_out))  # draws whose weights are held at a time
        if draw.count <= size:
            return self.run_each(input, self.sample_weights(draw))
        outputs = []
        for start in range(0, draw.count, size):
            part = draw.only(start, min(start + size, draw.count))
            own = input if len(input) == 1 else input[start : start + size]
            outputs.append(self.run_each(own, self.sample_weights(part)))
        return join_draws(outputs)

    def rows_in(self, draw: Draw, input: Tensor) -> Rows | None:
        """`rows` of one draw's input, for inputs (K, ...) or (1, ...)."""
        known, key = draw.call.rows, (self, input.shape[1:])
        if key not in known:
            known[key] = self.rows(input.shape[1:])
        rows: Rows | None = known[key]
        return rows

    def entries_per_draw(self, input: Tensor, draw: Draw) -> int:
        """What it sees of each draw, and what it gives, twice: the next layer will have it as its input."""
        rows = self.rows_in(draw, input)
        entries = input.numel() // len(input) if len(input) > 1 else 0
        if rows is not None:
            entries += 2 * (input.shape[1] if rows.batched else 1) * rows.number * self.d_out
        return entries

    def kept(self, name: str) -> Tensor:
        """The parameter of this name, with exact zeros where it was pruned: how a family reads what is `prunable`."""
        return kept(self, name)

    def shared(self, name: str, compute: Callable[[], T], draw: Draw | None = None) -> T:
        """What `compute()` returns, computed once per call: of `draw`, else of the forward that is running, if any."""
        forward = running() if draw is None else None
        call = draw.call if draw is not None else None if forward is None else forward.draw.call
        if call is None:
            return compute()
        key = (self, name, torch.is_grad_enabled())
        if key not in call.computed:
            call.computed[key] = compute()
        result: T = call.computed[key]
        return result

    def kl_divergence(self) -> Tensor:
        """KL[posterior || prior] of this layer, a scalar in nats."""
        parts = self.kl_parts()
        kl = parts.u + parts.lamda
        check_kl(kl, f"this {type(self).__name__} ({self.summary()})")
        return kl

    def parameter_loss(self) -> Tensor:
        """An alias of `kl_divergence`."""
        return self.kl_divergence()

    weight: Any = property(lambda self: self._read_mean().weight, doc="The posterior mean of the weight.")
    bias: Any = property(
        lambda self: self._read_mean().bias if self.has_bias else None, doc="The posterior mean of the bias, or None."
    )

    def _read_mean(self) -> Weights:
        try:
            return self.mean_weights()
        except AttributeError as error:  # nn.Module would report it as "no attribute 'weight'"
            raise RuntimeError(f"the posterior mean of {type(self).__name__} cannot be computed: {error}") from error

    def init_from_deterministic_params(self, params: Mapping[str, Tensor | None]) -> None:
        """Starts this layer's posterior anew, in place, from the weights of a plain layer.

        Args:
            params: {"weight": ..., "bias": ...} in the plain layer's shapes; no "bias" for a layer without one.
        """
        restart_(self, params)

    def reset_parameters(self) -> None:
        """Starts this layer's posterior anew, in place, from fresh random weights of the plain layer."""
        self.init_from_deterministic_params(fresh_weights(self))

    def extra_repr(self) -> str:
        shown = SimpleNamespace(**self.__dict__, bias=True if self.has_bias else None)  # reading `bias` would compute
        return f"{self.plain.extra_repr(shown)}, {self.summary()}"  # type: ignore[arg-type]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in masked(self):
            destination[prefix + name] = self.kept(name) if keep_vars else self.kept(name).detach()
        for key, unit in state_units(self, prefix, destination).items():
            destination[key] = destination[key] * unit

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        own = {k: v for k, v in state_dict.items() if k.removeprefix(prefix) not in LEGACY_BUFFERS}
        expect_masks_(self, prefix, own)
        for key, unit in state_units(self, prefix, own).items():
            own[key] = own[key] / (unit.to(own[key].device) if isinstance(unit, Tensor) else unit)
        super()._load_from_state_dict(own, prefix, *args)
