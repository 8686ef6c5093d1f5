"""Last-layer Laplace of a plain network against an independent package, where one is installed (laplace-torch)."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import bnn

peer = pytest.importorskip("laplace", reason="laplace-torch is not installed")


def problem(classes: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A trained network and its data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 5, generator=generator)
    noisy = x[:, :classes] + 0.5 * torch.randn(400, classes, generator=generator)
    y = noisy.argmax(1) if classes > 1 else noisy
    net = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, classes))
    bnn.fit(net, (x, y), epochs=15, lr=1e-2, progress=False, seed=0)
    return net, x, y


def of_peer(net: nn.Module, kind: str, structure: str, x: Tensor, y: Tensor, **options: float) -> object:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=100)
    found = peer.Laplace(net, kind, subset_of_weights="last_layer", hessian_structure=structure, **options)
    found.fit(loader)
    return found


def test_variance_of_a_regressor_is_that_of_the_full_matrix() -> None:
    net, x, y = problem(1)
    sd, tau = 0.5, 2.0
    other = of_peer(copy.deepcopy(net), "regression", "full", x, y, sigma_noise=sd, prior_precision=tau)
    expected = other(x)[1].flatten()
    noise = bnn.likelihoods.Gaussian(sd, learn=False)
    bnn.laplace_(net, (x, y), prior_precision=tau, likelihood=noise, labels="exact")
    found = bnn.predict(net, x, samples=4000, likelihood=noise).epistemic.flatten()
    assert torch.allclose(found, expected, rtol=0.15)  # of 4,000 draws
    assert math.isclose(float(found.mean()), float(expected.mean()), rel_tol=0.02)


def test_precision_and_probabilities_of_a_classifier() -> None:
    net, x, y = problem(3)
    other = of_peer(copy.deepcopy(net), "classification", "kron", x, y)
    other.optimize_prior_precision(method="marglik")
    found = bnn.laplace_(net, (x, y), labels="exact")
    assert math.isclose(found.prior_precision["2"], float(other.prior_precision), rel_tol=0.15)
    expected = other.predictive_samples(x, pred_type="nn", n_samples=2000).mean(0)
    assert torch.allclose(bnn.predict(net, x, samples=2000).probs, expected, atol=0.05)
