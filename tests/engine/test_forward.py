"""One forward, one draw: repeated layers, members, nesting, errors, threads, hooks and other processes."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from drawn_nets import Steps, Tree, Twice, noisy, nothing_is_open, pinned, ways_without_weights
from engine_nets import Members, Stops
from helpers import FAMILIES, SIZES, Family, by_weight, ids, set_noise_
from torch import Tensor, nn

import bnn
from bnn._engine.draw import Draw
from bnn._engine.fold import in_one_pass
from bnn._engine.forward import forward_of, mark_root_, open_forward, running

every_family = pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    yield
    assert nothing_is_open()


# ---- what the layers of a forward agree on ---------------------------------------------------------------------------


def test_an_ensemble_shows_one_member_to_all_layers() -> None:
    net, x = Members(), torch.ones(3, 1)
    seen = []
    for _ in range(60):
        y = net(x).abs().round()
        assert len(y.unique()) == 1  # all layers, all inputs
        seen.append(int(y[0, 0]))
    assert set(seen) == {1, 2, 3, 4}  # a member is missed with probability 4 (3/4)^60


def test_an_ensemble_draws_its_members_evenly() -> None:
    net, x = Members(), torch.ones(1, 1)
    counts = torch.bincount(torch.tensor([int(net(x).abs().round()[0, 0]) for _ in range(400)]), minlength=5)[1:]
    assert (counts - 100).abs().max() < 4.5 * (400 * 3 / 16) ** 0.5


def test_layers_of_an_ensemble_on_their_own_pick_their_own_member() -> None:
    net, x = Members(), torch.ones(1, 1)
    pairs = {tuple(int(layer(x).abs().round()) for layer in net.layers[:2]) for _ in range(60)}
    assert any(a != b for a, b in pairs)


def test_a_given_member_is_shown() -> None:
    net, x = Members(), torch.ones(1, 1)
    for member in range(4):
        with open_forward(pinned(net, members=[member])):
            assert (net(x).abs().round() == member + 1).all()
    y = in_one_pass(net, x, pinned(net, 3, members=[3, 0, 2]).draw).abs().round()
    assert torch.equal(y, torch.tensor([4.0, 1.0, 3.0])[:, None, None].expand(3, 1, 3))  # in every layer


def test_a_pinned_forward_holds_for_all_calls_inside() -> None:
    """Of the root, of its layers, and of a network around it."""
    net, x = noisy(Twice(), sampling="weight", inference="inducing"), torch.ones(1, 3)
    with open_forward(pinned(net)) as forward:
        assert running() is forward_of(net.a) is forward
        want = net(x)[0]
        assert torch.equal(net(x)[1], want)
        assert torch.equal(net.a(x), want)
    assert running() is None
    assert not torch.equal(net(x)[0], want)


# ---- layers that run twice -------------------------------------------------------------------------------------------


@every_family
def test_a_layer_that_runs_twice_shows_one_function(family: Family) -> None:
    """From its first forward on, in which it is not known yet to run twice."""
    net, x = Twice(), torch.randn(2, 3)
    bnn.bayesianize_(net, family.inference, **by_weight(family))
    set_noise_(net, 0.5)
    assert not net.a.repeats
    outputs = [net(x) for _ in range(6)]
    assert net.a.repeats
    assert all(torch.equal(first, second) for first, second in outputs)
    first, second = bnn.draws(net, x, samples=6)
    assert torch.equal(first, second)
    assert len({float(first[0, 0].detach()) for first, _ in outputs}) > 1  # and every forward another one
    loss = outputs[0][0].sum() + outputs[0][1].sum()
    loss.backward()
    assert next(net.parameters()).grad is not None


@every_family
def test_a_layer_runs_twice_as_it_would_run_once(family: Family) -> None:
    """Neither its second run nor being known to repeat changes what a layer draws."""
    net, x = Twice(), torch.randn(2, 3)
    bnn.bayesianize_(net, family.inference, **by_weight(family))
    set_noise_(net, 0.5)
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append(net(x)[1])
        assert net.a.repeats
    torch.testing.assert_close(*outputs)


OUTPUTS = [
    ("inducing", {"sampling": "auto"}),
    ("inducing", {"sampling": "local"}),
    ("ffg", {"local_reparameterization": True}),
]
drawn_as_outputs = pytest.mark.parametrize(("inference", "options"), OUTPUTS, ids=["auto", "local", "ffg"])


@drawn_as_outputs
def test_a_layer_seen_to_run_twice_is_marked(
    inference: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first forward had separate functions and says so; from the next on all calls see one W."""
    ways_without_weights(monkeypatch)
    net, x = noisy(Twice(), inference, **options), torch.ones(2, 3)
    assert not net.a.repeats
    with pytest.warns(UserWarning, match="ran twice in one forward with separate noise") as caught:
        first, second = net(x)
    assert len(caught) == 1
    assert not torch.allclose(first, second)
    assert net.a.repeats
    outputs = [net(x) for _ in range(4)]  # without another warning
    assert all(torch.equal(first, second) for first, second in outputs)
    assert all(torch.equal(first[0], first[1]) for first, _ in outputs)  # one W for the batch
    assert len({first[0, 0].item() for first, _ in outputs}) == 4


