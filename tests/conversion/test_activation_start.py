"""`bayesianize_(activations=)`: low-rank starts that keep what the network computes, on networks of every kind."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import LAYER_TYPES, SIZES, LayerType
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bnn
from bnn._conversion import layer_fit, passage
from bnn._conversion.activation_start import fit_layers, inputs_for, measure_layers
from bnn._conversion.layer_fit import Wanted
from bnn._conversion.layer_rows import Sums, in_halves
from bnn.functional.kernels import from_matrix
from bnn.functional.low_rank import energy_kept, low_rank
from bnn.nn.base import BayesianLayer, plain_weights

POINT = {"max_lamda": 0, "max_sd_u": 0}  # so that a forward is the posterior mean


def converted(net: nn.Module, k: int = 3, activations: Any = None, inference: Any = "inducing", **options: Any) -> Any:
    """A converted copy, whose forward is the posterior mean."""
    twin = copy.deepcopy(net)
    sizes = {"inducing_rows": k, "inducing_cols": k}
    bnn.bayesianize_(twin, inference, activations=activations, **(sizes | POINT | options))
    return twin


@torch.no_grad()
def error(net: nn.Module, other: nn.Module, x: Any) -> float:
    """How far the outputs of two networks are apart, relative to those of the first."""
    one, two = (n.eval()(*x) if isinstance(x, tuple) else n.eval()(x) for n in (net, other))
    return float((one - two).square().sum() / one.square().sum())


def inputs(*shape: int, seed: int = 1) -> Tensor:
    """Correlated along the features (dimension 1, or the last of vectors)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    mix = torch.randn(shape[1], shape[1], generator=generator) * torch.logspace(0, -1.5, shape[1])
    return torch.einsum("nc...,dc->nd...", x, mix)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 5))


class Residual(nn.Module):
    """A block whose skip is the input, or a convolution of it."""

    def __init__(self, c_in: int, c_out: int, norm: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=not norm)
        self.bn2 = nn.BatchNorm2d(c_out) if norm else nn.Identity()
        self.down = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        out += x if self.down is None else self.down(x)
        return F.relu(out, inplace=True)


def resnet(norm: bool = True) -> nn.Sequential:
    """With statistics as of training."""
    torch.manual_seed(0)
    blocks = [Residual(8, 8, norm), Residual(8, 12, norm), Residual(12, 12, norm)]
    net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5))
    net.train()
    for _ in range(60):
        net(inputs(32, 4, 6, 6))
    return net.eval()


# ---- one layer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in LAYER_TYPES if "empty" not in c.id], ids=lambda case: case.id)
def test_the_moments_are_those_of_the_layer_s_outputs(case: LayerType) -> None:
    """W applied to the rows gives the outputs: E|W x|^2 from S, and y fits W without loss."""
    torch.manual_seed(0)
    layer, x = case.layer().double(), case.input().double()
    with torch.no_grad():
        y = layer(x)
    sums = Sums(layer, plain_weights(layer))
    sums.add(x, y)
    rows = y.numel() / len(layer.weight)  # type: ignore[arg-type]
    assert sums.rows == rows
    moments = sums.moments()
    assert moments.energy == pytest.approx(float(y.square().sum()) / rows)
    assert energy_kept(*plain_weights(layer), moments) == pytest.approx(1, abs=1e-12)
    channel = y if isinstance(layer, nn.Linear) else y.movedim(-1 - len(layer.kernel_size), -1)  # type: ignore[arg-type]
    torch.testing.assert_close(sums.means()[1].flatten(), channel.reshape(-1, len(layer.weight)).mean(0))  # type: ignore[arg-type]


