"""The hyper-parameters of a training run, as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from bnn._common.checks import check_bool, check_choice, check_positive, check_size
from bnn._common.options import Options, described, plain

if TYPE_CHECKING:
    from torch import nn, optim
    from typing_extensions import Self

    from bnn.objective import ELBO
    from bnn.teacher import Teacher

USUAL, MORE = "Training", "More about training"  # groups of flags: most people look for the first
OPTIMISERS = ["adam", "sgd"]
SAMPLINGS = ["auto", "weight", "local"]
OTHER_NAMES = {"learning_rate": "lr", "optimizer": "optimiser", "num_epochs": "epochs", "grad_clip": "clip"}
EXTENDABLE = ["epochs", "patience"]  # what may differ when a run resumes: more epochs, another patience
ADDED = ["sampling"]  # what old checkpoints do not hold: it may be said now


@dataclass(frozen=True)
class Schedule(Options):
    """Everything `bnn.fit` needs to know about how to train; each field is a keyword of `bnn.fit`, too.

    The learning rate of the step that begins after e epochs (2.5: in the middle of the third) is
    lr * decay^(number of milestones <= e), times (1 + cos(pi e / epochs)) / 2 with `cosine`; `scale_rate` and `u_rate`
    are the factors of `bnn.parameter_groups` on top. Data of unknown length step once per epoch.
    """

    epochs: int = described("Epochs; by default by the size of the data.", default=10, panel=USUAL, least=1)
    batch_size: int = described(  # the paper's value; all processes together, at least 2 each with BatchNorm
        "Inputs per step.", default=100, panel=USUAL, least=1
    )
    optimiser: str = described("adam or sgd.", default="adam")
    lr: float = described("Learning rate.", default=1e-3, panel=USUAL)
    momentum: float = described("Of sgd.", default=0.9, least=0)
    weight_decay: float = described("For plain networks: a posterior has its prior.", default=0.0, least=0)
    milestones: tuple[float, ...] = described(
        "Epochs, or fractions of one, after which the rate is multiplied by the decay, as 60,120.",
        default=(),
        panel=USUAL,
        example="60,120",
    )
    decay: float = described("Factor of the rate at each milestone. [0.1]", default=0.1)
    cosine: bool = described("Let the rate fall to 0 along a cosine.", default=False)
    samples: int = described(  # ensemble_size trains every member of Ensemble-U on every batch
        "Posterior draws per step.", default=1, panel=USUAL, least=1, bayesian=True
    )
    split: bool = described("Each draw sees its share of the batch.", default=False, bayesian=True)
    sampling: str | None = described(
        "What a draw guarantees in a step: auto, weight or local; by default what trains fastest.",
        default=None,
        bayesian=True,
    )
    kl_weight: float = described("Weight of the KL.", default=1.0, panel=USUAL, least=0, bayesian=True)
    warmup: float = described(
        "Epochs of maximum likelihood at the start.",
        default=0,
        flag="--ml-epochs",
        panel=USUAL,
        least=0,
        bayesian=True,
    )
    anneal: float = described(
        "Epochs over which the KL then grows.",
        default=0,
        flag="--annealing-epochs",
        panel=USUAL,
        least=0,
        bayesian=True,
    )
    function_space: bool = described(
        "The paper's function-space bound instead of the ELBO.", default=False, bayesian=True
    )
    scale_rate: float | None = described(  # None: one rate for every parameter
        "Rate of sds and lamda, relative to the learning rate. [10]", default=10.0
    )
    u_rate: float = described("Rate of U, relative to the learning rate times the size of U. [1]", default=1.0)
    clip: float | None = described("Largest norm of the gradient.", default=None)
    patience: int | None = described(
        "Stop after so many epochs without a better validation NLL.", default=None, panel=USUAL, least=1
    )
    refresh_batchnorm: bool = described(
        "Re-estimate BatchNorm statistics under posterior draws when training ends.", default=True
    )

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
            if name in OTHER_NAMES:
                raise TypeError(f"unknown option {name!r} for 'bnn.fit'; it is called {OTHER_NAMES[name]!r} here")
        return cls.parse("bnn.fit", options)

    def rate(self, epoch: float) -> float:
        """The factor of all learning rates after so many epochs."""
        steps = self.decay ** sum(epoch >= milestone for milestone in self.milestones)
        return steps * (0.5 * (1 + math.cos(math.pi * epoch / self.epochs)) if self.cosine else 1.0)

    def optimiser_of(self, network: nn.Module) -> optim.Optimizer:
        """The optimiser, each group with its rate at the start of training as `initial_lr`."""
        from torch import optim

        from bnn.parameters import parameter_groups

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

    def objective_of(self, network: nn.Module, num_data: int, likelihood: Any, teacher: Teacher | None = None) -> ELBO:
        """The objective: draws per step, and how the KL is weighted."""
        from bnn.objective import ELBO

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
            teacher=teacher,
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


def _milestones(value: Any) -> tuple[float, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"milestones must be a list of epochs, as [60, 120, 160]; got {value!r}")
    value = [plain(one) for one in value]
    for milestone in value:
        check_positive("a milestone", milestone)
    if list(value) != sorted(value):
        raise ValueError(f"milestones must rise, got {list(value)}")
    return tuple(int(milestone) if milestone == int(milestone) else float(milestone) for milestone in value)
