"""BatchNorm statistics against their definition: plain averages over the batches, each under a draw."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import bayesian_net, blobs, plain_net, values
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn.data.batches import Place
from bnn.data.dataset import Data, Part

CASES = [plain_net, bayesian_net]


def batches(count: int = 5, size: int = 12) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(size, 4, generator=generator) + i for i in range(count)]


def averages(inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean over batches of their means (D,) and unbiased variances (D,)."""
    means, variances = (torch.stack([f(x) for x in inputs]).mean(0) for f in (lambda x: x.mean(0), lambda x: x.var(0)))
    return means, variances


def test_a_plain_network_gets_the_averages_over_the_batches() -> None:
    net = plain_net()
    with torch.no_grad():
        net[1].running_mean += 100
    assert bnn.refresh_batchnorm_(net, batches()) == 1
    mean, variance = averages([net[0](x) for x in batches()])
    assert torch.allclose(net[1].running_mean, mean, rtol=1e-5, atol=1e-5)
    assert torch.allclose(net[1].running_var, variance, rtol=1e-5)
    assert net[1].num_batches_tracked == 5


def test_every_batch_is_seen_under_a_draw_of_its_own() -> None:
    """What the layer before showed is noted; with a lamda of 0.5 draws differ a lot."""
    net = bayesian_net(sampling="weight", init_lamda=0.5)
    seen: list[Tensor] = []
    net[0].register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    x = batches(1)[0]
    bnn.refresh_batchnorm_(net, [x] * 40)
    mean, variance = averages(seen)
    assert torch.allclose(net[1].running_mean, mean, rtol=1e-4, atol=1e-4)
    assert torch.allclose(net[1].running_var, variance, rtol=1e-4)
    assert len({float(output.sum()) for output in seen}) == 40
    with torch.no_grad():
        spread = torch.stack([net[0](x) for _ in range(400)]).mean(1)  # (draws, D)
    error = (net[1].running_mean - spread.mean(0)).abs() / (spread.std(0) * (1 / 40 + 1 / 400) ** 0.5)
    assert error.max() < 4


def test_under_a_frozen_draw_it_is_that_function() -> None:
    net = bayesian_net(init_lamda=0.5)
    with bnn.frozen_draw(net, seed=4):
        bnn.refresh_batchnorm_(net, batches())
        with torch.no_grad():
            mean, variance = averages([net[0](x) for x in batches()])
    assert torch.allclose(net[1].running_mean, mean, rtol=1e-4, atol=1e-4)
    assert torch.allclose(net[1].running_var, variance, rtol=1e-4)


def test_every_member_of_an_ensemble_sees_every_batch() -> None:
    ensemble = bnn.Ensemble(plain_net(), members=3)
    assert bnn.refresh_batchnorm_(ensemble, batches()) == 3
    for member in ensemble.members:
        mean, variance = averages([member[0](x) for x in batches()])
        assert torch.allclose(member[1].running_mean, mean, rtol=1e-4, atol=1e-4)
        assert torch.allclose(member[1].running_var, variance, rtol=1e-4)
        assert member[1].num_batches_tracked == 5


def test_a_deeper_norm_sees_what_the_one_before_makes_of_the_batch() -> None:
    net = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.9), nn.ReLU(), nn.Linear(6, 6), nn.BatchNorm1d(6)
    )
    net[1].train(False)
    assert bnn.refresh_batchnorm_(net, batches()) == 2
    inner = [F.batch_norm(net[0](x), None, None, net[1].weight, net[1].bias, training=True).relu() for x in batches()]
    mean, variance = averages([net[4](x) for x in inner])  # without Dropout
    assert torch.allclose(net[5].running_mean, mean, rtol=1e-4, atol=1e-5)
    assert torch.allclose(net[5].running_var, variance, rtol=1e-4)


@pytest.mark.parametrize("make", CASES)
def test_modes_momenta_and_parameters_are_left_as_they_were(make: Any) -> None:
    net = make()
    net[1].momentum = 0.3
    net[0].train()
    net[1].eval()
    before, modes = values(net), [module.training for module in net.modules()]
    bnn.refresh_batchnorm_(net, batches())
    assert [module.training for module in net.modules()] == modes
    assert net[1].momentum == 0.3
    changed = {name for name, value in before.items() if not torch.equal(net.state_dict()[name], value)}
    assert changed == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert all(parameter.grad is None and parameter.grad_fn is None for parameter in net.parameters())
    assert not net[1].running_mean.requires_grad


def test_only_so_many_batches() -> None:
    net = plain_net()
    bnn.refresh_batchnorm_(net, iter(batches()), batches=2)
    mean, _ = averages([net[0](x) for x in batches()[:2]])
    assert torch.allclose(net[1].running_mean, mean, rtol=1e-5, atol=1e-5)
    assert net[1].num_batches_tracked == 2


