"""Factors are computed once per training step and once per value of the parameters, and are never stale."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import always
from torch import Tensor, nn

import bnn
from bnn._engine.cache import Cache
from bnn.functional.cost import Way
from bnn.nn.families import inducing


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the Psi that were factorised so far: (M, M) one by one, (n, M, M) together."""
    made: list[tuple[int, ...]] = []

    def counted(function: Callable[..., Any], module: str) -> Callable[..., Any]:
        def run(matrix: Tensor, *args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"] == module:
                made.append(tuple(matrix.shape))
            return function(matrix, *args, **kwargs)

        return run

    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted(torch.linalg.cholesky_ex, "bnn.functional.factors"))
    monkeypatch.setattr(torch.linalg, "cholesky", counted(torch.linalg.cholesky, "bnn.functional.linalg"))
    return made


def sides(net: nn.Module) -> Counter[int]:
    """How many sides of each M the inducing layers of `net` have."""
    return Counter(len(z) for layer in layers(net) for z in (layer.z_row, layer.z_col))


def in_a_step(net: nn.Module) -> list[tuple[int, ...]]:
    """What a training step factorises: all sides of one M at once."""
    return sorted((n, m, m) for m, n in sides(net).items())


def alone(net: nn.Module) -> list[tuple[int, ...]]:
    """What a prediction with new parameters factorises: every side by itself."""
    return sorted((m, m) for m in sides(net).elements())


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
    assert all(is_empty(layer.cache) for layer in layers(other))
    with torch.no_grad():
        return predicted(other, x)


def is_empty(cache: Cache[Any]) -> bool:
    return all(value is None for value in vars(cache).values())


def layers(net: nn.Module) -> list[Any]:
    return [module for module in net.modules() if isinstance(module, inducing.InducingBase)]


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whitened", [True, False], ids=["whitened", "unwhitened"])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
@pytest.mark.parametrize("q", ["diagonal", "ensemble"])
def test_a_training_step_factorises_once_per_size(
    q: str, sampling: str, samples: int, whitened: bool, count: list[tuple[int, ...]]
) -> None:
    net, (x, y) = network(whitened_u=whitened, q_inducing=q, sampling=sampling), data()
    elbo = bnn.ELBO(net, num_data=5, likelihood="categorical", samples=samples)
    optimiser = torch.optim.Adam(elbo.parameters(), lr=1e-2)
    for _ in range(3):
        count.clear()  # converting unwhitened layers factorises too
        optimiser.zero_grad()
        elbo(x, y).loss.backward()
        optimiser.step()
        assert sorted(count) == in_a_step(net) == [(2, 2, 2), (2, 3, 3)]


@pytest.mark.parametrize("samples", [1, 3])
def test_a_training_step_of_global_weights(samples: int, count: list[tuple[int, ...]]) -> None:
    net, (x, y) = network(), data()
    bnn.register_global_inducing_weights_(net, 2, 2)
    elbo = bnn.ELBO(net, num_data=5, likelihood="categorical", samples=samples)
    count.clear()
    elbo(x, y).loss.backward()
    assert sorted(count) == in_a_step(net) == [(2, 3, 3), (4, 2, 2)]  # two layers and V


@pytest.mark.parametrize("samples", [1, 2])
def test_a_training_step_of_an_ensemble_factorises_member_by_member(samples: int, count: list[tuple[int, ...]]) -> None:
    net, (x, y) = bnn.Ensemble([network() for _ in range(3)]), data()
    count.clear()
    bnn.ELBO(net, num_data=5, likelihood="categorical", samples=samples)(x, y).loss.backward()
    assert sorted(count) == sorted(3 * in_a_step(net.members[0]))
    count.clear()
    net(x).sum().backward()  # only the member that is shown
    assert sorted(count) == in_a_step(net.members[0])


def test_a_plain_training_step_factorises_once_per_size(count: list[tuple[int, ...]]) -> None:
    net, (x, _) = network(), data()
    count.clear()
    net(x).sum().backward()
    assert sorted(count) == in_a_step(net)


def test_a_repeated_layer_factorises_once(count: list[tuple[int, ...]]) -> None:
    net = nn.Sequential(*[nn.Linear(3, 3)] * 3)
    bnn.bayesianize_(net, "inducing", sampling="weight", inducing_rows=1, inducing_cols=2)
    count.clear()
    net(torch.randn(2, 3)).sum().backward()
    assert sorted(count) == [(1, 1, 1), (1, 2, 2)]


def test_layers_of_one_size_are_one_batch(count: list[tuple[int, ...]]) -> None:
    """Whatever their widths."""
    net = nn.Sequential(nn.Linear(9, 30), nn.Linear(30, 17), nn.Linear(17, 6, bias=False))
    bnn.bayesianize_(net, "inducing", inducing_rows=4, inducing_cols=4)
    count.clear()
    net(torch.randn(2, 9)).sum().backward()
    assert count == [(6, 4, 4)]


