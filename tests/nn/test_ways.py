"""The five ways on every layer type: exact covariances against dense W, what `sampling` allows, the special cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import LAYER_TYPES, SIZES, LayerType, choose_ways, ids, set_noise_
from torch import Tensor, nn

import bnn
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.fold import in_one_pass, one_by_one
from bnn._engine.forward import Forward, open_forward
from bnn._engine.noise import Seeds
from bnn.bayesianize import bayesian_from_template
from bnn.functional.cost import Way
from bnn.functional.linalg import inverse_softplus
from bnn.nn import base
from bnn.nn.families import ways

EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64 rounding, and a jitter of a few roundings in Gram matrices
SIGMA, LAMDA = 1.3, 0.7
WAYS = list(Way)
PER_ROW = {Way.PER_ROW, Way.PER_ROW_WITHOUT_COLUMNS}
CASES = [case for case in LAYER_TYPES if case.layer().__dict__.get("groups", 1) == 1 and math.prod(case.input_shape)]
SOME = [case for case in CASES if case.id in ("linear-sequence", "conv1d-same", "conv2d", "conv3d-unbatched")]
BATCHES = [case for case in CASES if case.id in ("linear", "linear-sequence", "conv1d-same")]
GROUPED = [case for case in LAYER_TYPES if case.layer().__dict__.get("groups", 1) > 1]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.value)
every_case = pytest.mark.parametrize("case", CASES, ids=ids(CASES))
some_cases = pytest.mark.parametrize("case", SOME, ids=ids(SOME))


def inducing(case: LayerType, sizes: tuple[int, int] = (2, 3), **options: Any) -> Any:
    """A layer in float64 whose every noise term carries weight."""
    options = {"inducing_rows": sizes[0], "inducing_cols": sizes[1], "sampling": "local", "prior_sd": SIGMA} | options
    layer: Any = bayesian_from_template(case.layer(), "inducing", **options).double()
    with torch.no_grad():
        layer.z_row.normal_().mul_(0.6)
        layer.z_col.normal_().mul_(0.6)
        for raw in (layer._d_row, layer._d_col, layer._inducing_sd):
            raw.copy_(inverse_softplus(0.3 + 0.7 * torch.rand_like(raw)))
        layer._lamda.copy_(inverse_softplus(torch.tensor(LAMDA, dtype=torch.double)))
        layer.inducing_mean.normal_()
    return layer


def forced(layer: nn.Module, way: Way, count: int = 1, root: nn.Module | None = None) -> Call:
    """A call of `count` draws in which `layer` is drawn by `way`, if that is allowed."""
    call = Call(layer if root is None else root, count)
    call.ways[layer] = way
    return call


def forced_draw(layer: nn.Module, way: Way, count: int = 1, **settings: Any) -> Draw:
    return Draw(forced(layer, way, count), count, Seeds(layer, 1), **settings)


# ---- the dense oracle ------------------------------------------------------------------------------------------------


def by_hand(case: LayerType, W: Tensor, x: Tensor) -> Tensor:
    """The plain layer's output with W (d_out, d_in), the bias its last column; or with a split W, (o kw, c kh)."""
    plain = case.layer().double()
    n = plain.weight[0].numel()
    if len(W) > len(plain.weight):
        o, *columns, kw = plain.weight.shape
        weight = torch.einsum("obi->oib", W[:, : math.prod(columns)].reshape(o, kw, -1)).reshape(plain.weight.shape)
        bias = W[:, -1].reshape(o, kw).sum(1) / kw**0.5
        return torch.func.functional_call(plain, {"weight": weight} | ({} if plain.bias is None else {"bias": bias}), x)
    weights = {"weight": W[:, :n].reshape(plain.weight.shape)} | ({"bias": W[:, n]} if plain.bias is not None else {})
    return torch.func.functional_call(plain, weights, x)


def design(case: LayerType, layer: Any, x: Tensor) -> Tensor:
    """J (outputs, d_in d_out) with y = J vec W, columns of W stacked."""
    d_out, d_in = layer.z_row.shape[1], layer.z_col.shape[1]
    columns = torch.eye(d_out * d_in, dtype=torch.double).reshape(-1, d_in, d_out).mT
    return torch.stack([by_hand(case, W, x).flatten() for W in columns], dim=1)


