"""Split kernels: exact covariances against a dense split W in every way of drawing, and what else depends on W."""

from __future__ import annotations

import copy
import math
import pathlib
from typing import Any

import pytest
import torch
from helpers import CONV1D, CONV2D, CONV3D, SIZES, LayerType, ids, set_noise_
from test_ways import (
    EXACT,
    LAMDA,
    SIGMA,
    by_hand,
    expected_covariance,
    folded_output,
    forced_draw,
    inducing,
    offered,
    sides,
    taken_apart,
)
from torch import Tensor, nn

import bnn
from bnn._engine.fold import in_one_pass
from bnn.bayesianize import bayesian_from_template
from bnn.functional.cost import Way
from bnn.functional.kernels import matrix_shape
from bnn.nn.base import Weights
from bnn.nn.layers import split as split_layers

assert offered  # a fixture
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch's own


def _case(id: str, plain: type[nn.Module], *args: Any, x: tuple[int, ...], **kwargs: Any) -> LayerType:
    return LayerType(id, plain, args, kwargs, x)


MORE = [  # beside those of all layers: every mode of padding and "same" with a bias, strides and dilations of w
    _case("stride", nn.Conv2d, 2, 3, 3, stride=(2, 3), padding=(1, 2), x=(2, 2, 5, 6)),
    _case("dilation", nn.Conv2d, 2, 2, (2, 5), stride=2, padding=(1, 3), dilation=(1, 2), x=(2, 2, 4, 9)),
    _case("circular", nn.Conv2d, 2, 3, 3, padding=(1, 2), padding_mode="circular", x=(2, 2, 4, 5)),
    _case("reflect", nn.Conv2d, 2, 3, (2, 3), stride=(1, 2), padding=1, padding_mode="reflect", x=(2, 2, 4, 5)),
    _case("replicate", nn.Conv2d, 2, 3, 3, padding=2, dilation=(1, 2), padding_mode="replicate", x=(2, 2, 4, 5)),
    _case("same", nn.Conv2d, 2, 3, (4, 3), padding="same", dilation=2, x=(2, 2, 4, 5)),
    _case("same-even", nn.Conv2d, 4, 3, (3, 4), padding="same", x=(1, 4, 3, 4)),
    _case("same-reflect", nn.Conv2d, 2, 3, (2, 4), padding="same", padding_mode="reflect", x=(2, 2, 4, 5)),
    _case("same-circular-1d", nn.Conv1d, 2, 3, 4, padding="same", padding_mode="circular", x=(2, 2, 5)),
    _case("stride-1d", nn.Conv1d, 3, 4, 3, stride=2, padding=1, x=(2, 3, 7)),
    _case("stride-3d", nn.Conv3d, 2, 2, (2, 2, 3), stride=(2, 1, 2), padding=(0, 1, 1), x=(2, 2, 4, 3, 4)),
    _case("dilation-3d", nn.Conv3d, 2, 2, (2, 2, 3), dilation=(1, 2, 1), padding=(0, 1, 1), x=(1, 2, 3, 4, 4)),
]
ALL = [case for case in CONV1D + CONV2D + CONV3D + MORE if case.layer().kernel_size[-1] > 1]  # type: ignore[index]
ALL = [case for case in ALL if math.prod(case.input_shape)]
CASES = [case for case in ALL if case.layer().groups == 1]
GROUPED = [case for case in ALL if case.layer().groups > 1]  # type: ignore[operator]
SOME = [case for case in CASES if case.id in ("conv1d-same", "stride", "reflect", "conv3d-unbatched")]
SMOOTH = [  # few rows of many entries, so that no Gram matrix is singular
    _case("1d", nn.Conv1d, 9, 3, 2, x=(2, 9, 4)),
    _case("2d", nn.Conv2d, 6, 3, (2, 3), stride=(1, 2), x=(1, 6, 2, 5)),
    _case("3d-no-bias", nn.Conv3d, 6, 2, 2, bias=False, padding=(0, 0, 1), x=(1, 6, 2, 2, 3)),
]
WAYS = [Way.DENSE, Way.JOINT, Way.JOINT_WITHOUT_COLUMNS, Way.PER_ROW, Way.PER_ROW_WITHOUT_COLUMNS]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.value)
some_cases = pytest.mark.parametrize("case", SOME, ids=ids(SOME))


