"""Independent weights, whatever their sds follow from: drawing them, or outputs in their place, and the KL."""

from __future__ import annotations

import torch
from torch import Tensor

from bnn._engine.draw import Draw
from bnn.functional.gaussian import kl_diagonal
from bnn.functional.linalg import at_least_float32, fits, largest, over, safe_sqrt, without_autocast
from bnn.nn.base import KL, Weights
from bnn.nn.families.gaussian_weights import GaussianWeights


class MeanField(GaussianWeights):
    """q(W) = prod N(mean_ij, sd_ij^2), the bias likewise; a family says what the means and sds are."""

    def sds(self) -> Weights:
        """The standard deviations, in the shapes of weight and bias."""
        raise NotImplementedError

    def prior_means(self) -> tuple[float | Tensor, float | Tensor]:
        """The prior means of weight and bias."""
        raise NotImplementedError

    def weight_mask(self) -> Tensor | None:
        """Which weights are left after pruning; None: all of them."""
        return None

    @property
    def weight_sd(self) -> Tensor:
        """The standard deviations of the weight, in its shape."""
        return self.sds().weight

    @property
    def bias_sd(self) -> Tensor | None:
        """The standard deviations of the bias, or None."""
        return self.sds().bias

    def sds_and_cap(self) -> tuple[Tensor, float | None]:
        (weight, bias), mask = self.sds(), self.weight_mask()
        weight = weight.flatten() if mask is None else weight[mask]  # what was pruned has none
        return (weight if bias is None else torch.cat([weight, bias])), self.options.max_sd

    def extra_multiplies(self) -> tuple[int, int]:
        return self.d_in * self.d_out, 0  # the products with the variances

    def sample_weights(self, draw: Draw) -> Weights:
        mean, sds = self._in_fast_layout(draw)
        noise = draw.normals(self, "weight", *self._fast_shape(), like=sds.weight)
        noise = noise.movedim(-1, 2) if noise.ndim > 3 else noise  # noise does not mind in which order it comes
        weight = _plus(mean.weight, sds.weight, noise)
        if mean.bias is None or sds.bias is None:
            return Weights(weight, None)
        return Weights(weight, _plus(mean.bias, sds.bias, draw.normals(self, "bias", *mean.bias.shape, like=sds.bias)))

    def _fast_shape(self) -> tuple[int, ...]:
        """The shape of the weight with the input channels last."""
        c_out, c_in, *kernel = self.weight_shape
        return (c_out, *kernel, c_in)

    def _in_fast_layout(self, draw: Draw) -> tuple[Weights, Weights]:
        """Means and standard deviations, in the memory layout in which the layer runs fastest."""
        return self.shared("means and sds", self._laid_out, draw)

    def _laid_out(self) -> tuple[Weights, Weights]:
        if torch.is_grad_enabled() or len(self.weight_shape) < 4:
            return self.mean_weights(), self.sds()
        layout = torch.channels_last if len(self.weight_shape) == 4 else torch.channels_last_3d
        mean, sds = self.mean_weights(), self.sds()
        weights = (part.weight.contiguous(memory_format=layout) for part in (mean, sds))
        mean_weight, sd_weight = weights
        return Weights(mean_weight, mean.bias), Weights(sd_weight, sds.bias)

    def local_output(self, input: Tensor, draw: Draw) -> Tensor:
        """Outputs (K, N, ...) drawn from their marginals N(x m, x^2 s^2), independently for every row of the input."""
        mean, sds = self._in_fast_layout(draw)
        out = self.run_all(input, mean)
        with without_autocast(input):  # squares of small sds vanish in half precision
            x, squares = at_least_float32(input), self.shared("variances", lambda: _squares(sds), draw)
            variance = self.run_all(x.square(), squares)
            size = None
            if not fits(variance):  # x^2 must not overflow where x does not
                size = over(largest(x), x.ndim)
                scaled = Weights(squares.weight, None)
                variance = self.run_all((x / size).square(), scaled)
                size = over(largest(x), variance.ndim)
                if squares.bias is not None:
                    bias = (
                        squares.bias.reshape(-1, *[1] * (variance.ndim - 3)) if self._channels_first() else squares.bias
                    )
                    variance = variance + bias / size.square()
            sd = safe_sqrt(variance)
            sd = sd if size is None else sd * size
            noise = draw.normals(self, "rows", *out.shape[1:], like=variance, by_input=True)
        if sd.dtype == out.dtype:
            return torch.addcmul(out, sd, noise)
        return out + (sd * noise).to(out.dtype)

    def _channels_first(self) -> bool:
        return len(self.weight_shape) > 2

    def kl_parts(self) -> KL:
        weight_sd, bias_sd = self.prior_sds()
        weight_mean, bias_mean = self.prior_means()
        mean, (_, sds), mask = self.mean_weights(), self.shared("means and sds", self._laid_out), self.weight_mask()
        weight, sd = at_least_float32(mean.weight), sds.weight
        if mask is not None:  # what was pruned is no variable any more: as the prior has it, which adds nothing
            weight, sd = torch.where(mask, weight, weight_mean), torch.where(mask, sd, weight_sd)
        kl = kl_diagonal(weight, sd, weight_mean, weight_sd)
        if mean.bias is not None and sds.bias is not None:
            kl = kl + kl_diagonal(at_least_float32(mean.bias), sds.bias, bias_mean, bias_sd)
        return KL(u=kl, lamda=torch.zeros_like(kl))


def _plus(mean: Tensor, sd: Tensor, noise: Tensor) -> Tensor:
    """mean + sd noise for each of the K draws, in the type of the mean."""
    return torch.addcmul(mean, sd, noise) if mean.dtype == sd.dtype else mean + (sd * noise).to(mean.dtype)


def _squares(sds: Weights) -> Weights:
    return Weights(sds.weight.square(), None if sds.bias is None else sds.bias.square())
