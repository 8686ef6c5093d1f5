"""The likelihood of one of C classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnn._common.checks import check_positive
from bnn.functional.linalg import at_least_float32
from bnn.likelihoods.base import Likelihood, check_taught, check_tensors, nonnegative, per_datum, random_signs
from bnn.likelihoods.predictions import ClassPrediction, information

FEW_CLASSES = 16  # for which a softmax runs faster with the classes first in memory


class Categorical(Likelihood):
    """One of C classes: -w_y log softmax(output)_y, with the classes along dimension 1 of the output.

    For dense prediction, output (N, C, H, W) and target (N, H, W), positions are summed per datum.

    Args:
        class_weights: (C,), multiplies the log-likelihood of each class (and is not divided out again).
        ignore_index: positions with this target count 0.
        label_smoothing: mixes the target with the uniform distribution, in [0, 1].

    >>> Categorical()(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """

    name = "categorical"
    task = "classification"
    logits = True
    class_weights: Tensor | None
    ignore_index: int

    def __init__(
        self,
        class_weights: Sequence[float] | Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive("label_smoothing", label_smoothing, zero=True)
        if label_smoothing > 1:
            raise ValueError(f"label_smoothing must lie in [0, 1], got {label_smoothing!r}")
        self.register_buffer("class_weights", nonnegative("class_weights", class_weights))
        if self.class_weights is not None and self.class_weights.ndim != 1:
            raise ValueError(f"class_weights must have shape (C,), got {tuple(self.class_weights.shape)}")
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood (N,).

        Args:
            output: logits (N, C, ...).
            target: class indices (N, ...) of an integer type, or class probabilities (N, C, ...).
        """
        check_tensors(output, target)
        self._check_classes(output)
        output = at_least_float32(output)
        weights = None if self.class_weights is None else self.class_weights.to(output)
        smoothing, ignore = self.label_smoothing, self.ignore_index
        if target.is_floating_point():
            target = _probabilities(output, target)
            return per_datum(F.cross_entropy(output, target, weights, reduction="none", label_smoothing=smoothing))
        target = _indices(output, target)
        try:
            nll = F.cross_entropy(output, target, weights, None, ignore, reduction="none", label_smoothing=smoothing)
        except IndexError:  # no look at the values before, so that vmap and torch.compile can pass
            counted = target[target != ignore]
            raise ValueError(
                f"targets run from {counted.min()} to {counted.max()}, but the output has {output.shape[1]} classes: "
                f"expected 0 to {output.shape[1] - 1}, or ignore_index={ignore}"
            ) from None
        return per_datum(nll)

    def _check_classes(self, output: Tensor) -> None:
        if output.ndim < 2 or output.shape[1] < 2:
            raise ValueError(
                f"output has shape {tuple(output.shape)}, expected (N, C, ...) with C >= 2 classes along dimension 1; "
                "for a single logit per label use Bernoulli, for real targets Gaussian"
            )
        if self.class_weights is not None and len(self.class_weights) != output.shape[1]:
            raise ValueError(f"{len(self.class_weights)} class_weights, but the output has {output.shape[1]} classes")

    def predictive(self, outputs: Tensor) -> ClassPrediction:
        """Mean probabilities (N, C, ...) and uncertainties (N, ...) from K draws of the logits (K, N, C, ...).

        >>> certain_but_opposed = torch.tensor([[[1e3, 0.0]], [[0.0, 1e3]]])
        >>> Categorical().predictive(certain_but_opposed)
        ClassPrediction(probs=tensor([[0.5000, 0.5000]]), total=tensor([0.6931]),
                        aleatoric=tensor([0.]), epistemic=tensor([0.6931]))
        """
        if outputs.ndim < 3:
            raise ValueError(f"outputs have shape {tuple(outputs.shape)}, expected (K, N, C, ...): K draws first")
        self._check_classes(outputs[0])
        # few classes come first in memory, where a softmax over them runs over long vectors
        outputs = at_least_float32(outputs).movedim(2, 0)  # (C, K, N, ...)
        log_probs = F.log_softmax(outputs.contiguous() if len(outputs) <= FEW_CLASSES else outputs, dim=0)
        mean, *uncertainty = information(log_probs)
        return ClassPrediction(mean.movedim(0, 1).contiguous(), *uncertainty)

    def point(self, output: Tensor) -> Tensor:
        """The class probabilities (N, C, ...) of logits."""
        return at_least_float32(output).softmax(1)

    def sampled_score(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """softmax(output) - e_y for labels y drawn from it; class weights and smoothing do not count."""
        p = at_least_float32(output).softmax(1)
        rows = p.movedim(1, -1).reshape(-1, p.shape[1])
        device = rows.device if generator is None else generator.device
        y = torch.multinomial(rows.to(device), 1, generator=generator).to(rows.device)[:, 0]
        picked = F.one_hot(y, p.shape[1]).to(p).reshape(p.shape[0], *p.shape[2:], p.shape[1])
        return p - picked.movedim(-1, 1)

    def scores(self, output: Tensor, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        """sqrt(p_c) (p - e_c) for every class c: sum_c p_c (p - e_c) (p - e_c)^T = diag(p) - p p^T."""
        p = at_least_float32(output).softmax(1)
        classes = torch.eye(p.shape[1], dtype=p.dtype, device=p.device).reshape(p.shape[1], -1, *[1] * (p.ndim - 2))
        signs = random_signs(p, generator)
        return (signs * p[:, c : c + 1].sqrt() * (p - label) for c, label in enumerate(classes))

    def divergence(
        self, teachers: Tensor, output: Tensor, temperature: float = 1.0, likelihood: Likelihood | None = None
    ) -> Tensor:
        """T^2 KL[mean of softmax(teachers / T) || softmax(output / T)] (N,), positions summed.

        All positions count, also those that `ignore_index` leaves out of the targets; class weights and smoothing do
        not count.
        """
        check_taught(teachers[0], output)
        self._check_classes(output)
        p = (at_least_float32(teachers) / temperature).softmax(2).mean(0)
        log_q = F.log_softmax(at_least_float32(output) / temperature, dim=1)
        return temperature**2 * per_datum(F.kl_div(log_q, p.to(log_q), reduction="none"))

    def gaps(self, outputs: Tensor, target: Tensor) -> Tensor:
        """f_c - f_y for logits (K, N, C, ...) and class indices (N, ...): (K, M, C) for the M targets not ignored."""
        self(outputs[0], target)  # whatever is wrong with them, it says
        if target.is_floating_point():
            raise ValueError("a temperature is fitted to class indices; these targets are probabilities: y.argmax(1)?")
        flat = at_least_float32(outputs).movedim(2, -1).flatten(1, -2)  # (K, N * positions, C)
        y = target.reshape(-1).long()
        counted = y != self.ignore_index
        y, flat = y[counted], flat[:, counted]
        return flat - flat.gather(-1, y[None, :, None].expand(len(flat), -1, 1))

    def with_class_weights(self, weights: Sequence[float]) -> Categorical:
        return Categorical(weights, self.ignore_index, self.label_smoothing)

    def apart(self, target: Tensor) -> tuple[Likelihood, Tensor | None]:
        """Without class weights, and those of class indices (N,); of positions or probabilities they stay inside."""
        if self.class_weights is None or target.ndim != 1 or target.is_floating_point():
            return self, None
        weights = self.class_weights.to(target.device)[target.long().clamp(0, len(self.class_weights) - 1)]
        return Categorical(None, self.ignore_index, self.label_smoothing), weights

    def options(self) -> dict[str, Any]:
        weights = None if self.class_weights is None else self.class_weights.tolist()
        return {
            "class_weights": weights,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
        }


def _probabilities(output: Tensor, target: Tensor) -> Tensor:
    """Targets that are class probabilities, checked."""
    if target.shape == output.shape:
        return target.to(output.dtype)
    if target.shape == _index_shape(output):
        raise TypeError(f"class indices must be of an integer type, got {target.dtype}: use target.long()")
    raise ValueError(
        f"target has shape {tuple(target.shape)}; class probabilities must have the shape of the output, "
        f"{tuple(output.shape)}, and class indices {tuple(_index_shape(output))} and an integer type"
    )


def _indices(output: Tensor, target: Tensor) -> Tensor:
    """Targets that are class indices, checked for type and shape, as int64."""
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"class indices must be of an integer type, got {target.dtype}")
    expected = _index_shape(output)
    if target.shape == expected:
        return target.long()
    hint = ""
    if target.shape == output.shape:
        hint = "; for class probabilities use target.float()"
    elif target.shape == output.shape[:-1]:
        hint = "; classes go along dimension 1 of the output: use output.movedim(-1, 1)"
    elif target.numel() == expected.numel():
        hint = f"; use target.reshape({tuple(expected)})"
    raise ValueError(
        f"target has shape {tuple(target.shape)}, expected {tuple(expected)} for logits {tuple(output.shape)}{hint}"
    )


def _index_shape(output: Tensor) -> torch.Size:
    return torch.Size([output.shape[0], *output.shape[2:]])
