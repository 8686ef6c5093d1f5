"""Sizes from a budget: exact counts, never above it, nothing left that would fit; and what is said about the rest."""

from __future__ import annotations

import copy
import itertools
import json
import re
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bnn
from bnn._conversion.budget import Curve, energy_by_rank, share
from bnn._conversion.energy import LITTLE, EnergyWarning
from bnn._conversion.record import Conversion
from bnn.nn.families.inducing import InducingBase


def mlp(*sizes: int) -> nn.Sequential:
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(30, 40)
        self.again = nn.ModuleList([nn.Linear(40, 40)] * 2)
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.again[1](self.again[0](self.first(x))))


def cnn() -> nn.Sequential:
    """With a stem, 1 x 1 and depthwise convolutions, and BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.Conv2d(32, 32, 3, padding=1, groups=32),  # 320 parameters, M = 1 takes 47
        nn.Conv2d(32, 64, 1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, groups=2, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def conv1d() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(8, 32, 5), nn.ReLU(), nn.Conv1d(32, 48, 3), nn.Flatten(), nn.Linear(48 * 4, 3))


NETS = {
    "mlp": lambda: mlp(64, 100, 50, 10),
    "tied": Tied,
    "cnn": cnn,
    "conv1d": conv1d,
    "double": lambda: mlp(40, 60, 60, 3).double(),
    "bf16": lambda: mlp(40, 60, 60, 3).to(torch.bfloat16),
}
KINDS: dict[str, dict[str, Any]] = {
    "diagonal": {},
    "matrix": {"q_inducing": "matrix"},
    "full": {"q_inducing": "full"},
    "ensemble": {"q_inducing": "ensemble", "ensemble_size": 3},
    "fixed lamda": {"learn_lamda": False},
    "map": {"max_sd_u": 0},
    "paper": {"init": "paper"},
}


def covered(net: nn.Module) -> list[nn.Module]:
    return [module for module in net.modules() if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]


def count(layers: list[nn.Module]) -> int:
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())


def at(layer: InducingBase, m: int) -> int:
    return layer.cost((layer.z_row.shape[1], layer.z_col.shape[1]), layer.options, m, m)


def converted(net: nn.Module, *args: Any, **options: Any) -> bool:
    """Converts, in place; False where the budget is not possible."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            bnn.bayesianize_(net, *args, **options)
        except ValueError as error:
            return "is the least possible" not in str(error)
    return True


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("name", list(NETS))
@pytest.mark.parametrize("family", ["inducing", "inducingdeterministic"])
def test_never_above_the_budget_and_nothing_left_within_it(name: str, kind: str, family: str) -> None:
    net = NETS[name]()
    layers = covered(net)
    plain = {layer: count([layer]) for layer in layers}
    for budget in (0.4, 0.9, int(0.6 * sum(plain.values()))):
        one = copy.deepcopy(net)
        if not converted(one, family, budget=budget, **KINDS[kind]):
            assert kind == "full"  # of the last layer: full rank, with a covariance of all entries of U
            continue
        limit = budget if isinstance(budget, int) else budget * sum(plain.values())
        spent = count(covered(one))
        assert spent <= limit
        *others, last = (layer for layer in covered(one))
        assert isinstance(last, InducingBase)
        assert len(last.z_row) == len(last.z_col) == min(last.d_out, last.d_in)
        for before, layer in zip(layers, others, strict=False):
            if not isinstance(layer, InducingBase):
                continue
            m = len(layer.z_row)
            assert count([layer]) == at(layer, m) <= plain[before]
            grown = at(layer, m + 1)
            rank = min(layer.z_row.shape[1], layer.z_col.shape[1])
            assert m == rank or grown > plain[before] or spent - at(layer, m) + grown > limit, (layer, m)


