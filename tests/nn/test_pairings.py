"""Every family on every layer type does what torch's layer does, with weights that vary."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from helpers import (
    BASIC,
    FAMILIES,
    FEW,
    LAYER_TYPES,
    MAIN,
    PAIRS,
    Family,
    LayerType,
    bayesian,
    by_weight,
    ids,
    make,
    set_noise_,
    small_net,
)
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import bnn
from bnn._engine.draw import Draw
from bnn._engine.fold import in_one_pass, one_by_one
from bnn._engine.noise import Seeds
from bnn.bayesianize import bayesian_from_template
from bnn.nn import base
from bnn.nn.base import BayesianLayer, Weights
from bnn.nn.families.scaled import ScaledWeights
from bnn.nn.limited_rank import LimitedRank

every_family = pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))
every_layer_type = pytest.mark.parametrize("case", LAYER_TYPES, ids=ids(LAYER_TYPES))
every_pair = pytest.mark.parametrize(("family", "case"), PAIRS, ids=[f"{f.id}-{c.id}" for f, c in PAIRS])
DENSE = [(f, c) for f, c in PAIRS if c in BASIC or f.id == "diagonal"]  # with whole weights families differ little
every_dense_pair = pytest.mark.parametrize(("family", "case"), DENSE, ids=[f"{f.id}-{c.id}" for f, c in DENSE])
few_layer_types = pytest.mark.parametrize("case", FEW, ids=ids(FEW))
basic_layer_type = pytest.mark.parametrize("case", BASIC, ids=ids(BASIC))


def plain_output(case: LayerType, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch's own layer with the given weights."""
    weights = {"weight": weight} | ({} if bias is None else {"bias": bias})
    result: Tensor = functional_call(case.layer().to(x.dtype), weights, (x,))
    return result


def named(layer: BayesianLayer, count: int = 1, members: list[int] | None = None) -> Draw:
    """Draws that are the same whenever they are made."""
    return Draw(count=count, seeds=Seeds(layer, 5), members=members)


# ---- outputs ---------------------------------------------------------------------------------------------------------


@every_pair
def test_with_vanishing_noise_it_is_the_plain_layer(family: Family, case: LayerType) -> None:
    layer, x = make(family, case).double(), case.input().double()
    set_noise_(layer, 1e-10)
    got, want = layer(x), plain_output(case, x, layer.weight, layer.bias)
    assert got.shape == case.layer()(case.input()).shape
    torch.testing.assert_close(got, want, atol=1e-7, rtol=1e-7)


@every_dense_pair
def test_the_output_is_the_plain_layers_with_the_drawn_weights(family: Family, case: LayerType) -> None:
    layer, x = make(family, case, **by_weight(family)), case.input()
    set_noise_(layer, 0.3)
    (got,) = one_by_one(layer, [x], [named(layer)])
    weight, bias = layer.sample_weights(named(layer))
    assert (bias is None) == (case.layer().bias is None)
    assert len(weight) == 1
    torch.testing.assert_close(got, plain_output(case, x, weight[0], None if bias is None else bias[0]))
    assert not torch.equal(weight[0], layer.weight)


@every_dense_pair
def test_three_draws_at_once_are_three_plain_layers(family: Family, case: LayerType) -> None:
    for how in ("one input", "own inputs", "one input, folded", "own inputs, folded"):
        layer = make(family, case, **by_weight(family))
        set_noise_(layer, 0.3)
        x = torch.stack([case.input() for _ in range(1 if how.startswith("one") else 3)])
        draw = named(layer, 3, [0, 2, 1])
        if "folded" in how:
            got = in_one_pass(layer, x, draw, dims=0) if len(x) == 3 else in_one_pass(layer, x[0], draw)
        else:
            got = layer.output(x, draw)
        weight, bias = layer.sample_weights(named(layer, 3, [0, 2, 1]))
        biases = [None] * 3 if bias is None else list(bias)
        inputs = x.expand(3, *x.shape[1:])
        want = torch.stack([plain_output(case, *args) for args in zip(inputs, weight, biases, strict=True)])
        torch.testing.assert_close(got, want)
        assert family.points or all(not torch.equal(weight[a], weight[b]) for a, b in [(0, 1), (0, 2), (1, 2)])


