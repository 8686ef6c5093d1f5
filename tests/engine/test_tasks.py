"""asyncio: a frozen draw belongs to the task that asked for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from engine_nets import Known


async def several_steps(known: Known, seed: int, steps: int = 3) -> list[bool]:
    with known.frozen(seed):
        seen = []
        for _ in range(steps):
            seen.append(known.shows(seed))
            await asyncio.sleep(0)
    seen.append(known.varies())
    return seen


@pytest.mark.parametrize("steps", [[3, 3], [1, 4], [4, 1], [2, 4, 1, 3]])
def test_tasks_do_not_mix(known: Known, steps: list[int]) -> None:
    async def main() -> list[list[bool]]:
        return await asyncio.gather(*(several_steps(known, i + 1, n) for i, n in enumerate(steps)))

    assert all(map(all, asyncio.run(main())))


def test_a_task_beside_a_block_is_random(known: Known) -> None:
    async def frozen(begun: asyncio.Event, done: asyncio.Event) -> None:
        with known.frozen(1):
            begun.set()
            await done.wait()

    async def main() -> bool:
        begun, done = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(frozen(begun, done))
        await begun.wait()
        free = known.varies()
        done.set()
        await task
        return free

    assert asyncio.run(main())


def test_a_cancelled_task_leaves_nothing_behind(known: Known) -> None:
    async def frozen() -> None:
        with known.frozen(1):
            await asyncio.sleep(60)

    async def main() -> bool:
        task = asyncio.create_task(frozen())
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return known.varies()

    assert asyncio.run(main())


def test_a_block_reaches_what_runs_inside_it(known: Known) -> None:
    """Coroutines awaited inside, tasks that start and end inside, and work handed to a thread with its context."""

    async def step() -> bool:
        await asyncio.sleep(0)
        return known.shows(1)

    async def main() -> list[bool]:
        with known.frozen(1):
            return [await step(), await asyncio.create_task(step()), await asyncio.to_thread(known.shows, 1)]

    assert asyncio.run(main()) == [True, True, True]


def test_a_task_that_outlives_the_block_it_began_in_is_random_afterwards(known: Known) -> None:
    async def server(ended: asyncio.Event) -> list[bool]:
        inside = known.shows(1)
        await ended.wait()
        return [inside, known.varies()]

    async def main() -> list[bool]:
        ended = asyncio.Event()
        with known.frozen(1):
            task = asyncio.create_task(server(ended))
            await asyncio.sleep(0)
        ended.set()
        return await task

    assert asyncio.run(main()) == [True, True]


def test_async_context_managers_freeze_the_block_of_their_caller(known: Known) -> None:
    @contextlib.asynccontextmanager
    async def frozen(seed: int) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        with known.frozen(seed):
            yield

    async def one(seed: int) -> list[bool]:
        async with frozen(seed):
            first = known.shows(seed)
            await asyncio.sleep(0)
            seen = [first, known.shows(seed)]
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(frozen(seed))
            await asyncio.sleep(0)
            seen.append(known.shows(seed))
        return [*seen, known.varies()]

    async def main() -> list[list[bool]]:
        return await asyncio.gather(one(1), one(2))

    assert asyncio.run(main()) == [[True] * 4] * 2


def test_a_suspended_async_generator_does_not_freeze_its_caller(known: Known) -> None:
    async def outputs() -> AsyncIterator[bool]:
        with known.frozen(1):
            while True:
                await asyncio.sleep(0)
                yield known.shows(1)

    async def main() -> list[bool]:
        seen, stream = [], outputs()
        for _ in range(2):
            seen += [await anext(stream), known.varies()]
        await stream.aclose()  # type: ignore[attr-defined]
        return [*seen, known.varies()]

    assert asyncio.run(main()) == [True] * 5
