"""Inputs and predictions that are no numbers: counted over all chunks, so that one error says how many rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bnn.data.dataset import tensors_in


class NotFinite:
    """Counts rows of one set whose inputs hold NaN, or whose predictions are not finite.

    Args:
        what: the set, for the error.
        rows: of the set.
    """

    def __init__(self, what: str, rows: int) -> None:
        self.what, self.rows = what, rows
        self.inputs = self.outputs = 0

    def count(self, x: Any, *outputs: NDArray[Any]) -> None:
        """Adds prepared inputs (n, ...) and what was predicted for them, arrays (n, ...)."""
        bad = [torch.isnan(one).reshape(len(one), -1).any(1) for one in tensors_in(x)]
        self.inputs += int(torch.stack(bad).any(0).sum())
        wrong = [~np.isfinite(one).reshape(len(one), -1).all(axis=1) for one in outputs]
        self.outputs += int(np.any(wrong, axis=0).sum())

    def check(self) -> None:
        """Raises if there were any."""
        if self.inputs:
            raise ValueError(
                f"{self.inputs} of {self.rows} rows of the inputs ({self.what}) hold NaN: remove these rows, or fill "
                "them in before evaluating"
            )
        if self.outputs:
            raise ValueError(
                f"the network's predictions for {self.outputs} of {self.rows} rows ({self.what}) are NaN or infinite, "
                "though the inputs hold no NaN: its weights may have diverged (train with a smaller learning rate), or "
                "the inputs are too large"
            )