def split(case: LayerType, sizes: tuple[int, int] = (2, 3), **options: Any) -> Any:
    return inducing(case, sizes, **({"kernel": "split"} | options))


@every_way
@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_mean_and_covariance(case: LayerType, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """All inputs, positions and channels together, against a dense Gaussian over the split matrix."""
    layer, x = split(case), case.input().double()
    mean, slopes = taken_apart(layer, x, way, monkeypatch)
    torch.testing.assert_close(slopes.T @ slopes, expected_covariance(case, layer, x, way), **EXACT)
    A_r, A_c, _, _ = sides(layer)
    torch.testing.assert_close(mean, by_hand(case, SIGMA * A_r.T @ layer.inducing_mean @ A_c, x), **EXACT)
    plain: Any = case.layer().double()
    plain.weight.data = layer.weight
    if layer.has_bias:
        plain.bias.data = layer.bias
    torch.testing.assert_close(mean, plain(x), **EXACT)


@every_way
@some_cases
@pytest.mark.parametrize(
    ("sizes", "whitened"), [((20, 25), True), ((2, 3), False), ((20, 25), False)], ids=["M>d", "unwhitened", "both"]
)
def test_covariance_for_other_sizes(
    case: LayerType, sizes: tuple[int, int], whitened: bool, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = split(case, sizes, whitened_u=whitened), case.input().double()
    _, slopes = taken_apart(layer, x, way, monkeypatch)
    torch.testing.assert_close(slopes.T @ slopes, expected_covariance(case, layer, x, way), **EXACT)


@every_way
@pytest.mark.parametrize("case", GROUPED, ids=ids(GROUPED))
def test_groups_run_dense(case: LayerType, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = split(case), case.input().double()
    _, slopes = taken_apart(layer, x, way, monkeypatch)
    torch.testing.assert_close(slopes.T @ slopes, expected_covariance(case, layer, x, Way.DENSE), **EXACT)


@pytest.mark.parametrize("case", ALL, ids=ids(ALL))
def test_lamda_0_is_one_function_however_it_is_drawn(case: LayerType) -> None:
    layer, x = split(case, max_lamda=0, sampling="weight"), case.input().double()
    dense = folded_output(layer, x, Way.DENSE)
    assert dense.std(0).max() > 0.01
    for way in WAYS:
        torch.testing.assert_close(folded_output(layer, x, way), dense, **EXACT)


@every_way
@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_convolutions_and_products_of_matrices_agree(
    case: LayerType, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 1 x kw convolution of K draws, with inputs of their own, is either."""
    layer, x = inducing(case, kernel="split"), torch.randn(3, *case.input_shape).double()
    outputs = []
    for limit in (0, 2**30):
        monkeypatch.setattr(split_layers, "SMALL_PRODUCT", limit)
        outputs.append(in_one_pass(layer, x, forced_draw(layer, way, 3), dims=0))
    torch.testing.assert_close(*outputs, **EXACT)


@every_way
@some_cases
@pytest.mark.parametrize("lamda", [0.0, LAMDA])
def test_inputs_of_their_own_for_every_draw(case: LayerType, way: Way, lamda: float) -> None:
    layer, x = split(case, max_lamda=lamda), torch.randn(3, *case.input_shape).double()
    together = in_one_pass(layer, x, forced_draw(layer, way, 3), dims=0)
    for k in range(3):
        torch.testing.assert_close(together[k], folded_output(layer, x[k], way)[k], **EXACT)


@pytest.mark.parametrize("lamda", [0.0, LAMDA])
@pytest.mark.parametrize("bias", [False, True])
@every_way
def test_channels_last_changes_the_layout_alone(way: Way, bias: bool, lamda: float) -> None:
    case = _case("wide", nn.Conv2d, 9, 10, 3, padding=1, bias=bias, x=(2, 9, 5, 6))
    layer, x = split(case, max_lamda=lamda), case.input().double()
    for count in (1, 3):
        here = folded_output(layer, x, way, count)
        there = folded_output(layer, x.contiguous(memory_format=torch.channels_last), way, count)
        torch.testing.assert_close(there, here, **EXACT)


@every_way
@pytest.mark.parametrize("case", SMOOTH, ids=ids(SMOOTH))
def test_gradients(case: LayerType, way: Way) -> None:
    """By finite differences, through all parameters and the input, with the noise of named draws."""
    layer, x = split(case, (2, 8)), case.input().double().requires_grad_()
    names = [name for name, _ in layer.named_parameters()]
    mix = torch.randn_like(folded_output(layer, x, way, 2).detach())

    def loss(x: Tensor, *values: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(layer, dict(zip(names, values, strict=True))):
            return (folded_output(layer, x, way, 2) * mix).sum()

    values = [value.detach().clone().requires_grad_() for value in layer.parameters()]
    assert torch.autograd.gradcheck(loss, (x, *values), atol=1e-4, rtol=1e-4, fast_mode=True)


def test_ways_on_offer(offered: list[list[Way]]) -> None:
    x = torch.randn(2, 2, 4, 4)
    for sampling, count in (("local", 5), ("auto", 3), ("weight", 1)):
        net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh())
        bnn.bayesianize_(net, "inducing", sampling=sampling, kernel="split", init_lamda=0.1, **SIZES)
        offered.clear()
        bnn.predict(net, x, samples=3)
        assert {frozenset(ways) for ways in offered} == {frozenset(WAYS[:count])}


# ---- sizes, counts, the KL -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["inducing", "inducingdeterministic"])
@pytest.mark.parametrize("bias", [False, True])
def test_shapes_and_parameters(family: str, bias: bool) -> None:
    layer: Any = bayesian_from_template(
        nn.Conv2d(8, 6, (3, 5), groups=2, bias=bias), family, kernel="split", inducing_rows=7, inducing_cols=4
    )
    assert layer.z_row.shape == (7, 6 * 5)
    assert layer.z_col.shape == (4, 4 * 3 + bias)
    expected = 7 * 30 + 4 * (12 + bias) + 2 * 28 + 7 + 4 + (family == "inducing")
    assert bnn.parameter_count(layer) == expected
    plain = nn.Conv2d(8, 6, (3, 5), groups=2, bias=bias)
    weights = Weights(plain.weight, plain.bias)
    assert type(layer).parameters_for(weights, layer.options, 7, 4) == expected


@pytest.mark.parametrize("kernel", ["paper", "split"])
@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
@pytest.mark.parametrize("learn", [True, False])
def test_parameters_for_sizes(kernel: str, q: str, learn: bool) -> None:
    plain = nn.Conv2d(4, 3, 3)
    options: dict[str, Any] = {"kernel": kernel, "q_inducing": q, "learn_lamda": learn}
    layer: Any = bayesian_from_template(plain, "inducing", inducing_rows=2, inducing_cols=3, **options)
    count = type(layer).parameters_for(Weights(plain.weight, plain.bias), layer.options, 2, 3)
    assert count == bnn.parameter_count(layer)


@pytest.mark.parametrize("bias", [False, True])
def test_the_prior_and_the_kl_are_of_the_layers_weights(bias: bool) -> None:
    """The same fan-in and the same number of weights as with the paper's matrix."""
    plain = nn.Conv2d(4, 6, 3, bias=bias)
    made: list[Any] = [
        bayesian_from_template(plain, "inducing", kernel=kernel, sqrt_width_scaling=True, init_lamda=0.2, **SIZES)
        for kernel in ("paper", "split")
    ]
    paper, layer = made
    assert layer.prior_sd() == paper.prior_sd() == 1 / math.sqrt(4 * 9 + bias)
    torch.testing.assert_close(layer.kl_parts().lamda, paper.kl_parts().lamda)
    n, lamda = 6 * 36 + 6 * bias, 0.2
    torch.testing.assert_close(
        layer.kl_parts().lamda, torch.tensor(n * (lamda**2 / 2 - math.log(lamda) - 0.5)), rtol=1e-4, atol=0
    )


# ---- starts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ALL, ids=ids(ALL))
def test_trained_weights_are_kept(case: LayerType) -> None:
    """With as many inducing rows and columns as W has, entirely; with fewer, the best approximation of the matrix."""
    plain: Any = case.layer().double()
    o, *columns, kw = plain.weight.shape
    rank = min(o * kw, math.prod(columns) + (plain.bias is not None))
    layer: Any = bayesian_from_template(
        plain, "inducing", kernel="split", inducing_rows=rank, inducing_cols=rank, sqrt_width_scaling=True
    )
    torch.testing.assert_close(layer.weight, plain.weight, rtol=1e-5, atol=1e-6)
    if plain.bias is not None:
        torch.testing.assert_close(layer.bias, plain.bias, rtol=1e-5, atol=1e-6)
    small: Any = bayesian_from_template(plain, "inducing", kernel="split", inducing_rows=2, inducing_cols=2)
    W = torch.einsum("oib->obi", plain.weight.reshape(o, -1, kw)).reshape(o * kw, -1)
    if plain.bias is None:
        B, S, Q = torch.linalg.svd(W)
        best = (B[:, :2] * S[:2]) @ Q[:2]
        mean = small.weight.reshape(o, -1, kw).movedim(-1, 1).reshape(o * kw, -1)
        torch.testing.assert_close(mean, best, rtol=1e-5, atol=1e-6)


def test_starting_anew_and_the_papers_start() -> None:
    layer: Any = bnn.nn.InducingConv2d(4, 3, 3, kernel="split", init="paper", inducing_rows=3, inducing_cols=2)
    assert layer.z_row.shape == (3, 9)
    layer = bnn.nn.InducingConv2d(4, 3, 3, kernel="split", inducing_rows=9, inducing_cols=13)
    fresh = nn.Conv2d(4, 3, 3)
    layer.init_from_deterministic_params(fresh.state_dict())
    torch.testing.assert_close(layer.weight, fresh.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.bias, fresh.bias, rtol=1e-4, atol=1e-5)
    layer.reset_parameters()
    assert not torch.allclose(layer.weight, fresh.weight)


# ---- the option ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "kernels"),
    [
        (nn.Conv2d(64, 64, 3), {"paper": "paper", "split": "split", "auto": "split"}),
        (nn.Conv2d(3, 16, 3), {"paper": "paper", "split": "split", "auto": "paper"}),
        (nn.Conv2d(16, 8, 1), {"paper": "paper", "split": "paper", "auto": "paper"}),
        (nn.Linear(16, 8), {"paper": "paper", "split": "paper", "auto": "paper"}),
        (nn.Conv1d(16, 8, 3), {"paper": "paper", "split": "split", "auto": "split"}),
        (nn.Conv3d(4, 8, 3), {"paper": "paper", "split": "split", "auto": "split"}),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else None,
)
def test_what_is_stored_says_which(plain: nn.Module, kernels: dict[str, str]) -> None:
    for asked, stored in kernels.items():
        net = nn.Sequential(copy.deepcopy(plain))
        bnn.bayesianize_(net, "inducing", kernel=asked, inducing_rows=2, inducing_cols=2)
        layers: list[Any] = [net[0], bayesian_from_template(plain, "inducing", kernel=asked, **SIZES)]
        for layer in layers:
            assert layer.options.kernel == stored
            assert ("kernel=split" in repr(layer)) == (stored == "split")


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown kernel 'spilt'; expected one of \['paper', 'split', 'auto'\]"):
        bnn.bayesianize_(nn.Sequential(nn.Conv2d(2, 3, 3)), "inducing", kernel="spilt")


def test_a_methods_sizes_are_at_most_the_rank_of_the_split_matrix() -> None:
    """(48 x 10) instead of (16 x 28); the prior follows from the layer's own inputs."""
    plain = nn.Conv2d(3, 16, 3)
    made: Any = bayesian_from_template(plain, "ffg-u", kernel="split")
    assert (made.z_row.shape, made.z_col.shape) == ((10, 48), (10, 10))
    assert made.options.prior_sd == 1.0
    wide: Any = bayesian_from_template(nn.Conv2d(16, 16, 3), "ffg-u", kernel="split")
    assert wide.z_row.shape == (16, 48)
    assert wide.prior_sd() == pytest.approx(8 / math.sqrt(145))
    rows, cols = matrix_shape((16, 16, 3, 3), True, "split")
    assert bnn.methods()["ffg-u"].parameters(rows, cols) == bnn.parameter_count(wide)


# ---- whole networks --------------------------------------------------------------------------------------------------


def plain_network() -> nn.Sequential:
    second = nn.Conv2d(9, 8, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(nn.Conv2d(2, 9, 3, padding=1), nn.ReLU(), second, nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))


def network(**options: Any) -> nn.Sequential:
    net = plain_network()
    bnn.bayesianize_(net, "inducing", **({"kernel": "split", "inducing_rows": 4, "inducing_cols": 4} | options))
    set_noise_(net, 0.2)
    return net


@pytest.mark.parametrize("kernel", ["split", "auto"])
def test_files(kernel: str, tmp_path: pathlib.Path) -> None:
    net, x = network(kernel=kernel), torch.randn(2, 2, 4, 4)
    bnn.save(net, tmp_path / "net.safetensors")
    other = plain_network()
    bnn.load_(other, tmp_path / "net.safetensors")
    assert [m.options for m in other if hasattr(m, "options")] == [m.options for m in net if hasattr(m, "options")]
    with bnn.frozen_draw(net, 3), bnn.frozen_draw(other, 3):
        torch.testing.assert_close(net(x), other(x), rtol=0, atol=0)
    torch.testing.assert_close(bnn.kl_divergence(net), bnn.kl_divergence(other), rtol=0, atol=0)


@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
def test_predictions_have_the_moments_of_whole_weights(sampling: str) -> None:
    """20,000 draws of the first two layers; the mean and the sd of every output within five standard errors."""
    net, x = network(sampling=sampling)[:3].double(), torch.randn(2, 2, 4, 4).double()
    exact = copy.deepcopy(net)
    bnn.set_sampling_(exact, "weight")
    with torch.no_grad():
        some, whole = (bnn.draws(one, x, samples=20_000).flatten(1) for one in (net, exact))
    error = ((some.var(0) + whole.var(0)) / 20_000).sqrt()
    assert ((some.mean(0) - whole.mean(0)) / error).abs().max() < 5
    if sampling != "local":
        torch.testing.assert_close(some.std(0), whole.std(0), rtol=0.06, atol=0)


def test_a_frozen_draw_is_one_function_with_its_gradient() -> None:
    net, x = network(), torch.randn(2, 2, 4, 4)
    with bnn.frozen_draw(net, 0):
        together = net(x)
        torch.testing.assert_close(torch.cat([net(x[:1]), net(x[1:])]), together, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(net(x), together)


def test_the_mean_is_a_plain_network() -> None:
    net, x = network(), torch.randn(2, 2, 4, 4)
    plain = plain_network()
    for one, other in zip(plain, net, strict=True):
        if hasattr(other, "options"):
            one.weight.data = other.weight.detach()  # type: ignore[union-attr]
            if one.bias is not None:
                one.bias.data = other.bias.detach()  # type: ignore[union-attr]
    torch.testing.assert_close(bnn.draws(net, x, samples=0)[0], plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sampling", ["auto", "local"])
def test_training_reaches_all_parameters(sampling: str) -> None:
    net, x = network(sampling=sampling), torch.randn(3, 2, 4, 4)
    elbo = bnn.ELBO(net, 3, bnn.likelihoods.Categorical(), samples=2)
    elbo(x, torch.tensor([0, 1, 2])).loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name


def test_global_inducing_weights(tmp_path: pathlib.Path) -> None:
    net, x = network(), torch.randn(2, 2, 4, 4)
    handle = bnn.register_global_inducing_weights_(net, inducing_rows=3, inducing_cols=3)
    assert bnn.draws(net, x, samples=3).shape == (3, 2, 3)
    bnn.kl_divergence(net).backward()
    handle.remove()
    assert net[0].options.kernel == "split"
    mixed = network(inducing_cols=4, kernel="auto")
    assert [m.options.kernel for m in mixed if hasattr(m, "options")] == ["paper", "split", "paper"]
    bnn.register_global_inducing_weights_(mixed, inducing_rows=3, inducing_cols=3)
    assert bnn.draws(mixed, x, samples=2).shape == (2, 2, 3)


def test_a_compiled_network_agrees() -> None:
    net, x = network(max_lamda=0).eval(), torch.randn(2, 2, 4, 4)
    with torch.no_grad(), bnn.frozen_draw(net, 1):
        torch.testing.assert_close(torch.compile(net, backend="eager")(x), net(x), rtol=1e-4, atol=1e-5)
