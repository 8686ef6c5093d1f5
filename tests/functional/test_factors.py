"""The factors and scales of all layers at once, against `factor` and `positive` one by one, through autograd."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from helpers import FAMILIES, Family, ids, set_noise_, small_net, softplus_inverse
from torch import Tensor, nn
from torch.nn.utils import prune

import bnn
from bnn.functional.factors import factor_together, positive_together
from bnn.functional.inducing import Factors, factor
from bnn.functional.linalg import FactorisationError, NumericalWarning, positive
from bnn.nn.families import inducing

EXACT = {"rtol": 1e-9, "atol": 1e-10}
# (M_out, d_out, M_in, d_in): M below, at and above d, the same M at several widths, one layer alone with its M
LAYERS = [(3, 5, 4, 9), (3, 3, 4, 4), (4, 2, 3, 1), (1, 6, 4, 7), (2, 2, 7, 5)]
Sides = tuple[Tensor, Tensor, Tensor, Tensor]
INDUCING = [family for family in FAMILIES if family.inference.startswith("inducing")]


def side(m: int, d: int, dtype: torch.dtype = torch.double, sd: float = 0.3) -> tuple[Tensor, Tensor]:
    z = 0.6 * torch.randn(m, d, dtype=torch.double)
    raw = softplus_inverse(sd) + 0.5 * torch.randn(m, dtype=torch.double)
    return z.to(dtype).requires_grad_(), raw.to(dtype).requires_grad_()


def make(sizes: Sequence[tuple[int, int, int, int]] = LAYERS, **options: Any) -> list[Sides]:
    return [(*side(m_out, d_out, **options), *side(m_in, d_in, **options)) for m_out, d_out, m_in, d_in in sizes]


def one_by_one(layers: list[Sides]) -> list[tuple[Factors, Factors]]:
    return [(factor(z_row, positive(d_row)), factor(z_col, positive(d_col))) for z_row, d_row, z_col, d_col in layers]


def leaves(layers: list[Sides]) -> list[Tensor]:
    return [tensor for layer in layers for tensor in layer]


def outputs(factors: list[tuple[Factors, Factors]], names: Sequence[str] = Factors._fields) -> list[Tensor]:
    return [getattr(own, name) for pair in factors for own in pair for name in names]


def gradients(values: list[Tensor], layers: list[Sides], weights: list[Tensor]) -> list[Tensor]:
    """Of a weighted sum; 0 for what it does not depend on."""
    loss = torch.stack([(value * weight).sum() for value, weight in zip(values, weights, strict=True)]).sum()
    found = torch.autograd.grad(loss, leaves(layers), allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves(layers), found, strict=True)]


# ---- factors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sd", [1.0, 0.3, 1e-2])
def test_values(sd: float) -> None:
    layers = make(sd=sd)
    together = factor_together(layers)
    assert len(together) == len(layers)
    for got, want in zip(outputs(together), outputs(one_by_one(layers)), strict=True):
        torch.testing.assert_close(got, want, **EXACT)
    assert torch.equal(together[0][0].L, together[0][0].L.tril())


@pytest.mark.parametrize(
    "names", [*itertools.combinations(Factors._fields, 1), ("A", "G"), ("R", "L"), Factors._fields]
)
def test_gradients(names: tuple[str, ...]) -> None:
    """Of any of the factors; nobody asks for the others."""
    layers = make()
    together, alone = outputs(factor_together(layers), names), outputs(one_by_one(layers), names)
    weights = [torch.randn_like(value) for value in alone]
    for got, want in zip(gradients(together, layers, weights), gradients(alone, layers, weights), strict=True):
        torch.testing.assert_close(got, want, **EXACT)


@pytest.mark.parametrize("used", range(len(LAYERS)))
def test_gradients_of_one_layer_alone(used: int) -> None:
    layers = make()
    together, alone = (outputs([factors[used]]) for factors in (factor_together(layers), one_by_one(layers)))
    weights = [torch.randn_like(value) for value in alone]
    for got, want in zip(gradients(together, layers, weights), gradients(alone, layers, weights), strict=True):
        torch.testing.assert_close(got, want, **EXACT)


def test_a_layer_that_is_not_used_has_no_gradient() -> None:
    """None, not zeros: an optimiser leaves it alone, whatever its weight decay and momentum."""
    layers = make([(3, 5, 4, 9), (3, 6, 4, 7)])
    first, _ = factor_together(layers)
    torch.stack([value.sum() for value in outputs([first])]).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.abs().sum() > 0 for leaf in layers[0])
    assert all(leaf.grad is None for leaf in layers[1])


def test_what_does_not_train_gets_no_gradient() -> None:
    layers = make()
    layers[0][0].requires_grad_(False)
    layers[3][3].requires_grad_(False)
    together = outputs(factor_together(layers))
    torch.stack([value.square().sum() for value in together]).sum().backward()
    assert layers[0][0].grad is None
    assert layers[3][3].grad is None
    alone = outputs(one_by_one(layers))
    trained = [leaf for leaf in leaves(layers) if leaf.requires_grad]
    want = torch.autograd.grad(torch.stack([value.square().sum() for value in alone]).sum(), trained)
    for leaf, grad in zip(trained, want, strict=True):
        torch.testing.assert_close(leaf.grad, grad, **EXACT)


SOME = [(2, 3, 3, 2), (3, 4, 2, 2)]


def flat_function(sizes: list[tuple[int, int, int, int]]) -> Callable[..., tuple[Tensor, ...]]:
    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        groups = [tensors[i : i + 4] for i in range(0, len(tensors), 4)]
        return tuple(outputs(factor_together(groups)))  # type: ignore[arg-type]

    return run


def test_first_and_second_derivatives_by_finite_differences() -> None:
    tensors = leaves(make(SOME))
    assert torch.autograd.gradcheck(flat_function(SOME), tensors)
    assert torch.autograd.gradgradcheck(flat_function(SOME), tensors)


def test_a_gradient_may_be_differentiated_and_is_the_same() -> None:
    layers = make()
    grads = []
    for create in (False, True):
        loss = torch.stack([value.sin().sum() for value in outputs(factor_together(layers))]).sum()
        grads.append(torch.autograd.grad(loss, leaves(layers), create_graph=create))
    for one, other in zip(*grads, strict=True):
        assert not one.requires_grad
        assert other.requires_grad
        torch.testing.assert_close(one, other.detach(), **EXACT)


def test_a_graph_may_be_kept_and_used_again() -> None:
    layers = make()
    loss = torch.stack([value.square().sum() for value in outputs(factor_together(layers))]).sum()
    first = torch.autograd.grad(loss, leaves(layers), retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, leaves(layers))))


# ---- precisions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [LAYERS, [(16, 64, 60, 64)], [(60, 64, 64, 64), (60, 200, 64, 30)]], ids=str)
def test_float32_is_as_accurate_as_one_by_one(sizes: list[tuple[int, int, int, int]]) -> None:
    """Against float64, of the same numbers; D is small, so that Psi is nearly singular where M is near d."""
    single = make(sizes, dtype=torch.float32, sd=1e-3)
    double: list[Sides] = [tuple(t.detach().double().requires_grad_() for t in layer) for layer in single]  # type: ignore[misc]
    truth = outputs(one_by_one(double))
    weights = [torch.randn_like(value) for value in truth]
    exact = gradients(truth, double, weights)
    errors = []
    for factors in (factor_together(single), one_by_one(single)):
        values = outputs(factors)
        assert all(value.dtype == torch.float32 for value in values)
        grads = gradients(values, single, [weight.float() for weight in weights])
        errors.append([relative(got, want) for got, want in zip([*values, *grads], [*truth, *exact], strict=True)])
    together, alone = errors
    assert max(together[: len(truth)]) < max(1e-5, 4 * max(alone[: len(truth)]))
    assert max(together[len(truth) :]) < max(1e-4, 4 * max(alone[len(truth) :]))


def relative(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want).norm() / want.norm().clamp(min=1e-12)).item()


def test_a_side_that_needs_float64_changes_no_type() -> None:
    """M = d beside M < d, in one batch."""
    layers = make([(4, 4, 4, 40), (4, 50, 4, 3)], dtype=torch.float32)
    assert {value.dtype for value in outputs(factor_together(layers))} == {torch.float32}
    torch.stack([value.sum() for value in outputs(factor_together(layers))]).sum().backward()
    assert {leaf.grad.dtype for leaf in leaves(layers)} == {torch.float32}


def test_parameters_in_bfloat16() -> None:
    """Factors are float32, those of the rounded parameters; gradients have the parameters' type."""
    half = make(dtype=torch.bfloat16)
    single: list[Sides] = [tuple(t.detach().float().requires_grad_() for t in layer) for layer in half]  # type: ignore[misc]
    got, want = outputs(factor_together(half)), outputs(factor_together(single))
    weights = [torch.randn_like(value) for value in want]
    for one, other in zip(got, want, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other)
    for one, other in zip(gradients(got, half, weights), gradients(want, single, weights), strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one, other.bfloat16())


