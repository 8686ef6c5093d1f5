"""Reads stacks of small images in the lanepack packing: lossless, and all images of a group decoded in lock step.

Pixels go in raster order, at each pixel green, red, blue (any other number of channels: in order). Of every value the
file's integer weights predict, from values decoded before it, the value itself and how large the error will be:

    p = round(w . near)         (fixed point), which leaves a fraction of 2 bits
    b = bin of (v . errors)     among the thresholds `thr`
    value = p + s mod 256       with s from the frequency table of (channel, b, fraction)

and s comes from a range coder (rANS): one 32-bit state per image, 14-bit frequencies, 16-bit words, read by the images
that run low, in order. There are no floating-point numbers, so every machine decodes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Offset = tuple[int, int]  # rows down, columns to the right; every one points to a value decoded before
Cell = tuple[int, int, int]  # channel, row, column

MEAN_BITS, SIZE_BITS, FRACTION_BITS, TABLE_BITS, WORD_BITS = 13, 12, 2, 14, 16
LOW = 1 << WORD_BITS  # a state below it takes a word
MEMBERS = ("shape", "gray", "lanes", "lengths", "words", "states", "thr", "freq", "mw", "sw")

# Neighbours of the value in its own channel: of every channel, and of the first one in addition.
NEAR = ((0, -1), (-1, 0), (-1, -1), (-1, 1), (0, -2), (-2, 0), (-1, -2), (-1, 2), (-2, 1), (-2, -1))
FAR = ((-2, -2), (-2, 2), (-3, 0), (0, -3), (-1, -3), (-1, 3))
DONE = ((0, 0), (0, -1), (-1, 0), (-1, -1), (-1, 1))  # in channels that come earlier at this pixel
AHEAD = ((0, -1), (-1, 0))  # in channels that come later
SLOPES = (((0, -1), (-1, -1)), ((-1, 0), (-1, -1)), ((-1, 0), (-1, 1)), ((0, -1), (0, -2)), ((-1, 0), (-2, 0)))
ERRORS = ((0, -1), (-1, 0), (-1, -1), (-1, 1), (0, -2), (-2, 0))  # whose errors tell the size of the next, own channel
ERRORS_DONE = ((0, 0), (0, -1), (-1, 0))  # and in channels that come earlier


class Step(NamedTuple):
    """One value to decode, and what it is predicted from."""

    turn: int  # how many channels come before it at this pixel
    cell: Cell
    near: list[Cell]
    slopes: list[tuple[Cell, Cell]]
    errors: list[Cell]


class Tables(NamedTuple):
    """What all groups of a file share."""

    symbol: NDArray[np.uint8]  # (contexts, 2^14)
    frequency: NDArray[np.uint32]  # (contexts, 256)
    start: NDArray[np.uint32]  # (contexts, 256)
    thresholds: NDArray[np.int32]
    mean: NDArray[np.int32]  # weights, all steps one after the other, each with its constant last
    size: NDArray[np.int32]


def is_lanepack(members: Sequence[str]) -> bool:
    """Whether a file with these members is packed so."""
    return "words" in members and "states" in members


def group_sizes(file: Mapping[str, Array]) -> list[int]:
    """How many images each group has; a group is the least that can be decoded."""
    count, lanes = int(file["shape"][0]), int(file["lanes"])
    if count < 1 or lanes < 1:
        raise ValueError(f"{count} images in groups of {lanes}, expected at least one")
    return [min(lanes, count - begin) for begin in range(0, count, lanes)]


def decode(file: Mapping[str, Array], first: int | None = None) -> NDArray[np.uint8]:
    """The images (N, C, H, W) of an opened file, or the `first` of them (at least their groups are decoded).

    Raises:
        ValueError: the file is damaged.
    """
    sizes = group_sizes(file)
    wanted = sum(sizes) if first is None else min(first, sum(sizes))
    groups = [decode_group(file, index) for index in range(len(sizes)) if sum(sizes[:index]) < wanted]
    return np.concatenate(groups)[:wanted]


def decode_group(file: Mapping[str, Array], index: int) -> NDArray[np.uint8]:
    """The images (n, C, H, W) of one group of an opened file."""
    sizes = group_sizes(file)
    _, height, width, channels = (int(length) for length in file["shape"])
    steps = list(_steps(height, width, channels))
    tables = _tables(file, steps)
    ends = np.cumsum(file["lengths"], dtype=np.int64)
    states, words = file["states"], file["words"]
    if len(ends) != len(sizes) or ends[-1] != len(words) or len(states) != sum(sizes):
        raise ValueError("its parts do not fit together")
    begin = sum(sizes[:index])
    own = words[ends[index] - int(file["lengths"][index]) : ends[index]].astype(np.uint32)
    values = _run(own, states[begin : begin + sizes[index]].astype(np.uint32), steps, tables, (channels, height, width))
    return np.ascontiguousarray(values.astype(np.uint8).transpose(3, 0, 1, 2))


def _steps(height: int, width: int, channels: int) -> Iterator[Step]:
    """Every value in the order of decoding."""
    order = [1, 0, 2] if channels == 3 else list(range(channels))
    for row in range(height):
        for column in range(width):

            def cells(channel: int, offsets: Sequence[Offset], row: int = row, column: int = column) -> list[Cell]:
                inside = ((row + down, column + right) for down, right in offsets)
                return [(channel, y, x) for y, x in inside if y >= 0 and 0 <= x < width]

            for turn, channel in enumerate(order):
                near = cells(channel, NEAR + FAR if turn == 0 else NEAR)
                errors = cells(channel, ERRORS)
                for earlier in order[:turn]:
                    near += cells(earlier, DONE)
                    errors += cells(earlier, ERRORS_DONE)
                for later in order[turn + 1 :]:
                    near += cells(later, AHEAD)
                pairs = [cells(channel, pair) for pair in SLOPES]
                slopes = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
                yield Step(turn, (channel, row, column), near, slopes, errors)


def _tables(file: Mapping[str, Array], steps: Sequence[Step]) -> Tables:
    """The shared tables, checked, with the symbol of every slot spelled out."""
    frequency, thresholds = file["freq"].astype(np.uint32), file["thr"].astype(np.int32)
    contexts = (max(step.turn for step in steps) + 1) * (len(thresholds) + 1) << FRACTION_BITS
    totals = frequency.sum(1)
    if frequency.shape != (contexts, 256) or not np.isin(totals, (0, 1 << TABLE_BITS)).all():
        raise ValueError("its frequency tables are wrong")
    symbol = np.zeros((contexts, 1 << TABLE_BITS), np.uint8)
    for context in np.flatnonzero(totals):
        symbol[context] = np.repeat(np.arange(256, dtype=np.uint8), frequency[context])
    mean, size = file["mw"].astype(np.int32), file["sw"].astype(np.int32)
    expected = [sum(len(s.near) + 1 for s in steps), sum(len(s.slopes) + len(s.errors) + 1 for s in steps)]
    if [len(mean), len(size)] != expected:
        raise ValueError(f"it has {[len(mean), len(size)]} weights, expected {expected}")
    return Tables(symbol, frequency, np.cumsum(frequency, 1, dtype=np.uint32) - frequency, thresholds, mean, size)


def _run(words: Array, state: Array, steps: Sequence[Step], tables: Tables, shape: Cell) -> NDArray[np.int32]:
    """Decodes one group: values (C, H, W, n) from its words and the states (n,) of its images."""
    values = np.zeros((*shape, len(state)), np.int32)
    errors = np.zeros_like(values)
    mask, table_bits, word_bits = np.uint32((1 << TABLE_BITS) - 1), np.uint32(TABLE_BITS), np.uint32(WORD_BITS)
    at_mean = at_size = at_word = 0
    for step in steps:
        weights = tables.mean[at_mean : at_mean + len(step.near) + 1]
        at_mean += len(weights)
        predicted, fraction = _predicted([values[cell] for cell in step.near], weights, len(state))
        weights = tables.size[at_size : at_size + len(step.slopes) + len(step.errors) + 1]
        at_size += len(weights)
        signs = [np.abs(values[a] - values[b]) for a, b in step.slopes] + [errors[cell] for cell in step.errors]
        size = np.maximum(_weighted(signs, weights, len(state)), 0) >> (SIZE_BITS - 5)
        level = np.searchsorted(tables.thresholds, size, side="right")
        context = ((step.turn * (len(tables.thresholds) + 1) + level) << FRACTION_BITS) + fraction
        slot = state & mask
        symbol = tables.symbol[context, slot]
        state = tables.frequency[context, symbol] * (state >> table_bits) + slot - tables.start[context, symbol]
        low = np.flatnonzero(state < LOW)
        if at_word + len(low) > len(words):
            raise ValueError("it ends too early")
        state[low] = (state[low] << word_bits) | words[at_word : at_word + len(low)]
        at_word += len(low)
        values[step.cell] = (predicted + symbol) & 255
        errors[step.cell] = np.abs(values[step.cell] - predicted)
    if at_word != len(words) or (state != LOW).any():
        raise ValueError("its packed values are wrong")
    return values


def _predicted(near: Sequence[Array], weights: Array, count: int) -> tuple[Array, Array]:
    """The expected value (n,) in 0..255, and the next 2 bits of it, from values near by."""
    exact = np.clip(_weighted(near, weights, count), 0, 255 << MEAN_BITS)
    fine = ((exact + (1 << (MEAN_BITS - 1 - FRACTION_BITS))) >> (MEAN_BITS - FRACTION_BITS)) + (
        1 << (FRACTION_BITS - 1)
    )
    return np.minimum(fine >> FRACTION_BITS, 255), fine & ((1 << FRACTION_BITS) - 1)


def _weighted(terms: Sequence[Array], weights: Array, count: int) -> NDArray[np.int32]:
    """sum_i weights_i terms_i + the constant, (n,)."""
    total = np.full(count, weights[-1], np.int32)
    for term, weight in zip(terms, weights[:-1], strict=True):
        if weight:
            total += term * weight
    return total