def test_parts_of_a_batch_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = nn.Conv2d(4, 6, 3, stride=2, groups=2).double(), torch.randn(9, 4, 8, 8).double()
    whole = Sums(layer, plain_weights(layer))
    whole.add(x, layer(x).detach())
    monkeypatch.setattr("bnn._conversion.layer_rows.BYTES", 1)
    parts = Sums(layer, plain_weights(layer))
    parts.add(x, layer(x).detach())
    for one, other in zip(whole.moments(), parts.moments(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kernel", ["paper", "split"])
@pytest.mark.parametrize("bias", [False, True])
def test_one_layer_starts_from_what_low_rank_finds(kernel: str, bias: bool) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(4, 6, 3, bias=bias)).double(), inputs(150, 4, 6, 6).double()
    start = converted(net, 2, x, kernel=kernel)
    sums = Sums(net[0], plain_weights(net[0]))
    sums.add(x, net(x).detach())
    found = low_rank(*plain_weights(net[0]), sums.moments(), 2, kernel)
    weight, own = from_matrix(found.W, net[0].weight.shape, bias, kernel)
    torch.testing.assert_close(start[0].weight, weight, rtol=1e-6, atol=1e-7)
    assert start[0].energy_kept == pytest.approx(found.kept)
    if bias:
        torch.testing.assert_close(start[0].bias, own, rtol=1e-6, atol=1e-7)
    assert error(net, start, x) == pytest.approx(1 - found.kept, rel=1e-4)
    assert error(net, start, x) < 0.9 * error(net, converted(net, 2, kernel=kernel), x)


# ---- whole networks --------------------------------------------------------------------------------------------------


class Twice(nn.Module):
    """A layer that runs twice, and one that never does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.middle(torch.tanh(self.middle(h)))))  # type: ignore[no-any-return]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.top = nn.Linear(12, 10), nn.Linear(6, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.top(F.relu(self.left(x) + self.right(y)))  # type: ignore[no-any-return]


class Sequences(nn.Module):
    """Self-attention and a transformer layer, whose fused paths call no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True)
        self.top = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.encoder(self.embed(x)).mean(1))  # type: ignore[no-any-return]


def cnn1d() -> nn.Module:
    torch.manual_seed(0)
    convs = [nn.Conv1d(6, 12, 5), nn.ReLU(), nn.Conv1d(12, 12, 3, stride=2, groups=2), nn.ReLU()]
    return nn.Sequential(*convs, nn.Flatten(), nn.Linear(48, 5))


def cnn3d() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(3, 8, 2), nn.ReLU(), nn.Conv3d(8, 8, 2, padding=1), nn.Flatten(), nn.Linear(512, 5))


def tied() -> nn.Module:
    torch.manual_seed(0)
    shared = nn.Linear(12, 12)
    return nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(12, 4))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "mlp": (mlp, inputs(200, 12)),
    "resnet": (resnet, inputs(100, 4, 6, 6)),
    "resnet-no-norm": (lambda: resnet(norm=False), inputs(100, 4, 6, 6)),
    "cnn1d": (cnn1d, inputs(100, 6, 13)),
    "cnn3d": (cnn3d, inputs(60, 3, 4, 4, 4)),
    "twice": (Twice, inputs(200, 12)),
    "tied": (tied, inputs(200, 12)),
    "two inputs": (TwoInputs, (inputs(200, 12), inputs(200, 6))),
    "sequences": (Sequences, inputs(60, 12, 7).mT.contiguous()),
}
every_network = pytest.mark.parametrize("name", list(NETWORKS))
quiet = pytest.mark.filterwarnings("ignore:left deterministic")  # attention's own projection


def made(name: str) -> tuple[nn.Module, Any, Any]:
    """A network, inputs, and these as `activations=`: several are a pair with targets."""
    torch.manual_seed(0)
    make, x = NETWORKS[name]
    return make(), x, (x, torch.zeros(len(x[0]))) if isinstance(x, tuple) else x


@quiet
@every_network
@pytest.mark.parametrize("kernel", ["paper", "split"])
def test_outputs_are_closer_than_after_plain_truncation(name: str, kernel: str) -> None:
    net, x, data = made(name)
    start = converted(net, 3, data, kernel=kernel)
    assert error(net, start, x) < 0.8 * error(net, converted(net, 3, kernel=kernel), x)
    layers = [m for m in start.modules() if isinstance(m, BayesianLayer)]
    assert layers
    assert all(layer.energy_kept is not None and layer.energy_kept <= 1 for layer in layers)


@quiet
@every_network
@pytest.mark.parametrize("kernel", ["paper", "split"])
def test_nothing_is_lost_at_full_rank(name: str, kernel: str) -> None:
    net, x, data = made(name)
    start = converted(net, 200, data, kernel=kernel)
    assert error(net, start, x) < 1e-6
    assert all(m.energy_kept > 1 - 1e-6 for m in start.modules() if isinstance(m, BayesianLayer))


