"""The lists that drive the shared tests: a new family or layer type joins one and is tested everywhere."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import bnn
from bnn._engine.draw import Draw
from bnn.bayesianize import bayesian_from_template
from bnn.functional.cost import Size, Way
from bnn.nn.base import BayesianLayer, pairing
from bnn.nn.families import ways


class Family(NamedTuple):
    """A family with options, and what its layers hold."""

    id: str
    inference: str
    options: dict[str, Any]
    tensors: set[str]  # of the state dict, the bias's aside
    buffers: frozenset[str] = frozenset()  # those among `tensors` that are not trained
    bias: frozenset[str] = frozenset()  # more of them, of layers with a bias

    def knows(self, option: str) -> bool:
        return option in pairing(self.inference, nn.Linear).options_type.names()

    def of_rank(self, rank: int) -> dict[str, int]:
        """All sizes that it has, set to a rank; {} for a family that keeps weights as they are."""
        return dict.fromkeys(filter(self.knows, ("inducing_rows", "inducing_cols", "rank")), rank)

    @property
    def points(self) -> bool:
        """Whether its draws show one of a few points."""
        return self.inference in ("batchensemble", "mcdropout") or self.options.get("q_inducing") == "ensemble"


SIZES = {"inducing_rows": 2, "inducing_cols": 3}  # networks of tests are too small for a budget of parameters
_Z = {"z_row", "z_col", "inducing_mean", "_lamda", "_d_row", "_d_col"}
_FFG, _BIAS = {"weight_mean", "_weight_sd"}, frozenset({"bias_mean", "_bias_sd"})
_FCG = {"mean", "_scale_diag", "_scale_tril"}
_AB = {"a_mean", "_a_sd", "b_mean", "_b_sd"}
_SHARED, _SHARED_BIAS = {"shared_weight"}, frozenset({"shared_bias"})
_RANK1 = _SHARED | {"r_mean", "_r_sd", "s_mean", "_s_sd"}
_MATRIX = _Z | {"_inducing_row_scale_tril", "_inducing_col_scale_tril"}

FAMILIES = [
    Family("ffg", "ffg", {}, _FFG, bias=_BIAS),
    Family("ffg-dense", "ffg", {"local_reparameterization": False, "max_sd": 0.1}, _FFG, bias=_BIAS),
    Family("fcg", "fcg", {"prior_weight_sd": "neal"}, _FCG),
    Family("diagonal", "inducing", SIZES, _Z | {"_inducing_sd"}),
    Family(
        "diagonal-capped",
        "inducing",
        SIZES | {"max_sd_u": 0.1, "max_lamda": 0.03, "sqrt_width_scaling": True, "prior_sd": 2.0},
        _Z | {"_inducing_sd"},
    ),
    Family("diagonal-fixed", "inducing", SIZES | {"learn_lamda": False}, _Z | {"_inducing_sd"}, frozenset({"_lamda"})),
    Family("matrix", "inducing", SIZES | {"q_inducing": "matrix"}, _MATRIX),
    Family("full", "inducing", SIZES | {"q_inducing": "full"}, _Z | {"_inducing_scale_tril"}),
    Family("ensemble", "inducing", SIZES | {"q_inducing": "ensemble", "ensemble_size": 4}, _Z),
    Family("diagonal-unwhitened", "inducing", SIZES | {"whitened_u": False}, _Z | {"_inducing_sd"}),
    Family("matrix-unwhitened", "inducing", SIZES | {"q_inducing": "matrix", "whitened_u": False}, _MATRIX),
    Family(
        "full-unwhitened",
        "inducing",
        SIZES | {"q_inducing": "full", "whitened_u": False},
        _Z | {"_inducing_scale_tril"},
    ),
    Family(
        "ensemble-unwhitened",
        "inducing",
        SIZES | {"q_inducing": "ensemble", "whitened_u": False, "ensemble_size": 3},
        _Z,
    ),
    Family("lamda-0", "inducing", SIZES | {"max_lamda": 0}, _Z | {"_inducing_sd"}, frozenset({"_lamda"})),
    Family("map", "inducing", SIZES | {"max_sd_u": 0}, _Z | {"_inducing_sd"}, frozenset({"_inducing_sd"})),
    Family("deterministic", "inducingdeterministic", SIZES, _Z | {"_inducing_sd"}, frozenset({"_lamda"})),
    Family("singular", "singular", {"rank": 3}, _AB),
    Family("singular-split", "singular", {"rank": 2, "kernel": "split"}, _AB),
    Family("singular-capped", "singular", {"rank": 2, "max_sd": 0.1, "sqrt_width_scaling": True, "prior_sd": 2.0}, _AB),
    Family(
        "ffg-centred",
        "ffg",
        {"prior_mean": "weights", "prior_weight_sd": 0.1},
        _FFG | {"_prior_mean"},
        frozenset({"_prior_mean", "_prior_bias_mean"}),
        _BIAS | {"_prior_bias_mean"},
    ),
    Family("matrixnormal", "matrixnormal", {}, {"mean", "_row_sd", "_col_sd"}),
    Family(
        "matrixnormal-full",
        "matrixnormal",
        {"covariance": "full", "prior_weight_sd": "neal"},
        {"mean", "_row_scale_tril", "_col_scale_tril"},
    ),
    Family("ktied", "ktied", {}, {"mean", "_row_sd", "_col_sd"}),
    Family("ktied-dense", "ktied", {"rank": 3, "local_reparameterization": False}, {"mean", "_row_sd", "_col_sd"}),
    Family("rank1", "rank1", {"components": 3}, _RANK1, bias=_SHARED_BIAS),
    Family("batchensemble", "batchensemble", {}, _SHARED | {"r", "s"}, bias=_SHARED_BIAS),
    Family("mcdropout", "mcdropout", {"p": 0.3}, _SHARED, bias=_SHARED_BIAS),
]
MAIN = [family for family in FAMILIES if family.id in ("ffg", "ffg-dense", "fcg", "diagonal", "ensemble", "rank1")]


class LayerType(NamedTuple):
    """A torch layer with arguments, and an input for it."""

    id: str
    plain: type[nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    input_shape: tuple[int, ...]

    def layer(self, **kwargs: Any) -> nn.Module:
        return self.plain(*self.args, **self.kwargs, **kwargs)

    def input(self) -> Tensor:
        return torch.randn(self.input_shape)


def _case(id: str, plain: type[nn.Module], *args: Any, x: tuple[int, ...], **kwargs: Any) -> LayerType:
    return LayerType(id, plain, args, kwargs, x)


LINEAR = [
    _case("linear", nn.Linear, 5, 4, x=(3, 5)),
    _case("linear-no-bias", nn.Linear, 5, 4, bias=False, x=(3, 5)),
    _case("linear-unbatched", nn.Linear, 5, 4, x=(5,)),
    _case("linear-sequence", nn.Linear, 5, 4, x=(2, 3, 5)),
    _case("linear-empty-batch", nn.Linear, 5, 4, x=(0, 5)),
    _case("linear-one", nn.Linear, 1, 1, bias=False, x=(2, 1)),
]
CONV1D = [
    _case("conv1d", nn.Conv1d, 4, 6, 3, x=(2, 4, 7)),
    _case("conv1d-no-bias", nn.Conv1d, 4, 6, 3, bias=False, x=(2, 4, 7)),
    _case("conv1d-unbatched", nn.Conv1d, 4, 6, 3, x=(4, 7)),
    _case("conv1d-same", nn.Conv1d, 4, 6, 4, padding="same", dilation=2, x=(2, 4, 7)),
    _case("conv1d-reflect-groups", nn.Conv1d, 4, 6, 3, padding=2, padding_mode="reflect", groups=2, x=(2, 4, 7)),
    _case("conv1d-circular-unbatched", nn.Conv1d, 4, 6, 3, padding=2, padding_mode="circular", stride=2, x=(4, 7)),
]
CONV2D = [
    _case("conv2d", nn.Conv2d, 4, 6, 3, x=(2, 4, 6, 5)),
    _case("conv2d-one-by-one", nn.Conv2d, 1, 1, 1, bias=False, x=(2, 1, 3, 3)),
    _case("conv2d-unbatched", nn.Conv2d, 4, 6, 3, padding=1, x=(4, 6, 5)),
    _case("conv2d-stride", nn.Conv2d, 4, 6, (3, 2), stride=(2, 1), padding=(1, 0), x=(2, 4, 6, 5)),
    _case("conv2d-same", nn.Conv2d, 4, 6, (5, 3), padding="same", bias=False, x=(2, 4, 6, 5)),
    _case("conv2d-valid", nn.Conv2d, 4, 6, 3, padding="valid", x=(2, 4, 6, 5)),
    _case("conv2d-dilation", nn.Conv2d, 4, 6, 2, dilation=(2, 3), padding=2, x=(2, 4, 6, 5)),
    _case("conv2d-groups", nn.Conv2d, 4, 6, 3, groups=2, padding=1, x=(2, 4, 6, 5)),
    _case("conv2d-depthwise", nn.Conv2d, 4, 4, 3, groups=4, bias=False, x=(2, 4, 6, 5)),
    _case("conv2d-reflect", nn.Conv2d, 4, 6, 3, padding=(1, 2), padding_mode="reflect", x=(2, 4, 6, 5)),
    _case("conv2d-replicate", nn.Conv2d, 4, 6, 3, padding=2, padding_mode="replicate", x=(2, 4, 6, 5)),
    _case("conv2d-circular-same", nn.Conv2d, 4, 6, 4, padding="same", padding_mode="circular", x=(2, 4, 6, 5)),
    _case("conv2d-empty-batch", nn.Conv2d, 4, 6, 3, x=(0, 4, 6, 5)),
]
CONV3D = [
    _case("conv3d", nn.Conv3d, 2, 3, 2, x=(2, 2, 4, 3, 3)),
    _case("conv3d-unbatched", nn.Conv3d, 2, 3, (1, 3, 3), padding="same", bias=False, x=(2, 4, 3, 3)),
    _case("conv3d-all", nn.Conv3d, 2, 4, 2, 2, 1, 2, 2, padding_mode="circular", x=(2, 2, 4, 3, 3)),
    _case(
        "conv3d-replicate", nn.Conv3d, 2, 3, (1, 2, 2), padding=(0, 1, 2), padding_mode="replicate", x=(1, 2, 4, 3, 3)
    ),
]
LAYER_TYPES = LINEAR + CONV1D + CONV2D + CONV3D
BASIC = [case for case in LAYER_TYPES if case.id in ("linear", "conv1d", "conv2d-groups", "conv3d-unbatched")]


FEW = [case for case in BASIC if case.id in ("linear", "conv2d-groups")]
# Every layer type with one family of each way to the output; every family with a few layer types.
PAIRS = [
    (f, c)
    for f in FAMILIES
    for c in LAYER_TYPES
    if f.id in ("ffg", "fcg", "diagonal", "singular", "singular-split", "rank1") or c in BASIC
]


def ids(cases: list[Any]) -> list[str]:
    """The names pytest shows."""
    return [case.id for case in cases]


def make(family: Family, case: LayerType, **options: Any) -> BayesianLayer:
    """The pairing, converted from a plain layer with random weights."""
    return bayesian_from_template(case.layer(), family.inference, **(family.options | options))


def sizes_of(inference: Any) -> dict[str, int]:
    """Small sizes for a family, or an inference dict, of limited rank; nothing for others."""
    names = [str(one) for one in (inference.values() if isinstance(inference, dict) else [inference])]
    ranks = {"rank": 2} if "singular" in names else {}
    return (SIZES if any(name.startswith("inducing") for name in names) else {}) | ranks


def by_weight(family: Family) -> dict[str, Any]:
    """The options of a family, with one function per draw for the whole batch."""
    whole = {"sampling": "weight", "channels": True}  # of which draws of weights exist
    return family.options | {name: value for name, value in whole.items() if family.knows(name)}


def small_net(family: Family, **options: Any) -> nn.Sequential:
    """A converted network for inputs (N, 2, 4, 4)."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    bnn.bayesianize_(net, family.inference, **(family.options | options))
    return net


