"""`bnn.calibrate_`: known temperatures come back, `predict` divides every draw's logits by T, and nothing else does."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn import BayesianClassifier, temperature
from bnn._engine.temperature import temperature_of
from bnn.data import Data, Part
from bnn.functional.temperature import mixture_losses
from bnn.temperature import fitted


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def bayesian(scale: float = 6.0) -> nn.Sequential:
    """Draws that disagree, of logits that are far too large."""
    torch.manual_seed(0)
    net = plain()
    with torch.no_grad():
        net[2].weight.mul_(scale)
    bnn.bayesianize_(net, "ffg", init_sd=0.2)
    return net


def labelled(net: nn.Module, n: int = 400) -> tuple[Tensor, Tensor]:
    """Inputs, and labels from the posterior mean at a third of its logits."""
    x = torch.randn(n, 4)
    with torch.no_grad():
        logits = bnn.draws(net, x, samples=0)[0] / 3
    return x, torch.distributions.Categorical(logits=logits).sample()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mixture_nll(outputs: Tensor, y: Tensor, t: float) -> float:
    """-mean log 1/K sum_k softmax(f_k / T)_y, by the formula, in float64."""
    probs = (outputs.double() / t).softmax(2).mean(0)
    return float(-probs[torch.arange(len(y)), y].log().mean())


# ---- the fit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [0.3, 1.0, 2.5, 10.0])
def test_a_known_temperature_comes_back(t: float) -> None:
    """Labels of softmax(z), logits t z: within 5 %, which is three standard errors of 20,000 labels."""
    z = 2 * torch.randn(20_000, 5)
    y = torch.distributions.Categorical(logits=z).sample()
    assert bnn.calibrate_(nn.Identity(), (t * z, y)) == pytest.approx(t, rel=0.05)


def test_a_known_temperature_of_a_mixture_comes_back() -> None:
    """Labels of 1/K sum_k softmax(z_k): the temperature of the mixture, not of its mean."""
    z = 2 * torch.randn(8, 20_000, 4)
    y = torch.distributions.Categorical(probs=z.softmax(2).mean(0)).sample()
    gaps = bnn.likelihoods.Categorical().gaps(3 * z, y)
    assert fitted([gaps])[0] == pytest.approx(3.0, rel=0.05)


def test_no_temperature_of_a_dense_grid_is_better() -> None:
    net = bayesian()
    x, y = labelled(net)
    t = bnn.calibrate_(net, (x, y), samples=7, generator=seeded(), batch_size=400)
    again = seeded()
    inner = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=again)))
    with torch.no_grad():
        outputs = bnn.draws(net.eval(), x, 7, inner)
    grid = torch.logspace(math.log10(0.05), math.log10(20), 2000).tolist()
    losses = [mixture_nll(outputs, y, one) for one in grid]
    assert t == pytest.approx(grid[int(np.argmin(losses))], rel=4e-3)  # the grid's spacing is 0.3 %
    assert mixture_nll(outputs, y, t) <= min(losses) + 1e-12
    assert t > 1.5


def test_the_lowest_of_several_valleys() -> None:
    """Random mixtures of draws of very different scales: whatever the number of minima, no point of a grid is lower."""
    inverses = torch.logspace(math.log10(0.05), math.log10(20), 80, dtype=torch.double).tolist()
    several = 0
    for seed in range(25):
        generator = seeded(seed)
        other = torch.randn(3, 4, 1, generator=generator) * (2 * torch.randn(3, 1, 1, generator=generator)).exp()
        gaps = torch.cat([torch.zeros_like(other), other], -1)  # (K, N, C)
        losses = [float(mixture_losses(gaps, b)[0].mean()) for b in inverses]
        falls = [later < before for before, later in itertools.pairwise(losses)]
        several += sum(fell and not falling for fell, falling in itertools.pairwise(falls)) > 1
        t, doubt = fitted([gaps])
        if "left at 1" not in doubt:
            assert float(mixture_losses(gaps, 1 / t)[0].mean()) <= min(losses) + 1e-9
    assert several >= 2


def test_parts_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    net = bayesian()
    data = labelled(net)
    bnn.set_sampling_(net, "weight")
    whole = bnn.calibrate_(net, data, generator=seeded(), batch_size=400)
    monkeypatch.setattr(temperature, "TERMS", 2000)
    assert bnn.calibrate_(net, data, generator=seeded(), batch_size=37) == pytest.approx(whole, rel=1e-5)
    assert bnn.calibrate_(net, data, generator=seeded(1), batch_size=37) != pytest.approx(whole, rel=1e-5)


def test_flat_logits_leave_it_at_one() -> None:
    with pytest.warns(UserWarning, match="left at 1"):
        assert bnn.calibrate_(nn.Identity(), (torch.zeros(120, 3), torch.zeros(120).long())) == 1.0


# ---- what uses it ----------------------------------------------------------------------------------------------------


def test_predict_divides_every_draw_and_nothing_else_does() -> None:
    net = bayesian()
    x, y = labelled(net)
    before = bnn.draws(net, x, 5, seeded())
    t = bnn.calibrate_(net, (x, y))
    assert t == temperature_of(net) != 1
    assert torch.equal(bnn.draws(net, x, 5, seeded()), before)
    with bnn.frozen_draw(net, 3):
        calibrated = net(x)
    bare = copy.deepcopy(net)
    assert bnn.calibrate_(bare, None) == 1.0
    with bnn.frozen_draw(bare, 3):
        assert torch.equal(bare(x), calibrated)
    with torch.no_grad():
        outputs = bnn.draws(net.eval(), x, 5, seeded())
    found = bnn.predict(net, x, 5, generator=seeded(), keep_samples=True)
    assert found.samples is not None
    assert torch.equal(found.samples, outputs)  # raw
    expected = bnn.likelihoods.Categorical().predictive(outputs / t)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(found.total, found.aleatoric + found.epistemic, rtol=1e-5, atol=1e-6)
    assert float(found.epistemic.mean()) > 1e-3
    assert not torch.equal(found.probs, bnn.predict(bare, x, 5, generator=seeded()).probs)


def test_the_nll_is_better_by_it_and_the_answers_are_the_same() -> None:
    net = bayesian()
    x, y = labelled(net, 1000)
    raw = bnn.evaluate(net, (x, y), validation=(x, y), resamples=10, samples=0)
    bnn.calibrate_(net, (x, y), samples=0)
    found = bnn.evaluate(net, (x, y), validation=(x, y), resamples=10, samples=0)
    assert found.metrics["nll"].value < raw.metrics["nll"].value - 0.1
    assert found.metrics["accuracy"].value == raw.metrics["accuracy"].value
    # one pass: the fit of `evaluate` is that of `calibrate_`, and asks for nothing more afterwards
    assert found.network_temperature == pytest.approx(raw.temperature, rel=1e-4)
    assert found.temperature == pytest.approx(1.0, rel=1e-4)
    assert found.metrics["nll"].value == pytest.approx(raw.metrics["nll_after_temperature"].value, rel=1e-5)
    assert f"calibrated: logits are divided by T = {found.network_temperature:.4g}" in str(found)
    assert bnn.Evaluation.from_dict(found.to_dict()) == found
    stored = {name: value for name, value in raw.to_dict().items() if name != "network_temperature"}
    assert bnn.Evaluation.from_dict(stored).network_temperature == 1.0  # an older file
    assert "calibrated" not in str(raw)


def test_an_estimator_uses_the_temperature_of_its_network(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    model = BayesianClassifier(hidden=(16,), epochs=5, random_state=0, samples=4).fit(X[:150], y[:150])
    before = model.predict_dist(X)
    rows = torch.from_numpy(model.x_scale_.scaled(X[150:])).float()
    bnn.calibrate_(model.network_, (rows, torch.from_numpy(y[150:])))
    t = temperature_of(model.network_)
    found = model.predict_dist(X)
    expected = bnn.likelihoods.Categorical().predictive(model._draws(X) / t)
    np.testing.assert_allclose(found.probs, expected.probs.numpy(), rtol=1e-12)
    np.testing.assert_allclose(found.total, found.aleatoric + found.epistemic, rtol=1e-9)
    assert np.abs(found.probs - before.probs).max() > 1e-3
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(BayesianClassifier.load(tmp_path / "model").predict_proba(X), found.probs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_network_has_that_of_the_one_inside() -> None:
    net = bayesian()
    bnn.calibrate_(net, labelled(net))
    wrapped = torch.compile(net)
    assert temperature_of(wrapped) == temperature_of(net) != 1
    bnn.calibrate_(wrapped, None)
    assert temperature_of(net) == 1


# ---- where it is kept ------------------------------------------------------------------------------------------------


def test_copies_and_files_keep_it_and_the_state_dict_does_not(tmp_path: Path) -> None:
    net = bayesian()
    x, y = labelled(net)
    names = net.state_dict().keys()
    bnn.save(net, tmp_path / "before")
    t = bnn.calibrate_(net, (x, y))
    assert net.state_dict().keys() == names
    assert temperature_of(copy.deepcopy(net)) == t
    bnn.save(net, tmp_path / "net")
    bnn.load_(fresh := plain(), tmp_path / "net")
    assert temperature_of(fresh) == t
    one, other = (bnn.predict(each, x, 4, generator=seeded()).probs for each in (net, fresh))
    assert torch.equal(one, other)
    bnn.load_(other_net := plain(), tmp_path / "before")
    assert temperature_of(other_net) == 1
    calibrated = plain()
    bnn.calibrate_(calibrated, labelled(calibrated, 2000))
    assert temperature_of(calibrated) != 1
    bnn.load_(calibrated, tmp_path / "before")  # the file's word counts
    assert temperature_of(calibrated) == 1


def test_a_failed_load_leaves_it_alone(tmp_path: Path) -> None:
    net = plain()
    t = bnn.calibrate_(net, labelled(net))
    bnn.save(nn.Linear(2, 2), tmp_path / "other")
    with pytest.raises(ValueError, match="does not fit"):
        bnn.load_(net, tmp_path / "other")
    assert temperature_of(net) == t != 1


# ---- what takes it off -----------------------------------------------------------------------------------------------


def test_converting_and_training_take_it_off_with_a_word() -> None:
    net = plain()
    x, y = labelled(net)
    bnn.calibrate_(net, (x, y))
    with pytest.warns(UserWarning, match=r"was calibrated \(T = .*\), and it is trained now: its temperature is taken"):
        bnn.fit(net, (x, y), epochs=1, progress=False)
    assert temperature_of(net) == 1
    bnn.calibrate_(net, (x, y))
    with pytest.warns(UserWarning, match="and it is converted now"):
        bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    assert temperature_of(net) == 1
    bnn.calibrate_(net, (x, y))
    with pytest.warns(UserWarning, match="its layers share global weights now"):
        bnn.register_global_inducing_weights_(net, 2, 2)
    assert temperature_of(net) == 1
    bnn.fit(net, (x, y), epochs=1, progress=False)  # and says nothing where there is none


def test_where_warnings_are_errors_it_stays() -> None:
    net = plain()
    x, y = labelled(net)
    t = bnn.calibrate_(net, (x, y))
    with pytest.raises(UserWarning, match="converted"):
        bnn.bayesianize_(net, "ffg")
    with pytest.raises(UserWarning, match="trained"):
        bnn.fit(net, (x, y), epochs=1, progress=False)
    assert temperature_of(net) == t
    assert isinstance(net[0], nn.Linear)


def test_an_ensemble_has_one_of_its_own() -> None:
    nets = [bayesian(), bayesian()]
    with torch.no_grad():
        nets[1][0].weight_mean.add_(0.3)
    x, y = labelled(nets[0])
    for net in nets:
        bnn.calibrate_(net, (x, y))
    with pytest.warns(UserWarning, match="does not use their temperatures") as caught:
        ensemble = bnn.Ensemble(nets)
    assert len(caught) == 1
    assert temperature_of(ensemble) == 1
    outputs = bnn.draws(ensemble.eval(), x, 4, seeded())
    bare = bnn.predict(ensemble, x, 4, generator=seeded()).probs
    torch.testing.assert_close(bare, outputs.softmax(2).mean(0))
    t = bnn.calibrate_(ensemble, (x, y))
    torch.testing.assert_close(bnn.predict(ensemble, x, 4, generator=seeded()).probs, (outputs / t).softmax(2).mean(0))
    source = plain()
    bnn.calibrate_(source, (x, y))
    assert all(temperature_of(member) == 1 for member in bnn.Ensemble(source, 2).members)


# ---- kinds of targets ------------------------------------------------------------------------------------------------


def test_segmentation_counts_positions_that_are_not_ignored() -> None:
    z = 2 * torch.randn(120, 3, 4, 5)
    y = torch.distributions.Categorical(logits=z.movedim(1, -1)).sample()
    flat = bnn.calibrate_(nn.Identity(), (2 * z.movedim(1, -1).reshape(-1, 3), y.flatten()))
    assert bnn.calibrate_(nn.Identity(), (2 * z, y)) == pytest.approx(flat, rel=1e-6)
    assert flat == pytest.approx(2.0, rel=0.15)
    wrong = y.clone()
    wrong[:, 0] = -100
    kept = 2 * z[:, :, 1:].movedim(1, -1).reshape(-1, 3), y[:, 1:].flatten()
    assert bnn.calibrate_(nn.Identity(), (2 * z, wrong)) == pytest.approx(bnn.calibrate_(nn.Identity(), kept), rel=1e-6)
    with pytest.raises(ValueError, match="no target counts"):
        bnn.calibrate_(nn.Identity(), (z, torch.full_like(y, -100)))


def test_labels_that_are_0_or_1() -> None:
    z = 2 * torch.randn(5000, 3)
    y = torch.bernoulli(z.sigmoid())
    net = nn.Identity()
    t = bnn.calibrate_(net, (4 * z, y), likelihood="bernoulli")
    assert t == pytest.approx(4.0, rel=0.08)
    grid = torch.linspace(3, 5, 2001).tolist()
    losses = [float(F.binary_cross_entropy_with_logits(4 * z.double() / one, y.double())) for one in grid]
    assert t == pytest.approx(grid[int(np.argmin(losses))], abs=2e-3)
    found = bnn.predict(net, 4 * z, 0, likelihood="bernoulli").probs
    torch.testing.assert_close(found, (4 * z / t).sigmoid())
    with pytest.raises(ValueError, match="some of these lie between"):
        bnn.calibrate_(net, (z, 0.5 * y), likelihood="bernoulli")


def test_every_form_of_data() -> None:
    z = 2 * torch.randn(300, 3)
    y = torch.distributions.Categorical(logits=z).sample()
    t = bnn.calibrate_(nn.Identity(), (z, y))
    part = Part(z, y)
    forms: list[Any] = [
        part,
        (z.numpy(), y.numpy()),
        (z, y[:, None]),
        TensorDataset(z, y),
        DataLoader(TensorDataset(z, y), 64),
        Data("made", "classification", Part(z[:10], y[:10]), validation=part, classes=("a", "b", "c")),
    ]
    assert [bnn.calibrate_(nn.Identity(), one) for one in forms] == pytest.approx([t] * len(forms), rel=1e-6)


def test_weights_and_smoothing_of_the_likelihood_do_not_count() -> None:
    z = 2 * torch.randn(300, 3)
    y = torch.distributions.Categorical(logits=z).sample()
    odd = bnn.likelihoods.Categorical(class_weights=[1.0, 5.0, 0.1], label_smoothing=0.2)
    assert bnn.calibrate_(nn.Identity(), (z, y), likelihood=odd) == bnn.calibrate_(nn.Identity(), (z, y))


# ---- doubts and mistakes ---------------------------------------------------------------------------------------------


def test_too_few_inputs_leave_it_at_one() -> None:
    z, y = torch.randn(99, 3), torch.randint(3, (99,))
    net = nn.Identity()
    with pytest.warns(
        UserWarning, match="99 inputs are too few to fit a temperature, which takes 100: it is left at 1"
    ):
        assert bnn.calibrate_(net, (z, y)) == 1.0
    assert temperature_of(net) == 1
    z, y = torch.randn(100, 3), torch.randint(3, (100,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert bnn.calibrate_(net, (z, y)) > 1
        assert bnn.calibrate_(net, (z[:50], y[:50])) == temperature_of(net) == 1.0


def test_draws_that_are_always_right_leave_it_at_one() -> None:
    """Without a mistake the NLL has no minimum: T = 0.05 would make every later mistake twenty times as dear."""
    y = torch.randint(3, (200,))
    with pytest.warns(UserWarning, match="the surer the better: the temperature is left at 1"):
        assert bnn.calibrate_(nn.Identity(), (5 * F.one_hot(y, 3).float(), y)) == 1.0
    one = torch.stack([F.one_hot(y, 3), F.one_hot((y + 1) % 3, 3)]).float()  # one draw right, the other wrong
    gaps = bnn.likelihoods.Categorical().gaps(one * torch.tensor([9.0, 1e5])[:, None, None], y)
    t, doubt = fitted([gaps])
    assert t == 1.0
    assert "some draw is right everywhere" in doubt


def test_a_bound_is_told() -> None:
    y = torch.randint(3, (200,))
    wrong = 5 * F.one_hot((y + 1) % 3, 3).float()
    with pytest.warns(UserWarning, match="the temperature 20 is at its bound"):
        assert bnn.calibrate_(nn.Identity(), (wrong, y)) == pytest.approx(20.0)
    z = 2 * torch.randn(2000, 3)
    labels = torch.distributions.Categorical(logits=z).sample()
    with pytest.warns(UserWarning, match=r"the temperature 0\.05 is at its bound"):
        assert bnn.calibrate_(nn.Identity(), (1e-3 * z, labels)) == pytest.approx(0.05)


def test_large_outputs_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    z = 2 * torch.randn(400, 3)
    y = torch.distributions.Categorical(logits=z).sample()
    monkeypatch.setattr(temperature, "KEPT_BYTES", 200 * 12)
    with pytest.warns(UserWarning, match="fitted to 200 inputs, evenly spaced"):
        t = bnn.calibrate_(nn.Identity(), (z, y))
    assert t == bnn.calibrate_(nn.Identity(), (z[::2], y[::2]))
    images, labels = z.reshape(100, 4, 3).movedim(2, 1), y.reshape(100, 4)
    with pytest.warns(UserWarning, match="fitted to every 2th target"):
        assert bnn.calibrate_(nn.Identity(), (images, labels)) == pytest.approx(t, rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite(value: float) -> None:
    z = torch.randn(120, 3)
    z[7, 1] = value
    net = nn.Identity()
    with pytest.raises(ValueError, match="NaN or infinite for 1 of 120 inputs"):
        bnn.calibrate_(net, (z, torch.randint(3, (120,))))
    assert temperature_of(net) == 1


def test_real_targets_are_refused_with_advice() -> None:
    z, y = torch.randn(120, 1), torch.randn(120, 1)
    for options in ({}, {"likelihood": "gaussian"}, {"likelihood": bnn.likelihoods.HeteroscedasticGaussian()}):
        with pytest.raises(ValueError, match="a temperature is for classes, and these are real targets"):
            bnn.calibrate_(nn.Identity(), (z, y), **options)
    with pytest.raises(ValueError, match="whose outputs are logits, as likelihood='categorical' or 'bernoulli'"):
        bnn.calibrate_(nn.Identity(), (z, y), likelihood=F.mse_loss)


def test_a_calibrated_network_refuses_likelihoods_without_logits() -> None:
    z = 2 * torch.randn(300, 3)
    net = nn.Identity()
    bnn.calibrate_(net, (3 * z, torch.distributions.Categorical(logits=z).sample()))
    with pytest.raises(ValueError, match="under the likelihood 'gaussian': pass the likelihood"):
        bnn.predict(net, z, 0, likelihood=bnn.likelihoods.Gaussian())


def test_data_that_cannot_serve() -> None:
    z, y = torch.randn(120, 2), torch.randint(2, (120,))
    data = Data("made", "classification", Part(z, y), classes=("a", "b"))
    with pytest.raises(ValueError, match=r"made has no validation part.*data.with_validation\(0.1\)"):
        bnn.calibrate_(nn.Identity(), data)
    with pytest.raises(ValueError, match="no targets"):
        bnn.calibrate_(nn.Identity(), Part(z))
    with pytest.raises(ValueError, match="but the output has 2 classes"):
        bnn.calibrate_(nn.Identity(), (z, y + 1))
    with pytest.raises(ValueError, match=r"y.argmax\(1\)"):
        bnn.calibrate_(nn.Identity(), (z, F.one_hot(y, 2).float()), likelihood="categorical")
    with pytest.raises(TypeError, match="expected a network"):
        bnn.calibrate_(None, (z, y))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="samples must be"):
        bnn.calibrate_(nn.Identity(), (z, y), samples=-1)
