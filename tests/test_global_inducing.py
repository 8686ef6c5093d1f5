"""Global inducing weights: moments of V, slices, the KL, what survives, and the errors."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import bnn
from bnn._engine.draw import Draw
from bnn.functional.inducing import rescaling_kl

SIZES = {"inducing_rows": 3, "inducing_cols": 4}


class Branches(nn.Module):
    """Not a Sequential: two branches that run in another order than modules() lists them, and a repeated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 3, padding=1)
        self.left = nn.Linear(5, 6)
        self.right = nn.Linear(5, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x).mean((-2, -1))
        return self.head(torch.tanh(self.right(h)) + torch.tanh(self.left(h)))


def converted(cat_dim: int = 0, **options: object) -> Branches:
    net = Branches().double()
    bnn.bayesianize_(net, "inducing", **SIZES, init_lamda=0.3)
    bnn.register_global_inducing_weights_(net, 3, 2, cat_dim=cat_dim, **options)
    return net


def layers(net: Branches) -> list[nn.Module]:
    return [net.conv, net.left, net.right, net.head]


@pytest.mark.parametrize("cat_dim", [0, 1])
@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
def test_kl_is_the_sum_of_its_parts(cat_dim: int, q: str) -> None:
    net = converted(cat_dim, q_inducing=q, init_lamda=0.2)
    module = net._global_inducing_module
    S_m = 4 * 3 * 4  # four layers of 3 x 4
    assert module.d_out * module.d_in == S_m
    kl_u = torch.zeros((), dtype=torch.double)
    if q != "ensemble":
        q_u = bnn.bayesianize.bayesian_from_template(  # the same q(u) on a layer without any structure of V
            nn.Linear(5, 5).double(), "inducing", inducing_rows=3, inducing_cols=2, q_inducing=q
        )
        q_u.load_state_dict({**q_u.state_dict(), **{k: v for k, v in module.state_dict().items() if "inducing" in k}})
        kl_u = q_u.kl_parts().u
    r = lambda value: rescaling_kl(torch.tensor(value, dtype=torch.double))  # noqa: E731
    weights = sum(layer.d_in * layer.d_out for layer in layers(net))
    expected = kl_u + S_m * r(0.2) + weights * r(0.3)
    by_hand = sum(m.kl_divergence() for m in net.modules() if hasattr(m, "kl_divergence"))
    assert torch.allclose(by_hand, expected, rtol=1e-6)
    assert all(layer.kl_parts().u == 0 for layer in layers(net))


@pytest.mark.parametrize("cat_dim", [0, 1])
def test_slices_in_modules_order_have_the_covariance_of_V(cat_dim: int) -> None:
    """60,000 draws of all layers' u against the dense Gaussian of V, entries within 0.03 of the largest variance."""
    net = converted(cat_dim, init_lamda=0.6)
    module = net._global_inducing_module
    with torch.no_grad():
        module._inducing_sd.fill_(-0.5)
        module._d_row.fill_(-1.0)
        module._d_col.fill_(-1.0)
        row, col = module.factors()
        sd, lamda = module.q.sds(module), module.lamda()
        lift = torch.kron(row.A.T.contiguous(), col.A.T.contiguous())  # row-major vec
        P = torch.kron(row.A.T @ row.A, col.A.T @ col.A)
        want = lift @ torch.diag(sd.flatten() ** 2) @ lift.T + lamda**2 * (torch.eye(len(P)) - P)
        draw = Draw(count=60_000)
        V = torch.cat([layer.sample_u(draw) for layer in layers(net)], dim=1 + cat_dim)
    got = torch.cov(V.flatten(1).T)
    assert (got - want).abs().max() < 0.03 * want.diagonal().max()
    assert (V.mean(0) - module.weight).abs().max() < 5 * (want.diagonal().max() / 60_000) ** 0.5
    for layer, part in zip(layers(net), module.weight.chunk(4, dim=cat_dim), strict=True):
        assert torch.allclose(layer.q.mean(layer), part)


def test_one_V_per_forward_and_another_in_the_next() -> None:
    net, seen = converted(), []
    for layer in layers(net):
        original = layer.q._slice
        layer.q._slice = lambda V, original=original: (seen.append(V), original(V))[1]
    net(torch.randn(2, 2, 4, 4).double())
    net(torch.randn(2, 2, 4, 4).double())
    assert len({id(V) for V in seen[:4]}) == 1
    assert len({id(V) for V in seen[4:]}) == 1
    assert not torch.equal(seen[0], seen[4])


def test_starts_from_the_layers_means_when_large_enough() -> None:
    net = Branches()
    bnn.bayesianize_(net, "inducing", **SIZES)
    before = [layer.weight.detach().clone() for layer in layers(net)]
    bnn.register_global_inducing_weights_(net, 4, 4)  # V is 12 x 4: rank 4
    for layer, weight in zip(layers(net), before, strict=True):
        assert torch.allclose(layer.weight, weight, atol=1e-4)


