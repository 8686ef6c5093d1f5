"""The contracts that must not move: snippets, names, signatures, options, state dicts, precedence, errors."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import SIZES
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import bnn
import bnn.bayesianize
import bnn.calibration
import bnn.distributions.matrix_normal

# ---- 1. the paper's snippets -----------------------------------------------------------------------------------------

CONVERT = """
import bnn
net = resnet18()
bnn.bayesianize_(net, inference="inducing", inducing_rows=64, inducing_cols=64)
"""
TRAIN = """
yhat = net(x_train)
nll = F.cross_entropy(yhat, y_train)
kl = sum(m.kl_divergence() for m in net.modules()
         if hasattr(m, "kl_divergence"))
loss = nll + kl / dataset_size
loss.backward()
optim.step()
"""
TEST = """
net.eval()
with torch.no_grad():
    logits = torch.stack([net(x_test) for _ in range(num_samples)])
    probs = logits.softmax(-1).mean(0)
"""
LAST_LAYER = """
bnn.bayesianize_(net, inference={
    net.fc: {"inference": "fcg"}
    })
optim = torch.optim.Adam(net.fc.parameters(), 1e-3)
"""


def resnet18() -> nn.Module:
    return bnn.nn.nets.make_network("resnet18", out_features=10)


@pytest.mark.slow
def test_the_papers_snippets_run_as_printed() -> None:
    scope: dict[str, Any] = {"torch": torch, "F": F, "resnet18": resnet18, "dataset_size": 50_000, "num_samples": 3}
    scope |= {
        "x_train": torch.randn(2, 3, 32, 32),
        "y_train": torch.tensor([1, 7]),
        "x_test": torch.randn(2, 3, 32, 32),
    }
    exec(CONVERT, scope)
    net = scope["net"]
    scope["optim"] = torch.optim.Adam(net.parameters(), 1e-3)
    before = copy.deepcopy(net.state_dict())
    exec(TRAIN, scope)
    assert math.isfinite(scope["loss"].item())
    assert scope["kl"] > 0
    same = [name for name, p in net.named_parameters() if torch.equal(p, before[name])]
    assert not same  # one step moves every parameter
    exec(TEST, scope)
    assert scope["logits"].std(0).min() > 0
    assert scope["probs"].shape == (2, 10)
    torch.testing.assert_close(scope["probs"].sum(-1), torch.ones(2))

    net = scope["net"] = resnet18()
    conv, x = net.conv1.weight.clone(), scope["x_test"]
    net.eval()
    want = net(x).detach()
    exec(LAST_LAYER, scope)
    assert [name for name, m in net.named_modules() if hasattr(m, "kl_divergence")] == ["fc"]
    assert len(scope["optim"].param_groups[0]["params"]) == 3
    assert torch.equal(net.conv1.weight, conv)
    with torch.no_grad():
        torch.testing.assert_close(net(x), want, atol=0.05, rtol=0.05)  # the pretrained function, sd 1e-4
    F.cross_entropy(net(x), scope["y_train"]).backward()
    assert all(p.grad is not None for p in net.fc.parameters())


def test_the_papers_snippets_on_a_small_network() -> None:
    scope: dict[str, Any] = {"torch": torch, "F": F, "dataset_size": 100, "num_samples": 3}
    scope |= {"resnet18": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4))}
    scope |= {"x_train": torch.randn(5, 3, 4), "y_train": torch.tensor([0, 1, 2, 3, 0]), "x_test": torch.randn(2, 3, 4)}
    exec(CONVERT, scope)
    scope["optim"] = torch.optim.Adam(scope["net"].parameters(), 1e-3)
    exec(TRAIN, scope)
    exec(TEST, scope)
    assert scope["logits"].std(0).min() > 0
    assert scope["probs"].shape == (2, 4)


# ---- 2. names and signatures -----------------------------------------------------------------------------------------

SIGNATURES: list[tuple[Callable[..., Any], str]] = [
    (bnn.bayesianize_, "network, inference, reference_state_dict=None, **options"),
    (bnn.bayesianize.bayesian_from_template, "layer, inference, **options"),
    (bnn.register_global_inducing_weights_, "network, inducing_rows, inducing_cols, cat_dim=0, **options"),
    (bnn.distributions.MatrixNormal, "loc, row_scale_tril, col_scale_tril, validate_args=None"),
    (
        bnn.calibration.calibration_curve,
        "probabilities, targets, num_bins, top_class_only=True, equal_size_bins=False, min_p=0.0",
    ),
    (bnn.calibration.expected_calibration_error, "mean_probability_predicted, observed_frequency, bin_weights"),
    (bnn.ELBO, "_, num_data, likelihood, samples=1, warmup=0, anneal=0, kl_weight=1.0"),
    (bnn.kl_divergence, "_"),
    (bnn.parameter_count, "_"),
    (bnn.save, "_, path"),
    (bnn.load_, "_, path"),
    (bnn.load_legacy_, "_, state_dict"),
    (bnn.load_config, "path"),
    (bnn.set_sampling_, "_, value"),
    (bnn.frozen_draw, "_"),
    (bnn.predict, "_, x"),
    (bnn.draws, "_, x"),
    (bnn.nn.nets.make_network, "name, **options"),
    (bnn.nn.nets.FCN, "sizes, nonlinearity='ReLU', bn=False, **linear"),
    (
        bnn.nn.nets.CNN,
        "channels, lin_sizes, nonlinearity='ReLU', maxpool_freq=1, conv_bn=False, linear_bn=False, "
        "kernel_size=3, **conv",
    ),
]


def shown(function: Callable[..., Any]) -> list[str]:
    """The parameters as they are written, without types."""
    result = []
    for p in inspect.signature(function).parameters.values():
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        result.append(f"{star}{p.name}" + ("" if p.default is p.empty else f"={p.default!r}"))
    return result


@pytest.mark.parametrize(("function", "written"), SIGNATURES, ids=[f.__qualname__ for f, _ in SIGNATURES])
def test_signatures(function: Callable[..., Any], written: str) -> None:
    got, want = shown(function), written.split(", ")
    if want[0] == "_":  # the network: a positional argument whose name is not fixed
        got, want = got[1:], want[1:]
    assert got[: len(want)] == want
    assert all("=" in extra for extra in got[len(want) :])  # what comes on top is optional


def test_the_elbo_returns_its_parts() -> None:
    net = nn.Linear(4, 3)
    bnn.bayesianize_(net, "inducing", **SIZES)
    elbo = bnn.ELBO(net, 10, bnn.likelihoods.Categorical())
    result = elbo(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))
    parts = [getattr(result, name) for name in ("loss", "data", "kl_u", "kl_lamda")]
    assert all(torch.as_tensor(part).isfinite() for part in parts)
    torch.testing.assert_close(parts[0], parts[1] + parts[2] + parts[3])
    torch.testing.assert_close(parts[2] + parts[3], bnn.kl_divergence(net) / 10)


def test_public_names() -> None:
    for name in (
        "predict",
        "draws",
        "frozen_draw",
        "set_sampling_",
        "parameter_count",
        "save",
        "load_",
        "load_legacy_",
    ):
        assert callable(getattr(bnn, name))
    for family in ("FFG", "FCG", "Inducing", "InducingDeterministic"):
        for layer in ("Linear", "Conv1d", "Conv2d", "Conv3d"):
            cls = getattr(bnn.nn, family + layer)
            assert issubclass(cls, getattr(nn, layer))
            assert cls.__name__ == family + layer
    for name in ("Categorical", "Gaussian", "HeteroscedasticGaussian"):
        assert hasattr(bnn.likelihoods, name)
    for name in ("make_network", "FCN", "CNN"):
        assert hasattr(bnn.nn.nets, name)
    assert callable(bnn.distributions.matrix_normal.kron)


def test_global_inducing_weights() -> None:
    net = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 4))
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=4)
    before = set(net.state_dict())
    with pytest.raises(ValueError, match="cat_dim"):
        bnn.register_global_inducing_weights_(net, 2, 2, cat_dim=2)
    handle = bnn.register_global_inducing_weights_(net, inducing_rows=2, inducing_cols=2)
    keys = set(net.state_dict())
    assert {k for k in keys if k.startswith("_global_inducing_module.")}
    assert not {"0.inducing_mean", "2._inducing_sd"} & keys
    handle.remove()
    assert set(net.state_dict()) == before
    single = nn.Linear(3, 3)
    bnn.bayesianize_(single, "inducing", **SIZES)
    unwhitened = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    bnn.bayesianize_(unwhitened, "inducing", whitened_u=False, **SIZES)
    ragged = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    bnn.bayesianize_(ragged, {"0": {"inference": "inducing", "inducing_cols": 3}, "1": "inducing"}, inducing_rows=2)
    for wrong in (single, unwhitened, ragged):
        with pytest.raises(ValueError, match=r"global inducing weights|all layers need the same"):
            bnn.register_global_inducing_weights_(wrong, 2, 2)


def test_networks() -> None:
    fcn = bnn.nn.nets.FCN([4, 8, 8, 3], bn=True)
    names = [name for name, _ in fcn.named_children()]
    assert names == [
        *("Linear0", "BN0", "Nonlinarity0"),
        *("Linear1", "BN1", "Nonlinarity1"),
        *("Linear2", "BN2"),
    ]
    assert fcn.Linear0.bias is None
    assert bnn.nn.nets.FCN([4, 8, 3]).Linear0.bias is not None
    cnn = bnn.nn.nets.CNN([3, 4, 5], [20, 10], maxpool_freq=1, conv_bn=True)
    names = [name for name, _ in cnn.named_children()]
    assert {"Conv0", "ConvBN0", "ConvNonlinearity0", "Maxpool0", "Conv1", "Maxpool1", "Flatten", "fc"} <= set(names)
    with torch.device("meta"):
        for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
            net = bnn.nn.nets.make_network(name, out_features=7, kernel_size=5, remove_maxpool=True)
            assert net.fc.out_features == 7
            assert (net.conv1.kernel_size, net.conv1.stride, net.conv1.padding) == ((5, 5), (1, 1), (2, 2))
            assert net.conv1.in_channels == 3
            assert not any(isinstance(m, nn.MaxPool2d) for m in net.modules())


# ---- 3. options ------------------------------------------------------------------------------------------------------

SPELLED_OUT: dict[str, dict[str, Any]] = {
    "inducing": {
        "inducing_rows": None,
        "inducing_cols": None,
        "prior_sd": 1.0,
        "init_lamda": 1e-4,
        "learn_lamda": True,
        "max_lamda": None,
        "q_inducing": "diagonal",
        "whitened_u": True,
        "max_sd_u": None,
        "sqrt_width_scaling": False,
        "cache_cholesky": False,
        "ensemble_size": 8,
    },
    "ffg": {
        "prior_mean": 0.0,
        "prior_weight_sd": 1.0,
        "prior_bias_sd": 1.0,
        "init_sd": 1e-4,
        "max_sd": None,
        "local_reparameterization": True,
        "nonlinearity_scale": 1.0,
        "sqrt_width_scaling": False,
    },
    "fcg": {
        "prior_mean": 0.0,
        "prior_weight_sd": 1.0,
        "prior_bias_sd": 1.0,
        "init_sd": 1e-4,
        "nonlinearity_scale": 1.0,
    },
    "singular": {
        "rank": None,
        "prior_sd": 1.0,
        "init_sd": 1e-4,
        "max_sd": None,
        "sqrt_width_scaling": False,
        "kernel": "paper",
        "init": "weights",
        "budget": None,
    },
}


@pytest.mark.parametrize("inference", ["inducing", "inducingdeterministic", "ffg", "fcg", "singular"])
def test_defaults_spelled_out_change_nothing(inference: str) -> None:
    plain = nn.Conv2d(2, 5, 3)
    options = SPELLED_OUT["inducing" if inference.startswith("inducing") else inference]
    layers = []
    for given in ({}, options):
        torch.manual_seed(1)
        layers.append(bnn.bayesianize.bayesian_from_template(plain, inference, **given))
    assert layers[0].options == layers[1].options
    assert torch.equal(layers[0].kl_divergence(), layers[1].kl_divergence())
    assert all(torch.equal(a, b) for a, b in zip(layers[0].parameters(), layers[1].parameters(), strict=True))


# ---- 4. state dicts: what the names mean -----------------------------------------------------------------------------


def triangle(packed: Tensor) -> Tensor:
    """A packed triangle is its softplus-diagonal, then the strict lower part row by row."""
    n = (math.isqrt(8 * packed.numel() + 1) - 1) // 2
    tril = torch.diag(F.softplus(packed[:n]))
    entries = iter(packed[n:])
    for i in range(n):
        for j in range(i):
            tril[i, j] = next(entries)
    return tril


def side(z: Tensor, raw_d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Psi, its Cholesky factor and A = L^-1 Z."""
    psi = z @ z.T + torch.diag(F.softplus(raw_d) ** 2)
    L = torch.linalg.cholesky(psi)
    return psi, L, torch.linalg.solve(L, z)


