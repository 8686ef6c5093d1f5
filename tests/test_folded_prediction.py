"""Chunks, batches and ways of one call: the same generator gives the same draws, within the memory cap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import FAMILIES, SIZES, Family, always, cap_memory, choose_ways, ids, set_noise_, small_net
from torch import Tensor, nn

import bnn
from bnn._engine.draw import Draw
from bnn._engine.noise import BLOCK
from bnn.functional.cost import Way
from bnn.nn.base import BayesianLayer
from bnn.nn.families import ways
from bnn.nn.families.inducing import InducingBase

EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64 rounding: products of other sizes add up in another order
every_family = pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(sampling: str = "auto", **options: Any) -> nn.Sequential:
    """Inputs (N, 2, 4, 4); in float64."""
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(24, 3)
    )
    bnn.bayesianize_(net, "inducing", sampling=sampling, **SIZES, **options)
    set_noise_(net, 0.3)
    return net.double().eval()


def images(n: int) -> Tensor:
    return torch.randn(n, 2, 4, 4).double()


def cap(monkeypatch: pytest.MonkeyPatch, draws: int, inputs: int) -> int:
    """Lets about so many draws of the widest layer run at a time; returns the cap."""
    # The second convolution takes 4 x 4 x 4 and returns 6 x 2 x 2, float64.
    return cap_memory(monkeypatch, 8 * draws * inputs * (64 + 24))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int, int]]:
    """Per call of a layer: its type, K, the draws of its input (1: they share it), bytes of input and output."""
    seen: list[tuple[str, int, int, int]] = []
    original = InducingBase.output

    def output(self: Any, input: Tensor, draw: Draw) -> Tensor:
        result = original(self, input, draw)
        entries = result.numel() + (input.numel() if len(input) > 1 else 0)
        seen.append((type(self).__name__, draw.count, len(input), input.element_size() * entries))
        return result

    monkeypatch.setattr(InducingBase, "output", output)
    return seen


# ---- chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
@pytest.mark.parametrize("draws", [1, 2, 3, 5])
def test_chunks_change_nothing(
    draws: int, sampling: str, monkeypatch: pytest.MonkeyPatch, passes: list[tuple[str, int, int, int]]
) -> None:
    net, x = network(sampling), images(5)
    with torch.no_grad():
        whole = bnn.draws(net, x, samples=7, generator=seeded())
        assert {count for _, count, _, _ in passes} == {7}
        passes.clear()
        cap(monkeypatch, draws, inputs=5)
        parts = bnn.draws(net, x, samples=7, generator=seeded())
    assert max(count for name, count, _, _ in passes if name == "InducingLinear") < 7
    torch.testing.assert_close(parts, whole, **EXACT)


@every_family
def test_chunks_change_nothing_in_any_family(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = small_net(family).double(), images(4)
    set_noise_(net, 0.3)
    whole = bnn.draws(net, x, samples=6, generator=seeded())
    cap_memory(monkeypatch, 4 * 4 * 2 * (64 + 64))
    torch.testing.assert_close(bnn.draws(net, x, samples=6, generator=seeded()), whole, **EXACT)


@pytest.mark.parametrize("inputs", [1, 16, 17, 70])
@pytest.mark.parametrize("way", [way for way in Way if way is not Way.DENSE], ids=lambda way: way.value)
def test_neither_chunks_nor_gradients_change_noise_drawn_in_units(
    way: Way, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = nn.Sequential(nn.Linear(5, 7)), torch.randn(inputs, 5)
    bnn.bayesianize_(net, "inducing", sampling="local", init_lamda=0.3, **SIZES)
    net.double()
    always(monkeypatch, way)
    monkeypatch.setattr(ways, "UNIT_BYTES", 16 * ways.UNIT_DRAWS * 7 * 8)  # 16 inputs
    whole = bnn.draws(net, x.double(), samples=11, generator=seeded())
    for limit in (2**25, 8 * inputs * 12 * 4, 1):
        cap_memory(monkeypatch, limit)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                again = bnn.draws(net, x.double(), samples=11, generator=seeded())
            torch.testing.assert_close(again, whole, **EXACT)


ONE_WAY = [
    (family, sampling)
    for family in FAMILIES
    for sampling in (["auto", "weight", "local"] if family.knows("sampling") else ["weight"])
    if family.options.get("q_inducing") != "ensemble"  # members are dealt evenly, so they depend on how many draws
]


@pytest.mark.parametrize(("family", "sampling"), ONE_WAY, ids=[f"{family.id}-{name}" for family, name in ONE_WAY])
def test_the_first_draws_stay_however_many_there_are(
    family: Family, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draw k is the same, where layers are drawn by the same ways."""
    options = {"sampling": sampling} if family.knows("sampling") else {}
    net, x = small_net(family, **options).double(), images(3)
    set_noise_(net, 0.3)
    always(monkeypatch, {"auto": Way.JOINT, "weight": Way.DENSE, "local": Way.PER_ROW}[sampling])
    monkeypatch.setattr("bnn.nn.families.gaussian_weights.by_row", lambda *_: True)
    most = bnn.draws(net, x, samples=2 * BLOCK + 3, generator=seeded())
    for count in (1, 2, BLOCK, BLOCK + 1):
        got = bnn.draws(net, x, samples=count, generator=seeded())
        torch.testing.assert_close(got, most[:count], **EXACT)


