"""How a network was converted, as data: `bnn.save` writes it down, `bnn.load_` replays it on a plain network."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from bnn._common.text import listed
from bnn._engine.fold import Drawn
from bnn.nn.base import BayesianLayer, layer_types, pairing
from bnn.nn.families.inducing import InducingOptions
from bnn.nn.global_inducing import NAME, GlobalInducing
from bnn.nn.kept_dropout import KEPT, Kept, KeptDropoutOptions
from bnn.nn.limited_rank import LimitedRank
from bnn.nn.options import Options


@dataclass(frozen=True)
class LayerRecord:
    """The conversion of one layer."""

    names: list[str]  # a tied layer has several
    type: str  # of the plain layer, as "Conv2d"
    weight: list[int]  # its shape
    bias: bool
    family: str
    options: dict[str, Any]

    def parsed(self, options: dict[str, Any]) -> Options:
        """`options` as the family reads them; ValueError for a family or layer type that is not there."""
        return _target(self.family, self.type).options_type.parse(self.family, options)

    def without_projection(self) -> dict[str, Any]:
        """The options with a start that looks at no weights, since the file brings its own."""
        limited = issubclass(_target(self.family, self.type), LimitedRank)
        return self.options | {"init": "paper"} if limited else self.options


@dataclass(frozen=True)
class GlobalRecord:
    """Global inducing weights."""

    network: str  # the name of the module they were registered on
    cat_dim: int
    options: dict[str, Any]  # the sizes among them


@dataclass(frozen=True)
class Conversion:
    """Everything that was done to a plain network."""

    layers: list[LayerRecord]  # in the order of `modules()`
    globals: list[GlobalRecord]
    dropouts: dict[str, str] = field(default_factory=dict)  # kept Dropout layers: `sampling` by name

    @classmethod
    def of(cls, network: nn.Module) -> Conversion:
        """The conversion that `network` went through; empty for a plain one."""
        names: dict[nn.Module, list[str]] = {}
        for name, module in network.named_modules(remove_duplicate=False):
            names.setdefault(module, []).append(name)
        bayesian = [m for m in names if isinstance(m, BayesianLayer)]
        return cls(
            [_layer_record(m, names[m]) for m in bayesian if not isinstance(m, GlobalInducing)],
            [
                GlobalRecord(names[m][0].removesuffix(NAME).removesuffix("."), m.cat_dim, asdict(m.options))
                for m in bayesian
                if isinstance(m, GlobalInducing)
            ],
            {names[m][0]: m.options.sampling for m in names if isinstance(m, Kept)},
        )

    def to_json(self) -> str:
        """As text; without kept Dropout layers as older versions read it."""
        fields = asdict(self)
        return json.dumps(fields if self.dropouts else {"layers": fields["layers"], "globals": fields["globals"]})

    @classmethod
    def from_json(cls, text: str) -> Conversion:
        """From text; ValueError if it is no record, or of families or options unknown here."""
        value = json.loads(text)
        value = {"dropouts": {}, **value} if isinstance(value, dict) else value
        fields = _fields("the conversion", value, layers=list, globals=list, dropouts=dict)
        for name, sampling in fields["dropouts"].items():
            _parsed(f"dropouts[{name!r}]", lambda given: KeptDropoutOptions(**given), {"sampling": sampling})
        return cls(
            [_read_layer(f"layers[{i}]", layer) for i, layer in enumerate(fields["layers"])],
            [_read_global(f"globals[{i}]", one) for i, one in enumerate(fields["globals"])],
            fields["dropouts"],
        )

    def check_fits(self, network: nn.Module) -> None:
        """Raises ValueError unless `network` is plain and has the recorded layers."""
        converted = [name for name, module in network.named_modules() if isinstance(module, Drawn)]
        if converted:
            raise ValueError(f"expected a plain network, but it is Bayesian already: {listed(map(repr, converted))}")
        names: dict[nn.Module, list[str]] = {}
        for name, module in network.named_modules(remove_duplicate=False):
            names.setdefault(module, []).append(name)
        modules = {name: module for module, all_names in names.items() for name in all_names}
        wrong = [problem for layer in self.layers if (problem := _problem(layer, modules, names))]
        wrong += [f"{one.network!r}: not in this network" for one in self.globals if one.network not in modules]
        wrong += [
            f"{name!r}: not a Dropout layer here" for name in self.dropouts if type(modules.get(name)) not in KEPT
        ]
        if wrong:
            raise ValueError(f"this network has other layers: {listed(wrong)}")
        recorded = [layer.names[0] for layer in self.layers]
        here = [name for name, _ in network.named_modules() if name in set(recorded)]
        if self.globals and here != recorded:
            raise ValueError(f"global inducing weights need the layers in the order {recorded}, here it is {here}")


def skeleton(module: nn.Module, twins: dict[int, Any] | None = None) -> Any:
    """A twin of `module` with all parameters and buffers on the meta device: its shapes, without its memory.

    Tied modules and shared parameters stay so. Everything that is no tensor, module or dict of them is shared with the
    original rather than copied, so that a network may hold objects that cannot be copied.
    """
    twins = {} if twins is None else twins
    if id(module) in twins or isinstance(module, torch.jit.ScriptModule):  # a scripted module has no dict to copy
        return twins.get(id(module), module)
    twin = twins[id(module)] = object.__new__(type(module))
    vars(twin).update({k: v.copy() if isinstance(v, dict | set) else v for k, v in vars(module).items()})
    for held in (twin._parameters, twin._buffers):
        for name, tensor in held.items():
            if tensor is not None and id(tensor) not in twins:
                empty = torch.empty_like(tensor.detach(), device="meta")
                trained = isinstance(tensor, nn.Parameter)
                twins[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if trained else empty
            held[name] = tensor if tensor is None else twins[id(tensor)]
    for name, child in twin._modules.items():
        twin._modules[name] = child if child is None else skeleton(child, twins)
    return twin


def _target(family: str, kind: str) -> type[BayesianLayer]:
    """The pairing of these names; ValueError for a family or layer type that is not there."""
    plain = {layer_type.__name__: layer_type for layer_type in layer_types()}
    try:
        return pairing(family, plain[kind])
    except KeyError as error:
        raise ValueError(f"{family!r} on {kind} is not known here ({error.args[0]})") from None


def _layer_record(layer: BayesianLayer, names: list[str]) -> LayerRecord:
    return LayerRecord(
        names, layer.plain.__name__, list(layer.weight_shape), layer.has_bias, layer.family, asdict(layer.options)
    )


def _fields(what: str, value: Any, **kinds: type) -> dict[str, Any]:
    """The fields of a JSON object, exactly those of `kinds` and each of its type; ValueError names what is wrong."""
    if not isinstance(value, dict) or value.keys() != kinds.keys():
        found = sorted(map(str, value)) if isinstance(value, dict) else f"a {type(value).__name__}"
        raise ValueError(f"{what} must be an object with the fields {sorted(kinds)}, found {found!s:.200}")
    for name, kind in kinds.items():
        if type(value[name]) is not kind:
            raise ValueError(f"{name!r} of {what} must be of type {kind.__name__}, found {value[name]!r:.60}")
    return value


def _read_layer(what: str, value: Any) -> LayerRecord:
    fields = _fields(what, value, names=list, type=str, weight=list, bias=bool, family=str, options=dict)
    for name, kind in (("names", str), ("weight", int)):
        if not fields[name] or any(type(one) is not kind for one in fields[name]):
            raise ValueError(f"{name!r} of {what} must be a list of {kind.__name__}, found {fields[name]!r:.60}")
    record = LayerRecord(**fields)
    options = _parsed(what, record.parsed, record.options)
    if isinstance(options, InducingOptions):
        options = _with_sizes(options, record.weight, record.bias)
    return replace(record, options=asdict(options))  # an older version knew fewer options


def _with_sizes(options: InducingOptions, weight: list[int], bias: bool) -> InducingOptions:
    """The options with the sizes that old files leave open: floor(sqrt(d)) of the paper's matrix."""
    rows, cols = math.isqrt(weight[0]), math.isqrt(math.prod(weight[1:]) + bias)
    rows, cols = options.inducing_rows or max(1, rows), options.inducing_cols or max(1, cols)
    return replace(options, inducing_rows=rows, inducing_cols=cols)


