"""K draws in one pass are the K draws one after the other, whatever the network does with its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import FAMILIES, SIZES, Family, ids, set_noise_, sizes_of
from torch import Tensor, nn

import bnn
from bnn._engine.call import Call, Repeated
from bnn._engine.draw import Draw
from bnn._engine.fold import FoldingWarning, in_one_pass, one_by_one
from bnn._engine.inputs import join_outputs, split_outputs
from bnn._engine.members import even_members
from bnn._engine.noise import Seeds

K = 3
EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64 rounding
every_family = pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))


def noisy(net: nn.Module, inference: Any = "inducing", sd: float = 0.3, **options: Any) -> Any:
    """`net` in float64, converted, in evaluation mode, with a posterior that is wide enough to see."""
    bnn.bayesianize_(net, inference, **(sizes_of(inference) | options))
    set_noise_(net, sd)
    return net.double().eval()


def looped(net: nn.Module, x: Any, draws: list[Draw]) -> Any:
    """The outputs (K, ...) of single draws, one after the other."""
    return join_outputs(one_by_one(net, [x] * len(draws), draws), torch.stack)


def named(net: nn.Module, call: Call | None = None, members: Any = None, inputs: int | None = None) -> Draw:
    """K draws that are named by the number 11."""
    return Draw(Call(net, K) if call is None else call, K, Seeds(net, 11), members, inputs)


def each(draw: Draw) -> list[Draw]:
    return [draw.only(k, k + 1) for k in range(draw.count)]


def both(net: nn.Module, x: Any, inputs: int | None = None) -> tuple[Any, Any]:
    """The outputs under the same K draws in one pass, and one after the other."""
    members, call = even_members(net, K), Call(net, K, restarts=True)  # as `bnn.draws` does
    try:
        together = in_one_pass(net, x, named(net, call, members, inputs))
    except Repeated:
        return both(net, x, inputs)
    again = Call(net, K, restarts=True)  # with factors, and so a graph, of its own
    again.ways = dict(call.ways)
    return together, looped(net, x, each(named(net, again, members, inputs)))


def check(net: nn.Module, x: Any, inputs: int | None = None) -> Any:
    """Folding changes nothing, for values and for gradients; returns the outputs."""
    folded, single = both(net, x, inputs)
    torch.testing.assert_close(folded, single, **EXACT)
    parameters = [p for p in net.parameters() if p.requires_grad]
    outputs = torch.stack([_first(part) for part in split_outputs(folded, K)])
    assert outputs.std(0).max() > 1e-6  # draws differ
    grads = [torch.autograd.grad(_first(y).square().sum(), parameters, allow_unused=True) for y in (folded, single)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
    return folded


def _first(output: Any) -> Tensor:
    if isinstance(output, dict):
        return _first(next(iter(output.values())))
    return output if isinstance(output, Tensor) else _first(output[0])


# ---- families --------------------------------------------------------------------------------------------------------

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)), (5, 4)),
    "sequences": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2, bias=False)), (3, 2, 4)),
    "1x1": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.Tanh(), nn.Conv2d(4, 3, 1, stride=2), nn.Flatten()),
        (3, 2, 4, 4),
    ),
}


@every_family
def test_every_family(family: Family) -> None:
    """Below the caps, where each draw would cut its own gradients."""
    for make, shape in NETS.values():
        sd = 0.5 if family.inference == "mcdropout" else 0.02  # a rare mask would drop nothing
        net = noisy(make(), family.inference, sd=sd, **family.options)
        check(net, torch.randn(shape).double())


CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "conv1d": lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Conv1d(3, 2, 2, stride=2)),
    "conv2d": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1, groups=2, padding_mode="circular")
    ),
    "conv3d": lambda: nn.Sequential(nn.Conv3d(2, 3, 2), nn.Tanh(), nn.Conv3d(3, 2, 3, padding="same", bias=False)),
    "conv2d of many channels": lambda: nn.Sequential(
        nn.Conv2d(2, 12, 3, padding=1), nn.Tanh(), nn.Conv2d(12, 9, 3, stride=2), nn.Tanh(), nn.Conv2d(9, 2, 1)
    ),
}


@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, q: str) -> None:
    """Whatever order of weights is faster where: the draws are the same."""
    sizes = {"inducing_rows": 3, "inducing_cols": 10} if name.endswith("many channels") else SIZES
    own = sizes | {"q_inducing": q} | ({"ensemble_size": 2} if q == "ensemble" else {})
    for options in ({"max_lamda": 0}, {}, {"sampling": "weight"}, {"sampling": "local"}):
        net = noisy(CONVOLUTIONS[name](), **own, **options)
        x = torch.randn(3, 2, *[5] * int(name[4])).double()
        check(net, x)
        check(net, x.transpose(-1, -2).contiguous().transpose(-1, -2))  # strides do not matter


@pytest.mark.parametrize(
    ("inference", "options"),
    [("ffg", {}), ("ffg", {"sampling": "weight"}), ("ffg", {"sampling": "local"}), ("fcg", {})],
    ids=["ffg", "ffg-weight", "ffg-local", "fcg"],
)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_families_without_inducing_weights(name: str, inference: str, options: dict[str, Any]) -> None:
    check(noisy(CONVOLUTIONS[name](), inference, **options), torch.randn(3, 2, *[5] * int(name[4])).double())


@pytest.mark.parametrize("max_lamda", [None, 0])
@pytest.mark.parametrize("q", ["diagonal", "matrix", "full", "ensemble"])
def test_global_inducing_weights(q: str, max_lamda: float | None) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=4, max_lamda=max_lamda)
    sizes = {"ensemble_size": 2} if q == "ensemble" else {}
    bnn.register_global_inducing_weights_(net, 2, 3, q_inducing=q, max_lamda=max_lamda, **sizes)
    set_noise_(net, 0.3)
    check(net.double(), torch.randn(5, 4).double())


# ---- what networks do ------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Runs `forward(self, x)` on named layers."""

    def __init__(self, run: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def in_place(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    h += 1
    h.mul_(2)
    h[:, 0] = 0
    h.relu_()
    y = torch.zeros_like(h)
    y[:, 1:].add_(h[:, 1:])
    return F.leaky_relu(net.b(F.relu(y, inplace=True)), inplace=True)


def attention(net: Any, x: Tensor) -> Tensor:
    q, k, v = net.a(x).chunk(3, -1)
    return net.b(F.scaled_dot_product_attention(q, k, v) + (q @ k.mT).softmax(-1) @ v)


def transposed(net: Any, x: Tensor) -> Tensor:
    return net.b(net.a(x.transpose(0, 1)).tanh()).transpose(0, 1)  # (N, L, d) to (L, N, d) and back


def concatenated(net: Any, x: Tensor) -> Tensor:
    return net.b(torch.cat([net.a(x), x], -1)) + torch.stack([x.sum(-1), x[..., 0]], -1)


def viewed(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.b(h.view(h.size(0), -1))


def heads() -> dict[str, nn.Module]:
    return linears(hidden=4) | {"c": nn.MultiheadAttention(4, 2, batch_first=True)}


def linears(d: int = 4, hidden: int = 6, out: int = 2, after: int | None = None) -> dict[str, nn.Module]:
    return {"a": nn.Linear(d, hidden), "b": nn.Linear(after or hidden, out)}


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "in place": (lambda: Net(in_place, **linears()), (5, 4)),
    "dict": (lambda: Net(lambda net, x: {"y": net.b(net.a(x)), "rest": (net.a(x), [x])}, **linears()), (5, 4)),
    "tuple": (lambda: Net(lambda net, x: (net.b(net.a(x).tanh()), x), **linears()), (5, 4)),
    "attention": (lambda: Net(attention, **linears(hidden=12, after=4)), (2, 3, 4)),
    "transposed": (lambda: Net(transposed, **linears()), (2, 3, 4)),
    "skip": (lambda: Net(concatenated, **linears(after=10)), (5, 4)),
    "view": (lambda: Net(viewed, a=nn.Conv2d(2, 3, 1), b=nn.Linear(48, 2)), (3, 2, 4, 4)),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 1)),
        (3, 2, 4, 4),
    ),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.InstanceNorm2d(4, affine=True), nn.Conv2d(4, 2, 1)),
        (3, 2, 4, 4),
    ),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2)), (5, 4)),
    "pooling": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1), nn.AvgPool2d(2), nn.Flatten()),
        (3, 2, 4, 4),
    ),
    "adaptive pooling": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 1), nn.AdaptiveAvgPool2d((2, 1)), nn.Conv2d(4, 4, 1), nn.AdaptiveMaxPool2d(1)
        ),
        (3, 2, 4, 4),
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2)), (5, 4)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)), (5, 4)),
    "batch norm 2d": (lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)), (3, 2, 4, 4)),
    "upsampling": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.Upsample(scale_factor=2), nn.ConvTranspose2d(4, 2, 2, stride=2)),
        (2, 2, 3, 3),
    ),
    "unbatched": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), (4,)),
    "heads": (lambda: Net(lambda net, x: net.b(net.c(*[net.a(x)] * 3)[0]), **heads()), (2, 3, 4)),
}