@quiet
@every_network
def test_double_precision(name: str) -> None:
    net, x, _ = made(name)
    x = tuple(one.double() for one in x) if isinstance(x, tuple) else x.double()
    data = (x, torch.zeros(len(x[0]))) if isinstance(x, tuple) else x
    start = converted(net.double(), 3, data)
    assert all(parameter.dtype == torch.double for parameter in start.parameters())
    assert error(net, start, x) < 0.8 * error(net, converted(net, 3), x)


def test_later_layers_make_up_for_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first layer of rank 3, a second one of full rank is least squares on what is left."""
    monkeypatch.setattr(layer_fit, "ENOUGH", 0)  # the smallest ridge
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 8)).double(), inputs(300, 10).double()
    full = {"inference": "inducing", "inducing_rows": 8, "inducing_cols": 8}
    start = converted(net, 3, x, inference={"0": "inducing", "1": full})
    with torch.no_grad():
        target, seen = net(x), F.pad(start[0](x), (0, 1), value=1.0)
        left = target - seen @ torch.linalg.lstsq(seen, target, driver="gelsd").solution
    best = float(left.square().sum() / target.square().sum())
    assert start[1].energy_kept == pytest.approx(1 - best, abs=1e-6)
    assert error(net, start, x) == pytest.approx(best, rel=1e-4)
    assert best < error(net, converted(net, 3, x, inference={"0": "inducing"}), x)


def test_every_layer_sees_what_the_converted_network_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer, by hand: fitted to the original outputs, on inputs from the converted layers before."""
    monkeypatch.setattr(layer_fit, "ENOUGH", 0)  # the smallest ridge
    net, x = mlp().double(), inputs(300, 12).double()
    start = converted(net, 4, x)
    with torch.no_grad():
        sums = Sums(net[4], plain_weights(net[4]))
        sums.add(start[:4](x), net(x))
    found = low_rank(*plain_weights(net[4]), sums.moments(), 4)
    torch.testing.assert_close(start[4].weight, found.W[:, :-1], rtol=1e-6, atol=1e-7)
    assert start[4].energy_kept == pytest.approx(1 - error(net, start, x), abs=1e-6)


def test_residual_blocks_repair_their_skip() -> None:
    """The last convolution of a block, by hand: its target makes up for what the skip lost."""
    net = resnet().double()
    x = inputs(100, 4, 6, 6).double()
    chosen = {
        "1.conv1": "inducing",
        "1.conv2": "inducing",
        "2.conv1": "inducing",
        "2.conv2": None,
        "3.conv2": "inducing",
    }
    start = converted(net, 4, x, inference=chosen)
    original, block = net[3], start[3]
    with torch.no_grad():
        before, after = net[:3](x), start[:3](x)
        hidden = F.relu(block.bn1(block.conv1(after)))
        scale = original.bn2.weight / (original.bn2.running_var + original.bn2.eps).sqrt()
        target = original.conv2(F.relu(original.bn1(original.conv1(before))))
        target = target + (before - after) / scale[:, None, None]
        mean = target.mean((0, 2, 3)) - block.conv2(hidden).mean((0, 2, 3))
        made = block.conv2(hidden) + mean[:, None, None]
    kept = 1 - float((made - target).square().sum() / target.square().sum())
    assert block.conv2.energy_kept == pytest.approx(kept, abs=1e-5)
    torch.testing.assert_close(block.bn2.running_mean, original.bn2.running_mean - mean, rtol=1e-4, atol=1e-5)


