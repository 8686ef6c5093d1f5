"""Conversion: turns an ordinary network, in place, into one whose weights are a posterior."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from bnn._conversion.activation_start import fit_layers, inputs_for, measure_layers, statistics_names
from bnn._conversion.budget import Layer, is_open, last_layers, left_to_budget, refuse_budget, settle
from bnn._conversion.energy import note_energy_, warn_of_losses
from bnn._conversion.layer_fit import Wanted
from bnn._conversion.limits import check_real, checked_start, kind_of, why_not
from bnn._conversion.methods import full_rank, layer_shape, method_of, unknown
from bnn._conversion.selection import Choice, Inference, select
from bnn._conversion.undo import unchanged_on_error
from bnn._engine.forward import mark_root_
from bnn._engine.inputs import check_network
from bnn._engine.members import Drawing, Mixture
from bnn._engine.temperature import forget_temperature_, warn_of_temperature
from bnn.functional.low_rank import LowRank
from bnn.nn.base import BayesianLayer, Start, Weights, families, layer_types, pairing, plain_weights
from bnn.nn.limited_rank import LimitedRank
from bnn.nn.memory import covariance_bytes, refuse_beyond_memory, refuse_covariance
from bnn.nn.options import Options


def bayesianize_(
    network: nn.Module,
    inference: Inference,
    reference_state_dict: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> None:
    """Turns `network`, in place, into a Bayesian one: every layer it covers gets a posterior over its weights.

    Weights at hand are kept wherever the family can hold them: as the mean (`ffg`, ...), or projected to the rank of
    the inducing matrix or the factors (`inducing`, `singular`, unless `init="paper"`). Names, hooks, tied layers,
    dtype, device, train or eval mode and frozen parameters survive. Either everything asked for is converted, or an
    error leaves `network` alone.

    Args:
        inference: the family for the whole network (`"ffg"`, `"inducing"`, ..., all in docs/options.md), a method
            (`"ffg-u"`, ...: a family with the options of `bnn.methods()`, as far as none are given), or a dict from
            layers to `{"inference": family, option: value, ...}`. Keys, most specific first: a
            module, its name, its index in `named_modules()`, a negative index, a class, a class name, a glob on names;
            a container covers the layers below it. The value None leaves a layer as it is.
        reference_state_dict: a whole or partial state dict of the plain network, loaded before the conversion.
        options: options of the family, all in docs/options.md; with a dict, defaults that its entries may override.
            `budget=0.25` chooses the sizes of `inducing`, and the ranks of `singular`: those with which the layers lose
            least together, within a fraction of their parameters (an integer: that many). With neither sizes nor a
            budget it is 0.5. And `activations=`: inputs as `bnn.fit` takes them (targets are not looked at), or a
            tensor of inputs. These layers then start from weights that lose least of the network's outputs on these
            inputs, rather than least of the weights. At most 1,000 of them are used, evenly spaced (of a loader the
            first ones); a few hundred do. BatchNorm's statistics change where that brings the outputs closer to the
            original ones.

    Raises:
        ValueError: unknown family or method, a method that is no conversion of one network (an ensemble, say), a key
            that matches nothing, nothing to convert, a layer that is Bayesian already, weights that are complex, NaN
            or inf, a bias that is frozen while its weight trains (but for `ffg`), activations without a use, a budget
            that is too small.
        TypeError: an option that no chosen family knows.

    Warns about layers that were covered but cannot be converted (a subclass, a parametrized, scripted or quantised
    layer, a layer whose weight another module reads), about those that stay dense because no inducing matrix would make
    them smaller, and about those that keep less than 80 % of their energy, and names them. The temperature of a
    calibrated network is taken off, with a warning.

    >>> import torch, bnn
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> fcg = {"inference": "fcg", "prior_weight_sd": "neal"}
    >>> bnn.bayesianize_(net, inference={"0": {"inference": "inducing", "budget": 0.5}, "2": fcg})
    >>> [type(m).__name__ for m in net]
    ['InducingLinear', 'ReLU', 'FCGLinear']
    """
    check_network(network)
    activations = options.pop("activations", None)
    reference = dict(reference_state_dict or {})
    if reference:
        _check_reference(network, reference)
    if isinstance(inference, str):
        inference, options = {network: {"inference": inference, **options}}, {}
    if not isinstance(inference, Mapping):
        raise TypeError(f"inference must be a family name or a dict, got {type(inference).__name__}")
    convert_chosen_(network, inference, reference, options, activations=activations)


def convert_chosen_(
    network: nn.Module,
    inference: Mapping[Any, Any],
    reference: Mapping[str, Tensor],
    options: Mapping[str, Any],
    keep: bool = True,
    activations: Any = None,
) -> None:
    """`bayesianize_` for an inference dict; an error, whatever it is, leaves `network` alone.

    Args:
        keep: the weights matter; False where a file replaces them, so that they may be NaN.
    """
    plans, left = _plan(network, select(network, inference), options, reference)
    if not plans:
        raise ValueError(f"nothing converted; left alone: {'; '.join(left) or 'everything'}")
    written = [] if activations is None else statistics_names(network)
    with unchanged_on_error(network, [*reference, *written]):
        if reference:
            network.load_state_dict(reference, strict=False)
        inputs = None if activations is None else inputs_for(network, activations) if _to_fit(plans) else []
        plans, dense, warned = _settled(network, plans, inputs)
        _check_memory(plans)
        starts = _starts(network, plans, {}, keep) if inputs is None else []
        if left + dense:  # before anything is converted: where warnings are errors, this is one
            warnings.warn(f"left deterministic: {'; '.join(left + dense)}", UserWarning, stacklevel=3)
        for message in warned:
            warnings.warn(message, UserWarning, stacklevel=3)
        if keep:
            warn_of_temperature(network, "it is converted now", stacklevel=3)
        kept_outputs: list[float] = []
        if inputs is not None:
            fitted = fit_layers(network, _to_fit(plans), inputs)
            starts = _starts(network, plans, fitted.found)
            fitted.apply_statistics_()
            kept_outputs = fitted.outputs
            for doubt in fitted.doubts():
                warnings.warn(doubt, UserWarning, stacklevel=3)
        for plan, start in zip(plans, starts, strict=True):
            plan.target.convert_(plan.layer, plan.options, start)
            if keep:
                note_energy_(plan.layer, plan.weights)
        _leave_fast_paths_(network)
        forget_temperature_(network)
        mark_root_(network)
        if keep:
            warn_of_losses({plan.name: (plan.layer, plan.weights) for plan in plans}, 4, kept_outputs)


def bayesian_from_template(layer: nn.Module, inference: str, **options: Any) -> BayesianLayer:
    """A new Bayesian layer with the shape and the weights of a plain one, which is left alone.

    Raises:
        KeyError: no such family, or it does not cover this layer type.

    >>> bayesian_from_template(nn.Linear(3, 2), "FFG")
    FFGLinear(in_features=3, out_features=2, bias=True, family=ffg, prior_sd=1)
    """
    method = method_of(inference)
    target = pairing(inference if method is None else method.family, type(layer))
    own: dict[str, Any] = {}
    if method is not None:
        rank = full_rank(layer, options.get("kernel", "paper"))
        own = method.layer_options(*layer_shape(layer, method.family), options, rank)
    parsed = target.options_type.parse(target.family, own | options)
    check_real(layer)
    parsed = target.settled(parsed, plain_weights(layer))
    start = checked_start(layer, target.start(plain_weights(layer), parsed), target.family)
    return target.convert_(copy.deepcopy(layer), parsed, start)


class _Plan(NamedTuple):
    """The conversion of one layer, worked out but not carried out."""

    name: str
    layer: nn.Module
    target: type[BayesianLayer]
    options: Options
    weights: Weights
    entry: int = 0  # which entry of the inference dict gave a budget; 0: none did


def _starts(
    network: nn.Module, plans: list[_Plan], fitted: Mapping[nn.Module, LowRank], keep: bool = True
) -> list[Start]:
    """Where the posteriors of all layers start."""
    starts = [_start(plan, fitted.get(plan.layer), keep) for plan in plans]
    _check_ensembles(network, plans)
    return starts


def _start(plan: _Plan, fitted: LowRank | None, keep: bool) -> Start:
    """Where the posterior of one layer starts: from its weights, or from what was fitted to its outputs."""
    with _naming(plan.name):
        if fitted is not None and issubclass(plan.target, LimitedRank):
            start = plan.target.start(plan.weights, plan.options, fitted.W)
            start.objects["energy_kept"] = fitted.kept
        else:
            start = plan.target.start(plan.weights, plan.options)
        return checked_start(plan.layer, start, plan.target.family, keep)


def _to_fit(plans: list[_Plan]) -> list[Wanted]:
    """The layers that `activations=` is for: of limited rank, keeping their weights. Of open sizes the rank is 1."""
    fits = []
    for name, layer, target, options, weights, _ in plans:
        if issubclass(target, LimitedRank) and options.init == "weights":  # type: ignore[attr-defined]
            rank = min(target.given_sizes(options) or (1,))
            fits.append(Wanted(name, layer, weights, rank, target.kernel_of(weights, options)))
    if not fits:
        found = sorted({plan.target.family for plan in plans})
        raise ValueError(
            "activations= is for inducing layers, and others of limited rank, that keep trained weights "
            "(init='weights'); "
            f"this call converts to {found}, which take nothing from it: leave it out"
        )
    return fits


def _plan(
    network: nn.Module,
    choices: list[Choice],
    defaults: Mapping[str, Any],
    reference: Mapping[str, Tensor],
) -> tuple[list[_Plan], list[str]]:
    """The plans for all layers to convert, and why the others that were covered are left alone."""
    methods = {choice.family: method_of(choice.family) for choice in choices}
    for family, method in methods.items():
        if method is None and family.lower() not in families():
            raise ValueError(unknown(repr(family)))
    refuse_budget([(choice.family, choice.options) for choice in choices], defaults)
    _check_defaults({name if one is None else one.family for name, one in methods.items()}, defaults)
    readers = Counter(id(p) for module in network.modules() for p in module._parameters.values() if p is not None)
    plans, left = [], []
    for name, layer, typed, options in choices:
        method = methods[typed]
        family = typed if method is None else method.family
        if isinstance(layer, BayesianLayer):
            raise ValueError(
                f"{name or 'the network'!r} is Bayesian already ({type(layer).__name__}); a network is converted once. "
                "Convert a fresh copy, or name only the remaining layers in an inference dict"
            )
        reason = why_not(layer, family, readers)
        if reason is not None:
            left += [f"{name or 'the network'} ({type(layer).__name__}): {reason}"] if reason else []
            continue
        target = pairing(family, type(layer))
        known = target.options_type.names()
        chosen = {k: v for k, v in defaults.items() if k in known} | options
        if method is not None:
            rank = full_rank(layer, chosen.get("kernel", "paper"))
            chosen |= method.layer_options(*layer_shape(layer, family), chosen, rank)
        chosen = left_to_budget(target, chosen)
        with _naming(name):
            parsed = target.options_type.parse(target.family, chosen)
            check_real(layer)
            weights = _weights_to_keep(network, layer, reference)
        plans.append(_Plan(name, layer, target, parsed, weights, id(options) if "budget" in options else 0))
    return plans, left


def _settled(
    network: nn.Module, plans: list[_Plan], inputs: list[Any] | None
) -> tuple[list[_Plan], list[str], list[str]]:
    """The plans with all sizes chosen, those aside that stay dense; why they do, and warnings."""
    sized = {
        plan.layer: Layer(plan.name, plan.target, plan.weights, plan.options, entry=plan.entry)
        for plan in plans
        if issubclass(plan.target, LimitedRank)
    }
    last = last_layers(network.members if isinstance(network, Mixture) else [network])
    kept: dict[nn.Module, list[float]] = {}
    if inputs is not None and any(map(is_open, sized.values())):
        kept, last = measure_layers(network, _to_fit(plans), inputs)
    layers = [one._replace(last=layer in last, kept=kept.get(layer)) for layer, one in sized.items()]
    chosen, dense, warned = settle(layers)
    options = dict(zip(sized, chosen, strict=True))
    settled = []
    for plan in plans:
        own = options.get(plan.layer, plan.options)
        if own is not None:
            with _naming(plan.name):
                settled.append(plan._replace(options=plan.target.settled(own, plan.weights)))
    return settled, dense, warned


def _weights_to_keep(network: nn.Module, layer: nn.Module, reference: Mapping[str, Tensor]) -> Weights:
    own = plain_weights(layer)
    kept = {"weight": own.weight, "bias": own.bias}
    for name, module in network.named_modules(remove_duplicate=False) if reference else ():
        for part, value in kept.items():
            key = f"{name}.{part}" if name else part
            if module is layer and value is not None and key in reference:
                kept[part] = reference[key].detach().to(value)
    assert kept["weight"] is not None
    return Weights(kept["weight"], kept["bias"])


def _check_reference(network: nn.Module, reference: Mapping[str, Tensor]) -> None:
    own = network.state_dict()
    for key, value in reference.items():
        if key not in own:
            raise ValueError(f"reference_state_dict has {key!r}, which the plain network does not have")
        if not isinstance(value, Tensor):
            raise TypeError(f"reference_state_dict[{key!r}] must be a tensor, got {type(value).__name__}")
        if own[key].shape != value.shape:
            shapes = f"{tuple(value.shape)}, expected {tuple(own[key].shape)}"
            raise ValueError(f"reference_state_dict[{key!r}] has shape {shapes}")
        if kind_of(own[key].dtype) != kind_of(value.dtype):
            raise ValueError(f"reference_state_dict[{key!r}] is of {value.dtype}, expected {own[key].dtype}")


def _check_defaults(names: set[str], defaults: Mapping[str, Any]) -> None:
    """A default that none of the chosen families knows is an error."""
    chosen = {name.lower() for name in names}
    known = {name for plain in layer_types() for family in chosen for name in _option_names(family, plain)}
    for name in defaults:
        if chosen and name not in known:
            raise TypeError(f"unknown option {name!r} for {sorted(chosen)}; expected some of {sorted(known)}")


def _option_names(family: str, layer_type: type[nn.Module]) -> list[str]:
    try:
        return pairing(family, layer_type).options_type.names()
    except KeyError:
        return []


def _check_memory(plans: list[_Plan]) -> None:
    """Refuses covariances that do not fit in memory, one by one or together."""
    total, count = 0, 0
    for plan in plans:
        n, like = plan.target.covariance_size(plan.weights, plan.options), plan.weights.weight
        with _naming(plan.name):
            refuse_covariance(n, like, plan.target.family)
        total, count = total + covariance_bytes(n, like), count + (n > 0)
    if count:
        what = f"{count} layers with a full covariance each"
        refuse_beyond_memory(total, plans[0].weights.weight.device, what)


@contextmanager
def _naming(layer: str) -> Iterator[None]:
    """Errors inside the block name the layer."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise type(error)(f"layer {layer or 'the network'!r}: {error}") from error


def _check_ensembles(network: nn.Module, plans: list[_Plan]) -> None:
    """One mixture over the whole network: all ensembles have one size."""
    earlier = {name: m.member_count() for name, m in network.named_modules() if isinstance(m, Drawing)}
    all_sizes = earlier | {plan.name: plan.target.member_number(plan.options) for plan in plans}
    sizes = {name: size for name, size in all_sizes.items() if size}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"all layers of an ensemble show the same member, so ensemble_size must agree; got {sizes}")


def _leave_fast_paths_(network: nn.Module) -> None:
    """Keeps torch's fused transformer from reading `linear1.weight` itself, which would be the posterior mean."""
    for module in network.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and any(
            isinstance(layer, BayesianLayer) for layer in (module.linear1, module.linear2)
        ):
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(m, BayesianLayer) for m in module.modules()):
            module.use_nested_tensor = False
