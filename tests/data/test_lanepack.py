"""Decoding against an encoder that works value by value, with weights that use every neighbour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lanepack_encoder
import numpy as np
import pytest
from numpy.typing import NDArray

from bnn.data.named_sets import lanepack


def stack(count: int, channels: int, seed: int = 0) -> NDArray[np.uint8]:
    """Images (N, 6, 7, C): waves, with some noise."""
    rng = np.random.default_rng(seed)
    y, x, c = np.meshgrid(np.arange(6), np.arange(7), np.arange(channels), indexing="ij")
    phase = rng.uniform(0, 6, (count, 1, 1, 1))
    waves = 128 + 100 * np.sin(0.5 * y + 0.3 * x + 0.2 * c + phase) + rng.normal(0, 12, (count, 6, 7, channels))
    return waves.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_decodes_what_was_encoded(channels: int) -> None:
    images = stack(7, channels)
    packed = lanepack_encoder.encode(images, lanes=3)
    decoded = lanepack.decode(packed)
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, images.transpose(0, 3, 1, 2))


def test_extreme_values() -> None:
    images = np.random.default_rng(0).choice([0, 255], (5, 6, 7, 3)).astype(np.uint8)
    np.testing.assert_array_equal(
        lanepack.decode(lanepack_encoder.encode(images, lanes=5)), images.transpose(0, 3, 1, 2)
    )


def test_one_group_and_the_first_images() -> None:
    images = stack(7, 3)
    packed = lanepack_encoder.encode(images, lanes=3)
    assert lanepack.group_sizes(packed) == [3, 3, 1]
    np.testing.assert_array_equal(lanepack.decode_group(packed, 1), images[3:6].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(lanepack.decode(packed, first=4), images[:4].transpose(0, 3, 1, 2))


def test_the_first_images_leave_the_other_groups_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    group = lanepack.decode_group
    monkeypatch.setattr(lanepack, "decode_group", lambda file, index: decoded.append(index) or group(file, index))
    lanepack.decode(lanepack_encoder.encode(stack(7, 1), lanes=3), first=3)
    assert decoded == [0]


def changed(**arrays: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda packed: packed | {name: change(packed[name]) for name, change in arrays.items()}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (changed(words=lambda words: words ^ 1), "wrong|early"),
        (changed(words=lambda words: words[:-3]), "fit together"),
        (changed(words=lambda words: words[:-3], lengths=lambda lengths: lengths - [0, 3]), "early|wrong"),
        (changed(states=lambda states: states + 1), "wrong|early"),
        (changed(states=lambda states: states[:-1]), "fit together"),
        (changed(mw=lambda weights: weights[:-1]), "weights, expected"),
        (changed(freq=lambda freq: freq // 2), "frequency tables"),
        (changed(thr=lambda thresholds: thresholds[:1]), "frequency tables"),
        (changed(lanes=lambda lanes: lanes * 0), "at least one"),
    ],
)
def test_damage_is_an_error(damage: Callable[[dict[str, Any]], dict[str, Any]], message: str) -> None:
    packed = damage(lanepack_encoder.encode(stack(4, 3), lanes=2))
    with pytest.raises(ValueError, match=message):
        lanepack.decode(packed)
