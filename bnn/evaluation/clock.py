"""How long a prediction takes next to one pass of the plain network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.timing import interleaved
from bnn.evaluation.outputs import Predictor, device_of
from bnn.evaluation.pieces import Time
from bnn.prediction import predict

INPUTS = 500  # predicted together, at most


def prediction_time(predictor: Predictor, x: Tensor, plain: nn.Module | None = None, rounds: int = 5) -> Time:
    """Seconds of a prediction with all draws, and of one pass of the plain network, taking turns in one process.

    Args:
        predictor: the network with its likelihood and number of draws.
        x: prepared inputs (N, ...); the first 500 are used.
        plain: a plain network of the same architecture, whatever its weights.
        rounds: that count, after one to warm up.
    """
    x = x[:INPUTS].to(device_of(predictor.network))
    network, likelihood, samples = predictor.network, predictor.likelihood, predictor.samples
    contestants: dict[str, Callable[[], Any]] = {}
    contestants["draws"] = lambda: predict(network, x, samples, likelihood, torch.Generator().manual_seed(0))
    if plain is not None:
        contestants["plain"] = partial(_pass, plain.to(x.device).eval(), x)
    times = interleaved(contestants, rounds, device=x.device)
    return Time(len(x), times["draws"].median, times["plain"].median if "plain" in times else None, rounds)


@torch.no_grad()
def _pass(plain: nn.Module, x: Tensor) -> None:
    plain(x)
