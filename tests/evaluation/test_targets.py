"""Evaluation of targets on a log scale, of several, and of some that are missing, against torch.distributions."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bnn
from bnn import metrics
from bnn.data import Data, Part, TargetScale
from bnn.evaluation import Evaluation
from bnn.metrics.lognormal import LARGEST

FEW: dict[str, Any] = {"resamples": 20, "progress": False}
LOG = TargetScale((1.0, -0.5), (0.6, 0.3), log=True)


def network(outputs: int, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, outputs))
    bnn.bayesianize_(net, "inducing", inducing_rows=4, inducing_cols=4, init_lamda=0.3)
    return net


def data_of(target: TargetScale | None, holes: bool = False, scaled: bool = True) -> Data:
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(30, 4, generator=generator), torch.randn(30, 2, generator=generator)
    if holes:
        y[:10, 0], y[20:, 1] = math.nan, math.nan
    return Data("numbers", "regression", Part(x, y), Part(x, y), target=target, targets=("price", "area"))


def draws_of(net: nn.Module, x: Tensor, likelihood: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return bnn.predict(net, x, 6, likelihood, generator, 500, keep_samples=True).samples.double()


def test_on_a_log_scale_everything_is_in_own_units() -> None:
    net, data, likelihood = network(2), data_of(LOG), bnn.likelihoods.Gaussian(sd=0.7)
    found = bnn.evaluate(net, data, likelihood=likelihood, samples=6, **FEW)
    assert found.scale == "log"
    shift, sd = torch.tensor(LOG.mean).double(), torch.tensor(LOG.sd).double()
    logs = draws_of(net, data.test.x, likelihood) * sd + shift
    y = (data.test.y.double() * sd + shift).exp()
    each = torch.distributions.LogNormal(logs, 0.7 * sd)
    mean = each.mean.mean(0)
    assert found.metrics["rmse"].value == pytest.approx(float((mean - y).square().mean().sqrt()))
    nll = math.log(6) - each.log_prob(y).sum(2).logsumexp(0)
    assert found.metrics["nll"].value == pytest.approx(float(nll.mean()))
    aleatoric, epistemic = each.variance.mean(0), each.mean.var(0, correction=0)
    assert found.uncertainty.aleatoric**2 == pytest.approx(float(aleatoric.mean()))
    assert found.uncertainty.epistemic**2 == pytest.approx(float(epistemic.mean()))
    assert found.uncertainty.total**2 == pytest.approx(float((aleatoric + epistemic).mean()))
    pit = each.cdf(y).mean(0)  # PIT of the mixture: inside the interval between its tails
    assert found.metrics["coverage_90"].value == pytest.approx(float(((pit > 0.05) & (pit < 0.95)).double().mean()))
    crps = metrics.lognormal_crps(logs.numpy(), (0.7 * sd).expand_as(logs).numpy(), y.numpy())
    assert found.metrics["crps"].value == pytest.approx(crps)
    assert found.notes == ()


def test_coverage_is_the_same_on_either_scale() -> None:
    """Quantiles know only the order of targets."""
    net, likelihood = network(2), bnn.likelihoods.Gaussian(sd=0.5)
    one, other = (bnn.evaluate(net, data_of(s), likelihood=likelihood, **FEW) for s in (LOG, None))
    for name in ("coverage_50", "coverage_90", "coverage_95"):
        assert one.metrics[name] == other.metrics[name]


class Wide(bnn.likelihoods.Likelihood):
    """Laplace noise: a density that is no Gaussian."""

    task = "regression"

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        known = ~target.isnan()
        log_p = torch.distributions.Laplace(output, 0.3).log_prob(torch.where(known, target, output))
        return -torch.where(known, log_p, 0.0).sum(1)

    def predictive(self, outputs: Tensor) -> Any:
        return bnn.likelihoods.Gaussian(sd=0.3 * 2**0.5).predictive(outputs)

    def point(self, output: Tensor) -> Tensor:
        return output


@pytest.mark.parametrize("target", [LOG, TargetScale(LOG.mean, LOG.sd)], ids=["log", "linear"])
@pytest.mark.parametrize("holes", [False, True], ids=["all", "holes"])
def test_a_density_of_ones_own_is_one_of_the_target_itself(target: TargetScale, holes: bool) -> None:
    net, data, likelihood = network(2), data_of(target, holes), Wide()
    found = bnn.evaluate(net, data, likelihood=likelihood, samples=6, **FEW)
    z, sd = data.test.y.double(), torch.tensor(LOG.sd).double()
    known = ~z.isnan()
    jacobian = -sd.log() - (z * sd + torch.tensor(LOG.mean) if target.log else 0.0)  # of dz / dy, in logs
    each = torch.distributions.Laplace(draws_of(net, data.test.x, likelihood), 0.3).log_prob(torch.where(known, z, 0.0))
    log_p = torch.where(known, each + jacobian, 0.0).sum(2).logsumexp(0) - math.log(6)
    assert found.metrics["nll"].value == pytest.approx(float(-log_p.mean()), rel=1e-5)
    assert "the draws predict no Gaussians: crps and intervals" in found.notes[0]
    assert all("nll" not in one.metrics for one in found.by_target.values())
    if target.log and not holes:  # the moments of one Gaussian of log y with that mean and variance
        draws = draws_of(net, data.test.x, likelihood)
        logs = torch.distributions.Normal(
            draws.mean(0) * sd + torch.tensor(LOG.mean), (0.18 + draws.var(0, correction=0)).sqrt() * sd
        )
        own = torch.distributions.LogNormal(logs.mean, logs.stddev)
        assert found.uncertainty.total**2 == pytest.approx(float(own.variance.mean()), rel=1e-5)
        noise_free = torch.distributions.LogNormal(logs.mean, draws.std(0, correction=0) * sd)
        epistemic = noise_free.variance * (0.18 * sd**2).exp()  # of exp(m + noise^2 / 2), m Gaussian over the draws
        assert found.uncertainty.epistemic**2 == pytest.approx(float(epistemic.mean()), rel=1e-5)


def test_several_targets_one_by_one_where_they_are_known() -> None:
    net, likelihood = network(2), bnn.likelihoods.Gaussian(sd=0.7)
    data = data_of(TargetScale((2.0, -1.0), (3.0, 0.5)), holes=True)
    found = bnn.evaluate(net, data, likelihood=likelihood, samples=6, **FEW)
    assert found.targets == ("price", "area")
    assert {name: one.inputs for name, one in found.by_target.items()} == {"price": 20, "area": 20}
    own = data.target.own_units(data.test.y.double())
    means = draws_of(net, data.test.x, likelihood) * torch.tensor(data.target.sd) + torch.tensor(data.target.mean)
    for d, (name, rows) in enumerate({"price": slice(10, 30), "area": slice(0, 20)}.items()):
        y, m = own[rows, d], means[:, rows, d]
        scored = found.by_target[name].metrics
        assert scored["rmse"].value == pytest.approx(float((m.mean(0) - y).square().mean().sqrt()))
        logs = torch.distributions.Normal(m, 0.7 * data.target.sd[d]).log_prob(y)
        assert scored["nll"].value == pytest.approx(float(math.log(6) - logs.logsumexp(0).mean()), rel=1e-5)
    squared = (means.mean(0) - own).square().nanmean(1)
    assert found.metrics["rmse"].value == pytest.approx(float(squared.mean().sqrt()))
    assert "price   20" in str(found)
    assert [one.target for one in found.examples.certain if "missing" in one.target]
    assert len(found.points.target) == 20


def test_targets_without_names_have_numbers(tmp_path: pathlib.Path) -> None:
    data = data_of(LOG)
    found = bnn.evaluate(network(2), (data.test.x, data.test.y), likelihood=bnn.likelihoods.Gaussian(), **FEW)
    assert (found.targets, list(found.by_target), found.scale) == ((), ["0", "1"], "linear")
    found.save(tmp_path / "e.json")
    assert Evaluation.load(tmp_path / "e.json") == found
    old = {key: value for key, value in found.to_dict().items() if key not in ("targets", "by_target", "scale")}
    assert Evaluation.from_dict(old).by_target == {}


@pytest.mark.parametrize("outputs", [1, 2])
def test_inputs_without_any_target(outputs: int) -> None:
    x, y = torch.randn(9, 4), torch.randn(9, outputs)
    y[3] = math.nan
    with pytest.raises(ValueError, match=r"1 of 9 inputs have no target, it is NaN: leave them out before evaluating"):
        bnn.evaluate(network(outputs), (x, y), likelihood=bnn.likelihoods.Gaussian(), **FEW)


def test_wild_noise_of_the_logarithm_is_said() -> None:
    net, data = network(4, nn.ReLU), data_of(LOG)
    with torch.no_grad():
        data.test.x[4:] *= 1e-6
        data.test.x[:4] *= 1e5
    found = bnn.evaluate(net, data, likelihood="heteroscedastic", samples=6, **FEW)
    assert "predicted means have draws beyond 1e+100, as wild sds of the logarithm make them" in "".join(found.notes)
    assert math.isfinite(found.metrics["rmse"].value)
    assert found.metrics["rmse"].value < 10 * LARGEST
    assert math.isfinite(found.metrics["crps"].value)
    assert np.isfinite(found.uncertainty.total)


def in_units() -> tuple[Data, Any]:
    """Power in hundreds and loss in thousandths, some of it missing; and a guarantee."""
    data = data_of(TargetScale((800.0, 0.003), (80.0, 0.001)), holes=True)
    scores = np.linspace(0.1, 3.0, 60)[:, None].repeat(2, 1)
    guarantee = bnn.conformal.calibrate((np.zeros((1, 60, 2)), np.ones((1, 60, 2))), scores)
    net, noise = network(2), bnn.likelihoods.Gaussian(sd=0.7)
    ood = {"far": 5 * data.test.x}
    return data, bnn.evaluate(net, data, likelihood=noise, samples=6, ood=ood, guarantee=guarantee, **FEW)


def test_what_has_a_unit_is_shown_target_by_target() -> None:
    data, found = in_units()
    text = str(found)
    assert not [line for line in text.splitlines() if line.strip().startswith(("rmse", "crps", "sharpness", "in dist"))]
    outputs = {name: found.by_target[name] for name in ("price", "area")}
    for name, one in outputs.items():
        row = next(line.split() for line in text.splitlines() if line.strip().startswith(f"{name}  "))
        assert row[2] == f"{one.metrics['rmse'].value:.4g}"
        assert row[5:7] == [f"{100 * one.metrics['coverage_50'].value:.1f}", "%"]
        assert row[-1] == f"{one.metrics['sharpness_90'].value:.4g}"
        assert one.uncertainty is not None
        sds = [one.uncertainty.total, one.uncertainty.aleatoric, one.uncertainty.epistemic]
        unsure = next(line for line in text.splitlines() if line.strip().startswith(f"{name}, in distribution"))
        assert [float(part) for part in unsure.split()[-3:]] == pytest.approx(sds, rel=0.01)
        assert sds[1] == pytest.approx(0.7 * data.target.sd[name == "area"], rel=1e-5)
        assert f"{name}, far" in text
        assert found.ood["far"].by_target[name].epistemic > sds[2]
    assert found.guarantee is not None
    assert "guarantee: target" in text
    for d, (name, one) in enumerate(found.guarantee.by_target.items()):
        assert [c.level for c in one.before] == [0.5, 0.8, 0.9] == [c.level for c in one.after]
        assert one.after[2].size < 10 * data.target.sd[d]
        assert one.before[2].covered.value == pytest.approx(outputs[name].metrics["coverage_90"].value)
        assert one.before[2].size == pytest.approx(outputs[name].metrics["sharpness_90"].value)
    each = [one.each for one in found.examples.certain]
    assert all(one[0].aleatoric / one[1].aleatoric == pytest.approx(80_000) for one in each)
    assert Evaluation.from_dict(found.to_dict()) == found


def test_coverage_and_widths_have_one_definition() -> None:
    """Means over the known targets of an input, then over inputs, everywhere."""
    _, found = in_units()
    assert found.guarantee is not None
    assert found.promise is not None
    own = {round(one.level, 2): one for one in found.coverage}
    for before, promised in zip(found.guarantee.before, found.promise.levels, strict=True):
        level = f"{100 * before.level:.0f}"
        share = found.metrics[f"coverage_{level}"].value
        assert before.covered.value == pytest.approx(share)
        assert promised.covered.value == pytest.approx(share)
        assert own[before.level].covered.value == pytest.approx(share)
        assert before.size == pytest.approx(found.metrics[f"sharpness_{level}"].value)
