"""The noise of real targets: where training begins with it, what it is in the end, and which kind is chosen."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import bayesian_net, plain_net, run, same
from torch import Tensor, nn

import bnn
from bnn.data import Data, Part
from bnn.likelihoods import Gaussian, HeteroscedasticGaussian
from bnn.train import Recipe, Schedule, loop, run_recipe
from bnn.train.monitor import LEAST
from bnn.train.plain_stage import LEAST as CHOOSES
from bnn.train.plain_stage import MANY, best
from bnn.train.settling import SOME, Comparison, NoiseStage, held_out_losses
from bnn.train.spread import within_noise

SD = 0.3


def reals(n: int, seed: int = 1, varying: bool = False) -> tuple[Tensor, Tensor]:
    """x (n, 4), and a line with noise of sd `SD`, or of an sd from 0.05 to 1.5 that the input decides."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 4, generator=generator) * 2 - 1
    sd = 0.05 + 1.45 * (x[:, 1:2] > 0) if varying else torch.full((n, 1), SD)
    return x, x[:, :1] + sd * torch.randn(n, 1, generator=generator)


def rms(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((net(x) - y).square().mean().sqrt())


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("held_out", "settled_on"), [(LEAST, "validation"), (SOME - 1, "training"), (0, "training")])
def test_noise_of_a_plain_network_is_the_rms_of_its_residuals(held_out: int, settled_on: str) -> None:
    net, data = plain_net(norm=False, out=1), reals(60)
    validation = reals(held_out, seed=2) if held_out else None
    history = run(net, data, validation=validation, likelihood=Gaussian(tails=False))
    expected = rms(net, *(reals(held_out, seed=2) if settled_on == "validation" else data))
    assert history.likelihood.sd().item() == pytest.approx(expected, rel=1e-5)
    assert (history.noise["data"], history.noise["sd"]) == (settled_on, [pytest.approx(expected, rel=1e-5)])
    assert history.noise["inputs"] == (held_out if settled_on == "validation" else 60)
    assert history.noise["before"]["sd"] != history.noise["sd"]


@pytest.mark.parametrize("noisy", [True, False])
def test_of_a_few_validation_inputs_and_the_training_data_the_larger_noise_counts(noisy: bool) -> None:
    net, data = plain_net(norm=False, out=1), reals(60)
    x, y = reals(LEAST - 1, seed=2)
    validation = (x, y + 3 * torch.randn_like(y)) if noisy else (x, x[:, :1])
    history = run(net, data, validation=validation, likelihood=Gaussian(tails=False), epochs=60, lr=0.03)
    of_training, of_validation = rms(net, *data), rms(net, *validation)
    assert (of_validation > of_training) is noisy
    assert history.likelihood.sd().item() == pytest.approx(max(of_training, of_validation), rel=1e-5)
    assert history.noise["data"] == ("validation" if noisy else "training")
    assert history.noise["inputs"] == (LEAST - 1 if noisy else 60)


@pytest.mark.parametrize("seldom", [LEAST, SOME, SOME - 1])
def test_targets_that_are_seldom_known_are_settled_by_themselves(seldom: int) -> None:
    """Of two targets, of which validation data know one always; the other is easy there, and hard in training."""
    net, (x, y) = plain_net(norm=False, out=2), reals(200)
    held_x, held_y = reals(100, seed=2)
    with torch.no_grad():
        held_y = torch.cat([held_y, net(held_x)[:, 1:]], 1)
    held_y[seldom:, 1] = torch.nan
    likelihood = Gaussian(targets=2, tails=False)
    stage = NoiseStage(likelihood, (x, torch.cat([y, y], 1)), (held_x, held_y), samples=0)
    noise = stage.run_(net, 0)
    assert noise is not None
    with torch.no_grad():
        first = (net(held_x) - held_y)[:, 0].square().mean().sqrt().item()
        trained = (net(x) - y)[:, 1].square().mean().sqrt().item()
    assert noise["data"] == "validation"
    assert likelihood.sd()[0].item() == pytest.approx(first, rel=1e-4)
    if seldom == LEAST:
        assert likelihood.sd()[1].item() < 1e-2
    else:  # what a few values say counts where it is more
        assert likelihood.sd()[1].item() == pytest.approx(trained, rel=1e-4)


def test_a_network_that_fits_its_data_too_well_is_found_out() -> None:
    net, data = plain_net(norm=False, out=1), reals(20)
    history = run(net, data, validation=reals(200, seed=2), epochs=150, lr=0.03)
    assert rms(net, *data) < 0.8 * SD
    assert history.likelihood.sd().item() > SD


def test_validation_scores_are_those_of_the_settled_noise() -> None:
    net = plain_net(norm=False, out=1)
    history = run(net, reals(60), validation=reals(100, seed=2), likelihood=Gaussian(tails=False))
    assert history.last["validation_nll"] == pytest.approx(history.noise["nll"], rel=1e-5)


