"""Conversion of awkward networks: what changes, what must not, and what is refused."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import FAMILIES, MAIN, SIZES, Family, bayesian, bitwise, ids, set_noise_, sizes_of
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import bnn
from bnn.bayesianize import bayesian_from_template
from bnn.nn.base import BayesianLayer

every_family = pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))
main_family = pytest.mark.parametrize("family", MAIN, ids=ids(MAIN))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def convert(net: nn.Module, inference: Any = "ffg", **options: Any) -> list[str]:
    """Converts and returns the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert bnn.bayesianize_(net, inference, **options) is None
    return [str(warning.message) for warning in caught]


def varies(net: nn.Module, *inputs: Tensor, **kwargs: Any) -> bool:
    """Whether outputs differ from call to call."""
    with torch.no_grad():
        first = net(*inputs, **kwargs)
        return not all(torch.equal(net(*inputs, **kwargs), first) for _ in range(20))  # members may show up twice


# ---- what survives ---------------------------------------------------------------------------------------------------


@every_family
def test_names_count_and_order_of_modules_stay(family: Family) -> None:
    net = nn.ModuleDict({"x": mlp(), "list": nn.ModuleList([mlp(), nn.Sequential(nn.Sequential(nn.Linear(2, 2)))])})
    before = [(name, id(module)) for name, module in net.named_modules()]
    convert(net, family.inference, **family.options)
    assert [(name, id(module)) for name, module in net.named_modules()] == before
    assert len(bayesian(net)) == 7
    layers = [m for m in net.modules() if hasattr(m, "kl_divergence")]
    assert len(layers) == 7
    assert sum(m.kl_divergence() for m in layers).isfinite()


@pytest.mark.parametrize("root", [nn.Linear(4, 3), nn.Conv2d(2, 3, 2)])
@every_family
def test_the_root_may_be_a_layer(family: Family, root: nn.Module) -> None:
    net = copy.deepcopy(root)
    x = torch.randn(2, 4) if isinstance(root, nn.Linear) else torch.randn(2, 2, 3, 3)
    convert(net, family.inference, **family.options)
    assert isinstance(net, BayesianLayer)
    assert net(x).shape == root(x).shape
    assert varies(net, x)
    by_class = copy.deepcopy(root)
    convert(by_class, {type(root): {"inference": family.inference, **family.options}})
    assert type(by_class) is type(net)


@main_family
def test_double_precision_eval_mode_and_device_stay(family: Family) -> None:
    net = mlp().double().eval()
    net[2].train()
    convert(net, family.inference, **family.options)
    assert [m.training for m in net.modules()] == [False, False, False, True, False, False]
    assert {p.dtype for p in net.parameters()} == {torch.double}
    assert net(torch.randn(2, 4).double()).dtype == torch.double
    half = mlp().bfloat16().eval()
    convert(half, family.inference, **family.options)
    assert half(torch.randn(2, 4).bfloat16()).isfinite().all()


@every_family
def test_frozen_layers_get_frozen_posteriors(family: Family) -> None:
    net = mlp()
    net[0].requires_grad_(False)
    net[2].requires_grad_(False)
    convert(net, family.inference, **family.options)
    assert not any(p.requires_grad for i in (0, 2) for p in net[i].parameters())
    assert all(p.requires_grad for p in net[4].parameters())
    net(torch.randn(3, 4)).sum().backward()
    assert all(p.grad is None for p in net[0].parameters())
    assert all(p.grad is not None for p in net[4].parameters())


def test_a_frozen_bias_of_ffg_stays_frozen() -> None:
    net = nn.Linear(3, 2)
    net.bias.requires_grad_(False)
    convert(net)
    frozen = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert frozen == {"bias_mean", "_bias_sd"}


JOINT = ["fcg", "inducing", "inducingdeterministic", "matrixnormal", "ktied"]


