"""The first draws of a seed do not depend on how many are asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_nets import BY_ID, converted, mlp
from helpers import FAMILIES, Family, by_weight, ids
from torch import Tensor, nn

import bnn

COUNTS = (1, 3, 8, 9, 20)
ROUNDED = {"rtol": 1e-5, "atol": 1e-5}  # products of other sizes round differently
every_family = pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))


def check_prefix(net: nn.Module, x: Tensor, counts: tuple[int, ...] = COUNTS, **options: Any) -> None:
    """Every K draws are the first of the most."""
    net.eval()
    with torch.no_grad():
        most = bnn.draws(net, x, counts[-1], torch.Generator().manual_seed(3), **options)
        for k in counts:
            some = bnn.draws(net, x, k, torch.Generator().manual_seed(3), **options)
            torch.testing.assert_close(some, most[:k], **ROUNDED)
    assert len(most.flatten(1)[:, 0].unique()) > 1  # draws differ


def whole_weights(family: Family) -> Family:
    return family._replace(options=by_weight(family))


@every_family
def test_every_family(family: Family) -> None:
    check_prefix(mlp(whole_weights(family)), torch.randn(4, 6))


@every_family
def test_every_family_on_images(family: Family) -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    check_prefix(converted(net, whole_weights(family), 0.1), torch.randn(3, 2, 4, 4), (1, 3, 8))


@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
@pytest.mark.parametrize("q", ["diagonal", "matrix", "full"])
def test_without_lamda_whatever_the_sampling(q: str, sampling: str) -> None:
    check_prefix(mlp(BY_ID[q], max_lamda=0, sampling=sampling), torch.randn(4, 6))


@pytest.mark.parametrize("size", [3, 4, 20, 23])
@pytest.mark.parametrize("lamda", [{"max_lamda": 0}, {"sampling": "weight"}], ids=["lamda 0", "lamda"])
def test_ensembles_of_any_size(size: int, lamda: dict[str, Any]) -> None:
    """Whether or not K is a multiple of it: members come in rounds, each of them once in a round."""
    check_prefix(mlp(BY_ID["ensemble"], ensemble_size=size, init="paper", **lamda), torch.randn(4, 6))


@pytest.mark.parametrize("size", [3, 4])
def test_members_are_still_used_evenly(size: int) -> None:
    net = nn.Linear(1, 1, bias=False)
    bnn.bayesianize_(net, "inducing", q_inducing="ensemble", ensemble_size=size, max_lamda=0, inducing_rows=1)
    with torch.no_grad():
        net.inducing_mean.copy_(torch.arange(1.0, size + 1)[:, None, None])
    for k in COUNTS:
        shown = bnn.draws(net, torch.ones(1, 1), k, torch.Generator().manual_seed(3)).abs().round().int().flatten()
        counts = torch.bincount(shown, minlength=size + 1)[1:]
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("q", ["diagonal", "ensemble"])
def test_global_inducing_weights(q: str) -> None:
    net = mlp(BY_ID["diagonal"], inducing_rows=2, inducing_cols=3, sampling="weight")
    sizes = {"ensemble_size": 3} if q == "ensemble" else {}
    bnn.register_global_inducing_weights_(net, 2, 2, q_inducing=q, **sizes)
    check_prefix(net, torch.randn(4, 6))


@every_family
def test_in_batches(family: Family) -> None:
    check_prefix(mlp(whole_weights(family)), torch.randn(4, 6), (1, 3, 8), batch_size=3)


@pytest.mark.filterwarnings("ignore::bnn.FoldingWarning")
def test_draws_that_run_one_after_the_other() -> None:
    class Item(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * (1 + 0 * x.sum().item())

    net = nn.Sequential(nn.Linear(6, 5), Item(), nn.Linear(5, 3))
    check_prefix(converted(net, whole_weights(BY_ID["diagonal"])), torch.randn(4, 6))
