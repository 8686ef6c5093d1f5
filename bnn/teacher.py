"""A network that teaches another: the student learns what it predicts, beside its targets or instead of them."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._common.checks import check_positive
from bnn._engine.inputs import check_network, evaluating
from bnn._engine.members import combinations, member_count
from bnn.likelihoods.base import Likelihood
from bnn.prediction import draws, tempered

WEIGHT, TEMPERATURE = 0.9, 4.0  # chosen by experiments/cases/teacher.toml
TOGETHER, NETWORK, MEMBER = "together", "network", "member"  # who a draw of the student learns from


class Teacher:
    """What a student learns from: the data term of its objective becomes, per datum,

        (1 - w) NLL(target) + w T^2 KL[teacher(x) || student(x)],    logits of both divided by T,

    for classes and for labels that are 0 or 1; for real targets the KL between the two predicted Gaussians, without T.
    Where there is no target, w = 1. The teacher runs on the very inputs that the student sees, in evaluation mode,
    without gradients, a Bayesian one at its posterior mean; a calibrated one divides its logits by its own temperature
    first. It is copied, so that the one given is left alone, and it is never trained, nor stored with the student.

    An `Ensemble` teaches a single network by the mean of its members' probabilities, or by a Gaussian of their mean
    and variance; member k of an ensemble, or of Ensemble-U, learns from its member k.

    Args:
        network: a trained network with the outputs of the student: plain, Bayesian or an `Ensemble`.
        weight: w, in [0, 1]; None: the default, 0.9.
        temperature: T; None: the default, 4, for logits, and 1 for real targets, where it has no meaning.
        likelihood: what the teacher's outputs mean: for real targets the one that holds its noise,
            `history.likelihood`. None: the student's, whose noise then learns from the targets alone.

    >>> import bnn
    >>> plain = nn.Linear(4, 3)
    >>> student = copy.deepcopy(plain)
    >>> bnn.bayesianize_(student, "inducing", inducing_rows=2, inducing_cols=2)
    >>> elbo = bnn.ELBO(student, 50, "categorical", teacher=Teacher(plain, weight=1.0))
    >>> bool(elbo(torch.randn(5, 4), None).data > 0)  # no targets
    True
    """

    def __init__(
        self,
        network: nn.Module,
        weight: float | None = None,
        temperature: float | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        check_network(network)
        check_weight("teacher_weight", weight)
        check_positive("teacher_temperature", temperature, none=True)
        if not isinstance(likelihood, Likelihood | None):
            raise TypeError(
                "teacher_likelihood must be an object of bnn.likelihoods, as `history.likelihood` of the teacher's "
                f"training; got {likelihood!r:.60}"
            )
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self.weight = WEIGHT if weight is None else float(weight)
        self._temperature = temperature
        self.likelihood = None if likelihood is None else copy.deepcopy(likelihood).requires_grad_(False)
        self.count = combinations(self.network)

    def check(self, student: nn.Module, likelihood: Any) -> str:
        """Who a draw of the student learns from, as `pairing`; raises unless it can learn from this teacher at all.

        Raises:
            ValueError: another number of members than the student's; a temperature without logits.
            TypeError: a likelihood that knows no divergence.
        """
        found = likelihoods.about(likelihood)
        if type(found).divergence is Likelihood.divergence:
            found.divergence(torch.empty(0), torch.empty(0))  # says so
        if not found.logits and self._temperature not in (None, 1):
            raise ValueError(
                f"teacher_temperature={self._temperature!r} divides logits, and outputs are none under "
                f"{type(found).__name__}: leave it out"
            )
        if self.likelihood is not None and self.likelihood.task != found.task:
            raise ValueError(
                f"teacher_likelihood is {type(self.likelihood).__name__}, the student's {type(found).__name__}: both "
                "must be about the same kind of targets"
            )
        return self.pairing(student)

    def pairing(self, student: nn.Module) -> str:
        """Who a draw of the student learns from: TOGETHER (all teachers as one), its NETWORK's, or its MEMBER's."""
        networks, members = combinations(student), member_count(student)
        wanted = networks if networks > 1 else members
        if self.count == 1 or wanted <= 1:
            return TOGETHER
        if self.count != wanted:
            raise ValueError(
                f"the student has {wanted} members and the teacher {self.count}: member k learns from teacher k, so "
                f"give an Ensemble of {wanted}, or one network that teaches all"
            )
        return NETWORK if networks > 1 else MEMBER

    def temperature(self, likelihood: Any) -> float:
        """T under this likelihood."""
        if self._temperature is not None:
            return float(self._temperature)
        return TEMPERATURE if likelihoods.about(likelihood).logits else 1.0

    def needed(self, y: Any) -> bool:
        """Whether the objective depends on the teacher at all."""
        return y is None or self.weight > 0

    @torch.no_grad()
    def outputs(self, x: Any, student: nn.Module, likelihood: Any) -> list[Tensor]:
        """What every teacher says about the inputs, (N, ...) each, where the student is and in its type."""
        place = next((p for p in student.parameters() if p.is_floating_point()), None)
        own = next((p for p in self.network.parameters() if p.is_floating_point()), None)
        if place is not None and own is not None and (own.device, own.dtype) != (place.device, place.dtype):
            for module in (self.network, self.likelihood):
                if module is not None:
                    module.to(place.device, place.dtype)
        with evaluating(self.network):
            found = draws(self.network, x, samples=0, generator=torch.Generator())
        if not isinstance(found, Tensor):
            raise TypeError(f"a teacher must return one tensor, this one returns a {type(found).__name__}")
        return list(tempered(self.network, self.likelihood or likelihood, found))

    def term(self, likelihood: Any, output: Any, y: Any, teachers: Sequence[Tensor]) -> Tensor:
        """The data term (N,) of one draw of the student.

        Args:
            output: of the student.
            y: its targets, or None.
            teachers: what one teacher said about the same inputs, or several that count as one.
        """
        weight = 1.0 if y is None else self.weight
        if weight == 0:
            nll: Tensor = likelihood(output, y)
            return nll
        temperature, about = self.temperature(likelihood), likelihoods.about(likelihood)
        divergence = about.divergence(torch.stack(list(teachers)), output, temperature, self.likelihood)
        return divergence if weight == 1 else (1 - weight) * likelihood(output, y) + weight * divergence

    def fingerprint(self, likelihood: Any) -> dict[str, Any]:
        """Tells another teacher apart: the weight, the temperature, and a checksum of all its numbers."""
        noise = {} if self.likelihood is None else self.likelihood.state_dict()
        total = 0
        for name, value in [*self.network.state_dict().items(), *noise.items()]:
            total = zlib.crc32(name.encode(), total)
            if isinstance(value, Tensor) and value.numel():
                flat = value.detach().cpu().contiguous().reshape(-1)
                total = zlib.crc32(flat.view(torch.uint8).numpy().data, total)
        return {"weight": self.weight, "temperature": self.temperature(likelihood), "checksum": total}


def check_weight(name: str, weight: float | None) -> None:
    """Raises unless the weight lies in [0, 1] or is None."""
    check_positive(name, weight, zero=True, none=True)
    if weight is not None and weight > 1:
        raise ValueError(f"{name} must lie in [0, 1], got {weight!r}")


def teacher_of(student: nn.Module, network: nn.Module | None, **options: Any) -> Teacher | None:
    """The teacher that `bnn.fit` was given; None without one, and then options of it are an error."""
    if network is None:
        given = [f"teacher_{name}" for name, value in options.items() if value is not None]
        if given:
            raise ValueError(f"{given[0]} needs a teacher: pass teacher=, a trained network")
        return None
    if network is student:
        raise ValueError(
            "the teacher is the network that is trained (bnn.bayesianize_ works in place): keep the trained "
            "one before, original = copy.deepcopy(net), and pass teacher=original"
        )
    return Teacher(network, **options)
