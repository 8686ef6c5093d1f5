"""Other ways of checkpointing are right or a RuntimeError; none of it moves torch's random stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checkpointed_nets import KINDS, WHAT, gradients, inputs, make, run, same
from engine_nets import mlp
from helpers import FAMILIES, Family, ids, small_net
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bnn

every_kind = pytest.mark.parametrize("kind", KINDS)
everywhere = pytest.mark.parametrize("what", WHAT)
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch, of nested checkpoints


def right_or_refused(net: nn.Module, loss: Callable[[str], Tensor], what: str) -> None:
    """`loss(what)` has the gradients of `loss("")`, or says that it cannot."""
    want = gradients(net, lambda: loss(""))
    try:
        got = gradients(net, lambda: loss(what))
    except RuntimeError:
        return
    same(got, want)


@every_kind
@everywhere
def test_use_reentrant(kind: str, what: str) -> None:
    net, x = make(kind, p=0.5), inputs()
    right_or_refused(net, lambda what: run(net, x, what, use_reentrant=True).square().sum(), what)


@pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))
def test_use_reentrant_never_shows_another_draw(family: Family) -> None:
    net, seen = mlp(family), []
    net.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    loss = checkpoint(net, torch.randn(5, 6, requires_grad=True), use_reentrant=True).sum()
    try:
        loss.backward()
    except RuntimeError:
        assert len(seen) == 1
        return
    assert torch.equal(*seen)


@every_kind
@pytest.mark.parametrize("what", ["a part", "the whole"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
def test_preserve_rng_state_false(kind: str, what: str, reentrant: bool) -> None:
    net, x = make(kind), inputs()

    def loss(what: str) -> Tensor:
        value = run(net, x, what, use_reentrant=reentrant, preserve_rng_state=False).square().sum()
        torch.rand(3)
        return value

    right_or_refused(net, loss, what)


@every_kind
def test_two_forwards_with_use_reentrant(kind: str) -> None:
    net, x, other = make(kind), inputs(), inputs()

    def loss(what: str) -> Tensor:
        return sum(run(net, z, what, use_reentrant=True).square().sum() for z in (x, other))  # type: ignore[return-value]

    right_or_refused(net, loss, "the whole")


# ---- the random stream -----------------------------------------------------------------------------------------------


def stream_after(net: nn.Module, x: Tensor, grad: bool) -> Tensor:
    """torch's random state after one forward from a fixed seed."""
    torch.manual_seed(1)
    with torch.set_grad_enabled(grad):
        net(x)
    return torch.get_rng_state()


@pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))
def test_gradients_do_not_move_the_random_stream(family: Family) -> None:
    for net, x in [(mlp(family), torch.randn(4, 6)), (small_net(family).eval(), torch.randn(3, 2, 4, 4))]:
        assert torch.equal(stream_after(net, x, True), stream_after(net, x, False))


@every_kind
def test_gradients_do_not_move_the_random_stream_of_any_kind(kind: str) -> None:
    net, x = make(kind, p=0.5), torch.randn(4, 6)
    assert torch.equal(stream_after(net, x, True), stream_after(net, x, False))


@every_kind
def test_outputs_are_the_same_with_and_without_gradients(kind: str) -> None:
    net, x, outputs = make(kind, p=0.5), torch.randn(4, 6), []
    for grad in (True, False):
        torch.manual_seed(1)
        with torch.set_grad_enabled(grad):
            outputs.append(net(x).detach())
    torch.testing.assert_close(*outputs)


def test_gradients_do_not_move_the_random_stream_of_a_frozen_draw() -> None:
    net, x = make("diagonal"), torch.randn(4, 6)
    with bnn.frozen_draw(net, 1):
        assert torch.equal(stream_after(net, x, True), stream_after(net, x, False))