def test_autocast_changes_nothing() -> None:
    layers = make(dtype=torch.float32)
    plain = outputs(factor_together(layers))
    weights = [torch.randn_like(value) for value in plain]
    want = gradients(plain, layers, weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = outputs(factor_together(layers))
        grads = gradients(got, layers, weights)
    assert all(map(torch.equal, [*got, *grads], [*plain, *want]))


# ---- where it cannot be done together --------------------------------------------------------------------------------


def spoilt(value: float) -> list[Sides]:
    layers = make()
    with torch.no_grad():
        layers[2][0][0, 0] = value
    return layers


def singular() -> list[Sides]:
    """Equal rows of Z, and a D of 9e-14."""
    layers = make()
    with torch.no_grad():
        layers[1][0].fill_(1)
        layers[1][1].fill_(-100)
    return layers


@pytest.mark.parametrize("layers", [spoilt(torch.nan), spoilt(torch.inf), spoilt(-torch.inf), singular()])
def test_one_bad_psi_leaves_all_to_be_computed_one_by_one(layers: list[Sides]) -> None:
    assert factor_together(layers) == []


def test_no_layers() -> None:
    assert factor_together([]) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_inside_transforms_nothing_is_computed_together() -> None:
    layers, seen = make(), []

    def loss(z: Tensor) -> Tensor:
        seen.append(factor_together([(z, *layers[0][1:])]))
        seen.append(positive_together([z], [1.0]))
        return z.sum()

    z = layers[0][0].detach()
    torch.func.grad(loss)(z)
    torch.func.vmap(loss)(z.expand(2, *z.shape))
    torch.func.jvp(loss, (z,), (z,))
    assert seen
    assert all(found == [] for found in seen)


# ---- scales ----------------------------------------------------------------------------------------------------------

CAPS = [0.1, float("inf"), 3.0, 0.1]


def raws(dtype: torch.dtype = torch.double) -> list[Tensor]:
    """Below, at and beyond both bounds."""
    values = [
        torch.tensor(-2.0),
        torch.linspace(-40, 5, 12).reshape(3, 4),
        torch.linspace(-3, 6, 5),
        torch.tensor([9.0]),
    ]
    return [value.to(dtype).requires_grad_() for value in values]


@pytest.mark.parametrize("sign", [1, -1], ids=["smaller", "larger"])
def test_scales_are_those_one_by_one(sign: int) -> None:
    """Also where a cap or the floor blocks the gradient, for a loss that wants scales smaller, or larger."""
    scales = raws()
    together, alone = positive_together(scales, CAPS), [positive(r, c) for r, c in zip(scales, CAPS, strict=True)]
    for got, want in zip(together, alone, strict=True):
        torch.testing.assert_close(got, want, **EXACT)
    grads = [
        torch.autograd.grad(torch.stack([sign * (1 + value).log().sum() for value in values]).sum(), scales)
        for values in (together, alone)
    ]
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, **EXACT)