def test_batchnorm_takes_the_bias_that_a_layer_does_not_have() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    x = inputs(80, 4, 8, 8) + 0.5
    net.train()
    for _ in range(50):
        net(x)
    net.eval()
    start = converted(net, 2, x)
    with torch.no_grad():
        torch.testing.assert_close(start[:2](x).mean((0, 2, 3)), net[:2](x).mean((0, 2, 3)), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(start[1].running_var, net[1].running_var)


def test_statistics_are_estimated_anew_where_that_helps() -> None:
    """Statistics of a network that was never trained fit nothing; those of its weights are right."""
    net, x = resnet(), inputs(100, 4, 6, 6)
    right = converted(net, 4, x)
    assert torch.equal(right[1].bn1.running_var, net[1].bn1.running_var)  # kept: the outputs are closer so

    class Late(nn.Module):
        """Its BatchNorm forgives what the layer before loses."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 16, 3), nn.BatchNorm2d(16)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    late = Late()
    late.train()
    for _ in range(50):
        late(x)
    late.eval()
    start = converted(late, 1, x)
    assert error(late, start, x) <= error(late, converted(late, 1), x)


# ---- data in any form ------------------------------------------------------------------------------------------------


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.x)


X = inputs(150, 12)
FORMS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "pair": lambda: (X, torch.zeros(150)),
    "part": lambda: bnn.data.Part(X),
    "data set": lambda: TensorDataset(X, torch.zeros(150)),
    "inputs only": lambda: TensorDataset(X),
    "loader": lambda: DataLoader(TensorDataset(X, torch.zeros(150)), batch_size=64),
    "small batches": lambda: DataLoader(TensorDataset(X), batch_size=1),
    "stream": lambda: DataLoader(Stream(X), batch_size=32),
    "list of batches": lambda: list(X.split(50)),
    "list of pairs": lambda: [(x, torch.zeros(len(x))) for x in X.split(50)],
    "dict": lambda: {"input": X},
}


@pytest.mark.parametrize("form", list(FORMS))
def test_data_come_in_any_form(form: str) -> None:
    net = mlp()[0] if form == "dict" else mlp()
    expected, found = (converted(net, 4, data) for data in (X, FORMS[form]()))
    assert error(expected, found, X) < 1e-6


def test_variable_lengths_stay_in_their_batches() -> None:
    net = Sequences()
    batches = [inputs(20, 12, length).mT.contiguous() for length in (3, 5, 9)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start, plain = converted(net, 4, batches), converted(net, 4)
    assert sum(error(net, start, x) for x in batches) < sum(error(net, plain, x) for x in batches)


def test_a_thousand_inputs_are_used_evenly_spaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from bnn._conversion.activation_inputs import first_inputs

    seen = torch.cat(list(first_inputs(torch.arange(10_000.0)[:, None], 1000, torch.device("cpu"))))
    assert torch.equal(seen[:, 0], torch.arange(1000.0) * 10)
    seen = torch.cat(list(first_inputs(list(torch.arange(2000.0)[:, None].split(300)), 1000, torch.device("cpu"))))
    assert torch.equal(seen[:, 0], torch.arange(1000.0))  # a loader's first ones


def test_fewer_inputs_are_used_where_activations_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    monkeypatch.setattr(passage.Sums, "add", lambda self, x, y: counts.append(len(x)) or add(self, x, y))
    monkeypatch.setattr(passage, "BYTES", 6 * (12 + 20) * 4 * 250)
    converted(mlp(), 4, inputs(1000, 12))
    assert sum(counts) < 3 * 300
    assert counts


add = Sums.add


# ---- what stays as it was --------------------------------------------------------------------------------------------


def snapshot(net: nn.Module) -> list[Any]:
    tensors = {name: value.clone() for name, value in net.state_dict().items()}
    held = [
        (type(m), m.training, set(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()
    ]
    return [tensors, held]


def assert_same(before: list[Any], after: list[Any]) -> None:
    assert before[1] == after[1]
    assert before[0].keys() == after[0].keys()
    assert all(torch.equal(value, after[0][name]) for name, value in before[0].items())


class Breaks(nn.Module):
    """Fails at the second call, in the middle of the network."""

    def __init__(self, error: BaseException, calls: int) -> None:
        super().__init__()
        self.error, self.left = [error], [calls]

    def forward(self, x: Tensor) -> Tensor:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise self.error[0]
        return x


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_error_on_the_way_leaves_the_network_alone(error: BaseException, calls: int) -> None:
    net = nn.Sequential(resnet()[:3], Breaks(error, calls), nn.Conv2d(12, 4, 3), nn.BatchNorm2d(4))
    net.train()
    net[0][0].eval()
    before = snapshot(net)
    with pytest.raises(type(error)):
        bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=3, activations=inputs(200, 4, 6, 6))
    assert_same(before, snapshot(net))
    assert torch.backends.mha.get_fastpath_enabled()


class Unused(nn.Module):
    """Has a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_start_that_fails_leaves_the_network_alone() -> None:
    net = resnet().train()
    before = snapshot(net)
    with pytest.raises(ValueError, match="NaN or inf"):
        bnn.bayesianize_(net, "inducing", activations=inputs(100, 4, 6, 6) / 0)
    assert_same(before, snapshot(net))
    net = nn.Sequential(resnet(), Unused()).train()
    before = snapshot(net)
    with pytest.raises(UserWarning, match="did not run"):  # warnings are errors here
        bnn.bayesianize_(net, "inducing", activations=inputs(100, 4, 6, 6), **SIZES)
    assert_same(before, snapshot(net))


def test_modes_hooks_and_random_numbers_are_left_alone() -> None:
    net = nn.Sequential(mlp(), nn.Dropout(0.5))
    net.train()
    net[0].eval()
    seen: list[int] = []
    net[0].register_forward_hook(lambda module, args, output: seen.append(len(output)))
    start = converted(net, 20, X)
    assert start.training
    assert not start[0].training
    assert start[1].training
    assert not any("forward" in vars(module) for module in start.modules())
    assert len(start[0]._forward_hooks) == 1
    assert all(parameter.grad is None and parameter.requires_grad for parameter in start.parameters())


def test_layers_that_never_run_are_truncated_and_named() -> None:
    net = Twice()
    net.register_module("spare", nn.Linear(7, 5))
    with pytest.warns(UserWarning, match=r"did not run on the inputs of activations=: spare; .*truncated"):
        start = converted(net, 2, X)
    plain = converted(net, 2)
    torch.testing.assert_close(start.spare.weight, plain.spare.weight)
    assert start.first.energy_kept is not None


def test_layers_with_too_many_inputs_are_truncated_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage, "LARGEST", 15)
    net = mlp()
    with pytest.warns(UserWarning, match="too many for second moments: 2; 4; "):
        start = converted(net, 3, X)
    torch.testing.assert_close(start[2].weight, converted(net, 3)[2].weight)
    assert error(net, start, X) < error(net, converted(net, 3), X)


