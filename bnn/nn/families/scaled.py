"""What families share whose weights are W * (s r^T): one W for all draws, and factors on its inputs and outputs.

(W * (s r^T)) x = s * (W (r * x)): so no draw needs a matrix of its own. Inputs are scaled by r, K draws of N inputs run
through the plain layer as one batch of K N, and outputs are scaled by s.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bnn._engine.draw import Draw
from bnn.functional.gaussian import standard_normal
from bnn.functional.linalg import at_least_float32
from bnn.nn.base import BayesianLayer, Weights

LEAST = 0.1  # of the mean of s r^T at the start: what is kept is divided by it


class Scales(NamedTuple):
    """Factors on the inputs and the outputs of a layer, for each of K draws, or of C members."""

    r: Tensor  # (K, c_in)
    s: Tensor  # (K, d_out)


class ScaledWeights(BayesianLayer):
    """W' = W * (s r^T), with a shared W and a shared bias; a draw shows one of C members, the same in all layers.

    r has a factor for each of the c_in columns of W; of a convolution for each input channel of its kernel, whatever
    the position, so that its groups share them. The bias is left alone: y = s * (W (r * x)) + b. Layer types must have
    weights (d_out, c_in, *kernel).
    """

    shared_weight: Tensor
    shared_bias: Tensor

    def members(self) -> Scales:
        """E[r] and E[s] of the C members."""
        raise NotImplementedError

    def sample_scales(self, draw: Draw) -> Scales:
        """Samples of r and s, one for each of the K draws."""
        raise NotImplementedError

    def member_count(self) -> int:
        return self.member_number(self.options)

    def mean_weights(self) -> Weights:
        r, s = self.members()
        mean = torch.einsum("ko,kc->oc", at_least_float32(s), at_least_float32(r)) / len(r)
        return Weights(self.shared_weight * self._over_taps(mean).to(self.shared_weight), self._bias())

    def sample_weights(self, draw: Draw) -> Weights:
        r, s = self._drawn(draw)
        weight, bias = self.shared_weight * self._over_taps(s[:, :, None] * r[:, None]), self._bias()
        return Weights(weight, None if bias is None else bias.expand(draw.count, -1))

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        if draw.call.at_mean:
            return self.dense_output(input, draw)
        if input.ndim == len(self.weight_shape):  # an input without a batch
            return self.output(input.unsqueeze(1), draw).squeeze(1)
        r, s = self._drawn(draw)
        x = input * self._over_inputs(r.repeat(1, self.groups), input.ndim)
        rows = self.fast_layout(x.flatten(0, 1)) if draw.folded else x.flatten(0, 1)
        y = self.run(rows, self.shared_weight, None).unflatten(0, x.shape[:2])
        scale, bias = self._over_inputs(s, y.ndim).to(y.dtype), self._bias()
        return y * scale if bias is None else torch.addcmul(self._over_inputs(bias[None], y.ndim).to(y.dtype), y, scale)

    def _drawn(self, draw: Draw) -> Scales:
        return draw.once(self, "scales", self.sample_scales)

    def _bias(self) -> Tensor | None:
        return self.shared_bias if self.has_bias else None

    def _over_taps(self, outer: Tensor) -> Tensor:
        """s r^T (..., d_out, c_in), to be multiplied with weights (d_out, c_in, *kernel)."""
        return outer.reshape(*outer.shape, *[1] * (len(self.weight_shape) - 2))

    def _over_inputs(self, scales: Tensor, ndim: int) -> Tensor:
        """Factors (K, c) of channels, to be multiplied with inputs (K, N, ..., c, *space) of `ndim` dimensions."""
        space = len(self.weight_shape) - 2
        return scales.reshape(len(scales), *[1] * (ndim - 2 - space), scales.shape[1], *[1] * space)


def around_one(members: int, sd: float, weights: Weights) -> Scales:
    """Where the factors of `members` start: 1 + sd noise, with mean 1 over the members."""
    noises = (standard_normal(members, size, like=weights.weight) for size in (weights.weight.shape[1], d_out(weights)))
    return Scales(*(1 + sd * (noise - noise.mean(0)) for noise in noises))


def kept(weights: Weights, scales: Scales) -> dict[str, Tensor]:
    """The shared weights under which the mean over members, W * mean of s r^T, is `weights`."""
    mean = torch.einsum("ko,kc->oc", at_least_float32(scales.s), at_least_float32(scales.r)) / len(scales.r)
    weight = weights.weight
    mean = mean.clamp(min=LEAST).reshape(*mean.shape, *[1] * (weight.ndim - 2))
    shared = {"shared_weight": (weight / mean).to(weight.dtype)}
    return shared if weights.bias is None else shared | {"shared_bias": weights.bias.clone()}


def d_out(weights: Weights) -> int:
    """Outputs of a layer with weights (d_out, c_in, *kernel)."""
    return len(weights.weight)