def test_sizes_lose_least_together() -> None:
    """Against every choice there is, for three small layers: in the sum of logarithms, up to one step."""
    torch.manual_seed(1)
    curves = []
    for d_out, d_in in ((9, 12), (15, 6), (20, 20)):
        W = torch.randn(d_out, d_in).double() @ torch.diag(torch.linspace(1, 0.05, d_in).double() ** 2)
        costs = [m * (d_out + d_in + 2) + 2 * m * m + 1 for m in range(1, 6)]
        curves.append(Curve(10**6, costs, energy_by_rank(W)[:5], seen=True))
    for budget in (160, 250, 333):
        ranks = share(curves, budget)

        def kept(choice: Any) -> float:
            return sum(torch.tensor(c.kept[m - 1]).log().item() for c, m in zip(curves, choice, strict=True))

        def cost(choice: Any) -> int:
            return sum(c.costs[m - 1] for c, m in zip(curves, choice, strict=True))

        best = max((c for c in itertools.product(range(1, 6), repeat=3) if cost(c) <= budget), key=kept)
        assert cost(ranks) <= budget
        step = max(kept(best) - kept([m - (i == j) for j, m in enumerate(best)]) for i in range(3) if best[i] > 1)
        assert kept(ranks) >= kept(best) - step


def test_by_the_weights_alone_every_layer_gets_most_of_an_equal_share() -> None:
    """One layer of rank 1 and one with a flat spectrum: the first may not starve, however little it seems to need."""
    net = mlp(80, 80, 80, 4)
    with torch.no_grad():
        net[0].weight.copy_(torch.outer(torch.randn(80), torch.randn(80)) / 9)
    plain = [count([layer]) for layer in covered(net)]
    converted(net, "inducing", budget=0.5)
    first, second, last = (count([layer]) for layer in covered(net))
    fair = (0.5 * sum(plain) - last) / sum(plain[:2])
    step = 80 + 80 + 4 * 20 + 8
    assert 0.9 * fair * plain[0] - step < first < second


def test_the_same_net_gets_the_same_sizes() -> None:
    nets = [mlp(64, 100, 10) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for seed, net in enumerate(nets):
        torch.manual_seed(seed)
        bnn.bayesianize_(net, "inducing", budget=0.4)
    first, second = ([layer.sizes for layer in bnn.summary(net).layers] for net in nets)
    assert first == second


def test_an_impossible_budget_names_the_least_possible_one() -> None:
    net = mlp(64, 100, 10)
    with pytest.raises(ValueError, match=r"budget=0\.05 is .* is the least possible") as error:
        bnn.bayesianize_(net, "inducing", budget=0.05)
    assert [type(layer) for layer in net] == [nn.Linear, nn.ReLU, nn.Linear]
    found = re.search(r"budget=(\d+) or ([\d.]+) is the least", str(error.value))
    assert found is not None
    least, fraction = int(found[1]), float(found[2])
    with pytest.raises(ValueError, match=f"at least {least:,}"):
        bnn.bayesianize_(net, "inducing", budget=least - 1)
    again = copy.deepcopy(net)
    bnn.bayesianize_(net, "inducing", budget=least)
    assert bnn.parameter_count(net) == least
    bnn.bayesianize_(again, "inducing", budget=fraction)


def test_layers_that_do_not_pay_stay_dense_and_are_named() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 40, 3), nn.Conv2d(40, 40, 3), nn.Flatten(), nn.Linear(40, 4))
    plain = bnn.parameter_count(net)
    with pytest.warns(UserWarning, match=r"left deterministic: 0 \(Conv2d\): even a U of 1 x 1 takes 9 parameters"):
        bnn.bayesianize_(net, "inducing", budget=0.5)
    assert type(net[0]) is nn.Conv2d
    assert bnn.parameter_count(net) <= plain / 2


