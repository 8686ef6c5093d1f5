"""Factors are computed once per training step and once per value of the parameters, and are never stale."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bnn
from bnn.functional.inducing import factor
from bnn.nn import inducing
from bnn.nn.cache import Cache


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the factorisations made so far."""
    made: list[str] = []

    def counted(z: Tensor, d: Tensor, name: str = "") -> Any:
        made.append(name)
        return factor(z, d, name)

    monkeypatch.setattr(inducing, "factor", counted)
    return made


def network(**options: Any) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    bnn.bayesianize_(net, "inducing", **({"init_lamda": 0.1, "inducing_rows": 2, "inducing_cols": 3} | options))
    return net


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])


def predicted(net: nn.Module, x: Tensor) -> Tensor:
    return bnn.draws(net, x, samples=3, generator=torch.Generator().manual_seed(1))


def fresh(net: nn.Module, x: Tensor) -> Tensor:
    """What `predicted` is for the parameters as they are, without any cache."""
    other = copy.deepcopy(net)
    assert all(layer.cache._value is None for layer in layers(other))
    with torch.no_grad():
        return predicted(other, x)


def layers(net: nn.Module) -> list[Any]:
    return [module for module in net.modules() if isinstance(module, inducing.InducingBase)]


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whitened", [True, False], ids=["whitened", "unwhitened"])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
@pytest.mark.parametrize("q", ["diagonal", "ensemble"])
def test_a_training_step_factorises_once_per_side_and_layer(
    q: str, sampling: str, samples: int, whitened: bool, count: list[str]
) -> None:
    net, (x, y) = network(whitened_u=whitened, q_inducing=q, sampling=sampling), data()
    elbo = bnn.ELBO(net, num_data=5, likelihood="categorical", samples=samples)
    optimiser = torch.optim.Adam(elbo.parameters(), lr=1e-2)
    count.clear()  # converting unwhitened layers factorises too
    for step in range(1, 4):
        optimiser.zero_grad()
        elbo(x, y).loss.backward()
        optimiser.step()
        assert len(count) == 4 * step
    assert sum("Psi_r" in name for name in count) == sum("Psi_c" in name for name in count) == 6


@pytest.mark.parametrize("samples", [1, 3])
def test_a_training_step_of_global_weights(samples: int, count: list[str]) -> None:
    net, (x, y) = network(), data()
    bnn.register_global_inducing_weights_(net, 2, 2)
    elbo = bnn.ELBO(net, num_data=5, likelihood="categorical", samples=samples)
    count.clear()
    elbo(x, y).loss.backward()
    assert len(count) == 6  # two layers and V


def test_a_plain_training_step_factorises_once_per_side_and_layer(count: list[str]) -> None:
    net, (x, _) = network(), data()
    net(x).sum().backward()
    assert len(count) == 4


def test_a_repeated_layer_factorises_once(count: list[str]) -> None:
    net = nn.Sequential(*[nn.Linear(3, 3)] * 3)
    bnn.bayesianize_(net, "inducing", sampling="weight")
    net(torch.randn(2, 3)).sum().backward()
    assert len(count) == 2


# ---- predicting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whitened", [True, False], ids=["whitened", "unwhitened"])
def test_a_second_predict_factorises_nothing(whitened: bool, count: list[str]) -> None:
    net, (x, _) = network(whitened_u=whitened), data()
    count.clear()
    bnn.predict(net, x, samples=3, batch_size=2)
    assert len(count) == 4
    bnn.predict(net, x, samples=5)
    bnn.predict(net, x[:1], samples=0)
    with torch.no_grad():
        net(x)
        bnn.kl_divergence(net)
        assert net[0].weight.shape == (6, 4)
    assert len(count) == 4


def test_a_layer_that_does_not_train_is_factorised_once(count: list[str]) -> None:
    net, (x, _) = network(), data()
    net.requires_grad_(False)
    net(x.requires_grad_()).sum().backward()
    net(x)
    assert len(count) == 4


# ---- never stale -----------------------------------------------------------------------------------------------------