def test_the_factor_of_noise_that_varies_is_settled_and_stored(tmp_path: Path) -> None:
    data = Data("made", "regression", Part(*reals(40)), validation=Part(*reals(200, seed=2)))
    net = plain_net(norm=False, out=2)
    history = run(net, data, likelihood=HeteroscedasticGaussian(tails=False), epochs=60, lr=0.03, out=tmp_path)
    (factor,) = history.noise["factor"]
    x, y = reals(200, seed=2)
    one = HeteroscedasticGaussian()
    mean, sd = one.split(net(x).detach())
    assert factor == pytest.approx(float(((y - mean) / sd).square().mean().sqrt()), rel=1e-4)
    assert abs(factor - 1) > 0.02
    opened = bnn.open_run(tmp_path, net=plain_net(norm=False, out=2))
    assert opened.likelihood.factor().item() == pytest.approx(factor)
    assert opened.history is not None
    assert opened.history.noise == history.noise


def test_several_targets_have_a_noise_each() -> None:
    x, y = reals(200)
    both = torch.cat([y, 50 * torch.randn(200, 1, generator=torch.Generator().manual_seed(3))], 1)
    net = plain_net(norm=False, out=2)
    history = run(net, (x, both))
    with torch.no_grad():
        expected = (net(x) - both).square().mean(0).sqrt().tolist()
    assert history.noise["sd"] == pytest.approx(expected, rel=1e-4)


# ---- the start -------------------------------------------------------------------------------------------------------


def test_noise_begins_at_the_residuals_at_hand() -> None:
    net, (x, y) = plain_net(norm=False, out=1), reals(60)
    expected = rms(net, x, 100 * y)
    noise = Gaussian()
    run(net, (x, 100 * y), likelihood=noise, epochs=1, lr=1e-9, validation=(x, torch.zeros(60, 1)))
    assert run(net, (x, 100 * y), epochs=1, lr=1e-9).noise["before"]["sd"] == [pytest.approx(expected, rel=1e-4)]


def test_a_converted_network_inherits_the_noise() -> None:
    net, data, held_out = plain_net(norm=False, out=1), reals(300), reals(300, seed=2)
    run(net, data, validation=held_out, epochs=20, lr=0.02)
    bnn.bayesianize_(net, "ffg", init_sd=0.01)
    history = run(net, data, epochs=1, lr=1e-3)
    found = bnn.predict(net, held_out[0], likelihood=history.likelihood, generator=torch.Generator().manual_seed(0))
    assert isinstance(found, bnn.likelihoods.RegressionPrediction)
    error = float((found.mean - held_out[1]).square().mean().sqrt())
    assert float(found.total.sqrt().mean()) == pytest.approx(error, rel=0.1)


def test_noise_that_a_training_settled_is_where_the_next_begins() -> None:
    net, data = plain_net(norm=False, out=1), reals(60)
    noise = Gaussian()
    run(net, data, likelihood=noise, validation=(reals(60, seed=2)[0], 10 + reals(60, seed=2)[1]))
    settled = noise.sd().item()
    assert settled > 5
    assert run(net, data, likelihood=noise, epochs=1, lr=1e-9).noise["before"]["sd"] == [pytest.approx(settled)]