@pytest.mark.filterwarnings("ignore:left deterministic")
@pytest.mark.parametrize("name", NETWORKS)
def test_what_networks_do(name: str) -> None:
    for sampling in ("auto", "weight", "local"):
        make, shape = NETWORKS[name]
        net = noisy(make(), sampling=sampling)
        for module in net.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
        x = torch.randn(shape).double()
        check(net, x, inputs=len(x))
        outputs = bnn.draws(net, x, samples=K)  # in one pass: a FoldingWarning would be an error
        assert _first(outputs).shape[:1] == (K,)


def test_keyword_arguments() -> None:
    net = noisy(Net(lambda net, x, scale: net.b(net.a(x)) * scale, **linears()))
    x, scale = torch.randn(5, 4).double(), torch.tensor(2.0).double()
    torch.testing.assert_close(check(net, {"x": x, "scale": scale}), check(net, (x, scale)))


# ---- batch normalisation by the batch --------------------------------------------------------------------------------


def normalised(where: str, momentum: float | None) -> nn.Sequential:
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(4 if where == "stem" else 6, momentum=momentum)
    layers = [norm, nn.Linear(4, 6)] if where == "stem" else [nn.Linear(4, 6), norm]
    net: nn.Sequential = noisy(nn.Sequential(*layers, nn.Linear(6, 2)))
    return net.train()


