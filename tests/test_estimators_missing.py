"""Missing targets of estimators: what is known of several counts, alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bnn import BayesianRegressor

QUICK: dict[str, Any] = {"hidden": (8,), "epochs": 60, "lr": 0.02, "samples": 5, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 2))
Y = np.exp(np.stack([X[:, 0], 5 + X[:, 1]], axis=1) + 0.1 * RNG.normal(size=(300, 2)))
MISSING = np.where(np.arange(600).reshape(300, 2) % 5 == 0, np.nan, Y)


@pytest.mark.parametrize("positive", [False, True])
def test_what_is_known_counts(positive: bool) -> None:
    """Targets that are missing at random are predicted nearly as well as if they were known."""
    model = BayesianRegressor(positive=positive, guarantee=60, **QUICK).fit(X, MISSING)
    assert model.guarantee_.rows < 60
    assert sum(map(len, model.guarantee_.scores)) < 120
    full = BayesianRegressor(positive=positive, guarantee=60, **QUICK).fit(X, Y)
    for one in (model, full):
        assert (np.square(one.predict(X) - Y).mean(0) < 0.3 * Y.var(0)).all()
    lower, upper = model.predict_interval(X)
    assert (((lower <= Y) & (upper >= Y)).mean(0) > 0.8).all()


def test_a_missing_target_adds_nothing() -> None:
    """The scale of a target is that of its known values."""
    model = BayesianRegressor(scale=True, **QUICK).fit(X, MISSING)
    known = MISSING[~np.isnan(MISSING[:, 1]), 1]
    assert model.y_scale_.mean[1] == pytest.approx(known.mean(), rel=1e-12)
    assert model.y_scale_.sd[1] == pytest.approx(known.std(), rel=1e-12)


def test_what_has_to_be_known() -> None:
    alone = np.where(np.arange(300) == 7, np.nan, Y[:, 0])
    with pytest.raises(ValueError, match="y contains NaN"):
        BayesianRegressor(**QUICK).fit(X, alone)
    nothing = Y.copy()
    nothing[[3, 8]] = np.nan
    with pytest.raises(ValueError, match="every row of y needs a target that is known, and 2 have none, such as 3, 8"):
        BayesianRegressor(**QUICK).fit(X, nothing)
    column = np.stack([Y[:, 0], np.full(300, np.nan)], axis=1)
    with pytest.raises(ValueError, match="column 1 of y is NaN in all 300 rows of training"):
        BayesianRegressor(**QUICK).fit(X, column)