# ---- resuming --------------------------------------------------------------------------------------------------------


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
@pytest.mark.parametrize("step", [2, 7, 12])
def test_a_run_that_stops_ends_with_the_same_bits(
    likelihood: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = 1 if likelihood == "gaussian" else 2
    asked: dict[str, Any] = {"validation": reals(40, seed=2), "likelihood": likelihood, "save_every": 0, "patience": 3}
    whole = bayesian_net(norm=False, out=out)
    expected = run(whole, reals(60), **asked)
    net, steps, take = bayesian_net(norm=False, out=out), 0, loop.Loop._take_step

    def stopping(self: Any, *rest: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            raise StoppedError
        take(self, *rest)

    monkeypatch.setattr(loop.Loop, "_take_step", stopping)
    with pytest.raises(StoppedError):
        run(net, reals(60), out=tmp_path, **asked)
    again = bayesian_net(norm=False, out=out)
    found = run(again, reals(60), out=tmp_path, **asked)
    assert same(again, whole)
    assert same(found.likelihood, expected.likelihood)
    assert found.noise == expected.noise


# ---- the choice ------------------------------------------------------------------------------------------------------


def made(varying: bool) -> Data:
    return Data("made", "regression", Part(*reals(400, 1, varying)), validation=Part(*reals(400, 2, varying)))


def chosen(data: Data, out: Path | None = None, **changes: Any) -> Any:
    recipe = Recipe(
        data={"name": "digits"},  # not read: the data are given
        net={"name": "fcn", "hidden": [16]},
        method={"inference": "ffg", "init_sd": 0.01},
        schedule=Schedule(epochs=1, lr=1e-3),
        pretrain=Schedule(epochs=60, lr=0.02, batch_size=100, cosine=True, patience=60),
        likelihood="auto",
    )
    return run_recipe(recipe.but(**changes), out, data=data, progress=False, tensorboard=False)


@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_validation_data_choose_the_kind_of_noise(varying: bool, plain: bool, tmp_path: Path) -> None:
    name = "heteroscedastic" if varying else "gaussian"
    longer: Any = {"schedule": {"epochs": 60, "lr": 0.02, "cosine": True, "patience": 60}}
    changes: Any = {"method": {"inference": "deterministic"}, "pretrain": None, **longer} if plain else {}
    found = chosen(made(varying), tmp_path, **changes)
    assert found.recipe.likelihood == name
    assert min(found.likelihoods, key=found.likelihoods.get) == name
    assert set(found.likelihoods) == {"gaussian", "heteroscedastic"}
    assert bnn.likelihoods.about(found.likelihood).name == name
    stages = {f"{'train' if plain else 'pretrain'}/{one}" for one in found.likelihoods}
    assert stages <= set(found.folder.training())
    again = chosen(made(varying), tmp_path, **changes)  # nothing is trained again
    assert same(again.network, found.network)
    opened = bnn.open_run(tmp_path)
    assert (opened.likelihoods, opened.plain) == (found.likelihoods, found.plain)
    assert opened.history is not None
    assert opened.history.epochs == found.history.epochs


def test_without_enough_validation_data_there_is_no_choice() -> None:
    data = Data("made", "regression", Part(*reals(50, 1, True)), validation=Part(*reals(CHOOSES - 1, 2, True)))
    found = chosen(data, pretrain={"epochs": 1})
    assert (found.recipe.likelihood, found.likelihoods) == ("auto", None)
    assert isinstance(found.likelihood, Gaussian)


def test_of_few_inputs_another_likelihood_has_to_be_better_by_a_standard_error() -> None:
    usual = torch.zeros(MANY - 1)
    less = usual - 0.05 + torch.tensor([-1.0, 1.0]).repeat(MANY // 2)[: MANY - 1]  # standard error: 0.1
    assert best({"a": usual, "b": less}) == "a"
    assert best({"a": usual, "b": less - 0.1}) == "b"
    assert best({"a": usual, "b": -less}) == "a"
    more = torch.cat([less, less[1:2]])
    assert best({"a": torch.zeros(len(more)), "b": more}) == "b"  # there are enough to take the lower


# ---- comparison with the plain network -------------------------------------------------------------------------------


def test_a_run_that_loses_what_the_plain_network_had_says_so() -> None:
    kept = chosen(made(False), likelihood="gaussian")
    lost = chosen(
        made(False), likelihood="gaussian", method={"inference": "ffg", "init_sd": 0.5}, schedule={"lr": 1e-9}
    )
    assert not kept.plain.worse
    assert lost.plain.worse
    assert lost.plain.plain == pytest.approx(kept.plain.plain)
    losses = held_out_losses(lost.network, lost.likelihood, made(False))
    assert losses is not None
    assert lost.plain.run == pytest.approx(float(losses.mean()))


def test_worse_is_by_two_standard_errors_of_the_paired_difference() -> None:
    plain = torch.arange(100.0)
    noise = torch.randn(100, generator=torch.Generator().manual_seed(0))
    error = float(noise.std()) / 10
    for shift, worse in ((1.9 * error, False), (2.1 * error, True)):
        found = Comparison.of(plain, plain + noise - noise.mean() + shift)
        assert found is not None
        assert found.worse is worse
        assert found.error == pytest.approx(error, rel=1e-4)


def test_a_posterior_begins_no_wider_than_asked() -> None:
    data, net = made(False), plain_net(norm=False, out=1)
    noise = run(net, data, epochs=30, lr=0.02).likelihood
    with torch.no_grad():
        noise._sd.copy_(torch.tensor(0.01).expm1().log())
    entry: dict[str, Any] = {
        "inducing_rows": 4,
        "inducing_cols": 4,
        "max_lamda": 0.3,
        "init_lamda": 0.3,
        "max_sd_u": 0.2,
    }
    method = {"inference": "inducing", **entry}
    found = within_noise(method, net, data, noise, 0.5, seed=0)
    assert found["max_lamda"] == found["init_lamda"] < 0.3
    assert found["max_sd_u"] / 0.2 == pytest.approx(found["max_lamda"] / 0.3)
    converted = copy.deepcopy(net)
    bnn.bayesianize_(converted, **found)
    with torch.no_grad():
        drawn = bnn.draws(converted, data.train.tensors()[0], 100, torch.Generator().manual_seed(1))
    assert float(drawn.std(0).median()) == pytest.approx(0.5 * 0.01, rel=0.3)
    assert within_noise(method, net, data, noise, 1e3, seed=0) == method
    assert within_noise(method, net, data, bnn.likelihoods.Categorical(), 1e-6, seed=0) == method
