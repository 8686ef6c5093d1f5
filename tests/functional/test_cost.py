"""The cost model's choice, against recorded timings: no test here looks at the clock."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bnn.functional.cost import Prices, Size, Way, cheapest, cost
from bnn.functional.patches import gram_multiplies

JOINT = [Way.JOINT, Way.JOINT_WITHOUT_COLUMNS]
WITHOUT_COLUMNS = [Way.JOINT_WITHOUT_COLUMNS, Way.PER_ROW_WITHOUT_COLUMNS]
CASES = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "ways.json").read_text())["cases"]

Choice = Callable[[list[Way], Size], Way]


def allowed(sampling: str, size: Size) -> list[Way]:
    """The ways that keep the guarantee; for one row, per row is exact too."""
    return list(Way) if sampling == "local" or size.rows == 1 else [Way.DENSE, *JOINT]


def regret(case: dict[str, Any], sampling: str, choose: Choice = cheapest) -> float:
    """Recorded time of the choice over the best."""
    size, ms = Size(**case["size"]), case["ms"]
    ways = allowed(sampling, size)
    return ms[choose(ways, size).value] / min(ms[way.value] for way in ways)


# ---- recorded timings ----------------------------------------------------------------------------------------------


def test_the_recording_covers_the_ground() -> None:
    """Two dozen shapes and more: Linear and conv, batch 1 to 256, K 1 to 32, every way timed."""
    assert len(CASES) >= 24
    assert len({case["case"] for case in CASES}) == len(CASES)
    assert {case["case"].split()[0] for case in CASES} == {"linear", "conv"}
    for field, least, most in (("inputs", 1, 256), ("draws", 1, 32)):
        values = [case["size"][field] for case in CASES]
        assert (min(values), max(values)) == (least, most)
    assert all(set(case["ms"]) == {way.value for way in Way} for case in CASES)
    assert all(ms > 0 for case in CASES for ms in case["ms"].values())


@pytest.mark.parametrize("sampling", ["auto", "local"])
def test_the_choice_is_nearly_the_best(sampling: str) -> None:
    regrets = {case["case"]: regret(case, sampling) for case in CASES}
    assert statistics.mean(regrets.values()) <= 1.1
    assert {name: value for name, value in regrets.items() if value > 1.5} == {}


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("sampling", ["auto", "local"])
def test_no_single_way_would_pass(sampling: str, way: Way) -> None:
    """The recording tells good choices from bad ones."""
    cases = [case for case in CASES if way in allowed(sampling, Size(**case["size"]))]
    if len(cases) == len(CASES):
        assert statistics.mean(regret(case, sampling, lambda ways, size: way) for case in cases) > 1.3
    else:  # per row is exact for one row only: never for all cases
        assert sampling == "auto"
        assert way not in (Way.DENSE, *JOINT)


# Split 3 x 3 kernels, padded by 1: (channels in, out, width, stride, M, N, K), then milliseconds of ways on one core.
SPLIT_CASES = [
    ((64, 64, 32, 1, 87, 1, 20), False, {"dense": 28.5, "per row": 27.7, "per row without columns": 26.1}),
    ((64, 128, 32, 2, 73, 1, 20), False, {"dense": 22.8, "per row": 14.6, "per row without columns": 11.1}),
    ((128, 128, 16, 1, 94, 1, 20), False, {"dense": 36.7, "per row": 13.9, "per row without columns": 11.2}),
    ((128, 256, 16, 2, 75, 1, 20), False, {"dense": 50.8, "per row": 9.3, "per row without columns": 5.8}),
    ((256, 256, 8, 1, 99, 1, 20), False, {"dense": 65.9, "per row": 12.3, "per row without columns": 6.5}),
    ((256, 512, 8, 2, 76, 1, 20), False, {"dense": 142.7, "per row": 14.7, "per row without columns": 3.3}),
    ((512, 512, 4, 1, 102, 1, 20), False, {"dense": 380.1, "per row": 25.4, "per row without columns": 4.7}),
    ((64, 64, 32, 1, 87, 1, 20), True, {"dense": 31.5, "per row": 30.4}),
    ((64, 128, 32, 2, 73, 1, 20), True, {"dense": 34.6, "joint": 64.9, "per row": 20.6}),
    (
        (128, 128, 16, 1, 94, 1, 20),
        True,
        {"dense": 64.4, "joint": 45.5, "joint without columns": 85.6, "per row": 23.4, "per row without columns": 64.6},
    ),
    (
        (128, 256, 16, 2, 75, 1, 20),
        True,
        {"dense": 90.8, "joint": 29.3, "joint without columns": 41.3, "per row": 19.5, "per row without columns": 31.6},
    ),
    (
        (256, 256, 8, 1, 99, 1, 20),
        True,
        {
            "dense": 174.6,
            "joint": 28.1,
            "joint without columns": 22.0,
            "per row": 26.0,
            "per row without columns": 20.6,
        },
    ),
    (
        (256, 512, 8, 2, 76, 1, 20),
        True,
        {
            "dense": 346.4,
            "joint": 35.2,
            "joint without columns": 16.4,
            "per row": 27.4,
            "per row without columns": 12.7,
        },
    ),
    (
        (512, 512, 4, 1, 102, 1, 20),
        True,
        {
            "dense": 742.2,
            "joint": 45.9,
            "joint without columns": 11.2,
            "per row": 40.8,
            "per row without columns": 10.8,
        },
    ),
    ((64, 64, 32, 1, 87, 8, 8), False, {"dense": 58.1, "per row": 74.9, "per row without columns": 84.3}),
    ((64, 128, 32, 2, 73, 8, 8), False, {"dense": 30.7, "per row": 26.8, "per row without columns": 30.5}),
    ((128, 128, 16, 1, 94, 8, 8), False, {"dense": 51.3, "per row": 29.1, "per row without columns": 31.2}),
    ((128, 256, 16, 2, 75, 8, 8), False, {"dense": 35.5, "per row": 16.6, "per row without columns": 14.9}),
    ((256, 256, 8, 1, 99, 8, 8), False, {"dense": 64.5, "per row": 19.1, "per row without columns": 16.7}),
    ((256, 512, 8, 2, 76, 8, 8), False, {"dense": 60.6, "per row": 12.1, "per row without columns": 7.6}),
    ((512, 512, 4, 1, 102, 8, 8), False, {"dense": 158.3, "per row": 15.1, "per row without columns": 8.9}),
    ((64, 64, 32, 1, 87, 8, 8), True, {"dense": 61.8, "per row": 101.0}),
    ((64, 128, 32, 2, 73, 8, 8), True, {"dense": 37.0, "joint": 202.7, "per row": 42.3}),
]


@pytest.mark.parametrize(("shape", "residual", "ms"), SPLIT_CASES)
def test_the_choice_is_nearly_the_best_for_split_kernels(
    shape: tuple[int, ...], residual: bool, ms: dict[str, float]
) -> None:
    c_in, c_out, width, stride, m, inputs, draws = shape
    out = width // stride
    gram = gram_multiplies(c_in, (width, width), (out, out), (3, 3))
    size = Size(draws, inputs, out**2, c_out, 9 * c_in, m, m, gram, 9, False, residual, 3, out * width)
    for sampling in ("auto", "local") if residual else ("local",):
        ways = [way for way in allowed(sampling, size) if way.value in ms]
        assert ms[cheapest(ways, size).value] <= 1.25 * min(ms[way.value] for way in ways)


# ---- what the model says of sizes ----------------------------------------------------------------------------------

CONV = Size(draws=8, inputs=8, rows=64, d_out=256, d_in=2304, m_out=64, m_in=64, gram=100**2 * 256, taps=9)
SEQUENCE = Size(draws=4, inputs=16, rows=64, d_out=512, d_in=513, m_out=64, m_in=64, gram=64**2 * 513)
VECTOR = Size(draws=16, inputs=1, rows=1, d_out=1024, d_in=1025, m_out=32, m_in=32, gram=1025)
SPLIT = CONV._replace(m_out=98, m_in=98, last_taps=3, projected=64)
SIZES = [CONV, SEQUENCE, VECTOR, SPLIT]
PAID = [name for name in Prices._fields if name != "wide"]  # which is a number of columns


@pytest.mark.parametrize("field", ["draws", "inputs", "rows", "d_out", "d_in"])
@pytest.mark.parametrize("way", Way)
def test_more_work_costs_more(way: Way, field: str) -> None:
    for shared, residual in itertools.product((False, True), repeat=2):
        for size in SIZES:
            size = size._replace(shared=shared, residual=residual)
            costs = [cost(way, size._replace(**{field: factor * getattr(size, field)})) for factor in (1, 2, 4, 8)]
            assert costs == sorted(costs)
            assert costs[0] < costs[1] < costs[3]


@pytest.mark.parametrize("way", Way)
def test_prices_are_paid_in_proportion(way: Way) -> None:
    """Twice the price of everything is twice the cost, and for nothing, nothing."""
    for size in SIZES:
        double = Prices()._replace(**{price: 2 * getattr(Prices(), price) for price in PAID})
        assert cost(way, size, double) == pytest.approx(2 * cost(way, size))
        assert cost(way, size, Prices()._replace(**dict.fromkeys(PAID, 0.0))) == 0


@pytest.mark.parametrize("way", [way for way in Way if way is not Way.DENSE])
def test_products_with_few_columns_run_slowly(way: Way) -> None:
    """Half the columns of a thin product save nothing; of a wide one they save half."""
    free = Prices(**dict.fromkeys(PAID, 0.0) | {"multiply": 1.0, "wide": 16.0})
    thin, wide = ([cost(way, SEQUENCE._replace(m_in=m, m_out=1), free) for m in sizes] for sizes in ((4, 8), (64, 128)))
    assert thin[1] < 1.1 * thin[0]
    assert wide[1] > 1.8 * wide[0]


@pytest.mark.parametrize("price", PAID)
def test_every_price_is_paid_by_some_way(price: str) -> None:
    cheaper = Prices()._replace(**{price: 0.0})
    assert any(cost(way, size, cheaper) < cost(way, size) for way in Way for size in (CONV, SPLIT))


@pytest.mark.parametrize("way", Way)
def test_shared_inputs_and_no_residual_never_cost_more(way: Way) -> None:
    for size in SIZES:
        assert cost(way, size._replace(shared=True)) <= cost(way, size)
        assert cost(way, size._replace(residual=False)) <= cost(way, size)
    if way is not Way.DENSE:
        assert cost(way, CONV._replace(shared=True)) < cost(way, CONV)


@pytest.mark.parametrize("sampling", ["auto", "local"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("d", [64, 256, 1024])
@pytest.mark.parametrize("factor", [1, 2])
def test_dense_wins_where_nothing_is_saved(d: int, factor: int, residual: bool, sampling: str) -> None:
    """M >= d on both sides, and more rows than columns: no product is smaller than the dense one."""
    m = factor * d
    for rows in (4 * d, 16 * d):
        for draws in (1, 8):
            size = Size(draws, 4, rows, d, d, m, m, gram=rows**2 * d, residual=residual)
            assert cheapest(allowed(sampling, size), size) is Way.DENSE


@pytest.mark.parametrize("sampling", ["auto", "local"])
@pytest.mark.parametrize("draws", [1, 4, 16, 32])
@pytest.mark.parametrize("d", [1024, 4096])
def test_one_row_of_a_wide_layer_is_drawn_without_columns(d: int, draws: int, sampling: str) -> None:
    """d_out normals instead of d_out M_in or d_out d_in."""
    size = Size(draws, 1, 1, d, d, 64, 64, gram=d)
    assert cheapest(allowed(sampling, size), size) in WITHOUT_COLUMNS
    assert cost(Way.JOINT_WITHOUT_COLUMNS, size) < cost(Way.JOINT, size) < cost(Way.DENSE, size)
    assert cost(Way.PER_ROW_WITHOUT_COLUMNS, size) < cost(Way.PER_ROW, size)


def test_columns_pay_once_there_are_many_rows() -> None:
    """One C serves all rows of a draw: with more of them, from some number on, it is worth drawing."""
    for pair in ((Way.JOINT, Way.JOINT_WITHOUT_COLUMNS), (Way.PER_ROW, Way.PER_ROW_WITHOUT_COLUMNS)):
        choices = [cheapest(pair, VECTOR._replace(inputs=2**i)) for i in range(14)]
        assert choices[0] is pair[1]
        assert choices[-1] is pair[0]
        assert choices == sorted(choices, key=pair[::-1].index)  # it changes once


def test_the_joint_way_is_left_where_an_input_has_very_many_rows() -> None:
    """Gram matrices grow with the square of the rows, their factors with the cube."""
    for rows, winner in ((16, JOINT), (4096, [Way.DENSE])):
        size = Size(8, 8, rows, 512, 4608, 64, 64, gram=rows**2 * 512, taps=9)
        assert cheapest(allowed("auto", size), size) in winner


def test_only_the_ways_on_offer_are_chosen() -> None:
    for way in Way:
        assert cheapest([way], CONV) is way
    assert cheapest(iter(JOINT), CONV) in JOINT
