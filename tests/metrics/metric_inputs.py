"""Class probabilities and labels on which metrics go wrong, and random ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

Case = tuple[np.ndarray, np.ndarray]


def random_case(n: int, classes: int, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(classes, 0.3), size=n), rng.integers(classes, size=n)


def ties(n: int = 60, classes: int = 4) -> Case:
    """Probabilities in tenths, so that confidences repeat and fall on the edges of 5, 10 and 20 bins."""
    rng = np.random.default_rng(1)
    return rng.multinomial(10, np.full(classes, 1 / classes), size=n) / 10, rng.integers(classes, size=n)


_RANDOM = random_case(200, 5)
CASES: dict[str, Case] = {
    "random": _RANDOM,
    "many": random_case(1000, 10, seed=2),
    "float32": (_RANDOM[0].astype(np.float32), _RANDOM[1]),
    "ties": ties(),
    "one datum": (np.array([[0.2, 0.8]]), np.array([0])),
    "one label": (_RANDOM[0], np.full(200, 3)),
    "one class": (np.ones((4, 1)), np.zeros(4, int)),
    "sure and right": (np.eye(3)[[0, 1, 2, 1]], np.array([0, 1, 2, 1])),
    "sure and wrong": (np.eye(3)[[0, 1, 2, 1]], np.array([1, 2, 0, 0])),
    "sure, half right": (np.eye(2)[[0, 0, 1, 1]], np.array([0, 1, 1, 0])),
    "knows nothing": (np.full((9, 3), 1 / 3), np.arange(9) % 3),
    "fewer data than bins": random_case(7, 3, seed=3),
}

every_case = pytest.mark.parametrize(("probs", "labels"), list(CASES.values()), ids=list(CASES))


@st.composite
def batches(draw: st.DrawFn) -> Case:
    """Rows of whole numbers over their sum: zeros, ones and ties are common."""
    classes = draw(st.integers(2, 4))
    row = st.lists(st.integers(0, 6), min_size=classes, max_size=classes).filter(any)
    rows = np.array(draw(st.lists(row, min_size=1, max_size=20)), float)
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=len(rows), max_size=len(rows)))
    return rows / rows.sum(axis=1, keepdims=True), np.array(labels)


# Whole numbers make ties; larger ones than 20 collapse under a float32 sigmoid.
scores = st.lists(st.one_of(st.integers(0, 4), st.integers(20, 60), st.floats(-5, 5)), min_size=1, max_size=15)
