"""Checkpoints of the 2020 code: names and shapes as they were, synthetic values, dense oracles for mean and KL."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import bnn

M_OUT, M_IN, SIGMA, K = 5, 7, 0.5, 3  # both at least d of the layer below: there the jitter matters
D_OUT, D_IN = 4, 6  # the bias counted


def linear() -> nn.Module:
    return nn.Sequential(nn.Tanh(), nn.Linear(D_IN - 1, D_OUT).double())


def inducing(q: str = "diagonal", **options) -> nn.Module:
    net = linear()
    sizes = {"inducing_rows": M_OUT, "inducing_cols": M_IN, "prior_sd": SIGMA, "ensemble_size": K}
    bnn.bayesianize_(net, "inducing", q_inducing=q, **sizes, **options)
    return net


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.double)


def raw(low: float, high: float, *shape: int) -> Tensor:
    """Raw values of scales between `low` and `high`."""
    return torch.expm1(low + (high - low) * torch.rand(shape, dtype=torch.double)).log()


def checkpoint(q: str) -> dict[str, Tensor]:
    """What the 2020 code saved of `inducing(q)`."""
    state = {
        "1.z_row": random(M_OUT, D_OUT) / M_OUT**0.5,
        "1.z_col": random(M_IN, D_IN) / M_IN**0.5,
        "1._d_row": raw(5e-4, 2e-3, M_OUT),
        "1._d_col": raw(5e-4, 2e-3, M_IN),
        "1._lamda": raw(0.05, 0.1),
    }
    n = M_OUT * M_IN
    packed = {m: torch.cat([raw(0.1, 0.2, m), 0.1 * random(m * (m - 1) // 2)]) for m in (M_OUT, M_IN, n)}
    extra = {
        "diagonal": {"inducing_mean": random(M_OUT, M_IN), "_inducing_sd": raw(0.05, 0.2, M_OUT, M_IN)},
        "matrix": {
            "inducing_mean": random(M_OUT, M_IN),
            "_inducing_row_scale_tril": packed[M_OUT],
            "_inducing_col_scale_tril": packed[M_IN],
        },
        "full": {"inducing_mean": random(n), "_inducing_scale_tril": packed[n]},
        "ensemble": {"inducing_mean": random(K, M_OUT, M_IN)},
    }
    return state | {f"1.{name}": value for name, value in extra[q].items()}


def psi(state: dict[str, Tensor], side: str) -> Tensor:
    """Z Z^T + D^2 with the jitter of 2020."""
    z, d = state[f"1.z_{side}"], F.softplus(state[f"1._d_{side}"])
    dense = z @ z.T + torch.diag(d**2)
    return dense + 1e-4 * dense.diagonal().mean() * torch.eye(len(d), dtype=d.dtype)


def posterior_mean(state: dict[str, Tensor], q: str, whitened: bool = True) -> Tensor:
    """E[W] (d_out, d_in) the 2020 way: sigma A_r^T E[u] A_c with A = chol(Psi + jitter)^-1 Z."""
    u = {"full": lambda m: m.reshape(M_OUT, M_IN), "ensemble": lambda m: m.mean(0)}.get(q, lambda m: m)(
        state["1.inducing_mean"]
    )
    row, col = (torch.linalg.cholesky(psi(state, side)) for side in ("row", "col"))
    if not whitened:
        u = torch.linalg.inv(row) @ u @ torch.linalg.inv(col).T
    return SIGMA * (torch.linalg.inv(row) @ state["1.z_row"]).T @ u @ (torch.linalg.inv(col) @ state["1.z_col"])


def unpack(packed: Tensor, n: int) -> Tensor:
    """A softplus-diagonal, then the strict lower part row by row."""
    tril, at = torch.diag(F.softplus(packed[:n])), n
    for i in range(n):
        tril[i, :i] = packed[at : at + i]
        at += i
    return tril


def dense_kl(state: dict[str, Tensor], q: str, whitened: bool = True) -> Tensor:
    """KL[q(U) || p(U)] between dense Gaussians over vec U (row-major), plus d_in d_out r(lamda)."""
    lamda = F.softplus(state["1._lamda"])
    rescaling = D_IN * D_OUT * (lamda**2 / 2 - lamda.log() - 0.5)
    if q == "ensemble":
        return rescaling
    if q == "diagonal":
        scale = torch.diag(F.softplus(state["1._inducing_sd"]).flatten())
    elif q == "matrix":
        row, col = state["1._inducing_row_scale_tril"], state["1._inducing_col_scale_tril"]
        scale = torch.kron(unpack(row, M_OUT), unpack(col, M_IN))
    else:
        scale = unpack(state["1._inducing_scale_tril"], M_OUT * M_IN)
    zero, eye = torch.zeros(M_OUT * M_IN).double(), torch.eye(M_OUT * M_IN).double()
    covariance = eye if whitened else torch.kron(psi(state, "row"), psi(state, "col"))
    posterior = MultivariateNormal(state["1.inducing_mean"].flatten(), scale_tril=scale)
    return kl_divergence(posterior, MultivariateNormal(zero, covariance)) + rescaling


def relative_error(layer: nn.Module, W: Tensor) -> float:
    ours = torch.cat([layer.weight, layer.bias[:, None]], dim=1)
    return ((ours - W).norm() / W.norm()).item()


@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
@pytest.mark.parametrize("whitened", [True, False])
def test_mean_and_kl_are_those_of_2020(q, whitened):
    state, net = checkpoint(q), inducing(q, whitened_u=whitened)
    bnn.load_legacy_(net, state)
    W = posterior_mean(state, q, whitened)
    assert relative_error(net[1], W) < 1e-9
    torch.testing.assert_close(net[1].kl_divergence(), dense_kl(state, q, whitened), rtol=1e-7, atol=0)
    if whitened:
        net.load_state_dict(state)
        assert relative_error(net[1], W) > 0.02
        torch.testing.assert_close(net[1].kl_divergence(), dense_kl(state, q), rtol=1e-9, atol=0)


def test_float32_checkpoint():
    state = {name: value.float() for name, value in checkpoint("diagonal").items()}
    net = inducing().float()
    bnn.load_legacy_(net, state)
    exact = posterior_mean({name: value.double() for name, value in state.items()}, "diagonal")
    assert relative_error(net[1], exact) < 1e-3


def test_conv_kernel_is_read_as_a_matrix():
    net = nn.Sequential(nn.Tanh(), nn.Conv2d(5, D_OUT, 1).double())
    bnn.bayesianize_(net, "inducing", inducing_rows=M_OUT, inducing_cols=M_IN, prior_sd=SIGMA)
    state = checkpoint("diagonal")
    bnn.load_legacy_(net, state)
    torch.testing.assert_close(net[1].weight.flatten(1), posterior_mean(state, "diagonal")[:, :-1])


def test_root_layer():
    root = linear()[1]
    bnn.bayesianize_(root, "inducing", inducing_rows=M_OUT, inducing_cols=M_IN, prior_sd=SIGMA)
    state = checkpoint("diagonal")
    bnn.load_legacy_(root, {name.removeprefix("1."): value for name, value in state.items()})
    assert relative_error(root, posterior_mean(state, "diagonal")) < 1e-9


def test_deterministic_given_u_and_fixed_lamda():
    state = checkpoint("diagonal")
    for family, options in (("inducingdeterministic", {}), ("inducing", {"learn_lamda": False})):
        net = linear()
        bnn.bayesianize_(net, family, inducing_rows=M_OUT, inducing_cols=M_IN, prior_sd=SIGMA, **options)
        bnn.load_legacy_(net, state)
        assert relative_error(net[1], posterior_mean(state, "diagonal")) < 1e-9
        assert torch.equal(net[1]._lamda, state["1._lamda"])


def test_global_inducing_weights_fold_their_jitter_too():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3)).double()
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    bnn.register_global_inducing_weights_(net, M_OUT, M_IN)
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(0, 0.3)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    of_global = {f"1.{k.rpartition('.')[2]}": v for k, v in state.items() if k.startswith("_global_inducing_module.")}
    bnn.load_legacy_(net, state)
    V = posterior_mean(of_global, "diagonal") / SIGMA  # whitened inducing weights have sigma = 1
    torch.testing.assert_close(net._global_inducing_module.weight, V)


def test_tied_layers_fold_once():
    def tied() -> nn.Module:
        layer = linear()[1]
        net = nn.Sequential(layer, nn.Tanh())
        net.add_module("again", layer)
        bnn.bayesianize_(net, "inducing", inducing_rows=M_OUT, inducing_cols=M_IN, prior_sd=SIGMA)
        return net

    state = checkpoint("diagonal")
    both = {f"{layer}{k[1:]}": value for k, value in state.items() for layer in ("0", "again")}
    bnn.load_legacy_(net := tied(), both)
    assert relative_error(net[0], posterior_mean(state, "diagonal")) < 1e-9


# ---- the other families, whose checkpoints also hold the prior -------------------------------------------------------


def test_ffg_with_prior_buffers():
    weight, bias, prior_sd = (D_OUT, D_IN - 1), (D_OUT,), 0.7
    state = {
        "1.weight_mean": random(*weight),
        "1._weight_sd": raw(0.05, 0.2, *weight),
        "1.bias_mean": random(*bias),
        "1._bias_sd": raw(0.05, 0.2, *bias),
    }
    prior = {
        "1.prior_weight_mean": torch.zeros(weight),
        "1.prior_weight_sd": torch.full(weight, prior_sd),
        "1.prior_bias_mean": torch.zeros(bias),
        "1.prior_bias_sd": torch.full(bias, 2.0),
    }
    net = linear()
    bnn.bayesianize_(net, "ffg", prior_weight_sd=prior_sd, prior_bias_sd=2.0)
    bnn.load_legacy_(net, state | prior)
    expected = sum(
        kl_divergence(Normal(state[f"1.{p}_mean"], F.softplus(state[f"1._{p}_sd"])), Normal(0.0, sd)).sum()
        for p, sd in (("weight", prior_sd), ("bias", 2.0))
    )
    torch.testing.assert_close(net[1].kl_divergence(), expected)
    assert torch.equal(net[1].weight, state["1.weight_mean"])
    assert torch.equal(net[1].bias, state["1.bias_mean"])


def test_fcg_with_prior_buffers():
    n = D_OUT * D_IN
    state = {"1.mean": random(n), "1._scale_diag": raw(0.1, 0.2, n), "1._scale_tril": random(n, n)}
    prior = {"1.prior_mean": torch.zeros(n), "1.prior_scale_tril": torch.eye(n)}
    net = linear()
    bnn.bayesianize_(net, "fcg")
    bnn.load_legacy_(net, state | prior)
    tril = state["1._scale_tril"].tril(-1) + torch.diag(F.softplus(state["1._scale_diag"]))
    standard = MultivariateNormal(torch.zeros(n).double(), torch.eye(n).double())
    expected = kl_divergence(MultivariateNormal(state["1.mean"], scale_tril=tril), standard)
    torch.testing.assert_close(net[1].kl_divergence(), expected)
    assert torch.equal(net[1].weight, state["1.mean"][: D_OUT * (D_IN - 1)].reshape(D_OUT, D_IN - 1))
    assert torch.equal(net[1].bias, state["1.mean"][D_OUT * (D_IN - 1) :])


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_the_checkpoint_is_left_alone():
    state = checkpoint("diagonal") | {"1.prior_mean": torch.zeros(1)}
    before = {name: value.clone() for name, value in state.items()}
    bnn.load_legacy_(inducing(), state)
    assert list(state) == list(before)
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_missing_unexpected_and_misshapen_entries_are_all_named():
    state = checkpoint("diagonal")
    del state["1.z_col"]
    state |= {"1.z_row": random(2, 2), "5.prior_mean": random(1), "prior_mean": random(1)}
    net = inducing()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    message = (
        r"'1.z_col' is missing; '5.prior_mean' is unexpected; 'prior_mean' is unexpected; "
        r"'1.z_row': expected \(5, 4\), found \(2, 2\)"
    )
    with pytest.raises(ValueError, match=message):
        bnn.load_legacy_(net, state)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_plain_network_must_be_converted_first():
    with pytest.raises(ValueError, match="not Bayesian: convert it"):
        bnn.load_legacy_(linear(), checkpoint("diagonal"))


def test_plain_layers_of_a_partly_converted_network_load():
    net = nn.Sequential(nn.BatchNorm1d(5), linear()[1]).double()
    bnn.bayesianize_(net, {net[1]: {"inference": "inducing", "inducing_rows": M_OUT, "inducing_cols": M_IN}})
    state = {name: value + 1 for name, value in net[0].state_dict(prefix="0.").items()} | checkpoint("diagonal")
    bnn.load_legacy_(net, state)
    assert torch.equal(net[0].running_mean, torch.ones(5).double())
    assert math.isfinite(net[1].kl_divergence().item())
