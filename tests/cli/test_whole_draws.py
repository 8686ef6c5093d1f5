"""On the command line every draw is one function: an input's answer does not depend on those beside it."""

from __future__ import annotations

import pytest
import torch
from helpers import FAMILIES, Family, ids, set_noise_
from torch import nn

import bnn
from bnn.train.step import Sampling


@pytest.mark.parametrize("family", FAMILIES, ids=ids(FAMILIES))
def test_an_answer_depends_on_no_other_input(family: Family) -> None:
    net, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.randn(6, 4).double()
    bnn.bayesianize_(net, family.inference, **family.options)
    set_noise_(net, 0.3)
    net.double()

    def predicted(inputs: torch.Tensor) -> torch.Tensor:
        with Sampling(net, "weight").in_force():
            return bnn.predict(net, inputs, samples=8, generator=torch.Generator().manual_seed(1)).probs

    whole = predicted(x)
    torch.testing.assert_close(torch.cat([predicted(one[None]) for one in x]), whole)
    torch.testing.assert_close(predicted(x.flip(0)).flip(0), whole)


def test_networks_without_a_choice_are_left_alone() -> None:
    net = nn.Linear(4, 3)
    with Sampling(net, "weight").in_force():
        net(torch.randn(2, 4))
    bnn.bayesianize_(net, "fcg")
    with Sampling(net, "weight").in_force():
        net(torch.randn(2, 4))
