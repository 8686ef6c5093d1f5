"""The noise of small tables: folds that networks have not seen, where there are few inputs, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bnn
from bnn.data import Data, Part
from bnn.functional.noise import central_quantile
from bnn.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian
from bnn.train import Recipe, Schedule, run_recipe
from bnn.train.cross_fit import FEW, LEAST, MOST, NUMBER, cross_fit, cross_fits, folds, without
from bnn.train.monitor import LEAST as SETTLES

SD = 0.5
QUIET: dict[str, Any] = {"tensorboard": False, "progress": False}


def reals(n: int, seed: int = 0) -> Part:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, generator=generator) * 2 - 1
    return Part(x, x.sum(1, keepdim=True) + SD * torch.randn(n, 1, generator=generator))


def table(train: int = 50, validation: int | None = 10) -> Data:
    held_out = None if validation is None else reals(validation, seed=1)
    return Data("table", "regression", reals(train), test=reals(5, seed=2), validation=held_out)


def holding(errors: Tensor) -> float:
    """The sd of Gaussian noise with which intervals of 50, 80 and 90 % hold as many errors, in the geometric mean."""
    levels = (0.5, 0.8, 0.9)
    expected = [NormalDist().inv_cdf((1 + level) / 2) for level in levels]
    return float(np.exp(np.log(np.quantile(errors.abs().numpy(), levels) / expected).mean()))


def residual_sd(data: Data) -> float:
    """Of a network that says 0."""
    assert data.train.y is not None
    return holding(data.train.y)


class Remembers(nn.Module):
    """Knows the targets of the inputs it was trained on, and says 0 of all others."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.x, self.y = part.x, part.y

    def forward(self, x: Tensor) -> Tensor:
        same = (x[:, None] == self.x[None]).all(-1)
        assert self.y is not None
        return same.to(x.dtype) @ self.y


