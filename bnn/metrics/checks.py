"""What every metric asks of its input: arrays or tensors without NaN, of the right shape, and not empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def to_numpy(values: Any) -> NDArray[Any]:
    """A NumPy array of what may be a tensor, on any device, or anything that `np.asarray` takes."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return np.asarray((values.float() if values.dtype == torch.bfloat16 else values).numpy())
    return np.asarray(values)


def numbers(name: str, values: Any, finite: bool = True) -> Floats:
    """Real numbers of any shape as float64: not empty, no NaN, and no infinity unless `finite` is False."""
    array = to_numpy(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be real numbers; got an array of {array.dtype}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty; got shape {array.shape}")
    array = array.astype(np.float64)
    bad = ~np.isfinite(array) if finite else np.isnan(array)
    if bad.any():
        kind = "finite" if finite else "not NaN"
        raise ValueError(f"{name} must be {kind}; {bad.sum()} of {array.size} are not, the first is {array[bad][0]}")
    return array


def same_shape(**arrays: NDArray[Any]) -> None:
    """Raises unless all arrays have one shape: nothing is broadcast."""
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"shapes must be equal, nothing is broadcast; got {shapes}")


def vector(name: str, values: Any, finite: bool = True) -> Floats:
    """Real numbers (N,) as float64."""
    array = numbers(name, values, finite)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (N,); got {array.shape}")
    return array


def probabilities(probs: Any) -> NDArray[np.floating[Any]]:
    """Class probabilities (N, C) in their own type: in [0, 1], rows sum to 1 within 1e-3 (half precision: 4 eps).

    The type is kept because the edges of calibration bins are rounded to it.
    """
    array = to_numpy(probs)
    if array.ndim != 2:
        hint = "; for the probability p of one event pass np.stack([1 - p, p], axis=1)" if array.ndim == 1 else ""
        raise ValueError(f"probs must have shape (N, C); got {array.shape}{hint}")
    if array.dtype.kind != "f":
        array = numbers("probs", array)
    numbers("probs", array)
    own = torch.finfo(probs.dtype).eps if isinstance(probs, torch.Tensor) and probs.is_floating_point() else 0.0
    eps = max(float(np.finfo(array.dtype).eps), own)
    outside = (array < -8 * eps) | (array > 1 + 8 * eps)  # exp(logsumexp - log K) exceeds 1 by a few eps
    if outside.any():
        first = array[outside][0]
        raise ValueError(f"probs must be in [0, 1]; {outside.sum()} are not, the first is {first}: are they logits?")
    sums = array.sum(axis=1, dtype=np.float64)
    wrong = np.abs(sums - 1) > max(1e-3, 4 * eps)
    if wrong.any():
        raise ValueError(f"rows of probs must sum to 1; {wrong.sum()} do not, the first sums to {sums[wrong][0]:.6g}")
    return np.asarray(np.clip(array, 0, 1))


def class_labels(labels: Any, shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Class indices (N,) that fit scores or probabilities of shape (N, C)."""
    array = to_numpy(labels)
    if array.shape != shape[:1]:
        hint = "; of one-hot rows use labels.argmax(1)" if array.shape == shape else ""
        raise ValueError(f"labels for shape {shape} must have shape {shape[:1]}; got {array.shape}{hint}")
    array = numbers("labels", array)
    wrong = (array != np.floor(array)) | (array < 0) | (array >= shape[1])
    if wrong.any():
        raise ValueError(
            f"labels must be class indices from 0 to {shape[1] - 1}; {wrong.sum()} are not, "
            f"the first is {array[wrong][0]:g}"
        )
    return array.astype(np.intp)
