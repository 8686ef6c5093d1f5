"""`ffg` with a prior around the weights at hand: its KL, and that the prior survives what a network goes through."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import bnn
from bnn.bayesianize import bayesian_from_template

CENTRED: dict[str, Any] = {"prior_mean": "weights", "prior_weight_sd": 0.3, "prior_bias_sd": 0.7, "init_sd": 0.05}


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 2, bias=False))


def converted(plain: nn.Module | None = None, **options: Any) -> Any:
    found = net() if plain is None else plain
    bnn.bayesianize_(found, "ffg", **(CENTRED | options))
    return found


@torch.no_grad()
def moved(net: Any) -> Any:
    """The network after some training, so that means and prior means differ."""
    for parameter in net.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return net


def expected(layer: Any, prior: dict[str, Tensor]) -> Tensor:
    """torch's KL of a layer around the plain weights that it came from."""
    total = torch.zeros((), dtype=layer.weight_mean.dtype)
    for name, sd in (("weight", 0.3), ("bias", 0.7)):
        if name in prior:
            q = Normal(getattr(layer, name), getattr(layer, f"{name}_sd"))
            total = total + kl_divergence(q, Normal(prior[name].to(total), sd)).sum()
    return total


def test_the_kl_is_around_the_weights_that_were_there() -> None:
    plain = net().double()
    weights = [dict(copy.deepcopy(plain[i]).named_parameters()) for i in (0, 2)]
    layers = moved(converted(plain))
    for layer, own in zip((layers[0], layers[2]), weights, strict=True):
        torch.testing.assert_close(layer.kl_divergence(), expected(layer, own))
        torch.testing.assert_close(layer._prior_mean, own["weight"].detach())
    assert set(layers.state_dict()) - set(dict(layers.named_parameters())) == {
        "0._prior_mean",
        "0._prior_bias_mean",
        "2._prior_mean",
    }


def test_without_the_option_there_is_no_buffer() -> None:
    for given in (0.0, 0.2):
        assert not list(converted(prior_mean=given).buffers())
    with pytest.raises(ValueError, match=r"unknown prior_mean 'zeros'; expected one of \['weights'\]"):
        converted(prior_mean="zeros")


def test_a_narrow_prior_keeps_the_weights_where_a_prior_around_0_does_not() -> None:
    """The minimum of the KL alone is the prior itself."""
    for given, near in (("weights", True), (0.0, False)):
        plain = nn.Linear(5, 4).double()
        layer = bayesian_from_template(plain, "ffg", prior_mean=given, prior_weight_sd=0.1, init_sd=0.05)
        optimiser = torch.optim.Adam(layer.parameters(), 1e-2)
        for _ in range(500):
            optimiser.zero_grad()
            layer.kl_divergence().backward()
            optimiser.step()
        assert torch.allclose(layer.weight, plain.weight, atol=0.01) == near


def test_it_survives_state_dicts_copies_files_and_other_types(tmp_path: Path) -> None:
    original = moved(converted())
    kl = bnn.kl_divergence(original)
    bnn.save(original, tmp_path / "net")
    from_file, from_state = net(), converted()  # other weights, so another prior
    bnn.load_(from_file, tmp_path / "net")
    from_state.load_state_dict(original.state_dict())
    for same in (from_file, from_state, copy.deepcopy(original)):
        assert torch.equal(bnn.kl_divergence(same), kl)
        assert same[0].options.prior_mean == "weights"
    double = copy.deepcopy(original).double()
    assert double[0]._prior_mean.dtype == torch.float64
    torch.testing.assert_close(bnn.kl_divergence(double).float(), kl)
    half = copy.deepcopy(original).bfloat16()
    assert half[0]._prior_bias_mean.dtype == torch.bfloat16
    torch.testing.assert_close(bnn.kl_divergence(half), kl, rtol=0.02, atol=0)
    assert bnn.kl_divergence(half).dtype == torch.float32


def test_a_layer_started_anew_has_its_prior_around_the_new_weights() -> None:
    layer, plain = moved(converted(nn.Linear(5, 4))), nn.Linear(5, 4)
    layer.init_from_deterministic_params(dict(plain.named_parameters()))
    assert torch.equal(layer._prior_mean, plain.weight)
    assert torch.equal(layer._prior_bias_mean, plain.bias)
