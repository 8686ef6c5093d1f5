"""The scores of predicted classes, as every table has them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from bnn import metrics
from bnn.metrics.classification import correct, log_losses, squared_errors

BINS = 15


def class_scores(probs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy, NLL, ECE and Brier score; accuracy, NLL and Brier also per input, under `per_input`."""
    p, y = probs.double().numpy(), labels.numpy()
    return {
        "accuracy": metrics.accuracy(p, y),
        "accuracy_first_half": metrics.accuracy(p[: len(p) // 2], y[: len(p) // 2]),
        "nll": metrics.nll(p, y),
        "ece": metrics.ece(p, y, bins=BINS),
        "brier": metrics.brier(p, y),
        "per_input": {
            "accuracy": correct(p, y),
            "nll": log_losses(p, y).astype(np.float32),
            "brier": squared_errors(p, y).astype(np.float32),
        },
    }
