"""The statement of `bnn.conformal`, by simulation with fixed seeds: how often new targets are covered.

Without ties, hits of R independent repetitions (n calibration rows and one new row each) are Binomial(R, k / (n + 1)),
and those of m new rows under one set of calibration rows BetaBinomial(m, k, n + 1 - k): both exactly, so that the
bounds are quantiles, which a right count misses with a probability of 1e-6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta, betabinom, binom

from bnn.conformal import calibrate
from bnn.conformal.ranks import rank

MISS = 1e-6
R, LEVEL = 1500, 0.8


def within(hits: int, distribution: Any) -> bool:
    """Whether a count is between the outer quantiles of its distribution."""
    return bool(distribution.ppf(MISS / 2) <= hits <= distribution.isf(MISS / 2))


def reals(rng: np.random.Generator, rows: int) -> tuple[tuple[Any, Any], Any]:
    """Skewed targets of two draws that are wrong about mean and noise, and know the noise's course."""
    x = rng.uniform(0, 2, size=rows)
    means, sds = np.stack([0.9 * x, 0.5 + x]), np.stack([0.1 + 0.2 * x] * 2)
    return (means, sds), 1.3 * x + (0.2 + x) * (rng.exponential(size=rows) - 1)


def classes(rng: np.random.Generator, rows: int) -> tuple[Any, Any]:
    """Of four classes, with probabilities that are much too sure."""
    logits = rng.normal(size=(rows, 4)) + np.array([1.0, 0.0, 0.0, -0.7])
    true, sure = (np.exp(scale * logits) / np.exp(scale * logits).sum(1, keepdims=True) for scale in (1.0, 3.0))
    return sure, (true.cumsum(1) > rng.uniform(size=(rows, 1))).argmax(1)


@pytest.mark.parametrize("rows", [4, 19, 60])
@pytest.mark.parametrize("options", [{"method": "normalized"}, {"method": "quantile", "base": LEVEL}])
def test_intervals_cover_as_often_as_they_say(options: dict[str, Any], rows: int) -> None:
    """Every repetition is a target, as each is calibrated by itself."""
    repeated = 4000
    (means, sds), y = reals(np.random.default_rng(rows), (rows + 1) * repeated)
    means, sds, y = (part.reshape(*part.shape[:-1], rows + 1, repeated) for part in (means, sds, y))
    guarantee = calibrate((means[:, :-1], sds[:, :-1]), y[:-1], **options)
    lower, upper = guarantee.intervals((means[:, -1:], sds[:, -1:]), LEVEL)
    hits = int(((lower[0] <= y[-1]) & (y[-1] <= upper[0])).sum())
    expected = rank(rows, LEVEL) / (rows + 1)
    assert LEVEL <= expected <= LEVEL + 1 / (rows + 1)
    assert within(hits, binom(repeated, expected))
    if rows < 60:  # so few that the bound would see a rank that is off by one
        assert not within(round(repeated * (expected - 1 / (rows + 1))), binom(repeated, expected))


@pytest.mark.parametrize("options", [{"method": "lac"}, *({"method": m, "randomized": True} for m in ("aps", "raps"))])
def test_sets_cover_as_often_as_they_say(options: dict[str, Any]) -> None:
    rng, generator, rows, hits = np.random.default_rng(0), torch.Generator().manual_seed(0), 24, 0
    more = {"lamda": 0.1, "k_reg": 1} if options["method"] == "raps" else {}
    for _ in range(R):
        probs, y = classes(rng, rows + 1)
        guarantee = calibrate(probs[:-1], y[:-1], generator=generator, **options, **more)
        hits += bool(guarantee.sets(probs[-1:], LEVEL, generator=generator)[0, y[-1]])
    assert within(hits, binom(R, rank(rows, LEVEL) / (rows + 1)))


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_sets_that_are_not_randomised_cover_at_least_as_often(method: str) -> None:
    """Scores of 0 are ties, so only the lower bound holds."""
    rng, rows, hits = np.random.default_rng(0), 24, 0
    for _ in range(R):
        probs, y = classes(rng, rows + 1)
        hits += bool(calibrate(probs[:-1], y[:-1], method).sets(probs[-1:], LEVEL)[0, y[-1]])
    assert hits >= binom(R, LEVEL).ppf(MISS)


def test_coverage_given_the_calibration_rows_is_beta() -> None:
    rows, new = 200, 20_000
    rng = np.random.default_rng(0)
    draws, y = reals(rng, rows)
    fresh, fresh_y = reals(rng, new)
    for level in (0.5, 0.9):
        lower, upper = calibrate(draws, y).intervals(fresh, level)
        k = rank(rows, level)
        hits = int(((lower <= fresh_y) & (fresh_y <= upper)).sum())
        assert within(hits, betabinom(new, k, rows + 1 - k))
        assert beta(k, rows + 1 - k).std() == pytest.approx(np.sqrt(level * (1 - level) / rows), rel=0.02)
    raw = np.abs(fresh_y - fresh[0].mean(0)) <= 1.645 * np.hypot(fresh[1][0], fresh[0].std(0))
    assert raw.mean() < 0.6  # what the prediction itself calls 90 %


def test_every_class_is_covered_where_made_by_class() -> None:
    rows, new = 2_000, 20_000
    rng = np.random.default_rng(0)
    (probs, y), (fresh, fresh_y) = classes(rng, rows), classes(rng, new)
    plain, own = (calibrate(probs, y, by_class=by_class).sets(fresh, 0.9) for by_class in (False, True))
    uneven = []
    for c in range(4):
        of_class, n = fresh_y == c, int((y == c).sum())
        k = rank(n, 0.9)
        expected = betabinom(int(of_class.sum()), k, n + 1 - k)
        assert within(int(own[of_class, c].sum()), expected)
        uneven.append(not within(int(plain[of_class, c].sum()), expected))
    assert any(uneven)  # which the guarantee of all classes together does not promise