def test_if_nothing_pays_the_last_layer_alone_is_converted() -> None:
    for net in (mlp(2, 2, 3), nn.Sequential(nn.Linear(20, 10))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bnn.bayesianize_(net, "inducing", budget=0.5)
        said = [str(one.message) for one in caught]
        assert any("the last one alone is converted" in one and "above budget=0.5" in one for one in said)
        assert [type(layer).__name__ for layer in covered(net)][-1] == "InducingLinear"
        assert all(type(layer) is nn.Linear for layer in covered(net)[:-1])


def test_without_sizes_and_budget_it_is_half() -> None:
    net = mlp(64, 200, 100, 10)
    plain, same = bnn.parameter_count(net), copy.deepcopy(net)
    bnn.bayesianize_(net, "inducing")
    bnn.bayesianize_(same, "inducing", budget=0.5)
    assert 0.45 * plain < bnn.parameter_count(net) == bnn.parameter_count(same) <= plain / 2


def test_where_half_cannot_be_the_other_layers_take_half() -> None:
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(32 * 49, 10))
    plain = [count([layer]) for layer in covered(net)]
    with pytest.warns(UserWarning, match="half of the parameters is not enough .* '3', keeps full rank"):
        bnn.bayesianize_(net, "inducing")
    *others, last = covered(net)
    assert len(last.z_row) == 10
    assert count(others) <= sum(plain[:-1]) / 2
    assert bnn.parameter_count(net) < sum(plain)
    with pytest.raises(ValueError, match="The last layer, '1', keeps full rank"):
        bnn.bayesianize_(mlp(8, 64)[:1].append(nn.Linear(64, 64)), "inducing", budget=0.5)


def test_sizes_that_are_given_win_and_count() -> None:
    net = mlp(64, 100, 50, 10)
    plain = bnn.parameter_count(net)
    given = {"inference": "inducing", "inducing_rows": 7, "inducing_cols": 9}
    bnn.bayesianize_(net, {"0": given, "Linear": "inducing"}, budget=0.6)
    assert (len(net[0].z_row), len(net[0].z_col)) == (7, 9)
    assert bnn.parameter_count(net) <= 0.6 * plain
    with pytest.warns(UserWarning, match="budget=0.1 has no effect"):
        bnn.bayesianize_(mlp(8, 9), "inducing", budget=0.1, inducing_rows=4)


def test_an_entry_may_have_a_budget_of_its_own() -> None:
    net = mlp(64, 100, 50, 10)
    plain = [count([layer]) for layer in covered(net)]
    own = {"inference": "inducing", "budget": 0.2}
    bnn.bayesianize_(net, {"0": own, "2": {"inference": "inducing", "budget": 0.7}, "4": "ffg"})
    spent = [count([layer]) for layer in covered(net)]
    assert 0.15 * plain[0] < spent[0] <= 0.2 * plain[0]
    assert 0.6 * plain[1] < spent[1] <= 0.7 * plain[1]
    assert spent[2] == 2 * plain[2]


def test_methods_take_a_budget_instead_of_their_size() -> None:
    net = mlp(64, 200, 10)
    plain = bnn.parameter_count(net)
    bnn.bayesianize_(net, "ffg-u", budget=0.4)
    assert 0.35 * plain < bnn.parameter_count(net) <= 0.4 * plain
    assert net[0].options.max_sd_u == 0.1


def test_every_member_of_an_ensemble_keeps_its_last_layer() -> None:
    net = bnn.Ensemble(mlp(64, 100, 10), members=3)
    bnn.bayesianize_(net, "inducing", budget=0.5)
    assert [len(member[2].z_row) for member in net.members] == [10, 10, 10]


@pytest.mark.parametrize("budget", [0, 0.0, -1, 1.5, True, "half", float("nan"), float("inf")])
def test_bad_budgets_are_refused(budget: Any) -> None:
    with pytest.raises(ValueError, match="budget must be a fraction of the parameters"):
        bnn.bayesianize_(mlp(8, 9), "inducing", budget=budget)


def test_families_without_sizes_have_no_budget() -> None:
    for inference, options in (("ffg", {"budget": 0.5}), ({"0": "fcg"}, {"budget": 0.5}), ("ffg-w", {"budget": 9})):
        with pytest.raises(TypeError, match="a budget chooses the sizes of inducing matrices"):
            bnn.bayesianize_(mlp(8, 9, 3), inference, **options)
    with pytest.raises(TypeError, match="'ffg' has none"):
        bnn.bayesianize_(mlp(8, 9, 3), {"0": {"inference": "ffg", "budget": 0.5}, "2": "inducing"})


