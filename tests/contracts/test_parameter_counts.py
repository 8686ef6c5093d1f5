"""The parameter counts of the paper's two tables, to the unit: ResNet-50 for CIFAR-10."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import bnn


def resnet50() -> nn.Module:
    with torch.device("meta"):
        return bnn.nn.nets.make_network("resnet50", out_features=10, kernel_size=3, remove_maxpool=True)


def converted(inference: str, M: int | None = None, **options: Any) -> nn.Module:
    net = resnet50()
    sizes = {} if M is None else {"inducing_rows": M, "inducing_cols": M, "init": "paper"}
    bnn.bayesianize_(net, inference, **sizes, **options)
    return net


def test_deterministic() -> None:
    assert bnn.parameter_count(resnet50()) == 23_520_842


@pytest.mark.parametrize(
    ("M", "count"), [(16, 1_384_662), (32, 2_771_446), (64, 5_710_902), (128, 12_253_366), (256, 27_992_502)]
)
def test_ffg_u(M: int, count: int) -> None:
    net = converted("inducing", M)
    assert bnn.parameter_count(net) == count
    assert sum(p.numel() for p in net.parameters()) == count


@pytest.mark.parametrize(
    ("M", "count"), [(16, 1_426_134), (32, 2_937_334), (64, 6_374_454), (128, 14_907_574), (256, 38_609_334)]
)
def test_ensemble_u_of_5(M: int, count: int) -> None:
    assert bnn.parameter_count(converted("inducing", M, q_inducing="ensemble", ensemble_size=5)) == count


def test_ffg_w() -> None:
    assert bnn.parameter_count(converted("ffg")) == 46_988_564


@pytest.mark.parametrize(
    ("keep", "count"), [(1.0, 46_988_564), (0.5, 23_520_852), (0.1, 4_746_682), (0.01, 522_494), (0.001, 100_075)]
)
def test_pruned_ffg_w(keep: float, count: int) -> None:
    assert bnn.parameter_count(converted("ffg"), keep=keep) == count


@pytest.mark.parametrize(("keep", "count"), [(1.0, 5_710_902), (0.75, 4_408_790), (0.5, 3_106_678), (0.25, 1_804_566)])
def test_pruned_ffg_u(keep: float, count: int) -> None:
    assert bnn.parameter_count(converted("inducing", 64), keep=keep) == count


@pytest.mark.parametrize("inference", ["ffg", "inducing"])
def test_counts_do_not_depend_on_where_the_network_lives(inference: str) -> None:
    options: dict[str, Any] = {} if inference == "ffg" else {"inducing_rows": 16, "inducing_cols": 16}
    counts = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            net = bnn.nn.nets.make_network("cnn", channels=[3, 8, 8], lin_sizes=[32, 10])
        bnn.bayesianize_(net, inference, **options)
        counts.append((bnn.parameter_count(net), bnn.parameter_count(net, keep=0.3)))
    assert counts[0] == counts[1]


def test_tied_layers_count_once_and_a_bad_fraction_is_an_error() -> None:
    shared = nn.Linear(4, 4)
    net = nn.Sequential(shared, shared)
    bnn.bayesianize_(net, "ffg")
    assert bnn.parameter_count(net) == 40
    assert bnn.parameter_count(net, keep=0.5) == 40 - 16  # half of mean and sd of the 16 weights; biases stay
    assert bnn.parameter_count(net, keep=0.99) == 40  # 39.68, rounded once
    for keep in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="keep must be a fraction between 0 and 1"):
            bnn.parameter_count(net, keep=keep)
