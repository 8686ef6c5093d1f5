"""The default call on networks of others: recurrent, attention, segmentation, named inputs, bfloat16."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnn
from bnn._conversion.energy import EnergyWarning


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.embedding, self.steps = nn.Embedding(20, 16), kind(16, 48, batch_first=True)
        self.hidden, self.head = nn.Linear(48, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.hidden(self.steps(self.embedding(x))[0].mean(1))
        result: Tensor = self.head(F.relu(hidden))
        return result


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.encoder(self.embedding(x)).mean(1))
        return result


def block(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, padding=1), nn.BatchNorm2d(c_out), nn.ReLU())


class Segmentation(nn.Module):
    """Down, across and up again, past a skip that is joined; a class per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.across, self.up = block(1, 16), block(16, 32), nn.ConvTranspose2d(32, 32, 2, stride=2)
        self.joined, self.head = block(48, 16), nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        below = self.across(F.max_pool2d(skip, 2))
        result: Tensor = self.head(self.joined(torch.cat([self.up(below), skip], 1)))
        return result


class OfADict(nn.Module):
    """Its forward takes a dict as its one argument."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.first, self.second, self.head = nn.Linear(24, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        h = torch.cat([self.embedding(batch["tokens"]).mean(1), batch["numbers"]], -1)
        result: Tensor = self.head(F.relu(self.second(F.relu(self.first(h)))))
        return result


class Named(nn.Module):
    """What the error advises for such a network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, **inputs: Tensor) -> Tensor:
        result: Tensor = self.network(inputs)
        return result


def tokens(dtype: torch.dtype) -> Tensor:
    return torch.randint(20, (120, 7))


def named(dtype: torch.dtype) -> dict[str, Tensor]:
    return {"tokens": tokens(dtype), "numbers": torch.randn(120, 8).to(dtype)}


class Foreign(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: Callable[[torch.dtype], Any]
    left: tuple[str, ...] = ()  # what stays deterministic


FOREIGN = {
    "lstm": Foreign(Recurrent, tokens, ("embedding", "steps (LSTM)")),
    "gru": Foreign(lambda: Recurrent(nn.GRU), tokens, ("embedding", "steps (GRU)")),
    "attention": Foreign(Attention, tokens, ("embedding", "encoder.layers.0.self_attn (MultiheadAttention)")),
    "segmentation": Foreign(Segmentation, lambda dtype: torch.randn(40, 1, 8, 8).to(dtype), ("up (ConvTranspose2d)",)),
    "dict": Foreign(lambda: Named(OfADict()), named, ("network.embedding",)),
}


@torch.no_grad()
def trained(net: nn.Module, decay: float) -> nn.Module:
    """`net` with weights whose singular values fall like exp(-decay i): as flat as at random at 0, of low rank at 1."""
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            U, S, Vh = torch.linalg.svd(module.weight.flatten(1), full_matrices=False)
            values = 3 * S[0] * torch.exp(-decay * torch.arange(len(S)))
            module.weight.copy_((U * values @ Vh).view_as(module.weight))
    return net.eval()


def converted(net: nn.Module, **options: Any) -> tuple[list[str], list[str]]:
    """Converts, in place, and returns what was said: of energies last."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bnn.bayesianize_(net, "inducing", **options)
    said: tuple[list[str], list[str]] = [], []
    for one in caught:
        said[one.category is EnergyWarning].append(str(one.message))
    return said


@torch.no_grad()
def output(net: nn.Module, x: Any) -> Tensor:
    """At the posterior mean, in float32."""
    result: Tensor = bnn.draws(net, x, samples=0)[0]
    return result.float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FOREIGN)
def test_the_default_call_neither_grows_nor_loses_in_silence(name: str, dtype: torch.dtype) -> None:
    case = FOREIGN[name]
    x = case.inputs(dtype)
    for decay in (0.0, 1.0):
        plain = trained(case.make(), decay).to(dtype)
        want, count = output(plain, x), bnn.parameter_count(plain)
        for more in ({}, {"activations": x}):
            net = copy.deepcopy(plain)
            others, energies = converted(net, **more)
            assert all(part in " ".join(others) for part in case.left)
            assert bnn.parameter_count(net) < count
            assert {p.dtype for p in net.parameters()} == {dtype}
            lost = float((output(net, x) - want).square().mean() / want.var())
            assert energies or lost < 0.05, (decay, list(more))
            if decay == 1.0:
                assert not energies
            elif not more:
                assert energies
            assert bnn.predict(net, x, samples=2).probs.isfinite().all()


def test_a_dict_for_a_forward_of_one_argument_is_an_error_that_says_what_to_do() -> None:
    net, x, y = OfADict(), named(torch.float32), torch.randint(4, (120,))
    says = (
        r"unexpected keyword argument 'tokens'; a dict of inputs is passed as keyword arguments, here tokens, numbers\."
    )
    says += r".*`def forward\(self, \*\*inputs\): return self\.network\(inputs\)`"
    with pytest.raises(TypeError, match=says):
        bnn.bayesianize_(net, {"*": "ffg", "second": "inducing", "embedding": None}, activations=x)
    assert type(net.second) is nn.Linear
    bnn.bayesianize_(net, {nn.Linear: "ffg"})
    with pytest.raises(TypeError, match=says):
        bnn.predict(net, x)
    with pytest.raises(TypeError, match=says):
        bnn.ELBO(net, 120, "categorical")(x, y)
    with pytest.raises(ValueError, match=says) as caught:
        bnn.fit(net, (x, y), epochs=1, progress=False)
    assert "use x.to(" not in str(caught.value)  # no dtype is wrong here
    with pytest.raises(TypeError, match=says):
        bnn.predict(bnn.Ensemble([net, copy.deepcopy(net)]), x)


def test_other_mistakes_in_a_forward_keep_their_message() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(x, scale=2)
            return result

    net = Wrong()
    bnn.bayesianize_(net, "ffg")
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'scale'$"):
        bnn.predict(net, {"x": torch.randn(4, 3)})


def test_a_small_trained_network_does_not_pass_for_a_random_start() -> None:
    """So few weights could be anything: where they are beyond torch's uniform start, the loss is named."""
    x = torch.randn(400, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    assert converted(copy.deepcopy(net))[1] == []  # nothing to lose
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    assert (net(x).argmax(1) == y).float().mean() > 0.9
    (energy,) = converted(net)[1]
    assert energy.startswith("1 layer keeps less than 80% of the energy of the weights: 0 ")
    assert (bnn.predict(net, x, samples=0).probs.argmax(1) == y).float().mean() < 0.9  # it is as bad as it says