def random_inducing(q: str, whitened: bool) -> Any:
    """A layer on Conv2d(2, 3, 2), d = 3 x 9, M = 2 x 3, with random parameters of order 1."""
    options = {"inducing_rows": 2, "inducing_cols": 3, "q_inducing": q, "whitened_u": whitened, "prior_sd": 0.7}
    layer = bnn.bayesianize.bayesian_from_template(nn.Conv2d(2, 3, 2), "inducing", **options, ensemble_size=4).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return layer


@pytest.mark.parametrize("whitened", [True, False])
@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
def test_inducing_state_means_what_the_paper_says(q: str, whitened: bool) -> None:
    layer = random_inducing(q, whitened)
    state = {name: tensor.detach() for name, tensor in layer.state_dict().items()}
    psi_r, L_r, A_r = side(state["z_row"], state["_d_row"])
    psi_c, L_c, A_c = side(state["z_col"], state["_d_col"])
    U = state["inducing_mean"].mean(0) if q == "ensemble" else state["inducing_mean"].reshape(2, 3)
    u = U if whitened else torch.linalg.inv(L_r) @ U @ torch.linalg.inv(L_c).T
    W = 0.7 * A_r.T @ u @ A_c
    torch.testing.assert_close(layer.weight.detach(), W[:, :-1].reshape(3, 2, 2, 2))
    torch.testing.assert_close(layer.bias.detach(), W[:, -1])

    lamda = F.softplus(state["_lamda"])
    kl_lamda = 27 * (lamda**2 / 2 - lamda.log() - 0.5)
    torch.testing.assert_close(layer.kl_parts().lamda.detach(), kl_lamda)
    if q == "ensemble":
        assert layer.kl_parts().u == 0
        return
    if q == "diagonal":
        scale = torch.diag(F.softplus(state["_inducing_sd"]).flatten())
    elif q == "full":
        scale = triangle(state["_inducing_scale_tril"])
    else:
        row, col = triangle(state["_inducing_row_scale_tril"]), triangle(state["_inducing_col_scale_tril"])
        scale = torch.kron(row, col)  # row-major vec
    prior = torch.eye(6, dtype=torch.double) if whitened else torch.kron(psi_r, psi_c)
    posterior = MultivariateNormal(U.flatten(), scale @ scale.T)
    want = kl_divergence(posterior, MultivariateNormal(torch.zeros(6, dtype=torch.double), prior))
    torch.testing.assert_close(layer.kl_parts().u.detach(), want)


