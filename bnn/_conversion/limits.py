"""What cannot be converted, and why: layers that are left alone, and layers that are refused."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import is_parametrized

from bnn.nn.base import Start, layer_types, pairing

REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")


def kind_of(dtype: torch.dtype) -> str:
    """What the numbers of a type have in common with all those that may be cast to it."""
    return "real" if dtype in REAL else "integer" if dtype in INTEGERS else str(dtype)


# ---- left alone, with a warning --------------------------------------------------------------------------------------


def why_not(layer: nn.Module, family: str, readers: Counter[int]) -> str | None:
    """None for a layer that can be converted; else why it cannot, or "" if it has no weights anybody would expect."""
    covered = tuple(layer_types())
    if type(layer) not in covered:
        return _why_not_its_type(layer, covered)
    try:
        pairing(family, type(layer))
    except KeyError as error:
        return str(error.args[0])
    own = layer._parameters
    if own.get("weight") is None or "bias" not in own:
        return "its weight or bias is computed from other tensors (weight norm, pruning); make it a parameter first"
    if any(readers[id(parameter)] > 1 for parameter in own.values()):
        return "another module uses the same weight or bias, and a posterior would untie them"
    return None


def _why_not_its_type(layer: nn.Module, covered: tuple[type[nn.Module], ...]) -> str:
    """Why a layer of no covered type is left alone, with what to do; "" if it has no weights anybody would expect."""
    matrices = any(p is not None and p.ndim > 1 for p in layer._parameters.values())
    if isinstance(layer, torch.jit.ScriptModule):
        fixed = f"it is a scripted or traced {layer.original_name}, whose code is fixed"
        return f"{fixed}; convert the plain network, then export it" if matrices else ""
    if type(layer).__module__.startswith(QUANTISED):
        packed = hasattr(layer, "weight") or hasattr(layer, "_all_weight_values")  # of a linear layer, of an LSTM
        return "its weights are quantised; convert the network first, then quantise the rest" if packed else ""
    if isinstance(layer, LazyModuleMixin) and isinstance(layer, covered) and layer.has_uninitialized_params():
        return "its shape is not known yet; run one forward pass first, then convert"
    if is_parametrized(layer) and isinstance(layer, covered):
        remedy = "torch.nn.utils.parametrize.remove_parametrizations"
        return f"its weight or bias is computed from other tensors (parametrized); {remedy} makes it a parameter"
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return "attention reads its weight without calling it"
    if isinstance(layer, covered):
        base = _base(layer, covered)
        return f"only exact types are converted, this is a subclass of {base}, which may do more than nn.{base} does"
    known = ", ".join(one.__name__ for one in covered)
    ours = matrices and type(layer).__module__.startswith("torch.nn.modules")
    return f"no family covers its weights; they cover {known}" if ours else ""


def _base(layer: nn.Module, covered: tuple[type[nn.Module], ...]) -> str:
    return next(base.__name__ for base in type(layer).__mro__ if base in covered)


# ---- refused ---------------------------------------------------------------------------------------------------------


def check_real(layer: nn.Module) -> None:
    """Raises ValueError unless the weights of a layer are real numbers."""
    weight = layer._parameters["weight"]
    assert weight is not None
    if weight.dtype not in REAL:
        kinds = ", ".join(str(one).removeprefix("torch.") for one in REAL)
        remedy = "keep real and imaginary parts in layers of their own" if weight.is_complex() else "cast it first"
        raise ValueError(
            f"its weights are {weight.dtype}; posteriors are over real weights, expected one of {kinds}: {remedy}, or "
            "leave this layer out, {layer: None} in an inference dict"
        )


def checked_start(layer: nn.Module, start: Start, family: str, keep: bool = True) -> Start:
    """`start`; ValueError where it is NaN, or would train a frozen bias."""
    weight, bias = layer._parameters["weight"], layer._parameters.get("bias")
    assert weight is not None
    apart = any("bias" in name for name in start.trained)
    if bias is not None and weight.requires_grad and not bias.requires_grad and not apart:
        raise ValueError(
            f"its bias is frozen while its weight trains, but {family!r} holds both in the same parameters, so that "
            "the bias would train, too: freeze both or neither, or use 'ffg', which keeps them apart"
        )
    if keep and not all(tensor.is_meta or bool(torch.isfinite(tensor).all()) for tensor in start.trained.values()):
        raise ValueError("its weights hold NaN or inf, so that no posterior can start from them: repair them first")
    return start
