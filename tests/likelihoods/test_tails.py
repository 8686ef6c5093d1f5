"""Noise with tails that are heavier than a Gaussian's: settled, scored as the mixture that it is, stored, taken off."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal, StudentT

import bnn
from bnn.functional.noise import tails
from bnn.likelihoods import Gaussian, HeteroscedasticGaussian, from_record, record
from bnn.likelihoods.base import predictive_nll
from bnn.likelihoods.noise import DEGREES, GAUSSIAN, mean_degrees

KINDS = (Gaussian, HeteroscedasticGaussian)
NAN = float("nan")


def with_df(likelihood: Any, df: float) -> Any:
    likelihood._tails.fill_(1 / df)
    return likelihood


def student(df: float, n: int, targets: int = 1, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return StudentT(df).sample((n, targets))


def means_only(likelihood: Any, n: int, targets: int = 1, draws: int = 1) -> Tensor:
    """Outputs (K, n, ...) with means 0 and predicted sds near 1."""
    one = torch.zeros(draws, n, targets)
    raw = torch.full_like(one, math.log(math.expm1(1.0)))
    return torch.cat([one, raw], 2) if likelihood.outputs_per_target == 2 else one


# ---- settled ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("df", [3.0, 5.0])
def test_settling_finds_the_tails_and_the_scale_of_simulated_noise(kind: Any, df: float) -> None:
    """20,000 targets of Student's t of scale 2: df within 12 %, the sd, which few rows decide, within 10 %.

    Half of the noise is where half of t is, within a point.
    """
    noise = kind()
    y = 2 * student(df, 20_000)
    noise.settle_(means_only(noise, len(y)), y)
    assert noise.df() == pytest.approx(df, rel=0.12)
    (sd,) = next(iter(noise.levels().values()))
    assert sd == pytest.approx(2 * math.sqrt(df / (df - 2)), rel=0.1)
    probabilities, scales = (torch.tensor(part) for part in tails(noise.df()))
    inside = 2 * StudentT(df).sample((200_000,)).abs().median()
    half = (probabilities * Normal(0.0, sd * scales).cdf(inside)).sum()
    assert float(half) == pytest.approx(0.75, abs=0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_noise_stays_gaussian(kind: Any) -> None:
    """5,000 normals of sd 0.5: no tails that could be seen, and the rms of the residuals."""
    noise, (y,) = kind(), 0.5 * torch.randn(1, 5000, 1, generator=torch.Generator().manual_seed(0))
    noise.settle_(means_only(noise, len(y)), y)
    assert noise.df() == math.inf
    assert list(noise.levels()) == [noise.noise[0].removeprefix("_")]
    assert next(iter(noise.levels().values())) == [pytest.approx(float(y.square().mean().sqrt()), rel=2e-3)]


def test_no_other_scale_is_likelier_under_these_tails() -> None:
    noise, y = Gaussian(), student(3.0, 200)
    outputs = 0.3 * torch.randn(5, 200, 1)
    noise.settle_(outputs, y)
    assert noise.df() < 10
    best, sd = float(predictive_nll(noise, outputs, y).detach().sum()), noise.sd().item()
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        other = with_df(Gaussian(sd=factor * sd), noise.df())
        assert float(predictive_nll(other, outputs, y).detach().sum()) > best


def test_far_rows_cost_less_than_under_a_gaussian() -> None:
    """The next 1,000 targets are scored, too: not the ones that it was settled on."""
    y, new = student(2.5, 100, seed=1), student(2.5, 1000, seed=2)
    found = {}
    for heavy in (True, False):
        noise = Gaussian(tails=heavy)
        noise.settle_(torch.zeros(1, 100, 1), y)
        found[heavy] = float(noise(torch.zeros_like(new), new).detach().mean())
    assert found[True] < found[False] - 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_without_tails_the_noise_stays_gaussian(kind: Any) -> None:
    noise = kind(tails=False)
    noise.settle_(means_only(noise, 500), student(2.5, 500))
    assert noise.df() == math.inf
    assert "tails=False" in str(noise)


def test_all_targets_share_one_df() -> None:
    noise = Gaussian(targets=2)
    y = student(4.0, 4000, targets=2) * torch.tensor([1.0, 10.0])
    noise.settle_(torch.zeros(1, 4000, 2), y)
    assert noise.sd()[1].item() == pytest.approx(10 * noise.sd()[0].item(), rel=0.1)
    assert len(noise.levels()["df"]) == 1


def test_targets_that_are_not_known_say_nothing_of_tails() -> None:
    full, holes = Gaussian(), Gaussian()
    y = student(3.0, 400)
    full.settle_(torch.zeros(1, 400, 1), y)
    more = torch.cat([y, torch.full((50, 1), NAN)])
    holes.settle_(torch.zeros(1, 450, 1), more)
    assert (holes.df(), holes.sd().item()) == (full.df(), pytest.approx(full.sd().item()))
    torch.testing.assert_close(holes(torch.zeros(450, 1), more)[400:], torch.zeros(50), atol=1e-6, rtol=0)


def test_the_mean_of_inverse_degrees_is_between_what_the_losses_allow() -> None:
    alike = mean_degrees(torch.zeros(len(DEGREES)))
    assert 1 / alike == pytest.approx(sum(1 / df for df in DEGREES) / len(DEGREES))
    for i, df in enumerate(DEGREES):
        losses = torch.full((len(DEGREES),), 1e3)
        losses[i] = 0.0
        assert mean_degrees(losses) == pytest.approx(df if df < GAUSSIAN else math.inf)
    assert mean_degrees(torch.full((len(DEGREES),), NAN)) == math.inf


# ---- the density -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("df", [2.2, 4.0, 30.0])
def test_the_nll_is_that_of_the_mixture(df: float) -> None:
    noise = with_df(Gaussian(sd=0.7), df)
    mean, y = torch.randn(50, 1), 3 * torch.randn(50, 1)
    probabilities, scales = (torch.tensor(part) for part in tails(df))
    mixture = MixtureSameFamily(Categorical(probabilities), Normal(mean.expand(50, len(scales)), 0.7 * scales))
    torch.testing.assert_close(noise(mean, y), -mixture.log_prob(y[:, 0]), rtol=1e-4, atol=1e-5)


def test_one_bin_holds_for_all_targets_of_a_datum() -> None:
    noise = with_df(HeteroscedasticGaussian(targets=2), 3.0)
    output, y = torch.randn(9, 4), torch.randn(9, 2)
    mean, sd = noise.split(output)
    each = [math.log(p) + Normal(mean, c * sd).log_prob(y).sum(1) for p, c in zip(*tails(3.0), strict=True)]
    torch.testing.assert_close(noise(output, y), -torch.stack(each).logsumexp(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_those_of_the_sd(kind: Any) -> None:
    outputs = torch.randn(6, 9, kind.outputs_per_target)
    for one, other in zip(kind().predictive(outputs), with_df(kind(), 3.0).predictive(outputs), strict=True):
        torch.testing.assert_close(one, other)


def test_draws_of_the_mixture_have_the_density_that_is_scored() -> None:
    """Quantiles, CRPS and NLL of `bnn.metrics` against 400,000 draws of the same noise."""
    noise = with_df(Gaussian(sd=0.5), 3.0)
    outputs, y = torch.randn(4, 1, 1), torch.tensor([[0.8]])
    means, sds = (part.detach() for part in noise.components(outputs))
    generator = torch.Generator().manual_seed(0)
    probabilities, scales = (torch.tensor(part) for part in tails(3.0))
    bins = torch.multinomial(probabilities, 400_000, replacement=True, generator=generator)
    rows = torch.randint(4, (400_000,), generator=generator)
    drawn = means[rows, 0, 0] + 0.5 * scales[bins] * torch.randn(400_000, generator=generator)
    low, high = bnn.metrics.mixture_interval(means, sds, 0.8, df=noise.df())
    assert float((drawn < float(low[0, 0])).double().mean()) == pytest.approx(0.1, abs=0.003)
    assert float((drawn > float(high[0, 0])).double().mean()) == pytest.approx(0.1, abs=0.003)
    crps = (drawn - y[0]).abs().mean() - 0.5 * (drawn[:200_000] - drawn[200_000:]).abs().mean()
    assert bnn.metrics.mixture_crps(means, sds, y, df=noise.df()) == pytest.approx(float(crps), abs=0.005)
    nll = float(predictive_nll(noise, outputs, y).detach())
    assert bnn.metrics.mixture_nll(means, sds, y, df=noise.df()) == pytest.approx(nll, rel=1e-5)


# ---- kept ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tails_are_stored_and_read_back(kind: Any) -> None:
    noise = with_df(kind(), 2.7)
    assert from_record(json.loads(json.dumps(record(noise)))).df() == noise.df() == 2.7
    again = kind()
    again.load_state_dict(noise.state_dict())
    assert again.df() == 2.7
    assert "df=2.7" in str(again)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_stored_before_there_were_tails_is_gaussian(kind: Any) -> None:
    stored = {"name": kind.name, "learned": {kind.noise[0]: 2.0}}
    assert from_record(stored).df() == math.inf
    noise = with_df(kind(), 3.0)
    noise.load_state_dict({kind.noise[0]: torch.tensor(2.0)})
    assert noise.df() == math.inf


@pytest.mark.parametrize("kind", KINDS)
def test_pooled_tails_are_the_mean_of_the_inverse(kind: Any) -> None:
    one, other = with_df(kind(), 4.0), kind()
    assert one.pooled([one, other]).df() == 8.0


def test_training_begins_with_gaussian_noise_and_ends_with_tails(tmp_path: Any) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(400, 2), 0.3 * student(2.5, 400)
    data, held_out = (x[:200], y[:200]), (x[200:], y[200:])
    noise = with_df(Gaussian(), 3.0)
    net = torch.nn.Linear(2, 1)
    history = bnn.fit(net, data, validation=held_out, likelihood=noise, epochs=2, out=tmp_path, progress=False)
    assert "df" not in history.noise["before"]
    (df,) = history.noise["df"]
    assert 2 < df < 5
    assert history.likelihood.df() == df
    assert history.last["validation_nll"] > history.noise["nll"]  # epochs are judged by Gaussian noise
    again = bnn.fit(torch.nn.Linear(2, 1), data, validation=held_out, epochs=2, out=tmp_path, progress=False)
    assert (again.noise, again.likelihood.df()) == (history.noise, df)


def test_the_noise_of_logarithms_is_gaussian() -> None:
    from bnn.likelihoods import for_task

    assert for_task(None, "regression", log=True).tails is False
    assert for_task(None, "regression").tails is True
    assert for_task("categorical", "classification", log=True).name == "categorical"


def test_the_regressor_predicts_and_reloads_with_tails(tmp_path: Any) -> None:
    from bnn.estimators import BayesianRegressor

    torch.manual_seed(1)
    x = torch.randn(300, 2)
    y = x[:, 0] + 0.3 * student(2.3, 300)[:, 0]
    found = BayesianRegressor(hidden=(8,), epochs=5, noise="constant", random_state=0).fit(x.numpy(), y.numpy())
    df = found.likelihood_.df()
    assert df < 10
    means, sds = found._components(x.numpy())
    low, high = bnn.metrics.mixture_interval(means, sds, 0.5, df=df)
    predicted = found.predict_dist(x.numpy(), level=0.5)
    assert predicted.lower == pytest.approx(low[:, 0])
    assert predicted.upper == pytest.approx(high[:, 0])
    gaussian = bnn.metrics.mixture_interval(means, sds, 0.5)
    assert float((high - low).mean()) < 0.97 * float((gaussian[1] - gaussian[0]).mean())
