"""Contestants take turns; all times come from a clock of our own, which only contestants move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bnn._common import timing
from bnn._common.timing import Ratio, Timing, interleaved


class Clock:
    """Stands still until a contestant runs."""

    def __init__(self) -> None:
        self.now = 100.0
        self.order: list[str] = []

    def contestant(self, name: str, *seconds: float) -> Callable[[], None]:
        """Takes `seconds` in turn, the last of them ever after."""
        left = list(seconds)

        def run() -> None:
            self.order.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(timing, "perf_counter", lambda: fake.now)
    return fake


def test_median_low_and_high_leave_the_warm_up_out(clock: Clock) -> None:
    times = interleaved({"a": clock.contestant("a", 50, 4, 1, 2), "b": clock.contestant("b", 3)}, rounds=3)
    assert times == {"a": Timing(2, 1, 4, 3, (4, 1, 2)), "b": Timing(3, 3, 3, 3, (3, 3, 3))}
    assert list(times) == ["a", "b"]


def test_contestants_take_turns_and_each_round_begins_with_the_next(clock: Clock) -> None:
    runs = {name: clock.contestant(name, 1) for name in "abc"}
    interleaved(runs, rounds=3, warmup=1)
    assert "".join(clock.order) == "abc" + "bca" + "cab" + "abc"


def test_no_warm_up_and_an_even_number_of_rounds(clock: Clock) -> None:
    times = interleaved({"a": clock.contestant("a", 1, 2)}, rounds=2, warmup=0)
    assert times["a"] == Timing(1.5, 1, 2, 2, (1, 2))


def test_advance_is_told_every_turn(clock: Clock) -> None:
    told: list[str] = []
    interleaved({name: clock.contestant(name, 1) for name in "ab"}, rounds=2, warmup=1, advance=told.append)
    assert told == clock.order
    assert len(told) == 6


def test_ratio_is_of_medians_with_the_range_over_rounds(clock: Clock) -> None:
    runs = {"one": clock.contestant("one", 9, 2, 4, 6), "other": clock.contestant("other", 9, 4, 1, 2)}
    times = interleaved(runs, rounds=3)
    assert times["one"].ratio_to(times["other"]) == Ratio(4 / 2, 2 / 4, 4 / 1)
    assert times["one"].ratio_to(times["one"]) == (1, 1, 1)


def test_a_ratio_to_no_time_is_infinite_and_one_of_other_rounds_an_error() -> None:
    assert Timing.of([1.0]).ratio_to(Timing.of([0.0])).value == float("inf")
    with pytest.raises(ValueError, match="the same rounds of both, got 2 and 1"):
        Timing.of([1.0, 1.0]).ratio_to(Timing.of([1.0]))
    with pytest.raises(ValueError, match="the same rounds of both, got 0 and 0"):
        Timing(1, 1, 1, 1).ratio_to(Timing(1, 1, 1, 1))


@pytest.mark.parametrize(("device", "used", "waits"), [("cuda", False, 4), (None, True, 4), (None, False, 0)])
def test_the_clock_waits_for_cuda(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, device: str | None, used: bool, waits: int
) -> None:
    """What still runs when the call returns counts: waiting moves the clock by 10."""
    waited: list[Any] = []

    def synchronize(*args: Any) -> None:
        waited.append(args)
        clock.now += 10

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    times = interleaved({"a": clock.contestant("a", 1)}, rounds=1, device=device)
    assert len(waited) == waits  # before and after, in the warm-up and in the round
    assert times["a"].median == (11 if waits else 1)


def test_the_processor_needs_no_waiting(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("nobody asked for CUDA")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert interleaved({"a": clock.contestant("a", 1)}, device=torch.device("cpu"))["a"].rounds == 5


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="nothing to time: give at least one contestant"):
        interleaved({})
    for name, value in (("rounds", 0), ("rounds", True), ("rounds", 2.0), ("warmup", -1)):
        with pytest.raises(ValueError, match=f"{name} must be an integer >="):
            interleaved({"a": int}, **{name: value})  # type: ignore[arg-type]


def test_an_error_of_a_contestant_comes_through(clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        interleaved({"a": lambda: 1 / 0})
