"""Deep ensembles against their members, run and trained one by one."""

from __future__ import annotations

import copy
import math
import pathlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import SIZES, cap_memory, sizes_of
from scipy.stats import chi2
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bnn
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.fold import one_by_one
from bnn._engine.forward import Forward, open_forward
from bnn._engine.members import default_samples, evenly, inducing_members
from bnn._engine.noise import Seeds
from bnn.bayesianize import bayesianize_
from bnn.ensemble import Ensemble
from bnn.nn.base import BayesianLayer
from bnn.objective import ELBO, kl_divergence


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def trained_nets(count: int = 3) -> list[nn.Sequential]:
    """Networks that differ in everything, running statistics included."""
    nets = [make_net() for _ in range(count)]
    for net in nets:
        net(torch.randn(20, 5) + torch.randn(5))
        net.eval()
    return nets


def converted(members: int = 3, **options: Any) -> Ensemble:
    ensemble = Ensemble(trained_nets(members))
    bayesianize_(ensemble, "inducing", **(SIZES | {"init_lamda": 0.3} | options))
    return ensemble


def member_shown(ensemble: Ensemble, x: Tensor, output: Tensor) -> int:
    """Which plain member has this output at `x`."""
    return next(i for i, net in enumerate(ensemble.members) if torch.equal(net(x), output))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- making one ------------------------------------------------------------------------------------------------------


def test_members_are_fresh_copies_and_the_network_is_left_alone() -> None:
    net = trained_nets(1)[0]
    net[1].momentum = 0.3
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(7.0)
    before = copy.deepcopy(net.state_dict())
    ensemble = Ensemble(net)
    assert len(ensemble.members) == 5
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    for i, member in enumerate(ensemble.members):
        assert member[0].weight.abs().max() <= 1 / math.sqrt(5)  # torch's own start: uniform within 1 / sqrt(d_in)
        assert member[1].momentum == 0.3
        assert all(torch.equal(value, nn.BatchNorm1d(8).state_dict()[k]) for k, value in member[1].state_dict().items())
        assert all(not torch.equal(member[0].weight, other[0].weight) for other in ensemble.members[:i])


def test_what_a_constructor_does_last_is_done_last() -> None:
    """A container's own start comes after that of its children: kaiming here; attention starts its biases at 0."""
    resnet = bnn.nn.nets.make_network("resnet18", out_features=10, kernel_size=3, remove_maxpool=True)
    for member in Ensemble(resnet, members=2).members:
        weight = member.layer4[1].conv2.weight
        assert weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 512)), rel=0.01)
    attention = nn.MultiheadAttention(8, 2)
    nn.init.ones_(attention.out_proj.bias)
    assert not Ensemble(attention, members=2).members[0].out_proj.bias.any()


def test_a_list_is_taken_as_it_is() -> None:
    nets = trained_nets()
    assert [*Ensemble(nets).members] == nets
    assert [*Ensemble(nn.ModuleList(nets)).members] == nets


def test_a_start_of_ones_own() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.shift

    net = nn.Sequential(nn.Linear(3, 3), Shift())
    with pytest.raises(ValueError, match=r"1 \(Shift\) has parameters but no reset_parameters\(\): pass a list"):
        Ensemble(net)

    def init(one: Any) -> None:
        nn.init.normal_(one[1].shift)

    ensemble = Ensemble(net, members=2, init=init)
    assert torch.equal(ensemble.members[0][0].weight, net[0].weight)
    assert not torch.equal(ensemble.members[0][1].shift, ensemble.members[1][1].shift)
    with pytest.raises(ValueError, match="in place, and return nothing"):
        Ensemble(net, init=lambda one: copy.deepcopy(one))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Ensemble([]), "the list is empty"),
        (lambda: Ensemble(make_net(), members=0), "members must be an integer >= 1, got 0"),
        (lambda: Ensemble(trained_nets(), members=3), "leave out members= and init="),
        (lambda: Ensemble([make_net(), nn.Linear(5, 3)]), r"networks 0 and 1 differ.*'0\.weight' is missing"),
        (
            lambda: Ensemble([nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(4, 3)]),
            r"networks 0 and 2 differ.*'weight': expected \(3, 5\), found \(3, 4\)",
        ),
        (lambda: Ensemble([make_net()] * 2), "networks 0 and 1 are the same object"),
        (lambda: Ensemble(nn.LazyLinear(3)), "weight; bias not initialised yet"),
        (lambda: Ensemble(nn.Linear(5, 3).requires_grad_(False)), "weight; bias frozen"),
        (lambda: Ensemble(nn.LayerNorm(3)), "members 0 and 1 have equal parameters"),
        (lambda: Ensemble(make_net(), init=lambda net: None), "have equal parameters after re-initialising"),
        (lambda: Ensemble(bnn.nn.FFGLinear(5, 3)), r"then bnn\.bayesianize_\(ensemble, \.\.\.\)"),
    ],
)
def test_mistakes(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


def test_wrong_types_are_named() -> None:
    with pytest.raises(TypeError, match="the class Linear: make an object of it"):
        Ensemble(nn.Linear)
    with pytest.raises(TypeError, match=r"expected a network, a torch\.nn\.Module, got str"):
        Ensemble([make_net(), "net"])
    with pytest.raises(TypeError, match="a list of files, one for each member, got 'net'"):
        Ensemble.from_files(make_net(), "net")


# ---- one forward, one member -----------------------------------------------------------------------------------------


def uniform(counts: Tensor) -> bool:
    """Pearson's test: fails by chance once in 10,000 times."""
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum()) < chi2.ppf(1 - 1e-4, len(counts) - 1)