@pytest.mark.parametrize("case", [case for case in LAYER_TYPES if 0 not in case.input_shape], ids=lambda case: case.id)
def test_local_reparameterisation_has_the_marginal_variances(case: LayerType, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = bayesian_from_template(case.layer(), "ffg").double()
    x = case.input().double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(torch.randn_like(parameter) - (1.0 if "sd" in name else 0.0))
    ones = lambda draw, module, name, *shape, like, **_: torch.ones(draw.count, *shape, dtype=like.dtype)  # noqa: E731
    monkeypatch.setattr(Draw, "normals", ones)
    with torch.no_grad():
        noise = layer(x) - plain_output(case, x, layer.weight, layer.bias)
    sds = {
        name: nn.functional.softplus(getattr(layer, f"_{name}_sd").detach())
        for name in ("weight", "bias")[: 1 + layer.has_bias]
    }
    jacobians = torch.autograd.functional.jacobian(
        lambda *w: plain_output(case, x, w[0], w[1] if len(w) > 1 else None),
        tuple(p.detach() for p in layer.mean_weights() if p is not None),
    )
    want = sum((j * sd).square().flatten(noise.ndim).sum(-1) for j, sd in zip(jacobians, sds.values(), strict=True))
    torch.testing.assert_close(noise.square(), want)


@basic_layer_type
@every_family
def test_calls_differ_and_all_entries_of_the_weight_vary(family: Family, case: LayerType) -> None:
    layer, x = make(family, case, **by_weight(family)), case.input()
    set_noise_(layer, 0.3)
    draws = 100 if family.points else 8
    with torch.no_grad():
        outputs = torch.stack([layer(x) for _ in range(draws)])
        weights = layer.sample_weights(Draw(count=draws)).weight
    assert weights.shape == (draws, *layer.weight_shape)
    assert outputs.isfinite().all()
    assert (outputs.std(0) > 0).all()
    assert (weights.std(0) > 0).all()


@few_layer_types
@every_family
def test_the_mean_of_many_draws_is_the_weight(family: Family, case: LayerType) -> None:
    layer = make(family, case, **by_weight(family))
    set_noise_(layer, 0.2)
    with torch.no_grad():
        weights = layer.sample_weights(Draw(count=3000))
        W = vmap(lambda weight, bias: layer.to_matrix(Weights(weight, bias)))(*weights).double()
        want = layer.to_matrix(layer.mean_weights()).double()
    assert W.shape == (3000, *want.shape)
    varies = W.std(0) > 0  # a shared bias does not
    error = (W.mean(0) - want)[varies] / (W.std(0)[varies] / 3000**0.5)
    assert error.abs().max() < 5.5  # in standard errors, over at most 160 entries
    torch.testing.assert_close(W.mean(0)[~varies], want[~varies])


@few_layer_types
@every_family
def test_other_types(family: Family, case: LayerType) -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        layer, x = make(family, case).to(dtype), case.input().to(dtype)
        y = layer(x)
        (y.sum() + layer.kl_divergence()).backward()
        assert y.dtype == layer.weight.dtype == dtype
        assert y.isfinite().all()
        assert layer.kl_divergence().isfinite()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
        assert {t.dtype for t in layer.state_dict().values()} == {dtype}


@few_layer_types
@every_family
def test_conversion_in_other_types(family: Family, case: LayerType) -> None:
    for dtype in (torch.float64, torch.bfloat16):
        plain = case.layer(dtype=dtype)
        layer = bayesian_from_template(plain, family.inference, **family.options)
        assert {t.dtype for t in layer.state_dict().values()} == {dtype}
        y = layer(case.input().to(dtype))
        assert y.dtype == dtype
        assert y.isfinite().all()
        assert layer.kl_divergence().dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@few_layer_types
@every_family
def test_autocast(family: Family, case: LayerType) -> None:
    layer, x = make(family, case), case.input()
    set_noise_(layer, 1e-6)
    want, kl = layer(x), layer.kl_divergence()
    with torch.autocast("cpu", torch.bfloat16):
        y, autocast_kl = layer(x), layer.kl_divergence()
        weight = layer.weight
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), want, atol=0.1, rtol=0.05)
    torch.testing.assert_close(autocast_kl, kl)  # in float32, as without autocast
    torch.testing.assert_close(weight, layer.weight)
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)


GAUSSIANS = [name for name in base.families() if not issubclass(base.pairing(name, nn.Linear), LimitedRank)]


# ---- weights to start from -------------------------------------------------------------------------------------------


