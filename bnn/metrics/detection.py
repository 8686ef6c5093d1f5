"""Detection of out-of-distribution inputs: they are the positive class, and a larger score speaks for them.

Ours, by ranks, where torchmetrics (1.9) could serve: its AUROC and average precision put scores outside [0, 1] through
a sigmoid, in the type they come in, so that large scores (20, 30, ... of float32) become ties; answer in float32; and
give 0 with a warning where a class is missing. Tests compare the two where torchmetrics is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from bnn.metrics.checks import Floats, probabilities, vector
from bnn.metrics.registry import metric
from bnn.metrics.resampling import Statistic, by_counts, one_by_one


class Predicted(Protocol):
    """What `bnn.predict` returns for classes."""

    @property
    def probs(self) -> Tensor: ...
    @property
    def total(self) -> Tensor: ...
    @property
    def epistemic(self) -> Tensor: ...


def ood_scores(prediction: Predicted) -> dict[str, Floats]:
    """Three scores (N,) of a prediction for classes, each larger where the network is less sure.

    - "max_prob": 1 - max_c p_c of the mean probabilities
    - "entropy": H[p], the total uncertainty in nats
    - "mutual_information": the epistemic part, how much the draws disagree; all 0 for a single draw

    >>> import bnn, torch
    >>> prediction = bnn.likelihoods.Categorical().predictive(torch.tensor([[[0.0, 0.0]], [[0.0, 0.0]]]))
    >>> {name: score.round(4).tolist() for name, score in ood_scores(prediction).items()}
    {'max_prob': [0.5], 'entropy': [0.6931], 'mutual_information': [0.0]}
    """
    p = probabilities(prediction.probs)
    scores = {
        "entropy": vector("total", prediction.total),
        "mutual_information": vector("epistemic", prediction.epistemic),
    }
    for name, score in scores.items():
        if len(score) != len(p):
            raise ValueError(f"{name} must have shape {p.shape[:1]} for probs of shape {p.shape}; got {score.shape}")
    return {"max_prob": 1 - p.max(axis=1).astype(np.float64)} | scores


class _Levels:
    """The distinct scores in ascending order, and which one every datum has."""

    def __init__(self, scores_in: ArrayLike, scores_out: ArrayLike) -> None:
        inside, outside = (
            vector(name, s, finite=False) for name, s in (("scores_in", scores_in), ("scores_out", scores_out))
        )
        levels, where = np.unique(np.concatenate([inside, outside]), return_inverse=True)
        self.number = len(levels)
        self.inside, self.outside = where[: len(inside)], where[len(inside) :]

    def count(self, inside: Floats | None = None, outside: Floats | None = None) -> tuple[Floats, Floats]:
        """How many data of each set have each score, (L,) and (L,), if every datum counts as often as given."""
        n_in = np.bincount(self.inside, inside, self.number).astype(np.float64)
        return n_in, np.bincount(self.outside, outside, self.number).astype(np.float64)


def _by_counts(of_levels: Callable[[Floats, Floats], float]) -> Callable[..., Statistic]:
    def make(scores_in: ArrayLike, scores_out: ArrayLike) -> Statistic:
        levels = _Levels(scores_in, scores_out)
        return one_by_one(lambda inside, outside: of_levels(*levels.count(inside, outside)))

    return make


def _auroc(n_in: Floats, n_out: Floats) -> float:
    below = np.cumsum(n_in) - 0.5 * n_in
    return float(n_out @ below / (n_in.sum() * n_out.sum()))


def _aupr(n_in: Floats, n_out: Floats) -> float:
    caught, flagged = np.cumsum(n_out[::-1]), np.cumsum((n_in + n_out)[::-1])
    return float(n_out[::-1] @ (caught / np.maximum(flagged, 1)) / n_out.sum())


def _fpr95(n_in: Floats, n_out: Floats) -> float:
    caught, false = np.cumsum(n_out[::-1]), np.cumsum(n_in[::-1])
    enough = int(np.argmax(20 * caught >= 19 * caught[-1]))  # whole numbers: 95 % without rounding
    return float(false[enough] / false[-1])


@metric("detection", "AUROC", "how often an out-of-distribution input has the larger score", better="higher")
@by_counts(_by_counts(_auroc), apart=True)
def auroc(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Area under the ROC curve, P(s_out > s_in) + P(s_out = s_in) / 2 for one random input from each set.

    Args:
        scores_in: (N,), scores of inputs from the distribution.
        scores_out: (M,), scores of out-of-distribution inputs.

    >>> auroc([0.1, 0.2, 0.3], [0.3, 0.4])  # 5 of 6 pairs are in order, one is a tie
    0.916...
    """
    return _auroc(*_Levels(scores_in, scores_out).count())


@metric("detection", "AUPR", "average precision at finding out-of-distribution inputs", better="higher")
@by_counts(_by_counts(_aupr), apart=True)
def aupr(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Average precision, sum_t (recall_t - recall_{t+1}) precision_t over all thresholds t: flagged if score >= t.

    Equal scores are flagged together; nothing is interpolated. A score that knows nothing gets M / (N + M), so numbers
    for sets of different sizes do not compare.

    >>> aupr([0.1, 0.2, 0.3], [0.3, 0.4])  # 1/2 at precision 1, 1/2 at precision 2/3
    0.833...
    """
    return _aupr(*_Levels(scores_in, scores_out).count())


@metric("detection", "FPR at 95 % found", "share of test inputs that are flagged when 95 % of the others are")
@by_counts(_by_counts(_fpr95), apart=True)
def fpr95(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Share of in-distribution inputs that are flagged when at least 95 % of the others are.

        t = max{t : #{s_out >= t} >= 0.95 M},   fpr95 = #{s_in >= t} / N

    t is one of the scores; equal scores are flagged together and nothing is interpolated, so a constant score gives 1.
    (Where in-distribution is the positive class the number is another one: 95 % of the *in* set are kept there.)

    >>> fpr95([0.1, 0.2, 0.3], [0.3, 0.4])  # both must be caught, t = 0.3
    0.333...
    """
    return _fpr95(*_Levels(scores_in, scores_out).count())
