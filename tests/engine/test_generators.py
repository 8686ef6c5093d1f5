"""A generator suspended in a frozen block freezes itself and nobody else."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from engine_nets import Known, Members, agree, varies
from torch import Tensor


def stream_of(known: Known, seed: int) -> Iterator[bool]:
    """Whether it is frozen, at every step."""
    with known.frozen(seed):
        while True:
            yield known.shows(seed)


def test_a_suspended_generator_does_not_freeze_its_caller(known: Known) -> None:
    stream = stream_of(known, 1)
    for _ in range(3):
        assert next(stream)
        assert known.varies()
    stream.close()
    assert known.varies()


def test_a_generator_that_is_collected_leaves_nothing_behind(known: Known) -> None:
    stream = stream_of(known, 1)
    assert next(stream)
    del stream
    gc.collect()
    assert known.varies()


COLLECTED_INSIDE_SET = """
import contextvars, gc, torch, bnn
net = torch.nn.Linear(2, 2)
bnn.bayesianize_(net, "ffg")
variables = [contextvars.ContextVar(str(i)) for i in range(200)]  # a context of two levels
for variable in variables:
    variable.set(0)
def stream():
    with bnn.frozen_draw(net, 1):
        yield
gc.collect(); gc.freeze(); gc.disable()
for i in range(3000):
    for _ in range(3):
        cycle = [stream()]
        next(cycle[0])
        cycle.append(cycle)
    del cycle
    gc.set_threshold(gc.get_count()[0] + i % 12)  # so many allocations from now, some of them inside `set`
    gc.enable()
    variables[i % 200].set(i)
    variables[(i + 7) % 200].set(i)
    gc.disable()
    gc.collect(0)
"""


def test_a_generator_may_be_collected_inside_set_of_a_context_variable() -> None:
    """Leaving a block there must not set one itself: Python 3.10 and 3.11 crash (python/cpython#148891)."""
    subprocess.run([sys.executable, "-Wignore", "-c", COLLECTED_INSIDE_SET], check=True, timeout=120)


def test_a_generator_that_ends_or_fails_leaves_nothing_behind(known: Known) -> None:
    def ends() -> Iterator[bool]:
        with known.frozen(1):
            yield known.shows(1)

    assert list(ends()) == [True]
    assert known.varies()
    stream = stream_of(known, 2)
    assert next(stream)
    with pytest.raises(ZeroDivisionError):
        stream.throw(ZeroDivisionError)  # type: ignore[attr-defined]
    assert known.varies()


def test_generators_do_not_mix(known: Known) -> None:
    first, second, third = (stream_of(known, seed) for seed in (1, 2, 3))
    for _ in range(3):
        assert next(first)
        assert next(second)
        assert next(third)
        assert known.varies()
    first.close()  # not in the order in which they began
    assert next(third)
    assert next(second)
    third.close()
    assert next(second)
    second.close()


def test_a_generator_resumed_inside_a_block(known: Known) -> None:
    """Its own block is the innermost one while it runs, the caller's while the caller runs."""
    stream = stream_of(known, 1)
    assert next(stream)
    with known.frozen(2):
        assert next(stream)
        assert known.shows(2)
        late = stream_of(known, 3)
        assert next(late)
        assert known.shows(2)
    assert next(late)
    assert next(stream)
    assert known.varies()


def test_a_generator_without_a_block_follows_whoever_resumes_it(known: Known) -> None:
    def outputs() -> Iterator[Tensor]:
        while True:
            yield known.net(known.x)

    stream = outputs()
    free = next(stream)
    with known.frozen(1):
        assert torch.equal(next(stream), known.named[1])
        assert torch.equal(next(stream), known.named[1])
    assert not torch.equal(next(stream), free)
    assert varies(lambda: next(stream))


def test_a_generator_inside_a_generator(known: Known) -> None:
    def outer() -> Iterator[list[bool]]:
        inner = stream_of(known, 1)
        with known.frozen(2):
            while True:
                yield [next(inner), known.shows(2)]

    def delegating() -> Iterator[bool]:
        yield known.varies()
        yield from stream_of(known, 3)

    for stream in (outer(), delegating()):
        for _ in range(3):
            assert next(stream) in (True, [True, True])
            assert known.varies()


def test_a_wrapper_used_in_a_generator_belongs_to_the_generator(known: Known) -> None:
    def stream() -> Iterator[bool]:
        with known.wrapped(1):
            while True:
                yield known.shows(1)

    steps = stream()
    for _ in range(2):
        assert next(steps)
        assert known.varies()


class InSteps(Members):
    """Runs its layers inside a generator and inside a context manager of its own."""

    def steps(self, x: Tensor) -> Iterator[Tensor]:
        for layer in self.layers:
            yield layer(x)

    @contextlib.contextmanager
    def beside(self, x: Tensor) -> Iterator[Tensor]:
        yield self.layers[0](x)

    def forward(self, x: Tensor) -> Tensor:
        with self.beside(x) as y:
            return torch.cat([*self.steps(x), y, self.layers[1](x)], -1)


def test_layers_that_run_in_a_generator_are_part_of_the_forward(known: Known) -> None:
    net, x = InSteps(), torch.ones(1, 1)
    outputs = [net(x) for _ in range(40)]
    assert all(map(agree, outputs))
    assert len({y[0, 0].item() for y in outputs}) == 4  # one is missed with probability 4 (3/4)^40 = 4e-5