@torch.no_grad()
def test_a_forward_shows_one_member_at_random() -> None:
    ensemble, x = Ensemble(nn.Linear(2, 2), members=5), torch.randn(3, 2)
    outer = nn.Sequential(ensemble, nn.Identity())
    for network in (ensemble, outer):
        counts = torch.zeros(5)
        for _ in range(1000):
            counts[member_shown(ensemble, x, network(x))] += 1
        assert uniform(counts)


@torch.no_grad()
def test_a_frozen_draw_shows_the_member_of_its_seed() -> None:
    ensemble, x = Ensemble(nn.Linear(2, 2), members=5), torch.randn(3, 2)
    outer, counts = nn.Sequential(nn.Identity(), ensemble), torch.zeros(5)
    for seed in range(500):
        with bnn.frozen_draw(outer, seed):
            first = outer(x)
            assert all(torch.equal(network(x), first) for network in (outer, ensemble))
        counts[member_shown(ensemble, x, first)] += 1
    assert uniform(counts)


def test_a_frozen_draw_holds_a_bayesian_member() -> None:
    ensemble, x = converted(), torch.randn(4, 5)
    outputs = []
    for seed in (1, 2):
        with bnn.frozen_draw(ensemble, seed):
            outputs.append(ensemble(x))
            assert torch.equal(ensemble(x), outputs[-1])
    assert not torch.equal(*outputs)


