"""The module that holds global inducing weights: a posterior over V, the stacked inducing matrices of all layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bnn.nn.families.inducing import Inducing, InducingOptions
from bnn.nn.layers.output_first import OutputFirst
from bnn.nn.start import Weights, adopt_

NAME = "_global_inducing_module"  # what the network calls it


class GlobalInducing(Inducing, OutputFirst):
    """The posterior over V (S, m) with cat_dim=0, (m, S) with cat_dim=1; its "weight" is V."""

    cat_dim: int
    runs = False  # on no inputs: it draws V for the layers

    def __init__(self, V: Tensor, cat_dim: int, options: InducingOptions, trains: bool = True) -> None:
        nn.Module.__init__(self)
        self.cat_dim = cat_dim
        self._parameters["weight"] = nn.Parameter(
            V, requires_grad=trains
        )  # replaced by the posterior, as a plain layer's weight is
        adopt_(self, options, self.start(Weights(V, None), options))

    def forward(self, input: Tensor) -> Tensor:
        """Passes its input on: an `nn.Sequential` runs all its children, this one too."""
        return input

    def reset_parameters(self) -> None:
        like = next(self.parameters())
        self.init_from_deterministic_params({"weight": torch.randn_like(like.new_empty(self.weight_shape))})

    def extra_repr(self) -> str:
        return f"V={self.d_out}x{self.d_in}, {self.summary()}"
