"""Inputs at the edge: no inputs at all, inputs whose squares overflow or vanish, NaN and infinity in one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_nets import BY_ID, converted
from helpers import FAMILIES, MAIN, Family, ids
from torch import Tensor, nn

import bnn

every_family = pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))
every_sampling = pytest.mark.parametrize("sampling", ["auto", "weight", "local"])

# ---- no inputs -------------------------------------------------------------------------------------------------------

EMPTY: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (0, 6)),
    "sequences": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)), (0, 4, 6)),
    "empty sequences": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (2, 0, 6)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Conv1d(3, 3, 2)), (0, 2, 7)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1)), (0, 2, 5, 5)),
    "image to class": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(36, 3)), (0, 2, 5, 5)),
}
PAIRS = [(name, family) for name in EMPTY for family in FAMILIES if family in MAIN or name in ("linear", "conv2d")]


def check_empty(net: nn.Module, x: Tensor, shape: torch.Size) -> None:
    """All calls give outputs of `shape`, with gradients (of zero) and without."""
    output = net(x)
    assert output.shape == shape
    output.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in net.parameters())
    for samples in (1, 3, 0):
        assert bnn.draws(net, x, samples).shape == (max(samples, 1), *shape)
    assert bnn.draws(net, x, 3, batch_size=4).shape == (3, *shape)
    with torch.no_grad():
        assert net(x).shape == shape
        assert bnn.draws(net, x, 3).shape == (3, *shape)
    with bnn.frozen_draw(net, 1):
        assert net(x).shape == shape


@pytest.mark.parametrize(("name", "family"), PAIRS, ids=[f"{name}-{family.id}" for name, family in PAIRS])
def test_no_inputs_give_no_outputs(name: str, family: Family) -> None:
    make, shape = EMPTY[name]
    plain, x = make(), torch.randn(shape)
    check_empty(converted(make(), family), x, plain(x).shape)


@every_sampling
@pytest.mark.parametrize("name", EMPTY)
def test_no_inputs_whatever_the_sampling(name: str, sampling: str) -> None:
    make, shape = EMPTY[name]
    plain, x = make(), torch.randn(shape)
    check_empty(converted(make(), BY_ID["diagonal"], sampling=sampling), x, plain(x).shape)


@pytest.mark.parametrize("family", MAIN, ids=ids(MAIN))
@pytest.mark.parametrize("name", EMPTY)
def test_numbers_predicted_for_no_inputs(name: str, family: Family) -> None:
    make, shape = EMPTY[name]
    net, x = converted(make(), family), torch.randn(shape)
    for samples in (3, 0):
        prediction = bnn.predict(net, x, samples, likelihood=bnn.likelihoods.Gaussian(0.1))
        assert prediction.mean.shape == prediction.total.shape == make()(x).shape


@every_family
def test_classes_of_no_inputs(family: Family) -> None:
    net = converted(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)), family)
    for samples in (3, 0):
        prediction = bnn.predict(net, torch.randn(0, 6), samples)
        assert prediction.probs.shape == (0, 3)
        assert prediction.epistemic.shape == (0,)


@every_family
def test_an_elbo_of_no_inputs_is_an_error(family: Family) -> None:
    """A mean over nothing is NaN, which no optimiser survives."""
    net = converted(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)), family)
    classes, numbers = torch.zeros(0, dtype=torch.long), torch.zeros(0, 3)
    for likelihood, y, samples in [("categorical", classes, 1), ("categorical", classes, 2), ("gaussian", numbers, 1)]:
        elbo = bnn.ELBO(net, 5, likelihood, samples=samples)
        with pytest.raises(ValueError, match=r"(?i)empty|no input"):
            elbo(torch.randn(0, 6), y)


# ---- squares that overflow or vanish ---------------------------------------------------------------------------------

WIDE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(40, 30), (3, 40)),
    "mlp": (lambda: nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10)), (3, 40)),
    "sequences": (lambda: nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10)), (2, 3, 40)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(8, 12, 3), nn.ReLU(), nn.Conv2d(12, 8, 2)), (2, 8, 4, 4)),
}
SIZED_IDS = (
    "ffg",
    "ffg-dense",
    "fcg",
    "matrix",
    "ensemble",
    "lamda-0",
    "matrixnormal",
    "matrixnormal-full",
    "ktied",
    "singular",
)
SIZED = [family for family in FAMILIES if family.id in SIZED_IDS]


def sized(net: Any, family: Family, **options: Any) -> Any:
    """Posteriors as wide as a plain layer's start."""
    sizes = {} if family.inference != "inducing" else {"inducing_rows": 4, "inducing_cols": 5}
    return converted(net, family, 0.05, **sizes, **options).eval()


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("family", SIZED, ids=ids(SIZED))
def test_large_inputs_of_every_family(family: Family, name: str) -> None:
    make, shape = WIDE[name]
    if family.id == "fcg" and name == "conv":
        make = lambda: nn.Conv2d(8, 2, 3)  # noqa: E731, an n x n covariance
    plain, net = make(), sized(make(), family)
    for scale in (1e20, 1e30):
        x = scale * torch.randn(shape)
        assert plain(x).isfinite().all()
        with torch.no_grad():
            assert net(x).isfinite().all()
            assert bnn.draws(net, x, 8).isfinite().all()
        assert net(x).isfinite().all()


