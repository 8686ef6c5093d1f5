"""A frozen draw belongs to the block that asked for it, whatever ends first, and not to other threads or contexts."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from engine_nets import BY_ID, Known, mlp, one_function, varies

import bnn

# ---- order -----------------------------------------------------------------------------------------------------------


def test_blocks_may_end_out_of_order(known: Known) -> None:
    first, second = known.frozen(1), known.frozen(2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert known.shows(2)
    second.__exit__(None, None, None)
    assert known.varies()


def test_blocks_of_two_networks_may_end_out_of_order(known: Known) -> None:
    other = mlp(BY_ID["diagonal"]).requires_grad_(False)
    first, second = known.frozen(1), bnn.frozen_draw(other, 2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert known.varies()
    assert one_function(other, known.x)
    second.__exit__(None, None, None)
    assert varies(other, known.x)


# ---- threads and contexts --------------------------------------------------------------------------------------------


def test_a_block_in_one_thread_leaves_another_random(known: Known) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # the thread is there before the block
        with known.frozen(1):
            assert pool.submit(known.varies).result()
            assert known.shows(1)


def test_threads_with_blocks_of_their_own(known: Known) -> None:
    barrier, seen = threading.Barrier(3, timeout=20), []

    def run(seed: int) -> None:
        with known.frozen(seed):
            for _ in range(3):
                barrier.wait()
                seen.append(known.shows(seed))
        barrier.wait()
        seen.append(known.varies())

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 12


def test_a_copied_context_carries_the_block_and_no_more(known: Known) -> None:
    outside = contextvars.copy_context()
    with known.frozen(1):
        inside = contextvars.copy_context()
        assert inside.run(known.shows, 1)
        assert outside.run(known.varies)
    assert inside.run(known.varies)  # the block has ended


def test_a_block_inside_another_context_stays_there(known: Known) -> None:
    context, block = contextvars.copy_context(), known.frozen(1)
    context.run(block.__enter__)
    assert known.varies()
    assert context.run(known.shows, 1)
    context.run(block.__exit__, None, None, None)
    assert context.run(known.varies)


# ---- context managers of the user's own ------------------------------------------------------------------------------


def test_a_wrapper_freezes_the_block_of_its_caller(known: Known) -> None:
    with known.wrapped(1) as value:
        assert value == "inside"
        assert known.shows(1)
        with known.wrapped(2):
            assert known.shows(2)
        assert known.shows(1)
    assert known.varies()


def test_a_wrapper_of_a_wrapper_freezes_the_block_of_its_caller(known: Known) -> None:
    @contextlib.contextmanager
    def twice() -> Iterator[None]:
        with known.wrapped(3):
            yield

    with twice():
        assert known.shows(3)
    with pytest.raises(ZeroDivisionError), twice():
        _ = 1 / 0
    assert known.varies()


def test_an_exit_stack_freezes_until_it_closes(known: Known) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(known.frozen(1))
        assert known.shows(1)
        stack.enter_context(known.wrapped(2))
        assert known.shows(2)
        kept = stack.pop_all()
    assert known.shows(2)
    kept.close()
    assert known.varies()


def test_a_stack_filled_by_a_function_that_has_returned(known: Known) -> None:
    def enter(stack: contextlib.ExitStack, seed: int) -> None:
        stack.enter_context(known.frozen(seed) if seed == 1 else known.wrapped(seed))

    for seed in (1, 2):
        with contextlib.ExitStack() as stack:
            enter(stack, seed)
            assert known.shows(seed)
        assert known.varies()


def test_a_class_of_the_users_own(known: Known) -> None:
    class Frozen:
        def __enter__(self) -> None:
            self.block = known.frozen(4)
            self.block.__enter__()

        def __exit__(self, *error: Any) -> None:
            self.block.__exit__(*error)

    with Frozen():
        assert known.shows(4)
    assert known.varies()


def test_a_decorated_function(known: Known) -> None:
    @known.wrapped(1)
    def wrapped() -> bool:
        return known.shows(1)

    @known.frozen(2)
    def frozen() -> bool:
        return known.shows(2)

    for _ in range(2):
        assert wrapped()
        assert frozen()
        assert known.varies()