class Says(nn.Module):
    """The same of every input."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, x: Tensor) -> Tensor:
        return self.values.expand(len(x), -1)


def test_folds_are_a_partition_and_the_same_for_a_seed() -> None:
    data = table(53)
    parts = folds(data, 3)
    assert [number for number, _ in parts] == list(range(NUMBER))
    assert torch.equal(torch.cat([fold for _, fold in parts]).sort().values, torch.arange(53))
    assert {len(fold) for _, fold in parts} == {10, 11}
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(parts, folds(data, 3), strict=True))
    rest = without(data, parts[0][1])
    assert len(rest.train) + len(parts[0][1]) == 53
    assert (rest.test, rest.guarantee) == (None, None)
    assert rest.validation is data.validation


def test_the_noise_is_that_of_inputs_that_networks_have_not_seen() -> None:
    data, likelihood = table(), Gaussian(tails=False)
    noise = cross_fit(likelihood, data, 0, lambda part, fold: (Remembers(part.train), Gaussian())).settle_(likelihood)
    assert data.train.y is not None
    expected = residual_sd(data)
    assert likelihood.sd().item() == pytest.approx(expected, rel=1e-5)
    assert (noise["data"], noise["inputs"], noise["sd"]) == ("folds", 50, [pytest.approx(expected, rel=1e-5)])
    nll = -torch.distributions.Normal(0.0, expected).log_prob(data.train.y).mean().item()
    assert noise["nll"] == pytest.approx(nll, rel=1e-5)


def test_a_noise_that_varies_gets_its_factor() -> None:
    likelihood = HeteroscedasticGaussian(tails=False)
    before = likelihood.components(torch.zeros(1, 1, 2))
    data = table()
    assert before is not None
    assert data.train.y is not None
    cross_fit(likelihood, data, 0, lambda part, fold: (Says(0.0, 0.0), likelihood)).settle_(likelihood)
    after = likelihood.components(torch.zeros(1, 1, 2))
    assert after is not None
    assert after[1].item() == pytest.approx(residual_sd(data), rel=1e-5)
    assert after[1].item() != before[1].item()


def test_with_validation_inputs_folds_say_by_which_factor_their_noise_is_missed() -> None:
    """Networks whose noise is half of what new inputs show: then that of the network that counts doubles."""
    data = table(validation=SETTLES)
    own, half = Gaussian(sd=0.7, tails=False), Gaussian(sd=residual_sd(data) / 2, tails=False)
    noise = cross_fit(own, data, 0, lambda part, fold: (Says(0.0), half)).settle_(own)
    assert own.sd().item() == pytest.approx(1.4, rel=1e-5)
    assert (noise["sd"], noise["before"]) == ([pytest.approx(1.4, rel=1e-5)], {"sd": [pytest.approx(0.7)]})
    expected = -torch.distributions.Normal(0.0, residual_sd(data)).log_prob(data.train.y).mean().item()
    assert noise["nll"] == pytest.approx(expected, rel=1e-4)


def test_every_fold_counts_by_the_noise_of_its_own_network() -> None:
    """Networks that are sure of themselves in different measure, each rightly so: the noise stays."""
    data = table(train=400, validation=SETTLES)
    assert data.train.y is not None
    errors = torch.randn(80, 1, generator=torch.Generator().manual_seed(4))  # of each fold, in units of its noise
    for i, fold in folds(data, 0):
        data.train.y[fold] = (1 + i) * errors
    own = Gaussian(sd=0.7, tails=False)
    cross_fit(own, data, 0, lambda part, i: (Says(0.0), Gaussian(sd=1.0 + i, tails=False))).settle_(own)
    assert own.sd().item() == pytest.approx(0.7 * holding(errors), rel=1e-3)


def test_errors_beyond_what_noise_can_reach_do_not_widen_it() -> None:
    """One row of a hundred is off by a thousand sds: the likeliest noise would follow it."""
    data = table(train=400, validation=SETTLES)
    assert data.train.y is not None
    data.train.y[::100] = 1000.0
    likelihood = Gaussian()
    found = cross_fit(likelihood, data, 0, lambda part, fold: (Says(0.0), Gaussian(sd=1.0, tails=False)))
    found.settle_(likelihood)
    inside = (data.train.y.abs() < likelihood.sd() * central_quantile(0.9, likelihood.df())).double().mean()
    assert 0.8 < inside < 0.97


def test_the_factor_of_predicted_sds_of_several_targets_and_their_tails() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(2_000, 3, generator=generator)
    y = torch.from_numpy(np.random.default_rng(0).standard_t(3, size=(2_000, 2))).float() * torch.tensor([1.0, 3.0])
    y[::7, 1] = torch.nan  # not known
    data = Data("t", "regression", Part(x, y), validation=Part(x[:50], y[:50]))
    raw = torch.tensor(1.0).expm1().log().item()  # sds of 1, and of min_sd more
    own, fold = (HeteroscedasticGaussian(targets=2) for _ in range(2))
    own._factor.copy_(torch.tensor([2.0, 2.0]))
    cross_fit(own, data, 0, lambda part, i: (Says(0.0, 0.0, raw, raw), fold)).settle_(own)
    sd = 3**0.5  # of t with 3 degrees of freedom
    assert own.factor().tolist() == pytest.approx([2 * sd, 2 * 3 * sd], rel=0.15)
    assert 2.2 < own.df() < 5


def test_only_few_inputs_with_real_targets_and_a_noise_that_is_learned() -> None:
    data = table()
    assert cross_fits(Gaussian(), data)
    assert cross_fits(Gaussian(), table(LEAST, None))
    assert not cross_fits(Gaussian(), table(LEAST - 1))
    assert not cross_fits(Gaussian(), table(MOST + 1))
    assert cross_fits(Gaussian(), table(validation=FEW - 1))
    assert not cross_fits(Gaussian(), table(validation=FEW))
    assert not cross_fits(Gaussian(learn=False), data)
    labels = Part(data.train.x, torch.arange(50) % 3)
    assert not cross_fits(Categorical(), Data("c", "classification", labels, classes=("a", "b", "c")))
    assert cross_fits(Gaussian(), replace(data, validation=None))


# ---- recipes and estimators ------------------------------------------------------------------------------------------


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    part = reals(80)
    assert part.y is not None
    rows = torch.cat([part.x, part.y], 1).tolist()
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,y", *(",".join(f"{v:.6f}" for v in row) for row in rows)]))
    return Recipe(
        data={"csv": str(tmp_path / "t.csv"), "target": "y", "validation": 0.1},
        net={"name": "fcn", "hidden": [64, 64]},
        method={"inference": "inducing", "inducing_rows": 16, "inducing_cols": 16},
        pretrain=Schedule(epochs=60, batch_size=20, lr=0.01),
        schedule=Schedule(epochs=5, batch_size=20, lr=0.01),
    )


def test_a_run_of_few_rows_knows_its_noise_and_resumes_to_the_same(recipe: Recipe, tmp_path: Path) -> None:
    found = run_recipe(recipe, tmp_path / "run", **QUIET)
    assert found.history is not None
    assert found.history.noise is not None
    assert (found.history.noise["data"], found.history.noise["inputs"]) == ("folds", len(found.data().train))
    assert found.target is not None
    sd = found.likelihood.sd().item() * found.target.sd[0]
    assert 0.8 * SD < sd < 2 * SD
    data = found.data()
    with torch.no_grad():
        residuals = bnn.predict(found.network, data.train.inputs(), 0, likelihood=found.likelihood).mean - data.train.y
    assert residuals.square().mean().sqrt().item() * found.target.sd[0] < 0.8 * sd  # what training rows would say
    again = run_recipe(recipe, tmp_path / "run", **QUIET)
    assert torch.equal(again.likelihood.sd(), found.likelihood.sd())
    assert torch.equal(bnn.open_run(tmp_path / "run").likelihood.sd(), found.likelihood.sd())


def test_given_weights_may_have_seen_all_rows(recipe: Recipe, tmp_path: Path) -> None:
    first = run_recipe(recipe.but(method={"inference": "deterministic"}), tmp_path / "plain", **QUIET)
    weights = tmp_path / "plain" / "net.safetensors"
    found = run_recipe(recipe.but(pretrain=None, weights=str(weights)), **QUIET)
    assert first.history is not None
    assert found.history is not None
    assert (first.history.noise or {})["data"] == "folds"
    assert (found.history.noise or {})["data"] != "folds"


def test_an_estimator_of_few_rows_covers_new_ones() -> None:
    pytest.importorskip("sklearn")
    from bnn.estimators import BayesianRegressor

    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, size=(2_080, 6))
    y = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + SD * random.normal(size=len(x))
    found = BayesianRegressor(epochs=150, random_state=0).fit(x[:80], y[:80])
    p = found.predict_dist(x[80:])
    inside = ((p.lower <= y[80:]) & (y[80:] <= p.upper)).mean()
    assert 0.82 < inside < 0.99
    own = np.sqrt(np.square(found.predict(x[:80]) - y[:80]).mean())
    assert found.likelihood_.sd().item() * found.y_scale_.sd[0] > 1.5 * own


def test_the_folds_may_be_watched(capsys: pytest.CaptureFixture[str]) -> None:
    for progress in (False, None, True):
        cross_fit(Gaussian(), table(), 0, lambda part, fold: (Says(0.0), Gaussian()), progress)
        err = capsys.readouterr().err
        assert ("settling noise, fold 5: 4 of 5 networks done" in err) is (progress is True)
