"""How long things take next to each other: contestants take turns, so that whatever slows one slows all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch

from bnn._common.checks import whole


class Ratio(NamedTuple):
    """A quotient of two times: of their medians, and the lowest and highest of a round."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """Seconds that one contestant took.

    Args:
        median, low, high: over all rounds.
        rounds: how many there were.
        seconds: of every round, in order.
    """

    median: float
    low: float
    high: float
    rounds: int
    seconds: tuple[float, ...] = ()

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """What `seconds`, one for each round, come to."""
        return cls(statistics.median(seconds), min(seconds), max(seconds), len(seconds), tuple(seconds))

    def ratio_to(self, other: Timing) -> Ratio:
        """How many times as long as `other` of the same call: the quotient of the medians, and its range over rounds.

        >>> Timing.of([2.0, 4.0, 2.0]).ratio_to(Timing.of([1.0, 1.0, 4.0]))
        Ratio(value=2.0, low=0.5, high=4.0)
        """
        if len(self.seconds) != len(other.seconds) or not self.seconds:
            raise ValueError(f"a ratio needs the same rounds of both, got {len(self.seconds)} and {len(other.seconds)}")
        quotients = [_quotient(mine, its) for mine, its in zip(self.seconds, other.seconds, strict=True)]
        return Ratio(_quotient(self.median, other.median), min(quotients), max(quotients))


def interleaved(
    contestants: Mapping[str, Callable[[], Any]],
    rounds: int = 5,
    warmup: int = 1,
    device: torch.device | str | None = None,
    advance: Callable[[str], Any] | None = None,
) -> dict[str, Timing]:
    """Runs every contestant once per round, each round beginning with the next of them, and says how long each took.

    Args:
        contestants: functions without arguments, by name.
        rounds: that count.
        warmup: rounds before, which do not.
        device: where they compute; the clock waits for it. None: for CUDA, if anything uses it.
        advance: called with the name of a contestant after each of its turns, (rounds + warmup) times for each.

    >>> times = interleaved({"sum": lambda: sum(range(9)), "max": lambda: max(range(9))}, rounds=3)
    >>> times["sum"].rounds, times["sum"].low <= times["sum"].median <= times["sum"].high
    (3, True)
    """
    if not contestants:
        raise ValueError("there is nothing to time: give at least one contestant, as {'plain': lambda: net(x)}")
    for name, value, least in (("rounds", rounds, 1), ("warmup", warmup, 0)):
        whole(name, value, least)
    place = None if device is None else torch.device(device)
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warmup + rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            taken = _clocked(contestants[name], place)
            if turn >= warmup:
                seconds[name].append(taken)
            if advance is not None:
                advance(name)
    return {name: Timing.of(taken) for name, taken in seconds.items()}


def _clocked(run: Callable[[], Any], device: torch.device | None) -> float:
    """Seconds that one call takes, until the device is done."""
    _wait(device)
    start = perf_counter()
    run()
    _wait(device)
    return perf_counter() - start


def _wait(device: torch.device | None) -> None:
    """Waits for a device that computes in the background."""
    if device is None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device is not None and device.type == "mps":
        torch.mps.synchronize()


def _quotient(one: float, other: float) -> float:
    """one / other; infinite where the clock saw no time pass for `other`."""
    return one / other if other > 0 else float("inf")
