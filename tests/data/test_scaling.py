"""Scaling of images against the formula in float64."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import bnn.data
from bnn.data import images
from bnn.data.images import ImageScaling

IMAGES = torch.randint(0, 256, (7, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_the_formula() -> None:
    one = ImageScaling((0.1, 0.5, 0.9), (0.2, 0.3, 0.4), range=200)
    mean, sd = (np.reshape(value, (3, 1, 1)) for value in (one.mean, one.sd))
    expected = (IMAGES.numpy().astype(np.float64) / 200 - mean) / sd
    scaled = one(IMAGES)
    assert scaled.dtype == torch.float32
    np.testing.assert_allclose(scaled.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(one(IMAGES.numpy()), scaled)
    assert torch.equal(one(IMAGES.numpy()[:, :, ::-1]), scaled.flip(2))  # an array with negative strides


def test_the_input_stays_as_it_was() -> None:
    before = IMAGES.clone()
    ImageScaling((0.1, 0.5, 0.9), (0.2, 0.3, 0.4))(IMAGES)
    assert torch.equal(IMAGES, before)


def test_learned_on_the_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 3)
    values = IMAGES.double() / 255
    one = ImageScaling.learned(IMAGES)
    assert one.mean == pytest.approx(values.mean((0, 2, 3)).tolist(), abs=1e-9)
    assert one.sd == pytest.approx(values.std((0, 2, 3), correction=0).tolist(), abs=1e-9)


def test_a_channel_that_never_changes() -> None:
    one = ImageScaling.learned(torch.full((2, 1, 3, 3), 17, dtype=torch.uint8))
    assert one.sd == (1 / 255,)
    assert one(torch.full((2, 1, 3, 3), 17, dtype=torch.uint8)).abs().max() < 1e-5


def test_stored_as_json() -> None:
    one = ImageScaling((0.1, 0.25), (0.5, 1 / 3), range=16)
    stored = json.loads(json.dumps(one.to_dict()))
    assert stored["kind"] == "images"
    assert ImageScaling.from_dict(stored) == one
    assert bnn.data.preparation(stored) == one


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": [0.5]},
        {"mean": [0.5], "sd": [0.0], "range": 255},
        {"mean": [0.5], "sd": ["a"], "range": 255},
        {"mean": [0.5], "sd": [0.1, 0.2], "range": 255},
        {"mean": [float("nan")], "sd": [0.1], "range": 255},
    ],
)
def test_a_wrong_store_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"mean|sd|scaling"):
        ImageScaling.from_dict({"kind": "images", **wrong})


def test_wrong_images_are_errors() -> None:
    one = ImageScaling((0.1, 0.5, 0.9), (0.2, 0.3, 0.4))
    with pytest.raises(TypeError, match=r"uint8, 0 to 255, got torch\.float32"):
        one(IMAGES.float())
    with pytest.raises(TypeError, match="got list"):
        one([1, 2])
    with pytest.raises(ValueError, match=r"shape \(N, 3, H, W\), got \(7, 1, 5, 6\)"):
        one(IMAGES[:, :1])
    with pytest.raises(ValueError, match=r"permute\(0, 3, 1, 2\)"):
        one(IMAGES.permute(0, 2, 3, 1))
    with pytest.raises(ValueError, match="expected images"):
        ImageScaling.learned(IMAGES[:0])