# ---- predicting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whitened", [True, False], ids=["whitened", "unwhitened"])
def test_a_second_predict_factorises_nothing(whitened: bool, count: list[tuple[int, ...]]) -> None:
    net, (x, _) = network(whitened_u=whitened), data()
    count.clear()
    bnn.predict(net, x, samples=3, batch_size=2)
    assert sorted(count) == alone(net)
    bnn.predict(net, x, samples=5)
    bnn.predict(net, x[:1], samples=0)
    with torch.no_grad():
        net(x)
        bnn.kl_divergence(net)
        assert net[0].weight.shape == (6, 4)
    assert sorted(count) == alone(net)


def test_a_layer_that_does_not_train_is_factorised_once(count: list[tuple[int, ...]]) -> None:
    net, (x, _) = network(), data()
    net.requires_grad_(False)
    count.clear()
    net(x.requires_grad_()).sum().backward()
    net(x)
    assert sorted(count) == alone(net)


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


def in_data(net: Any) -> None:
    net[0].z_row.data.mul_(-1.3)


def in_numpy(net: Any) -> None:
    """Without PyTorch seeing it: no version counter moves."""
    version = net[0].z_row._version
    net[0].z_row.detach().numpy()[:] *= np.float32(-1.3)
    assert net[0].z_row._version == version


def in_shared_memory(net: Any) -> None:
    """As another process would write."""
    net.share_memory()
    other = torch.empty(0).set_(net[0].z_row.detach().untyped_storage()).view_as(net[0].z_row)
    other.mul_(-1.3)


def last_bit(net: Any) -> None:
    """A change as small as there is; of the input's scale, so that it is seen at all."""
    net[0].z_col.data[0, 0] = torch.nextafter(net[0].z_col.data[0, 0], torch.tensor(9e9))
    net[0].inducing_mean.data.mul_(1.3)


def moved_data(net: Any) -> None:
    net[0].z_row.data = torch.randn_like(net[0].z_row)


def lamda(net: Any) -> None:
    net[0]._lamda.data.add_(3)


def another_cap(net: Any) -> None:
    net[0].options = dataclasses.replace(net[0].options, max_lamda=1e-3)


def spread(net: Any) -> None:
    net[0]._inducing_sd.data.add_(8)


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
    "through .data": in_data,
    "another .data": moved_data,
    "through NumPy": in_numpy,
    "in shared memory": in_shared_memory,
    "the last bit of one entry": last_bit,
    "lamda": lamda,
    "another cap on lamda": another_cap,
    "the spread of q(U)": spread,
    "load_state_dict": loaded,
    "load_state_dict, assigned": assigned,
    "load_legacy_": legacy,
    "SGD": step(lambda p: torch.optim.SGD(p, lr=0.5, foreach=False)),
    "SGD, foreach": step(lambda p: torch.optim.SGD(p, lr=0.5, foreach=True)),
    "Adam": step(lambda p: torch.optim.Adam(p, lr=0.1, foreach=False)),
    "Adam, foreach": step(lambda p: torch.optim.Adam(p, lr=0.1, foreach=True)),
    "SGD, fused": step(lambda p: torch.optim.SGD(p, lr=0.5, fused=True)),
    "Adam, fused": step(lambda p: torch.optim.Adam(p, lr=0.1, fused=True)),
    "AdamW, fused": step(lambda p: torch.optim.AdamW(p, lr=0.1, fused=True)),
    "a new parameter": replaced,
    "reset_parameters": restarted,
    "swap_tensors": swapped,
}


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


