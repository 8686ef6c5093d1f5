"""Gradient checkpointing (use_reentrant=False) differentiates the draw of the forward."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from checkpointed_nets import KINDS, WHAT, Net, checkpoint_, compare, inputs, make, run
from engine_nets import unrelated, varies
from helpers import set_noise_, sizes_of
from torch import Tensor
from torch.utils.checkpoint import set_checkpoint_early_stop

import bnn

every_kind = pytest.mark.parametrize("kind", KINDS)
everywhere = pytest.mark.parametrize("what", WHAT)
every_part = pytest.mark.parametrize("what", ["a layer", "a part"])
part_or_whole = pytest.mark.parametrize("what", ["a part", "the whole"])


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    yield
    assert varies(unrelated(), torch.ones(1, 6))


@every_kind
@everywhere
def test_gradients_are_those_without_checkpointing(kind: str, what: str) -> None:
    net, x = make(kind, p=0.5), inputs()
    compare(net, lambda what: run(net, x, what).square().sum(), what)


@every_kind
@pytest.mark.parametrize("what", ["a part", "the whole", "the whole and a part"])
def test_what_runs_again_returns_what_it_returned(kind: str, what: str) -> None:
    net, x, seen = make(kind), inputs(), []
    whole = what.startswith("the whole")
    hooked = [net] if whole else [module.b for module in net.modules() if isinstance(module, Net)]
    note = lambda module, args, output: seen.append(output.detach())  # noqa: E731
    handles = [module.register_forward_hook(note) for module in hooked]
    with set_checkpoint_early_stop(False):
        run(net, x, what).sum().backward()
    for handle in handles:
        handle.remove()
    assert len(seen) == 2
    assert torch.equal(*seen)


@every_kind
@pytest.mark.parametrize("order", [[0, 1], [1, 0], None], ids=["in order", "reversed", "together"])
def test_two_forwards_that_are_alive_at_once(kind: str, order: list[int] | None) -> None:
    net, both = make(kind), (inputs(), inputs())
    alive: list[Tensor] = []

    def loss(what: str) -> Tensor:
        alive[:] = [run(net, x, what).square().sum() for x in both]
        return sum(alive)  # type: ignore[return-value]

    def backward(total: Tensor) -> None:
        for one in [total] if order is None else [alive[i] for i in order]:
            one.backward()

    compare(net, loss, "the whole", backward)


@every_kind
@part_or_whole
def test_a_graph_that_is_differentiated_twice(kind: str, what: str) -> None:
    net, x = make(kind), inputs()

    def twice(loss: Tensor) -> None:
        loss.backward(retain_graph=True)
        loss.backward()

    compare(net, lambda what: run(net, x, what).square().sum(), what, twice)


@every_kind
@part_or_whole
def test_backward_in_another_thread(kind: str, what: str) -> None:
    def backward(loss: Tensor) -> None:
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()

    net, x = make(kind), inputs()
    compare(net, lambda what: run(net, x, what).square().sum(), what, backward)


@every_kind
@pytest.mark.parametrize(("ends", "what"), [("inside", "the whole"), ("after", "a part"), ("elsewhere", "a part")])
def test_under_a_frozen_draw(kind: str, ends: str, what: str) -> None:
    net, x = make(kind), inputs()

    def loss(what: str) -> Tensor:
        with bnn.frozen_draw(net, 3):
            value = run(net, x, what).square().sum()
            if ends == "inside":
                value.backward()
            return value

    def backward(value: Tensor) -> None:
        if ends == "after":
            value.backward()
        elif ends == "elsewhere":
            with bnn.frozen_draw(net, 4):
                value.backward()

    compare(net, loss, what, backward)


@pytest.mark.filterwarnings("ignore::bnn.FoldingWarning")
@every_kind
@every_part
def test_an_elbo_of_several_draws(kind: str, what: str) -> None:
    """In a network that folds neither with checkpointing nor without, so that both draw the same."""
    net, x, y = make(kind, folds=False), torch.randn(5, 6), torch.zeros(5, dtype=torch.long)
    elbo = bnn.ELBO(net, 5, "categorical", samples=2)

    def loss(what: str) -> Tensor:
        checkpoint_(net, what)
        return elbo(x, y).loss

    compare(net, loss, what)


def seeded_draws(net: Any, x: Tensor) -> Callable[[str], Tensor]:
    def loss(what: str) -> Tensor:
        checkpoint_(net, what)
        return bnn.draws(net, x, samples=4, generator=torch.Generator().manual_seed(1)).square().sum()

    return loss


@pytest.mark.filterwarnings("ignore::bnn.FoldingWarning")
@every_kind
@every_part
def test_named_draws(kind: str, what: str) -> None:
    net = make(kind)
    compare(net, seeded_draws(net, inputs()), what)


@pytest.mark.filterwarnings("ignore::bnn.FoldingWarning")
@pytest.mark.parametrize("family", ["inducing", "ffg"])
@every_part
def test_a_deterministic_part_behind_a_bayesian_layer(family: str, what: str) -> None:
    """Draws that run in one pass reach a checkpoint that no Bayesian layer is part of."""
    net, x = Net(), inputs()
    bnn.bayesianize_(net, {"a": family}, **sizes_of(family))
    set_noise_(net, 0.3)
    elbo = bnn.ELBO(net, 5, "categorical", samples=2)

    def loss(what: str) -> Tensor:
        checkpoint_(net, what)
        with bnn.frozen_draw(net, 1):
            return elbo(x, torch.zeros(5, dtype=torch.long)).loss

    compare(net, loss, what)
    compare(net, seeded_draws(net, x), what)
