"""Bayesian layers that take part in no forward are named, once, and nothing else is."""

from __future__ import annotations

import copy
import random
import threading
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import sizes_of
from torch import Tensor, nn

import bnn
from bnn._engine.unused import UnusedLayerWarning

X, Y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.tensor([0, 1, 2])


class Reads(nn.Module):
    """Computes with the weight of a layer instead of calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.body(x), self.head.weight, self.head.bias)


class Branches(nn.Module):
    """Runs one of its layers, chosen at random."""

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 3) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = random.choice(list(self.layers))(x)
        return result


def said(function: Any, *args: Any, **kwargs: Any) -> list[str]:
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **kwargs)
    assert all(one.category is UnusedLayerWarning for one in caught)
    assert all(one.filename == __file__ for one in caught)  # at the line that asked
    return [str(one.message) for one in caught]


def converted(net: nn.Module, inference: str = "ffg", **options: Any) -> nn.Module:
    bnn.bayesianize_(net, inference, **(sizes_of(inference) | options))
    return net


@pytest.mark.parametrize("inference", ["ffg", "fcg", "inducing"])
def test_a_layer_whose_weight_is_read_is_named_once_by_predict(inference: str) -> None:
    net = converted(Reads(), inference)
    (message,) = said(bnn.predict, net, X, samples=4)
    assert message.startswith("Bayesian layers took part in no forward so far: head (")
    assert "call the layer, head(x)" in message
    assert "{'head': None}" in message
    assert "body" not in message
    assert said(bnn.predict, net, X) == []
    assert said(bnn.draws, net, X, 3) == []
    assert said(bnn.ELBO(net, 3, "categorical"), X, Y) == []


@pytest.mark.parametrize("samples", [1, 3])
def test_and_by_the_objective(samples: int) -> None:
    elbo = bnn.ELBO(converted(Reads()), 3, "categorical", samples=samples)
    (message,) = said(elbo, X, Y)
    assert "no forward so far: head (FFGLinear)" in message
    assert said(elbo, X, Y) == []


def test_each_network_is_told_by_itself() -> None:
    net = converted(Reads())
    other = copy.deepcopy(net)
    assert len(said(bnn.predict, net, X)) == len(said(bnn.predict, other, X)) == 1


def test_a_layer_that_is_not_used_at_all() -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    net.spare = nn.Linear(2, 2)  # type: ignore[assignment]
    net.forward = lambda x: net[0](x)  # type: ignore[method-assign]
    (message,) = said(bnn.predict, converted(net), X)
    assert "spare (FFGLinear)" in message
    alone = converted(nn.Linear(4, 3))
    alone.forward = lambda x: F.linear(x, alone.weight)  # type: ignore[assignment, arg-type]
    (message,) = said(bnn.predict, alone, X)
    assert "the network (FFGLinear)" in message


def test_at_the_mean_reading_a_weight_is_right() -> None:
    net = converted(Reads())
    assert said(bnn.predict, net, X, samples=0) == []
    assert len(said(bnn.predict, net, X, samples=2)) == 1


def test_used_networks_are_left_in_peace() -> None:
    tied = nn.Linear(4, 4)
    nets = [
        converted(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))),
        converted(nn.Sequential(tied, nn.ReLU(), tied, nn.Linear(4, 3)), "inducing"),
        nn.Sequential(nn.Linear(4, 3)),
    ]
    for net in nets:
        assert said(bnn.predict, net, X, samples=0) == said(bnn.ELBO(net, 3, "categorical"), X, Y) == []
    assert said(bnn.predict, nets[0], X) == said(bnn.predict, nets[1], X) == []


def test_random_branches_are_mentioned_at_most_once_and_never_after_they_ran() -> None:
    random.seed(0)
    fresh = converted(Branches())
    assert len([one for _ in range(30) for one in said(bnn.predict, fresh, X, samples=2)]) == 1
    known = converted(Branches())
    for layer in known.layers:  # type: ignore[union-attr]
        layer(X)
    assert [one for _ in range(30) for one in said(bnn.predict, known, X, samples=2)] == []
    elbo = bnn.ELBO(converted(Branches()), 3, "categorical")
    assert len([one for _ in range(30) for one in said(elbo, X, Y)]) == 1


def test_layers_that_run_elsewhere_count_as_used() -> None:
    class Threaded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: list[Tensor] = []
            thread = threading.Thread(target=lambda: found.append(self.layer(x.detach())))
            thread.start()
            thread.join()
            result: Tensor = self.head(found[0])
            return result

    net = converted(Threaded())
    assert said(bnn.ELBO(net, 3, "categorical"), X, Y) == []


def test_members_that_were_not_shown_are_not_missed() -> None:
    ensemble = converted(bnn.Ensemble(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), members=4))
    assert said(bnn.predict, ensemble, X, samples=2) == []
    assert said(bnn.predict, ensemble, X) == []
    reading = converted(bnn.Ensemble([Reads() for _ in range(4)]))
    (message,) = said(bnn.predict, reading, X, samples=8)
    assert "members.0.head (FFGLinear); members.1.head (FFGLinear); members.2.head (FFGLinear); and 1 more" in message


def test_global_inducing_weights_do_not_run() -> None:
    net = converted(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), "inducing", inducing_rows=2, inducing_cols=2)
    bnn.register_global_inducing_weights_(net, 2, 2)
    assert said(bnn.predict, net, X) == []


@pytest.mark.parametrize("part", ["root", "child"])
def test_compiled_parts_run_like_others(part: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    converted(net)
    if part == "child":
        net[2] = torch.compile(net[2], backend="eager")  # type: ignore[assignment]
        whole: Any = net
    else:
        whole = torch.compile(net, backend="eager")
    assert said(bnn.predict, whole, X, samples=2) == []
    assert said(bnn.ELBO(whole, 3, "categorical"), X, Y) == []
    other = converted(Reads())
    assert len(said(bnn.predict, torch.compile(other, backend="eager"), X, samples=2)) == 1


def test_where_warnings_are_errors_it_is_one() -> None:
    net = converted(Reads())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnusedLayerWarning, match="head"):
            bnn.predict(net, X)
