"""One forward, one draw: what the layers of a network must agree on, for exactly as long as a forward lasts.

A `Draw` is opened by a hook on the root (put there by `bayesianize_`) or by `bnn.predict`, and closed when the forward
returns or raises. Layers ask it for their noise, so that a layer that runs twice in a forward shows the same weights
twice, and every layer shows the same ensemble member. A layer called on its own draws on its own. A `Draw` may stand
for K draws at once, which then run as one pass (`bnn.nn.fold`): whatever is drawn has a leading dimension K.
"""

from __future__ import annotations

import copy
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bnn.functional.cost import Way
from bnn.functional.gaussian import standard_normal

T = TypeVar("T")

SHARED = "V"  # what one module draws for all layers: the global matrix of inducing weights

_TWICE = (
    "a {} ran twice in one forward with separate noise; from now on it draws its weights, so that all its calls see "
    "the same function (sampling='weight' does so from the start)"
)


class Seeds:
    """Draws of a whole network, a number each: every layer has generators of its own, whatever order layers run in."""

    def __init__(self, network: nn.Module, *seeds: int) -> None:
        self.values = seeds
        self._kept = network  # so that no other module takes over an id
        self._index = {id(module): i for i, module in enumerate(unwrapped(network).modules())}

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._index

    def only(self, start: int, stop: int) -> Seeds:
        """The draws from `start` to `stop`."""
        part = Seeds.__new__(Seeds)
        part.values, part._kept, part._index = self.values[start:stop], self._kept, self._index
        return part

    def generators(self, module: nn.Module | None, name: str, device: torch.device | str, part: int = 0) -> list[Any]:
        """One generator per draw for the noise `name` of a layer, or of what all layers share (None), at its start."""
        index = 0 if module is None else 1 + self._index[id(module)]
        salt = zlib.crc32(name.encode())
        return [torch.Generator(device).manual_seed(_mix(seed, index, salt, part)) for seed in self.values]


class Plan:
    """What all draws of one call share: how every layer draws, decided once, and its factors.

    Args:
        restarts: a layer that turns out to run twice raises `Repeated`, because the caller starts again.
        limit: bytes that the folded input and output of a layer may take; more raises `TooLarge`.
        draws: how many draws the call makes in all; None: those of the one `Draw`.
    """

    def __init__(self, restarts: bool = False, limit: int | None = None, draws: int | None = None) -> None:
        self.restarts = restarts
        self.limit = limit
        self.draws = draws
        self.ways: dict[nn.Module, Way] = {}
        self.factors: dict[tuple[nn.Module, bool], Any] = {}  # by layer, and whether gradients flow
        self.rows: dict[tuple[nn.Module, torch.Size], Any] = {}  # by layer and shape of the input


class Repeated(Exception):  # noqa: N818, the name says what happened
    """A layer ran twice in a forward and is now marked: the call must start again."""


class TooLarge(Exception):  # noqa: N818
    """So many draws at once do not fit; `draws` do."""

    def __init__(self, draws: int) -> None:
        super().__init__(draws)
        self.draws = draws


