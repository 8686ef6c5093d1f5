"""Configurations of `bayesianize_` as JSON files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NoReturn

from bnn._conversion.methods import family_of, method_of, unknown
from bnn.nn.base import families, layer_types, pairing
from bnn.nn.options import Options


def load_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a JSON file into the keyword arguments of `bayesianize_`: `bnn.bayesianize_(net, **bnn.load_config(path))`.

    The file holds one family for the whole network, `{"inference": "ffg", option: value, ...}`, or one per layer,
    `{"inference": {layer: {"inference": "ffg", option: value, ...}, ...}}`, where options beside the outer "inference"
    are defaults. The outer "inference" may be left out: `{layer: {...}, ...}`. A layer is named as in `bayesianize_`:
    by name, index, class name or glob; null leaves it as it is.

    Returns:
        {"inference": ..., option: value, ...}, with all families and options checked.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no valid JSON, or not a configuration; the message names the file, the key and what was expected.
    """
    path = os.fspath(path)
    try:
        config = _parse(path)
        if "inference" not in config:
            _check_layers(config, {})
            return {"inference": config}
        inference, options = config["inference"], {k: v for k, v in config.items() if k != "inference"}
        if isinstance(inference, Mapping):
            _check_layers(inference, options)
        else:
            _check_options('"inference"', inference, options)
        return config
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _parse(path: str) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"no valid JSON in line {error.lineno}, column {error.colno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"expected JSON in UTF-8, found other bytes ({error})") from error
    if not isinstance(config, dict) or not config:
        raise ValueError(f'expected an object such as {{"inference": "ffg"}}, found {_show(config)}')
    return config


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = [key for i, key in enumerate(keys) if key in keys[:i]]
    if twice:
        raise ValueError(f"key {twice[0]!r} is there twice in one object; expected once, only the last would count")
    return dict(pairs)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON; expected a finite number")


def _check_layers(layers: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Checks {layer: entry}; a default must be known to at least one of the families."""
    known: set[str] = set()
    if not layers:
        raise ValueError('"inference": expected a family or {layer: {"inference": family, ...}, ...}, found {}')
    for key, entry in layers.items():
        if isinstance(entry, str):
            entry = {"inference": entry}
        if entry is None or (isinstance(entry, Mapping) and entry.get("inference", "") is None):
            continue
        if not isinstance(entry, Mapping) or "inference" not in entry:
            raise ValueError(
                f"{_show(key)}: expected a family, an object with 'inference', or null; {_found(key, entry)}"
            )
        options = {name: value for name, value in entry.items() if name != "inference"}
        names = _options_type(_show(key), entry["inference"]).names()
        _check_options(_show(key), entry["inference"], {k: v for k, v in defaults.items() if k in names} | options)
        known.update(names)
    unknown = [name for name in defaults if name not in known]
    if unknown:
        raise ValueError(f"{_show(unknown[0])}: unknown option; expected 'inference' or some of {sorted(known)}")


def _check_options(key: str, family: Any, options: Mapping[str, Any]) -> None:
    """Reads the options as the family would; errors name `key`."""
    options_type = _options_type(key, family)
    method = method_of(family)
    own = {} if method is None else {name: value for name, value in method.options.items() if name not in options}
    try:
        options_type.parse(family, own | dict(options))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}: {error}") from error


def _options_type(key: str, family: Any) -> type[Options]:
    try:
        known = isinstance(family, str) and (method_of(family) is not None or family.lower() in families())
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
    if not known:
        raise ValueError(f"{key}: {unknown(_show(family))}")
    for layer_type in layer_types():
        try:
            return pairing(family_of(family), layer_type).options_type
        except KeyError:
            continue
    raise AssertionError(f"{family!r} covers no layer type")  # a family is known by its pairings


def _found(key: str, entry: Any) -> str:
    """What stands there instead of an entry, with the usual reason."""
    option = any(key in _options_type("", family).names() for family in families())
    hint = "; an option needs 'inference' beside it" if option else ""
    return f"found {_show(entry)}{hint}"


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
