"""Fitted estimators as files: the file of `bnn.save`, with the estimator as JSON among its metadata. No pickle."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from bnn._common.atomic import write_atomically
from bnn._conversion.methods import get
from bnn.ensemble import Ensemble
from bnn.files import FileFormatError, load_, save

KEY = "estimator"
VERSION = 1


def write_estimator(estimator: Any, notes: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes network and notes as one file, which appears whole or not at all.

    Args:
        estimator: fitted.
        notes: its state beside the network.
    """
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"cannot write {path}: there is no folder {folder}; create it first")
    if os.path.isdir(path):
        raise IsADirectoryError(f"cannot write {path}: it is a folder; name a file in it")
    text = _record(estimator, notes)
    with tempfile.TemporaryDirectory() as scratch:
        plain = os.path.join(scratch, "net.safetensors")
        save(estimator.network_, plain)
        with safetensors.safe_open(plain, framework="pt", device="cpu") as file:
            metadata = file.metadata() | {KEY: text}
        data = safetensors.torch.save(safetensors.torch.load_file(plain), metadata)
    write_atomically(data, path)


def read_estimator(cls: Any, path: str | os.PathLike[str], network: Any) -> tuple[Any, dict[str, Any]]:
    """The estimator with its trained network, and its notes."""
    path = os.fspath(path)
    record = _read(path)
    if record["class"] != cls.__name__:
        raise ValueError(f"{path} holds a {record['class']}: use {record['class']}.load(path)")
    if record["own_network"] and network is None:
        raise ValueError(f"{path} was fitted with a network of its own: pass the same one, load(path, network=...)")
    if not record["own_network"] and network is not None:
        raise ValueError(f"{path} was fitted without a network of its own: leave out network=")
    params = record["params"] | {"hidden": tuple(record["params"]["hidden"]), "network": network}
    if isinstance(params.get("class_weight"), list):
        params["class_weight"] = dict(params["class_weight"])
    estimator = cls(**params)
    estimator.n_features_in_ = record["notes"]["n_features_in_"]
    plain = estimator._plain(record["out_features"])
    method = get(estimator.method)
    if method.networks > 1:
        plain = Ensemble(plain, estimator.members or method.networks)
    load_(plain, path)
    estimator.network_ = plain.to(torch.device("cpu" if estimator.device is None else estimator.device))
    return estimator, record["notes"]


def _record(estimator: Any, notes: dict[str, Any]) -> str:
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name != "network"}
    params["hidden"] = list(params["hidden"])
    params["device"] = None if params["device"] is None else str(params["device"])
    if isinstance(params.get("class_weight"), dict):  # whose keys may be numbers, which JSON would make text
        params["class_weight"] = [[_label(label), weight] for label, weight in params["class_weight"].items()]
    if not isinstance(params["random_state"], int | np.integer):
        params["random_state"] = None  # a generator has moved on; predictions depend on seed_ alone
    record = {
        "version": VERSION,
        "class": type(estimator).__name__,
        "own_network": estimator.network is not None,
        "out_features": estimator._out_features(),
        "params": params,
        "notes": notes,
    }
    try:
        return json.dumps(record, default=lambda number: number.item())
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"cannot save: parameters, classes and names must be numbers or text ({error})") from None


def _label(label: Any) -> Any:
    """A class as JSON has it."""
    return label.item() if isinstance(label, np.generic) else label


def _read(path: str) -> dict[str, Any]:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"cannot load {path}: there is no such file")
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            text = (file.metadata() or {}).get(KEY)
    except safetensors.SafetensorError as error:
        raise FileFormatError(
            f"cannot load {path}: it is not a safetensors file, or was cut short ({error})", path
        ) from error
    if text is None:
        raise FileFormatError(f"{path} holds no estimator; bnn.load_ reads a network that bnn.save wrote", path)
    try:
        record: dict[str, Any] = json.loads(text)
        newer = record["version"] > VERSION
        missing = not newer and {"class", "own_network", "out_features", "params", "notes"} - record.keys()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"cannot load {path}: its record of the estimator is damaged ({error})", path) from error
    if newer:
        raise FileFormatError(f"{path} was written by a newer version of bayesianize: upgrade to load it", path)
    if missing:
        raise FileFormatError(f"cannot load {path}: its record of the estimator lacks {sorted(missing)}", path)
    return record
