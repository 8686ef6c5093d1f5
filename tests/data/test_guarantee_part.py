"""The part set aside for a guarantee: a plain random sample, drawn first, which no preparation is learned on."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import chisquare

import bnn
from bnn.data.split import inputs_aside, split


def test_the_parts_are_all_inputs_and_share_none() -> None:
    labels = torch.arange(300) % 3
    cut = split(300, 0.2, 0.1, 0, labels, ("a", "b", "c"), guarantee=60)
    parts = [cut.train, cut.validation, cut.test, cut.guarantee]
    assert [len(part) for part in parts] == [168, 24, 48, 60]  # test and validation are shares of the other 240
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(300))
    assert all(torch.equal(part, part.sort().values) for part in parts)


def test_without_one_the_split_is_what_it_was() -> None:
    before, now = split(100, 0.2, 0.1, 3), split(100, 0.2, 0.1, 3, guarantee=0)
    assert all(torch.equal(getattr(before, part), getattr(now, part)) for part in ("train", "validation", "test"))
    assert len(now.guarantee) == 0


def test_it_is_a_plain_sample_whatever_the_classes() -> None:
    """Every input is as likely, and the share of a class varies as that of a sample: over 400 seeds, at 1e-4."""
    labels = (torch.arange(100) < 10).long()
    cuts = [split(100, 0.2, 0.1, seed, labels, ("a", "b"), guarantee=20).guarantee for seed in range(400)]
    times = torch.cat(cuts).bincount(minlength=100).double()
    assert chisquare(times.numpy()).pvalue > 1e-4
    rare = torch.stack([labels[cut].sum() for cut in cuts]).double()
    assert rare.var() == pytest.approx(20 * 0.1 * 0.9 * 80 / 99, rel=0.3)  # hypergeometric; 0 of a stratified sample


def test_how_many() -> None:
    assert [inputs_aside(value, 1000) for value in (None, 0, 0.1, 0.04, 7)] == [0, 0, 100, 50, 7]
    with pytest.raises(ValueError, match=r"table: a guarantee would set 50 of 99 inputs aside.*it takes 100 inputs"):
        inputs_aside(0.1, 99, "table")
    assert inputs_aside(0.1, 100) == 50
    with pytest.raises(ValueError, match=r"would set 700 of 1000 inputs aside.*: give a share of at most 0.5, or give"):
        inputs_aside(0.7, 1000)  # more inputs would not help
    for count, advice in (
        (60, "as guarantee=20 (9 are the fewest for a level of 0.9, 19 for 0.95)"),
        (30, "as guarantee=15 (9 are the fewest for a level of 0.9)"),
        (16, "it takes 100 inputs, or leave the guarantee out"),
    ):
        with pytest.raises(ValueError, match=re.escape(advice)):  # what it advises can be done
            inputs_aside(0.1, count)
        advised = re.search(r"guarantee=(\d+)", advice)
        assert advised is None or inputs_aside(int(advised[1]), count) == int(advised[1])
    for wrong in (1.5, -0.1, -3, True, "0.1"):
        with pytest.raises(ValueError, match=r"guarantee must be a share of the inputs, as 0.1"):
            inputs_aside(wrong, 1000)


def test_arrays_learn_nothing_from_it() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 3)), rng.normal(size=200)
    rows = bnn.data.arrays(np.arange(200.0)[:, None], y, validation=0.1, test=0.2, guarantee=0.1, scale=False)
    assert rows.guarantee is not None
    aside = rows.guarantee.x[:, 0].long().numpy()
    changed, changed_y = x.copy(), y.copy()
    changed[aside], changed_y[aside] = 1e6, -1e6
    plain, other = (
        bnn.data.arrays(*pair, validation=0.1, test=0.2, guarantee=0.1) for pair in ((x, y), (changed, changed_y))
    )
    assert plain.preparation is not None
    assert other.preparation is not None
    assert plain.preparation.to_dict() == other.preparation.to_dict()
    assert plain.target == other.target
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(plain, part).x, getattr(other, part).x)
        assert torch.equal(getattr(plain, part).y, getattr(other, part).y)
    assert plain.guarantee is not None
    assert plain.target is not None
    torch.testing.assert_close(plain.target.own_units(plain.guarantee.y)[:, 0].double(), torch.from_numpy(y[aside]))
    assert plain.with_validation(0.1).guarantee is plain.guarantee


def test_every_source_has_it(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{a:.6f},{b}" for a, b in zip(rng.normal(size=150), rng.choice(["u", "v"], 150), strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b", *lines]))
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(60):
            Image.fromarray(rng.integers(256, size=(4, 4), dtype=np.uint8)).save(
                tmp_path / "photos" / name / f"{i}.png"
            )
    found: dict[str, Any] = {
        "csv": bnn.data.csv(tmp_path / "table.csv", "b", guarantee=0.1),
        "folder": bnn.data.folder(tmp_path / "photos", guarantee=0.1),
        "name": bnn.data.load("digits", guarantee=0.1, validation=0.1),
    }
    assert {kind: len(data.guarantee) for kind, data in found.items()} == {"csv": 50, "folder": 50, "name": 130}
    assert {kind: len(data.train) for kind, data in found.items()} == {"csv": 70, "folder": 49, "name": 1050}
    assert bnn.data.load("digits").guarantee is None
    digits = found["name"]
    rest = torch.cat([digits.train.x, digits.validation.x, digits.guarantee.x]).double().sum()
    assert rest == bnn.data.load("digits").train.x.double().sum()


def alone_in_the_guarantee() -> tuple[torch.Tensor, int]:
    """Labels of 100 inputs, and a seed with which the only input of class 2 is in the guarantee."""
    labels = torch.arange(100) % 2
    labels[50] = 2
    return labels, next(seed for seed in range(100) if 50 in split(100, 0.2, 0.1, seed, guarantee=20).guarantee)


def test_a_class_that_is_all_in_it_is_named() -> None:
    labels, seed = alone_in_the_guarantee()
    with pytest.warns(UserWarning, match="rows: classes of which all inputs were set aside .* sees them: 'rare'"):
        cut = split(100, 0.2, 0.1, seed, labels, ("a", "b", "rare"), "rows", guarantee=20)
    assert 2 not in labels[torch.cat([cut.train, cut.validation, cut.test])]