def test_state_dict_names_and_round_trip() -> None:
    net = converted()
    names = set(net.state_dict())
    assert {f"_global_inducing_module.{n}" for n in ("z_row", "z_col", "inducing_mean", "_lamda")} <= names
    assert not any("inducing_mean" in n for n in names if not n.startswith("_global_inducing_module"))
    assert net._global_inducing_module.z_row.shape == (3, 12)
    other = converted()
    other.load_state_dict(net.state_dict())
    x = torch.randn(2, 2, 4, 4).double()
    with bnn.frozen_draw(net, 3):
        expected = net(x)
    with bnn.frozen_draw(other, 3):
        assert torch.equal(other(x), expected)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_survives_deepcopy_and_pickle(duplicate: object) -> None:
    net = converted()
    net(torch.randn(2, 2, 4, 4).double()).sum().backward()
    twin = duplicate(net)
    assert all(layer.q.held[0] is twin._global_inducing_module for layer in layers(twin))
    with torch.no_grad():
        net._global_inducing_module.inducing_mean.add_(1.0)
    assert not torch.allclose(twin.conv.weight, net.conv.weight)


def test_gradients_reach_the_global_parameters() -> None:
    net = converted()
    net(torch.randn(2, 2, 4, 4).double()).sum().backward()
    bnn_parameters = dict(net._global_inducing_module.named_parameters())
    assert bnn_parameters
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in bnn_parameters.values())


def test_remove_restores_every_layer() -> None:
    net = Branches()
    bnn.bayesianize_(net, "inducing", **SIZES)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    handle = bnn.register_global_inducing_weights_(net, 2, 2)
    net.double()
    handle.remove()
    handle.remove()
    after = net.state_dict()
    assert set(after) == set(before)
    assert all(torch.equal(after[name], tensor.double()) for name, tensor in before.items())
    assert net(torch.randn(2, 2, 4, 4).double()).dtype == torch.double


def test_a_layer_on_its_own_draws_its_slice() -> None:
    layer = converted().head
    x = torch.randn(3, 6).double()
    assert layer(x).shape == (3, 2)
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cat_dim": 2}, "cat_dim must be 0"),
        ({"prior_sd": 2.0}, "leave out prior_sd"),
        ({"inducing_rows": 0}, "inducing_rows must be an integer >= 1"),
    ],
)
def test_bad_arguments(options: dict[str, object], message: str) -> None:
    net = Branches()
    bnn.bayesianize_(net, "inducing", **SIZES)
    arguments = {"inducing_rows": 2, "inducing_cols": 2, **options}
    with pytest.raises(ValueError, match=message):
        bnn.register_global_inducing_weights_(net, **arguments)


def test_networks_it_does_not_fit() -> None:
    single = nn.Sequential(nn.Linear(3, 2))
    bnn.bayesianize_(single, "inducing", **SIZES)
    with pytest.raises(ValueError, match="at least two inducing layers"):
        bnn.register_global_inducing_weights_(single, 2, 2)
    uneven = nn.Sequential(nn.Linear(3, 9), nn.Linear(9, 25))
    bnn.bayesianize_(uneven, {"0": {"inference": "inducing", "inducing_cols": 2}, "1": "inducing"}, **SIZES)
    with pytest.raises(ValueError, match="same inducing_cols"):
        bnn.register_global_inducing_weights_(uneven, 2, 2)
    unwhitened = Branches()
    bnn.bayesianize_(unwhitened, "inducing", whitened_u=False, **SIZES)
    with pytest.raises(ValueError, match="whitened_u=True"):
        bnn.register_global_inducing_weights_(unwhitened, 2, 2)
    twice = converted()
    with pytest.raises(ValueError, match="already"):
        bnn.register_global_inducing_weights_(twice, 2, 2)


def test_one_V_per_forward_of_a_network_joined_from_halves() -> None:
    halves = [nn.Linear(3, 3), nn.Linear(3, 3)]
    for half in halves:
        bnn.bayesianize_(half, "inducing", inducing_rows=2, inducing_cols=2)
    net = nn.Sequential(*halves)
    bnn.register_global_inducing_weights_(net, 2, 2)
    drawn: list[Tensor] = []
    sample = net._global_inducing_module.sample_weights
    net._global_inducing_module.sample_weights = lambda draw: drawn.append(draw) or sample(draw)
    net(torch.randn(2, 3))
    assert len(drawn) == 1


def test_the_function_space_bound_leaves_V_alone() -> None:
    net = converted()
    x, y = torch.randn(2, 2, 4, 4).double(), torch.tensor([0, 1])
    out = bnn.ELBO(net, num_data=2, likelihood="categorical", function_space=True)(x, y)
    module = net._global_inducing_module
    layer_parts = sum(min(1, 2 / layer.d_in) * layer.kl_parts().lamda for layer in layers(net))
    assert torch.allclose(2 * out.kl_lamda, module.kl_parts().lamda + layer_parts)


def test_predictions_before_and_after_the_global_weights() -> None:
    """Nothing that was computed for one q(U) serves another."""
    net, x = Branches().double(), torch.randn(3, 2, 4, 4).double()
    bnn.bayesianize_(net, "inducing", **SIZES, init_lamda=0.3)

    def predicted(network: nn.Module) -> Tensor:
        with torch.no_grad():
            return bnn.draws(network, x, samples=3, generator=torch.Generator().manual_seed(1))

    before = predicted(net)
    handle = bnn.register_global_inducing_weights_(net, 3, 2)
    during = predicted(net)
    assert torch.equal(during, predicted(copy.deepcopy(net)))  # a copy starts without a cache
    assert not torch.allclose(during, before)
    handle.remove()
    assert torch.equal(predicted(net), before)
