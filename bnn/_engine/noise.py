"""Noise with names: every noise of every layer comes from generators of its own, whatever order layers run in.

One number names all randomness of a call. A generator is seeded by that number, the layer's place in the network, the
noise's name, the part of the inputs it belongs to, and the *block of draws*: so no draw costs a generator of its own,
and the first draws stay the same however many there are in all.
"""

from __future__ import annotations

import math
import operator
import threading
import zlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

BLOCK, SHORT_BLOCK = 32, 8  # draws that share a generator: seeding one takes as long as hundreds of normals
LONG = 2**12  # normals of one draw from which blocks are short: a draw from the middle of a block costs those before it
LANES = 16  # torch makes normals by sixteens: with a multiple for every draw, more draws do not change the first ones


class Noise(NamedTuple):
    """Which noise is asked for."""

    name: str  # one for each noise of a layer
    part: int = 0  # of the inputs, for noise that belongs to them: which batch
    unit: int = 0  # and which of its units


class Seeds:
    """The randomness of a network, named by one number."""

    def __init__(self, network: nn.Module, number: int) -> None:
        self.number = number
        self._kept = network  # so that no other module takes over an id
        self._places: dict[int, int] | None = None
        self._streams: dict[tuple[int, Noise], tuple[torch.Generator, tuple[int, int]]] = {}

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._all_places()

    def normals(
        self,
        module: nn.Module,
        noise: Noise,
        shape: tuple[int, ...],
        draws: range,
        like: Tensor,
        last: int | None = None,
    ) -> Tensor:
        """Standard normals (len(draws), *shape), of the type and on the device of `like`.

        Args:
            last: where the draws of the whole call stop, if these are a part of them: others will follow.
        """
        count, dtype, device = len(draws), like.dtype, like.device
        if device.type == "meta":
            return torch.randn((count, *shape), dtype=dtype, device=device)
        entries = math.prod(shape)
        slab = -(-entries // LANES) * LANES  # entries of one draw in memory
        values = torch.empty((count, slab), dtype=dtype, device=device)
        start, generator, block = draws.start, None, BLOCK if slab < LONG else SHORT_BLOCK
        while start < draws.stop:
            stop = min(start - start % block + block, draws.stop)
            generator = self._generator(module, noise, divmod(start, block), like, slab, generator)
            _fill_(values if stop - start == count else values[start - draws.start : stop - draws.start], generator)
            start = stop
        if generator is not None and last is not None and draws.stop < last and draws.stop % block:
            self._streams[id(module), noise] = (
                generator,
                divmod(draws.stop, block),
            )  # the next part of the draws continues from here
        return (values if slab == entries else values[:, :entries]).view(count, *shape)

    def integers(self, module: nn.Module | None, name: str, below: int, draws: range) -> Tensor:
        """Random integers (len(draws),) on the CPU, for a layer or for all layers together (None)."""
        place = 0 if module is None else self._place(module)
        numbers = [_mix(self.number, place, _salt(name), 0, 0, draw) % below for draw in draws]
        return torch.tensor(numbers, device="cpu")

    def _generator(
        self,
        module: nn.Module,
        noise: Noise,
        place: tuple[int, int],
        like: Tensor,
        slab: int,
        used: torch.Generator | None,
    ) -> torch.Generator:
        """The generator at `place` = (block, draw of the block), where that draw begins; `used` may be seeded anew."""
        block, skipped = place
        if skipped:
            generator, reached = self._streams.pop((id(module), noise), (None, None))
            if generator is not None and reached == place and generator.device == like.device:
                return generator
        seed = _mix(self.number, self._place(module), _salt(noise.name), noise.part, noise.unit, block)
        generator = (torch.Generator(like.device) if used is None else used).manual_seed(seed)
        if skipped:
            _fill_(torch.empty((skipped, slab), dtype=like.dtype, device=like.device), generator)
        return generator

    def _place(self, module: nn.Module) -> int:
        """A number for `module`: its place in the network; modules from outside the network follow as they ask."""
        places = self._places if self._places is not None else self._all_places()
        place = places.get(id(module))
        return places.setdefault(id(module), len(places) + 1) if place is None else place

    def _all_places(self) -> dict[int, int]:
        if self._places is None:
            self._places = {id(module): 1 + i for i, module in enumerate(unwrapped(self._kept).modules())}
        return self._places


def fresh_number() -> int | None:
    """A number for one draw from torch's global generator; None where there is none to be had.

    That is while torch traces, compiles or captures a graph, where the noise has to be an operation of the graph, and
    inside a `torch.vmap` that asks for different noise in every lane.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return None
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return None
    try:
        return int(torch.randint(2**62, (), device="cpu"))
    except RuntimeError:
        return None


def unwrapped(network: nn.Module) -> nn.Module:
    """The network inside `torch.compile`'s wrapper; any other network itself."""
    inner = network.__dict__.get("_modules", {}).get("_orig_mod")
    return network if inner is None else inner


def _fill_(values: Tensor, generator: torch.Generator) -> None:
    """Fills `values` with normals, in place, also inside torch.func's transforms, where they are constants.

    There torch refuses random operations, or wants them per lane; another thread is outside of all transforms.
    """
    try:
        values.normal_(generator=generator)
    except RuntimeError as error:
        made: list[Tensor] = []
        shape, dtype, device = values.shape, values.dtype, values.device

        def make() -> None:
            made.append(torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if not made:  # it was something else
            raise error
        values.copy_(made[0])


_salts: dict[str, int] = {}  # by name; a plain dict, because torch.compile warns of cached functions


def _salt(name: str) -> int:
    if name not in _salts:
        _salts[name] = zlib.crc32(name.encode())
    return _salts[name]


def _mix(*numbers: int) -> int:
    """One well-mixed number below 2^63 from several: their product sum with random odd numbers, through splitmix64."""
    state = sum(map(operator.mul, numbers, _FACTORS)) & 0xFFFFFFFFFFFFFFFF
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return (state ^ state >> 31) >> 1


_FACTORS = (
    0x9E3779B97F4A7C15,
    0xD1B54A32D192ED03,
    0xABC98388FB8FAC03,
    0x8CB92BA72F3D8DD7,
    0xDB4F0B9175AE2165,
    0xE7037ED1A0B428DB,
)


def rows_of(drawn: Any, start: int, stop: int) -> Any:
    """Rows of a tensor, or of every tensor of a tuple."""
    if isinstance(drawn, Tensor):
        return drawn[start:stop]
    return None if drawn is None else type(drawn)(*(rows_of(part, start, stop) for part in drawn))