@every_layer_type
@pytest.mark.parametrize(
    "inference", [f for f in base.families() if not issubclass(base.pairing(f, nn.Linear), LimitedRank)]
)
def test_gaussians_keep_the_weights_bit_by_bit(inference: str, case: LayerType) -> None:
    plain = case.layer()
    layer = bayesian_from_template(plain, inference)
    if isinstance(layer, ScaledWeights):  # products of factors are rounded
        torch.testing.assert_close(layer.weight, plain.weight, rtol=1e-6, atol=0.0)
    else:
        assert torch.equal(layer.weight, plain.weight)
    assert layer.bias is plain.bias is None or torch.equal(layer.bias, plain.bias)


KEPT = [("diagonal", case) for case in LAYER_TYPES]
KEPT += [(q, case) for q in ("full-unwhitened", "matrix-unwhitened") for case in BASIC]


@pytest.mark.parametrize(("q", "case"), KEPT, ids=[f"{q}-{case.id}" for q, case in KEPT])
def test_inducing_keeps_weights_of_a_rank_it_can_hold(case: LayerType, q: str) -> None:
    for spare in (0, 3):
        plain = case.layer()
        rank = min(plain.weight.shape[0], plain.weight[0].numel() + (plain.bias is not None))
        name, _, unwhitened = q.partition("-")
        options = {"inducing_rows": rank + spare, "inducing_cols": rank + spare, "prior_sd": 0.7, "q_inducing": name}
        layer = bayesian_from_template(plain, "inducing", whitened_u=not unwhitened, **options)
        torch.testing.assert_close(layer.weight, plain.weight, atol=2e-5, rtol=1e-4)
        if plain.bias is not None:
            torch.testing.assert_close(layer.bias, plain.bias, atol=2e-5, rtol=1e-4)


def test_members_start_around_the_projection() -> None:
    plain = nn.Linear(6, 5)
    layer = bayesian_from_template(
        plain, "inducing", q_inducing="ensemble", ensemble_size=400, inducing_rows=5, inducing_cols=5
    )
    members = layer.inducing_mean.detach()
    u = bayesian_from_template(plain, "inducing", inducing_rows=5, inducing_cols=5).inducing_mean.detach()
    spread = members.std(0) / u.square().mean().sqrt()
    assert ((spread > 0.085) & (spread < 0.115)).all()  # a tenth of the size of u; 4 standard errors of 400 members
    torch.testing.assert_close(layer.weight, plain.weight, atol=0.1, rtol=0.0)


def test_a_smaller_inducing_matrix_keeps_the_best_approximation() -> None:
    plain = nn.Conv2d(3, 8, 3).double()
    layer = bayesian_from_template(plain, "inducing", inducing_rows=4, inducing_cols=3)
    W = torch.cat([plain.weight.flatten(1), plain.bias[:, None]], 1).detach()
    B, S, Q = torch.linalg.svd(W, full_matrices=False)
    best = (B[:, :3] * S[:3]) @ Q[:3]
    torch.testing.assert_close(layer.to_matrix(layer.mean_weights()).detach(), best, atol=1e-8, rtol=1e-6)


@few_layer_types
@every_family
def test_init_from_deterministic_params_starts_as_a_conversion_does(family: Family, case: LayerType) -> None:
    layer, plain = make(family, case), case.layer()
    set_noise_(layer, 0.5)
    parameters = dict(layer.named_parameters())
    layer.init_from_deterministic_params({"weight": plain.weight, "bias": plain.bias})
    torch.manual_seed(1)
    fresh = bayesian_from_template(plain, family.inference, **family.options)
    torch.manual_seed(1)
    layer.init_from_deterministic_params(dict(plain.named_parameters()))
    assert all(layer.get_parameter(name) is p for name, p in parameters.items())  # in place: optimisers keep them
    for name, value in fresh.state_dict().items():
        assert torch.equal(layer.state_dict()[name], value), name