def softplus_inverse(value: float) -> float:
    """The number whose softplus is `value`, by the standard library."""
    return value + math.log(-math.expm1(-value))


@torch.no_grad()
def set_noise_(module: nn.Module, sd: float) -> None:
    """Sets every posterior sd, and lamda, to `sd`; members of an ensemble become mean + sd, mean - sd, ..."""
    for layer in module.modules():
        if not isinstance(layer, BayesianLayer):
            continue
        if layer.family == "mcdropout":  # the sd of what inputs are multiplied with
            layer.options = dataclasses.replace(layer.options, p=sd**2 / (1 + sd**2))
        tensors = dict(layer.named_parameters(recurse=False)) | dict(layer.named_buffers(recurse=False))
        for name, tensor in tensors.items():
            if name in ("_row_sd", "_col_sd"):  # sds are a product of both
                rank = 1 if tensor.ndim == 1 else layer.options.rank
                tensor.fill_(softplus_inverse((sd / rank) ** 0.5))
            elif name in layer.scales:
                tensor.fill_(softplus_inverse(sd))
            elif name.endswith("scale_tril") and name != "_scale_tril":
                factors = 2 if "row" in name or "col" in name else 1
                n = int((math.isqrt(8 * tensor.numel() + 1) - 1) // 2)
                tensor.zero_()
                tensor[:n] = softplus_inverse(sd ** (1 / factors))
            elif name == "inducing_mean" and tensor.ndim == 3:
                signs = torch.tensor([(-1.0) ** k for k in range(len(tensor))])[:, None, None]
                tensor.copy_(tensor.mean(0) + sd * signs)
            elif name in ("r", "s", "r_mean", "s_mean"):
                steps = torch.arange(len(tensor)) - (len(tensor) - 1) / 2
                tensor.copy_(tensor.mean(0) + sd * (steps / steps.std(correction=0))[:, None])


def cap_memory(monkeypatch: pytest.MonkeyPatch, limit: int) -> int:
    """Sets how many bytes the draws of one pass may take in a layer, whatever the size of the network; returns it."""
    monkeypatch.setattr(bnn.prediction, "FOLD_BYTES", limit)
    return limit


def choose_ways(monkeypatch: pytest.MonkeyPatch, choose: Callable[[tuple[Way, ...], Size], Way]) -> None:
    """Puts `choose` in the place of the cost model, which is asked for the cheapest of the ways that are allowed."""
    for name in ("cheapest", "_cheapest"):  # the second one remembers
        monkeypatch.setattr(ways, name, choose)


def always(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    """Inducing layers draw by `way` wherever they may."""
    choose_ways(monkeypatch, lambda ways, size: way if way in ways else ways[0])


def sample_of_u(layer: Any, draw: Draw) -> Tensor:
    """Samples of U, (K, M_out, M_in), as the layer's q(U) makes them: not whitened where its prior is not."""
    shape = layer.q.noise_shape(layer)
    noise = draw.normals(layer, "u", *shape, like=layer.posterior(draw).row.A) if shape else None
    result: Tensor = layer.q.sample(layer, layer.q.spread(layer), noise, draw)
    return result


def bitwise(module: nn.Module) -> dict[str, Any]:
    """Everything about a network that a failed conversion must leave alone: classes, tensors (by value), attributes."""
    state: dict[str, Any] = {}
    for name, m in module.named_modules(remove_duplicate=False):
        state[name] = type(m)
        state[f"{name}|attributes"] = {
            k: (list(v) if isinstance(v, dict) else v)
            for k, v in m.__dict__.items()
            if not isinstance(v, Tensor) and k not in ("_parameters", "_buffers", "_modules")
        }
        for kind in (m._parameters, m._buffers):
            for key, tensor in kind.items():
                lazy = tensor is None or nn.parameter.is_lazy(tensor)
                state[f"{name}.{key}"] = None if tensor is None else (id(tensor), tensor.requires_grad, tensor.dtype)
                state[f"{name}.{key}|bytes"] = None if lazy else tensor.detach().double().numpy().tobytes()
    return state


def bayesian(net: nn.Module) -> list[str]:
    """The names of the converted layers."""
    return [name for name, module in net.named_modules() if isinstance(module, BayesianLayer)]
