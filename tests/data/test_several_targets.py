"""Several targets in one table, some of them missing."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch

import bnn
from bnn.data import Data, Part

RNG = np.random.default_rng(1)
X = RNG.normal(size=(100, 2))
Y = np.stack([50 + 10 * X[:, 0], X[:, 1] - 3], 1)
HOLES = Y.copy()
HOLES[::3, 0] = np.nan
HOLES[1::5, 1] = np.nan
HOLES[np.isnan(HOLES).all(1)] = 1.0


def written(folder: pathlib.Path, y: np.ndarray = HOLES, more: str = "") -> pathlib.Path:
    lines = [
        f"{a:.6f},{'NA' if np.isnan(p) else repr(float(p))},{b:.6f},{'' if np.isnan(q) else repr(float(q))}"
        for (a, b), (p, q) in zip(X, y, strict=True)
    ]
    path = folder / "two.csv"
    path.write_text("\n".join(["a,price,b,area", *lines, more]).strip() + "\n")
    return path


def test_a_table_of_two_targets_with_holes(tmp_path: pathlib.Path) -> None:
    data = bnn.data.csv(written(tmp_path), ["price", "area"], guarantee=50, test=0.1)
    assert (data.task, data.targets, data.out_features) == ("regression", ("price", "area"), 2)
    assert data.in_shape == (2,)  # targets are no inputs
    assert data.target is not None
    parts = [data.train, data.test, data.validation, data.guarantee]
    assert sum(map(len, parts)) == 100
    own = torch.cat([data.target.own_units(part.y.double()) for part in parts]).numpy()
    for d in range(2):
        np.testing.assert_allclose(np.sort(own[:, d]), np.sort(HOLES[:, d]), rtol=1e-5)  # NaN comes last in both
    known = data.train.y.double()
    assert known.nanmean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert known.square().nanmean(0).sqrt().tolist() == pytest.approx([1, 1], abs=1e-6)


def test_arrays_of_two_targets_with_holes() -> None:
    data = bnn.data.arrays(X, HOLES, targets=["price", "area"], positive=False)
    assert data.targets == ("price", "area")
    np.testing.assert_allclose(data.target.mean, np.nanmean(HOLES, 0))
    np.testing.assert_allclose(data.target.sd, np.nanstd(HOLES, 0))
    np.testing.assert_array_equal(data.train.y.isnan(), np.isnan(HOLES))


def test_rows_without_any_target(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path, more="1.0,NA,2.0,")
    with pytest.raises(
        ValueError, match=r"all of the targets \['price', 'area'\] are missing on line 102; fill one in"
    ):
        bnn.data.csv(path, ["price", "area"])
    data = bnn.data.csv(path, ["price", "area"], drop_missing_target=True, test=None, validation=None)
    assert len(data.train) == 100
    gone = HOLES.copy()
    gone[7] = np.nan
    with pytest.raises(ValueError, match=r"y\[7\] is NaN in all 2 columns, as in 1 of 100 rows: leave out such rows"):
        bnn.data.arrays(X, gone)


@pytest.mark.parametrize("shape", [(100,), (100, 1)])
def test_a_single_target_is_known(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"y\[0.*\] is nan; fill in or leave out such inputs"):
        bnn.data.arrays(X, HOLES[:, 0].reshape(shape))


def test_a_target_that_nobody_knows(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"the target number 1 is missing in all of the training part \(100 inputs\)"):
        bnn.data.arrays(X, np.stack([Y[:, 0], np.full(100, np.nan)], 1))
    aside = Part(torch.zeros(3, 2), torch.tensor([[0.0, float("nan")]] * 3))
    with pytest.raises(ValueError, match=r"the target 'area' is missing in all of the guarantee part"):
        Data("d", "regression", Part(torch.zeros(3, 2), torch.zeros(3, 2)), guarantee=aside, targets=("price", "area"))


def test_mistakes(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path)
    with pytest.raises(ValueError, match=r"several targets must be numbers, and classes are one"):
        bnn.data.csv(path, ["price", "area"], task="classification")
    with pytest.raises(ValueError, match=r"no column 'cost'"):
        bnn.data.csv(path, ["price", "cost"])
    with pytest.raises(ValueError, match=r"drop names 'area', which is a target"):
        bnn.data.csv(path, ["price", "area"], drop=["area"])
    path.write_text(path.read_text().replace("NA", "cheap", 1))
    with pytest.raises(ValueError, match=r"two\.csv, line 2: text in a target of numbers, 'cheap' in 'price'"):
        bnn.data.csv(path, ["price", "area"])
    with pytest.raises(ValueError, match=r"2 targets cannot have the names \['price'\]"):
        bnn.data.arrays(X, Y, targets=["price"])
    with pytest.raises(ValueError, match=r"targets is for real targets; y holds classes"):
        bnn.data.arrays(X, X[:, 0] > 0, targets=["price"])


def test_one_name_in_a_list_is_one_target(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path, Y)
    one, other = (bnn.data.csv(path, target, drop=["area"]) for target in ("price", ["price"]))
    assert torch.equal(one.train.y, other.train.y)
    assert one.targets == other.targets == ("price",)
