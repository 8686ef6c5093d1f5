"""Every test starts from the same seed, on one thread: pytest-xdist gives each core its own process.

`BNN_DEVICE=cuda make test` makes tensors and networks on another device than the CPU.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from bnn import bayesianize
from bnn._conversion import budget
from bnn.nn.families.inducing import InducingBase

torch.set_num_threads(1)
if "BNN_DEVICE" in os.environ:
    torch.set_default_device(os.environ["BNN_DEVICE"])


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    torch.manual_seed(0)
    torch.distributions.Distribution.set_default_validate_args(True)  # torch.compile turns it off for good


def square_root(layer: budget.Layer) -> budget.Layer:
    """A layer whose sizes nobody gave, with those of the 2020 code: floor(sqrt(d)), at least 1."""
    options, shape = layer.options, layer.target.arranged(layer.weights, layer.options).shape
    if options.budget is not None or (options.inducing_rows and options.inducing_cols):
        return layer
    rows, cols = (max(1, math.isqrt(d)) for d in shape)
    rows, cols = options.inducing_rows or rows, options.inducing_cols or cols
    return layer._replace(options=replace(options, inducing_rows=rows, inducing_cols=cols))


@pytest.fixture(autouse=True)
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of tests are too small for a budget: sizes that a test leaves open are floor(sqrt(d)).

    `@pytest.mark.own_sizes` leaves them to the library, as for users; so do documentation, doctests and subprocesses.
    """
    if request.node.get_closest_marker("own_sizes") is not None:
        return

    def settle(layers: Sequence[budget.Layer]) -> budget.Sizes:
        return budget.settle([square_root(layer) for layer in layers])

    def settled(cls, options, weights):
        return original.__func__(cls, square_root(budget.Layer("", cls, weights, options)).options, weights)

    original = InducingBase.settled
    monkeypatch.setattr(bayesianize, "settle", settle)
    monkeypatch.setattr(bayesianize, "left_to_budget", lambda target, given: given)
    monkeypatch.setattr(InducingBase, "settled", classmethod(settled))