def test_frozen_layers_stay_frozen_and_count() -> None:
    net = mlp(64, 100, 50, 10)
    net[0].requires_grad_(False)
    plain = bnn.parameter_count(net)
    bnn.bayesianize_(net, "inducing", budget=0.5)
    assert not net[0].z_row.requires_grad
    assert bnn.parameter_count(net) <= plain / 2


def test_files_keep_the_sizes_and_the_prior(tmp_path: Any) -> None:
    net, fresh, x = mlp(64, 100, 10), mlp(64, 100, 10), torch.randn(3, 64)
    rms = torch.cat([net[0].weight, net[0].bias[:, None]], 1).square().mean().sqrt().item()
    bnn.bayesianize_(net, "inducing", budget=0.4, prior_sd="weights", sqrt_width_scaling=True)
    assert net[0].prior_sd() == pytest.approx(rms, rel=1e-6)
    bnn.save(net, tmp_path / "net")
    bnn.load_(fresh, tmp_path / "net")
    assert fresh[0].options == net[0].options
    assert torch.equal(bnn.predict(net, x, samples=0).probs, bnn.predict(fresh, x, samples=0).probs)


def test_files_that_leave_sizes_open_have_those_of_their_time() -> None:
    """floor(sqrt(d)); and an option that is newer than the file has its default."""
    layer = {"names": [""], "type": "Linear", "weight": [9, 15], "bias": True, "family": "inducing"}
    text = json.dumps({"layers": [layer | {"options": {"inducing_rows": None}}], "globals": []})
    options = Conversion.from_json(text).layers[0].options
    assert (options["inducing_rows"], options["inducing_cols"], options["kernel"]) == (3, 4, "paper")


def test_a_budget_splits_kernels_where_that_takes_fewer_parameters() -> None:
    nets = [nn.Sequential(nn.Conv2d(16, 16, 3), nn.Conv2d(16, 60, 3), nn.Flatten(), nn.Linear(60, 4)) for _ in "abc"]
    bnn.bayesianize_(nets[0], "inducing", budget=0.5)
    assert [layer.options.kernel for layer in covered(nets[0])] == ["split", "paper", "paper"]
    bnn.bayesianize_(nets[1], "inducing", budget=0.5, kernel="paper")
    bnn.bayesianize_(nets[2], "inducing", budget=0.5, init="paper")
    assert {layer.options.kernel for net in nets[1:] for layer in covered(net)} == {"paper"}


def test_a_prior_of_zero_weights_is_that_of_the_width() -> None:
    net = nn.Linear(8, 5, bias=False)
    nn.init.zeros_(net.weight)
    bnn.bayesianize_(net, "inducing", inducing_rows=2, prior_sd="weights")
    assert net.prior_sd() == pytest.approx(8**-0.5)
    with pytest.raises(ValueError, match="prior_sd must be a finite number > 0 or 'weights', got 'wide'"):
        bnn.bayesianize_(nn.Linear(3, 2), "inducing", inducing_rows=2, prior_sd="wide")


@pytest.mark.filterwarnings("ignore::bnn._conversion.energy.EnergyWarning")
@pytest.mark.parametrize("q", ["diagonal", "matrix", "full"])
def test_sds_of_u_start_in_proportion_to_it(q: str) -> None:
    for scale in (1.0, 30.0):
        net = nn.Linear(20, 10)
        with torch.no_grad():
            net.weight.mul_(scale)
        bnn.bayesianize_(net, "inducing", inducing_rows=4, q_inducing=q)
        sds = net.q.sds(net).double()
        rms = net.q.mean(net).double().square().mean().sqrt()
        torch.testing.assert_close(sds, torch.full_like(sds, 1e-3 * rms.item()), rtol=1e-3, atol=0)
    paper = nn.Linear(20, 10)
    bnn.bayesianize_(paper, "inducing", inducing_rows=4, q_inducing=q, init="paper")
    torch.testing.assert_close(paper.q.sds(paper).float(), torch.full_like(paper.q.sds(paper).float(), 1e-3))


# ---- energy ----------------------------------------------------------------------------------------------------------


