"""`bnn.prune_`: what goes, that it stays gone, and what it costs then."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import FAMILIES, LAYER_TYPES, Family, LayerType, ids, make, set_noise_, small_net
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import bnn
from bnn._conversion.input_scale import input_rms
from bnn.nn.base import BayesianLayer
from bnn.nn.pruning import mask_of, own_count

PRUNED = [family for family in FAMILIES if small_net(family)[0].prunable]
every_family = pytest.mark.parametrize("family", PRUNED, ids=ids(PRUNED))
KEEPS = [0.75, 0.5, 0.333, 0.1, 0.001, 0.0]


def network(inference: Any, seed: int = 0, **options: Any) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    sizes = {} if inference == "ffg" else {"inducing_rows": 3, "inducing_cols": 5}
    bnn.bayesianize_(net, inference, **(sizes | options))
    if inference == "ffg":
        with torch.no_grad():
            for layer in (net[0], net[3]):
                layer._weight_sd.normal_(-2.0, 1.0)
    return net


def inputs(n: int = 6) -> Tensor:
    return torch.randn(n, 2, 4, 4, generator=torch.Generator().manual_seed(3))


def zeros(net: nn.Module, *names: str) -> list[Tensor]:
    return [net.state_dict()[name] == 0 for name in names]


# ---- what goes -------------------------------------------------------------------------------------------------------


def test_the_smallest_entries_of_z_in_the_whole_network() -> None:
    net = network("inducing")
    names = ["0.z_row", "0.z_col", "3.z_row", "3.z_col"]
    before = {name: net.state_dict()[name].clone() for name in names}
    sizes = torch.cat([before[name].abs().flatten() for name in names])
    edge = sizes.sort().values[round(0.4 * len(sizes))]  # the smallest that is kept
    bnn.prune_(net, keep=0.6)
    for name in names:
        kept = before[name].abs() >= edge
        assert torch.equal(net.state_dict()[name], torch.where(kept, before[name], 0))
        assert torch.equal(net.state_dict()[name.replace(".z", "._mask_z")], kept)


def test_weights_of_the_smallest_mean_over_sd() -> None:
    net = network("ffg")
    layers = [net[0], net[3]]
    before = [(layer.weight.detach().clone(), layer.weight_sd.detach().clone()) for layer in layers]
    ratios = torch.cat([(mean.abs() / sd).flatten() for mean, sd in before])
    number = len(ratios) - len(ratios) // 4
    edge = ratios.sort().values[number]
    bnn.prune_(net, keep=0.25)
    for layer, (mean, sd) in zip(layers, before, strict=True):
        kept = mean.abs() / sd >= edge
        assert 0 < kept.sum() < kept.numel()
        assert torch.equal(layer.weight, torch.where(kept, mean, 0))
        assert torch.equal(layer.weight_sd, torch.where(kept, sd, 0))
    assert not any("bias" in name for name, _ in net.named_buffers())


def test_pruned_weights_have_neither_noise_nor_kl() -> None:
    for prior_mean in (0.0, 0.4):
        net = network("ffg", prior_mean=prior_mean, prior_weight_sd=0.7, prior_bias_sd=1.3)
        bnn.prune_(net, keep=0.3)
        expected, draws = 0.0, [net[3].sample_weights(bnn._engine.draw.Draw(count=4)).weight, net[3].weight[None]]
        for layer in (net[0], net[3]):
            kept = mask_of(layer, "_weight_sd")
            own = Normal(layer.weight[kept], layer.weight_sd[kept])
            expected += kl_divergence(own, Normal(prior_mean, 0.7)).sum()
            expected += kl_divergence(Normal(layer.bias, layer.bias_sd), Normal(prior_mean, 1.3)).sum()
        torch.testing.assert_close(bnn.kl_divergence(net), expected)
        gone = ~mask_of(net[3], "_weight_sd")
        assert gone.any()
        assert all((weights[:, gone] == 0).all() for weights in draws)
        assert (draws[0][:, ~gone].std(0) > 0).all()


def test_rows_of_pruned_weights_have_their_moments() -> None:
    """Outputs drawn row by row, 40,000 of them: mean x m and variance x^2 s^2 over the weights that are left."""
    torch.manual_seed(0)
    layer = bnn.nn.FFGLinear(6, 2, init_sd=0.5, sampling="local")
    bnn.prune_(layer, keep=0.5)
    x = torch.randn(1, 6)
    with torch.no_grad():
        samples = layer(x.expand(40_000, 6))
        mean, variance = F.linear(x, layer.weight, layer.bias)[0], F.linear(x**2, layer.weight_sd**2, layer.bias_sd**2)
    assert ((samples.mean(0) - mean).abs() < 5 * (variance[0] / 40_000).sqrt()).all()
    assert ((samples.var(0) / variance[0] - 1).abs() < 5 * (2 / 40_000) ** 0.5).all()


def test_an_odd_number_leaves_one_weight_around_zero() -> None:
    layer = bnn.nn.FFGLinear(5, 1, bias=False, init_sd=0.3)
    bnn.prune_(layer, keep=0.5)  # 5 of 10 parameters: two weights and an sd
    assert bnn.parameter_count(layer) == 5
    assert int((layer.weight != 0).sum()) == 2
    assert int((layer.weight_sd != 0).sum()) == 3
    kept = layer.weight_sd != 0
    own = kl_divergence(Normal(layer.weight[kept], layer.weight_sd[kept]), Normal(0.0, 1.0)).sum()
    torch.testing.assert_close(layer.kl_divergence(), own)
    bnn.prune_(layer, keep=0.5)
    assert bnn.parameter_count(layer) == 5  # nothing more, and nothing comes back
    bnn.prune_(layer, keep=0.4)
    assert int((layer.weight_sd != 0).sum()) == int((layer.weight != 0).sum()) == 2


SEEN = [case for case in LAYER_TYPES if 0 not in case.input_shape]


@pytest.mark.parametrize("case", SEEN, ids=ids(SEEN))
def test_the_size_of_inputs_of_any_layer(case: LayerType) -> None:
    """Against the weights, one by one: run(x; e_j)^2 summed over all rows is the sum of x_j^2."""
    torch.manual_seed(0)
    layer, x = make(PRUNED[0], case), case.input()
    found = input_rms(layer, {"": layer}, [x])[layer]
    assert found.weight.shape == layer.weight_shape
    rows = layer.run(x, torch.zeros(layer.weight_shape), torch.ones(layer.d_out)).sum() / layer.d_out
    for at in (
        torch.cartesian_prod(*map(torch.arange, layer.weight_shape)).reshape(-1, len(layer.weight_shape)).tolist()
    ):
        one = torch.zeros(layer.weight_shape)
        one[tuple(at)] = 1.0
        expected = (layer.run(x, one, None).square().sum() / rows).sqrt()
        torch.testing.assert_close(found.weight[tuple(at)], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kernel", ["paper", "split"])
def test_by_the_output_a_silent_input_goes_first(kernel: str) -> None:
    """Channel 1 of the images is empty: nothing is lost with its columns of Z_c, whatever their size."""
    net = network("inducing", kernel=kernel)
    x = inputs()
    x[:, 1] = 0
    columns = net[0].z_col.shape[1] - 1
    silent = torch.arange(columns) >= columns // 2  # (c, taps), c first
    with torch.no_grad():
        net[0].z_col[:, :-1][:, silent] *= 100.0
    out = bnn.draws(net, x, samples=0)
    share = 5 * int(silent.sum()) / sum(net[i].z_row.numel() + net[i].z_col.numel() for i in (0, 3))
    bnn.prune_(net, keep=1 - share, by="output", activations=x)
    assert (net[0].z_col[:, :-1][:, silent] == 0).all()
    assert (net[0].z_col[:, :-1][:, ~silent] != 0).all()
    assert out.shape == bnn.draws(net, x, samples=0).shape


def test_by_the_output_of_weights() -> None:
    net = network("ffg")
    x = inputs()
    first, last = net[0].weight.detach().clone(), net[3].weight.detach().clone()
    hidden = F.relu(net[0].run(x, first, net[0].bias.detach())).flatten(1)
    patches = F.unfold(x, 3, padding=1).mT.flatten(0, 1)
    scores = []
    for layer, mean, rows in ((net[0], first, patches), (net[3], last, hidden)):
        squares = rows.square().mean(0).view(mean.shape[1:])
        total = ((mean.square() + layer.weight_sd.detach().square()) * squares).sum().sqrt()
        scores.append(mean.abs() * squares.sqrt() / total)
    bnn.prune_(net, keep=0.5, by="output", activations=(x, torch.zeros(6, dtype=torch.long)))
    edge = torch.cat([one.flatten() for one in scores]).median()
    for layer, score in zip((net[0], net[3]), scores, strict=True):
        assert torch.equal(layer.weight == 0, score <= edge)


# ---- counts ----------------------------------------------------------------------------------------------------------


@every_family
def test_forecast_and_fact_agree(family: Family) -> None:
    net = small_net(family)
    state = set(net.state_dict())
    total = sum(p.numel() for p in net.parameters())
    for keep in KEEPS:
        forecast = bnn.parameter_count(net, keep=keep)
        bnn.prune_(net, keep)
        assert bnn.parameter_count(net) == forecast < total
        assert sum(own_count(module) for module in net.modules()) == forecast
        assert bnn.parameter_count(net, keep=0.9) == forecast  # what is gone does not come back
        table = bnn.summary(net)
        assert table.totals["network"].after == forecast
        assert sum(layer.after for layer in table.layers) == table.totals["Bayesian layers"].after == forecast
    assert all(bool((net.state_dict()[name] == 0).all()) for name in ("0." + part for part in net[0].prunable[:1]))
    assert torch.isfinite(net(torch.randn(3, 2, 4, 4))).all()
    assert {name for name in net.state_dict() if "_mask_" not in name} == state


def test_nothing_is_pruned_of_a_network_that_is_kept() -> None:
    net = network("inducing")
    before = net.state_dict()
    bnn.prune_(net, keep=1)
    assert net.state_dict().keys() == before.keys()
    assert "kept" not in str(bnn.summary(net))


def test_families_are_pruned_in_proportion() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 7), nn.Linear(7, 8), nn.Linear(8, 5), nn.Linear(5, 2))
    choice = {"0": "ffg", "1": {"inference": "inducing", "inducing_rows": 3}, "2": "inducingdeterministic", "3": "fcg"}
    bnn.bayesianize_(net, choice, inducing_rows=2)
    for keep in (0.71, 0.5, 0.09):
        forecast = bnn.parameter_count(net, keep=keep)
        bnn.prune_(net, keep)
        assert bnn.parameter_count(net) == forecast
        for layer in net[:3]:
            whole = sum(getattr(layer, name).numel() for name in layer.prunable)
            left = whole - sum(int((~mask).sum()) for name, mask in layer.named_buffers() if name.startswith("_mask_"))
            assert abs(left - keep * whole) <= 1
    assert not dict(net[3].named_buffers())


def test_tied_layers_and_ensembles() -> None:
    shared = nn.Linear(6, 6)
    net = nn.Sequential(shared, nn.ReLU(), shared)
    bnn.bayesianize_(net, "ffg")
    bnn.prune_(net, 0.5)
    assert bnn.parameter_count(net) == 84 - 36
    several = bnn.Ensemble(nn.Linear(8, 4), members=2)
    bnn.bayesianize_(several, "inducing", inducing_rows=2, inducing_cols=2)
    bnn.prune_(several, 0.5, by="output", activations=torch.randn(9, 8))
    whole = sum(p.numel() for p in several.parameters())
    prunable = 2 * (2 * 4 + 2 * 9)
    assert bnn.parameter_count(several) == whole - prunable // 2


def test_global_inducing_weights() -> None:
    net = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 4))
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=4)
    bnn.register_global_inducing_weights_(net, inducing_rows=2, inducing_cols=2)
    forecast = bnn.parameter_count(net, keep=0.4)
    bnn.prune_(net, 0.4)
    assert bnn.parameter_count(net) == forecast
    assert net(torch.randn(5, 9)).isfinite().all()
    with pytest.raises(ValueError, match=r"did not run on these activations.*_global_inducing_module"):
        bnn.prune_(net, 0.2, by="output", activations=torch.randn(5, 9))


# ---- it stays gone ---------------------------------------------------------------------------------------------------


OPTIMISERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
}


@pytest.mark.parametrize("inference", ["ffg", "inducing"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_no_optimiser_brings_it_back(name: str, inference: str) -> None:
    """One with momentum of the time before pruning, too: it moves the parameter, and nothing that is read of it."""
    net, x, y = network(inference), inputs(), torch.arange(6) % 3
    elbo = bnn.ELBO(net, num_data=6, likelihood="categorical")
    optimiser = OPTIMISERS[name](net.parameters())

    def step() -> None:
        optimiser.zero_grad()
        elbo(x, y).loss.backward()
        optimiser.step()

    step()
    step()
    bnn.prune_(net, 0.4)
    count = bnn.parameter_count(net)
    gone = {key: ~mask for key, mask in net.named_buffers() if "_mask_" in key}
    before = net[3].weight.detach().clone()
    for _ in range(3):
        step()
    assert bnn.parameter_count(net) == count
    assert not torch.equal(before, net[3].weight)
    for key, zero in gone.items():
        parameter = net.get_parameter(key.replace("_mask_", ""))
        assert zero.any()
        assert (net.state_dict()[key.replace("_mask_", "")][zero] == 0).all()
        assert (parameter.grad[zero] == 0).all()
        assert (parameter.grad[~zero] != 0).any()
    fresh = network(inference, seed=1)
    fresh.load_state_dict(net.state_dict())
    assert torch.equal(fresh[3].weight, net[3].weight)
    assert torch.equal(fresh[0].weight, net[0].weight)


@pytest.mark.parametrize("inference", ["ffg", "inducing"])
def test_copies_state_dicts_and_types(inference: str) -> None:
    net = network(inference)
    bnn.prune_(net, 0.4)
    twin, loaded = copy.deepcopy(net), network(inference, seed=1)
    loaded.load_state_dict(net.state_dict())
    for other in (twin, loaded):
        assert bnn.parameter_count(other) == bnn.parameter_count(net)
        draws = [
            bnn.draws(one, inputs(), samples=3, generator=torch.Generator().manual_seed(1)) for one in (net, other)
        ]
        assert torch.equal(*draws)
    with pytest.raises(RuntimeError, match=r"Missing key.*_mask_"):
        net.load_state_dict(network(inference).state_dict())
    for dtype in (torch.double, torch.bfloat16, torch.float):
        net.to(dtype)
        assert {mask.dtype for name, mask in net.named_buffers() if "_mask_" in name} == {torch.bool}
        assert bnn.parameter_count(net) == bnn.parameter_count(twin)
        assert net(inputs().to(dtype)).isfinite().all()


def test_factors_follow_the_mask() -> None:
    """They are cached where no gradient flows; pruning, loading and moving change what they follow from."""
    net = network("inducing")
    bnn.draws(net, inputs(), samples=0)
    for keep in (0.5, 0.2):
        bnn.prune_(net, keep)
        fresh = network("inducing", seed=1)
        fresh.load_state_dict(net.state_dict())
        assert torch.equal(bnn.draws(net, inputs(), samples=0), bnn.draws(fresh, inputs(), samples=0))
    other = network("inducing", seed=2)
    bnn.prune_(other, 0.9)
    net.load_state_dict(other.state_dict())
    assert torch.equal(bnn.draws(net, inputs(), samples=0), bnn.draws(other, inputs(), samples=0))


@pytest.mark.parametrize("inference", ["ffg", "inducing"])
def test_functions_and_fits(inference: str) -> None:
    net, y = network(inference), torch.arange(60) % 3
    bnn.prune_(net, 0.4)
    count = bnn.parameter_count(net)
    bnn.fit(net, (inputs(60), y), epochs=2, batch_size=20, seed=0, progress=False, tensorboard=False)
    assert bnn.parameter_count(net) == count
    with bnn.frozen_draw(net, 1):
        direct = net(inputs())
        called = torch.func.functional_call(net, dict(net.state_dict()), (inputs(),))
    assert torch.allclose(direct, called, atol=1e-6)


def test_reports_leave_out_what_has_no_sd() -> None:
    layer = bnn.nn.FFGLinear(10, 4, init_sd=0.3)
    bnn.prune_(layer, 0.25)
    sds, _ = layer.sds_and_cap()
    assert len(sds) == 10 + 4
    torch.testing.assert_close(sds, torch.full_like(sds, 0.3))


def test_the_summary_says_what_is_kept() -> None:
    net = network("inducing")
    bnn.prune_(net, 0.25)
    table = bnn.summary(net)
    shares = [layer.kept for layer in table.layers]
    for layer, share in zip((net[0], net[3]), shares, strict=True):
        entries = torch.cat([layer.z_row.flatten(), layer.z_col.flatten()])
        assert share == pytest.approx(float((entries != 0).double().mean()))
        assert f"{share:.1%}" in str(table)
    assert str(table).splitlines()[0].endswith("kept")
    assert table.to_dict()["layers"][0]["kept"] == shares[0]


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_leave_the_network_alone() -> None:
    net = network("inducing")
    before = copy.deepcopy(net.state_dict())
    for keep in (-0.1, 1.1, float("nan"), True, "half"):
        with pytest.raises(ValueError, match="keep must be a fraction between 0 and 1"):
            bnn.prune_(net, keep)
    with pytest.raises(ValueError, match=r"by.*'size'"):
        bnn.prune_(net, 0.5, by="size")
    with pytest.raises(ValueError, match="by='output' needs activations"):
        bnn.prune_(net, 0.5, by="output")
    with pytest.raises(ValueError, match="by='paper' takes no activations"):
        bnn.prune_(net, 0.5, activations=inputs())
    with pytest.raises(ValueError, match="NaN, inf or numbers too large"):
        bnn.prune_(net, 0.5, by="output", activations=inputs() * float("nan"))
    with pytest.raises(TypeError, match="expected a network"):
        bnn.prune_([net], 0.5)
    state = net.state_dict()
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in state)
    with torch.no_grad():
        net[3].z_row[0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN among the parameters of 3"):
        bnn.prune_(net, 0.5)
    assert not any("_mask_" in name for name in net.state_dict())


def test_nothing_to_prune() -> None:
    plain, full = nn.Linear(3, 2), nn.Linear(3, 2)
    bnn.bayesianize_(full, "fcg")
    for net in (plain, full):
        with pytest.raises(ValueError, match=r"nothing can be pruned: .*'ffg', 'inducing'"):
            bnn.prune_(net, 0.5)
    with torch.device("meta"):
        empty = nn.Linear(3, 2)
    bnn.bayesianize_(empty, "ffg")
    with pytest.raises(ValueError, match="on the meta device have no size to prune by"):
        bnn.prune_(empty, 0.5)


def test_what_is_gone_does_not_come_back() -> None:
    net = network("ffg")
    bnn.prune_(net, 0.5)
    with pytest.raises(ValueError, match=r"keep=0.75 asks for 396 of the 528 .*'ffg' .*has left 264.*keep <= 0.5$"):
        bnn.prune_(net, 0.75)
    bnn.prune_(net, 0.25)
    assert bnn.parameter_count(net) == 528 // 4 + 2 * (4 + 3)


def test_laplace_refuses_a_pruned_layer() -> None:
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    bnn.prune_(net, 0.5)
    with pytest.raises(ValueError, match="is pruned, and Laplace's approximation turns Z"):
        bnn.laplace_(net, (torch.randn(40, 8), torch.arange(40) % 3))


def test_a_temperature_is_forgotten() -> None:
    net = network("inducing")
    bnn._engine.temperature.set_temperature_(net, 2.0)
    with pytest.warns(UserWarning, match="pruned"):
        bnn.prune_(net, 0.5)
    assert bnn._engine.temperature.temperature_of(net) == 1


def test_a_family_without_scores_says_so() -> None:
    with pytest.raises(NotImplementedError):
        BayesianLayer.prune_scores(bnn.nn.FCGLinear(2, 2), None)


def test_scales_of_the_noise_do_not_matter_to_z() -> None:
    first, second = network("inducing"), network("inducing")
    set_noise_(second, 0.7)
    for net in (first, second):
        bnn.prune_(net, 0.5)
    assert all(map(torch.equal, zeros(first, "0.z_row", "3.z_col"), zeros(second, "0.z_row", "3.z_col")))