@every_family
def test_init_from_deterministic_params_refuses_what_does_not_fit(family: Family) -> None:
    layer = bayesian_from_template(nn.Linear(5, 4), family.inference, **family.options)
    before = copy.deepcopy(layer.state_dict())
    weight, bias = torch.zeros(4, 5), torch.zeros(4)
    wrong: list[dict[str, Tensor | None]] = [
        {"weight": weight},
        {"weight": weight, "bias": None},
        {"bias": bias},
        {"weight": weight.T, "bias": bias},
        {"weight": weight, "bias": bias[:1]},
        {"weight": weight, "bias": torch.zeros(5)},
        {"weight": weight, "bias": bias, "scale": bias},
        {},
    ]
    for params in wrong:
        with pytest.raises(ValueError, match=r"expected .*got"):
            layer.init_from_deterministic_params(params)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    unbiased = bayesian_from_template(nn.Linear(5, 4, bias=False), family.inference, **family.options)
    with pytest.raises(ValueError, match=r"expected .*got"):
        unbiased.init_from_deterministic_params({"weight": weight, "bias": bias})


@few_layer_types
@every_family
def test_reset_parameters_starts_anew_from_torchs_own_start(family: Family, case: LayerType) -> None:
    layer = make(family, case, **family.of_rank(18))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(float("nan"))  # also a diverged layer can be started anew
    torch.manual_seed(3)
    layer.reset_parameters()
    torch.manual_seed(3)
    plain = case.layer()
    if family.options.get("q_inducing") != "ensemble":
        torch.testing.assert_close(layer.weight, plain.weight, atol=1e-5, rtol=1e-4)
    assert all(p.isfinite().all() for p in layer.state_dict().values())
    assert layer.kl_divergence().isfinite()


# ---- nn.Module habits ------------------------------------------------------------------------------------------------


@few_layer_types
@every_family
def test_state_dict_names_and_what_is_trained(family: Family, case: LayerType) -> None:
    layer = make(family, case)
    bias = family.bias if layer.has_bias else set()
    assert set(layer.state_dict()) == family.tensors | bias
    assert {name for name, _ in layer.named_buffers()} == family.buffers
    assert all(p.requires_grad for p in layer.parameters())
    assert not list(layer.children())


@few_layer_types
@every_family
def test_state_dict_round_trip(family: Family, case: LayerType) -> None:
    layer, other, x = make(family, case), make(family, case), case.input()
    with torch.no_grad():
        for tensor in layer.state_dict().values():
            tensor.add_(0.1 * torch.randn_like(tensor))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(other.kl_divergence(), layer.kl_divergence())
    assert torch.equal(other.weight, layer.weight)
    torch.manual_seed(2)
    want = layer(x)
    torch.manual_seed(2)
    assert torch.equal(other(x), want)
    legacy = {"prior_weight_mean": torch.zeros(()), "prior_scale_tril": torch.eye(3)}
    other.load_state_dict(layer.state_dict() | legacy, strict=True)  # the 2020 code's prior buffers are ignored
    with pytest.raises(RuntimeError, match="prior_wait"):
        other.load_state_dict(layer.state_dict() | {"prior_wait": torch.zeros(())})
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({})


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@every_family
def test_copies(family: Family, how: str) -> None:
    for after in ("construction", "forward", "backward"):
        net, x = small_net(family), torch.randn(2, 2, 4, 4)
        if after != "construction":
            y = net(x)
            net[3](net[:3](x))  # and layers on their own
        if after == "backward":
            (y.sum() + sum(m.kl_divergence() for m in net.modules() if hasattr(m, "kl_divergence"))).backward()
        twin = copy.deepcopy(net) if how == "deepcopy" else pickle.loads(pickle.dumps(net))
        assert [type(m) for m in twin.modules()] == [type(m) for m in net.modules()]
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in net.parameters()}
        for (name, a), b in zip(net.state_dict().items(), twin.state_dict().values(), strict=True):
            assert torch.equal(a, b), name
        with bnn.frozen_draw(net, 5):
            want = net(x)
        with bnn.frozen_draw(twin, 5):
            assert torch.equal(twin(x), want)
        twin(x).sum().backward()


@basic_layer_type
@every_family
def test_gradients_reach_every_parameter(family: Family, case: LayerType) -> None:
    layer, x = make(family, case), case.input()
    set_noise_(layer, 0.1 if family.id != "diagonal-capped" else 0.02)
    outputs = torch.stack([layer(x) for _ in range(40)])  # every member of an ensemble is picked at least once
    outputs.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        moved = parameter.grad != 0
        if name == "_scale_tril":  # only the strict lower part is read
            assert torch.equal(moved.tril(-1), moved), name
            moved = moved[tuple(torch.tril_indices(*moved.shape, -1))]
        assert moved.all(), name