@pytest.mark.parametrize("draws", [3, 5])
def test_chunks_keep_to_the_cap(
    draws: int, monkeypatch: pytest.MonkeyPatch, passes: list[tuple[str, int, int, int]]
) -> None:
    net, x = network(), images(5)
    limit = cap(monkeypatch, draws, inputs=5)
    bnn.predict(net, x, samples=8)
    assert max(size for *_, size in passes) <= limit
    last = [count for name, count, _, _ in passes if name == "InducingLinear"]
    assert sum(last) == 8
    assert 1 < max(last) <= draws
    assert len(last) == -(-8 // max(last))  # as few passes as that takes


def test_layers_with_groups_keep_to_the_cap(
    monkeypatch: pytest.MonkeyPatch, passes: list[tuple[str, int, int, int]]
) -> None:
    net = nn.Sequential(nn.Conv2d(4, 64, 3, padding=1, groups=4))
    bnn.bayesianize_(net, "inducing", **SIZES)
    limit = 4 * 2 * 2 * 64 * 16  # two draws of two outputs
    cap_memory(monkeypatch, limit)
    bnn.draws(net, torch.randn(2, 4, 4, 4), samples=8)
    assert max(size for *_, size in passes) <= limit


def test_a_cap_too_small_for_one_draw_runs_draw_by_draw(
    monkeypatch: pytest.MonkeyPatch, passes: list[tuple[str, int, int, int]]
) -> None:
    net, x = network(), images(5)
    cap_memory(monkeypatch, 1)
    assert bnn.draws(net, x, samples=3).shape == (3, 5, 3)
    assert [count for name, count, _, _ in passes if name == "InducingLinear"] == [1, 1, 1]


@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
def test_a_single_draw_of_a_chunk_is_the_same_draw(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven draws in threes leave one by itself, with kernels and noise in the same order."""
    net, x = network(sampling), images(2)
    whole = bnn.draws(net, x, samples=3, generator=seeded())
    cap_memory(monkeypatch, 1)
    torch.testing.assert_close(bnn.draws(net, x, samples=3, generator=seeded()), whole, **EXACT)


def test_weights_held_at_a_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = network("weight"), images(3)
    whole = bnn.draws(net, x, samples=5, generator=seeded())
    monkeypatch.setattr(bnn.nn.base, "WEIGHT_BYTES", 4 * 24 * 6 * 2)
    torch.testing.assert_close(bnn.draws(net, x, samples=5, generator=seeded()), whole, **EXACT)


# ---- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 10])
def test_batches_change_nothing_without_lamda(batch_size: int, q: str) -> None:
    net, x = network(q_inducing=q, max_lamda=0), images(7)
    whole = bnn.draws(net, x, samples=4, generator=seeded())
    parts = bnn.draws(net, x, samples=4, generator=seeded(), batch_size=batch_size)
    torch.testing.assert_close(parts, whole, **EXACT)


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_batches_change_nothing_with_weights(batch_size: int) -> None:
    net, x = network("weight"), images(7)
    whole = bnn.draws(net, x, samples=4, generator=seeded())
    parts = bnn.draws(net, x, samples=4, generator=seeded(), batch_size=batch_size)
    torch.testing.assert_close(parts, whole, **EXACT)


class Recorder:
    """What every layer drew, by the number of the draw, from `sample_u` and `sample_columns`: batches must agree."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn: dict[tuple[Any, str, int], Tensor] = {}
        self.calls = 0
        for name in ("sample_u", "sample_columns"):
            monkeypatch.setattr(InducingBase, name, self.wrap(name, getattr(InducingBase, name)))

    def wrap(self, name: str, original: Any) -> Any:
        def sample(layer: Any, draw: Draw) -> Tensor:
            result = original(layer, draw)
            for number, value in enumerate(result, start=draw.first):
                self.calls += 1
                known = self.drawn.setdefault((layer, name, number), value.detach())
                torch.testing.assert_close(value.detach(), known, **EXACT)
            return result

        return sample


@pytest.mark.parametrize("q", ["diagonal", "ensemble"])
@pytest.mark.parametrize("sampling", ["auto", "local"])
def test_u_and_columns_depend_on_neither_batches_nor_chunks(
    sampling: str, q: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The residual of an input is drawn anew in every batch; what identifies the draw is not."""
    net, x = network(sampling, q_inducing=q), images(6)
    always(monkeypatch, Way.JOINT)
    recorder = Recorder(monkeypatch)
    with torch.no_grad():
        for column_bytes in (ways.COLUMN_BYTES, 1):  # drawn for the whole call, or for every chunk and batch anew
            monkeypatch.setattr(ways, "COLUMN_BYTES", column_bytes)
            for draws in (1000, 2):
                cap(monkeypatch, draws, inputs=6)
                for batch_size in (None, 1, 4):
                    bnn.draws(net, x, samples=5, generator=seeded(), batch_size=batch_size)
    kinds = [name for _, name, _ in recorder.drawn]
    assert kinds.count("sample_u") == kinds.count("sample_columns") == 3 * 5
    assert recorder.calls > 3 * len(recorder.drawn)


def test_batches_have_residuals_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    bnn.bayesianize_(net, "inducing", **SIZES)
    set_noise_(net, 0.3)
    always(monkeypatch, Way.PER_ROW)
    x = torch.randn(1, 4).expand(2, 4)
    outputs = bnn.draws(net, x, samples=3, batch_size=1)
    assert (outputs[:, 0] - outputs[:, 1]).abs().min() > 0


# ---- members ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("limit", [2**25, 4 * 3 * 2 * 20, 1])
def test_members_are_even_under_chunks(limit: int, batch_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(2, 8, bias=False), nn.Linear(8, 2, bias=False))
    bnn.bayesianize_(net, "inducing", q_inducing="ensemble", ensemble_size=5, max_lamda=0, **SIZES)
    cap_memory(monkeypatch, limit)
    outputs = bnn.draws(net, torch.ones(3, 2), samples=20, batch_size=batch_size)
    for each in outputs.unbind(1):
        distinct, counts = torch.round(each, decimals=4).unique(dim=0, return_counts=True)
        assert len(distinct) == 5
        assert counts.tolist() == [4] * 5


# ---- ways ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["auto", "local"])
def test_ways_are_chosen_once_per_call(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of the whole call, and then for all chunks and batches, the last and smaller one too."""
    net, x = network(sampling), images(7)
    asked: list[Any] = []
    taken: dict[Any, list[Way]] = {}
    cheapest, choose = ways.cheapest, ways.choose

    def ask(options: Any, size: Any, *rest: Any) -> Way:
        asked.append(size)
        return cheapest(options, size, *rest)

    def note(layer: Any, *given: Any) -> Way:
        way = choose(layer, *given)
        taken.setdefault(layer, []).append(way)
        return way

    choose_ways(monkeypatch, ask)
    monkeypatch.setattr(ways, "choose", note)
    cap(monkeypatch, 2, inputs=3)
    bnn.draws(net, x, samples=6, batch_size=3)
    assert [size.draws for size in asked] == [6, 6, 6]
    assert all(size.inputs == 3 for size in asked)
    assert len(taken) == 3
    assert all(len(set(each)) == 1 for each in taken.values())
    assert sum(map(len, taken.values())) > 3 * 3  # several chunks of three batches


def test_another_call_chooses_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = network(), images(2)
    made = []
    choose_ways(monkeypatch, lambda options, size: made.append(1) or Way.DENSE)
    bnn.draws(net, x, samples=2)
    bnn.draws(net, x, samples=2)
    assert len(made) == 6


# ---- the posterior mean ----------------------------------------------------------------------------------------------


def plain(net: nn.Sequential) -> nn.Sequential:
    """The network with the posterior mean as its weights."""
    layers = []
    for layer in net:
        if isinstance(layer, BayesianLayer):
            twin = layer.plain(
                *((layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else _conv(layer))
            ).double()
            twin.load_state_dict({"weight": layer.weight, "bias": layer.bias})
            layers.append(twin)
        else:
            layers.append(layer)
    return nn.Sequential(*layers).eval()


def _conv(layer: Any) -> tuple[Any, ...]:
    return layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
@pytest.mark.parametrize("q", ["diagonal", "ensemble"])
def test_zero_samples_is_the_posterior_mean(q: str, sampling: str, batch_size: int | None) -> None:
    net, x = network(sampling, q_inducing=q), images(5)
    outputs = bnn.draws(net, x, samples=0, batch_size=batch_size)
    assert outputs.shape == (1, 5, 3)
    torch.testing.assert_close(outputs[0], plain(net)(x), **EXACT)
    prediction = bnn.predict(net, x, samples=0, batch_size=batch_size)
    torch.testing.assert_close(prediction.probs, plain(net)(x).softmax(1), **EXACT)


# ---- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", [pytest.param(4 * 2 * 5 * 64, id="first layer"), pytest.param(4 * 2 * 5 * 200, id="later")]
)
def test_a_restart_leaves_running_statistics_alone(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that turn out too large before, and behind, a BatchNorm in training mode."""
    x, ends = images(5), []
    for bytes_ in (2**25, limit):
        torch.manual_seed(2)
        net = network().train()
        cap_memory(monkeypatch, bytes_)
        bnn.draws(net, x, samples=6, generator=seeded())
        ends.append({name: tensor.clone() for name, tensor in net.named_buffers() if "running" in name})
    torch.testing.assert_close(ends[1], ends[0], **EXACT)


def test_gradients_are_those_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = network(), images(5)
    grads = []
    for limit in (2**25, 4 * 2 * 5 * 160):
        cap_memory(monkeypatch, limit)
        bnn.draws(net, x, samples=6, generator=seeded()).square().mean().backward()
        grads.append([p.grad.clone() for p in net.parameters()])
        net.zero_grad()
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-7, atol=1e-9)
