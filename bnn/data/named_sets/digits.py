"""The digits that come with the package: nothing to download, enough to try everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bnn.data.named_sets.formats import Stack, reading

FILE = Path(__file__).with_name("digits.npz")
TRAINING = 1297  # the first ones; the other 500 are for testing
WHITE = 16


def read_digits(part: str, first: int | None = None) -> Stack:
    """1,797 handwritten digits of 8 x 8 pixels; the first 1,297 are for training, the last 500 for testing.

    They are the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI
    Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0, in their order: writers come one after the other, so
    that most of the test digits are by hands that training never saw. Their 17 shades, 0 to 16, are spread over
    0 to 255.

    >>> read_digits("test").images.shape
    (500, 1, 8, 8)
    """
    chosen = slice(None, TRAINING) if part == "train" else slice(TRAINING, None)
    with reading(FILE), np.load(FILE, allow_pickle=False) as file:
        images, labels = file["images"][chosen][:first], file["labels"][chosen][:first]
    spread = (images.astype(np.uint16) * 255 + WHITE // 2) // WHITE  # rounded
    return Stack(spread.astype(np.uint8)[:, None], labels)
