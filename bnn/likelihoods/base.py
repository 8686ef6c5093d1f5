"""What a likelihood says about itself, and the checks of what it is given."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bnn.functional.linalg import at_least_float32
from bnn.likelihoods.registry import register


class Likelihood(nn.Module):
    """How likely a target is given the network's output, and what K draws of the output predict.

    Training, evaluation, run folders and the command line ask for what is declared here and know no likelihood by its
    class. One with a `name` is registered as it is defined and must fill `forward`, `predictive` and `point`.
    """

    name: ClassVar[str | None] = None  # as configurations spell it; None: not registered
    task: ClassVar[str | None] = None  # "classification", "multilabel" or "regression"; None: says nothing about itself
    outputs_per_target: ClassVar[int] = 1  # numbers the network gives for each class, label or real target
    noise: ClassVar[tuple[str, ...]] = ()  # the parameters or buffers that `settle_` sets
    starts: ClassVar[bool] = False  # a training that begins with noise of no training settles it first, too
    settled: bool = False  # whether the noise is that of a training
    logits: ClassVar[bool] = False  # outputs are logits, which a temperature divides: then it must fill `gaps`, too
    ignore_index: int | None = None  # of classification: positions with this target do not count

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            duties = (*DUTIES, "gaps") if cls.logits else DUTIES
            register(cls, needed=[duty for duty in duties if getattr(cls, duty) is getattr(Likelihood, duty)])

    @classmethod
    def of(cls, targets: int = 1) -> Likelihood:
        """One with its default options, for so many real targets; most do not care how many there are."""
        return cls()

    @property
    def learns(self) -> bool:
        """Whether it has parameters of its own, such as a noise: by its name alone it is then not the trained one."""
        return any(True for _ in self.parameters())

    @property
    def settles(self) -> bool:
        """Whether `settle_` does anything: there is a noise, and it is not held."""
        return bool(self.noise)

    def levels(self) -> dict[str, list[float]]:
        """The noise by its name, as {"sd": [...]}: a number for every target, or one for all; {}: there is none."""
        return {}

    def df(self) -> float:
        """Degrees of freedom of the noise around each of `components`: inf is a Gaussian, less has heavier tails."""
        return math.inf

    def settle_(self, outputs: Tensor, target: Tensor) -> None:
        """Sets the noise, in place, to what makes the prediction as a whole likeliest: the mixture over K draws.

            argmax sum_n log 1/K sum_k p(y_n | output_kn)        for every target by itself

        Training averages the log-likelihood of single draws on data that the network has seen; so its noise holds the
        spread of the draws, which a prediction adds once more, and misses what new data would show. Targets that are
        NaN do not count. Does nothing where there is no noise: see `settles`.

        Args:
            outputs: of K draws, (K, N, ...).
            target: (N, ...), better not of the training data.
        """

    def adopt_(self, other: Likelihood, which: Sequence[bool]) -> None:
        """Takes over the noise of another likelihood like this, in place, for the targets where `which` is True.

        What is not by target, as the tails, is taken over where that is all of them.

        Args:
            other: of the same class and options.
            which: one for every number of `levels`.
        """
        with torch.no_grad():
            for name in self.noise:
                own, their = getattr(self, name), getattr(other, name)
                if own.ndim and len(own) == len(which):
                    own[list(which)] = their[list(which)]
                elif all(which):
                    own.copy_(their)

    def start_(self, outputs: Tensor, target: Tensor) -> None:
        """Where a training begins with the noise, in place: from K draws of the network at hand, as `settle_`."""
        self.settle_(outputs, target)

    def without_tails_(self) -> None:
        """Makes the noise what training learns with, in place, before the first step."""

    def of_logs(self) -> Likelihood:
        """The same for logarithms of the targets that are to be predicted."""
        return self

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood of every datum (N,), in nats."""
        raise NotImplementedError

    def predictive(self, outputs: Tensor) -> Any:
        """The prediction, a `ClassPrediction` or `RegressionPrediction`, from the outputs (K, N, ...) of K draws."""
        raise NotImplementedError

    def point(self, output: Tensor) -> Tensor:
        """What one output (N, ...) predicts: class probabilities (N, C, ...), those of ones (N, ...), or means."""
        raise NotImplementedError

    def from_gaussian(self, mean: Tensor, variance: Tensor) -> Any:
        """The prediction where outputs are Gaussian with these moments (N, ...); None where that takes draws."""
        return None

    def components(self, outputs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Means and sds (K, N, ...) where each draw predicts noise of `df` around a mean; None where it does not."""
        return None

    def sampled_score(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """d NLL / d output, in the shape of `output` (N, ...), for targets drawn from what the output itself predicts.

        Its second moment, over targets, is the Fisher information of the output: `bnn.laplace_` needs it.
        """
        raise TypeError(_no_curvature(self))

    def scores(self, output: Tensor, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        """Tensors like `output` (N, C, ...) whose outer products add up to the Fisher information of every datum.

        Positions beyond dimension 1 are independent, so each gets a random sign: products between positions vanish in
        the mean over signs.
        """
        raise TypeError(_no_curvature(self))

    def divergence(
        self, teachers: Tensor, output: Tensor, temperature: float = 1.0, likelihood: Likelihood | None = None
    ) -> Tensor:
        """T^2 KL[teacher || student] of every datum (N,), in nats: what `bnn.Teacher` needs.

        Args:
            teachers: outputs (M, N, ...) of M networks, which count as one: the mean of what they predict.
            output: the student's, (N, ...); gradients flow to it.
            temperature: T, which divides the logits of both.
            likelihood: what the teachers' outputs mean; None: the same as the student's.
        """
        raise TypeError(
            f"{'this likelihood' if self.name is None else type(self).__name__} does not say how far a teacher's "
            "prediction is from a student's: use one of bnn.likelihoods, or define `divergence(teachers, output, "
            "temperature, likelihood)`"
        )

    def gaps(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Of K draws' logits (K, N, ...): every alternative's minus that of what happened, (K, M, C), for the M targets
        that count. Divided by T they give p(target) = 1 / sum_c exp(gap_c / T), which `bnn.calibrate_` fits.
        """
        raise NotImplementedError

    def tempered(self, outputs: Tensor, temperature: float) -> Tensor:
        """The outputs (K, N, ...) of a network of this temperature: logits / T; ValueError where they are no logits."""
        if not self.logits:
            raise ValueError(
                f"a temperature divides logits, and the outputs are not known to be any under {self._called}: pass "
                "the likelihood that the network was calibrated with, or take T off, bnn.calibrate_(net, None)"
            )
        return at_least_float32(outputs) / temperature

    @property
    def _called(self) -> str:
        return "this likelihood" if self.name is None else f"the likelihood {self.name!r}"

    @property
    def has_scores(self) -> bool:
        """Whether it defines `scores`."""
        return type(self).scores is not Likelihood.scores

    def with_class_weights(self, weights: Sequence[float]) -> Likelihood | None:
        """A new one of the same options with these weights of classes (C,); None where it cannot have any."""
        return None

    def apart(self, target: Tensor) -> tuple[Likelihood, Tensor | None]:
        """The same likelihood without weights of data, and their weights (N,) for these targets, None where all are 1.

        A score of held-out data weights -log of the mean over draws, which a weight inside of it would distort.
        """
        return self, None

    def options(self) -> dict[str, Any]:
        """The arguments, as JSON, that make such a one; parameters that were learned are kept beside them."""
        return {}

    def learned_(self, values: Mapping[str, Any]) -> None:
        """Takes over learned parameters, in place; ValueError where they are not this likelihood's."""
        own = self.kept()
        tensors = {name: torch.as_tensor(value, device="cpu") for name, value in values.items()}
        if {name: one.shape for name, one in own.items()} != {name: one.shape for name, one in tensors.items()}:
            raise ValueError(f"the likelihood {self.name!r} learns {sorted(own)}, got {dict(values)!r:.60}")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(tensors[name])

    def kept(self) -> dict[str, Tensor]:
        """What is stored beside the options: parameters that were learned, and the noise as it was settled."""
        return dict(self.named_parameters()) | {name: getattr(self, name) for name in self.noise if self.settles}

    def pooled(self, others: Sequence[Any]) -> Likelihood:
        """One likelihood for several, this one among them, that were learned apart: the mean of their parameters."""
        mean = copy.deepcopy(self)
        with torch.no_grad():
            for name, value in mean.kept().items():
                value.copy_(torch.stack([other.kept()[name] for other in others]).mean(0))
        return mean


DUTIES = ("forward", "predictive", "point")
_SILENT = Likelihood()


def about(likelihood: Any) -> Likelihood:
    """What a likelihood says about itself; any other callable says nothing."""
    return likelihood if isinstance(likelihood, Likelihood) else _SILENT


def record(likelihood: Any) -> dict[str, Any]:
    """A likelihood as JSON, which `from_record` reads; a callable of the user's own has no name and cannot be read."""
    found = about(likelihood)
    if found.name is None:
        return {"name": None}
    learned = {name: value.detach().cpu().tolist() for name, value in found.kept().items()}
    return {"name": found.name, **found.options(), **({"learned": learned} if learned else {})}


def _no_curvature(likelihood: Any) -> str:
    return (
        f"{type(likelihood).__name__} says nothing about its curvature, which Laplace's approximation needs: define "
        "`sampled_score(output, generator)` (and `scores` for labels='exact')"
    )


def random_signs(output: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """+1 or -1 for every datum and position of an output (N, C, ...), the same along dimension 1; 1 without positions.

    Shape (N, 1, ...).
    """
    shape = (output.shape[0], 1, *output.shape[2:])
    if output.ndim < 3:
        return output.new_ones(shape[: output.ndim])
    bits = torch.randint(2, shape, generator=generator, device="cpu" if generator is None else generator.device)
    return (2 * bits - 1).to(output)


def unit_scores(size: Tensor, signs: Tensor) -> Iterator[Tensor]:
    """For independent entries with Fisher information size^2 (N, C, ...): one tensor for each entry of dimension 1."""
    if size.ndim < 2:
        return iter([size])
    columns = torch.eye(size.shape[1], dtype=size.dtype, device=size.device)
    return (signs * size * column.reshape(1, -1, *[1] * (size.ndim - 2)) for column in columns)


def normals_like(output: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard normals in the shape, type and place of `output`, from a generator of any device."""
    device = output.device if generator is None else generator.device
    return torch.randn(output.shape, generator=generator, dtype=output.dtype, device=device).to(output.device)


def fitting_targets(y: Tensor, output: Tensor, likelihood: Any) -> Tensor:
    """`y` with (N,) made (N, 1) for one real target, or (N, 1) made (N,) for class indices."""
    if output.ndim != 2:
        return y
    found = about(likelihood)
    if found.task == "regression" and y.ndim == 1 and output.shape[1] == found.outputs_per_target:
        return y[:, None]
    indices = found.task == "classification" and not y.is_floating_point()
    return y[:, 0] if indices and y.ndim == 2 and y.shape[1] == 1 else y


def per_datum(nll: Tensor) -> Tensor:
    """(N, ...) summed over all but dimension 0; (N,) and scalars as they are."""
    return nll.flatten(1).sum(1) if nll.ndim > 1 else nll


def along(values: Tensor, like: Tensor, dim: int) -> Tensor:
    """Values of every target (D,) where `like` has them, along `dim`, in its type; a scalar is for all alike."""
    if not values.ndim:
        return values.to(like)
    if like.ndim <= dim or like.shape[dim] != len(values):
        raise ValueError(
            f"this likelihood has a noise for each of {len(values)} targets, expected so many along dimension {dim}; "
            f"got {tuple(like.shape)}: make one with targets= as many as there are"
        )
    return values.to(like).reshape(-1, *[1] * (like.ndim - dim - 1))


def by_target(values: Tensor, apart: int) -> Iterator[Tensor]:
    """Values (K, N, D, ...) of every target, (K, n) each; all together where they are not `apart`."""
    return (part.flatten(1) for part in (values.unbind(2) if apart else [values]))


def predictive_nll(likelihood: Any, outputs: Tensor, y: Any) -> Tensor:
    """-w_i log 1/K sum_k p(y_i | output_ki) of every datum (N,) in float64; (1,) where the likelihood gives a mean.

    w_i is 1, or the weight of the datum's class.
    """
    weights = None
    if isinstance(likelihood, Likelihood) and isinstance(y, Tensor):
        likelihood, weights = likelihood.apart(y)
    each = torch.stack([torch.atleast_1d(per_datum(likelihood(output, y))) for output in outputs])
    nll = math.log(len(each)) - (-each.double()).logsumexp(0)
    return nll if weights is None else weights.to(nll) * nll


def check_tensors(output: Any, target: Any) -> None:
    """Raises TypeError unless both are tensors."""
    for name, value in ("output", output), ("target", target):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} is a {type(value).__name__}, expected a tensor; to pick the right part of it pass a function "
                "(output, target) -> negative log-likelihood instead"
            )


def check_draws(outputs: Tensor) -> None:
    """Raises unless `outputs` can be (K, N, ...)."""
    if outputs.ndim < 2:
        raise ValueError(f"outputs have shape {tuple(outputs.shape)}, expected (K, N, ...): K draws first")


def check_shape(target: Tensor, expected: torch.Size) -> None:
    """Raises unless `target` has exactly the expected shape."""
    if target.shape == expected:
        return
    shape = tuple(expected)
    fits = target.numel() == expected.numel()
    hint = f"; if the order of its values is right, use target.reshape({shape})" if fits else ""
    raise ValueError(f"target has shape {tuple(target.shape)}, expected {shape} (nothing is broadcast){hint}")


def check_taught(taught: Tensor, student: Any) -> None:
    """Raises unless what a teacher predicts (N, ...) has the shape of what the student does."""
    check_tensors(student, taught)
    if taught.shape != student.shape:
        raise ValueError(
            f"the teacher predicts {tuple(taught.shape)}, the student {tuple(student.shape)}: a teacher needs as many "
            "outputs as its student, in the same order"
        )


def nonnegative(name: str, weights: float | Sequence[float] | Tensor | None) -> Tensor | None:
    """Weights as a tensor; raises unless all are finite and >= 0."""
    if weights is None:
        return None
    tensor = torch.as_tensor(weights).detach().to(torch.get_default_dtype())
    if not bool((torch.isfinite(tensor) & (tensor >= 0)).all()):
        raise ValueError(f"{name} must be finite and >= 0, got {weights!r}")
    return tensor