def run_both(where: str, momentum: float | None) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Outputs and buffers after K draws in one pass, and one after the other."""
    x, ends = torch.randn(7, 4).double(), []
    for folds in (True, False):
        net = normalised(where, momentum)
        draw = named(net, inputs=7)
        output = in_one_pass(net, x, draw) if folds else looped(net, x, each(draw))
        ends.append((output, dict(net.named_buffers())))
    return ends


def test_outputs_and_running_statistics_end_as_in_the_loop() -> None:
    """Normalised by the batch each draw is a batch of its own."""
    (folded, after), (single, wanted) = run_both("behind", momentum=0.1)
    torch.testing.assert_close(folded, single, **EXACT)
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(after[name], wanted[name], **EXACT)


def test_statistics_averaged_by_the_number_of_batches_end_as_in_the_loop() -> None:
    x, single = torch.randn(7, 4).double(), normalised("behind", momentum=None)
    drawn = normalised("behind", momentum=None)
    bnn.draws(drawn, x, samples=K, generator=torch.Generator().manual_seed(1))
    number = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(1)))
    looped(single, x, each(Draw(Call(single, K), K, Seeds(single, number), inputs=7)))
    torch.testing.assert_close(dict(drawn.named_buffers()), dict(single.named_buffers()), **EXACT)
    assert drawn[1].num_batches_tracked == K


# ---- the deterministic stem ------------------------------------------------------------------------------------------


def watch(net: nn.Module) -> dict[str, list[tuple[bool, int]]]:
    """Per plain layer and call: whether it saw all draws, and the length of the batch that it saw."""
    seen: dict[str, list[tuple[bool, int]]] = {}

    def hook(name: str) -> Any:
        def note(module: nn.Module, args: Any, output: Tensor) -> None:
            folded = torch._C._functorch.is_batchedtensor(output)
            seen.setdefault(name, []).append((folded, len(args[0])))

        return note

    for name, module in net.named_modules():
        if not list(module.children()) and not isinstance(module, bnn.nn.base.BayesianLayer):
            module.register_forward_hook(hook(name))
    return seen


def test_the_deterministic_stem_runs_once() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2), nn.Identity())
    noisy(net, {"4": "inducing"})
    seen = watch(net)
    bnn.draws(net, torch.randn(5, 4).double(), samples=K)
    assert seen == {name: [(False, 5)] for name in "0123"} | {"5": [(True, 5)]}
    check(net, torch.randn(5, 4).double())


def test_the_stem_of_a_residual_network_runs_once() -> None:
    """Also where a skip connection goes around the first Bayesian layer."""
    net = bnn.nn.nets.make_network("resnet18", out_features=10, kernel_size=3, remove_maxpool=True)
    noisy(net, {"layer4.1.conv2": "inducing"}, max_lamda=0)
    x = torch.randn(2, 3, 16, 16).double()
    seen = watch(net)
    folded = bnn.draws(net, x, samples=K, generator=torch.Generator().manual_seed(1))
    behind = {name for name, calls in seen.items() if any(batched for batched, _ in calls)}
    assert all(length == 2 for calls in seen.values() for _, length in calls)
    assert {name: len(calls) for name, calls in seen.items() if len(calls) > 1} == {
        name: 2 for name in seen if name.endswith("relu") and name.startswith("layer")
    }  # each block's one activation runs twice; everything else once
    assert behind == {"layer4.1.bn2", "layer4.1.relu", "avgpool", "fc"}
    assert [batched for batched, _ in seen["layer4.1.relu"]] == [False, True]
    for k in range(K):
        assert not torch.allclose(folded[k], folded[k - 1])
    check(net, x)


# ---- what cannot be folded -------------------------------------------------------------------------------------------


def data_dependent(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.b(h * (1 + int(h.sum().item() > 0)))


def test_a_network_that_cannot_be_folded_runs_in_a_loop() -> None:
    net, x = noisy(Net(data_dependent, **linears())), torch.randn(5, 4).double()
    bnn.set_sampling_(net, "weight")  # one function per draw, however often a layer runs
    seeded = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    with pytest.warns(FoldingWarning, match="one after the other") as caught:
        single = bnn.draws(net, x, samples=K, generator=seeded())
    assert len(caught) == 1
    net.run = lambda net, x: net.b(torch.where(net.a(x).sum() > 0, 2.0, 1.0).double() * net.a(x))
    torch.testing.assert_close(single, bnn.draws(net, x, samples=K, generator=seeded()), **EXACT)
    net.run = data_dependent
    bnn.draws(net, x, samples=1)  # nothing to fold, nothing to warn of
    with pytest.warns(FoldingWarning):
        assert bnn.predict(net, x, samples=2, batch_size=2).probs.shape == (5, 2)


def test_the_warning_comes_once_and_names_the_callers_line() -> None:
    net, x = noisy(Net(data_dependent, **linears())), torch.randn(6, 4).double()
    with pytest.warns(FoldingWarning) as caught:
        bnn.draws(net, x, samples=K, batch_size=2)
    assert [warning.filename for warning in caught] == [__file__]


UNFOLDED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "in place, of all draws": lambda net, x: x.clone().add_(net.a(x)),
    "write to a shared tensor": lambda net, x: torch.zeros(5, 4).double().index_add_(0, torch.arange(5), net.a(x)),
    "recurrent": lambda net, x: net.b(net.a(x))[0],
}


@pytest.mark.parametrize("name", UNFOLDED)
def test_what_vmap_has_no_rule_for_runs_in_a_loop(name: str) -> None:
    net = Net(UNFOLDED[name], a=nn.Linear(4, 4), b=nn.GRU(4, 4))
    noisy(net, {"a": "inducing"})
    x, seeded = torch.randn(5, 4).double(), lambda: torch.Generator().manual_seed(1)
    kept = x.clone()
    with pytest.warns(FoldingWarning):
        single = bnn.draws(net, x, samples=K, generator=seeded())
    run, net.run = net.run, lambda net, x: net.a(x)
    alone = bnn.draws(net, x, samples=K, generator=seeded())
    plain = Net(run, a=nn.Identity(), b=net.b)
    wanted = x + alone if name.startswith("in place") else torch.stack([plain(h) for h in alone])
    torch.testing.assert_close(single, wanted, **EXACT)
    assert torch.equal(x, kept)


def test_vmaps_own_warnings_stay_away() -> None:
    net, x = noisy(Net(lambda net, x: net.b(net.a(x).clamp_(0, 1)), **linears())), torch.randn(5, 4).double()
    bnn.draws(net, x, samples=K)


@pytest.mark.parametrize("name", ["view(size=)", "view_as", "contiguous"])
def test_other_views_of_convolutions_fold(name: str) -> None:
    run = {
        "view(size=)": lambda net, x: net.a(x).view(size=(3, -1)),
        "view_as": lambda net, x: net.a(x).view_as(torch.empty(3, 48)),
        "contiguous": lambda net, x: net.a(x).contiguous(memory_format=torch.channels_last),
    }[name]
    bnn.draws(noisy(Net(run, a=nn.Conv2d(2, 3, 3, padding=1))), torch.randn(3, 2, 4, 4).double(), samples=K)


def test_an_elbo_that_cannot_be_folded_runs_in_a_loop() -> None:
    net, x = noisy(Net(data_dependent, **linears())), torch.randn(5, 4).double()
    elbo = bnn.ELBO(net, num_data=5, likelihood="categorical", samples=2)
    with pytest.warns(FoldingWarning):
        loss = elbo(x, torch.zeros(5, dtype=torch.long)).loss
    loss.backward()
    assert torch.isfinite(net.a.z_row.grad).all()


class OwnError(Exception):
    """A user's own."""