def _read_global(what: str, value: Any) -> GlobalRecord:
    record = GlobalRecord(**_fields(what, value, network=str, cat_dim=int, options=dict))
    options = _parsed(what, lambda given: InducingOptions.parse("inducing", given), record.options)
    if record.cat_dim not in (0, 1) or options.inducing_rows is None or options.inducing_cols is None:
        raise ValueError(f"{what} needs a cat_dim of 0 or 1 and sizes, found {value!r:.200}")
    return replace(record, options=asdict(options))


def _parsed(what: str, parse: Callable[[dict[str, Any]], Any], options: dict[str, Any]) -> Any:
    """The options as a family reads them; what it raises becomes a ValueError that says where."""
    try:
        return parse(options)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"options of {what}: {error}") from error


def _problem(layer: LayerRecord, modules: dict[str, nn.Module], names: dict[nn.Module, list[str]]) -> str | None:
    """What keeps the record from being replayed, or None."""
    expected = f"expected {layer.type} with {_shapes(layer.weight, layer.bias)}"
    missing = [name for name in layer.names if name not in modules]
    if missing:
        return f"{missing[0]!r}: {expected}, found no such module"
    module = modules[layer.names[0]]
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if weight is None:
        return f"{layer.names[0]!r}: {expected}, found {type(module).__name__} without a weight parameter"
    found = [type(module).__name__, list(weight.shape), bias is not None]
    if found != [layer.type, layer.weight, layer.bias]:
        shapes = _shapes(list(weight.shape), bias is not None)
        return f"{layer.names[0]!r}: {expected}, found {type(module).__name__} with {shapes}"
    if names[module] != layer.names:
        return f"{layer.names[0]!r}: expected one module with the names {layer.names}, found the names {names[module]}"
    return None


def _shapes(weight: list[int], bias: bool) -> str:
    return f"weight {tuple(weight)} and {'a' if bias else 'no'} bias"
