"""What K draws predict: classes or real numbers, with the uncertainty taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_LOG_OF_ZERO = -1e4  # finite, and exp of it is 0 in every type: p log p stays 0 where p is


class _ClassPrediction(NamedTuple):
    probs: Tensor  # mean over the draws: (N, C, ...), or the shape of the logits for labels that are 0 or 1
    total: Tensor  # entropy of `probs`: (N, ...) without the class dimension, or one per label
    aleatoric: Tensor  # mean entropy of the draws: ambiguity that more data would not remove
    epistemic: Tensor  # mutual information, total - aleatoric >= 0: how much the draws disagree


class ClassPrediction(_ClassPrediction):
    """What K draws say about classes: `probs`, and total, aleatoric and epistemic uncertainty in nats."""

    samples: Tensor | None = None  # the outputs (K, N, C, ...) of the draws, where asked for


class _RegressionPrediction(NamedTuple):
    mean: Tensor
    total: Tensor  # aleatoric + epistemic
    aleatoric: Tensor  # mean variance of the noise
    epistemic: Tensor  # variance, over the draws, of the mean


class RegressionPrediction(_RegressionPrediction):
    """What K draws say about real numbers: `mean`, and total, aleatoric and epistemic variance, all (N, ...)."""

    samples: Tensor | None = None  # the outputs (K, N, ...) of the draws, where asked for


def information(log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From log-probabilities (C, K, ...): mean probabilities (C, ...), total, aleatoric, epistemic uncertainty."""
    log_probs = log_probs.clamp(min=_LOG_OF_ZERO)
    probs = log_probs.exp()
    mean = probs.mean(1)
    aleatoric = torch.sum(probs * -log_probs, dim=0).mean(0)
    if log_probs.shape[1] == 1:
        return mean, aleatoric, aleatoric, torch.zeros_like(aleatoric)  # nobody to disagree with, to the last digit
    total = -torch.sum(mean * mean.clamp(min=torch.finfo(mean.dtype).tiny, max=1.0).log(), dim=0)
    return mean, total, aleatoric, (total - aleatoric).clamp(min=0.0)


def total_variance(means: Tensor, variances: Tensor) -> RegressionPrediction:
    """The law of total variance over the K draws of (mean, variance), dimension 0."""
    aleatoric = variances.mean(0)
    epistemic = means.var(0, correction=0) if means.numel() else torch.zeros_like(aleatoric)  # no inputs, no warning
    return RegressionPrediction(means.mean(0), aleatoric + epistemic, aleatoric, epistemic)


def mixture(parts: Sequence[RegressionPrediction]) -> RegressionPrediction:
    """The law of total variance over predictions of equal weight."""
    if len(parts) == 1:
        return parts[0]
    means, _, aleatoric, epistemic = (torch.stack(column) for column in zip(*parts, strict=True))
    of_means = total_variance(means, aleatoric)
    within = epistemic.mean(0)
    return RegressionPrediction(of_means.mean, of_means.total + within, of_means.aleatoric, of_means.epistemic + within)