@every_sampling
@pytest.mark.parametrize("name", WIDE)
def test_large_inputs_whatever_the_sampling(name: str, sampling: str) -> None:
    make, shape = WIDE[name]
    x, net = 1e20 * torch.randn(shape), sized(make(), BY_ID["diagonal"], sampling=sampling)
    with torch.no_grad():
        assert net(x).isfinite().all()
        outputs = bnn.draws(net, x, 8)
    assert outputs.isfinite().all()
    assert ((outputs.double().std(0) > 1e17) | (outputs == 0).all(0)).all()  # and still random


def spread(net: nn.Module, x: Tensor, sampling: str) -> Tensor:
    """The sd over 3000 draws, in float64."""
    bnn.set_sampling_(net, sampling)
    with torch.no_grad():
        outputs = bnn.draws(net, x, 3000, generator=torch.Generator().manual_seed(1 + len(sampling)))
    return outputs.double().std(0)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("scales", [(1e20, 1e20), (1e-25, 1e-25), (1e20, 1.0), (1e-25, 1e20)])
@pytest.mark.parametrize("sampling", ["auto", "local"])
def test_the_spread_is_that_of_whole_weights(sampling: str, scales: tuple[float, float], bias: bool) -> None:
    """Each input's by itself, whatever the other is: log ratios of two sds have an sd of 1 / sqrt(3000) = 0.018."""
    net = sized(nn.Linear(40, 6, bias=bias), BY_ID["diagonal"])
    x = torch.randn(2, 40) * torch.tensor(scales)[:, None]
    ratio = spread(net, x, sampling) / spread(net, x, "weight")
    assert ratio.log().abs().max() < 5 * 0.018


@pytest.mark.parametrize("name", ["sequences", "conv"])
def test_the_spread_of_several_rows_is_that_of_whole_weights(name: str) -> None:
    make = {"sequences": lambda: nn.Linear(40, 6), "conv": lambda: nn.Conv2d(8, 6, 3)}[name]
    net, x = sized(make(), BY_ID["diagonal"]), 1e20 * torch.randn(WIDE[name][1])
    ratio = spread(net, x, "auto") / spread(net, x, "weight")
    assert ratio.log().abs().max() < 5.5 * 0.018


# ---- one bad input ---------------------------------------------------------------------------------------------------


@every_sampling
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", WIDE)
def test_a_bad_input_stays_by_itself(name: str, bad: float, sampling: str) -> None:
    make, shape = WIDE[name]
    net, x = sized(make(), BY_ID["diagonal"], sampling=sampling), torch.randn(shape)
    spoilt = x.clone()
    spoilt[0].view(-1)[0] = bad
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            want, got = (bnn.draws(net, z, 4, generator=torch.Generator().manual_seed(1)) for z in (x, spoilt))
            assert got[:, 1:].isfinite().all()
            assert net(spoilt)[1:].isfinite().all()
        torch.testing.assert_close(got[:, 1:], want[:, 1:])
        assert not got[:, 0].isfinite().all()
