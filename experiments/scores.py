"""The scores that tables share: of predicted classes, of detection, and of what a network costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

import bnn
from bnn import metrics
from bnn.evaluation.network import stored_bytes
from bnn.metrics.classification import correct, log_losses, squared_errors

BINS = 15
BY = ("entropy", "mutual_information")


def class_scores(probs: Tensor, labels: Tensor, validation: tuple[Tensor, Tensor] | None = None) -> dict[str, Any]:
    """Accuracy, NLL, ECE and Brier score, and all but ECE per input.

    Args:
        probs, labels: (N, C) and (N,).
        validation: the same of inputs that are not among these: the temperature is learned on them.
    """
    p, y = probs.double().numpy(), labels.numpy()
    per_input = {"accuracy": correct(p, y), "nll": log_losses(p, y), "brier": squared_errors(p, y)}
    if validation is not None:
        other = validation[0].double().numpy()
        temperature = metrics.temperature_scaling(np.log(np.maximum(other, 1e-300)), validation[1].numpy())
        per_input["nll_after_temperature"] = log_losses(metrics.apply_temperature(p, temperature), y)
    means = {name: float(scores.mean()) for name, scores in per_input.items()}
    small = {name: one if one.dtype == bool else one.astype(np.float32) for name, one in per_input.items()}
    return means | {"ece": metrics.ece(p, y, bins=BINS), "per_input": small}


def detection_scores(inside: Any, outside: Mapping[str, Any]) -> dict[str, float]:
    """AUROC of telling each set of `outside` from `inside`, predictions of `bnn.predict`, by both uncertainties."""
    known = metrics.ood_scores(inside)
    strange = {name: metrics.ood_scores(prediction) for name, prediction in outside.items()}
    return {f"auroc_{by}_{name}": metrics.auroc(known[by], scores[by]) for by in BY for name, scores in strange.items()}


def cost_scores(net: nn.Module, plain: nn.Module, x: Any, samples: int, rounds: int = 7) -> dict[str, float]:
    """Parameters, also relative to the plain network's, bytes, and the time of K draws relative to one pass of it.

    Time of the processor, not of the clock: other programs do not count. The two take turns.
    """
    taken: dict[str, list[float]] = {"draws": [], "pass": []}
    for _ in range(rounds + 1):  # the first is for warming up
        for name, (one, K) in {"draws": (net, samples), "pass": (plain, 0)}.items():
            begin = time.process_time()
            bnn.predict(one, x, samples=K, likelihood="categorical")
            taken[name].append(time.process_time() - begin)
    draws, single = (statistics.median(taken[name][1:]) for name in ("draws", "pass"))
    sizes = {"parameters": bnn.parameter_count(net), "bytes": stored_bytes(net)}
    return sizes | {"share": sizes["parameters"] / bnn.parameter_count(plain), "relative_time": draws / single}
