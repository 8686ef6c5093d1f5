"""Augmentation: every result is a window of torch's reflect-padded image, all windows are as likely."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad as torch_pad

from bnn.data.images import Augment


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def windows(image: Tensor, pad: int, flip: bool) -> Tensor:
    """All (2 pad + 1)^2 windows of an image (C, H, W), then the same flipped if `flip`."""
    height, width = image.shape[1:]
    padded = torch_pad(image[None].double(), (pad, pad, pad, pad), mode="reflect")[0] if pad else image.double()
    places = [(a, b) for a in range(2 * pad + 1) for b in range(2 * pad + 1)]
    crops = torch.stack([padded[:, a : a + height, b : b + width] for a, b in places])
    return torch.cat([crops, crops.flip(-1)]) if flip else crops


def which(images: Tensor, image: Tensor, pad: int, flip: bool) -> Tensor:
    """For each of `images`, the place of the window of `image` that it is; fails if it is none, or two are alike."""
    known = [window.numpy().tobytes() for window in windows(image, pad, flip)]
    places = {window: place for place, window in enumerate(known)}
    assert len(places) == len(known)
    return torch.tensor([places[changed.double().numpy().tobytes()] for changed in images])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize(("shape", "pad"), [((3, 32, 32), 4), ((1, 5, 8), 2), ((2, 7, 3), 2), ((1, 4, 4), 0)])
def test_every_image_is_a_window_of_its_own_padded_image(dtype: torch.dtype, shape: tuple[int, ...], pad: int) -> None:
    x = torch.randint(256, (9, *shape), generator=generator()).to(dtype)
    before = x.clone()
    y = Augment(pad=pad)(x, generator(1))
    assert y.shape == x.shape
    assert y.dtype == dtype
    assert y.is_contiguous()
    assert torch.equal(x, before)
    for own, changed in zip(x, y, strict=True):
        assert (windows(own, pad, flip=True) == changed.double()).flatten(1).all(1).any()


@pytest.mark.parametrize(("pad", "flip"), [(4, True), (2, False), (0, True)])
def test_all_windows_occur_and_are_as_likely(pad: int, flip: bool) -> None:
    image = torch.randint(256, (1, 10, 10), generator=generator(), dtype=torch.uint8)  # no two windows alike
    count = 100 * (2 * pad + 1) ** 2 * (1 + flip)  # 100 of each expected
    seen = which(Augment(pad, flip)(image.expand(count, -1, -1, -1), generator(2)), image, pad, flip)
    freedom = count // 100 - 1
    counts = seen.bincount(minlength=freedom + 1).double()
    assert counts.min() > 0
    chi_square = float(((counts - 100) ** 2 / 100).sum())
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5 + 4  # mean f, sd sqrt(2 f): within four sds


def test_crop_and_flip_differ_from_image_to_image() -> None:
    image = torch.arange(36, dtype=torch.uint8).reshape(1, 1, 6, 6)
    y = Augment(pad=2)(image.expand(200, -1, -1, -1), generator())
    seen = which(y, image[0], 2, flip=True)
    rows, cols, flips = seen % 25 // 5, seen % 5, seen // 25
    for first, second in ((rows, cols), (rows, flips), (cols, flips)):
        correlation = torch.corrcoef(torch.stack([first, second]).double())[0, 1]
        assert abs(float(correlation)) < 0.25  # sd 0.07 when independent


def test_the_generator_decides() -> None:
    x = torch.randint(256, (50, 3, 8, 8), generator=generator(), dtype=torch.uint8)
    y = Augment()(x, generator(3))
    assert torch.equal(y, Augment()(x, generator(3)))
    assert not torch.equal(y, Augment()(x, generator(4)))
    assert torch.equal(y.float(), Augment()(x.float(), generator(3)))  # whatever the type
    state = torch.get_rng_state()
    Augment()(x, generator(3))
    assert torch.equal(torch.get_rng_state(), state)  # torch's own is left alone
    one = Augment()(x)
    torch.set_rng_state(state)
    assert torch.equal(one, Augment()(x))
    assert not torch.equal(torch.get_rng_state(), state)


def test_strided_and_empty_batches() -> None:
    x = torch.randint(256, (6, 8, 8, 3), generator=generator(), dtype=torch.uint8).permute(0, 3, 1, 2)
    assert torch.equal(Augment()(x, generator()), Augment()(x.contiguous(), generator()))
    assert Augment()(x[:0], generator()).shape == (0, 3, 8, 8)


def test_to_dict_is_json_and_reads_back() -> None:
    stored = json.loads(json.dumps(Augment(pad=3, flip=False).to_dict()))
    assert stored == {"kind": "augment", "pad": 3, "flip": False}
    del stored["kind"]
    assert Augment(**stored) == Augment(pad=3, flip=False)
    with pytest.raises(FrozenInstanceError):
        Augment().pad = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": -1}, "pad must be an integer >= 0, got -1"),
        ({"pad": 1.5}, "pad must be an integer >= 0, got 1.5"),
        ({"pad": True}, "pad must be an integer >= 0, got True"),
        ({"flip": 1}, "flip must be true or false, got 1"),
        ({"pad": 0, "flip": False}, "change nothing; leave the augmentation out"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augment(**options)  # type: ignore[arg-type]


def test_images_too_small_to_reflect() -> None:
    x = torch.zeros(2, 1, 4, 9, dtype=torch.uint8)
    assert Augment(pad=3)(x).shape == x.shape
    with pytest.raises(ValueError, match=r"which are 4 x 9, got 4; reflection reaches pad=3 at most"):
        Augment(pad=4)(x)
    with pytest.raises(ValueError, match=r"\(N, C, H, W\), got \(1, 4, 9\)"):
        Augment(pad=2)(x[0])
