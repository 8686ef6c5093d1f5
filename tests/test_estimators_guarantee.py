"""Guarantees of estimators: coverage by simulation, rows that nothing else sees, files, and refusals."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from bnn import BayesianClassifier, BayesianRegressor

QUICK: dict[str, Any] = {"hidden": (4,), "epochs": 2, "lr": 0.05, "samples": 3}


def reals(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, 1000 * X[:, 0] + 300 * rng.exponential(size=n)


def classes(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = reals(n, seed)
    return X, np.array(["low", "middle", "high"])[(y > 0).astype(int) + (y > 1500)]


def inside(model: Any, X: np.ndarray, y: np.ndarray, level: float = 0.9) -> np.ndarray:
    if isinstance(model, BayesianRegressor):
        lower, upper = model.predict_interval(X, level=level)
        return np.asarray((lower <= y) & (y <= upper))
    sets = model.predict_set(X, level=level)
    return np.asarray(sets[np.arange(len(y)), np.searchsorted(model.classes_, y)])


KINDS = pytest.mark.parametrize(
    ("kind", "made"), [(BayesianRegressor, reals), (BayesianClassifier, classes)], ids=["reals", "classes"]
)


@KINDS
def test_new_rows_are_covered_as_often_as_promised(kind: Any, made: Any) -> None:
    """15 fits with 60 rows each: Beta(55, 6) has mean 0.902 and sd 0.038."""
    covered = []
    for seed in range(15):
        model = kind(guarantee=60, random_state=seed, **QUICK).fit(*made(160, seed))
        covered.append(inside(model, *made(1000, 1000 + seed)).mean())
    assert abs(np.mean(covered) - 0.902) < 4 * 0.038 / 15**0.5


@KINDS
def test_files_keep_it(kind: Any, made: Any, tmp_path: pathlib.Path) -> None:
    X, y = made(300, 0)
    model = kind(guarantee=0.2, random_state=0, **QUICK).fit(X, y)
    assert model.guarantee_.rows == 60
    model.save(tmp_path / "model.safetensors")
    again = kind.load(tmp_path / "model.safetensors")
    assert again.guarantee == 0.2
    assert np.array_equal(inside(model, X, y, 0.8), inside(again, X, y, 0.8))


def test_nothing_else_sees_them() -> None:
    """With wild targets in the rows set aside, everything but the guarantee is the same to the last bit."""
    X, y = reals(200, 0)
    X = np.concatenate([X, np.arange(200.0)[:, None]], axis=1)
    model = BayesianRegressor(guarantee=50, random_state=0, **QUICK)
    others, _, aside = model._set_aside(X, y)
    rows = aside[0][:, 2].astype(int)
    assert len({*rows.tolist(), *others[:, 2].astype(int).tolist()}) == 200
    wild = y.copy()
    wild[rows] = 1e6
    one, other = (clone(model).fit(X, targets) for targets in (y, wild))
    assert np.array_equal(one.predict(X), other.predict(X))
    assert one.y_scale_.to_dict() == other.y_scale_.to_dict()
    assert one.guarantee_ != other.guarantee_


def test_several_targets_have_ends_of_their_shape() -> None:
    X, y = reals(200, 0)
    model = BayesianRegressor(guarantee=50, random_state=0, **QUICK).fit(X, np.stack([y, -y], axis=1))
    lower, upper = model.predict_interval(X)
    assert lower.shape == upper.shape == (200, 2)
    assert (lower < upper).all()


@KINDS
def test_what_it_takes_is_said(kind: Any, made: Any) -> None:
    X, y = made(120, 0)
    without = kind(random_state=0, **QUICK).fit(X, y)
    with pytest.raises(ValueError, match=rf"{kind.__name__}\(guarantee=0.1\), which takes 10 % of the rows"):
        inside(without, X, y)
    few = kind(guarantee=15, random_state=0, **QUICK).fit(X, y)
    with pytest.raises(ValueError, match=r"level 0\.95 takes 19 calibration rows, and there are 15: set more aside"):
        inside(few, X, y, 0.95)
    with pytest.raises(ValueError, match="would set 50 of 60 inputs aside, more than half"):
        kind(guarantee=0.1, **QUICK).fit(X[:60], y[:60])


@KINDS
def test_rows_with_names_are_set_aside_without_a_warning(kind: Any, made: Any, monkeypatch: Any) -> None:
    """scikit-learn warns where rows of a fit with names have none: those set aside must not come back like that."""

    class Named(np.ndarray[Any, Any]):
        """As much of a data frame as scikit-learn looks at."""

    names = np.array(["a", "b"], dtype=object)
    monkeypatch.setattr(
        "sklearn.utils.validation._get_feature_names", lambda X: names if isinstance(X, Named) else None
    )
    X, y = made(120, 0)
    model = kind(guarantee=60, random_state=0, **QUICK).fit(X.view(Named), y)  # pytest makes errors of warnings
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.guarantee_.rows == 60
    with pytest.warns(UserWarning, match="valid feature names"):
        model.predict(X)
