"""Out-of-distribution inputs: a named image set in the shape of another, or synthetic inputs, for tables, too."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bnn._common.extras import need
from bnn.data.dataset import Data, Part
from bnn.data.named_sets.load import load_part

AT_ONCE = 1024  # images that are resized: bounds the memory
LETTERS = "ACEFHJKMNPRTVWXYadefhkmrtwxy"  # without those that look like a digit, or would if blurred
FONTS = (  # that come with matplotlib
    *(f"DejaVu{kind}{style}" for kind in ("Sans", "SansMono") for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10"),
)
GLYPH = 64  # pixels a letter is drawn with before it is shrunk
FAR = 3.0


def ood(name: str, like: Data, *, first: int | None = None, download: bool = False) -> Part:
    """The test part of a named image set as out-of-distribution inputs for a network trained on `like`.

    It has the channels, the size and the scaling of `like`, and no labels. Where only training images are there, these
    are taken.

    Args:
        name: an image set of `names()`; `tiny_imagenet` is for this alone.
        like: a set of images.
        first: only the first so many.
        download: as for `load`.
    """
    shape = tuple(like.train.x.shape[1:])
    if like.train.x.dtype != torch.uint8 or len(shape) != 3:
        raise ValueError(f"{like.name} is no set of images: its inputs are {like.train.x.dtype} {shape}")
    x = _any_part(name, first, download).x
    return Part(resized(with_channels(x, shape[0]), (shape[1], shape[2])), None, like.train.prepare)


def _any_part(name: str, first: int | None, download: bool) -> Part:
    try:
        return load_part(name, "test", first=first, download=download)
    except FileNotFoundError:
        try:
            return load_part(name, "train", first=first)
        except FileNotFoundError:
            pass
        raise


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Images uint8 (N, C, H, W) with another number of channels: grey is repeated, colours are averaged.

    >>> with_channels(torch.tensor([1, 2, 6], dtype=torch.uint8).reshape(1, 3, 1, 1), 1)
    tensor([[[[3]]]], dtype=torch.uint8)
    """
    if images.shape[1] == channels:
        return images
    if images.shape[1] != 1:
        images = torch.cat([part.float().mean(1, keepdim=True).round().byte() for part in images.split(AT_ONCE)])
    return images.repeat(1, channels, 1, 1)


def resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images uint8 (N, C, H, W) of another size (H, W): bilinear, smoothed first where they shrink."""
    if tuple(images.shape[2:]) == size:
        return images
    parts = (F.interpolate(part.float(), size, mode="bilinear", antialias=True) for part in images.split(AT_ONCE))
    return torch.cat([part.round().clamp(0, 255).byte() for part in parts])


def synthetic_ood(kind: str, like: Part, seed: int = 0) -> Part:
    """As many synthetic inputs as `like` has, of its shape and prepared as its own, without targets.

    - "noise": every value uniform over the range it has in `like`.
    - "shuffled": images with their pixels in random order; tables with every column in an order of its own, so that
      each value is an ordinary one and their combination is not.
    - "inverted": images with dark and bright exchanged.
    - "letters": printed letters, none of which looks like a digit (needs matplotlib, for its fonts).
    - "far": rows of a table three times as far from the mean.

    Args:
        kind: one of these.
        like: images uint8 (N, 1 or 3, H, W), or rows of numbers (N, D).
        seed: of everything random.

    >>> synthetic_ood("far", Part(torch.tensor([[0.0], [2.0]]))).x.tolist()
    [[-2.0], [4.0]]
    """
    known = kinds(like)
    if kind not in known:
        what = "images" if _is_images(like.x) else "tables"
        raise ValueError(f"no synthetic inputs {kind!r} for {what}; expected one of {list(known)}")
    x = known[kind](like.x, np.random.default_rng(seed))
    return replace(like, x=x, y=None)


def kinds(like: Part) -> dict[str, Callable[[Tensor, np.random.Generator], Tensor]]:
    """The synthetic inputs in the shape of `like`, by name; nothing for inputs that are neither images nor rows."""
    if _is_images(like.x):
        return {"noise": _noise, "shuffled": _shuffled_pixels, "inverted": _inverted, "letters": _letters}
    if isinstance(like.x, Tensor) and like.x.is_floating_point() and like.x.ndim == 2:
        return {"noise": _noise, "shuffled": _shuffled_columns, "far": _far}
    return {}


KINDS = ("noise", "shuffled", "inverted", "letters", "far")
strange = synthetic_ood  # the name of earlier versions


def _is_images(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.uint8 and x.ndim == 4 and x.shape[1] in (1, 3)


def _noise(x: Tensor, random: np.random.Generator) -> Tensor:
    if x.dtype == torch.uint8:
        return torch.from_numpy(random.integers(256, size=x.shape, dtype=np.uint8))
    low, high = x.amin(0), x.amax(0)
    return low + (high - low) * torch.from_numpy(random.random(x.shape)).to(x.dtype)


def _shuffled_pixels(x: Tensor, random: np.random.Generator) -> Tensor:
    n, channels, height, width = x.shape
    order = torch.from_numpy(random.random((n, 1, height * width)).argsort(-1)).expand(-1, channels, -1)
    return x.reshape(n, channels, -1).gather(2, order).reshape(x.shape)  # all channels of a pixel move together


def _shuffled_columns(x: Tensor, random: np.random.Generator) -> Tensor:
    return x.gather(0, torch.from_numpy(random.random(x.shape).argsort(0)))


def _inverted(x: Tensor, random: np.random.Generator) -> Tensor:
    return 255 - x


def _far(x: Tensor, random: np.random.Generator) -> Tensor:
    mean = x.mean(0)
    return mean + FAR * (x - mean)


def _letters(x: Tensor, random: np.random.Generator) -> Tensor:
    n, channels, height, width = x.shape
    drawn = [_letter(letter, font, height, width) for font in _fonts() for letter in LETTERS]
    order = [random.permutation(len(drawn)) for _ in range(-(-n // len(drawn)))]
    images = np.stack([drawn[i] for i in np.concatenate(order)[:n]])
    if x.float().mean() > 127:  # dark strokes on a bright ground
        images = 255 - images
    return torch.from_numpy(images)[:, None].repeat(1, channels, 1, 1)


def _fonts() -> list[Any]:
    folder = pathlib.Path(need("matplotlib", "plots").get_data_path(), "fonts", "ttf")
    truetype = need("PIL.ImageFont", "data").truetype
    return [truetype(str(folder / f"{name}.ttf"), GLYPH) for name in FONTS]


def _letter(letter: str, font: Any, height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A bright letter on a dark ground, uint8 (H, W), as high or as wide as fits."""
    image, draw = need("PIL.Image", "data"), need("PIL.ImageDraw", "data")
    sheet = image.new("L", (2 * GLYPH, 2 * GLYPH))
    draw.Draw(sheet).text((GLYPH // 2, GLYPH // 4), letter, fill=255, font=font)
    glyph = sheet.crop(sheet.getbbox())  # the ink alone
    scale = min(height / glyph.height, width / glyph.width)
    size = max(1, round(glyph.width * scale)), max(1, round(glyph.height * scale))
    canvas = image.new("L", (width, height))
    canvas.paste(glyph.resize(size, image.Resampling.BOX), ((width - size[0]) // 2, (height - size[1]) // 2))
    return np.asarray(canvas, dtype=np.uint8)