@pytest.mark.parametrize("bayesian", [False, True])
def test_gradient_checkpointing_runs_the_same_member_again(bayesian: bool) -> None:
    ensemble, x = converted() if bayesian else Ensemble(trained_nets()), torch.randn(4, 5)
    outer = nn.Sequential(nn.Linear(5, 5), ensemble)
    for combination in range(3):

        def gradients(run: Any, shown: int = combination) -> list[Tensor | None]:
            torch.manual_seed(1)
            outer.zero_grad()
            draw = Draw.fresh(outer, Call(outer))
            ensemble.shown(draw, torch.tensor([shown]))
            with open_forward(Forward(draw, root=outer, pinned=True)):
                output = run(x)
            torch.manual_seed(99)  # whatever happens between forward and backward
            output.square().sum().backward()
            return [parameter.grad for parameter in ensemble.members[shown].parameters()]

        again = gradients(lambda x: checkpoint(outer, x, use_reentrant=False))
        for got, want in zip(again, gradients(outer), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("bayesian", [False, True])
def test_an_objective_of_a_network_with_a_checkpointed_ensemble_inside(bayesian: bool) -> None:
    class Outer(nn.Module):
        again = False

        def __init__(self, ensemble: Ensemble) -> None:
            super().__init__()
            self.stem, self.ensemble = nn.Linear(5, 5), ensemble

        def forward(self, x: Tensor) -> Tensor:
            h = self.stem(x)
            return checkpoint(self.ensemble, h, use_reentrant=False) if self.again else self.ensemble(h)

    outer = Outer(converted() if bayesian else Ensemble(trained_nets()))
    x, y = torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    found = []
    for outer.again in (False, True):
        torch.manual_seed(1)
        outer.zero_grad()
        ELBO(outer, 4, "categorical")(x, y).loss.backward()
        found.append({name: parameter.grad for name, parameter in outer.named_parameters()})
    assert all(grad is not None for grad in found[0].values())  # every member sees every batch
    torch.testing.assert_close(found[1], found[0])


# ---- drawing ---------------------------------------------------------------------------------------------------------


def test_predict_is_the_mean_of_the_members() -> None:
    ensemble, x = Ensemble(trained_nets()), torch.randn(6, 5)
    with torch.no_grad():
        outputs = torch.stack([net(x) for net in ensemble.members])
    prediction = bnn.predict(ensemble.train(), x, keep_samples=True)
    assert torch.equal(prediction.samples, outputs)
    torch.testing.assert_close(prediction.probs, outputs.softmax(-1).mean(0), rtol=1e-6, atol=0)
    assert prediction.epistemic.min() > 0
    assert ensemble.members[0][1].training
    assert torch.equal(bnn.predict(ensemble, x, batch_size=2).probs, prediction.probs)


def test_members_are_used_evenly_and_a_plain_one_runs_once() -> None:
    ensemble, x = Ensemble(trained_nets()), torch.randn(6, 5)
    calls: list[int] = []
    for i, net in enumerate(ensemble.members):
        net.register_forward_hook(lambda *_, i=i: calls.append(i))
    outputs = bnn.draws(ensemble, x, samples=6)
    assert calls == [0, 1, 2]
    want = [net(x) for net in ensemble.members for _ in range(2)]
    assert torch.equal(outputs, torch.stack(want))
    assert outputs.requires_grad
    uneven = [member_shown(ensemble, x, output) for output in bnn.draws(ensemble, x, samples=7)]
    assert uneven == sorted(uneven)
    assert sorted(uneven.count(i) for i in range(3)) == [2, 2, 3]


def test_which_members_come_once_more_is_random() -> None:
    counts = torch.stack([evenly(8, 3).bincount(minlength=3) for _ in range(900)])
    assert set(counts.flatten().tolist()) == {2, 3}
    assert torch.equal(counts.sum(1), torch.full((900,), 8))
    assert uniform((counts - 2).sum(0).float())
    assert torch.equal(evenly(2, 50, seeded()), evenly(2, 50, seeded()))


@pytest.mark.parametrize("limit", [2**25, 1])
def test_draws_are_those_of_the_members(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member's share is its own posterior: compared draw by draw, whatever runs in one pass."""
    cap_memory(monkeypatch, limit)
    ensemble, x = converted(sampling="weight"), torch.randn(4, 5)
    outputs = bnn.draws(ensemble, x, samples=6, generator=seeded())
    number = int(torch.randint(2**62, (), generator=seeded()))
    draw = Draw(count=6, seeds=Seeds(ensemble, number))
    for k, output in enumerate(outputs):
        (want,) = one_by_one(ensemble.members[k // 2], [x], [draw.only(k, k + 1)])
        torch.testing.assert_close(output, want)
    with bnn.frozen_draw(ensemble, number):  # which shows the first of the draws that the number names
        torch.testing.assert_close(outputs[0], ensemble.members[0](x))
    parts = bnn.draws(ensemble, x, samples=6, generator=seeded(), batch_size=3)
    torch.testing.assert_close(parts, outputs)


def test_pairs_of_network_and_inducing_member_are_even() -> None:
    ensemble, x = converted(2, q_inducing="ensemble", ensemble_size=3, max_lamda=0), torch.randn(4, 5)
    outputs = bnn.draws(ensemble, x, samples=12).detach()
    distinct, counts = outputs.flatten(1).unique(dim=0, return_counts=True)
    assert len(distinct) == 6
    assert counts.tolist() == [2] * 6
    assert len(bnn.draws(ensemble, x)) == 24
    for part in outputs.view(2, 6, -1):
        assert len(part.unique(dim=0)) == 3
    for _ in range(20):
        members = inducing_members(ensemble, [(0, 5), (5, 10)])
        assert all(sorted(part.count(i) for i in range(3)) == [1, 2, 2] for part in (members[:5], members[5:]))


@torch.no_grad()
def test_frozen_draws_pick_network_and_inducing_member_independently() -> None:
    ensemble, x = converted(3, q_inducing="ensemble", ensemble_size=3, max_lamda=0), torch.randn(4, 5)
    seen = set()
    for seed in range(100):
        with bnn.frozen_draw(ensemble, seed):
            seen.add(round(ensemble(x).sum().item(), 4))
    assert len(seen) == 9


@pytest.mark.parametrize(("members", "size", "samples"), [(3, None, 21), (5, None, 20), (1, 8, 24), (3, 8, 24)])
def test_the_default_counts_every_member_the_same(members: int, size: int | None, samples: int) -> None:
    options = {} if size is None else {"q_inducing": "ensemble", "ensemble_size": size}
    network = converted(members, **options)
    assert default_samples(network if members > 1 else network.members[0]) == samples
    assert default_samples(nn.Sequential(nn.Identity(), Ensemble(trained_nets()))) == 3


def test_zero_samples() -> None:
    nets, x = trained_nets(), torch.randn(4, 5)
    want = torch.stack([net(x) for net in nets])
    assert torch.equal(bnn.draws(nets[0], x, samples=0), want[:1])
    prediction = bnn.predict(nets[0], x, samples=0)
    torch.testing.assert_close(prediction.probs, want[0].softmax(-1).detach(), rtol=1e-6, atol=0)
    assert not prediction.epistemic.any()
    assert torch.equal(bnn.draws(Ensemble(nets), x, samples=0), want)
    with pytest.raises(ValueError, match="samples=0 runs it as it is"):
        bnn.predict(nets[0], x)


@torch.no_grad()
def test_ensembles_inside_a_network_show_every_combination() -> None:
    first, second, x = Ensemble(nn.Linear(2, 2), 2), Ensemble(nn.Linear(2, 2), 3), torch.randn(4, 2)
    net = nn.Sequential(first, nn.Tanh(), second)
    want = torch.stack([b(torch.tanh(a(x))) for a in first.members for b in second.members])
    for samples in (None, 0):
        assert torch.equal(bnn.draws(net, x, samples=samples), want)


def test_a_member_can_be_an_ensemble() -> None:
    nets, x = trained_nets(4), torch.randn(4, 5)
    ensemble = Ensemble([Ensemble(nets[:2]), Ensemble(nets[2:])])
    with torch.no_grad():
        want = torch.stack([net(x).softmax(-1) for net in nets]).mean(0)
    torch.testing.assert_close(bnn.predict(ensemble, x).probs, want)


# ---- training --------------------------------------------------------------------------------------------------------


def batch(n: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5, dtype=torch.double), torch.randint(3, (n,))


OBJECTIVES = [{}, {"samples": 3}, {"samples": 3, "split": True}, {"kl_weight": 0.3, "function_space": True}]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("options", OBJECTIVES)
@pytest.mark.parametrize("inference", ["plain", "inducing", "ffg"])
def test_the_objective_is_the_mean_of_the_members_objectives(
    inference: str, options: dict[str, Any], nested: bool
) -> None:
    """Values and gradients, with the noise held: that of a member is 1/M of what training it alone gives."""
    ensemble, (x, y) = Ensemble(trained_nets()).double().train(), batch(6)
    net: Any = nn.Sequential(nn.Identity(), ensemble) if nested else ensemble
    if inference != "plain":
        bayesianize_(net, inference, **sizes_of(inference))
    with bnn.frozen_draw(net, seed=4):
        together = ELBO(net, 50, "categorical", **options)(x, y)
        together.loss.backward()
        gradients = [[p.grad.clone() for p in member.parameters()] for member in ensemble.members]
        ensemble.zero_grad()
        alone = [ELBO(member, 50, "categorical", **options)(x, y) for member in ensemble.members]
        torch.stack([out.loss for out in alone]).sum().backward()
    for got, want in zip(zip(*alone, strict=True), together, strict=True):
        torch.testing.assert_close(torch.stack([torch.as_tensor(v) for v in got]).mean(), torch.as_tensor(want))
    for member, shares in zip(ensemble.members, gradients, strict=True):
        for parameter, share in zip(member.parameters(), shares, strict=True):
            torch.testing.assert_close(3 * share, parameter.grad, rtol=1e-9, atol=1e-12)


def test_every_draw_of_a_member_differs() -> None:
    ensemble, (x, y) = converted().double(), batch()
    result, pairs = ELBO(ensemble, 50, "categorical", samples=2).with_outputs(x, y)
    assert len(pairs) == 6
    assert all(target is y for _, target in pairs)
    assert len({output.sum().item() for output, _ in pairs}) == 6
    want = torch.stack([F.cross_entropy(*pair) for pair in pairs]).mean()
    torch.testing.assert_close(result.data, want)
    assert 50 * 3 * (result.kl_u + result.kl_lamda).item() == pytest.approx(kl_divergence(ensemble).item(), rel=1e-6)


def test_outputs_of_shares_come_with_their_targets() -> None:
    ensemble, (x, y) = Ensemble(trained_nets(2)).double(), batch(7)
    result, pairs = ELBO(ensemble, 50, "categorical", samples=2, split=True).with_outputs(x, y)
    assert [target.tolist() for _, target in pairs] == [y[0::2].tolist(), y[1::2].tolist()] * 2
    for i, (output, _) in enumerate(pairs):
        torch.testing.assert_close(output, ensemble.members[i // 2](x[i % 2 :: 2]))
    want = torch.stack([F.cross_entropy(member(x), y) for member in ensemble.members]).mean()
    torch.testing.assert_close(result.data, want)


def test_members_share_the_noise_and_what_is_around_them() -> None:
    stem = bnn.nn.FFGLinear(5, 5)
    ensemble = Ensemble(nn.Linear(5, 1), members=2)
    bayesianize_(ensemble, "ffg")
    elbo = ELBO(nn.Sequential(stem, ensemble), 50, "gaussian")
    out = elbo(torch.randn(6, 5), torch.randn(6, 1))
    want = kl_divergence(stem) + kl_divergence(ensemble) / 2
    assert 50 * out.kl_u.item() == pytest.approx(want.item(), rel=1e-6)
    out.loss.backward()
    assert all(parameter.grad is not None for parameter in elbo.parameters())
    assert elbo.likelihood._sd.shape == ()


# ---- converting the whole --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"q_inducing": "ensemble", "ensemble_size": 2}, {"q_inducing": "matrix"}])
def test_conversion_at_full_rank_keeps_every_member(options: dict[str, Any]) -> None:
    nets, x = [net.double() for net in trained_nets()], torch.randn(4, 5, dtype=torch.double)
    with torch.no_grad():
        want = torch.stack([net(x) for net in nets])
        ensemble = Ensemble(nets)
        bayesianize_(ensemble, "inducing", inducing_rows=9, inducing_cols=9, init="weights", **options)
        torch.testing.assert_close(bnn.draws(ensemble, x, samples=0), want, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bnn.predict(ensemble, x, samples=0).probs, want.softmax(-1).mean(0))


def test_keys_reach_every_member() -> None:
    ensemble = Ensemble(make_net(), members=2)
    bayesianize_(ensemble, {"members.*.3": "ffg", "members.1.0": "fcg"})
    layers = {name: type(m).__name__ for name, m in ensemble.named_modules() if isinstance(m, BayesianLayer)}
    assert layers == {"members.0.3": "FFGLinear", "members.1.0": "FCGLinear", "members.1.3": "FFGLinear"}


def test_a_layer_that_members_share_is_converted_once_and_counts_once() -> None:
    stem = nn.Linear(5, 5)
    ensemble, (x, y) = Ensemble([nn.Sequential(stem, nn.Linear(5, 3)) for _ in range(2)]), batch()
    bayesianize_(ensemble, "ffg")
    out = ELBO(ensemble.double(), 50, "categorical")(x, y)
    heads = [kl_divergence(member[1]) for member in ensemble.members]
    assert 50 * out.kl_u.item() == pytest.approx((kl_divergence(stem) + sum(heads) / 2).item())


def test_three_compressed_networks_are_smaller_than_one() -> None:
    def make() -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    ensemble = Ensemble(make(), members=3)
    assert bnn.parameter_count(ensemble) == 3 * bnn.parameter_count(make())
    bayesianize_(ensemble, "inducing", inducing_rows=8, inducing_cols=8)
    assert bnn.parameter_count(ensemble) == 3 * bnn.parameter_count(ensemble.members[0])
    assert bnn.parameter_count(ensemble) < 0.4 * bnn.parameter_count(make())


@pytest.mark.parametrize("on_members", [False, True])
def test_global_inducing_weights(on_members: bool, tmp_path: pathlib.Path) -> None:
    ensemble, x = converted(2, inducing_rows=2, inducing_cols=2), torch.randn(4, 5)
    for network in ensemble.members if on_members else [ensemble]:
        bnn.register_global_inducing_weights_(network, 2, 2, init_lamda=0.1)
    draw = lambda net: bnn.draws(net, x, samples=4, generator=seeded())  # noqa: E731
    outputs = draw(ensemble)
    assert torch.equal(draw(ensemble), outputs)
    assert not torch.equal(outputs[0], outputs[1])
    bnn.save(ensemble, tmp_path / "ensemble.safetensors")
    fresh = Ensemble(make_net(), members=2).eval()
    bnn.load_(fresh, tmp_path / "ensemble.safetensors")
    assert torch.equal(draw(fresh), outputs)
    out = ELBO(ensemble, 50, "categorical")(x, torch.tensor([0, 1, 2, 0]))
    shared = 0.0 if on_members else kl_divergence(ensemble._global_inducing_module).item()
    want = shared + (kl_divergence(ensemble).item() - shared) / 2
    assert 50 * (out.kl_u + out.kl_lamda).item() == pytest.approx(want, rel=1e-6)


# ---- as any other network --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
def test_one_file_holds_the_whole(plain: bool, tmp_path: pathlib.Path) -> None:
    ensemble, x = Ensemble(trained_nets()) if plain else converted(), torch.randn(4, 5)
    bnn.save(ensemble, tmp_path / "ensemble.safetensors")
    fresh = Ensemble(make_net(), members=3)
    bnn.load_(fresh, tmp_path / "ensemble.safetensors")
    state = ensemble.state_dict()
    assert list(fresh.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in fresh.state_dict().items())
    outputs = [bnn.predict(one, x, generator=seeded(), keep_samples=True).samples for one in (ensemble, fresh)]
    assert torch.equal(*outputs)
    with pytest.raises(ValueError, match=r"members\.2"):
        bnn.load_(Ensemble(make_net(), members=2), tmp_path / "ensemble.safetensors")


@pytest.mark.parametrize("plain", [False, True])
def test_members_from_files(plain: bool, tmp_path: pathlib.Path) -> None:
    nets, x = list((Ensemble(trained_nets()) if plain else converted()).members), torch.randn(4, 5)
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for net, path in zip(nets, paths, strict=True):
        bnn.save(net, path)
    want = torch.cat([bnn.draws(net, x, samples=0) for net in nets])
    for source in (make_net, make_net()):
        ensemble = Ensemble.from_files(source, paths).eval()
        assert torch.equal(bnn.draws(ensemble, x, samples=0), want)
    with pytest.raises(ValueError, match="the list is empty"):
        Ensemble.from_files(make_net, [])


def test_what_works_for_a_network_works_for_an_ensemble() -> None:
    ensemble, x = converted(), torch.randn(4, 5)
    twin = copy.deepcopy(ensemble)
    draw = lambda net: bnn.draws(net, x, samples=3, generator=seeded())  # noqa: E731
    assert torch.equal(draw(twin), draw(ensemble))
    with torch.no_grad():
        twin.members[0][0].inducing_mean.zero_()
    assert not torch.equal(draw(twin)[0], draw(ensemble)[0])
    assert torch.equal(draw(twin)[1:], draw(ensemble)[1:])
    twin.load_state_dict(ensemble.state_dict())
    assert torch.equal(draw(twin), draw(ensemble))
    assert twin.double()(x.double()).dtype == torch.float64
    assert all(m.training for m in twin.train().modules())
    assert not any(m.training for m in twin.eval().modules())
    names = [group["name"] for group in bnn.parameter_groups(ensemble, lr=1e-3)]
    assert names == ["rest", "scales", *(f"u of members.{i}.{j}" for i in range(3) for j in (0, 3))]
    bnn.set_sampling_(ensemble, "local")
    assert {member[0].options.sampling for member in ensemble.members} == {"local"}


def test_inputs_and_outputs_of_any_kind() -> None:
    class Two(nn.Linear):
        def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
            y = super().forward(x)
            return {"logits": y, "scaled": y * scale}

    ensemble, x, scale = Ensemble(Two(2, 2), members=2), torch.randn(4, 2), torch.tensor(3.0)
    outputs = bnn.draws(ensemble, {"x": x, "scale": scale}, samples=4)
    assert outputs["scaled"].shape == (4, 4, 2)
    torch.testing.assert_close(outputs["scaled"], 3 * outputs["logits"])
    assert set(ensemble(x, scale=scale)) == {"logits", "scaled"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dynamo's own: seeded generators break its graphs
@torch.no_grad()
def test_compiled_ensembles() -> None:
    ensemble, x = Ensemble(nn.Linear(5, 3), members=2), torch.randn(4, 5)
    compiled = torch.compile(ensemble, backend="eager")
    assert torch.equal(bnn.predict(compiled, x).probs, bnn.predict(ensemble, x).probs)
    with bnn.frozen_draw(ensemble, 3):
        assert torch.equal(compiled(x), ensemble(x))