def test_scales_that_are_not_used_have_no_gradient() -> None:
    scales = raws()
    positive_together(scales, CAPS)[1].sum().backward()
    assert [scale.grad is None for scale in scales] == [True, False, True, True]


def test_second_derivatives_of_scales() -> None:
    inside = [
        torch.randn(3, dtype=torch.double).requires_grad_(),
        torch.randn(2, 2, dtype=torch.double).requires_grad_(),
    ]
    run = lambda *raws: tuple(positive_together(raws, [9.0, float("inf")]))  # noqa: E731
    assert torch.autograd.gradcheck(run, inside)
    assert torch.autograd.gradgradcheck(run, inside)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scales(dtype: torch.dtype) -> None:
    scales = raws(dtype)
    got = positive_together(scales, CAPS)
    for value, raw, cap in zip(got, scales, CAPS, strict=True):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, positive(raw, cap))
    torch.stack([value.sum() for value in got]).sum().backward()
    assert all(scale.grad.dtype == dtype for scale in scales)


# ---- networks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("family", INDUCING, ids=ids(INDUCING))
def test_a_step_is_that_of_layers_one_by_one(
    family: Family, samples: int, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x, y = small_net(family, sampling=sampling).double(), torch.randn(5, 2, 4, 4).double(), torch.arange(5) % 3
    set_noise_(net, 0.05)
    elbo = bnn.ELBO(net, num_data=5, likelihood="categorical", samples=samples)

    def step() -> tuple[Tensor, dict[str, Tensor | None]]:
        net.zero_grad()
        torch.manual_seed(1)
        loss = elbo(x, y).loss
        loss.backward()
        return loss.detach(), {name: parameter.grad for name, parameter in net.named_parameters()}

    together = step()
    monkeypatch.setattr(inducing, "posteriors_together", lambda network: {})
    torch.testing.assert_close(together, step(), rtol=1e-8, atol=1e-9)
    assert all(grad is not None for grad in together[1].values())


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=3, init_lamda=0.1)
    return net