@few_layer_types
@every_family
def test_repr_shows_family_size_and_prior_and_computes_nothing(family: Family, case: LayerType) -> None:
    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(f"repr computed {func}")

    layer = make(family, case)
    with Refuse():
        text = repr(layer)
    assert text.startswith(f"{type(layer).__name__}({case.layer().extra_repr()}, family={family.inference}, ")
    assert "prior_sd=" in text or not any("prior" in name for name in layer.options.names())
    if "z_row" in family.tensors:
        assert f"M={len(layer.z_row)}x{len(layer.z_col)}" in text
    if family.inference == "singular":
        assert f"rank={family.options['rank']}" in text
    if family.id == "diagonal-capped":
        assert f"prior_sd={2 / layer.d_in**0.5:.3g}" in text
        assert "max_lamda=0.03" in text


@few_layer_types
@every_family
def test_functional_call(family: Family, case: LayerType) -> None:
    layer, other, x = make(family, case), make(family, case), case.input()
    before = copy.deepcopy(layer.state_dict())
    torch.manual_seed(4)
    want = other(x)
    torch.manual_seed(4)
    tensors = dict(other.named_parameters()) | dict(other.named_buffers())
    assert torch.equal(functional_call(layer, tensors, (x,)), want)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("after_forward", [False, True])
@every_family
def test_vmap_over_draws(family: Family, after_forward: bool) -> None:
    net, x = small_net(family), torch.randn(2, 2, 4, 4)
    set_noise_(net, 0.3)
    if after_forward:
        net(x)
    state = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    with torch.no_grad():
        outputs = vmap(lambda _: functional_call(net, state, (x,)), randomness="different")(torch.arange(6))
        plain = torch.stack([net(x) for _ in range(6)])
    assert outputs.shape == plain.shape == (6, 2, 3)
    distinct = len({round(float(y.flatten()[0]), 5) for y in outputs})
    assert distinct == 6 or (family.points and distinct > 1)
    ratio = outputs.std(0).mean() / plain.std(0).mean()
    assert 0.2 < ratio < 5  # draws as wide as those of plain calls


