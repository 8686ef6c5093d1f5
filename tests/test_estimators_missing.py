"""Several targets of an estimator, some of them missing: what is known counts, and R^2 is of what is known."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score

from bnn import BayesianRegressor

QUICK: dict[str, Any] = {"hidden": (16,), "epochs": 60, "lr": 0.02, "batch_size": 50, "random_state": 0}


def two(n: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """X, two targets with units and noise of their own, and the same with a third and half of them NaN."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 2))
    Y = np.stack([X[:, 0] + 0.1 * rng.normal(size=n), 1e4 + 500 * X[:, 1] + 50 * rng.normal(size=n)], axis=1)
    seen, row = Y.copy(), np.arange(n)
    seen[row % 3 == 0, 0] = np.nan
    seen[(row % 3 == 1) | (row % 6 == 2), 1] = np.nan
    return X, Y, seen


def test_both_targets_are_learned_from_the_rows_where_they_are_known() -> None:
    """R^2 of new rows, all known: at most 1 - 0.01 / 0.343 = 0.97 and 1 - 2500 / 85833 = 0.97; sds of 0.1 and 50."""
    X, _, seen = two(400)
    new, targets, _ = two(400, seed=1)
    p = BayesianRegressor(**QUICK).fit(X, seen).predict_dist(new)
    assert r2_score(targets, p.mean, multioutput="raw_values").min() > 0.93
    np.testing.assert_allclose(p.aleatoric.mean(0), [0.1, 50], rtol=0.35)


def test_what_is_missing_is_not_looked_at() -> None:
    """A target of known rows alone has the scale of these; a copy of X whose targets are NaN elsewhere has no say."""
    X, _, seen = two(100)
    model = BayesianRegressor(**QUICK | {"epochs": 1}).fit(X, seen)
    for d in range(2):
        known = seen[~np.isnan(seen[:, d]), d]
        np.testing.assert_allclose([model.y_scale_.mean[d], model.y_scale_.sd[d]], [known.mean(), known.std()])


@pytest.mark.slow
def test_two_stages_and_a_noise_that_varies_take_them(tmp_path: pathlib.Path) -> None:
    """With defaults, 1,000 rows and a positive target: the way of validation rows, the choice of the noise, files."""
    X, _, seen = two(1000)
    model = BayesianRegressor(hidden=(16,), random_state=0, positive=True).fit(X, np.exp(seen / [1, 1e4]))
    p = model.predict_dist(X)
    assert all(np.isfinite(part).all() for part in (p.mean, p.sd, p.lower, p.upper))
    assert model.score(X, np.exp(seen / [1, 1e4])) > 0.9
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(BayesianRegressor.load(tmp_path / "model").predict(X), p.mean)


def test_a_guarantee_holds_for_each_by_its_own_rows() -> None:
    X, _, seen = two(400)
    model = BayesianRegressor(**QUICK | {"epochs": 5}, guarantee=120).fit(X, seen)
    _, y = model._set_aside(X, seen)[2] or (None, None)
    assert [len(scores) for scores in model.guarantee_.scores] == (~np.isnan(y)).sum(0).tolist()
    new, targets, _ = two(2000, seed=1)
    lower, upper = model.predict_interval(new, level=0.9)
    covered = ((lower <= targets) & (targets <= upper)).mean(0)
    assert (np.abs(covered - 0.9) < 4 * math.sqrt(0.09 / 60)).all()  # about 80 and 40 rows each


def test_the_score_is_that_of_known_targets() -> None:
    X, Y, seen = two(60)
    model = BayesianRegressor(**QUICK | {"epochs": 5}).fit(X, seen)
    mean, weight = model.predict(X), np.arange(60.0) + 1
    known = [~np.isnan(seen[:, d]) for d in range(2)]
    each = [r2_score(Y[k, d], mean[k, d], sample_weight=weight[k]) for d, k in enumerate(known)]
    assert model.score(X, seen, weight) == pytest.approx(np.mean(each))
    assert model.score(X, Y) == pytest.approx(r2_score(Y, mean))
    assert model.score(X, Y) != pytest.approx(model.score(X, seen))
    assert np.isfinite(cross_val_score(BayesianRegressor(**QUICK | {"epochs": 1}), X, seen, cv=2)).all()


def at(rows: Any, d: Any, value: float) -> Any:
    Y = two(60)[1]
    Y[rows, d] = value
    return Y


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (at(3, slice(None), np.nan), r"y\[3\] is NaN in all 2 columns, as in 1 of 60 rows: leave out such rows"),
        (at(slice(None), 1, np.nan), r"target number 1 is missing in all of the training part \(60 inputs\): leave it"),
        (
            at(4, 1, np.nan)[:, 1],
            "Input y contains NaN in 1 of 60 rows: a target on its own has to be known; leave out",
        ),
        (at(4, 1, np.nan)[:, 1:], "Input y contains NaN in 1 of 60 rows"),
        (at(4, 1, np.inf), "Input y contains infinity"),
        (at(4, 1, 1.0)[:30], "inconsistent numbers of samples"),
    ],
    ids=["a row", "a target", "the only one", "the only column", "infinity", "half of y"],
)
def test_what_fit_refuses(y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BayesianRegressor(**QUICK).fit(two(60)[0], y)


def test_what_a_score_and_a_guarantee_refuse() -> None:
    X, Y, seen = two(60)
    model = BayesianRegressor(**QUICK | {"epochs": 1}).fit(X, seen)
    with pytest.raises(ValueError, match="target number 1 is missing in all of the scored part"):
        model.score(X, at(slice(None), 1, np.nan))
    with pytest.raises(ValueError, match=r"y\[3\] is NaN in all 2 columns"):
        model.score(X, at(3, slice(None), np.nan))
    with pytest.raises(ValueError, match=r"y must hold 2 targets, \(60, 2\), as in fit; got \(60, 1\)"):
        model.score(X, Y[:, :1])
    rare = BayesianRegressor(**QUICK, guarantee=20)
    _, _, aside = rare._set_aside(np.arange(60), np.arange(60))
    assert aside is not None
    with pytest.raises(ValueError, match="target number 0 is missing in all of the guarantee part"):
        rare.fit(X, at(aside[0], 0, np.nan))


def test_data_frames_name_the_target() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(at(slice(None), 1, np.nan), columns=["price", "rent"])
    with pytest.raises(ValueError, match="target 'rent' is missing in all of the training part"):
        BayesianRegressor(**QUICK).fit(two(60)[0], frame)