def test_an_error_puts_the_old_statistics_back() -> None:
    net = plain_net()
    with torch.no_grad():
        net[1].running_mean += 3
    before = values(net)
    with pytest.raises(RuntimeError, match="shapes"):
        bnn.refresh_batchnorm_(net, [*batches(2), torch.zeros(5, 9)])
    with pytest.raises(ValueError, match="the loader gave no batch"):
        bnn.refresh_batchnorm_(net, [])
    with pytest.raises(TypeError, match="or any iterable that gives batches"):
        bnn.refresh_batchnorm_(net, torch.zeros(5, 4))
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items())
    assert net[1].training
    assert net[1].momentum == 0.1


def test_a_network_without_statistics_has_none_to_refresh() -> None:
    assert bnn.refresh_batchnorm_(plain_net(norm=False), batches()) == 0
    assert bnn.refresh_batchnorm_(nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), batches()) == 0


X, Y = blobs(150)


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        Part(X, Y),
        Data("toy", "classification", Part(X, Y), classes=("a", "b", "c")),
        TensorDataset(X, Y),
    ],
    ids=["tensors", "arrays", "Part", "Data", "Dataset"],
)
def test_data_as_fit_takes_them(data: Any) -> None:
    net = plain_net()
    bnn.refresh_batchnorm_(net, data)
    parts = [X[indices] for indices, _ in Place(0, 0).parts(150, 100)]
    mean, variance = averages([net[0](x) for x in parts])
    assert torch.allclose(net[1].running_mean, mean, rtol=1e-4, atol=1e-5)
    assert torch.allclose(net[1].running_var, variance, rtol=1e-4)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(TensorDataset(X, Y), batch_size=50),
        DataLoader(TensorDataset(X), batch_size=50),
        [X[:50], X[50:100], X[100:]],
        [(X[:50], Y[:50]), (X[50:100], Y[50:100]), (X[100:], Y[100:])],
        [{"input": X[:50]}, {"input": X[50:100]}, {"input": X[100:]}],
    ],
    ids=["pairs", "single", "tensors", "tuples", "dicts"],
)
def test_batches_of_any_form(loader: Any) -> None:
    net = plain_net()
    bnn.refresh_batchnorm_(net, loader)
    mean, variance = averages([net[0](x) for x in (X[:50], X[50:100], X[100:])])
    assert torch.allclose(net[1].running_mean, mean, rtol=1e-4, atol=1e-5)
    assert torch.allclose(net[1].running_var, variance, rtol=1e-4)


def test_a_list_of_two_batches_is_no_pair_of_inputs_and_targets() -> None:
    net = plain_net()
    bnn.refresh_batchnorm_(net, [X[:75], X[75:]])
    mean, _ = averages([net[0](x) for x in (X[:75], X[75:])])
    assert torch.allclose(net[1].running_mean, mean, rtol=1e-4, atol=1e-5)


def test_a_trained_network_right_after_conversion_gets_better() -> None:
    """Noisy weights make every layer's outputs wider than the statistics of the weights before say."""
    torch.manual_seed(0)
    x, y = blobs(400)
    sizes = [4, 32, 32, 32]
    hidden = [[nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU()] for i, o in itertools.pairwise(sizes)]
    net = nn.Sequential(*itertools.chain(*hidden), nn.Linear(32, 3))
    bnn.fit(net, (x, y), epochs=10, lr=0.01, batch_size=50, seed=1, progress=False)
    bnn.bayesianize_(net, "ffg", init_sd=0.3)

    def nll(network: nn.Module) -> float:
        generator = torch.Generator().manual_seed(0)
        probs = bnn.predict(network, x, samples=1000, generator=generator).probs  # 20 leave it to chance
        return float(-probs[torch.arange(len(y)), y].clamp(min=1e-30).log().mean())

    before = nll(net)
    refreshed = copy.deepcopy(net)
    bnn.refresh_batchnorm_(refreshed, DataLoader(TensorDataset(x, y), batch_size=50))
    assert nll(refreshed) < before - 0.002


@pytest.mark.parametrize("wanted", [True, False])
def test_fit_refreshes_at_its_end_where_asked(wanted: bool) -> None:
    net = bayesian_net()
    bnn.fit(net, (X, Y), epochs=2, batch_size=50, seed=1, progress=False, refresh_batchnorm=wanted)
    assert net[1].num_batches_tracked == (3 if wanted else 6)
    plain = plain_net()
    bnn.fit(plain, (X, Y), epochs=2, batch_size=50, seed=1, progress=False)
    assert plain[1].num_batches_tracked == 6  # its statistics are those of training
