"""One sentence that keeps people honest: do the draws disagree, and more so where they should?"""

from __future__ import annotations

from collections.abc import Mapping

from bnn.evaluation.pieces import OOD, Uncertainty

HARDLY = 1e-3  # nats of mutual information; of real targets, share of the variance


def verdict(task: str, draws: int, inside: Uncertainty, ood: Mapping[str, OOD]) -> str:
    """What the disagreement of the draws is worth.

    >>> verdict("classification", 1, Uncertainty(0.5, 0.5, 0.0), {})
    'one pass: there are no draws that could disagree, so none of the uncertainty is epistemic'
    """
    if draws < 2:
        return "one pass: there are no draws that could disagree, so none of the uncertainty is epistemic"
    classes = task == "classification"
    sets = [one.uncertainty for one in ood.values()]
    inner = _disagreement(inside, classes)
    outer = sum(_disagreement(one, classes) for one in sets) / len(sets) if sets else None
    what = "mutual information {:.2g} nats" if classes else "{:.2g} of the variance is epistemic"
    place = "in distribution" if outer is None else "out of distribution"
    value = inner if outer is None else outer
    if value < HARDLY:
        gain = "any gain over the plain network is shrinkage, not uncertainty"
        return f"draws hardly disagree ({what.format(value)} {place}): {gain}"
    if outer is None:
        return f"draws disagree ({what.format(inner)} in distribution); whether more so elsewhere, ood= would tell"
    numbers = f"{inner:.2g} in, {outer:.2g} out{' (nats)' if classes else ' (share of the variance)'}"
    if outer <= inner:
        return f"draws disagree no more out of distribution than in it: {numbers}"
    return f"draws disagree {_times(outer, inner)} out of distribution: {numbers}"


def _times(outer: float, inner: float) -> str:
    return "more" if inner <= 0 else f"{outer / inner:.3g} times as much"


def _disagreement(one: Uncertainty, classes: bool) -> float:
    return one.epistemic if classes or one.total <= 0 else one.epistemic / one.total