# ---- together with everything else -----------------------------------------------------------------------------------


def test_other_families_keep_their_weights() -> None:
    net = mlp()
    chosen = {"0": {"inference": "ffg", "max_sd": 1e-9}, "2": {"inference": "inducing"}, "4": None}
    start = copy.deepcopy(net)
    bnn.bayesianize_(start, chosen, activations=X, inducing_rows=4, inducing_cols=4)
    assert torch.equal(start[0].weight, net[0].weight)
    assert start[0].energy_kept is None
    assert start[2].energy_kept is not None
    assert isinstance(start[4], nn.Linear)


def test_a_network_that_is_partly_bayesian_already_runs_at_its_mean() -> None:
    net = mlp().double()
    x = X.double()
    expected = converted(net, 4, x, inference={"2": "inducing"})
    twin = copy.deepcopy(net)
    bnn.bayesianize_(twin, {"0": {"inference": "ffg", "init_sd": 0.5}})
    bnn.bayesianize_(twin, {"2": "inducing"}, activations=x, inducing_rows=4, inducing_cols=4, **POINT)
    torch.testing.assert_close(twin[2].weight, expected[2].weight)
    assert not any("forward" in vars(module) for module in twin.modules())


@pytest.mark.filterwarnings("ignore::bnn._conversion.energy.EnergyWarning")
def test_reference_weights_are_what_is_kept() -> None:
    net, other = resnet(), resnet()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    x = inputs(100, 4, 6, 6)
    torch.manual_seed(0)
    expected = converted(other, 4, x)
    torch.manual_seed(0)
    found = converted(net, 4, x, reference_state_dict=other.state_dict())
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_every_member_of_an_ensemble_is_fitted() -> None:
    nets = [mlp(), mlp()]
    with torch.no_grad():
        nets[1][0].weight.mul_(2)
    ensemble = converted(bnn.Ensemble(copy.deepcopy(nets)), 3, X)
    for member, net in zip(ensemble.members, nets, strict=True):
        assert error(net, member, X) == pytest.approx(error(net, converted(net, 3, X), X), rel=1e-3)


@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
@pytest.mark.parametrize("whitened", [True, False])
def test_every_q_starts_from_the_fitted_weights(q: str, whitened: bool) -> None:
    net = mlp().double()
    expected = converted(net, 3, X.double())
    twin = copy.deepcopy(net)
    options = {"q_inducing": q, "whitened_u": whitened, "inducing_rows": 3, "inducing_cols": 3, "ensemble_size": 1}
    bnn.bayesianize_(twin, "inducing", activations=X.double(), **options)
    noise = 0.2 if q == "ensemble" else 1e-6
    for layer, other in zip(twin[::2], expected[::2], strict=True):
        apart = (layer.weight - other.weight).norm() / other.weight.norm()
        assert apart.item() < noise