@pytest.mark.parametrize("family", JOINT)
def test_a_frozen_bias_beside_a_weight_that_trains_is_refused_where_they_share_parameters(family: str) -> None:
    net = mlp()
    net[2].bias.requires_grad_(False)
    before = bitwise(net)
    with pytest.raises(ValueError, match=rf"layer '2': its bias is frozen while its weight trains, but '{family}'"):
        bnn.bayesianize_(net, family)
    assert bitwise(net) == before
    with pytest.raises(ValueError, match="its bias is frozen while its weight trains"):
        bayesian_from_template(net[2], family)
    bnn.bayesianize_(net, {"0": family, "2": "ffg", "4": family}, **sizes_of(family))  # the advice
    assert not net[2].bias_mean.requires_grad
    both = mlp()
    both[2].requires_grad_(False)
    bnn.bayesianize_(both, family, **sizes_of(family))


@pytest.mark.parametrize("family", JOINT)
def test_a_frozen_bias_is_refused_by_load_too(family: str, tmp_path: Path) -> None:
    saved, net = mlp(), mlp()
    bnn.bayesianize_(saved, family, **sizes_of(family))
    bnn.save(saved, tmp_path / "net")
    net[2].bias.requires_grad_(False)
    before = bitwise(net)
    with pytest.raises(ValueError, match="net: layer '2': its bias is frozen"):
        bnn.load_(net, tmp_path / "net")
    assert bitwise(net) == before


@pytest.mark.parametrize("family", ["ffg", *JOINT])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float8_e5m2], ids=str)
def test_weights_that_are_no_real_numbers_are_refused(family: str, dtype: torch.dtype) -> None:
    odd = quietly(nn.Linear(4, 3).to, dtype)
    net = nn.Sequential(nn.Linear(3, 4), odd)
    before = [type(m) for m in net]
    with pytest.raises(ValueError, match=rf"layer '1': its weights are {dtype}; posteriors are over real weights"):
        bnn.bayesianize_(net, family)
    assert [type(m) for m in net] == before
    with pytest.raises(ValueError, match="posteriors are over real weights"):
        bayesian_from_template(odd, family)
    bnn.bayesianize_(net, {"0": family, "1": None}, **sizes_of(family))


@pytest.mark.parametrize("family", ["ffg", *JOINT])
@pytest.mark.parametrize("part", ["weight", "bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_weights_are_refused_by_name(family: str, part: str, value: float) -> None:
    net = mlp()
    with torch.no_grad():
        getattr(net[2], part).view(-1)[1] = value
    before = bitwise(net)
    with pytest.raises(ValueError, match=r"layer '2': .* hold NaN or inf.* repair them first"):
        bnn.bayesianize_(net, family)
    assert bitwise(net) == before
    with pytest.raises(ValueError, match="hold NaN or inf"):
        bayesian_from_template(net[2], family)
    reference = {f"2.{part}": torch.zeros_like(getattr(net[2], part))}
    # replaced before anybody reads them
    bnn.bayesianize_(net, family, reference_state_dict=reference, **sizes_of(family))
    assert net[2].weight.isfinite().all()


def test_the_start_of_the_paper_reads_no_weights() -> None:
    net = nn.Linear(4, 3)
    nn.init.constant_(net.weight, float("nan"))
    bnn.bayesianize_(net, "inducing", init="paper", **SIZES)
    assert net.weight.isfinite().all()


def test_hooks_survive() -> None:
    net, calls = mlp().eval(), []
    net[0].register_forward_pre_hook(lambda *a: calls.append("layer pre"))
    net[0].register_forward_hook(lambda *a: calls.append("layer post"))
    net[0].register_full_backward_hook(lambda *a: calls.append("layer backward"))
    net.register_forward_pre_hook(lambda *a: calls.append("root pre"))
    net.register_forward_hook(lambda *a: calls.append("root post"))
    net.register_full_backward_hook(lambda *a: calls.append("root backward"))
    net[4].register_forward_hook(lambda m, a, out: out * 0 + 7)  # a hook that changes the output
    net[4].register_state_dict_post_hook(lambda *a: calls.append("state dict"))
    convert(net)
    x = torch.randn(2, 4, requires_grad=True)
    y = net(x)
    assert (y == 7).all()
    assert calls == ["root pre", "layer pre", "layer post", "root post"]
    net[:4](x).sum().backward()
    assert "layer backward" in calls
    net.state_dict()
    assert "state dict" in calls
    root, seen = nn.Linear(2, 2), []
    handle = root.register_forward_hook(lambda *a: seen.append(1))
    convert(root)
    root(torch.ones(1, 2))
    handle.remove()
    root(torch.ones(1, 2))
    assert seen == [1]


def test_attributes_of_layers_survive() -> None:
    net = mlp()
    net[0].note = "mine"
    net[0].register_buffer("mask", torch.ones(3))
    net[0].extra = nn.Parameter(torch.zeros(2))
    convert(net)
    assert net[0].note == "mine"
    assert {"mask", "extra"} <= set(net[0].state_dict())
    assert net[0].in_features == 4


@main_family
def test_a_tied_layer_is_converted_once(family: Family) -> None:
    shared = nn.Linear(4, 4)
    net = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, nn.ReLU()), "c": nn.Linear(4, 4)})
    assert convert(net, family.inference, **family.options) == []
    assert net["a"] is net["b"][0] is shared
    assert isinstance(shared, BayesianLayer)
    assert bayesian(net) == ["a", "c"]
    assert len(list(net.parameters())) == len(list(shared.parameters())) + len(list(net["c"].parameters()))