@every_family
def test_vmap_over_stacked_networks(family: Family) -> None:
    nets, x = [small_net(family) for _ in range(3)], torch.randn(2, 2, 4, 4)
    for net in nets:
        set_noise_(net, 1e-8)
    parameters, buffers = stack_module_state(nets)

    def run(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        result: Tensor = functional_call(nets[0], (p, b), (x,))
        return result

    got = vmap(run, randomness="different")(parameters, buffers)
    torch.testing.assert_close(got, torch.stack([net(x) for net in nets]), atol=1e-5, rtol=1e-4)
    gradients = vmap(grad(lambda p, b: run(p, b).square().sum()), randomness="different")(parameters, buffers)
    assert all(g.isfinite().all() for g in gradients.values())
    for i, net in enumerate(nets):
        want = torch.autograd.grad(net(x).square().sum(), net[3]._parameters[next(iter(net[3]._parameters))])[0]
        name = f"3.{next(iter(net[3]._parameters))}"
        torch.testing.assert_close(gradients[name][i], want, atol=1e-3, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, in dynamo
@pytest.mark.parametrize(
    "family",
    [f if f.id in ("ffg", "ensemble") else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES],
    ids=ids(FAMILIES),
)
def test_compile_without_a_graph_break(family: Family) -> None:
    torch._dynamo.reset()
    net, x = small_net(family), torch.randn(2, 2, 4, 4)
    set_noise_(net, 0.3)
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    first = compiled(x)
    first.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    with torch.no_grad():
        outputs = torch.stack([compiled(x) for _ in range(8)])
    assert (outputs.std(0) > 0).all()
    set_noise_(net, 1e-8)
    torch.testing.assert_close(compiled(x), net(x), atol=1e-5, rtol=1e-4)
    torch._dynamo.reset()


@pytest.mark.parametrize("family", MAIN, ids=ids(MAIN))
@basic_layer_type
def test_meta_device(family: Family, case: LayerType) -> None:
    layer = bayesian_from_template(case.layer(device="meta"), family.inference, **family.options)
    assert {t.device.type for t in layer.state_dict().values()} == {"meta"}
    assert layer(torch.empty(case.input_shape, device="meta")).shape == case.layer()(case.input()).shape
    repr(layer)


# ---- constructors and definitions ------------------------------------------------------------------------------------


@few_layer_types
@every_family
def test_constructors_take_torchs_arguments_plus_the_options(family: Family, case: LayerType) -> None:
    cls = type(make(family, case))
    assert getattr(bnn.nn, cls.__name__) is cls
    torch.manual_seed(6)
    layer = cls(*case.args, **case.kwargs, dtype=torch.double, **family.options)
    torch.manual_seed(6)
    plain = case.layer(dtype=torch.double)
    want = bayesian_from_template(plain, family.inference, **family.options)
    assert isinstance(layer, case.plain)
    assert repr(layer) == repr(want)
    for name, value in want.state_dict().items():
        assert torch.equal(layer.state_dict()[name], value), name
    torch.testing.assert_close(layer.eval()(case.input().double()).shape, plain(case.input().double()).shape)
    with pytest.raises(TypeError, match=r"prior_sdd.*options of.*are \["):
        cls(*case.args, **case.kwargs, **family.options, prior_sdd=1.0)


def test_every_pairing_has_its_name() -> None:
    for (family, plain), cls in base.PAIRINGS.known.items():
        assert cls.__name__.lower() == f"{family}{plain.__name__}".lower()
        assert getattr(bnn.nn, cls.__name__) is cls
        layer = bayesian_from_template(plain(*(2, 2) if plain is nn.Linear else (2, 2, 1)), family)
        assert type(layer) is cls
    fixed = [f + t for f in ("FFG", "FCG", "Inducing", "InducingDeterministic") for t in ("Linear", "Conv1d", "Conv3d")]
    assert all(hasattr(bnn.nn, name) for name in fixed)
    assert not hasattr(bnn.nn, "Linear")  # only pairings, not what they are made of


def test_the_template_is_left_alone_and_names_ignore_case() -> None:
    plain = nn.Linear(3, 2).eval()
    weight = plain.weight
    layer = bayesian_from_template(plain, "InDuCiNg", inducing_rows=1)
    assert type(plain) is nn.Linear
    assert plain.weight is weight
    assert type(layer) is bnn.nn.InducingLinear
    assert not layer.training
    with pytest.raises(KeyError, match=r"unknown inference 'fgg'; expected one of \[.*'fcg', 'ffg', 'inducing'"):
        bayesian_from_template(plain, "fgg")
    with pytest.raises(KeyError, match=r"'ffg' does not cover Embedding; it covers"):
        bayesian_from_template(nn.Embedding(3, 2), "ffg")
    with pytest.raises(KeyError, match="does not cover FFGLinear"):
        bayesian_from_template(bayesian_from_template(plain, "ffg"), "ffg")
    with pytest.raises(TypeError, match=r"unknown option 'prior_sdd' \(did you mean 'prior_sd'\?\).*inducing_rows"):
        bayesian_from_template(plain, "inducing", prior_sdd=1)


def test_a_duplicate_or_incomplete_pairing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from bnn.nn.families.ffg import FFG
    from bnn.nn.layers.linear import Linear

    monkeypatch.setattr(base.PAIRINGS, "known", dict(base.PAIRINGS.known))
    known = dict(base.PAIRINGS.known)
    with pytest.raises(TypeError, match="'ffg' on Linear is FFGLinear already; Again needs another name"):
        type("Again", (FFG, Linear), {})
    with pytest.raises(TypeError, match=r"Half joins 'half' and Linear but leaves \['options_type', 'start'"):
        type("Half", (Linear,), {"family": "half"})
    with pytest.raises(
        TypeError, match=r"NoRun joins 'ffg' and Bilinear but leaves \['run', 'to_matrix', 'from_matrix'\]"
    ):
        type("NoRun", (FFG, nn.Bilinear), {"plain": nn.Bilinear})
    assert known == base.PAIRINGS.known
    type("Mine", (FFG, Linear), {"family": "mine"})
    assert bayesian_from_template(nn.Linear(2, 2), "mine").family == "mine"
    assert "mine" in base.families()
    assert issubclass(base.pairing("mine", nn.Linear), BayesianLayer)


def test_the_kl_is_a_sum_over_layers() -> None:
    for family in FAMILIES:
        net = small_net(family)
        layers = [net.get_submodule(name) for name in bayesian(net)]
        assert len(layers) == 2
        for layer in layers:
            parts = layer.kl_parts()
            assert torch.equal(layer.kl_divergence(), parts.u + parts.lamda)
            assert torch.equal(layer.parameter_loss(), layer.kl_divergence())
            assert layer.kl_divergence().shape == ()
