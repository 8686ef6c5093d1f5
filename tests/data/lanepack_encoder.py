"""Packs small stacks of images as lanepack: value by value in Python integers, the other way round from the decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = 14
LOW = 1 << 16


def neighbours(width: int, order: list[int], turn: int, y: int, x: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Cells (channel, row, column) that predict the value, pairs whose differences and cells whose errors do."""
    channel = order[turn]

    def there(c: int, *steps: tuple[int, int]) -> list[tuple[int, int, int]]:
        return [(c, y - up, x + right) for up, right in steps if y - up >= 0 and 0 <= x + right < width]

    values = there(channel, (0, -1), (1, 0), (1, -1), (1, 1), (0, -2), (2, 0), (1, -2), (1, 2), (2, 1), (2, -1))
    if turn == 0:
        values += there(channel, (2, -2), (2, 2), (3, 0), (0, -3), (1, -3), (1, 3))
    errors = there(channel, (0, -1), (1, 0), (1, -1), (1, 1), (0, -2), (2, 0))
    for earlier in order[:turn]:
        values += there(earlier, (0, 0), (0, -1), (1, 0), (1, -1), (1, 1))
        errors += there(earlier, (0, 0), (0, -1), (1, 0))
    for later in order[turn + 1 :]:
        values += there(later, (0, -1), (1, 0))
    pairs = [((0, -1), (1, -1)), ((1, 0), (1, -1)), ((1, 0), (1, 1)), ((0, -1), (0, -2)), ((1, 0), (2, 0))]
    slopes = [there(channel, *pair) for pair in pairs]
    return values, [pair for pair in slopes if len(pair) == 2], errors


def residuals(image: Any, weights: list[Any], thresholds: list[int]) -> list[tuple[int, int]]:
    """(context, symbol) of every value of one image (H, W, C), in the order of coding."""
    height, width, channels = image.shape
    order = [1, 0, 2] if channels == 3 else list(range(channels))
    errors: dict[Any, int] = {}
    coded = []
    for (y, x, turn), (mean, size) in zip(np.ndindex(height, width, channels), weights, strict=True):
        values, slopes, sizes = neighbours(width, order, turn, y, x)
        at = lambda cell: int(image[cell[1], cell[2], cell[0]])  # noqa: E731
        exact = int(mean[-1]) + sum(int(w) * at(cell) for w, cell in zip(mean[:-1], values, strict=True))
        quarters = (min(max(exact, 0), 255 << 13) + (1 << 10) >> 11) + 2
        predicted, fraction = min(quarters >> 2, 255), quarters & 3
        signs = [abs(at(a) - at(b)) for a, b in slopes] + [errors[cell] for cell in sizes]
        expected = max(int(size[-1]) + sum(int(w) * s for w, s in zip(size[:-1], signs, strict=True)), 0) >> 7
        level = sum(threshold <= expected for threshold in thresholds)
        value = at((order[turn], y, x))
        errors[order[turn], y, x] = abs(value - predicted)
        coded.append(((turn * (len(thresholds) + 1) + level) * 4 + fraction, (value - predicted) % 256))
    return coded


def encode(images: NDArray[np.uint8], lanes: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """The arrays of a lanepack file that holds `images` (N, H, W, C), with random weights, `lanes` images a group."""
    count, height, width, channels = images.shape
    rng, thresholds = np.random.default_rng(seed), [1, 2, 3, 5, 8, 13, 20, 40]
    order = [1, 0, 2] if channels == 3 else list(range(channels))
    weights = []
    for y, x, turn in np.ndindex(height, width, channels):
        values, slopes, errors = neighbours(width, order, turn, y, x)
        mean, size = rng.integers(-3000, 5000, len(values) + 1), rng.integers(-50, 400, len(slopes) + len(errors) + 1)
        weights.append((mean, size))
    coded = [residuals(image, weights, thresholds) for image in images]
    freq = frequencies(coded, channels * (len(thresholds) + 1) * 4)
    packed = [pack(coded[begin : begin + lanes], freq) for begin in range(0, count, lanes)]
    return {
        "shape": np.array(images.shape, np.int32),
        "gray": np.uint8(0),
        "lanes": np.int32(lanes),
        "lengths": np.array([len(words) for words, _ in packed], np.int64),
        "words": np.array([word for words, _ in packed for word in words], np.uint16),
        "states": np.array([state for _, states in packed for state in states], np.uint32),
        "thr": np.array(thresholds, np.uint16),
        "freq": freq.astype(np.uint16),
        "mw": np.concatenate([mean for mean, _ in weights]).astype(np.int32),
        "sw": np.concatenate([size for _, size in weights]).astype(np.int16),
    }


def frequencies(coded: list[list[tuple[int, int]]], contexts: int) -> NDArray[np.int64]:
    """Of every symbol in every context, in sum 2^14; a context that never comes up has none."""
    counts = np.zeros((contexts, 256), np.int64)
    for context, symbol in (pair for image in coded for pair in image):
        counts[context, symbol] += 1
    freq = np.where(counts > 0, 1 + counts * ((1 << BITS) - 256) // np.maximum(counts.sum(1, keepdims=True), 1), 0)
    freq[np.arange(contexts), counts.argmax(1)] += np.where(counts.any(1), (1 << BITS) - freq.sum(1), 0)
    return freq


def pack(coded: list[list[tuple[int, int]]], freq: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Words and states of one group: everything backwards, as a range coder of this kind does."""
    starts, states, words = np.cumsum(freq, 1) - freq, [LOW] * len(coded), []
    for step in reversed(range(len(coded[0]))):
        for lane in reversed(range(len(coded))):
            context, symbol = coded[lane][step]
            share, state = int(freq[context, symbol]), states[lane]
            if state >= share << 18:
                words.append(state & 0xFFFF)
                state >>= 16
            states[lane] = (state // share << BITS) + state % share + int(starts[context, symbol])
    return words[::-1], states
