"""What a draw is made of: noise with names, members, what is drawn once, and what all draws of a call share."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
import torch
from engine_nets import Members
from helpers import FAMILIES, Family, ids, set_noise_, small_net
from torch import Tensor, nn

import bnn
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.forward import Forward, open_forward
from bnn._engine.noise import BLOCK, LANES, Noise, Seeds

SHAPES = [(1,), (5,), (LANES,), (3, 7), (2, LANES)]
FLOAT, DOUBLE = torch.zeros(()), torch.zeros((), dtype=torch.double)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_type = pytest.mark.parametrize("like", [FLOAT, DOUBLE], ids=["float32", "float64"])


def normals(module: nn.Module, draws: range, number: int = 5, like: Tensor = FLOAT, shape: Any = (4,)) -> Tensor:
    """Noise of draws from seeds that nobody has used before."""
    return Seeds(module, number).normals(module, Noise("u"), shape, draws, like)


# ---- noise with names ------------------------------------------------------------------------------------------------


def test_every_layer_number_name_part_and_unit_has_noise_of_its_own() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    other, foreign, foreign_too = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    def first(module: nn.Module, seeds: Seeds, *noise: Any) -> float:
        return seeds.normals(module, Noise(*noise), (1,), range(1), DOUBLE).item()

    seeds = Seeds(net, 5)
    asked = [(m, seeds, "u") for m in (net, net[0], net[1], foreign, foreign_too)]
    asked += [
        (net[0], seeds, "weights"),
        (net[0], seeds, "u", 1),
        (net[0], seeds, "u", 0, 1),
        (net[0], seeds, "u", 1, 1),
    ]
    asked += [(net[0], Seeds(net, number), "u") for number in (6, -5, 2**40, 2**62 - 1)]
    values = [first(*one) for one in asked]
    assert len(set(values)) == len(asked)
    assert [first(*one) for one in reversed(asked)] == values[::-1]  # whatever order they are asked in
    assert first(net[0], Seeds(net, 5), "u") == values[1]  # the place in the network counts, not the object
    assert first(nn.Sequential(other, net[1])[0], Seeds(nn.Sequential(other, net[1]), 5), "u") != values[2]
    assert net[0] in seeds
    assert other not in seeds


@every_type
@every_shape
def test_the_first_draws_are_the_same_however_many_there_are(shape: tuple[int, ...], like: Tensor) -> None:
    net = nn.Linear(2, 2)
    every = normals(net, range(3 * BLOCK + 1), like=like, shape=shape)
    assert every.shape == (3 * BLOCK + 1, *shape)
    assert every.dtype == like.dtype
    assert len(every.flatten(1).unique(dim=0)) == len(every)
    for start, stop in itertools.combinations([0, 1, 5, BLOCK, BLOCK + 3, 2 * BLOCK, 3 * BLOCK + 1], 2):
        assert torch.equal(normals(net, range(start, stop), like=like, shape=shape), every[start:stop])


@every_shape
def test_parts_of_the_draws_may_come_in_any_order(shape: tuple[int, ...]) -> None:
    net = nn.Linear(2, 2)
    every, seeds = normals(net, range(20), shape=shape), Seeds(net, 5)
    parts = [range(0, 3), range(3, 6), range(12, 20), range(6, 12), range(6, 7), range(5, 6), range(3, 6), range(0, 20)]
    for part in parts:
        got = seeds.normals(net, Noise("u"), shape, part, FLOAT)
        assert torch.equal(got, every[part.start : part.stop])


def test_other_noise_does_not_disturb_noise_in_parts() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    want = {m: Seeds(net, 5).normals(m, Noise("u"), (4,), range(8), FLOAT) for m in net}
    seeds = Seeds(net, 5)
    for start in range(0, 8, 2):
        for layer in net:
            seeds.normals(layer, Noise("columns", unit=start), (3,), range(start, start + 2), FLOAT)
            got = seeds.normals(layer, Noise("u"), (4,), range(start, start + 2), FLOAT)
            assert torch.equal(got, want[layer][start : start + 2])


@every_type
def test_named_noise_is_standard_normal_and_independent(like: Tensor) -> None:
    """4,000 draws of 5 entries: between entries, and between neighbouring draws, also across blocks."""
    noise = normals(nn.Linear(2, 2), range(4000), like=like, shape=(5,)).double()
    both = torch.cat([noise[:-1], noise[1:]], dim=1)
    torch.testing.assert_close(both.mean(0), torch.zeros(10).double(), rtol=0, atol=4.5 * 4000**-0.5)
    torch.testing.assert_close(both.T.cov(), torch.eye(10).double(), rtol=0, atol=4.5 * (2 / 4000) ** 0.5)
    assert (noise.abs() > 3).double().mean().item() == pytest.approx(0.0027, abs=0.002)


def test_named_noise_leaves_torchs_generator_alone() -> None:
    net, before = nn.Linear(2, 2), torch.get_rng_state()
    normals(net, range(20))
    Seeds(net, 5).integers(net, "member", 4, range(20))
    assert torch.equal(torch.get_rng_state(), before)


def test_integers_are_named_by_draw_and_module() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    seeds = Seeds(net, 5)
    every = seeds.integers(net[0], "member", 7, range(300))
    assert every.device.type == "cpu"
    assert torch.bincount(every, minlength=7).min() > 300 / 7 - 4 * (300 * 6 / 49) ** 0.5
    assert torch.equal(Seeds(net, 5).integers(net[0], "member", 7, range(10, 30)), every[10:30])
    for other in (net[1], None):
        assert not torch.equal(seeds.integers(other, "member", 7, range(300)), every)


# ---- where the noise of a draw comes from ----------------------------------------------------------------------------


def test_a_draw_without_seeds_asks_torchs_generator() -> None:
    net = nn.Linear(2, 2)
    torch.manual_seed(3)
    got = Draw(count=3).normals(net, "u", 4, like=DOUBLE)
    torch.manual_seed(3)
    assert torch.equal(got, torch.randn(3, 4, dtype=torch.double))


@pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))
def test_a_fresh_draw_takes_one_number(family: Family) -> None:
    """All noise of a forward then has a name: how much of it there is moves nobody's random stream."""
    net, x = small_net(family), torch.randn(4, 2, 4, 4)
    set_noise_(net, 0.3)
    torch.manual_seed(3)
    torch.randint(2**62, ())
    after = torch.rand(2)
    for run in (
        lambda: Draw.fresh(net),
        lambda: net(x),
        lambda: net(x[:1]),
        lambda: net[0](x),
        lambda: bnn.ELBO(net, num_data=4, likelihood="categorical")(x, torch.zeros(4, dtype=torch.long)),
    ):
        torch.manual_seed(3)
        run()
        assert torch.equal(torch.rand(2), after)
    torch.manual_seed(3)
    first = net(x)
    assert any(not torch.equal(net(x), first) for _ in range(10))
    torch.manual_seed(3)
    assert torch.equal(net(x), first)