def test_fcg_vector_is_the_weight_row_major_then_the_bias() -> None:
    layer = bnn.bayesianize.bayesian_from_template(nn.Conv2d(2, 3, 2), "fcg")
    with torch.no_grad():
        layer.mean.copy_(torch.arange(27.0))
    assert torch.equal(layer.weight.detach(), torch.arange(24.0).reshape(3, 2, 2, 2))
    assert torch.equal(layer.bias.detach(), torch.tensor([24.0, 25.0, 26.0]))


def test_prior_buffers_of_old_checkpoints_are_ignored() -> None:
    names = [f"prior_{part}_{kind}" for part in ("weight", "bias") for kind in ("mean", "sd")]
    names += ["prior_mean", "prior_scale_tril"]
    net = nn.Sequential(nn.Linear(3, 2))
    bnn.bayesianize_(net, "ffg")
    state = net.state_dict()
    old = state | {f"0.{name}": torch.zeros(2) for name in names}
    assert net.load_state_dict(old, strict=True).unexpected_keys == []
    with pytest.raises(RuntimeError, match="Unexpected"):
        net.load_state_dict(state | {"prior_mean": torch.zeros(2)}, strict=True)  # of no Bayesian layer


# ---- 5., 6., 7. conversion -------------------------------------------------------------------------------------------