@pytest.mark.parametrize("samples", [1, K])
def test_a_users_exception_surfaces_unchanged(samples: int) -> None:
    error = OwnError("mine")

    def run(net: Any, x: Tensor) -> Tensor:
        net.b(net.a(x))
        raise error

    net, x = noisy(Net(run, **linears())), torch.randn(5, 4).double()
    with pytest.raises(OwnError, match="mine") as caught:
        bnn.draws(net, x, samples=samples)
    assert caught.value is error
    with pytest.raises(OwnError, match="mine"):
        bnn.ELBO(net, num_data=5, likelihood="categorical", samples=samples)(x, None)
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|must match"):
        bnn.draws(noisy(nn.Sequential(nn.Linear(3, 2))), x, samples=samples)
    net.run = lambda net, x: net.b(net.a(x))
    assert bnn.draws(net, x, samples=samples).shape == (samples, 5, 2)  # nothing was left open


def test_a_compiled_network() -> None:
    net, x = noisy(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))), torch.randn(5, 4).double()
    seeded = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    compiled = torch.compile(net, backend="eager")
    torch.testing.assert_close(
        bnn.predict(compiled, x, samples=K, generator=seeded()).probs,
        bnn.predict(net, x, samples=K, generator=seeded()).probs,
        **EXACT,
    )