def step(make: Callable[..., torch.optim.Optimizer]) -> Callable[[nn.Module], None]:
    def change(net: nn.Module) -> None:
        x, y = data()
        optimiser = make(net.parameters())
        bnn.ELBO(net, num_data=5, likelihood="categorical")(x, y).loss.backward()
        optimiser.step()

    return change


@torch.no_grad()
def in_place(net: Any) -> None:
    net[0].z_row.mul_(-1.3)


@torch.no_grad()
def in_place_d(net: Any) -> None:
    net[2]._d_col[0] += 5


def in_inference_mode(net: Any) -> None:
    with torch.inference_mode():
        net[0].z_row.mul_(-1.3)


def loaded(net: nn.Module) -> None:
    net.load_state_dict(network().state_dict())


def assigned(net: nn.Module) -> None:
    net.load_state_dict(network().state_dict(), assign=True)


def replaced(net: Any) -> None:
    net[0].z_row = nn.Parameter(torch.randn_like(net[0].z_row))


def restarted(net: Any) -> None:
    net[0].reset_parameters()


def swapped(net: Any) -> None:
    torch.utils.swap_tensors(net[0].z_col, nn.Parameter(torch.randn_like(net[0].z_col)))


def legacy(net: Any) -> None:
    bnn.load_legacy_(net, network().state_dict())


CHANGES: dict[str, Callable[[nn.Module], None]] = {
    "in place": in_place,
    "in place, one entry of D": in_place_d,
    "in inference mode": in_inference_mode,
    "load_state_dict": loaded,
    "load_state_dict, assigned": assigned,
    "load_legacy_": legacy,
    "SGD": step(lambda p: torch.optim.SGD(p, lr=0.5, foreach=False)),
    "SGD, foreach": step(lambda p: torch.optim.SGD(p, lr=0.5, foreach=True)),
    "Adam": step(lambda p: torch.optim.Adam(p, lr=0.1, foreach=False)),
    "Adam, foreach": step(lambda p: torch.optim.Adam(p, lr=0.1, foreach=True)),
    "a new parameter": replaced,
    "reset_parameters": restarted,
    "swap_tensors": swapped,
}


FUSED: dict[str, Callable[[nn.Module], None]] = {
    "SGD": step(lambda p: torch.optim.SGD(p, lr=0.5, fused=True)),
    "Adam": step(lambda p: torch.optim.Adam(p, lr=0.1, fused=True)),
    "AdamW": step(lambda p: torch.optim.AdamW(p, lr=0.1, fused=True)),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_optimiser_is_seen(name: str) -> None:
    check_change(FUSED[name])


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_parameters_is_seen(name: str) -> None:
    check_change(CHANGES[name])


def check_change(change: Callable[[nn.Module], None]) -> None:
    """Predictions before and after `change` differ, and the later ones are those of a copy without a cache."""
    net, (x, _) = network(), data()
    with torch.no_grad():
        before = predicted(net, x)
    change(net)
    with torch.no_grad():
        after = predicted(net, x)
    torch.testing.assert_close(after, fresh(net, x), rtol=0, atol=0)
    assert not torch.allclose(after, before, atol=1e-3)


def test_another_dtype_is_seen() -> None:
    net, (x, _) = network(), data()
    with torch.no_grad():
        predicted(net, x)
        for dtype in (torch.double, torch.float):
            net.to(dtype)
            got = predicted(net, x.to(dtype))
            assert got.dtype == dtype
            torch.testing.assert_close(got, fresh(net, x.to(dtype)), rtol=0, atol=0)
        assert net[0].factors()[0].A.dtype == torch.float


def test_training_between_predictions(count: list[str]) -> None:
    net, (x, y) = network(), data()
    elbo = bnn.ELBO(net, num_data=5, likelihood="categorical", samples=2)
    optimiser = torch.optim.SGD(elbo.parameters(), lr=0.5)
    for _ in range(3):
        bnn.predict(net, x, samples=2)
        optimiser.zero_grad()
        elbo(x, y).loss.backward()
        optimiser.step()
        made = len(count)
        with torch.no_grad():
            got = predicted(net, x)
        assert len(count) == made + 4
        torch.testing.assert_close(got, fresh(net, x), rtol=0, atol=0)


def test_gradients_reach_the_factors_after_a_prediction() -> None:
    """A cached factor has no gradient, and must not stand in for one that has."""
    net, (x, y) = network(), data()
    bnn.predict(net, x, samples=2)
    bnn.ELBO(net, num_data=5, likelihood="categorical")(x, y).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for layer in layers(net) for p in layer.parameters())


