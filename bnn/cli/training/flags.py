"""What `bayesianize train` was asked for, as it was typed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Flags:
    """The flags that decide what a run is; None or empty: not given."""

    file: str | None = None
    preset: str | None = None
    data: str | None = None
    target: str | None = None
    drop: str | None = None
    task: str | None = None
    image_size: str | None = None
    test: str | None = None
    validation: float | None = None
    net: str | None = None
    hidden: str | None = None
    channels: str | None = None
    method: str | None = None
    rows: int | None = None
    cols: int | None = None
    members: int | None = None
    epochs: int | None = None
    ml_epochs: float | None = None
    annealing_epochs: float | None = None
    pretrain_epochs: int | None = None
    weights: str | None = None
    lr: float | None = None
    milestones: str | None = None
    batch_size: int | None = None
    samples: int | None = None
    kl_weight: float | None = None
    max_lamda: float | None = None
    max_sd: float | None = None
    likelihood: str | None = None
    patience: int | None = None
    seed: int | None = None
    download: bool = False
    settings: tuple[str, ...] = ()

    def given(self, *names: str) -> dict[str, Any]:
        """Those of `names` that were given."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @classmethod
    def of(cls, typed: dict[str, Any]) -> Flags:
        """From the parameters of the command; what is no field is left out."""
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in typed.items() if name in known}
        return cls(**values | {"settings": tuple(typed.get("settings") or ())})


def option(name: str) -> str:
    """How a flag is typed.

    >>> option("image_size")
    '--image-size'
    """
    return f"--{name.replace('_', '-')}"
