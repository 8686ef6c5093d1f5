"""Inputs of another kind, made rather than collected: there is nothing to download, and tables have some, too."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnn._common.extras import need
from bnn.data.dataset import Part

LETTERS = "ACEFHJKMNPRTVWXYadefhkmrtwxy"  # without those that look like a digit, or would if blurred
FONTS = (  # that come with matplotlib
    *(f"DejaVu{kind}{style}" for kind in ("Sans", "SansMono") for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10"),
)
GLYPH = 64  # pixels a letter is drawn with before it is shrunk
FAR = 3.0


def strange(kind: str, like: Part, seed: int = 0) -> Part:
    """As many made inputs as `like` has, of its shape and prepared as its own, without targets.

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

    >>> strange("far", Part(torch.tensor([[0.0], [2.0]]))).x.tolist()
    [[-2.0], [4.0]]
    """
    known = kinds(like)
    if kind not in known:
        what = "images" if _is_images(like.x) else "tables"
        raise ValueError(f"no strange inputs {kind!r} for {what}; expected one of {list(known)}")
    x = known[kind](like.x, np.random.default_rng(seed))
    return replace(like, x=x, y=None)


def kinds(like: Part) -> dict[str, Callable[[Tensor, np.random.Generator], Tensor]]:
    """What can be made in the shape of `like`, by name; nothing for inputs that are neither images nor rows."""
    if _is_images(like.x):
        return {"noise": _noise, "shuffled": _shuffled_pixels, "inverted": _inverted, "letters": _letters}
    if like.x.is_floating_point() and like.x.ndim == 2:
        return {"noise": _noise, "shuffled": _shuffled_columns, "far": _far}
    return {}


KINDS = ("noise", "shuffled", "inverted", "letters", "far")


def _is_images(x: Tensor) -> bool:
    return x.dtype == torch.uint8 and x.ndim == 4 and x.shape[1] in (1, 3)


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