def test_training_between_predictions(count: list[tuple[int, ...]]) -> None:
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
        assert sorted(count[made:]) == alone(net)
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


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("way", list(Way), ids=lambda way: way.value)
def test_what_was_computed_in_inference_mode_serves_gradients_of_inputs(
    way: Way, mode: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a convolution with as many channels as make it rearrange its weights, whichever way it is drawn."""
    always(monkeypatch, way)
    net = nn.Sequential(nn.Conv2d(16, 16, 3), nn.Tanh(), nn.Conv2d(16, 2, 2))
    bnn.bayesianize_(net, "inducing", sampling="local", init_lamda=0.1, inducing_rows=4, inducing_cols=12)
    net.requires_grad_(False)
    x = torch.randn(2, 16, 4, 4)
    with mode():
        bnn.draws(net, x, samples=3)
        net(x)
        bnn.draws(net, x, samples=0)
    inner = nn.Parameter(x.clone())
    net(inner).square().sum().backward()
    assert inner.grad.abs().sum() > 0
    bnn.draws(net, inner, samples=3).square().sum().backward()


def test_a_network_made_in_inference_mode() -> None:
    """Its parameters have no versions, which nobody needs."""
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
def test_copies_start_without_factors(duplicate: Callable[[nn.Module], Any], count: list[tuple[int, ...]]) -> None:
    net, (x, _) = network(), data()
    untouched = len(pickle.dumps(net))
    with torch.no_grad():
        want = predicted(net, x)
    assert len(pickle.dumps(net)) == untouched
    other = duplicate(net)
    assert all(is_empty(layer.cache) for layer in layers(other))
    count.clear()
    with torch.no_grad():
        assert torch.equal(predicted(other, x), want)
        assert sorted(count) == alone(net)
        other[0].z_row.mul_(2)
        assert torch.equal(predicted(net, x), want)
        assert not torch.allclose(predicted(other, x), want)
    assert set(net.state_dict()) == set(other.state_dict()) == set(network().state_dict())


class Sum:
    """The sum of tensors, which counts how often it was computed."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors, self.times = tensors, 0

    def __call__(self) -> Tensor:
        self.times += 1
        return torch.stack([tensor.sum() for tensor in self.tensors]).sum()


def test_the_cache_by_itself() -> None:
    cache: Cache[Tensor] = Cache()
    a, b = torch.ones(2, requires_grad=True), torch.ones(3)
    compute = Sum(a, b)
    assert not cache.get([a, b], compute).requires_grad
    assert cache.get([a, b], compute) is cache.get([a, b], compute)
    assert compute.times == 1
    b.add_(1)
    assert cache.get([a, b], compute) == 8
    assert cache.get([a, b.clone()], compute) == 8  # another tensor of the same values
    assert compute.times == 2
    b.sub_(1).add_(1)  # there and back
    cache.get([a, b], compute)
    assert compute.times == 2


@pytest.mark.parametrize(
    "other", [torch.ones(3).double(), torch.ones(2), torch.ones(3, 1), torch.ones(3).bfloat16()], ids=str
)
def test_tensors_of_another_type_or_shape_are_others(other: Tensor) -> None:
    cache: Cache[Tensor] = Cache()
    cache.get([torch.ones(3)], Sum(torch.ones(3)))
    compute = Sum(other)
    assert cache.get([other], compute).dtype == other.dtype
    assert compute.times == 1


def test_more_or_fewer_tensors_are_others() -> None:
    a, b = torch.ones(3), torch.ones(2)
    for first, second in [([a], [a, b]), ([a, b], [a])]:
        cache: Cache[Tensor] = Cache()
        cache.get(first, Sum(*first))
        assert cache.get(second, Sum(*second)) == sum(tensor.sum() for tensor in second)


def test_a_computation_that_fails_leaves_the_cache_as_it_was() -> None:
    cache: Cache[Tensor] = Cache()
    a, compute = torch.ones(3), Sum(torch.ones(3))
    cache.get([a], compute)

    def fails() -> Tensor:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        cache.get([a + 1], fails)
    assert cache.get([a], compute) == 3
    assert compute.times == 1


def test_a_value_that_is_not_a_number_is_computed_anew() -> None:
    cache: Cache[Tensor] = Cache()
    a = torch.full((3,), torch.nan)
    compute = Sum(a)
    assert cache.get([a], compute).isnan()
    assert cache.get([a], compute).isnan()
    a.fill_(1)
    assert cache.get([a], compute) == 3


def test_another_thread_never_sees_half_a_change() -> None:
    """Whenever it looks: between any two steps in which the cache remembers a new value."""
    a = torch.ones(3)

    class Watched(Cache[Tensor]):
        watching = False

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if self.watching:
                type(self).watching = False  # the other thread may write, too
                seen.append((self.get([a], Sum(a)).item(), a.sum().item()))
                type(self).watching = True

    seen: list[tuple[float, float]] = []
    cache = Watched()
    cache.get([a], Sum(a))
    Watched.watching = True
    a.add_(1)
    assert cache.get([a], Sum(a)) == 6
    Watched.watching = False
    assert seen
    assert all(got == want for got, want in seen)


@pytest.mark.parametrize("value", [True, False])
def test_cache_cholesky_is_accepted_and_harmless(value: bool, count: list[tuple[int, ...]]) -> None:
    torch.manual_seed(3)
    net, (x, _) = network(cache_cholesky=value), data()
    torch.manual_seed(3)
    other = network()
    with torch.no_grad():
        assert torch.equal(predicted(net, x), predicted(other, x))
        count.clear()
        net[0].z_row.mul_(2)
        predicted(net, x)
    assert sorted(count) == [(2, 2), (3, 3)]  # of the layer that changed