@pytest.mark.parametrize("frozen", [["z_row", "z_col", "_d_row", "_d_col"], None], ids=["Z and D", "all"])
def test_inference_mode_then_training_with_a_frozen_layer(frozen: list[str] | None) -> None:
    """Factors cached in inference mode take part in a graph later on."""
    net, (x, y) = network(), data()
    for name, parameter in net[0].named_parameters():
        parameter.requires_grad_(frozen is not None and name not in frozen)
    with torch.inference_mode():
        first = bnn.predict(net, x, samples=2, generator=torch.Generator().manual_seed(1)).probs
        net(x)
        bnn.kl_divergence(net)
    bnn.ELBO(net, num_data=5, likelihood="categorical", samples=2)(x, y).loss.backward()
    assert net[0].z_row.grad is None
    assert (net[0].inducing_mean.grad is None) == (frozen is None)
    assert net[2].z_row.grad.abs().sum() > 0
    again = bnn.predict(net, x, samples=2, generator=torch.Generator().manual_seed(1)).probs
    assert torch.equal(again, first)


def test_a_network_made_in_inference_mode() -> None:
    """Its parameters have no versions, so nothing is cached."""
    x, _ = data()
    with torch.inference_mode():
        net = network()
        before = predicted(net, x)
        net[0].z_row.mul_(-1.3)
        assert not torch.allclose(predicted(net, x), before, atol=1e-3)


# ---- copies and files ------------------------------------------------------------------------------------------------


def pickled(net: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(net))


def saved(net: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved])
def test_copies_start_without_factors(duplicate: Callable[[nn.Module], Any], count: list[str]) -> None:
    net, (x, _) = network(), data()
    untouched = len(pickle.dumps(net))
    with torch.no_grad():
        want = predicted(net, x)
    assert len(pickle.dumps(net)) == untouched
    other = duplicate(net)
    assert all(layer.cache._value is None and layer.cache._key is None for layer in layers(other))
    count.clear()
    with torch.no_grad():
        assert torch.equal(predicted(other, x), want)
        assert len(count) == 4
        other[0].z_row.mul_(2)
        assert torch.equal(predicted(net, x), want)
        assert not torch.allclose(predicted(other, x), want)
    assert set(net.state_dict()) == set(other.state_dict()) == set(network().state_dict())


def test_the_cache_by_itself() -> None:
    cache: Cache[Tensor] = Cache()
    a, b = torch.ones(2, requires_grad=True), torch.ones(3)
    made: list[int] = []

    def compute() -> Tensor:
        made.append(1)
        return a.sum() + b.sum()

    assert not cache.get([a, b], compute).requires_grad
    cache.get([a, b], compute)
    assert len(made) == 1
    b.add_(1)
    assert cache.get([a, b], compute) == 8
    assert cache.get([a, b.clone()], compute) == 8  # another tensor of the same values
    assert len(made) == 3


@pytest.mark.parametrize("value", [True, False])
def test_cache_cholesky_is_accepted_and_harmless(value: bool, count: list[str]) -> None:
    torch.manual_seed(3)
    net, (x, _) = network(cache_cholesky=value), data()
    torch.manual_seed(3)
    other = network()
    with torch.no_grad():
        assert torch.equal(predicted(net, x), predicted(other, x))
        count.clear()
        net[0].z_row.mul_(2)
        predicted(net, x)
    assert len(count) == 2
