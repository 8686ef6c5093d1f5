"""Histograms, ROC curves, examples, points and times of an evaluation against what they are made of."""

from __future__ import annotations

import base64
import dataclasses
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_curve
from torch import nn

import bnn
from bnn.data import Data, Part, TargetScale
from bnn.evaluation import Evaluation, Time
from bnn.evaluation.examples import MOST, SIDE, picture
from bnn.evaluation.scores import POINTS, roc

FEW: dict[str, Any] = {"resamples": 30}


def net_of(inputs: int, outputs: int) -> nn.Sequential:
    net = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))
    bnn.bayesianize_(net, "inducing", inducing_rows=4, inducing_cols=4, init_lamda=0.3)
    return net


def images(n: int = 40, channels: int = 1) -> Data:
    def part(n: int) -> Part:
        x = torch.randint(256, (n, channels, 6, 6), dtype=torch.uint8)
        return Part(x, torch.arange(n) % 3, lambda x: x.float() / 128)

    return Data("noise", "classification", part(4), part(n), classes=("ant", "bee", "cow"))


@pytest.mark.parametrize("levels", [7, 5000], ids=["ties", "many"])
def test_roc_against_sklearn(levels: int) -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.integers(levels, size=900) / levels, (levels + rng.integers(levels, size=700)) / levels - 0.6
    curve = roc(inside, outside)
    labels, scores = np.repeat([0, 1], [900, 700]), np.concatenate([inside, outside])
    false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
    assert len(curve.false_positive) <= POINTS
    assert (curve.false_positive[0], curve.true_positive[0]) == (0, 0)
    assert (curve.false_positive[-1], curve.true_positive[-1]) == (1, 1)
    exact = set(zip(false.round(9), true.round(9), strict=True))
    assert set(zip(np.round(curve.false_positive, 9), np.round(curve.true_positive, 9), strict=True)) <= exact
    if levels == 7:
        assert len(curve.true_positive) == len(exact)
    area = np.trapezoid(curve.true_positive, curve.false_positive)
    assert area == pytest.approx(bnn.metrics.auroc(inside, outside), abs=1e-3)


def test_histograms_count_every_input_once_over_the_whole_range() -> None:
    net, data = net_of(36, 3), images()
    far = torch.randint(256, (25, 1, 6, 6), dtype=torch.uint8)
    found = bnn.evaluate(net, data, ood={"far": far}, **FEW).ood["far"]
    assert list(found.histograms) == list(found.roc) == list(found.detection)
    tops = {"entropy": math.log(3), "max_prob": 2 / 3}
    scores = {
        name: bnn.metrics.ood_scores(bnn.predict(net, x / 128, generator=torch.Generator().manual_seed(0)))
        for name, x in (("inside", data.test.x.float()), ("outside", far.float()))
    }
    for score, one in found.histograms.items():
        assert one.edges[0] == 0
        if score in tops:
            assert one.edges[-1] == pytest.approx(tops[score])
        for side, total in (("inside", 40), ("outside", 25)):
            assert sum(getattr(one, side)) == total
            want = np.histogram(scores[side][score].clip(0, one.edges[-1]), one.edges)[0]
            assert abs(np.subtract(getattr(one, side), want)).sum() <= 2  # an input on an edge
        area = np.trapezoid(found.roc[score].true_positive, found.roc[score].false_positive)
        assert area == pytest.approx(found.detection[score]["auroc"].value, abs=1e-6)


def test_examples_are_the_surest_and_the_least_sure() -> None:
    net, data = net_of(36, 3), images()
    found = bnn.evaluate(net, data, ood={"far": data.train}, **FEW)
    said = bnn.predict(net, data.test.inputs(), generator=torch.Generator().manual_seed(0))
    order = said.total.argsort(stable=True)
    certain, uncertain = found.examples.certain, found.examples.uncertain
    assert [one.index for one in certain] == order[:MOST].tolist()
    assert [one.index for one in uncertain] == order.flip(0)[:MOST].tolist()
    names = data.classes
    for one in (*certain, *uncertain):
        assert one.target == names[data.test.y[one.index]]
        assert one.prediction == names[said.probs[one.index].argmax()]
        assert one.probability == pytest.approx(said.probs[one.index].max().item(), rel=1e-4)
        assert one.epistemic == pytest.approx(said.epistemic[one.index].item(), abs=1e-5)
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(one.picture))))
        assert (shown == data.test.x[one.index, 0].numpy()).all()
    outside = found.ood["far"].examples
    assert [len(outside.certain), len(outside.uncertain)] == [2, 2]  # of four inputs
    assert all(one.target is None for one in outside.certain)


def test_pictures_keep_their_shape_and_stay_small() -> None:
    image = torch.randint(256, (3, 200, 100), dtype=torch.uint8)
    shown = Image.open(io.BytesIO(base64.b64decode(picture(image))))
    assert (shown.size, shown.mode) == ((SIDE // 2, SIDE), "RGB")
    mean = np.asarray(shown).mean((0, 1))
    assert mean == pytest.approx(image.float().mean((1, 2)).numpy(), abs=3)
    assert picture(torch.zeros(3, 8, 8)) is None
    assert picture(torch.zeros(4, 8, 8, dtype=torch.uint8)) is None


def test_points_of_real_targets_are_in_their_own_units() -> None:
    net, scale = net_of(4, 2), TargetScale((10.0, 0.0), (2.0, 1.0))
    x, y = torch.randn(700, 4), torch.randn(700, 2)
    data = Data("toy", "regression", Part(x[:3], y[:3]), Part(x, y), target=scale)
    noise = bnn.likelihoods.Gaussian(sd=0.5)
    found = bnn.evaluate(net, data, likelihood=noise, **FEW)
    said = bnn.predict(net, x, likelihood=noise, generator=torch.Generator().manual_seed(0), batch_size=500)
    assert len(found.points.target) == 500
    assert found.points.target[0] == pytest.approx(10 + 2 * y[0, 0].item(), rel=1e-5)
    assert found.points.mean[-1] == pytest.approx(10 + 2 * said.mean[-1, 0].item(), rel=1e-4)
    assert found.points.sd[-1] == pytest.approx(2 * said.total[-1, 0].sqrt().item(), rel=1e-3)
    assert found.examples.certain[0].probability is None
    assert found.examples.certain[0].picture is None


def test_files_hold_all_of_it_and_older_ones_are_read() -> None:
    found = bnn.evaluate(net_of(36, 3), images(), ood={"far": images().train}, **FEW)
    timed = dataclasses.replace(found, time=Time(40, 0.1, 0.02, 5))
    assert timed == found  # whatever the clock says
    assert Evaluation.from_dict(timed.to_dict()).time == timed.time
    assert Evaluation.from_dict(found.to_dict()) == found
    older = found.to_dict()
    for name in ("examples", "points", "time"):
        del older[name]
    for name in ("examples", "histograms", "roc"):
        del older["ood"]["far"][name]
    read = Evaluation.from_dict(older)
    assert (read.examples, read.ood["far"].roc, read.metrics) == (None, {}, found.metrics)
