"""`bnn.laplace_` on networks that others wrote: hooks, keyword arguments, modes, heads that run in odd places."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn._conversion import curvature


def mlp(d_out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, d_out))


def classes(n: int = 60) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.randint(3, (n,))


class Net(nn.Module):
    """A stem, a head, and a way through them."""

    def __init__(self, way: Any, **more: nn.Module) -> None:
        super().__init__()
        self.stem, self.head, self.way = nn.Linear(4, 8), nn.Linear(8, 3), way
        for name, module in more.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


# ---- networks it takes -----------------------------------------------------------------------------------------------


def test_a_layer_called_with_a_keyword() -> None:
    data = classes()
    net, plain = (Net(lambda net, x: net.head(input=net.stem(x).relu())) for _ in range(2))
    plain.way = lambda net, x: net.head(net.stem(x).relu())
    plain.load_state_dict(net.state_dict())
    found, expected = (bnn.laplace_(one, data, labels="exact") for one in (net, plain))
    assert found.effective_parameters == expected.effective_parameters


def test_a_hook_that_changes_the_output_is_part_of_what_follows() -> None:
    class Times(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 10 * x

    data, net = classes(), mlp()
    visible = nn.Sequential(*copy.deepcopy(net), Times())
    net[2].register_forward_hook(lambda layer, args, output: 10 * output)
    found, expected = (bnn.laplace_(one, data, labels="exact") for one in (net, visible))
    assert math.isclose(found.prior_precision["2"], expected.prior_precision["2"], rel_tol=1e-6)


def test_the_last_layer_is_the_one_that_ends_last() -> None:
    net = Net(lambda net, x: net.head(net.stem(net.head(net.stem(x)).new_zeros(len(x), 4)).relu()))
    assert list(bnn.laplace_(net, classes()).prior_precision) == ["head"]
    shared = Net(lambda net, x: net.both(net.middle(net.both(x))), both=nn.Linear(4, 4), middle=nn.Linear(4, 4))
    assert list(bnn.laplace_(shared, classes()).prior_precision) == ["both"]


def test_a_compiled_network_that_ran_before() -> None:
    net = torch.compile(mlp(), backend="eager")
    net(classes()[0])
    assert list(bnn.laplace_(net, classes()).prior_precision) == ["2"]


def test_inference_mode_leaves_parameters_that_can_be_trained() -> None:
    net = mlp()
    with torch.inference_mode():
        x, y = classes()
        bnn.laplace_(net, (x, y), layers=["0", "2"])
    net(torch.randn(5, 4)).sum().backward()
    assert net[2].z_col.grad is not None


def test_autocast_does_not_reach_the_curvature() -> None:
    """Beyond what the network computes in bfloat16: here the inputs and weights are such that it is exact."""
    x, y = torch.randint(-3, 4, (60, 4)).float(), torch.randint(3, (60,))
    nets = [nn.Linear(4, 3, bias=False) for _ in range(2)]
    for net in nets:
        net.weight.data = torch.arange(12.0).reshape(3, 4) / 64
    found = bnn.laplace_(nets[0], (x, y), labels="exact", prior_precision=1e4)
    with torch.autocast("cpu", torch.bfloat16):
        cast = bnn.laplace_(nets[1], (x, y), labels="exact", prior_precision=1e4)
    assert math.isclose(found.effective_parameters[""], cast.effective_parameters[""], rel_tol=1e-4)


def test_scores_come_in_parts_where_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    nets, data = [mlp() for _ in range(2)], classes()
    nets[1].load_state_dict(nets[0].state_dict())
    whole = bnn.laplace_(nets[0], data, labels="exact")
    monkeypatch.setattr(curvature, "CHUNK", 1)
    parts = bnn.laplace_(nets[1], data, labels="exact")
    assert math.isclose(whole.log_evidence, parts.log_evidence, rel_tol=1e-6)
    assert math.isclose(whole.effective_parameters["2"], parts.effective_parameters["2"], rel_tol=1e-4)


@pytest.mark.parametrize(("d_out", "layers", "exact"), [(3, "last", True), (11, "last", True), (11, "2", False)])
def test_curvature_is_exact_unless_outputs_are_many(d_out: int, layers: str, exact: bool) -> None:
    """Sampled labels give another posterior for every seed."""
    data, net = classes(), mlp(d_out)
    both = [
        bnn.laplace_(copy.deepcopy(net), data, layers, generator=torch.Generator().manual_seed(seed)).log_evidence
        for seed in (0, 1)
    ]
    assert (both[0] == both[1]) is exact


def test_a_likelihood_without_scores_is_sampled() -> None:
    class Own(bnn.likelihoods.Likelihood):
        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return nn.functional.cross_entropy(output, target, reduction="none")

        def sampled_score(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
            return bnn.likelihoods.Categorical().sampled_score(output, generator)

    assert bnn.laplace_(mlp(), classes(), likelihood=Own()).effective_parameters["2"] > 0
    with pytest.raises(TypeError, match="`scores` for labels='exact'"):
        bnn.laplace_(mlp(), classes(), likelihood=Own(), labels="exact")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def regressor(n: int, d: int, noise: float) -> tuple[nn.Linear, tuple[Tensor, Tensor]]:
    """A linear regression at its least squares solution, and its data."""
    x = torch.randn(n, d)
    y = x @ torch.randn(d, 1) * noise + noise * torch.randn(n, 1)
    net = nn.Linear(d, 1, bias=False)
    net.weight.data = torch.linalg.lstsq(x, y).solution.mT.clone()
    return net, (x, y)


def test_num_data_is_as_good_as_so_many_copies() -> None:
    """Noise and evidence, too: 40 targets for 20 weights are not 400 for 20."""
    net, (x, y) = regressor(40, 20, 0.3)
    other = copy.deepcopy(net)
    few = bnn.laplace_(net, (x, y), num_data=400, labels="exact")
    many = bnn.laplace_(other, (x.repeat(10, 1), y.repeat(10, 1)), labels="exact")
    assert math.isclose(few.likelihood.sd().item(), many.likelihood.sd().item(), rel_tol=1e-4)
    assert math.isclose(few.log_evidence, many.log_evidence, rel_tol=1e-5)


def test_lamda_of_fewer_columns_knows_the_fitted_noise() -> None:
    net, data = regressor(300, 8, 0.01)
    narrow = copy.deepcopy(net)
    whole = bnn.laplace_(net, data)
    found = bnn.laplace_(narrow, data, inducing_cols=3)
    variances = [
        bnn.predict(one, data[0], samples=500, likelihood=own.likelihood).epistemic.mean().item()
        for one, own in ((net, whole), (narrow, found))
    ]
    assert abs(variances[1] / variances[0] - 1) < 0.3


def test_directions_that_are_left_out_count_in_the_evidence() -> None:
    """Otherwise fewer columns would ask for another precision, and have more evidence."""
    net, data = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)), classes(200)
    whole, narrow, least = (bnn.laplace_(copy.deepcopy(net), data, inducing_cols=m) for m in (None, 8, 3))
    assert math.isclose(whole.prior_precision["2"], narrow.prior_precision["2"], rel_tol=0.02)
    assert math.isclose(whole.log_evidence, narrow.log_evidence, rel_tol=1e-3)
    assert least.log_evidence < whole.log_evidence


# ---- what it refuses -------------------------------------------------------------------------------------------------


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    return net


def auxiliary() -> nn.Module:
    def way(net: Any, x: Tensor) -> Tensor:
        output = net.head(net.stem(x))
        net.aux(net.stem(x))
        return output

    return Net(way, aux=nn.Linear(8, 3))


def without_gradients(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net.head(net.stem(x))


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (auxiliary(), {}, "no gradient flows from the network's output to layer 'aux'"),
        (Net(without_gradients), {}, "no gradient flows .* layer 'head'"),
        (nn.Sequential(nn.Linear(4, 8), Doubled(8, 3)), {}, "'1' \\(Doubled\\) cannot have a posterior: only exact"),
        (nn.Sequential(nn.Linear(4, 8), Doubled(8, 3)), {"layers": ["0", "1"]}, "'1' .* only exact"),
        (tied(), {}, "'2' .* another module uses the same weight"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), {}, "parametrized"),
        (mlp(), {"layers": []}, "layers is empty"),
    ],
)
def test_networks_that_cannot_have_it(net: nn.Module, options: dict[str, Any], message: str) -> None:
    kinds = [type(module) for module in net.modules()]
    with pytest.raises(ValueError, match=message):
        bnn.laplace_(net, classes(), **options)
    assert [type(module) for module in net.modules()] == kinds


def test_reentrant_checkpoints_hide_a_layer() -> None:
    net = Net(lambda net, x: net.head(checkpoint(net.stem, x, use_reentrant=True)))
    with pytest.warns(UserWarning, match="requires_grad"), pytest.raises(ValueError, match="to layer 'stem'"):
        bnn.laplace_(net, classes(), layers=["stem", "head"])


def test_arguments_without_effect_are_refused() -> None:
    net, data = mlp(), classes()
    bnn.laplace_(net, data)
    with pytest.raises(ValueError, match="inducing_cols is for layers without a posterior"):
        bnn.laplace_(net, data, inducing_cols=4)
    empty = DataLoader(TensorDataset(*data), batch_size=100, drop_last=True)
    with pytest.raises(ValueError, match="validation holds no inputs"):
        bnn.laplace_(mlp(), data, prior_precision="validation", validation=empty)


def test_targets_that_are_nan_are_refused() -> None:
    x = torch.randn(20, 4)
    with pytest.raises(ValueError, match="NaN or inf in them"):
        bnn.laplace_(mlp(1), (x, x[:, :1] * float("nan")))