def test_little_energy_is_said_once_and_random_weights_have_none_to_lose() -> None:
    fresh = mlp(64, 100, 50, 10)
    bnn.bayesianize_(fresh, "inducing", inducing_rows=3)
    assert all(layer.energy_kept < LITTLE for layer in covered(fresh))
    resnet = bnn.nn.nets.make_network("resnet18", out_features=10)
    bnn.bayesianize_(resnet, {"layer1": {"inference": "inducing", "inducing_rows": 8}})
    trained = mlp(64, 100, 50, 10)
    with torch.no_grad():
        for layer in covered(trained):
            layer.weight.add_(0.03 * torch.randn_like(layer.weight))
    with pytest.warns(EnergyWarning, match=r"3 layers keep less than 80% .* bnn.summary") as caught:
        bnn.bayesianize_(trained, "inducing", inducing_rows=3)
    assert len(caught) == 1


def test_the_energy_kept_is_that_of_the_leading_singular_values() -> None:
    net = nn.Linear(20, 10)
    W = torch.cat([net.weight, net.bias[:, None]], 1).detach().double()
    energy = torch.linalg.svdvals(W).square()
    bnn.bayesianize_(net, "inducing", inducing_rows=4)
    assert net.energy_kept == pytest.approx(float(energy[:4].sum() / energy.sum()), abs=1e-5)
    torch.testing.assert_close(torch.tensor(energy_by_rank(W)).double(), (energy / energy.sum()).cumsum(0))
    net.init_from_deterministic_params({"weight": torch.ones(10, 20), "bias": torch.ones(10)})
    assert net.energy_kept is None


# ---- the summary -----------------------------------------------------------------------------------------------------


def test_a_summary_adds_up() -> None:
    net = cnn()
    plain = bnn.parameter_count(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnn.bayesianize_(net, {"Conv2d": "inducing", "Linear": "ffg", "0": None})
    found = bnn.summary(net)
    layers = {layer.name: layer for layer in found.layers}
    assert list(layers) == ["0", "2", "3", "5", "8"]
    assert layers["0"].family == "-"
    assert layers["8"].after == 2 * layers["8"].before == 1300
    assert found.totals["network"].before == plain
    assert found.totals["network"].after == bnn.parameter_count(net)
    bayesian = [layer for layer in found.layers if layer.family != "-"]
    assert found.totals["Bayesian layers"].after == sum(layer.after for layer in bayesian)
    m = layers["3"].sizes[1]
    assert layers["3"].multiplies == min(m * (32 + 64), 64 * 32)
    assert layers["5"].multiplies == 64 * 32 * 9  # groups run dense
    assert layers["5"].energy_kept == pytest.approx(net[5].energy_kept)
    text = str(found)
    assert "inducing" in text
    assert f"{bnn.parameter_count(net):,}" in text
    assert found.to_dict()["totals"]["network"]["after"] == bnn.parameter_count(net)


def test_a_summary_of_plain_tied_and_global_networks() -> None:
    plain = bnn.summary(Tied())
    assert [layer.name for layer in plain.layers] == ["first", "again.0", "head"]
    assert plain.totals["network"].fraction == 1
    net = mlp(9, 16, 4)
    before = bnn.parameter_count(net)
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=4)
    bnn.register_global_inducing_weights_(net, 2, 2)
    total = bnn.summary(net).totals["network"]
    assert (total.before, total.after) == (before, bnn.parameter_count(net))


def test_a_layer_that_hardly_moved_is_named_beside_trained_ones() -> None:
    """Few weights may look random after training: where one layer does not, all that lose are named."""
    net = mlp(64, 60, 60, 4)
    with torch.no_grad():
        net[0].weight.mul_(1.7)
    with pytest.warns(EnergyWarning, match=r"2 layers keep .*: 0 \d+%; 2 \d+%"):
        bnn.bayesianize_(net, "inducing", budget=0.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EnergyWarning)
        bnn.bayesianize_(mlp(64, 60, 60, 4), "inducing", budget=0.4)


# ---- awkward networks ------------------------------------------------------------------------------------------------


