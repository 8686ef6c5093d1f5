"""Rates of their own for u and the scales."""

from __future__ import annotations

import pytest
import torch
from helpers import SIZES, sizes_of
from torch import nn

import bnn

SCALES = {
    "ffg": {"_weight_sd", "_bias_sd"},
    "fcg": {"_scale_diag"},
    "inducing": {"_inducing_sd", "_lamda"},
}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(9, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def by_name(net: nn.Module, groups: list[dict]) -> dict[str, str]:
    """The group of every parameter."""
    group_of = {id(p): group["name"] for group in groups for p in group["params"]}
    return {name: group_of[id(p)] for name, p in net.named_parameters()}


@pytest.mark.parametrize("family", SCALES)
def test_every_parameter_is_in_one_group(family: str) -> None:
    net = network()
    bnn.bayesianize_(net, family, **sizes_of(family))
    groups = bnn.parameter_groups(net, lr=0.01)
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(map(id, net.parameters()))
    found = {name.rpartition(".")[2] for name, group in by_name(net, groups).items() if group == "scales"}
    assert found == SCALES[family]
    rates = {group["name"]: group["lr"] for group in groups}
    assert rates["rest"] == 0.01
    assert rates["scales"] == pytest.approx(0.1)


@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
def test_u_trains_in_proportion_to_its_size(q: str) -> None:
    net = network()
    bnn.bayesianize_(net, "inducing", q_inducing=q, **SIZES)
    with torch.no_grad():
        net[0].inducing_mean.fill_(7.0)
        net[3].inducing_mean.zero_()
    groups = {group["name"]: group for group in bnn.parameter_groups(net, lr=0.01, u=0.5)}
    assert groups["u of 0"]["lr"] == pytest.approx(0.5 * 0.01 * 7)
    assert groups["u of 3"]["lr"] == pytest.approx(0.5 * 0.01)  # nothing to go by
    assert groups["u of 0"]["params"] == [net[0].inducing_mean]
    assert not any(
        name.endswith("tril") for name, group in by_name(net, list(groups.values())).items() if group == "scales"
    )


def test_a_step_of_adam_moves_everything_by_its_rate() -> None:
    """The first step of Adam is lr * sign(gradient)."""
    net = network()
    bnn.bayesianize_(net, "inducing", init_lamda=0.1, **SIZES)
    elbo = bnn.ELBO(net, 20, "categorical")
    groups = bnn.parameter_groups(elbo, lr=1e-3, scales=5.0)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimiser = torch.optim.Adam(groups, eps=0)
    elbo(torch.randn(20, 9), torch.randint(4, (20,))).loss.backward()
    optimiser.step()
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    for name, p in net.named_parameters():
        moved = (p.detach() - before[name]).abs()[p.grad != 0]
        torch.testing.assert_close(moved, torch.full_like(moved, rates[id(p)]), rtol=1e-2, atol=2e-6)


def test_frozen_and_shared_parameters() -> None:
    net = network()
    bnn.bayesianize_(net, {"0": "inducing"}, **SIZES)
    net[3].weight.requires_grad_(False)
    net.add_module("again", net[0])
    groups = bnn.parameter_groups(net, lr=1.0)
    listed = [id(p) for group in groups for p in group["params"]]
    assert len(listed) == len(set(listed))
    assert id(net[3].weight) not in listed


def test_mistakes() -> None:
    net = network()
    with pytest.raises(ValueError, match="lr"):
        bnn.parameter_groups(net, lr=0.0)
    with pytest.raises(ValueError, match="scales"):
        bnn.parameter_groups(net, lr=1.0, scales=-1.0)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        bnn.parameter_groups([net], lr=1.0)
    net.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to optimise"):
        bnn.parameter_groups(net, lr=1.0)