class Sub(nn.Linear):
    pass


@pytest.mark.filterwarnings("ignore:inference keys without effect")
def test_precedence_exact_types_and_frozen_weights() -> None:
    net = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "c": nn.Sequential(nn.Linear(2, 2), Sub(2, 2))})
    net["b"].weight.requires_grad_(False)
    names = [name for name, _ in net.named_modules()]
    inference = {net["a"]: "fcg", "a": "ffg", "b": "inducing", nn.Linear: "ffg", "c": {"inference": "inducing"}}
    kept = dict(inference)
    with pytest.warns(UserWarning, match=r"left deterministic: c.1 \(Sub\): .*subclass of Linear"):
        bnn.bayesianize_(net, inference, **SIZES)
    assert inference == kept
    assert names == [name for name, _ in net.named_modules()]
    kinds = {name: type(m).__name__ for name, m in net.named_modules() if isinstance(m, nn.Linear)}
    assert kinds == {"a": "FCGLinear", "b": "InducingLinear", "c.0": "FFGLinear", "c.1": "Sub"}
    assert not any(p.requires_grad for p in net["b"].parameters())


def test_the_kl_of_a_network_is_the_sum_over_its_modules() -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    bnn.bayesianize_(net, {nn.Conv2d: "inducing", nn.Linear: "ffg"}, **SIZES)
    total = sum(m.kl_divergence() for m in net.modules() if hasattr(m, "kl_divergence"))
    torch.testing.assert_close(total, bnn.kl_divergence(net))
    assert torch.equal(net[0].parameter_loss(), net[0].kl_divergence())
    assert torch.equal(net[3].weight, net[3].weight_mean)