def test_draws_are_named_by_their_number_alone() -> None:
    """Draw k is the same in a call with any other number of draws."""
    net = nn.Linear(2, 2)
    every = Draw(count=20, seeds=Seeds(net, 5))
    noise = every.normals(net, "u", 4, like=DOUBLE)
    assert (noise.shape, noise.dtype) == ((20, 4), torch.double)
    assert torch.equal(every.only(1, 20).normals(net, "u", 4, like=DOUBLE), noise[1:])
    assert torch.equal(every.only(3, 19).only(2, 9).normals(net, "u", 4, like=DOUBLE), noise[5:12])
    for count in (1, 3, 8, 9):
        assert torch.equal(Draw(count=count, seeds=Seeds(net, 5)).normals(net, "u", 4, like=DOUBLE), noise[:count])


def test_only_noise_of_inputs_belongs_to_a_part_of_them() -> None:
    net = nn.Linear(2, 2)
    first, second = (Draw(count=3, seeds=Seeds(net, 5), part=part) for part in (0, 1))
    assert torch.equal(first.normals(net, "u", 4, like=FLOAT), second.normals(net, "u", 4, like=FLOAT))
    by_input = [d.normals(net, "n", 4, like=FLOAT, by_input=True, unit=u) for d in (first, second) for u in (0, 1)]
    assert len(torch.stack(by_input).flatten(1).unique(dim=0)) == 4


# ---- members ---------------------------------------------------------------------------------------------------------


def test_all_layers_see_the_members_that_are_given() -> None:
    net, layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), [nn.Linear(2, 2) for _ in range(2)]
    draw = Draw(count=5, seeds=Seeds(net, 5), members=[3, 0, 2, 1, 7])
    for layer in (*net, *layers):
        assert draw.member(layer, 4).tolist() == [3, 0, 2, 1, 3]
        assert draw.member(layer, 2).tolist() == [1, 0, 0, 1, 1]
        assert draw.only(1, 4).member(layer, 4).tolist() == [0, 2, 1]
        assert draw.only(1, 4).only(1, 2).member(layer, 4).tolist() == [2]