def test_activations_without_an_inducing_layer_are_an_error() -> None:
    for inference, options in (("ffg", {}), ("inducing", {"init": "paper"})):
        with pytest.raises(ValueError, match="activations= is for inducing layers"):
            bnn.bayesianize_(mlp(), inference, activations=X, **options)
    with pytest.raises(ValueError, match="no inputs"):
        bnn.bayesianize_(mlp(), "inducing", activations=[])
    with pytest.raises(TypeError, match="activations must be"):
        bnn.bayesianize_(mlp(), "inducing", activations=3)


def test_sizes_come_from_the_variances_of_the_original_network() -> None:
    """For every layer those of its own inputs, by hand: nothing is changed on the way."""
    net = mlp().double()
    x = inputs(300, 12).double() + 3  # a constant takes no rank
    wanted = [Wanted(str(i), net[i], plain_weights(net[i]), 1, "paper") for i in (0, 2, 4)]
    kept, last = measure_layers(net, wanted, inputs_for(net, x))
    assert last == {net[4]}
    for i in (0, 2, 4):
        with torch.no_grad():
            W = torch.cat([net[i].weight, net[i].bias[:, None]], 1)
            S = torch.cov(F.pad(net[:i](x), (0, 1), value=1.0).mT, correction=0)
            S += S.trace() / (4 * len(x)) * torch.eye(len(S))
            square = torch.linalg.svdvals(W @ torch.linalg.cholesky(S)).square()
        expected = square.cumsum(0) / square.sum()
        torch.testing.assert_close(torch.tensor(kept[net[i]]).double(), expected, rtol=0, atol=1e-4)


def test_fitting_alone_changes_nothing() -> None:
    net = resnet().train()
    before = snapshot(net)
    wanted = [
        Wanted(name, m, plain_weights(m), 2, "paper") for name, m in net.named_modules() if isinstance(m, nn.Conv2d)
    ]
    fitted = fit_layers(net, wanted, inputs_for(net, inputs(60, 4, 6, 6)))
    assert_same(before, snapshot(net))
    assert len(fitted.found) == len(wanted)
    assert fitted.statistics


# ---- few inputs ------------------------------------------------------------------------------------------------------


def wide() -> nn.Sequential:
    """With more inputs than a few examples can tell about."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 5))


def normed() -> nn.Sequential:
    """Without biases, and with statistics of many inputs."""
    torch.manual_seed(0)
    parts = [nn.Conv2d(4, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, bias=False)]
    net = nn.Sequential(*parts, nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    for _ in range(30):
        net(inputs(64, 4, 6, 6, seed=8))
    return net.eval()


@pytest.mark.parametrize("count", [1, 2, 3, 30])
@pytest.mark.parametrize("name", ["wide", "normed"])
def test_a_few_inputs_do_no_harm(name: str, count: int) -> None:
    """On inputs that were not seen, a start from a few is hardly worse than one from the weights alone."""
    net, shape = (wide(), (60,)) if name == "wide" else (normed(), (4, 6, 6))
    x = inputs(430, *shape)
    plain = error(net, converted(net, 6), x[30:])
    assert error(net, converted(net, 6, x[:count]), x[30:]) <= 1.1 * plain


def test_the_ridge_is_the_one_with_which_halves_predict_each_other() -> None:
    """Of few rows it is large, of many the smallest; the fit with it loses less of other inputs."""
    net, x = wide().double(), inputs(3100, 60).double()
    layer, weights = net[0], plain_weights(net[0])
    one, rest = Wanted("0", layer, weights, 6, "paper"), Sums(layer, weights)
    with torch.no_grad():
        rest.add(x[20:], layer(x[20:]))
        few = in_halves(layer, weights, [(x[:20], layer(x[:20]))])
        many = in_halves(layer, weights, [(x, layer(x))])
    both = few[0].plus(few[1])
    chosen = layer_fit._trust(one, few, both, False).ridge
    assert chosen > layer_fit.RIDGE == layer_fit._trust(one, many, many[0].plus(many[1]), False).ridge

    def lost(ridge: float) -> float:
        return layer_fit._lost(one, layer_fit._fit(one, both, layer_fit.Trust(ridge, False)), rest)

    assert lost(chosen) < lost(layer_fit.RIDGE)
    assert lost(chosen) < 1.2 * min(map(lost, layer_fit.RIDGES))


def test_statistics_of_batchnorm_are_judged_on_other_batches() -> None:
    """A single batch of a few inputs would fit itself: variances stay as they are."""
    net = normed()
    start = converted(net, 6, inputs(5, 4, 6, 6, seed=3))
    for i in (1, 4):
        assert torch.equal(start[i].running_var, net[i].running_var)


class OneRow(nn.Module):
    """BatchNorm that sees a single row, whatever the batch: it can run in evaluation mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(12, 20), nn.BatchNorm1d(20), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Any:
        h = self.a(x)
        return self.b(h + self.norm(h.mean(0, keepdim=True)))