def test_mistakes_are_errors() -> None:
    for net, options in (
        (nn.Linear(2, 2), {"inference": "inducng"}),
        (nn.ReLU(), {"inference": "ffg"}),
        (nn.Linear(2, 2), {"inference": {}}),
    ):
        with pytest.raises(ValueError, match=r"unknown inference|nothing"):
            bnn.bayesianize_(nn.Sequential(net), **options)
    with pytest.raises(TypeError, match="prior_sdd"):
        bnn.bayesianize_(nn.Linear(2, 2), "ffg", prior_sdd=1.0)


# ---- draws, from outside ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", ["diagonal", "matrix", "full"])
def test_moments_of_a_convs_outputs_at_all_positions_together(q: str) -> None:
    layer = random_inducing(q, whitened=True)
    with torch.no_grad():
        layer._lamda.fill_(math.log(math.expm1(0.6)))
        state = layer.state_dict()
        _, _, A_r = side(state["z_row"], state["_d_row"])
        _, _, A_c = side(state["z_col"], state["_d_col"])
        scale = {
            "diagonal": lambda: torch.diag(F.softplus(state["_inducing_sd"]).flatten()),
            "full": lambda: triangle(state["_inducing_scale_tril"]),
            "matrix": lambda: torch.kron(
                triangle(state["_inducing_row_scale_tril"]), triangle(state["_inducing_col_scale_tril"])
            ),
        }[q]()
        lift = torch.kron(A_r.T.contiguous(), A_c.T.contiguous())  # row-major: vec(A_r^T u A_c) = lift vec(u)
        P = torch.kron(A_r.T @ A_r, A_c.T @ A_c)
        cov_W = 0.49 * (lift @ scale @ scale.T @ lift.T + 0.36 * (torch.eye(27, dtype=torch.double) - P))
        x = torch.randn(1, 2, 3, 3).double()
        patches = torch.cat([F.unfold(x, 2)[0], torch.ones(1, 4, dtype=torch.double)])  # (9, 4)
        push = torch.kron(torch.eye(3, dtype=torch.double), patches.T.contiguous())  # (12, 27)
        want = push @ cov_W @ push.T
        y = torch.func.vmap(lambda _: layer(x).flatten(), randomness="different")(torch.arange(40_000))
    sd = want.diagonal().sqrt()
    error = (torch.cov(y.T) - want) / (sd[:, None] * sd)
    assert error.abs().max() < 4.5 * (2 / 40_000) ** 0.5
    mean = F.conv2d(x, layer.weight, layer.bias).flatten().detach()
    assert ((y.mean(0) - mean) / (sd / 40_000**0.5)).abs().max() < 4.5
