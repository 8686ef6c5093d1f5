"""MC dropout: a layer drops some of its own inputs, in training and at prediction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnn._common.checks import check_bool, check_choice, fraction_of
from bnn._engine.draw import Draw
from bnn.functional.dropout import dropout_mask
from bnn.functional.linalg import at_least_float32
from bnn.nn.base import KL, BayesianLayer, Start, Weights
from bnn.nn.options import Options


@dataclass(frozen=True)
class MCDropoutOptions(Options):
    """Options of `mcdropout`."""

    p: float = 0.1  # of an input to be dropped
    channels: bool = False  # convolutions drop whole channels, as nn.Dropout2d; else single entries, as nn.Dropout
    sampling: str = "auto"  # a mask for every input; "weight": one for the batch, a function; "local" is as "auto"

    def __post_init__(self) -> None:
        if self.p is None:
            raise ValueError("p must be a fraction from 0 up to 1, got None")
        fraction_of(self.p, "p")
        check_bool("channels", self.channels)
        check_choice("sampling", self.sampling, ["auto", "weight", "local"])


class MCDropout(BayesianLayer):
    """y = W (m * x) + b, each entry of m being 0 with probability p and else 1 / (1 - p). No prior, no KL.

    With E[m] = 1 the posterior mean is the plain layer, which `bnn.predict(samples=0)` runs. m has an entry for every
    input of a linear layer, the same at all positions of a sequence; of a convolution for every entry of the image, or
    with `channels=True` for every channel. But for single entries of images that is a draw of weights: W with some of
    its columns set to 0.

    A draw has a mask for every input, or one for the whole batch (`sampling="weight"`, and inside `bnn.frozen_draw`).
    Every single input's output has the same distribution both ways.

    Storage: d_in d_out, as the plain layer. Time: O(N K d_in d_out), K draws of N inputs as one batch of K N. Choose it
    as the baseline that costs no parameter. In small layers p should be small: without one of its few inputs a layer
    sees another input.

    Reference: Gal and Ghahramani, Dropout as a Bayesian Approximation, ICML 2016.
    """

    family = "mcdropout"
    options_type = MCDropoutOptions

    options: MCDropoutOptions
    shared_weight: Tensor
    shared_bias: Tensor

    @classmethod
    def start(cls, weights: Weights, options: MCDropoutOptions) -> Start:
        tensors = {"shared_weight": weights.weight.clone()}
        if weights.bias is not None:
            tensors["shared_bias"] = weights.bias.clone()
        return Start(trained=tensors, fixed={}, objects={})

    def mean_weights(self) -> Weights:
        return Weights(self.shared_weight, self.shared_bias if self.has_bias else None)

    def sample_weights(self, draw: Draw) -> Weights:
        space = len(self.weight_shape) - 2
        if space and not self.options.channels:
            raise ValueError("where single entries of an image are dropped no weights are drawn: use channels=True")
        weight, bias = self.mean_weights()
        mask = self._shared_mask((self.weight_shape[1] * self.groups,), draw)  # (K, c_in)
        mask = mask.unflatten(1, (self.groups, -1)).repeat_interleave(self.d_out // self.groups, 1)  # (K, d_out, c)
        drawn = weight * mask.reshape(*mask.shape, *[1] * space).to(weight.dtype)
        return Weights(drawn, None if bias is None else bias.expand(draw.count, -1))

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        if draw.call.at_mean:
            return self.dense_output(input, draw)
        if input.ndim == len(self.weight_shape):  # an input without a batch
            return self.output(input.unsqueeze(1), draw).squeeze(1)
        positions, space = input.ndim - 1 - len(self.weight_shape), len(self.weight_shape) - 2
        shape = (*[1] * positions, *input.shape[2 + positions :])  # a sequence loses the same features everywhere
        shape = (*shape[: len(shape) - space], *[1] * space) if self.options.channels else shape
        if self._by_input(input, draw):
            draw.call.by_rows.add(id(self))
            noise = draw.normals(self, "masks", input.shape[1], *shape, like=self._like(), by_input=True)
            mask = dropout_mask(noise, self.options.p)
        else:
            mask = self._shared_mask(shape, draw).unsqueeze(1)
        x = input * mask.to(input.dtype)  # (K, N, ...)
        rows = self.fast_layout(x.flatten(0, 1)) if draw.folded else x.flatten(0, 1)
        return self.run(rows, *self.mean_weights()).unflatten(0, x.shape[:2])

    def _by_input(self, input: Tensor, draw: Draw) -> bool:
        """Whether every input has a mask of its own, where `sampling` lets us choose."""
        call = draw.call
        if self.repeats or self.options.sampling == "weight" or draw.frozen(self):
            return False
        if not call.restarts or self.options.sampling == "local":  # the network itself, or an objective
            return True
        return draw.inputs in (None, input.shape[1]) and not call.couples_inputs()

    def _shared_mask(self, shape: tuple[int, ...], draw: Draw) -> Tensor:
        """One mask (K, *shape) for each of the K draws."""
        return draw.once(self, f"mask {shape}", lambda d: self._drawn_mask(shape, d))

    def _drawn_mask(self, shape: tuple[int, ...], draw: Draw) -> Tensor:
        return dropout_mask(draw.normals(self, "mask", *shape, like=self._like()), self.options.p)

    def _like(self) -> Tensor:
        return at_least_float32(self.shared_weight)

    def kl_parts(self) -> KL:
        zero = self.shared_weight.new_zeros((), dtype=self._like().dtype)
        return KL(u=zero, lamda=zero)

    def summary(self) -> str:
        channels = ", channels=True" if self.options.channels else ""
        return f"family=mcdropout, p={self.options.p:g}{channels}"