@drawn_as_outputs
def test_predicting_starts_again_where_a_layer_runs_twice(
    inference: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways_without_weights(monkeypatch)
    net, x = noisy(Twice(), inference, **options), torch.ones(2, 3)
    first, second = bnn.draws(net, x, samples=5)
    assert torch.equal(first, second)
    assert torch.allclose(first[:, 0], first[:, 1])
    assert len({y[0, 0].item() for y in first}) == 5


@pytest.mark.parametrize("known", [False, True], ids=["first forward", "marked"])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_recurrent_layer_is_one_function_of_all_steps(count: int, known: bool) -> None:
    """Against the weights it was asked for, and their product by hand."""
    net = noisy(Steps(), "inducing", inducing_rows=2, inducing_cols=3, sampling="weight")
    net.step.repeats, x, seen = known, torch.randn(5, 2), []
    run_each = net.step.run_each
    net.step.run_each = lambda input, weights: seen.append(weights) or run_each(input, weights)
    draw = Draw.fresh(net, pinned(net, count).draw.call, count=count)
    got = in_one_pass(net, x, draw)
    assert len(seen) == 4
    assert all(torch.equal(a, b) for weights in seen for a, b in zip(weights, seen[0], strict=True))
    weight, bias = seen[0]
    assert weight.shape == (count, 2, 2)
    want = x
    for _ in range(4):
        want = want @ weight.mT + bias[:, None]
    torch.testing.assert_close(got, want)
    assert count == 1 or not torch.allclose(got[0], got[1])


def test_local_reparameterisation_draws_every_row_for_itself() -> None:
    net = noisy(nn.Linear(3, 2), local_reparameterization=True)
    y = net(torch.ones(4, 3))
    assert len({tuple(row) for row in y.tolist()}) == 4
    dense = noisy(nn.Linear(3, 2))
    assert len({tuple(row) for row in dense(torch.ones(4, 3)).tolist()}) == 1


def test_a_root_that_calls_itself_is_one_draw() -> None:
    net = Tree()
    bnn.bayesianize_(net, "inducing", init_lamda=0.5, sampling="weight", **SIZES)
    x = torch.ones(1, 1)
    first, second = net(x), net(x)
    assert len(first.unique()) == len(second.unique()) == 1
    assert first[0] != second[0]


# ---- nesting ---------------------------------------------------------------------------------------------------------


class Beside(nn.Module):
    """Shows the members of a converted network and of a layer of its own side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.own = Members(depth=2), nn.Linear(1, 1, bias=False)
        options = {"q_inducing": "ensemble", "ensemble_size": 4, "max_lamda": 0, "inducing_rows": 1}
        bnn.bayesianize_(self, {"own": {"inference": "inducing", **options}})
        with torch.no_grad():
            self.own.inducing_mean.copy_(torch.arange(1.0, 5.0)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.own(x), self.inner(x), self.own(x), self.inner(x)], -1)


def test_a_converted_network_inside_another_takes_part_in_its_draw() -> None:
    net, x = Beside(), torch.ones(1, 1)
    outputs = [net(x).abs().round() for _ in range(40)]
    assert all(len(y.unique()) == 1 for y in outputs)
    assert len({y[0, 0].item() for y in outputs}) == 4
    assert len({net.inner(x).abs().round()[0, 0].item() for _ in range(40)}) == 4  # on its own it is a root again


def test_an_unregistered_network_in_a_forward_has_a_draw_of_its_own() -> None:
    hidden = noisy(Twice())

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.held = nn.Linear(3, 3), (hidden,)

        def forward(self, x: Tensor) -> list[Tensor]:
            return [self.first(x), *self.held[0](x), *self.held[0](x), self.first(x)]

    y = noisy(Holder())(torch.ones(1, 3))
    assert torch.equal(y[0], y[5])  # the outer draw goes on after the inner one
    assert torch.equal(y[1], y[2])
    assert torch.equal(y[3], y[4])
    assert not torch.equal(y[1], y[3])


def test_the_elbo_is_one_draw_of_a_network_joined_from_halves() -> None:
    a, b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    for half in (a, b):
        bnn.bayesianize_(half, "inducing", q_inducing="ensemble", ensemble_size=3, max_lamda=0, init="paper", **SIZES)
    net = nn.Sequential(a, b)
    elbo = bnn.ELBO(net, num_data=1, likelihood="categorical")
    losses = {round(elbo(torch.ones(1, 2), torch.tensor([0])).data.item(), 5) for _ in range(60)}
    assert len(losses) == 3  # one per member; mixed members would give up to nine


# ---- errors and threads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, StopIteration, KeyboardInterrupt])
def test_an_error_in_a_forward_ends_it(error: type[BaseException]) -> None:
    net, other, x = noisy(nn.Sequential(nn.Linear(3, 2), Stops())), noisy(Twice()), torch.ones(1, 3)
    net[1].error = error
    with pytest.raises(error):
        net(x)
    assert running() is None
    assert not torch.equal(net[0](x), net[0](x))  # a layer of it, before the root has run again
    net[1].error = None
    a, b = other(x)
    assert torch.equal(a, b)
    assert not torch.equal(other(x)[0], a)
    assert not torch.equal(net(x), net(x))


def test_an_error_in_a_users_hook_ends_the_forward() -> None:
    net, x = noisy(nn.Sequential(nn.Linear(3, 2))), torch.ones(1, 3)

    def fail(*args: Any) -> None:
        raise ValueError("in a hook")

    for register in (net.register_forward_pre_hook, net.register_forward_hook):
        handle = register(fail)
        with pytest.raises(ValueError, match="in a hook"):
            net(x)
        handle.remove()
        assert running() is None
    assert not torch.equal(net(x), net(x))


def test_a_caught_error_of_an_inner_network_leaves_the_outer_forward_open() -> None:
    inner = noisy(nn.Sequential(nn.Linear(3, 3), Stops()))
    inner[1].error = ValueError

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.inner = nn.Linear(3, 3), inner

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            first = self.layer(x)
            with contextlib.suppress(ValueError):
                self.inner(x)
            return first, self.layer(x)

    outer = Outer()
    bnn.bayesianize_(outer, {"layer": "ffg"}, local_reparameterization=False, init_sd=0.5)
    assert torch.equal(*outer(torch.ones(1, 3)))


def test_threads_are_independent() -> None:
    net, x = noisy(Twice()), torch.ones(1, 3)
    outputs: list[tuple[bool, float]] = []

    def run() -> None:
        for _ in range(50):
            a, b = net(x)
            outputs.append((torch.equal(a, b), a[0, 0].item()))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [equal for equal, _ in outputs] == [True] * 200
    assert len({value for _, value in outputs}) > 190


def test_a_forward_keeps_nothing_alive() -> None:
    net, x = noisy(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), "inducing"), torch.ones(1, 3)
    seen: list[Any] = []
    handle = net[0].register_forward_hook(lambda *_: seen.append(weakref.ref(running().draw)))
    net(x)
    bnn.draws(net, x, samples=2)
    bnn.ELBO(net, num_data=1, likelihood="categorical", samples=2)(x, torch.zeros(1, dtype=torch.long)).loss.backward()
    handle.remove()
    gc.collect()
    assert len(seen) == 3
    assert [ref() for ref in seen] == [None] * 3
    kept = weakref.ref(net)
    del net
    gc.collect()
    assert kept() is None


# ---- hooks -----------------------------------------------------------------------------------------------------------


def test_marking_twice_changes_nothing() -> None:
    net = noisy(nn.Linear(3, 2))
    before = dict(net._forward_pre_hooks), dict(net._forward_hooks)
    mark_root_(net)
    assert (dict(net._forward_pre_hooks), dict(net._forward_hooks)) == before


@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_are_roots_of_their_own(how: Any) -> None:
    net = noisy(Twice())
    twin, x = how(net), torch.ones(1, 3)
    for module in (net, twin):
        assert len(module._forward_pre_hooks) == len(module._forward_hooks) == 1
        a, b = module(x)
        assert torch.equal(a, b)
        assert not torch.equal(module(x)[0], a)


def test_hooks_of_a_user_run_beside_the_draws_own() -> None:
    net, calls = noisy(Twice()), []
    net.register_forward_pre_hook(lambda *a: calls.append("pre"))
    net.register_forward_hook(lambda *a: calls.append("post"))
    a, b = net(torch.ones(1, 3))
    assert torch.equal(a, b)
    assert calls == ["pre", "post"]


IN_A_NEW_PROCESS = """
import pathlib, pickle, sys, torch
net = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
calls = []
for _ in range(20):  # ids of new hooks start at 0 in a new process: none may replace the draw's own
    net.register_forward_hook(lambda *a: calls.append("post"))
    net.register_forward_pre_hook(lambda *a: calls.append("pre"))
outputs = {net(torch.ones(1, 1)).abs().round().item() for _ in range(40)}
assert outputs <= {4, 9, 25, 49}, f"layers show different members: {outputs}"
assert len(outputs) > 1, "all draws are the same"
assert len(calls) == 40 * 40, len(calls)
print("fine")
"""


def run_python(code: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *args], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_hooks_survive_into_a_new_process(tmp_path: Any) -> None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))  # a square if members agree
    bnn.bayesianize_(net, "inducing", q_inducing="ensemble", ensemble_size=4, max_lamda=0, inducing_rows=1)
    with torch.no_grad():
        for layer in net:
            layer.inducing_mean.copy_(torch.tensor([2.0, 3.0, 5.0, 7.0])[:, None, None])
    path = tmp_path / "net.pkl"
    path.write_bytes(pickle.dumps(net))
    assert run_python(IN_A_NEW_PROCESS, str(path)) == "fine"


@pytest.mark.slow
def test_the_very_first_forward_of_a_process_can_be_compiled() -> None:
    code = """
import warnings, torch, bnn
warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch's own
net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2, q_inducing="ensemble")
compiled = torch.compile(net, fullgraph=True, backend="eager")
print(compiled(torch.ones(1, 3)).shape)
"""
    assert run_python(code) == "torch.Size([1, 2])"