class Draw:
    """K samples of everything the network needs to be a function.

    Args:
        root: the network whose forward this draw serves; None for a layer on its own.
        count: K; more than one only inside `bnn.nn.fold`.
        seeds: makes the draws repeatable, one seed each; None draws from torch's global generators.
        members: the ensemble members to show; None picks them at random when the first layer asks.
        pinned: opened around calls of the root (`predict`), rather than by the root's own hook.
        at_mean: no sample at all: every layer uses its posterior mean.
        plan: what this draw shares with others of the same call.
        inputs: how many inputs the root was given: the length of their dimension 0; None: unknown.
        part: which batch of inputs this is, where one call runs several.
    """

    def __init__(
        self,
        root: nn.Module | None = None,
        count: int = 1,
        seeds: Seeds | None = None,
        members: Sequence[int] | None = None,
        pinned: bool = False,
        at_mean: bool = False,
        plan: Plan | None = None,
        inputs: int | None = None,
        part: int = 0,
    ) -> None:
        self.root = root if root is None else unwrapped(root)
        self.count = count
        self.at_mean = at_mean
        self.seeds = seeds
        self.pinned = pinned
        self.plan = Plan() if plan is None else plan
        self.inputs, self.part = inputs, part
        self.token: Any = None  # set while K draws run as one pass
        self.shared = False  # whether all draws see the same input of the layer that is running, in such a pass
        self.depth = 1  # how often the root is running: it may call itself
        self.outer: Draw | None = None
        self._parent: tuple[Draw, int] | None = None
        self._scope = frozenset(map(id, self.root.modules())) if self.root is not None and pinned else None
        self._given = None if members is None else tuple(members)
        self._members: dict[tuple[int, Seeds | None], Tensor] = {}
        self._drawn: dict[tuple[nn.Module, str], Any] = {}
        self._drew_rows: set[int] = set()  # ids, which torch.compile can follow
        self._ran: set[int] = set()
        self._generators: dict[tuple[nn.Module, str], list[Any]] = {}
        self._coupled: bool | None = None
        self._held: tuple[Seeds, ...] | None = None  # the `frozen_draw` blocks around, of a snapshot

    def only(self, start: int, stop: int) -> Draw:
        """The draws from `start` to `stop`, for a forward of their own; what is drawn for the whole call is shared."""
        assert self.seeds is not None
        some = copy.copy(self)
        some.count, some.seeds = stop - start, self.seeds.only(start, stop)
        some._parent, some.outer = (self, start), None
        some._drawn, some._ran, some._drew_rows, some._generators = {}, set(), set(), {}
        return some

    def seeds_of(self, module: nn.Module) -> Seeds | None:
        """What makes `module` repeatable: this draw's own seeds, else those of the innermost `frozen_draw`."""
        if self.seeds is not None and module in self.seeds:
            return self.seeds
        around = _current.seeds if self._held is None else self._held
        return next((seeds for seeds in around if module in seeds), None)

    def frozen(self, module: nn.Module) -> bool:
        """Whether `frozen_draw` asks `module` to show one and the same function in every forward."""
        seeds = self.seeds_of(module)
        return seeds is not None and seeds is not self.seeds

    def snapshot(self, module: nn.Module) -> Draw:
        """This draw as `module` finds it now, for when the module has to run again."""
        part = copy.copy(self)
        part.outer, part._held = None, _current.seeds if self._held is None else self._held
        part._drawn = {key: value for key, value in self._drawn.items() if key[0] is module or key[1] == SHARED}
        part._members, part._ran, part._drew_rows = dict(self._members), set(self._ran), set(self._drew_rows)
        part.plan = copy.copy(self.plan)
        part.plan.ways = dict(self.plan.ways)
        part.plan.factors = {key: value for key, value in self.plan.factors.items() if key[0] is module}
        return part

    def once(self, module: nn.Module, name: str, sample: Callable[[Draw], T], whole: bool = False) -> T:
        """What `sample(draw)` returned the first time `module` asked for `name` in this draw: tensors (K, ...).

        Args:
            whole: sample for all draws of the call at once, where this is a part of them: for what takes little memory.
        """
        if whole and self._parent is not None:
            parent, start = self._parent
            return _rows(parent.once(module, name, sample, whole=True), start, start + self.count)
        if (module, name) not in self._drawn:
            self._drawn[module, name] = sample(self)
        result: T = self._drawn[module, name]
        return result

    def enter(self, module: nn.Module) -> None:
        """Notes that `module` runs; the second time it is marked as `repeats`, so that all its calls see one W.

        Weights drawn as a whole are the same in both calls. Where the first call drew only its outputs it is too late:
        the caller starts again (`Repeated`), or a warning says that this one forward had two functions.
        """
        if id(module) in self._ran and not module.repeats:
            module.repeats = True  # type: ignore[assignment]
            if id(module) in self._drew_rows:
                if self.plan.restarts:
                    raise Repeated
                warnings.warn(_TWICE.format(type(module).__name__), UserWarning, stacklevel=3)
        self._ran.add(id(module))

    def drew_rows(self, module: nn.Module) -> None:
        """Notes that `module` drew the noise of its outputs, not of its weights."""
        self._drew_rows.add(id(module))

    def normals(
        self, module: nn.Module, name: str, *shape: int, like: Tensor, by_input: bool = False, block: int = 0
    ) -> Tensor:
        """Standard normals (K, *shape): the noise `name` of a layer, the same whenever it asks in a seeded draw.

        Args:
            by_input: the noise belongs to the inputs, so another batch of them gets another.
            block: a number after 0 goes on where the last call for the same noise stopped.
        """
        seeds = self.seeds_of(module)
        if seeds is None:
            return standard_normal(self.count, *shape, like=like)
        noise = torch.empty(len(seeds.values), *shape, dtype=like.dtype, device=like.device)
        if block == 0:
            part = self.part if by_input else 0
            self._generators[module, name] = seeds.generators(module, name, like.device, part)
        for values, generator in zip(noise, self._generators[module, name], strict=True):
            values.normal_(generator=generator)
        return noise.expand(self.count, *shape)

    def member(self, module: nn.Module, size: int) -> Tensor:
        """The indices (K,) of the ensemble members that all layers with `size` members show in this draw."""
        if self._parent is not None:
            parent, start = self._parent
            return parent.member(module, size)[start : start + self.count]
        seeds = self.seeds_of(module)
        given = self._given if seeds is self.seeds else None  # inside `frozen_draw` its seed decides
        if (size, seeds) not in self._members:
            if given is not None:
                picked = torch.tensor(given, device="cpu") % size
            elif seeds is None:
                picked = torch.randint(size, (self.count,), device="cpu")
            else:
                generators = seeds.generators(None, "member", "cpu")
                picked = torch.cat([torch.randint(size, (1,), generator=g, device="cpu") for g in generators])
            self._members[size, seeds] = picked.expand(self.count)
        return self._members[size, seeds]

    def covers(self, module: nn.Module) -> bool:
        """Whether a forward of `module` that starts now is a part of this draw rather than one of its own."""
        if self._scope is not None:
            return id(module) in self._scope
        return self.root is not None and any(module is other for other in self.root.modules())

    def couples_inputs(self) -> bool:
        """Whether BatchNorm normalises by the batch, so that one input's output depends on the others."""
        if self._coupled is None:
            modules = () if self.root is None else self.root.modules()
            self._coupled = any(
                isinstance(m, nn.modules.batchnorm._BatchNorm) and (m.training or m.running_mean is None)
                for m in modules
            )
        return self._coupled


