"""Intervals of real targets: against counting by hand, on several targets, on a log scale, and as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bnn
from bnn.conformal import Guarantee, calibrate
from bnn.likelihoods.predictions import RegressionPrediction

RNG = np.random.default_rng(0)
N, K, D = 60, 4, 2
MEANS, SDS = RNG.normal(size=(K, N, D)), RNG.uniform(0.3, 2.0, size=(K, N, D))
Y = MEANS.mean(0) + RNG.standard_t(3, size=(N, D))
DRAWS = (MEANS, SDS)
NEW = (RNG.normal(size=(K, 7, D)), RNG.uniform(0.3, 2.0, size=(K, 7, D)))


def moments(draws: tuple[Any, Any]) -> RegressionPrediction:
    means, sds = (torch.from_numpy(part) for part in draws)
    return bnn.likelihoods.predictions.total_variance(means, sds.square())


def test_normalized_intervals_by_hand() -> None:
    found, new = moments(DRAWS), moments(NEW)
    scores = np.abs(Y - found.mean.numpy()) / found.total.sqrt().numpy()
    lower, upper = calibrate(found, torch.from_numpy(Y)).intervals(new, level=0.8)
    for d in range(D):
        q = sorted(scores[:, d])[int(np.ceil(61 * 0.8)) - 1]
        np.testing.assert_allclose(lower[:, d], (new.mean - q * new.total.sqrt()).numpy()[:, d], rtol=1e-12)
        np.testing.assert_allclose(upper[:, d], (new.mean + q * new.total.sqrt()).numpy()[:, d], rtol=1e-12)


def test_moments_and_draws_are_the_same_prediction() -> None:
    of_moments = calibrate(moments(DRAWS), Y).intervals(moments(NEW), 0.7)
    of_draws = calibrate(DRAWS, Y).intervals(NEW, 0.7)
    np.testing.assert_allclose(of_moments, of_draws, rtol=1e-10)


@pytest.mark.parametrize("level", [0.05, 0.9, 0.95])
def test_quantile_intervals_by_hand(level: float) -> None:
    """The calibration target of rank k is on an end of its own interval, those of lower rank are inside."""
    guarantee = calibrate(DRAWS, Y, "quantile", base=0.8)
    low, high = bnn.metrics.mixture_interval(*DRAWS, 0.8)
    scores = np.maximum(low - Y, Y - high)
    q = np.sort(scores, axis=0)[int(np.ceil(round(61 * level, 9))) - 1]
    new_low, new_high = bnn.metrics.mixture_interval(*NEW, 0.8)
    lower, upper = guarantee.intervals(NEW, level)
    wide = new_high + q >= new_low - q
    assert (level == 0.05) == (not wide.all())
    np.testing.assert_allclose(lower[wide], (new_low - q)[wide], rtol=1e-12)
    np.testing.assert_allclose(upper[wide], (new_high + q)[wide], rtol=1e-12)
    np.testing.assert_array_equal(lower[~wide], upper[~wide])
    np.testing.assert_allclose(lower[~wide], (new_low + new_high)[~wide] / 2, rtol=1e-12)


def test_quantiles_need_the_draws() -> None:
    with pytest.raises(ValueError, match=r"means and sds of the draws \(K, N, ...\), as likelihood.components"):
        calibrate(moments(DRAWS), Y, "quantile")


@pytest.mark.parametrize("method", ["normalized", "quantile"])
def test_as_many_calibration_targets_are_inside_as_the_rank_says(method: str) -> None:
    guarantee = calibrate(DRAWS, Y, method)
    for level in (0.5, 0.8, 0.9):
        lower, upper = guarantee.intervals((MEANS, SDS), level)
        slack = 1e-9  # the target of that rank is on the end
        inside = ((lower - slack <= Y) & (upper + slack >= Y)).sum(0)
        assert inside.tolist() == [np.ceil(round(61 * level, 9))] * D


def test_one_target_may_be_a_column_or_not() -> None:
    column = calibrate((MEANS[..., :1], SDS[..., :1]), Y[:, 0])
    flat = calibrate((MEANS[..., 0], SDS[..., 0]), Y[:, 0])
    assert column.scores == flat.scores
    assert column.intervals((NEW[0][..., :1], NEW[1][..., :1]))[0].shape == (7, 1)
    assert flat.intervals((NEW[0][..., 0], NEW[1][..., 0]))[0].shape == (7,)


def test_missing_targets_do_not_count() -> None:
    y = Y.copy()
    y[:10, 1] = np.nan
    some = calibrate(DRAWS, y)
    assert [len(group) for group in some.scores] == [60, 50]
    assert some.rows == 50
    alone = calibrate((MEANS[:, 10:, 1], SDS[:, 10:, 1]), Y[10:, 1])
    assert some.scores[1] == alone.scores[0]
    with pytest.raises(ValueError, match="one is NaN in all"):
        calibrate(DRAWS, np.full_like(Y, np.nan))


@pytest.mark.parametrize("method", ["normalized", "quantile"])
def test_a_log_scale_is_the_same_intervals_transformed(method: str) -> None:
    logs, own = calibrate(DRAWS, Y, method), calibrate(DRAWS, np.exp(Y), method, scale="log")
    ends, own_ends = logs.intervals(NEW, 0.9), own.intervals(NEW, 0.9)
    np.testing.assert_allclose(own_ends, np.exp(ends), rtol=1e-9)
    assert (own_ends[0] > 0).all()
    with pytest.raises(ValueError, match=r"takes targets above 0; \d+ of 120 are not"):
        calibrate(DRAWS, Y, scale="log")


@pytest.mark.parametrize("options", [{}, {"method": "quantile", "base": 0.7}, {"scale": "log"}])
def test_json_and_back(options: dict[str, Any]) -> None:
    guarantee = calibrate(DRAWS, np.exp(Y), **options)
    again = Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict())))
    assert again == guarantee
    for level in (0.5, 0.9, 0.983):
        np.testing.assert_array_equal(again.intervals(NEW, level), guarantee.intervals(NEW, level))


def test_the_statement_says_how_many_were_set_aside() -> None:
    """All of them, whatever is missing: of several targets with how many there are of each, of one in all."""
    y = Y.copy()
    y[:6, 0], y[:2, 1] = np.nan, np.nan
    several = calibrate(DRAWS, y)
    assert (several.rows, several.inputs) == (54, 60)
    said = "with 60 inputs set aside (rent 54, price 58), a new one"
    assert several.statement(0.9, names=["rent", "price"]).startswith(said)
    one = calibrate((MEANS[..., 0], SDS[..., 0]), y[:, 0])
    assert one.statement(0.9).startswith("with 60 inputs set aside (54 with a target), a new one")
    assert calibrate(DRAWS, Y).statement(0.9).startswith("with 60 inputs set aside, a new one")
    older = {name: value for name, value in one.to_dict().items() if name != "inputs"}
    assert Guarantee.from_dict(older).statement(0.9).startswith("with 54 inputs set aside, a new one")


def test_too_few_rows_refuse() -> None:
    guarantee = calibrate((MEANS[..., 0], SDS[..., 0]), Y[:, 0])
    new = (NEW[0][..., 0], NEW[1][..., 0])
    guarantee.intervals(new, level=0.983)
    with pytest.raises(ValueError, match=r"level 0.99 takes 99 calibration rows, and there are 60"):
        guarantee.intervals(new, level=0.99)
    with pytest.raises(ValueError, match="of each, and there are 60 of target 0, 60 of target 1"):
        calibrate(DRAWS, Y).intervals(NEW, level=0.99)
    with pytest.raises(ValueError, match="of each, and there are 60 of rent, 60 of price"):
        calibrate(DRAWS, Y).intervals(NEW, level=0.99, names=["rent", "price"])


def test_mistakes_say_what_to_do() -> None:
    guarantee = calibrate(DRAWS, Y)
    with pytest.raises(ValueError, match=r"without sets: use .intervals"):
        guarantee.sets([[0.5, 0.5]])
    with pytest.raises(TypeError, match=r"for real targets give what bnn.predict gives"):
        guarantee.intervals(MEANS[0])
    with pytest.raises(ValueError, match=r"calibrated for targets of shape \(2,\); got those of \(\)"):
        guarantee.intervals((MEANS[..., 0], SDS[..., 0]))
    with pytest.raises(ValueError, match=r"predictions of shape \(60, 2\) must have that shape; got \(60,\)"):
        calibrate(DRAWS, Y[:, 0])
    with pytest.raises(ValueError, match=r"unknown method 'normalised' \(did you mean 'normalized'\?\)"):
        calibrate(DRAWS, Y, "normalised")
    with pytest.raises(TypeError, match=r"unknown option 'lamda' for 'normalized'; expected some of \[\]"):
        calibrate(DRAWS, Y, lamda=0.1)
    with pytest.raises(ValueError, match="by_class is for classes"):
        calibrate(DRAWS, Y, by_class=True)
    with pytest.raises(ValueError, match="1 are infinite"):
        calibrate((MEANS[..., 0], SDS[..., 0]), [np.inf, *Y[1:, 0]])
    with pytest.raises(TypeError, match=r"for classes give what bnn.predict gives"):
        calibrate(DRAWS, Y, "lac")


@pytest.mark.parametrize(
    "change",
    [
        {"method": "nonsense"},
        {"scores": [[2.0, 1.0]]},
        {"scores": [[0.0], [1.0]]},
        {"scale": "cubic"},
        {"shape": ["a"]},
    ],
)
def test_damaged_records_are_refused(change: dict[str, Any]) -> None:
    stored = calibrate((MEANS[..., 0], SDS[..., 0]), Y[:, 0]).to_dict()
    Guarantee.from_dict(stored)
    with pytest.raises(ValueError, match=r"nonsense|ascending|groups|scale|size"):
        Guarantee.from_dict(stored | change)


def test_a_network_from_predict_to_intervals() -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    bnn.bayesianize_(net, "ffg", init_sd=0.1)
    noise = bnn.likelihoods.Gaussian(sd=0.5)
    x = torch.randn(40, 3)
    y = x.sum(1, keepdim=True)
    found = bnn.predict(net, x, 8, noise, torch.Generator().manual_seed(1), keep_samples=True)
    assert found.samples is not None
    draws = noise.components(found.samples)
    for guarantee, prediction in ((calibrate(found, y), found), (calibrate(draws, y, "quantile"), draws)):
        lower, upper = guarantee.intervals(prediction, 0.9)
        assert lower.shape == (40, 1)
        assert ((lower - 1e-9 <= y.numpy()) & (upper + 1e-9 >= y.numpy())).sum() == 37  # ceil(41 * 0.9)