@pytest.mark.parametrize("seeded", [True, False])
def test_all_layers_see_one_member_that_is_picked(seeded: bool) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    draw = Draw(count=40, seeds=Seeds(net, 5) if seeded else None)
    part = draw.only(3, 9).member(net[1], 6)
    picked = draw.member(net[0], 6)
    assert torch.equal(picked[3:9], part)
    assert torch.equal(draw.member(net[1], 6), picked)
    assert set(picked.tolist()) == set(range(6))
    if seeded:
        assert torch.equal(Draw(count=10, seeds=Seeds(net, 5)).member(net[0], 6), picked[:10])


def test_a_given_member_is_shown_unless_a_frozen_draw_decides() -> None:
    net, x = Members(), torch.ones(1, 1)
    with bnn.frozen_draw(net, 1):
        named = net(x).abs().round()
    for member in range(4):
        call = Call(net)
        with open_forward(Forward(Draw(call, seeds=Seeds(net, 5), members=[member]), root=net, pinned=True)):
            assert (net(x).abs().round() == member + 1).all()
            with bnn.frozen_draw(net, 1):
                assert (net(x).abs().round() == member + 1).all()  # pinned seeds come first
        call = Call(net)
        with (
            bnn.frozen_draw(net, 1),
            open_forward(Forward(Draw(call, seeds=Seeds(net, 5), members=[member], pinned=False), net, pinned=True)),
        ):
            assert torch.equal(net(x).abs().round(), named)


# ---- what is drawn once ----------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None


def some_rows(draw: Draw) -> Tensor:
    return torch.randn(draw.count, 2)


def drawn_twice(draw: Draw) -> Any:
    pytest.fail("drawn twice")


def three_draws(net: nn.Module) -> Draw:
    return Draw(count=3, seeds=Seeds(net, 5))


def test_a_part_of_several_draws_shows_what_all_of_them_drew() -> None:
    net = nn.Linear(2, 2)
    draw = three_draws(net)
    whole = draw.once(net, "one", some_rows, whole=True)
    assert torch.equal(draw.only(1, 3).once(net, "one", drawn_twice, whole=True), whole[1:])
    assert torch.equal(draw.only(1, 3).only(1, 2).once(net, "one", drawn_twice, whole=True), whole[2:])
    other = draw.only(0, 1).once(net, "other", some_rows, whole=True)
    assert other.shape == (1, 2)
    assert torch.equal(draw.once(net, "other", drawn_twice)[:1], other)
    first, second = draw.only(1, 2).once(net, "pair", lambda draw: Pair(some_rows(draw), None), whole=True)
    assert torch.equal(first, draw.once(net, "pair", drawn_twice).first[1:2])
    assert second is None


def test_what_a_part_draws_for_itself_stays_with_it() -> None:
    net = nn.Linear(2, 2)
    draw = three_draws(net)
    whole, part = draw.once(net, "one", some_rows), draw.only(1, 3)
    own = part.once(net, "one", some_rows)
    assert own.shape == (2, 2)
    assert not torch.equal(own, whole[1:])
    assert torch.equal(part.once(net, "one", drawn_twice), own)
    assert torch.equal(draw.once(net, "one", drawn_twice), whole)
    assert draw.only(1, 3).once(net, "one", lambda draw: "anew") == "anew"


def test_once_is_by_module_and_name() -> None:
    net, draw = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), Draw()
    values = [draw.once(module, name, some_rows) for module in net for name in ("a", "b")]
    assert len({id(value) for value in values}) == 4
    assert draw.once(net[1], "a", drawn_twice) is values[2]


# ---- what a call knows -----------------------------------------------------------------------------------------------


def test_batch_normalisation_by_the_batch_couples_inputs() -> None:
    norm = nn.BatchNorm1d(2)
    net = nn.Sequential(nn.Linear(2, 2), norm)
    assert Call(net.train()).couples_inputs()
    assert not Call(net.eval()).couples_inputs()
    assert Call(nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)).eval()).couples_inputs()
    assert not Call(nn.Sequential(nn.LayerNorm(2))).couples_inputs()
    assert not Call().couples_inputs()
    norm.train()  # one of its layers is enough
    assert Call(net).couples_inputs()


def test_a_call_knows_which_part_runs() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    call = Call(net)
    assert call.scope is call.root is net
    with call.within(net[0]):
        assert call.scope is net[0]
        with pytest.raises(ValueError, match="inside"), call.within(net[1]):
            raise ValueError("inside")
        assert call.scope is net[0]
    assert call.scope is call.root is net
    assert Call(torch.compile(net, backend="eager")).root is net