class _Current(threading.local):
    """Per thread: the open draw, and the seeds of all `frozen_draw` blocks around, innermost first."""

    def __init__(self) -> None:  # runs once per thread; attributes of the class would trip torch.compile
        self.draw: Draw | None = None
        self.seeds: tuple[Seeds, ...] = ()


_current = _Current()


def open_now() -> Draw | None:
    """The draw that is open, if any."""
    return _current.draw


def set_open(draw: Draw | None) -> None:
    """Makes `draw` the open one."""
    _current.draw = draw


@contextmanager
def open_draw(draw: Draw) -> Iterator[Draw]:
    """Makes `draw` the one that every forward inside the block takes part in."""
    draw.outer, _current.draw = _current.draw, draw
    try:
        yield draw
    finally:
        _current.draw = draw.outer


@contextmanager
def frozen_draw(network: nn.Module, seed: int = 0) -> Iterator[None]:
    """Holds one function of the posterior fixed: inside the block every `network(x)` uses the draw named by `seed`.

    The noise is fixed, not the weights: parameters may change inside the block and gradients flow to them. For
    plotting functions, time series and gradient checks.

    >>> import bnn
    >>> net = torch.nn.Linear(3, 2)
    >>> bnn.bayesianize_(net, "ffg", init_sd=1.0)
    >>> x = torch.ones(1, 3)
    >>> with bnn.frozen_draw(net, seed=7):
    ...     print(torch.equal(net(x), net(x)))
    True
    >>> torch.equal(net(x), net(x))
    False
    """
    if not isinstance(network, nn.Module) or not isinstance(seed, int):
        raise TypeError(f"frozen_draw takes a network and an integer seed, got {type(network).__name__} and {seed!r}")
    outer, _current.seeds = _current.seeds, (Seeds(network, seed), *_current.seeds)
    try:
        yield
    finally:
        _current.seeds = outer


def inputs_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The number of inputs: the length of the first tensor among the arguments; None if there is none."""
    first = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    return None if first is None or first.ndim == 0 else first.shape[0]


def unwrapped(network: nn.Module) -> nn.Module:
    """The network inside `torch.compile`'s wrapper; any other network itself."""
    inner = network.__dict__.get("_modules", {}).get("_orig_mod")
    return network if inner is None else inner


def _mix(*numbers: int) -> int:
    """One well-mixed number below 2^32 from several: a round of splitmix64 for each."""
    state = 0
    for number in numbers:
        state = (state ^ (number % 2**64)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 32


def _rows(drawn: Any, start: int, stop: int) -> Any:
    """Rows of a tensor, or of every tensor of a tuple."""
    if isinstance(drawn, Tensor):
        return drawn[start:stop]
    return None if drawn is None else type(drawn)(*(_rows(part, start, stop) for part in drawn))