@every_family
def test_outputs_of_a_pretrained_network_are_kept(family: Family) -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).double()
    x = torch.randn(8, 2, 4, 4).double()
    net(x)
    net.eval()
    want = net(x).detach()
    convert(net, {"0": family.inference, "4": family.inference}, **(family.options | family.of_rank(19)))
    if {"r", "r_mean"} & family.tensors:  # the mean over members is kept, not what they have in common
        torch.testing.assert_close(bnn.draws(net, x, samples=0)[0], want)
        return
    set_noise_(net, 1e-10)
    if family.options.get("q_inducing") == "ensemble":
        assert ((net(x) - want).abs().max() / want.abs().max()) < 1  # members start near the weights, not at them
    else:
        torch.testing.assert_close(net(x), want, atol=1e-6, rtol=1e-6)


def test_partial_conversion_touches_nothing_else() -> None:
    net = mlp()
    before = bitwise(net)
    convert(net, {"4": "inducing"}, **SIZES)
    after = bitwise(net)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert all(key.startswith("4") or key == "|attributes" for key in changed)
    root = {key for key, value in after["|attributes"].items() if before["|attributes"].get(key) != value}
    assert root == {
        "_draw_hooks",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_forward_hooks_always_called",
    }
    assert bayesian(net) == ["4"]


def test_the_weights_of_the_plain_network_are_not_shared() -> None:
    plain = nn.Linear(3, 2)
    weight = plain.weight
    convert(plain)
    with torch.no_grad():
        plain.weight_mean.zero_()
    assert weight.abs().sum() > 0


def test_custom_modules_with_layers_used_as_functions() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
            self.blocks = nn.ModuleDict({"x": nn.Linear(4, 4)})

        def forward(self, x: Tensor) -> Tensor:
            x = self.scale * self.q(x)
            for block in self.blocks.values():
                x = torch.tanh(block(x))
            return nn.functional.linear(x, self.q.weight, self.q.bias)  # reads the posterior mean

    net = Custom()
    assert convert(net, init_sd=0.1) == []
    y = net(torch.randn(2, 4))
    y.sum().backward()
    assert net.q.weight_mean.grad is not None
    assert varies(net, torch.randn(2, 4))


# ---- what is left alone ----------------------------------------------------------------------------------------------


class MyLinear(nn.Linear):
    pass


def pruned(layer: nn.Module, name: str) -> nn.Module:
    result: nn.Module = prune.l1_unstructured(layer, name, amount=0.5)
    return result


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(4, 4))


