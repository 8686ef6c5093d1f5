"""Split conformal prediction of MAPIE, another implementation: the same scores, quantiles, intervals and sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

import bnn
from bnn.conformal import Aps, Raps, calibrate

pytest.importorskip("mapie")
from mapie.classification import SplitConformalClassifier
from mapie.conformity_scores import APSConformityScore, RAPSConformityScore
from mapie.conformity_scores.bounds.std_normalised import StdConformityScore
from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor

N, NEW, C = 90, 40, 4
LEVELS = [0.5, 0.8, 0.9, 0.95]


class Classifier(ClassifierMixin, BaseEstimator):
    """Its inputs are its probabilities."""

    def __init__(self) -> None:
        self.classes_ = np.arange(C)

    def fit(self, X: Any, y: Any) -> Classifier:
        return self

    def predict(self, X: Any) -> Any:
        return np.asarray(X).argmax(1)

    def predict_proba(self, X: Any) -> Any:
        return np.asarray(X)


class Regressor(RegressorMixin, BaseEstimator):
    """Predicts one column of its inputs, and another as the sd."""

    def __init__(self, column: int = 0, sd: int = 1) -> None:
        self.column, self.sd, self.fitted_ = column, sd, True

    def fit(self, X: Any, y: Any) -> Regressor:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Any, return_std: bool = False) -> Any:
        X = np.asarray(X)
        return (X[:, self.column], X[:, self.sd]) if return_std else X[:, self.column]


@pytest.fixture
def classes() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(C, 0.6), size=N + NEW)
    y = (probs.cumsum(1) > rng.uniform(size=(N + NEW, 1))).argmax(1)
    return probs[:N], y[:N], probs[N:]


def test_lac_sets(classes: tuple[Any, Any, Any]) -> None:
    probs, y, new = classes
    theirs = SplitConformalClassifier(Classifier(), confidence_level=LEVELS, conformity_score="lac", prefit=True)
    _, sets = theirs.conformalize(probs, y).predict_set(new)
    for i, level in enumerate(LEVELS):
        np.testing.assert_array_equal(calibrate(probs, y).sets(new, level), sets[:, :, i])


def test_aps_sets(classes: tuple[Any, Any, Any]) -> None:
    """They draw u for calibration and for new rows from one seed, and count it from the other end: 1 - u."""
    probs, y, new = classes
    theirs = SplitConformalClassifier(
        Classifier(), confidence_level=LEVELS, conformity_score="aps", prefit=True, random_state=3
    )
    theirs.conformalize(probs, y)
    _, sets = theirs.predict_set(new, conformity_score_params={"include_last_label": "randomized"})
    u = 1 - np.random.RandomState(3).uniform(size=N)[:, None]
    v = 1 - np.random.RandomState(3).uniform(size=NEW)[:, None]
    scores = np.sort(Aps().of(probs, u)[np.arange(N), y])
    for i, level in enumerate(LEVELS):
        q = scores[int(np.ceil(round((N + 1) * level, 9))) - 1]
        np.testing.assert_array_equal(Aps().of(new, v) <= q, sets[:, :, i])


def test_raps_scores(classes: tuple[Any, Any, Any]) -> None:
    """Theirs choose lamda and k_reg themselves, so the scores are compared."""
    probs, y, _ = classes
    cumulated, position = APSConformityScore.get_true_label_cumsum_proba(y, probs, np.arange(C))
    k_reg, lamda = np.array([1]), np.array([0.2])
    theirs = RAPSConformityScore._regularize_conformity_score(k_reg, lamda, cumulated, position)
    ours = Raps(lamda=0.2, k_reg=1).of(probs, np.ones((N, 1)))[np.arange(N), y]
    np.testing.assert_allclose(ours, theirs[:, 0, 0], rtol=1e-12)


@pytest.fixture
def reals() -> tuple[Any, Any, Any]:
    """Means and sds of one draw (1, N + NEW), and targets."""
    rng = np.random.default_rng(0)
    means, sds = rng.normal(size=(1, N + NEW)), rng.uniform(0.2, 2.0, size=(1, N + NEW))
    return means, sds, means[0] + sds[0] * rng.standard_t(2, size=N + NEW)


def test_normalized_intervals(reals: tuple[Any, Any, Any]) -> None:
    """Upper ends: theirs round the rank of the lower end down; ours is as far from the mean as the upper one."""
    means, sds, y = reals
    X = np.concatenate([means, sds]).T
    score = StdConformityScore()
    theirs = SplitConformalRegressor(Regressor(), confidence_level=LEVELS, conformity_score=score, prefit=True)
    _, ends = theirs.conformalize(X[:N], y[:N]).predict_interval(X[N:])
    guarantee = calibrate((means[:, :N], sds[:, :N]), y[:N])
    for i, level in enumerate(LEVELS):
        lower, upper = guarantee.intervals((means[:, N:], sds[:, N:]), level)
        np.testing.assert_allclose(upper, ends[:, 1, i])
        np.testing.assert_allclose(means[0, N:] - lower, upper - means[0, N:])


@pytest.mark.parametrize("level", LEVELS)
def test_quantile_intervals(reals: tuple[Any, Any, Any], level: float) -> None:
    means, sds, y = reals
    X = np.stack([*bnn.metrics.mixture_interval(means, sds, level), means[0]], 1)  # low, high, and the centre
    given = [Regressor(column) for column in range(3)]
    theirs = ConformalizedQuantileRegressor(given, confidence_level=level, prefit=True)
    _, ends = theirs.conformalize(X[:N], y[:N]).predict_interval(X[N:], symmetric_correction=True)
    guarantee = calibrate((means[:, :N], sds[:, :N]), y[:N], "quantile", base=level)
    np.testing.assert_allclose(np.stack(guarantee.intervals((means[:, N:], sds[:, N:]), level), 1), ends[:, :, 0])