def train(net: nn.Module) -> Tensor:
    loss: Tensor = bnn.ELBO(net, num_data=5, likelihood="categorical")(torch.randn(5, 4), torch.arange(5) % 3).loss
    return loss


@pytest.mark.parametrize("name", ["Psi_r", "Psi_c"])
@pytest.mark.parametrize("where", [0, 2])
def test_a_parameter_that_diverged_is_named(where: int, name: str) -> None:
    net = network()
    with torch.no_grad():
        (net[where].z_row if name == "Psi_r" else net[where].z_col)[0, 0] = torch.nan
    with pytest.raises(FactorisationError, match=rf"{name} = .* holds .* NaN"):
        train(net)


@pytest.mark.filterwarnings("default::bnn.functional.linalg.NumericalWarning")
def test_a_psi_that_needs_rescuing_is_rescued_and_trains() -> None:
    net = network()
    with torch.no_grad():
        net[2].z_col.fill_(1)
        net[2]._d_col.fill_(-100)
    with pytest.warns(NumericalWarning, match=r"Psi_c = .* was not positive definite"):
        loss = train(net)
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())


def test_a_layer_that_does_not_run_has_no_gradient() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.spare = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    net = Heads()
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=3)
    net(torch.randn(5, 4)).square().sum().backward()
    assert [name for name, p in net.spare.named_parameters() if p.grad is not None] == []
    assert all(p.grad is not None for layer in (net.body, net.head) for p in layer.parameters())


def pruned(net: nn.Sequential) -> None:
    for layer in (net[0], net[2]):
        for name in ("z_row", "z_col", "inducing_mean", "_inducing_sd"):
            prune.l1_unstructured(layer, name, amount=0.3)


def hooked(net: nn.Sequential) -> None:
    """A user's own hook, which writes into the parameters when the layer runs."""

    def halve(module: Any, args: Any) -> None:
        with torch.no_grad():
            module._d_col.sub_(0.5)

    net[2].register_forward_pre_hook(halve)


@pytest.mark.parametrize("change", [pruned, hooked])
def test_layers_train_on_their_present_parameters(
    change: Callable[[nn.Sequential], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where these follow from others when the layer itself runs: several steps, against layers one by one."""
    losses = []
    for _ in range(2):
        torch.manual_seed(2)
        net = network().double()
        change(net)
        elbo = bnn.ELBO(net, num_data=5, likelihood="categorical")
        optimiser = torch.optim.SGD(net.parameters(), lr=0.3)
        x, y, seen = torch.randn(5, 4).double(), torch.arange(5) % 3, []
        for _ in range(4):
            optimiser.zero_grad()
            seen.append(elbo(x, y))
            seen[-1].loss.backward()
            optimiser.step()
        losses.append([out.data.item() for out in seen])
        monkeypatch.setattr(inducing, "posteriors_together", lambda network: {})
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert len(set(losses[0])) == 4


def test_layers_of_several_types() -> None:
    """A network whose last layer is float64."""

    class Mixed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[2](self[1](self[0](x)).double())

    net = Mixed(*network())
    net[2].double()
    loss = train(net)
    loss.backward()
    assert loss.dtype == torch.double
    assert {p.grad.dtype for p in net[0].parameters()} == {torch.float32}
    assert {p.grad.dtype for p in net[2].parameters()} == {torch.double}
    bnn.draws(net, torch.randn(5, 4), samples=2).sum().backward()


def test_hessians_of_a_network() -> None:
    """Products with the Hessian, against finite differences of the gradient."""
    net = network().double()
    x, leaf = torch.randn(3, 4).double(), net[0].z_row
    direction = torch.randn_like(leaf)

    def gradient(create: bool) -> Tensor:
        with bnn.frozen_draw(net, 1):
            return torch.autograd.grad(net(x).square().sum(), leaf, create_graph=create)[0]

    (product,) = torch.autograd.grad((gradient(True) * direction).sum(), leaf)
    step = 1e-6
    with torch.no_grad():
        leaf.add_(step * direction)
    above = gradient(False)
    with torch.no_grad():
        leaf.sub_(2 * step * direction)
    torch.testing.assert_close(product, (above - gradient(False)) / (2 * step), rtol=1e-5, atol=1e-6)
