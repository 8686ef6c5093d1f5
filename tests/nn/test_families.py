"""What each family's options mean: sizes, priors, caps, point estimates, starts, and errors that help."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import FAMILIES, SIZES, Family, ids, sample_of_u, set_noise_, softplus_inverse
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import bnn
from bnn._engine.draw import Draw
from bnn.bayesianize import bayesian_from_template
from bnn.nn import base
from bnn.nn.families.inducing import InducingBase
from bnn.nn.families.q.choice import names as q_names

every_family = pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))


def inducing(layer: nn.Module | None = None, **options: Any) -> Any:
    return unsized(nn.Linear(7, 5) if layer is None else layer, **(SIZES | options))


def unsized(layer: nn.Module, **options: Any) -> Any:
    """A layer whose sizes the library chooses, where the options do not."""
    return bayesian_from_template(layer, "inducing", **options)


def test_the_list_of_the_shared_tests_has_every_family_and_every_q() -> None:
    assert {family.inference for family in FAMILIES} == set(base.families())
    layers = [bayesian_from_template(nn.Linear(7, 5), family.inference, **family.options) for family in FAMILIES]
    assert {layer.q.name for layer in layers if isinstance(layer, InducingBase)} == set(q_names())


# ---- defaults and sizes ----------------------------------------------------------------------------------------------

INDUCING_DEFAULTS = {
    "inducing_rows": None,
    "inducing_cols": None,
    "prior_sd": 1,
    "init_lamda": 1e-4,
    "learn_lamda": True,
    "max_lamda": None,
    "q_inducing": "diagonal",
    "whitened_u": True,
    "max_sd_u": None,
    "sqrt_width_scaling": False,
    "cache_cholesky": False,
    "ensemble_size": 8,
}
GAUSSIAN_DEFAULTS = {
    "prior_mean": 0,
    "prior_weight_sd": 1,
    "prior_bias_sd": 1,
    "init_sd": 1e-4,
    "nonlinearity_scale": 1,
}
LOCAL_DEFAULTS = {"max_sd": None, "local_reparameterization": True, "sqrt_width_scaling": False}
DEFAULTS = {
    "inducing": INDUCING_DEFAULTS,
    "inducingdeterministic": INDUCING_DEFAULTS,
    "ffg": GAUSSIAN_DEFAULTS | LOCAL_DEFAULTS,
    "fcg": GAUSSIAN_DEFAULTS,
    "singular": {"rank": None, "prior_sd": 1, "init_sd": 1e-4, "max_sd": None, "sqrt_width_scaling": False},
    "matrixnormal": GAUSSIAN_DEFAULTS | LOCAL_DEFAULTS | {"covariance": "diagonal"},
    "ktied": GAUSSIAN_DEFAULTS | LOCAL_DEFAULTS | {"rank": 2},
}


@pytest.mark.parametrize("inference", list(DEFAULTS))
def test_option_names_and_defaults(inference: str) -> None:
    layer = bayesian_from_template(nn.Linear(3, 2), inference)
    sizes = ("inducing_rows", "inducing_cols", "rank")
    settled = {name: 1 for name in sizes if name in DEFAULTS[inference] and DEFAULTS[inference][name] is None}
    got = {name: getattr(layer.options, name) for name in layer.options.names()}
    ours = {"init": "weights", "kernel": "paper", "sampling": "auto", "budget": None}
    ours = {name: value for name, value in ours.items() if name in layer.options.names()}
    assert set(got) == set(DEFAULTS[inference]) | set(ours)
    for name, value in (DEFAULTS[inference] | ours | settled).items():
        assert got[name] == value, name
    with pytest.raises(AttributeError):
        layer.options.prior_sd = 3.0  # frozen: validated once


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(15, 9), nn.Linear(15, 9, bias=False), nn.Conv2d(4, 10, 3, groups=2), nn.Conv1d(8, 16, 2, bias=False)],
    ids=str,
)
def test_unset_sizes_of_a_layer_alone_take_half_of_its_parameters(layer: nn.Module) -> None:
    plain = bnn.parameter_count(layer)
    for q in ("diagonal", "matrix", "full", "ensemble"):
        options = {"q_inducing": q, "ensemble_size": 2}
        converted = unsized(layer, **options)
        m = len(converted.z_row)
        assert len(converted.z_col) == m
        assert m == 1 or bnn.parameter_count(converted) <= plain / 2
        larger = unsized(layer, **options, inducing_rows=m + 1, inducing_cols=m + 1)
        assert bnn.parameter_count(larger) > plain / 2
        within = unsized(layer, **options, budget=1.0)
        assert bnn.parameter_count(within) <= plain
        with pytest.raises(ValueError, match="the least possible"):
            unsized(layer, **options, budget=3)


def test_one_size_stands_for_both() -> None:
    for given in ({"inducing_rows": 11}, {"inducing_cols": 11}):
        layer = unsized(nn.Linear(15, 9), **given)  # never clipped
        assert (len(layer.z_row), len(layer.z_col)) == (11, 11)
    assert (layer.options.inducing_rows, layer.options.inducing_cols) == (11, 11)
    assert len(unsized(nn.Linear(1, 1)).z_row) == 1


def test_shapes_of_the_state_dict() -> None:
    d_out, d_in, m, k, size = 6, 13, 3, 4, 5  # Conv2d(3, 6, 2): 3 * 4 weights and the bias
    common = {
        "z_row": (m, d_out),
        "z_col": (k, d_in),
        "_lamda": (),
        "_d_row": (m,),
        "_d_col": (k,),
    }
    own = {
        "diagonal": {"inducing_mean": (m, k), "_inducing_sd": (m, k)},
        "full": {"inducing_mean": (m * k,), "_inducing_scale_tril": (m * k * (m * k + 1) // 2,)},
        "matrix": {
            "inducing_mean": (m, k),
            "_inducing_row_scale_tril": (m * (m + 1) // 2,),
            "_inducing_col_scale_tril": (k * (k + 1) // 2,),
        },
        "ensemble": {"inducing_mean": (size, m, k)},
    }
    for q, names in own.items():
        layer = inducing(nn.Conv2d(3, 6, 2), inducing_rows=m, inducing_cols=k, q_inducing=q, ensemble_size=size)
        assert {name: tuple(t.shape) for name, t in layer.state_dict().items()} == common | names
    n = d_out * d_in
    layer = bayesian_from_template(nn.Conv2d(3, 6, 2), "fcg")
    shapes = {name: tuple(t.shape) for name, t in layer.state_dict().items()}
    assert shapes == {"mean": (n,), "_scale_diag": (n,), "_scale_tril": (n, n)}
    layer = bayesian_from_template(nn.Conv2d(3, 6, 2), "ffg")
    shapes = {name: tuple(t.shape) for name, t in layer.state_dict().items()}
    weight, bias = (6, 3, 2, 2), (6,)
    assert shapes == {"weight_mean": weight, "_weight_sd": weight, "bias_mean": bias, "_bias_sd": bias}


# ---- priors and KL ---------------------------------------------------------------------------------------------------

PRIORS: list[dict[str, Any]] = [
    {},
    {"prior_mean": 0.3, "prior_weight_sd": 0.5, "prior_bias_sd": 2.0},
    {"prior_weight_sd": "neal", "prior_bias_sd": 3.0},
    {"prior_weight_sd": "neal", "nonlinearity_scale": 1.7},
]


def prior_sds(options: dict[str, Any], d_in: int, bias: bool) -> tuple[float, float]:
    """the contract, spelled out once more."""
    weight = options.get("prior_weight_sd", 1.0)
    weight = (d_in - bias) ** -0.5 if weight == "neal" else weight
    width = math.sqrt(d_in) if options.get("sqrt_width_scaling") else 1.0
    return weight * options.get("nonlinearity_scale", 1.0) / width, options.get("prior_bias_sd", 1.0) / width


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [*PRIORS, {"sqrt_width_scaling": True, "prior_bias_sd": 0.2}])
def test_ffg_kl(options: dict[str, Any], bias: bool) -> None:
    layer = bayesian_from_template(nn.Conv1d(3, 4, 2, bias=bias), "ffg", **options).double()
    set_noise_(layer, 0.07)
    sds = prior_sds(options, 6 + bias, bias)
    want = torch.tensor(0.0, dtype=torch.double)
    for mean, sd in zip([layer.weight, layer.bias][: 1 + bias], sds, strict=False):
        q = Normal(mean, 0.07)
        want = want + kl_divergence(q, Normal(torch.full_like(mean, options.get("prior_mean", 0.0)), sd)).sum()
    torch.testing.assert_close(layer.kl_divergence(), want)
    assert layer.kl_parts().lamda == 0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", PRIORS)
def test_fcg_kl(options: dict[str, Any], bias: bool) -> None:
    layer = bayesian_from_template(nn.Conv1d(3, 4, 2, bias=bias), "fcg", **options).double()
    n = 24 + 4 * bias
    with torch.no_grad():
        layer._scale_diag.copy_(torch.randn(n))
        layer._scale_tril.copy_(torch.randn(n, n))  # its upper triangle must not matter
    state = layer.state_dict()
    tril = state["_scale_tril"].tril(-1) + torch.diag(F.softplus(state["_scale_diag"]))
    weight_sd, bias_sd = prior_sds(options, 6 + bias, bias)
    prior_sd = torch.tensor([weight_sd] * 24 + [bias_sd] * 4 * bias, dtype=torch.double)
    mean = torch.cat([layer.weight.flatten()] + ([layer.bias] if bias else []))  # row-major, then the bias
    prior_mean = torch.full_like(mean, options.get("prior_mean", 0.0))
    prior = MultivariateNormal(prior_mean, torch.diag(prior_sd**2))
    want = kl_divergence(MultivariateNormal(mean, scale_tril=tril), prior)
    torch.testing.assert_close(layer.kl_divergence(), want)


def test_standard_deviations_and_triangles_are_properties() -> None:
    """As in the 2020 code."""
    ffg = bayesian_from_template(nn.Conv2d(3, 4, 2), "ffg", max_sd=0.1, init_sd=0.05)
    assert (ffg.weight_sd.shape, ffg.bias_sd.shape) == (ffg.weight.shape, ffg.bias.shape)
    torch.testing.assert_close(ffg.weight_sd, torch.full_like(ffg.weight, 0.05))
    assert bayesian_from_template(nn.Linear(3, 2, bias=False), "ffg").bias_sd is None
    fcg = bayesian_from_template(nn.Linear(3, 2), "fcg", init_sd=0.05)
    torch.testing.assert_close(fcg.scale_tril, 0.05 * torch.eye(8))


def test_fcg_draws_have_its_covariance() -> None:
    layer = bayesian_from_template(nn.Linear(2, 2), "fcg").double()
    with torch.no_grad():
        layer._scale_diag.copy_(torch.randn(6))
        layer._scale_tril.copy_(torch.randn(6, 6))
        tril = layer.state_dict()["_scale_tril"].tril(-1) + torch.diag(F.softplus(layer._scale_diag))
        weight, bias = layer.sample_weights(Draw(count=40_000))
    assert (weight.shape, bias.shape) == ((40_000, 2, 2), (40_000, 2))
    w = torch.cat([weight.flatten(1), bias], 1)
    want = tril @ tril.T
    sd = want.diagonal().sqrt()
    error = (torch.cov(w.T) - want) / (sd[:, None] * sd)
    assert error.abs().max() < 5 * (2 / 40_000) ** 0.5


@pytest.mark.parametrize("scaled", [False, True])
def test_inducing_lamda_kl_and_prior(scaled: bool) -> None:
    layer = inducing(nn.Conv2d(2, 5, 3), prior_sd=0.6, sqrt_width_scaling=scaled, init_lamda=0.2).double()
    r = 0.2**2 / 2 - math.log(0.2) - 0.5
    assert layer.kl_parts().lamda.item() == pytest.approx(5 * 19 * r, rel=1e-6)
    assert layer.prior_sd() == pytest.approx(0.6 / (math.sqrt(19) if scaled else 1))
    mean, sd = layer.inducing_mean, F.softplus(layer._inducing_sd)
    want = kl_divergence(Normal(mean, sd), Normal(torch.zeros_like(mean), 1)).sum()
    torch.testing.assert_close(layer.kl_parts().u, want)


def test_ensembles_charge_no_kl_on_u() -> None:
    for whitened in (True, False):
        layer = inducing(q_inducing="ensemble", whitened_u=whitened)
        assert layer.kl_parts().u == 0
        assert layer.kl_parts().lamda > 0


# ---- point estimates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whitened", [True, False])
@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
def test_max_lamda_0_has_neither_noise_nor_kl_given_u(q: str, whitened: bool) -> None:
    layer = inducing(max_lamda=0, q_inducing=q, whitened_u=whitened, init_lamda=0.3)
    assert layer.kl_parts().lamda == 0
    set_noise_(layer, 1e-7)
    with torch.no_grad():
        layer._lamda.fill_(2.0)  # unused, whatever a checkpoint holds
    x = torch.randn(4, 7)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), atol=1e-4, rtol=1e-4)
    assert "_lamda" in layer.state_dict()
    assert "_lamda" not in dict(layer.named_parameters())


@pytest.mark.parametrize("whitened", [True, False])
def test_max_sd_u_0_is_a_map_estimate(whitened: bool) -> None:
    layer = inducing(max_sd_u=0, max_lamda=0, whitened_u=whitened).double()
    x = torch.randn(4, 7).double()
    assert torch.equal(layer(x), layer(x))
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    u = layer.inducing_mean.detach()
    if not whitened:
        row, col = layer.factors()
        u = torch.linalg.inv(row.L) @ u @ torch.linalg.inv(col.L).T
    torch.testing.assert_close(layer.kl_divergence(), u.square().sum() / 2)
    noisy = inducing(max_sd_u=0, init_lamda=0.5)
    assert not torch.equal(noisy(x.float()), noisy(x.float()))


def test_inducingdeterministic_is_lamda_0() -> None:
    layer = bayesian_from_template(nn.Linear(7, 5), "inducingdeterministic", init_lamda=0.5, **SIZES).double()
    assert layer.kl_parts().lamda == 0
    set_noise_(layer, 1e-10)
    with torch.no_grad():
        layer._lamda.fill_(2.0)
    x = torch.randn(4, 7).double()
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), atol=1e-8, rtol=1e-8)


# ---- caps ------------------------------------------------------------------------------------------------------------


def test_caps_hold_and_keep_their_gradient() -> None:
    layer = inducing(max_lamda=0.03, max_sd_u=0.1)
    with torch.no_grad():
        layer._lamda.fill_(4.0)
        layer._inducing_sd.fill_(4.0)
    assert layer.lamda().item() == pytest.approx(0.03)
    assert layer.q.sds(layer).max().item() == pytest.approx(0.1)
    (layer.lamda() + layer.q.sds(layer).sum()).backward()  # a loss that wants them smaller
    assert layer._lamda.grad > 0.9
    assert (layer._inducing_sd.grad > 0.9).all()
    capped = bayesian_from_template(nn.Linear(7, 5), "ffg", max_sd=0.1, init_sd=3.0)
    assert capped.sds().weight.max().item() == pytest.approx(0.1)
    assert F.softplus(capped._weight_sd).max().item() == pytest.approx(
        0.1, rel=1e-4
    )  # it starts at the cap, not beyond


@every_family
def test_no_kl_is_infinite(family: Family) -> None:
    layer = bayesian_from_template(nn.Linear(7, 5), family.inference, **family.options)
    for raw in (-1e4, 1e4):
        with torch.no_grad():
            for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
                if name in layer.scales:
                    tensor.fill_(raw)
                elif name.endswith("scale_tril") and name != "_scale_tril":
                    tensor[: (math.isqrt(8 * tensor.numel() + 1) - 1) // 2] = raw
        kl = layer.kl_divergence()
        assert kl.isfinite()
        if not kl.requires_grad:  # a posterior without a KL
            continue
        gradients = torch.autograd.grad(kl, list(layer.parameters()), allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in gradients)


# ---- starts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
def test_the_papers_start(q: str) -> None:
    layer = inducing(
        nn.Linear(399, 300), inducing_rows=25, inducing_cols=16, init="paper", q_inducing=q, ensemble_size=50
    )
    assert layer.z_row.std().item() == pytest.approx(25**-0.5, rel=0.03)
    assert layer.z_col.std().item() == pytest.approx(16**-0.5, rel=0.03)
    assert layer.z_row.mean().abs() < 0.02
    torch.testing.assert_close(F.softplus(layer._d_row), torch.full((25,), 1e-3), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(F.softplus(layer._d_col), torch.full((16,), 1e-3), rtol=1e-4, atol=0.0)
    assert F.softplus(layer._lamda).item() == pytest.approx(1e-4, rel=1e-3)
    u = layer.q.mean(layer)
    assert u.std().item() == pytest.approx(1.0, abs=0.15)  # 400 entries: 4 standard errors
    if q == "ensemble":
        assert layer.inducing_mean.std(0).mean().item() == pytest.approx(0.1, rel=0.15)
    else:
        with torch.no_grad():
            samples = sample_of_u(layer, Draw(count=300))
        assert samples.shape == (300, 25, 16)
        assert samples.std(0).mean().item() == pytest.approx(1e-3, rel=0.02)


def test_the_start_from_weights_has_rows_of_norm_1() -> None:
    layer = inducing(nn.Linear(40, 30), inducing_rows=6, inducing_cols=5)
    torch.testing.assert_close(layer.z_row[:5].norm(dim=1), torch.ones(5))
    torch.testing.assert_close(layer.z_col.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(layer.z_row[:5] @ layer.z_row[:5].T, torch.eye(5), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.knows("init_lamda") or f.knows("init_sd")], ids=lambda f: f.id
)
def test_init_scales_are_taken(family: Family) -> None:
    option = "init_lamda" if family.knows("init_lamda") else "init_sd"
    layer = bayesian_from_template(nn.Linear(7, 5), family.inference, **(family.options | {option: 0.02}))
    if option == "init_sd":
        sds = layer.sds_and_cap()[0].detach()
        torch.testing.assert_close(sds, torch.full_like(sds, 0.02))
        return
    torch.testing.assert_close(layer._lamda.detach(), torch.tensor(softplus_inverse(0.02)))


# ---- awkward sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
@pytest.mark.parametrize("whitened", [True, False])
def test_far_more_inducing_weights_than_weights(q: str, whitened: bool) -> None:
    plain = nn.Linear(2, 3)
    layer = inducing(plain, inducing_rows=12, inducing_cols=15, q_inducing=q, whitened_u=whitened, init_lamda=0.1)
    if q != "ensemble":
        torch.testing.assert_close(layer.weight, plain.weight, atol=1e-4, rtol=1e-3)
    x = torch.randn(4, 2)
    y = layer(x)
    (y.square().sum() + layer.kl_divergence()).backward()
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@every_family
def test_the_smallest_layers(family: Family) -> None:
    for plain in (nn.Linear(1, 1, bias=False), nn.Conv2d(1, 1, 1, bias=False), nn.Linear(1, 1)):
        layer = bayesian_from_template(plain, family.inference, **family.options)
        x = torch.ones((1, 1) if isinstance(plain, nn.Linear) else (1, 1, 2, 2))
        y = layer(x)
        (y.sum() + layer.kl_divergence()).backward()
        assert y.isfinite().all()
        assert all(p.grad.isfinite().all() for p in layer.parameters())


@every_family
def test_layers_of_zeros(family: Family) -> None:
    plain = nn.Linear(7, 5)
    nn.init.zeros_(plain.weight)
    nn.init.zeros_(plain.bias)
    layer = bayesian_from_template(plain, family.inference, **family.options)
    torch.testing.assert_close(layer.weight, plain.weight, atol=1e-6, rtol=0.0)
    y = layer(torch.randn(3, 7))
    (y.sum() + layer.kl_divergence()).backward()
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_a_rank_one_layer() -> None:
    plain = nn.Linear(7, 5)
    with torch.no_grad():
        plain.weight.copy_(torch.randn(5, 1) @ torch.randn(1, 7))
        plain.bias.zero_()
    layer = inducing(plain, inducing_rows=3, inducing_cols=3)
    torch.testing.assert_close(layer.weight, plain.weight, atol=1e-5, rtol=1e-4)


# ---- mistakes --------------------------------------------------------------------------------------------------------

BAD_INDUCING: list[tuple[str, Any]] = [
    ("inducing_rows", 0),
    ("inducing_rows", 2.0),
    ("inducing_rows", True),
    ("inducing_cols", -1),
    ("inducing_cols", "8"),
    ("prior_sd", 0),
    ("prior_sd", -1.0),
    ("prior_sd", float("nan")),
    ("prior_sd", float("inf")),
    ("prior_sd", "1"),
    ("prior_sd", None),
    ("init_lamda", 0.0),
    ("max_lamda", -0.1),
    ("max_sd_u", -0.1),
    ("ensemble_size", 0),
    ("ensemble_size", None),
    ("q_inducing", "diag"),
    ("init", "random"),
    ("sampling", "exact"),
    ("learn_lamda", 1),
    ("whitened_u", "yes"),
]
BAD_GAUSSIAN: list[tuple[str, Any]] = [
    ("prior_weight_sd", 0),
    ("prior_weight_sd", "Neal"),
    ("prior_weight_sd", None),
    ("prior_bias_sd", "neal"),
    ("prior_bias_sd", -1),
    ("init_sd", 0),
    ("prior_mean", float("inf")),
    ("prior_mean", "0"),
    ("nonlinearity_scale", 0),
]
BAD_FFG: list[tuple[str, Any]] = [("max_sd", 0), ("local_reparameterization", None), ("sqrt_width_scaling", 2)]


@pytest.mark.parametrize(
    ("inference", "option", "value"),
    [("inducing", *bad) for bad in BAD_INDUCING]
    + [(family, *bad) for family in ("ffg", "fcg", "matrixnormal", "ktied") for bad in BAD_GAUSSIAN]
    + [(family, *bad) for family in ("ffg", "matrixnormal", "ktied") for bad in BAD_FFG]
    + [("matrixnormal", "covariance", "low-rank"), ("ktied", "rank", 0), ("ktied", "sampling", "exact")],
)
def test_bad_values_are_named(inference: str, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{option}.*{value!r}".replace("(", r"\(")):
        bayesian_from_template(nn.Linear(7, 5), inference, **{option: value})


@pytest.mark.parametrize("inference", base.families())
def test_an_unknown_option_lists_the_known_ones(inference: str) -> None:
    names = base.pairing(inference, nn.Linear).options_type.names()
    with pytest.raises(TypeError) as caught:
        bayesian_from_template(nn.Linear(7, 5), inference, nonsense=1)
    assert "'nonsense'" in str(caught.value)
    assert all(repr(name) in str(caught.value) for name in names)


def test_options_that_do_not_go_together() -> None:
    for q in ("matrix", "full", "ensemble", "point"):
        with pytest.warns(UserWarning, match=f"max_sd_u has no effect: q_inducing='{q}' has no such cap"):
            layer = inducing(q_inducing=q, max_sd_u=0.1)
        assert layer.options.max_sd_u is None
        inducing(**dataclasses.asdict(layer.options))  # what files record warns no more
    with pytest.raises(TypeError, match="unknown option 'max_sd'"):
        bayesian_from_template(nn.Linear(7, 5), "fcg", max_sd=0.1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_cannot_be_kept(value: float) -> None:
    plain = nn.Linear(7, 5)
    with torch.no_grad():
        plain.weight[1, 2] = value
    with pytest.raises(ValueError, match=r"weights to keep, \(5, 8\) as a matrix, hold NaN or inf"):
        inducing(plain)
    assert inducing(plain, init="paper").weight.isfinite().all()


def test_fcg_refuses_a_layer_that_does_not_fit_before_it_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nn.Linear(1000, 1000)  # a covariance of 1,001,000^2 float32 entries is 3.6 TiB
    for name in ("zeros", "empty", "eye", "full"):
        monkeypatch.setattr(torch, name, lambda *a, **k: pytest.fail("allocated before refusing"))
    with pytest.raises(ValueError, match=r"1,001,000 x 1,001,000 covariance: 14,9\d\d\.\d GiB.*'ffg'"):
        bayesian_from_template(plain, "fcg")


def test_a_broken_z_is_a_named_error() -> None:
    layer = inducing()
    with torch.no_grad():
        layer.z_row.fill_(float("nan"))
    with pytest.raises(RuntimeError, match=r"Psi_r .*NaN"):
        layer(torch.randn(2, 7))
    with pytest.raises(RuntimeError, match=r"Psi_r .*NaN"):
        _ = layer.weight


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_local_noise_in_half_precision_has_the_right_size(half):
    """sd 1e-4 squared underflows in float16; 4,000 outputs, sd within 10 %."""
    layer = bnn.nn.FFGLinear(16, 4000, init_sd=1e-4)
    with torch.no_grad():
        layer.weight_mean.zero_()
        layer.bias_mean.zero_()
    x = torch.full((1, 16), 10.0)
    expected = 1e-4 * (16 * 100 + 1) ** 0.5
    assert layer(x).std().item() == pytest.approx(expected, rel=0.1)
    assert layer.to(half)(x.to(half)).float().std().item() == pytest.approx(expected, rel=0.1)
    assert torch.isfinite(layer(torch.full((1, 16), 300.0, dtype=half))).all()


def test_members_of_a_zero_layer_differ():
    plain = nn.Linear(4, 3)
    nn.init.zeros_(plain.weight)
    nn.init.zeros_(plain.bias)
    layer = bnn.bayesianize.bayesian_from_template(plain, "inducing", q_inducing="ensemble", ensemble_size=200, **SIZES)
    assert layer.inducing_mean.std().item() == pytest.approx(0.1, rel=0.2)


def test_numpy_numbers_are_numbers():
    layer = bnn.nn.InducingLinear(9, 9, inducing_rows=np.int64(4), prior_sd=np.float32(0.5))
    assert type(layer.options.inducing_rows) is int
    assert type(layer.options.prior_sd) is float