def sides(layer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A_r, A_c and the Cholesky factors of Psi_r, Psi_c."""
    sides = []
    for z, raw in ((layer.z_row, layer._d_row), (layer.z_col, layer._d_col)):
        L = torch.linalg.cholesky(z @ z.T + torch.diag(nn.functional.softplus(raw).square()))
        sides.append((torch.linalg.solve_triangular(L, z, upper=False), L))
    (A_r, L_r), (A_c, L_c) = sides
    return A_r, A_c, L_r, L_c


def owners(layer: Any, y: Tensor, batched: bool) -> tuple[Tensor, Tensor]:
    """The input and the row that each entry of the output y belongs to."""
    inputs = torch.arange(len(y))[:, None].expand(len(y), y[0].numel()) if batched else torch.zeros(1, y.numel())
    channel = y.ndim - 1 if isinstance(layer, nn.Linear) else int(batched)
    rows = torch.arange(y.numel() // layer.d_out).reshape(y.movedim(channel, -1).shape[:-1])
    return inputs.flatten(), rows.unsqueeze(channel).expand(y.shape).flatten()


def expected_covariance(case: LayerType, layer: Any, x: Tensor, way: Way) -> Tensor:
    """Of all outputs at x: Cov[W] in its three parts, each cut where a way draws it anew."""
    J = design(case, layer, x)
    A_r, A_c, L_r, L_c = sides(layer)
    P_r, P_c = A_r.T @ A_r, A_c.T @ A_c
    maps = torch.kron(A_c.T, A_r.T) * SIGMA  # u to W
    if not layer.options.whitened_u:
        maps = maps @ torch.kron(torch.linalg.inv(L_c), torch.linalg.inv(L_r))
    variances = nn.functional.softplus(layer._inducing_sd).square().T.flatten()
    of_u = maps @ torch.diag(variances) @ maps.T
    one, noise = torch.eye(len(P_r), dtype=torch.double), (LAMDA * SIGMA) ** 2
    of_columns = noise * torch.kron(P_c, one - P_r)
    of_rest = noise * torch.kron(torch.eye(len(P_c), dtype=torch.double) - P_c, one)
    y = by_hand(case, torch.zeros(len(P_r), len(P_c), dtype=torch.double), x)
    inputs, rows = owners(layer, y, batched=len(case.input_shape) == len(_batched_shape(case)))
    everywhere = torch.ones(len(rows), len(rows))
    same_input, same_row = inputs[:, None] == inputs, rows[:, None] == rows
    first, second = {
        Way.DENSE: (everywhere, everywhere),
        Way.JOINT: (everywhere, same_input),
        Way.JOINT_WITHOUT_COLUMNS: (same_input, same_input),
        Way.PER_ROW: (everywhere, same_row),
        Way.PER_ROW_WITHOUT_COLUMNS: (same_input if layer.split else same_row, same_row),
    }[way]
    return J @ of_u @ J.T + first * (J @ of_columns @ J.T) + second * (J @ of_rest @ J.T)


def _batched_shape(case: LayerType) -> tuple[int, ...]:
    """A shape with as many dimensions as a batch of inputs has, at least."""
    if case.plain is nn.Linear:
        return case.input_shape if len(case.input_shape) > 1 else (1, *case.input_shape)
    return (0,) * {nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5}[case.plain]


# ---- the noise, taken apart ------------------------------------------------------------------------------------------


def named(
    module: nn.Module, name: str, *shape: int, by_input: bool = False, unit: int = 0, **_: Any
) -> tuple[Any, ...]:
    """What `Draw.normals` is asked for, with the number of the unit in the name of noise that belongs to inputs."""
    return module, f"{name} {unit}" if by_input else name, *shape


class Silence:
    """Stands in for `Draw.normals`: no noise at all, but notes what is asked for, each name once per draw."""

    def __init__(self) -> None:
        self.start: dict[str, int] = {}  # of the noise `name` among all noise of a draw
        self.size = 0
        self.asked: set[tuple[str, int]] = set()

    def __call__(self, draw: Draw, module: nn.Module, name: str, *shape: int, like: Tensor, **_: Any) -> Tensor:
        assert like.dtype == torch.double
        asked = {(name, number) for number in range(draw.first, draw.first + draw.count)}
        assert not asked & self.asked
        self.asked |= asked
        if name not in self.start:
            self.start[name], self.size = self.size, self.size + math.prod(shape)
        return torch.zeros(draw.count, *shape, dtype=like.dtype)


class OneHot:
    """Stands in for `Draw.normals`: draw k has a one in the k-th entry of all noise, the last draw none."""

    def __init__(self, noted: Silence) -> None:
        self.noted = noted

    def __call__(self, draw: Draw, module: nn.Module, name: str, *shape: int, like: Tensor, **_: Any) -> Tensor:
        n, start = math.prod(shape), self.noted.start[name]
        entry = torch.arange(draw.first, draw.first + draw.count)[:, None] - start  # that is one, if it is one of ours
        noise = (torch.arange(n) == entry).to(like.dtype)
        return noise.reshape(-1, *shape)


@torch.no_grad()
def with_noise(noise: Any, layer: Any, x: Tensor, way: Way, count: int, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The outputs (count, ...) with a stand-in for the noise; without gradients, so inputs may run in units."""
    with monkeypatch.context() as patch:
        patch.setattr(Draw, "normals", lambda draw, *args, **kwargs: noise(draw, *named(*args, **kwargs), **kwargs))
        draw = forced_draw(layer, way, count)
        return in_one_pass(layer, x, draw) if count > 1 else torch.stack(one_by_one(layer, [x], [draw]))


def taken_apart(layer: Any, x: Tensor, way: Way, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """The output without noise, and its derivatives (noise, outputs) by every entry of the noise: it is affine."""
    single, folded = Silence(), Silence()
    alone = with_noise(single, layer, x, way, 1, monkeypatch)[0]
    with_noise(folded, layer, x, way, single.size + 1, monkeypatch)
    assert folded.start == single.start  # the number of draws changes no noise
    outputs = with_noise(OneHot(folded), layer, x, way, folded.size + 1, monkeypatch)
    torch.testing.assert_close(outputs[-1], alone, **EXACT)
    return alone, (outputs[:-1] - outputs[-1]).flatten(1)


@every_way
@every_case
def test_mean_and_covariance(case: LayerType, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """All inputs, positions and channels together."""
    layer, x = inducing(case), case.input().double()
    mean, slopes = taken_apart(layer, x, way, monkeypatch)
    torch.testing.assert_close(slopes.T @ slopes, expected_covariance(case, layer, x, way), **EXACT)
    A_r, A_c, _, _ = sides(layer)
    W = SIGMA * A_r.T @ layer.inducing_mean @ A_c
    torch.testing.assert_close(mean, by_hand(case, W, x), **EXACT)
    plain = case.layer().double()
    plain.weight.data = layer.weight
    if layer.has_bias:
        plain.bias.data = layer.bias
    torch.testing.assert_close(mean, plain(x), **EXACT)


@every_way
@some_cases
@pytest.mark.parametrize(
    ("sizes", "whitened"), [((9, 30), True), ((2, 3), False), ((9, 30), False)], ids=["M>d", "unwhitened", "both"]
)
def test_covariance_for_other_sizes(
    case: LayerType, sizes: tuple[int, int], whitened: bool, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = inducing(case, sizes, whitened_u=whitened), case.input().double()
    _, slopes = taken_apart(layer, x, way, monkeypatch)
    torch.testing.assert_close(slopes.T @ slopes, expected_covariance(case, layer, x, way), **EXACT)


@every_way
@pytest.mark.parametrize("case", BATCHES, ids=ids(BATCHES))
def test_covariance_in_units_of_inputs(case: LayerType, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five inputs, some at a time: the same distribution of all of them, every unit with noise of its own."""
    for step, units in [(1, 5), (2, 3), (4, 2), (5, 1)]:
        with monkeypatch.context() as patch:
            layer, x = inducing(case), torch.randn(5, *case.input_shape[1:]).double()
            one = layer(x)[0]
            patch.setattr(ways, "UNIT_BYTES", step * ways.UNIT_DRAWS * one.numel() * one.element_size())
            noted = Silence()
            with_noise(noted, layer, x, way, 2, patch)
            numbers = {int(name.split()[1]) for name in noted.start if " " in name}
            assert numbers == (set() if way is Way.DENSE else set(range(units)))
            _, slopes = taken_apart(layer, x, way, patch)
            torch.testing.assert_close(slopes.T @ slopes, expected_covariance(case, layer, x, way), **EXACT)


@pytest.mark.parametrize("case", BATCHES, ids=ids(BATCHES))
def test_covariance_with_few_weights_at_a_time(case: LayerType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two draws' weights are held at a time."""
    layer, x = inducing(case), case.input().double()
    monkeypatch.setattr(base, "WEIGHT_BYTES", 2 * 4 * layer.d_in * layer.d_out)
    _, slopes = taken_apart(layer, x, Way.DENSE, monkeypatch)
    torch.testing.assert_close(slopes.T @ slopes, expected_covariance(case, layer, x, Way.DENSE), **EXACT)


@pytest.mark.parametrize("case", GROUPED, ids=ids(GROUPED))
@every_way
def test_groups_run_dense(case: LayerType, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is forced: the covariance is that of W."""
    layer, x = inducing(case), case.input().double()
    _, slopes = taken_apart(layer, x, way, monkeypatch)
    torch.testing.assert_close(slopes.T @ slopes, expected_covariance(case, layer, x, Way.DENSE), **EXACT)


def folded_output(layer: Any, x: Tensor, way: Way, count: int = 3) -> Tensor:
    """The outputs (K, ...) under named draws."""
    return in_one_pass(layer, x, forced_draw(layer, way, count, inputs=len(x)))


@every_case
def test_lamda_0_is_one_function_however_it_is_drawn(case: LayerType) -> None:
    layer, x = inducing(case, max_lamda=0, sampling="weight"), case.input().double()
    dense = folded_output(layer, x, Way.DENSE)
    assert dense.std(0).max() > 0.01
    for way in WAYS:
        torch.testing.assert_close(folded_output(layer, x, way), dense, **EXACT)


@every_way
def test_inputs_of_their_own_for_every_draw(way: Way) -> None:
    """K different inputs (a layer behind another Bayesian layer) are each treated as one input for all is."""
    case = next(case for case in CASES if case.id == "conv2d-same")
    layer, x = inducing(case), torch.randn(3, *case.input_shape).double()
    together = in_one_pass(layer, x, forced_draw(layer, way, 3), dims=0)
    for k in range(3):
        torch.testing.assert_close(together[k], folded_output(layer, x[k], way)[k], **EXACT)


# ---- what `sampling` allows ------------------------------------------------------------------------------------------


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[list[Way]]:
    """The ways offered to the cost model, call by call; the last one is taken, dense only where nothing else is."""
    seen: list[list[Way]] = []

    def last(options: Any, *rest: Any) -> Way:
        seen.append(list(options))
        return seen[-1][-1]

    choose_ways(monkeypatch, last)
    return seen


def network(sampling: str = "auto", conv: bool = True, **options: Any) -> nn.Sequential:
    layer = nn.Conv2d(2, 3, 3, padding=1) if conv else nn.Linear(4, 3)
    net = nn.Sequential(layer, nn.Tanh())
    bnn.bayesianize_(net, "inducing", sampling=sampling, **SIZES, **options)
    set_noise_(net, 0.5)
    return net.double()


def repeated(shape: tuple[int, ...], times: int = 4) -> Tensor:
    """One input several times."""
    return torch.randn(1, *shape).double().expand(times, *shape)


def agree(outputs: Tensor) -> bool:
    """Whether all inputs of a batch (N, ...) get one output."""
    return torch.allclose(outputs, outputs[:1].expand_as(outputs), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("conv", [True, False], ids=["conv", "linear"])
@pytest.mark.parametrize("sampling", ["auto", "weight", "local"])
def test_only_weight_is_one_function_of_the_batch(sampling: str, conv: bool) -> None:
    net, x = network(sampling, conv), repeated((2, 3, 3) if conv else (4,))
    one = sampling == "weight"
    assert agree(net(x)) == one
    folded, single = bnn.draws(net, x, samples=3), bnn.draws(net, x, samples=1)
    assert [agree(outputs) for outputs in (*folded, *single)] == [one] * 4
    bnn.set_sampling_(net, "weight")
    assert agree(net(x))


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("conv", [True, False], ids=["conv", "linear"])
def test_lamda_0_is_one_function_of_the_batch(conv: bool) -> None:
    net, x = network("auto", conv, max_lamda=0), repeated((2, 3, 3) if conv else (4,))
    assert agree(net(x))
    assert all(agree(outputs) for outputs in bnn.draws(net, x, samples=3))


ONE_ROW = [
    (nn.Linear, (4, 3), (4,), 1),
    (nn.Linear, (4, 3), (1, 4), 1),
    (nn.Linear, (4, 3), (2, 4), 2),
    (nn.Conv1d, (2, 3, 3), (2, 3), 1),
    (nn.Conv2d, (2, 3, 3), (2, 3, 3), 1),
    (nn.Conv2d, (2, 3, 3), (2, 4, 3), 2),
    (nn.Conv3d, (2, 3, 1), (2, 1, 2, 2), 4),
]


@pytest.mark.parametrize(("plain", "args", "shape", "rows"), ONE_ROW)
def test_auto_draws_per_row_only_where_an_input_is_one_row(
    plain: type[nn.Module], args: Any, shape: Any, rows: int, offered: list[list[Way]]
) -> None:
    net, x = nn.Sequential(plain(*args)), torch.randn(5, *shape)
    bnn.bayesianize_(net, "inducing", **SIZES)
    net(x)
    bnn.draws(net, x, samples=2)
    bnn.draws(net, x, samples=1)
    exact = {Way.DENSE, Way.JOINT, Way.JOINT_WITHOUT_COLUMNS}
    assert [set(options) for options in offered] == [exact | (PER_ROW if rows == 1 else set())] * 3
    bnn.set_sampling_(net, "local")
    net(x)
    assert set(offered[-1]) == set(Way)
    bnn.set_sampling_(net, "weight")
    net(x)
    assert offered[-1] == [Way.DENSE]


@pytest.mark.parametrize(("sampling", "way"), [("auto", Way.PER_ROW), ("weight", Way.JOINT), ("weight", Way.PER_ROW)])
def test_a_planned_way_that_sampling_forbids_is_not_taken(sampling: str, way: Way) -> None:
    net, x = network(sampling), repeated((2, 3, 3))
    call = forced(net[0], way, root=net)
    with open_forward(Forward(Draw(call, inputs=len(x)), root=net, pinned=True)):
        net(x)
    assert call.ways[net[0]] is not way


# ---- special cases ---------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """One layer under two names, run on the same and on another input."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = self.a
        bnn.bayesianize_(self, "inducing", **SIZES)
        set_noise_(self, 0.5)
        self.double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.a(x), self.b(x), self.a(x + 1)


def affine(x: Tensor, y: Tensor, z: Tensor) -> bool:
    """Whether y = f(x) and z = f(x + 1) for one affine f."""
    one = torch.ones(len(x), 1, dtype=x.dtype)
    left, right = torch.cat([x, one], 1), torch.cat([x + 1, one], 1)
    both, outputs = torch.cat([left, right]), torch.cat([y, z])
    fit = torch.linalg.lstsq(both, outputs).solution
    return torch.allclose(both @ fit, outputs, atol=1e-9)


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("samples", [1, 3])
def test_draws_start_again_for_a_tied_layer(samples: int) -> None:
    net, x = Tied(), torch.randn(6, 3).double()
    assert not net.a.repeats
    first, second, third = bnn.draws(net, x, samples=samples)  # a warning would be an error
    assert net.a.repeats
    assert torch.equal(first, second)
    assert all(affine(x, y, z) for y, z in zip(first, third, strict=True))
    assert samples == 1 or not torch.allclose(first[0], first[1])


@pytest.mark.usefixtures("offered")
def test_a_plain_forward_of_a_tied_layer_warns_once() -> None:
    net, x = Tied(), torch.randn(6, 3).double()
    with pytest.warns(UserWarning, match="ran twice in one forward") as caught:
        net(x)
    assert len(caught) == 1
    assert net.a.repeats
    for _ in range(2):
        first, second, third = net(x)
        assert torch.equal(first, second)
        assert affine(x, first, third)


@pytest.mark.usefixtures("offered")
def test_an_elbo_of_a_tied_layer_warns_once_and_is_right_from_then_on() -> None:
    net, x = Tied(), torch.randn(6, 3).double()
    gap = lambda output, target: (output[0] - output[1]).square().sum()  # noqa: E731
    elbo = bnn.ELBO(net, num_data=6, likelihood=gap, samples=2)
    with pytest.warns(UserWarning, match="ran twice in one forward"):
        elbo(x, None)
    assert elbo(x, None).data == 0


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(3, 3)
        bnn.bayesianize_(self, "inducing", **SIZES)
        set_noise_(self, 0.5)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.step(x)
        return x


@pytest.mark.usefixtures("offered")
def test_a_recurrent_layer_is_one_function_of_all_steps() -> None:
    net = Recurrent()
    outputs = bnn.draws(net, repeated((3,)), samples=3)
    assert all(agree(output) for output in outputs)
    assert net.step.repeats
    draw = Draw(Call(net, 3, restarts=True), 3, Seeds(net, 1), inputs=4)
    x = torch.randn(4, 3).double()
    got = in_one_pass(net, x, draw)
    weight, bias = draw.once(net.step, "weights", lambda draw: pytest.fail("no weights were drawn"))
    want = x.expand(3, 4, 3)
    for _ in range(3):
        want = want @ weight.mT + bias[:, None]
    torch.testing.assert_close(got, want)


class Windows(nn.Module):
    """Runs its layer on windows, which are not the network's inputs."""

    def __init__(self, sampling: str) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        bnn.bayesianize_(self, "inducing", sampling=sampling, **SIZES)
        set_noise_(self, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(-1, 2)).reshape(len(x), -1, 3)  # (N, windows, 3)


@pytest.mark.usefixtures("offered")
def test_windows_in_the_batch_run_dense() -> None:
    x = torch.ones(4, 6)
    for sampling, one in [("auto", True), ("local", False)]:
        net = Windows(sampling)
        windows = [net(x).flatten(0, 1), *bnn.draws(net, x, samples=2).flatten(1, 2)]
        assert [agree(output) for output in windows] == [one] * 3


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("statistics", [True, False], ids=["running", "none"])
def test_batch_normalisation_by_the_batch_makes_auto_dense(statistics: bool) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=statistics))
    bnn.bayesianize_(net, "inducing", **SIZES)
    set_noise_(net, 0.5)
    seen: list[Tensor] = []
    net[0].register_forward_hook(lambda module, args, output: seen.append(output))
    x = torch.cat([repeated((4,), 3).float(), torch.randn(2, 4)])
    net.train()(x)
    assert torch.allclose(seen[-1][:3], seen[-1][:1].expand(3, 3), atol=1e-6)
    outputs = bnn.draws(net, x, samples=2)[:, :3]
    assert torch.allclose(outputs, outputs[:, :1].expand_as(outputs), atol=1e-5)
    net.eval()(x)
    assert torch.allclose(seen[-1][:3], seen[-1][:1].expand(3, 3), atol=1e-6) != statistics


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("sampling", ["auto", "local"])
def test_a_frozen_draw_is_one_function(sampling: str) -> None:
    net, x = network(sampling), repeated((2, 3, 3))
    with bnn.frozen_draw(net, 1):
        first = net(x)
        assert agree(first)
        assert torch.equal(net(x), first)
        torch.testing.assert_close(net(x[:2]), first[:2])
    assert not agree(net(x))


# ---- zero patches and duplicate positions ----------------------------------------------------------------------------

DEGENERATE: dict[str, Callable[[tuple[int, ...]], Tensor]] = {
    "zeros": torch.zeros,
    "constant": torch.ones,
    "zero input": lambda shape: torch.cat([torch.zeros(1, *shape[1:]), torch.randn(1, *shape[1:])]),
    "large": lambda shape: torch.full(shape, 1e4),
    "tiny": lambda shape: torch.full(shape, 1e-30),
}
LAYERS = {
    "linear": (lambda bias: nn.Linear(4, 3, bias=bias), (2, 4)),
    "sequence": (lambda bias: nn.Linear(4, 3, bias=bias), (2, 5, 4)),
    "conv": (lambda bias: nn.Conv2d(2, 3, 3, padding=1, bias=bias), (2, 2, 4, 4)),
}


@every_way
@pytest.mark.parametrize("kind", LAYERS)
def test_degenerate_inputs_stay_finite(kind: str, way: Way) -> None:
    """Outputs, and gradients of parameters and inputs, in float32; also folded."""
    for values in DEGENERATE:
        for bias in (True, False):
            make, shape = LAYERS[kind]
            layer: Any = bayesian_from_template(make(bias), "inducing", sampling="local", **SIZES)
            set_noise_(layer, 0.3)
            x = DEGENERATE[values](shape).requires_grad_()
            (single,) = one_by_one(layer, [x], [forced_draw(layer, way)])
            outputs = torch.cat([single[None], in_one_pass(layer, x, forced_draw(layer, way, 2))])
            assert torch.isfinite(outputs).all()
            outputs.mean().backward()
            for tensor in (x, *layer.parameters()):
                assert torch.isfinite(tensor.grad).all()
            if values == "zeros" and not bias:
                assert outputs.abs().max() < 1e-6  # W 0 = 0