def quietly(make: Any, *args: Any, **kwargs: Any) -> Any:
    """What torch makes with a warning that there are better ways by now."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*args, **kwargs)


def quantised(layer: nn.Module) -> Any:
    return quietly(torch.ao.quantization.quantize_dynamic, nn.Sequential(layer), {type(layer)}, dtype=torch.qint8)


LEFT_ALONE: dict[str, Any] = {
    "subclass": lambda: MyLinear(4, 4),
    "quantizable": lambda: nn.modules.linear.NonDynamicallyQuantizableLinear(4, 4),
    "lazy": lambda: nn.LazyLinear(4),
    "lazy-conv": lambda: nn.LazyConv2d(4, 3),
    "weight-norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "spectral-norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "old-weight-norm": old_weight_norm,
    "old-spectral-norm": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    "pruned": lambda: pruned(nn.Linear(4, 4), "weight"),
    "pruned-bias": lambda: pruned(nn.Linear(4, 4), "bias"),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "lstm": lambda: nn.LSTM(4, 4),
    "embedding": lambda: nn.Embedding(5, 4),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 2),
    "bilinear": lambda: nn.Bilinear(2, 3, 4),
    "scripted": lambda: quietly(torch.jit.script, nn.Linear(4, 4)),
    "traced": lambda: quietly(torch.jit.trace, nn.Conv1d(4, 4, 1), torch.ones(1, 4, 2)),
    "scripted-inside": lambda: quietly(torch.jit.script, nn.Sequential(nn.Linear(4, 4))),
    "quantised": lambda: quantised(nn.Linear(4, 4)),
    "quantised-lstm": lambda: quantised(nn.LSTM(4, 4)),
}
REASONS = {
    "subclass": "this is a subclass of Linear, which may do more",
    "lazy": "its shape is not known yet; run one forward pass first, then convert",
    "lazy-conv": "run one forward pass first",
    "weight-norm": "remove_parametrizations makes it a parameter",
    "pruned": "make it a parameter first",
    "attention": "no family covers its weights; they cover Linear, Conv1d, Conv2d, Conv3d",
    "scripted": "it is a scripted or traced Linear, whose code is fixed; convert the plain network",
    "traced": "it is a scripted or traced Conv1d",
    "scripted-inside": "odd.0 (RecursiveScriptModule): it is a scripted",
    "quantised": "its weights are quantised; convert the network first",
    "quantised-lstm": "odd.0 (LSTM): its weights are quantised",
}


@pytest.mark.parametrize("kind", list(LEFT_ALONE))
@pytest.mark.parametrize("inference", ["ffg", "inducing"])
def test_what_cannot_be_converted_is_named_and_left_alone(kind: str, inference: str) -> None:
    net = nn.ModuleDict({"odd": LEFT_ALONE[kind](), "fine": nn.Linear(4, 4)})
    before = bitwise(net["odd"])
    (message,) = convert(net, inference, **sizes_of(inference))
    assert message.startswith("left deterministic: odd")
    assert REASONS.get(kind, "") in message
    assert "fine" not in message
    assert bitwise(net["odd"]) == before
    assert bayesian(net) == ["fine"]
    alone = nn.ModuleDict({"odd": LEFT_ALONE[kind]()})
    with pytest.raises(ValueError, match="nothing"):
        bnn.bayesianize_(alone, inference)


def test_all_that_is_left_alone_is_named_in_one_warning() -> None:
    net = nn.ModuleDict({kind: make() for kind, make in LEFT_ALONE.items()} | {"fine": nn.Linear(4, 4)})
    (message,) = convert(net)
    for kind in LEFT_ALONE:
        assert f" {kind} (" in message or f" {kind}." in message, kind


def test_what_holds_no_weight_matrix_is_not_worth_a_warning() -> None:
    net = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.PReLU(), nn.Dropout(), nn.GroupNorm(2, 4)
    )
    net.append(nn.LazyBatchNorm1d())
    assert convert(net) == []


def test_a_layer_that_was_left_alone_works_as_before() -> None:
    net = nn.Sequential(pruned(nn.Linear(4, 4), "bias"), nn.Linear(4, 2))
    convert(net, init_sd=0.1)
    assert net(torch.randn(3, 4)).shape == (3, 2)
    net(torch.randn(3, 4)).sum().backward()
    assert net[0].bias_orig.grad is not None
    lazy = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    convert(lazy)
    lazy(torch.randn(2, 7))
    convert(lazy, {"0": "ffg"})  # once it has a shape it is a plain layer
    assert bayesian(lazy) == ["0", "1"]


def test_tied_parameters_are_left_alone() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.mid, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.embedding.weight

    net = Language()
    (message,) = convert(net)
    assert "embedding (Embedding)" in message
    assert "head (Linear): another module uses the same weight" in message
    assert net.head.weight is net.embedding.weight
    assert bayesian(net) == ["mid"]


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_layers_that_share_a_parameter_are_left_alone(part: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    setattr(net[1], part, getattr(net[0], part))
    (message,) = convert(net)
    assert "0 (Linear): another module uses the same" in message
    assert "1 (Linear): another module uses the same" in message
    assert getattr(net[0], part) is getattr(net[1], part)
    assert bayesian(net) == ["2"]
    holder = nn.Module()
    holder.layer, holder.other = nn.Linear(2, 2), nn.Linear(2, 2)
    holder.also = getattr(holder.layer, part)  # a parameter that a custom module reads too
    (message,) = convert(holder)
    assert "layer (Linear)" in message
    assert bayesian(holder) == ["other"]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("inference", ["ffg", "inducing"])
def test_a_transformer_really_draws_in_evaluation(inference: str, masked: bool, norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    x = torch.randn(3, 5, 8)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[1, 3:] = True
    kwargs = {"src_key_padding_mask": mask} if masked else {}
    want = net(x, **kwargs).detach()  # with gradients, so that torch takes the layers one by one
    (message,) = convert(net, inference, **({} if inference == "ffg" else {"inducing_rows": 9, "inducing_cols": 17}))
    assert "layers.0.self_attn (MultiheadAttention)" in message
    assert "layers.1.self_attn.out_proj" in message
    assert bayesian(net) == [f"layers.{i}.linear{j}" for i in range(2) for j in (1, 2)]
    real = ~mask if masked else torch.ones_like(mask)
    set_noise_(net, 1e-8)
    with torch.no_grad():
        torch.testing.assert_close(net(x, **kwargs)[real], want[real], atol=1e-4, rtol=1e-4)
    set_noise_(net, 0.3)
    assert varies(net, x, **kwargs)
    assert varies(net.layers[0], x, **kwargs)
    assert varies(copy.deepcopy(net), x, **kwargs)


def test_single_transformer_layers_really_draw() -> None:
    for net, inputs in (
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1),
        (nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2),
    ):
        holder = nn.ModuleDict({"net": net.eval()})  # a hook on the layer itself would switch the fast path off
        convert(holder, {"net.linear1": "ffg"}, init_sd=0.3)
        assert bayesian(net) == ["linear1"]
        assert varies(net, *[torch.randn(2, 3, 8)] * inputs)


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_a_network_is_converted_once() -> None:
    net = mlp()
    convert(net, {"0": "ffg"})
    before = bitwise(net)
    for inference in ("ffg", "inducing", {"0": "fcg"}, {"*": "ffg"}, {net: "ffg"}):
        with pytest.raises(ValueError, match=r"'0' is Bayesian already \(FFGLinear\)"):
            bnn.bayesianize_(net, inference)
    assert bitwise(net) == before
    convert(net, {"2": "inducing", "4": "fcg"}, **SIZES)
    assert [type(net[i]).__name__ for i in (0, 2, 4)] == ["FFGLinear", "InducingLinear", "FCGLinear"]
    assert len(net._forward_hooks) == 1
    root = nn.Linear(2, 2)
    convert(root)
    with pytest.raises(ValueError, match="'the network' is Bayesian already"):
        bnn.bayesianize_(root, "ffg")
    by_class = mlp()
    convert(by_class, {"0": "ffg"})
    convert(by_class, {nn.Linear: "inducing"}, **SIZES)  # names the plain layers only
    assert bayesian(by_class) == ["0", "2", "4"]


def failing_conversions() -> dict[str, tuple[Any, dict[str, Any], type[Exception], str]]:
    """name: (inference, options, error, message) for a net whose last layer is `3`, a Linear(3, 2)."""
    return {
        "family": (
            {"0": "ffg", "3": "fgg"},
            {},
            ValueError,
            r"unknown inference 'fgg'; expected one of \[.*'fcg', 'ffg'",
        ),
        "option": (
            {"0": "ffg", "3": {"inference": "inducing", "prior_sdd": 1}},
            {},
            TypeError,
            r"layer '3': unknown option 'prior_sdd' \(did you mean 'prior_sd'\?\)",
        ),
        "value": ({"0": "ffg", "3": {"inference": "inducing", "prior_sd": -1}}, {}, ValueError, "layer '3': prior_sd"),
        "default": ({"0": "ffg", "3": "fcg"}, {"inducing_rows": 3}, TypeError, "unknown option 'inducing_rows' for"),
        "string-option": ("ffg", {"prior_sd": 1.0}, TypeError, "unknown option 'prior_sd'"),
        "ensembles": (
            {"0": "inducing", "3": {"inference": "inducing", "ensemble_size": 3}},
            {"q_inducing": "ensemble", **SIZES},
            ValueError,
            r"ensemble_size must agree; got \{'0': 8, '3': 3\}",
        ),
        "key": ({"0": "ffg", "4": "ffg", "nine": "ffg"}, {}, ValueError, "'nine' matches no module"),
        "empty": ({}, {}, ValueError, "nothing converted"),
        "none": ({"0": None}, {}, ValueError, "nothing converted"),
        "reference": ("ffg", {"reference_state_dict": {"0.wait": torch.zeros(1)}}, ValueError, "has '0.wait', which"),
        "reference-shape": (
            "ffg",
            {"reference_state_dict": {"0.bias": torch.zeros(4), "3.weight": torch.zeros(3, 2)}},
            ValueError,
            r"'3.weight'\] has shape \(3, 2\), expected \(2, 3\)",
        ),
    }


@pytest.mark.parametrize("case", list(failing_conversions()))
def test_an_error_leaves_the_network_as_it_was(case: str) -> None:
    inference, options, error, message = failing_conversions()[case]
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Linear(3, 2)).eval()
    before = bitwise(net)
    with pytest.raises(error, match=message):
        bnn.bayesianize_(net, inference, **options)
    assert bitwise(net) == before
    assert bayesian(net) == []


def test_weights_that_cannot_be_kept_leave_the_network_as_it_was() -> None:
    net = mlp()
    with torch.no_grad():
        net[4].weight[0, 0] = float("nan")
    before = bitwise(net)
    reference = {name: torch.ones_like(t) for name, t in net.state_dict().items() if name.startswith("0")}
    with pytest.raises(ValueError, match=r"layer '4': the weights to keep.*NaN"):
        bnn.bayesianize_(net, "inducing", reference_state_dict=reference, **SIZES)
    assert bitwise(net) == before


def test_a_covariance_beyond_memory_leaves_the_network_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(1000, 1000))
    before = bitwise(net)
    with pytest.raises(ValueError, match=r"layer '1': fcg over 1,001,000 weights needs a 1,001,000 x 1,001,000 cov"):
        bnn.bayesianize_(net, "fcg")
    assert bitwise(net) == before


def test_where_warnings_are_errors_the_network_is_left_as_it_was() -> None:
    net = nn.ModuleDict({"odd": MyLinear(4, 4), "fine": nn.Linear(4, 4)})
    before = bitwise(net)
    with pytest.raises(UserWarning, match="left deterministic: odd"):
        bnn.bayesianize_(net, "ffg")  # pytest makes warnings errors
    assert bitwise(net) == before


@pytest.mark.parametrize("place", ["", "0", "3"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_reference_that_does_not_load_leaves_the_network_as_it_was(place: str, error: type[BaseException]) -> None:
    net = mlp().eval()

    def fail(*args: Any) -> None:
        raise error("hook")

    net.get_submodule(place).register_load_state_dict_post_hook(fail)
    reference = {name: value + 1 for name, value in net.state_dict().items()}
    before = bitwise(net)
    with pytest.raises(error, match="hook"):
        bnn.bayesianize_(net, "ffg", reference_state_dict=reference)
    assert bitwise(net) == before


def test_a_conversion_that_is_interrupted_leaves_the_network_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    net = mlp()
    seen: list[str] = []

    def interrupted(network: nn.Module) -> None:
        seen.extend(bayesian(network))
        raise KeyboardInterrupt

    monkeypatch.setattr("bnn.bayesianize.mark_root_", interrupted)
    before = bitwise(net)
    with pytest.raises(KeyboardInterrupt):
        bnn.bayesianize_(net, "ffg")
    assert seen == ["0", "2", "4"]
    assert bitwise(net) == before


def test_a_reference_of_another_kind() -> None:
    net = mlp()
    with pytest.raises(ValueError, match=r"reference_state_dict\['0.weight'\] is of torch.complex64, expected"):
        bnn.bayesianize_(net, "ffg", {"0.weight": net[0].weight.detach().to(torch.complex64)})
    with pytest.raises(TypeError, match=r"reference_state_dict\['0.weight'\] must be a tensor, got list"):
        bnn.bayesianize_(net, "ffg", {"0.weight": [1.0]})  # type: ignore[dict-item]


def test_nothing_to_convert() -> None:
    for net in (nn.ReLU(), nn.Sequential(), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)), nn.LSTM(2, 2)):
        with pytest.raises(ValueError, match="nothing"):
            bnn.bayesianize_(net, "ffg")
    with pytest.raises(ValueError, match=r"unknown inference 'inducng'; expected one of"):
        bnn.bayesianize_(mlp(), "inducng")


def test_ensembles_of_two_conversions_must_agree() -> None:
    net = mlp()
    convert(net, {"0": "inducing"}, q_inducing="ensemble", ensemble_size=3, **SIZES)
    with pytest.raises(ValueError, match=r"ensemble_size must agree; got \{'0': 3, '2': 4\}"):
        bnn.bayesianize_(net, {"2": "inducing"}, q_inducing="ensemble", ensemble_size=4, **SIZES)
    convert(net, {"2": "inducing"}, q_inducing="ensemble", ensemble_size=3, **SIZES)
    assert net[2].options.ensemble_size == 3


# ---- reference state dict --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["ffg", "fcg", "inducing"])
def test_a_whole_reference_state_dict(family: str) -> None:
    trained, net = mlp(), mlp()
    trained(torch.randn(20, 4) + 3)  # moves the running statistics
    trained.eval()
    net.eval()
    sizes = {"inducing_rows": 6, "inducing_cols": 6} if family == "inducing" else {}
    assert bnn.bayesianize_(net, family, trained.state_dict(), **sizes) is None
    set_noise_(net, 1e-9)
    x = torch.randn(7, 4)
    torch.testing.assert_close(net(x), trained(x), atol=1e-5, rtol=1e-4)
    assert torch.equal(net[3].running_mean, trained[3].running_mean)
    assert net[3].running_mean.data_ptr() != trained[3].running_mean.data_ptr()


def test_a_partial_reference_state_dict() -> None:
    net = mlp()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    reference = {"0.weight": torch.full((6, 4), 0.5), "3.running_mean": torch.ones(5), "4.bias": torch.full((3,), 2.0)}
    kept = {name: tensor.clone() for name, tensor in reference.items()}
    bnn.bayesianize_(net, {"0": "ffg", "2": "fcg"}, reference_state_dict=reference)
    assert torch.equal(net[0].weight, reference["0.weight"])
    assert torch.equal(net[0].bias, before["0.bias"])
    assert torch.equal(net[2].weight, before["2.weight"])
    assert torch.equal(net[3].running_mean, torch.ones(5))
    assert torch.equal(net[4].bias, reference["4.bias"])  # of a layer that stays plain
    assert torch.equal(net[4].weight, before["4.weight"])
    assert all(torch.equal(reference[name], kept[name]) for name in kept)
    assert set(reference) == set(kept)


def test_a_reference_of_another_type() -> None:
    net = mlp()
    reference = {name: t.double() * 2 for name, t in net.state_dict().items() if t.is_floating_point()}
    want = {name: (t * 2).clone() for name, t in net.state_dict().items() if t.is_floating_point()}
    bnn.bayesianize_(net, "ffg", reference_state_dict=reference)
    assert torch.equal(net[0].weight, want["0.weight"])
    assert net[0].weight.dtype == torch.float32


def test_a_reference_names_a_tied_layer_by_either_name() -> None:
    for name in ("a", "b"):
        net = nn.ModuleDict({"a": nn.Linear(2, 2)})
        net["b"] = net["a"]
        bnn.bayesianize_(net, "ffg", reference_state_dict={f"{name}.weight": torch.eye(2)})
        assert torch.equal(net["a"].weight, torch.eye(2))


def test_a_reference_for_a_root_that_is_a_layer() -> None:
    net = nn.Linear(2, 2)
    bnn.bayesianize_(net, "inducing", {"weight": torch.eye(2), "bias": torch.ones(2)}, inducing_rows=2, inducing_cols=3)
    torch.testing.assert_close(net.weight, torch.eye(2), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(net.bias, torch.ones(2), atol=1e-5, rtol=0.0)


# ---- options ---------------------------------------------------------------------------------------------------------


def test_keyword_options_are_defaults_that_entries_override() -> None:
    net = mlp()
    inference = {"0": {"inference": "inducing", "prior_sd": 2.0}, "2": "inducing", "4": "ffg"}
    bnn.bayesianize_(net, inference, prior_sd=0.5, inducing_rows=2, init_sd=0.1)
    assert (net[0].options.prior_sd, net[2].options.prior_sd) == (2.0, 0.5)
    assert net[0].options.inducing_rows == 2
    assert net[4].options.init_sd == 0.1


def test_family_names_ignore_case() -> None:
    net = mlp()
    bnn.bayesianize_(
        net, {"0": "FFG", "2": {"inference": "Inducing"}, "4": "InducingDeterministic"}, prior_sd=0.5, **SIZES
    )
    assert [net[i].family for i in (0, 2, 4)] == ["ffg", "inducing", "inducingdeterministic"]


def test_training_moves_the_posterior_and_lowers_the_loss() -> None:
    x = torch.randn(64, 4)
    y = x @ torch.randn(4, 3)
    for family in MAIN:
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        convert(net, family.inference, **family.options)
        optimiser = torch.optim.Adam(net.parameters(), 0.02)
        losses = []
        for _ in range(60):
            kl = sum(m.kl_divergence() for m in net.modules() if hasattr(m, "kl_divergence"))
            loss = (net(x) - y).square().mean() + 1e-4 * kl
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[-1] < 0.7 * losses[0], family.id


def test_covariances_that_fit_one_by_one_but_not_together(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(*(nn.Linear(9, 10) for _ in range(5)))  # 100 weights each: 4 * 100^2 * 4 bytes = 160 kB
    before = bitwise(net)
    monkeypatch.setattr("bnn.nn.memory.total_memory", lambda device: 500_000)
    with pytest.raises(ValueError, match="5 layers with a full covariance each"):
        bnn.bayesianize_(net, "fcg")
    assert bitwise(net) == before
    bnn.bayesianize_(net, {"0": "fcg", "1": "fcg", "2": "fcg"})


def test_a_full_posterior_over_a_large_u_is_refused_with_its_size() -> None:
    net = nn.Linear(4096, 4096)
    with pytest.raises(ValueError, match="inducing over 262,144 weights needs a 262,144 x 262,144 covariance"):
        bnn.bayesianize_(net, "inducing", inducing_rows=512, inducing_cols=512, q_inducing="full")
    assert type(net) is nn.Linear
