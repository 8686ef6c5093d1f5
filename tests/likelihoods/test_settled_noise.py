"""Noise that is settled, one per target, and targets that are not known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bnn.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, from_record, record
from bnn.likelihoods.base import predictive_nll

NAN = float("nan")


def outputs_and_targets(likelihood: Any, draws: int = 5, n: int = 60) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    y = torch.randn(n, 2) * torch.tensor([0.2, 3.0])
    means = y + torch.tensor([0.1, 2.0]) * torch.randn(n, 2) + torch.tensor([0.05, 1.0]) * torch.randn(draws, n, 2)
    raw = 0.3 * torch.randn(draws, n, 2)
    return (means if likelihood.outputs_per_target == 1 else torch.cat([means, raw], 2)), y


KINDS = (Gaussian, HeteroscedasticGaussian)
LIKELIHOODS = [kind(targets=targets, tails=tails) for targets in (2, 1) for kind in KINDS for tails in (True, False)]


@pytest.mark.parametrize("likelihood", [one for one in LIKELIHOODS if not one.tails], ids=str)
def test_no_other_noise_makes_the_prediction_likelier(likelihood: Any) -> None:
    outputs, y = outputs_and_targets(likelihood)
    likelihood.settle_(outputs, y)

    def score(one: Any) -> Tensor:
        """Every target by itself, as one noise cannot know of another."""
        means, sds = one.components(outputs)
        nll = -torch.distributions.Normal(means, sds).log_prob(y).logsumexp(0).sum(0)
        return nll if means.shape[2] == one.kept()[one.noise[0]].numel() else nll.sum()

    best = score(likelihood)
    (level,) = likelihood.levels().values()
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        other = type(likelihood).of(max(1, len(level)))
        name = other.noise[0]
        with torch.no_grad():
            values = torch.tensor(level) * factor
            raw = values.expm1().log() if name == "_sd" else values
            getattr(other, name).copy_(raw.reshape(getattr(other, name).shape))
        assert bool((score(other) >= best - 1e-6).all())


def test_of_one_draw_the_sd_is_the_rms_of_the_residuals() -> None:
    noise = Gaussian(targets=2, tails=False)
    outputs, y = outputs_and_targets(noise, draws=1)
    noise.settle_(outputs, y)
    torch.testing.assert_close(noise.sd(), (y - outputs[0]).square().mean(0).sqrt())


def test_each_target_has_the_noise_it_would_have_alone() -> None:
    both = HeteroscedasticGaussian(targets=2, tails=False)
    outputs, y = outputs_and_targets(both)
    both.settle_(outputs, y)
    for d in range(2):
        alone = HeteroscedasticGaussian(tails=False)
        alone.settle_(outputs[:, :, [d, d + 2]], y[:, d : d + 1])
        torch.testing.assert_close(both.factor()[d], alone.factor())


def test_noise_that_is_held_stays() -> None:
    noise = Gaussian(sd=0.7, learn=False)
    assert not noise.settles
    noise.settle_(torch.zeros(1, 4), torch.ones(4))
    assert noise.sd().item() == pytest.approx(0.7)


def test_a_likelihood_without_noise_does_nothing() -> None:
    one = Categorical()
    assert not one.settles
    one.settle_(torch.zeros(1, 4, 2), torch.zeros(4, dtype=torch.long))
    assert one.levels() == {}


# ---- several targets -------------------------------------------------------------------------------------------------


def test_an_sd_per_target_is_a_normal_per_target() -> None:
    noise = Gaussian(sd=[0.5, 2.0], targets=2)
    output, y = torch.randn(7, 2), torch.randn(7, 2)
    normal = torch.distributions.Normal(output, torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(noise(output, y), -normal.log_prob(y).sum(1))
    found = noise.predictive(output[None])
    torch.testing.assert_close(found.aleatoric, torch.tensor([0.25, 4.0]).expand(7, 2))
    torch.testing.assert_close(noise.from_gaussian(output, torch.ones(7, 2)).total, found.aleatoric + 1)


def test_one_target_is_stored_as_ever() -> None:
    assert record(Gaussian(sd=2.0, learn=False)) == {"name": "gaussian", "sd": pytest.approx(2.0), "learn": False}
    assert Gaussian().state_dict()["_sd"].shape == ()


def test_outputs_of_another_number_of_targets_are_an_error() -> None:
    with pytest.raises(ValueError, match="a noise for each of 3 targets, expected so many along dimension 1"):
        Gaussian(targets=3)(torch.zeros(5, 2), torch.zeros(5, 2))
    with pytest.raises(ValueError, match="one for each of 3 targets"):
        Gaussian(sd=[1.0, 2.0], targets=3)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=str)
def test_settled_noise_is_stored_and_read_back(likelihood: Any) -> None:
    outputs, y = outputs_and_targets(likelihood)
    likelihood.settle_(outputs, y)
    again = from_record(record(likelihood))
    name = likelihood.noise[0].removeprefix("_")
    assert again.levels()[name] == pytest.approx(likelihood.levels()[name])
    assert all(one != 1.0 for one in again.levels()[name])
    assert (again.df(), again.tails) == (likelihood.df(), likelihood.tails)
    torch.testing.assert_close(again(outputs[0], y), likelihood(outputs[0], y))


def test_a_heteroscedastic_record_of_an_older_version_has_factor_1() -> None:
    again = from_record({"name": "heteroscedastic", "min_sd": 0.01})
    assert again.levels() == {"factor": [1.0]}


def test_the_factor_scales_sds_and_their_slope() -> None:
    one = HeteroscedasticGaussian()
    with torch.no_grad():
        one._factor.fill_(2.0)
    output = torch.randn(5, 2, requires_grad=True)
    sd = one.split(output)[1]
    torch.testing.assert_close(sd, 2 * (one.min_sd + torch.nn.functional.softplus(output[:, 1:])))
    (slope,) = torch.autograd.grad(sd.sum(), output)
    torch.testing.assert_close(one._slope(output), slope[:, 1:])
    spread = one.from_gaussian(output.detach(), torch.zeros(5, 2)).aleatoric
    torch.testing.assert_close(spread, sd.detach().square())


# ---- targets that are not known --------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=str)
def test_unknown_targets_add_nothing(likelihood: Any) -> None:
    outputs, y = outputs_and_targets(likelihood)
    likelihood.without_tails_()
    hidden = y.clone()
    hidden[::3, 0] = NAN
    hidden[5] = NAN
    output = outputs[0].clone().requires_grad_()
    nll = likelihood(output, hidden)
    means, sds = likelihood.components(outputs[:1])
    each = -torch.distributions.Normal(means[0], sds[0]).log_prob(y)
    torch.testing.assert_close(nll, torch.where(hidden.isnan(), 0.0, each).sum(1))
    nll.sum().backward()
    assert output.grad is not None
    assert bool(torch.isfinite(output.grad).all())
    assert not output.grad[hidden.isnan().repeat(1, likelihood.outputs_per_target)].any()
    assert all(bool(torch.isfinite(one.grad).all()) for one in likelihood.parameters() if one.grad is not None)


def test_noise_is_settled_on_what_is_known() -> None:
    noise, alone = Gaussian(targets=2, tails=False), Gaussian(tails=False)
    outputs, y = outputs_and_targets(noise)
    y[::2, 0] = NAN
    y[:, 1] = NAN
    noise.settle_(outputs, y)
    alone.settle_(outputs[:, 1::2, :1], y[1::2, :1])
    assert noise.sd()[0].item() == pytest.approx(alone.sd().item())
    assert noise.sd()[1].item() == pytest.approx(1.0)  # nobody knows: as before


def test_the_mixture_skips_what_is_not_known() -> None:
    noise = Gaussian(sd=0.5, learn=False)
    outputs = torch.tensor([[[0.0, 9.0]], [[1.0, -9.0]]])
    found = predictive_nll(noise, outputs, torch.tensor([[0.5, NAN]]))
    want = 0.5 + math.log(0.5) + 0.5 * math.log(2 * math.pi)
    assert found.item() == pytest.approx(want)
