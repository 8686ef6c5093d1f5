"""The hyper-parameters of a training run, as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from torch import nn, optim

from bnn._common.checks import check_bool, check_choice, check_positive, check_size
from bnn.nn.options import Options
from bnn.objective import ELBO
from bnn.parameters import parameter_groups
from bnn.train.sampling import SAMPLINGS

if TYPE_CHECKING:
    from typing_extensions import Self

OPTIMISERS = ["adam", "sgd"]
ELSEWHERE = {"learning_rate": "lr", "optimizer": "optimiser", "num_epochs": "epochs", "grad_clip": "clip"}
EXTENDABLE = ["epochs", "patience"]  # what may differ when a run goes on: more epochs, another patience
ADDED = ["sampling"]  # what old checkpoints do not hold: it may be said now


@dataclass(frozen=True)
class Schedule(Options):
    """Everything `bnn.fit` needs to know about how to train; each field is a keyword of `bnn.fit`, too.

    The learning rate of epoch e is lr * decay^(number of milestones <= e), times (1 + cos(pi e / epochs)) / 2 with
    `cosine`; `scale_rate` and `u_rate` are the factors of `bnn.parameter_groups` on top.
    """

    epochs: int = 10
    batch_size: int = 100  # inputs per step, all processes together (at least 2 each with BatchNorm); the paper's value
    optimiser: str = "adam"
    lr: float = 1e-3
    momentum: float = 0.9  # of SGD
    weight_decay: float = 0.0  # for plain networks: a posterior has its prior
    milestones: tuple[int, ...] = ()  # epochs after which the rate is multiplied by `decay`
    decay: float = 0.1
    cosine: bool = False
    samples: int = 1  # draws per step; ensemble_size trains every member of Ensemble-U on every batch
    split: bool = False  # each draw sees its share of the batch
    sampling: str | None = None  # what a draw guarantees in a step, as the layers' option; None: what trains fastest
    kl_weight: float = 1.0
    warmup: float = 0  # epochs without the KL
    anneal: float = 0  # epochs over which it then grows to kl_weight
    function_space: bool = False
    scale_rate: float | None = 10.0  # rate of sds and lamda relative to lr; None: one rate for every parameter
    u_rate: float = 1.0  # rate of u relative to lr times the size of u
    clip: float | None = None  # largest norm of the gradient
    patience: int | None = None  # epochs without a better validation NLL until training stops
    refresh_batchnorm: bool = True  # re-estimate BatchNorm statistics under posterior draws when training ends

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", _milestones(self.milestones))
        for name in ("epochs", "batch_size", "samples"):
            check_size(name, getattr(self, name))
        check_size("patience", self.patience, none=True)
        check_choice("optimiser", self.optimiser, OPTIMISERS)
        if self.sampling is not None:
            check_choice("sampling", self.sampling, SAMPLINGS)
        for name in ("lr", "decay", "u_rate"):
            check_positive(name, getattr(self, name))
        for name in ("momentum", "weight_decay", "kl_weight", "warmup", "anneal"):
            check_positive(name, getattr(self, name), zero=True)
        check_positive("clip", self.clip, none=True)
        check_positive("scale_rate", self.scale_rate, none=True)
        if self.momentum >= 1:
            raise ValueError(f"momentum must be below 1, got {self.momentum!r}")
        for name in ("cosine", "split", "function_space", "refresh_batchnorm"):
            check_bool(name, getattr(self, name))

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self:
        """From keyword arguments; an unknown name is a TypeError that lists the known ones."""
        for name in options:
            if name in ELSEWHERE:
                raise TypeError(f"unknown option {name!r} for 'bnn.fit'; it is called {ELSEWHERE[name]!r} here")
        return cls.parse("bnn.fit", options)

    def rate(self, epoch: int) -> float:
        """The factor of all learning rates in this epoch."""
        steps = self.decay ** sum(epoch >= milestone for milestone in self.milestones)
        return steps * (0.5 * (1 + math.cos(math.pi * epoch / self.epochs)) if self.cosine else 1.0)

    def optimiser_of(self, network: nn.Module) -> optim.Optimizer:
        """The optimiser, each group with its rate at the start of training as `initial_lr`."""
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError("no parameter of this network trains: nothing to optimise")
        groups: list[dict[str, Any]] = [{"params": trained, "lr": self.lr, "name": "all"}]
        if self.scale_rate is not None:
            groups = parameter_groups(network, self.lr, scales=self.scale_rate, u=self.u_rate)
        for group in groups:
            group["initial_lr"] = group["lr"]
        if self.optimiser == "sgd":
            return optim.SGD(groups, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return optim.Adam(groups, lr=self.lr, weight_decay=self.weight_decay)

    def objective_of(self, network: nn.Module, num_data: int, likelihood: Any) -> ELBO:
        """The objective: draws per step, and how the KL is weighted."""
        return ELBO(
            network,
            num_data,
            likelihood,
            samples=self.samples,
            warmup=self.warmup,
            anneal=self.anneal,
            kl_weight=self.kl_weight,
            function_space=self.function_space,
            split=self.split,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"milestones": list(self.milestones)}

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Fields in which a stored schedule differs, one line each; those that may differ are left out."""
        own = self.to_dict()
        free = [*EXTENDABLE, *(name for name in ADDED if name not in other)]
        return [
            f"{field.name}: {other.get(field.name)!r} then, {own[field.name]!r} now"
            for field in fields(self)
            if field.name not in free and other.get(field.name) != own[field.name]
        ]


def _milestones(value: Any) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"milestones must be a list of epochs, as [60, 120, 160]; got {value!r}")
    for milestone in value:
        check_size("a milestone", milestone)
    if list(value) != sorted(value):
        raise ValueError(f"milestones must rise, got {list(value)}")
    return tuple(int(milestone) for milestone in value)
