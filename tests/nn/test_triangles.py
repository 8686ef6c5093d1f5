"""Triangles of full covariances: they train with plain Adam, and a state dict holds them as it did in 2020."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnn
from bnn.functional.linalg import triangle_unit, unpack_tril

KINDS: dict[str, dict[str, Any]] = {
    "fcg": {"inference": "fcg"},
    "full": {"inference": "inducing", "q_inducing": "full", "inducing_rows": 20, "inducing_cols": 20},
    "matrixnormal": {"inference": "matrixnormal", "covariance": "full"},
}
SIMPLER = {
    "fcg": {"inference": "ffg"},
    "full": KINDS["full"] | {"q_inducing": "diagonal"},
    "matrixnormal": KINDS["matrixnormal"] | {"covariance": "diagonal"},
}
NAMES = {"fcg": "_scale_tril", "full": "_inducing_scale_tril", "matrixnormal": "_col_scale_tril"}

every_kind = pytest.mark.parametrize("kind", KINDS)


def layer_with_triangle(kind: str) -> Any:
    """A layer of random parameters."""
    layer = nn.Linear(13, 12)
    bnn.bayesianize_(layer, **KINDS[kind])
    state = {name: value + 0.1 * torch.randn_like(value) for name, value in layer.state_dict().items()}
    layer.load_state_dict(state)
    return layer


def triangle(kind: str, state: dict[str, Tensor]) -> Tensor:
    """T by its meaning in 2020."""
    if kind == "fcg":
        return state["_scale_tril"].tril(-1) + torch.diag(F.softplus(state["_scale_diag"]))
    if kind == "matrixnormal":
        return unpack_tril(state["_col_scale_tril"], state["mean"].shape[1])
    return unpack_tril(state["_inducing_scale_tril"], len(state["inducing_mean"]))


def used(kind: str, layer: Any) -> Tensor:
    """T as draws and the KL take it."""
    if kind == "matrixnormal":
        T: Tensor = layer.row_and_col()[1]
    else:
        T = layer.scale_tril if kind == "fcg" else layer.q.spread(layer)
    return T.detach()


def blobs() -> tuple[Tensor, Tensor]:
    """Three classes of 10 numbers that are easy to tell apart."""
    y = torch.arange(600) % 3
    return torch.randn(600, 10) + 2.5 * F.one_hot(y, 10), y


def accuracy(inference: dict[str, Any], lr: float) -> float:
    """Of 16 draws, after a short training with plain Adam."""
    torch.manual_seed(0)
    (x, y), net = blobs(), nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    bnn.bayesianize_(net, **inference)
    elbo, adam = bnn.ELBO(net, num_data=len(x), likelihood="categorical"), torch.optim.Adam(net.parameters(), lr)
    for _ in range(10):
        for batch in torch.randperm(len(x)).split(50):
            adam.zero_grad()
            elbo(x[batch], y[batch]).loss.backward()
            adam.step()
    return float((bnn.predict(net, x, samples=16).probs.argmax(1) == y).double().mean())


@every_kind
def test_plain_adam_trains_it(kind: str) -> None:
    """Within 3 points of independent entries; in units of 1 it was 50 (fcg) and 10 (full) points below."""
    assert accuracy(KINDS[kind], 1e-2) > accuracy(SIMPLER[kind], 1e-2) - 0.03


@every_kind
def test_one_step_of_adam_moves_an_sd_by_less_than_its_rate(kind: str) -> None:
    layer = layer_with_triangle(kind)
    before, lr = used(kind, layer), 1e-2
    layer(torch.randn(40, 13)).square().sum().backward()
    torch.optim.Adam([layer.get_parameter(NAMES[kind])], lr).step()
    moved = (used(kind, layer) - before).tril(-1)
    assert 0 < moved.norm(dim=1).max() < lr


@every_kind
def test_state_dicts_keep_the_meaning_of_2020(kind: str) -> None:
    layer, fresh = layer_with_triangle(kind), nn.Linear(13, 12)
    bnn.bayesianize_(fresh, **KINDS[kind])
    state = layer.state_dict()
    torch.testing.assert_close(triangle(kind, state), used(kind, layer))
    assert not torch.equal(state[NAMES[kind]], layer.get_parameter(NAMES[kind]))  # it is trained in other units
    fresh.load_state_dict(state)
    assert torch.equal(used(kind, fresh), used(kind, layer))
    assert torch.equal(fresh.kl_divergence(), layer.kl_divergence())
    assert all(torch.equal(value, state[name]) for name, value in fresh.state_dict().items())  # to the bit


@every_kind
def test_copies_assigned_tensors_and_other_types_keep_it(kind: str) -> None:
    layer, fresh = layer_with_triangle(kind), nn.Linear(13, 12)
    bnn.bayesianize_(fresh, **KINDS[kind])
    state = {f"0.{name}": value.double() for name, value in layer.state_dict().items()}
    nn.Sequential(fresh).load_state_dict(state, assign=True)  # a prefix, another type
    assert fresh.get_parameter(NAMES[kind]).dtype == torch.float64
    for same in (copy.deepcopy(layer), fresh):
        torch.testing.assert_close(used(kind, same), used(kind, layer), check_dtype=False)
    kept = layer.state_dict(keep_vars=True)[NAMES[kind]]
    assert kept.requires_grad
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict(layer.state_dict() | {NAMES[kind]: torch.zeros(3)})


@pytest.mark.parametrize("n", [1, 2, 3, 64, 1560])
def test_the_unit_is_the_power_of_two_next_to_one_over_n(n: int) -> None:
    unit = triangle_unit(n)
    assert unit <= 1 / n < 2 * unit
    assert float.hex(unit).startswith("0x1.0000000000000p")