def test_batchnorm_that_cannot_train_keeps_its_statistics() -> None:
    net = OneRow().eval()
    start = converted(net, 3, inputs(300, 12))
    assert torch.equal(start.norm.running_var, net.norm.running_var)


# ---- sizes from a budget ---------------------------------------------------------------------------------------------


class HeadFirst(nn.Module):
    """Whose last layer is defined first."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.a, self.b = nn.Linear(48, 10), nn.Linear(32, 64), nn.Linear(64, 48)

    def forward(self, x: Tensor) -> Any:
        return self.head(F.relu(self.b(F.relu(self.a(x)))))


def test_the_last_layer_is_the_one_that_runs_last() -> None:
    net = HeadFirst()
    bnn.bayesianize_(net, "inducing", budget=0.6, activations=inputs(100, 32))
    assert len(net.head.z_row) == 10
    assert len(net.b.z_row) < 48


def test_a_budget_gives_sizes_to_layers_whose_outputs_need_them() -> None:
    """Two layers with the same weights; the inputs of the first have rank 3, as those of a bottleneck."""
    torch.manual_seed(0)
    first = nn.Linear(60, 60)
    net = nn.Sequential(first, nn.ReLU(), copy.deepcopy(first), nn.ReLU(), nn.Linear(60, 4))
    x = torch.randn(400, 3) @ torch.randn(3, 60)
    by_weights = copy.deepcopy(net)
    bnn.bayesianize_(net, "inducing", budget=0.5, activations=x)
    bnn.bayesianize_(by_weights, "inducing", budget=0.5)
    assert len(net[0].z_row) < len(net[2].z_row)
    assert abs(len(by_weights[0].z_row) - len(by_weights[2].z_row)) <= 1


def test_inputs_are_read_once() -> None:
    """Sizes, fits and members of an ensemble share them: a stream has no second time."""
    net = bnn.Ensemble(nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 4)), members=2)
    same = copy.deepcopy(net)
    bnn.bayesianize_(net, "inducing", budget=0.5, activations=iter(inputs(120, 40).split(60)))
    bnn.bayesianize_(same, "inducing", budget=0.5, activations=list(inputs(120, 40).split(60)))
    for one, other in zip(net.members, same.members, strict=True):
        torch.testing.assert_close(one[0].weight, other[0].weight)


# ---- networks that write into their inputs ---------------------------------------------------------------------------


class Overwriting(nn.Module):
    """Changes its input in place, as in-place activations and normalisations do; so does its residual block."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(20, 20), nn.Linear(20, 20)

        def forward(self, x: Tensor) -> Any:
            x.mul_(0.5)
            return x + self.b(F.relu(self.a(x)))

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block, self.head = nn.Linear(12, 20), self.Block(), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Any:
        x.sub_(3)
        return self.head(self.block(self.stem(x)))


class Careful(Overwriting):
    """The same function, without."""

    def forward(self, x: Tensor) -> Any:
        h = self.stem(x - 3) * 0.5
        return self.head(h + self.block.b(F.relu(self.block.a(h))))


def test_networks_may_write_into_their_inputs() -> None:
    """Nothing is run twice on what a first run has changed, and the data stay as they were."""
    x = inputs(300, 12) + 3
    before = x.clone()
    start, other = converted(Overwriting(), 4, x), converted(Careful(), 4, x)
    assert torch.equal(x, before)
    assert start.stem.energy_kept == pytest.approx(other.stem.energy_kept, abs=1e-5)
    assert start.block.a.energy_kept == pytest.approx(other.block.a.energy_kept, abs=1e-5)
    assert error(Careful(), start, x.clone()) < 1.05 * error(Careful(), other, x) + 1e-6
