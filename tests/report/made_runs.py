"""Runs made by hand: what a report shows is known to the last digit, and nothing has to be trained."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

from bnn.evaluation import (
    OOD,
    ROC,
    Classes,
    Corrupted,
    Evaluation,
    Example,
    Examples,
    Histogram,
    Points,
    Reliability,
    Selective,
    Size,
    Time,
    Uncertainty,
)
from bnn.evaluation.classes import classes_of
from bnn.metrics.bootstrap import Interval
from bnn.report import Entry

HOSTILE = '<script>alert("x")</script> & $a_b$'


def png(gray: int = 200, side: int = 4) -> str:
    """A gray square as base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([gray] * side) for _ in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def around(value: float, half: float = 0.02) -> Interval:
    """An interval about a value."""
    return Interval(value, value - half, value + half)


def classes(names: tuple[str, ...] = ("7", HOSTILE)) -> Classes:
    """The first class has all the answers; of two it has 9 of 10 inputs, of more all have the same."""
    labels = np.arange(500) % len(names) if len(names) > 2 else (np.arange(500) % 10 == 9).astype(int)
    probs = np.full((500, len(names)), 0.2 / len(names)) + 0.8 * np.eye(len(names))[0]
    return classes_of(probs, labels, names)


def examples(pictures: bool = True, target: bool = True) -> Examples:
    """Three sure inputs, and three unsure ones, one of which is wrong."""

    def one(i: int, right: bool, p: float, total: float) -> Example:
        truth = ("7" if right else "9") if target else None
        return Example(i, truth, "7", p, total, 0.8 * total, 0.2 * total, png(40 * i) if pictures else None)

    sure = tuple(one(i, True, 0.99 - 0.01 * i, 0.01 * (i + 1)) for i in range(3))
    unsure = tuple(one(i + 3, i != 1, 0.4, 1.5 - 0.1 * i) for i in range(3))
    return Examples(sure, unsure)


def out_of(auroc: float, shown: bool = True, others: dict[str, float] | None = None) -> OOD:
    """A set of out-of-distribution inputs: the AUROC by entropy, and by other scores."""
    aurocs = {"entropy": auroc} | (others or {})
    detection = {s: {"auroc": around(v), "aupr": around(0.8), "fpr95": around(0.3)} for s, v in aurocs.items()}
    if not shown:
        return OOD(50, Uncertainty(1.0, 0.7, 0.3), detection)
    histograms = {score: Histogram((0.0, 0.5, 1.0, 1.5), (30, 10, 5), (2, 8, 40)) for score in aurocs}
    roc = {score: ROC((0.0, 0.1, 0.4, 1.0), (0.0, 0.7, 0.95, 1.0)) for score in aurocs}
    return OOD(50, Uncertainty(1.0, 0.7, 0.3), detection, histograms, roc, examples(target=False))


def corrupted(kinds: int = 2) -> tuple[Corrupted, ...]:
    """Kinds of corruption at severities 1 and 3; kind k loses k hundredths more than kind 0."""
    return tuple(
        Corrupted(
            f"kind_{k}",
            severity,
            {"accuracy": around(0.9 - 0.1 * severity - 0.01 * k), "nll": around(0.3 * severity), "ece": around(0.05)},
            Uncertainty(0.5, 0.4, 0.1),
        )
        for k in range(kinds)
        for severity in (1, 3)
    )


def bare(data: str = "digits", **changes: Any) -> Evaluation:
    """Class predictions of which only the numbers are known."""
    metrics = {"accuracy": around(0.95), "nll": around(0.2), "ece": Interval(0.03, 0.0, 0.04)}
    given: dict[str, Any] = {
        "data": data,
        "task": "classification",
        "inputs": 500,
        "draws": 20,
        "seed": 0,
        "metrics": metrics | changes.pop("metrics", {}),
        "temperature": None,
        "uncertainty": Uncertainty(0.2, 0.15, 0.05),
        "ood": {},
        "corruptions": (),
        "severities": (),
        "selective": None,
        "reliability": None,
        "posterior": None,
        "size": Size(2500, 10_000, 1, 10_000, 0.25),
    }
    return Evaluation(**(given | changes))


def full(**changes: Any) -> Evaluation:
    """Class predictions of which everything is known."""
    nan = float("nan")
    everything: dict[str, Any] = {
        "ood": {"letters": out_of(0.9)},
        "corruptions": corrupted(),
        "selective": Selective((0.25, 0.5, 1.0), (1.0, 0.99, 0.95)),
        "reliability": Reliability((nan, 0.6, 0.95), (nan, 0.5, 0.97), (0.0, 0.1, 0.9)),
        "notes": ("a note",),
        "examples": examples(),
        "classes": classes(),
        "time": Time(500, 0.05, 0.005, 7),
    }
    return bare(**(everything | changes))


def real(data: str = "houses", **changes: Any) -> Evaluation:
    """Predictions of real targets."""
    metrics = {"rmse": around(3.0, 0.2), "nll": around(2.5, 0.1), "crps": around(1.6, 0.1)}
    metrics |= {"coverage_50": around(0.55), "coverage_90": around(0.93), "coverage_95": around(0.96)}
    points = Points((1.0, 2.0, 3.0), (1.1, 1.9, 3.3), (0.2, 0.3, 0.4))
    given = {"task": "regression", "points": points, "examples": examples(pictures=False)}
    return bare(data, metrics=metrics | changes.pop("metrics", {}), **(given | changes))


def epochs(n: int = 4, **more: float) -> list[dict[str, Any]]:
    """What a metrics.jsonl holds."""
    return [
        {"epoch": i, "data": 1.0 / (i + 1), "kl_u": 2.0, "kl_lamda": 1.0, "validation_nll": 1.1 / (i + 1)}
        | {"validation_accuracy": 0.5 + 0.1 * i}
        | more
        for i in range(n)
    ]


def trained() -> dict[str, list[dict[str, Any]]]:
    """Plain training, then the main one."""
    return {"pretrain": epochs(3, kl_u=0.0, kl_lamda=0.0), "train": epochs(4)}


def two() -> list[Entry]:
    """Two runs of which everything is known; the second is more accurate, with an interval clear of the first's."""
    recipe = {"data": {"name": "digits"}, "name": "</script><b>&"}
    plain = full(
        draws=1, metrics={"accuracy": around(0.85), "nll": around(0.21)}, size=Size(10_000, 40_000, 1, 10_000, 1.0)
    )
    return [Entry("plain", plain, recipe, {"train": epochs(5)}), Entry(HOSTILE, full(), recipe, trained())]