def a_layer(kind: str, c: int, d: int, bias: bool) -> nn.Module:
    if kind == "Linear":
        return nn.Linear(c, d, bias=bias)
    if kind == "depthwise":
        return nn.Conv2d(c, c * max(1, d // c), 3, groups=c, bias=bias)
    size = {"Conv1d": 5, "Conv2d": 3, "Conv3d": 2, "pointwise": 1}[kind]
    return getattr(nn, "Conv2d" if kind == "pointwise" else kind)(c, d, size, bias=bias)


shapes = st.tuples(
    st.sampled_from(["Linear", "depthwise", "pointwise", "Conv1d", "Conv2d", "Conv3d"]),
    st.integers(1, 24),
    st.integers(1, 40),
    st.booleans(),
)
budgets = st.one_of(st.floats(0.02, 1.0), st.integers(1, 20000))


@settings(max_examples=60, deadline=None)
@given(st.lists(shapes, min_size=1, max_size=5), budgets, st.sampled_from(list(KINDS)), st.sampled_from("nft"))
def test_the_contract_on_any_layers(found: list[Any], budget: Any, kind: str, extra: str) -> None:
    """Within the budget and no room left, or an error with the least possible, or the last alone with a warning.

    With a frozen first layer ("f"), or one that is tied ("t").
    """
    net = nn.ModuleList(a_layer(*one) for one in found)
    if extra == "f":
        net[0].requires_grad_(False)
    if extra == "t":
        net.insert(0, net[0])
    layers = covered(net)
    plain, kinds = [count([layer]) for layer in layers], [type(layer) for layer in layers]
    limit = budget if isinstance(budget, int) else budget * sum(plain)
    refused = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            bnn.bayesianize_(net, "inducing", budget=budget, **KINDS[kind])
        except ValueError as error:
            refused = str(error)
    if refused:
        assert [type(layer) for layer in layers] == kinds
        least = re.search(r"budget=(\d+)(?: or [\d.]+)? is the least possible", refused)
        assert least is not None, refused
        assert int(least[1]) > limit
        assert converted(net, "inducing", budget=int(least[1]), **KINDS[kind])
        assert count(layers) == int(least[1])
        return
    said = " ".join(str(one.message) for one in caught)
    *others, last = layers
    assert isinstance(last, InducingBase)
    assert len(last.z_row) == len(last.z_col) == min(last.z_row.shape[1], last.z_col.shape[1])
    if not any(isinstance(layer, InducingBase) for layer in others):
        assert "the last one alone is converted" in said
        return
    spent = count(layers)
    assert spent <= limit
    for i, layer in enumerate(others):
        if isinstance(layer, InducingBase):
            m = len(layer.z_row)
            assert count([layer]) == at(layer, m) <= plain[i]
            rank, grown = min(layer.z_row.shape[1], layer.z_col.shape[1]), at(layer, m + 1)
            assert m == rank or grown > plain[i] or spent - at(layer, m) + grown > limit
        else:
            assert f"{net_name(net, layer)} ({type(layer).__name__}): even a U of 1 x 1" in said


def net_name(net: nn.Module, layer: nn.Module) -> str:
    return next(name for name, module in net.named_modules() if module is layer)


def test_entries_of_a_dict_share_their_own_budget_only() -> None:
    """A container's entry is for all its layers together; sizes of some count there; others have the common one."""
    net = nn.ModuleDict({"body": mlp(40, 60, 60, 50), "neck": mlp(50, 70, 60), "head": nn.Linear(60, 5)})
    groups = {name: count(covered(net[name])) for name in net}
    body = {"inference": "inducing", "budget": 0.3}
    sized = {"inference": "inducing", "inducing_rows": 5, "inducing_cols": 4}
    assert converted(net, {"body": body, "neck": "inducing", "neck.2": sized, "head": "inducing"}, budget=0.5)
    assert 0.27 * groups["body"] < count(covered(net["body"])) <= 0.3 * groups["body"]
    rest = groups["neck"] + groups["head"]
    assert 0.45 * rest < count(covered(net["neck"])) + count(covered(net["head"])) <= 0.5 * rest
    assert (len(net["neck"][2].z_row), len(net["neck"][2].z_col)) == (5, 4)
