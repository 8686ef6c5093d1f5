"""Training from data of all kinds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import bayesian_net, blobs, plain_net, run, same
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bnn.data.dataset import Data, Part


@pytest.mark.parametrize("n", [21, 12])  # batches of 10 and 11; of 10 and 2
def test_a_small_last_batch_does_not_trouble_batchnorm(n: int) -> None:
    history = run(plain_net(), blobs(n), batch_size=10)
    assert history.column("step") == [2, 2]


def test_shares_of_a_batch_fit_into_the_last_one() -> None:
    history = run(bayesian_net(q_inducing="ensemble", ensemble_size=5), blobs(33), samples=5, split=True)
    assert history.column("step") == [3, 3]


def test_a_loader_gives_the_batches_it_gives() -> None:
    x, y = blobs(40)
    expected, net = plain_net(), plain_net()
    optimiser = optim.Adam(expected.parameters())
    for _ in range(2):
        for start in range(0, 40, 16):
            optimiser.zero_grad()
            rows = slice(start, start + 16)
            F.cross_entropy(expected(x[rows]), y[rows], reduction="none").mean().backward()
            optimiser.step()
    history = run(net, DataLoader(TensorDataset(x, y), batch_size=16), likelihood="categorical")
    assert same(net, expected)
    assert history.column("step") == [3, 3]


def test_a_data_set_trains_as_its_tensors_do() -> None:
    nets = [plain_net() for _ in range(2)]
    run(nets[0], blobs())
    run(nets[1], TensorDataset(*blobs()), likelihood="categorical")
    assert same(*nets)


@pytest.mark.slow
def test_loading_processes_change_nothing_where_nothing_is_random() -> None:
    nets = [plain_net() for _ in range(2)]
    run(nets[0], blobs())
    run(nets[1], TensorDataset(*blobs()), likelihood="categorical", workers=2)
    assert same(*nets)


class Sum(nn.Module):
    """A network of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = bayesian_net()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.inner(a + b)


class Two(Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = blobs()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i] - 1, torch.ones(4), self.y[i]


@pytest.mark.parametrize("make", [Two, lambda: DataLoader(Two(), batch_size=10)])
def test_several_inputs_per_item(make: Any) -> None:
    net, alone = Sum(), bayesian_net()
    history = run(net, make(), likelihood="categorical", validation=make())
    pairs = (Two().x, Two().y)
    if isinstance(make(), Dataset):
        expected = run(alone, pairs, validation=pairs)
        # the noise, small here, is named by the layer's place in the network, which is another one
        assert history.column("data") == pytest.approx(expected.column("data"), rel=2e-3)
        assert history.column("validation_nll") == pytest.approx(expected.column("validation_nll"), rel=2e-3)
    assert history.last["data"] < history.epochs[0]["data"]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        x, y = blobs(20)
        yield from zip(x, y, strict=True)


def test_a_stream_with_a_number_of_inputs() -> None:
    net, expected = bayesian_net(), bayesian_net()
    loader = DataLoader(Stream(), batch_size=8)
    history = run(net, loader, likelihood="categorical", num_data=20)
    assert history.column("step") == [3, 3]
    run(expected, DataLoader(TensorDataset(*blobs(20)), batch_size=8), likelihood="categorical")
    assert same(net, expected)  # the KL counts the same


class Nothing(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


def test_a_stream_without_any_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match="the data gave no batch"):
        run(plain_net(), DataLoader(Nothing()), likelihood="categorical", num_data=3)


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.int64])
def test_labels_of_any_integer_type(kind: torch.dtype) -> None:
    x, y = blobs()
    nets = [plain_net() for _ in range(2)]
    run(nets[0], (x, y))
    run(nets[1], (x, y.to(kind)))
    assert same(*nets)


def test_augmentation_and_preparation_of_a_data_set_are_used() -> None:
    x, y = blobs()
    shifted = Part((x * 8).round().to(torch.int16), y, lambda raw: raw.float() / 8)

    def jitter(x: Tensor, generator: torch.Generator) -> Tensor:
        return x + torch.randint(-8, 9, x.shape, generator=generator, dtype=x.dtype)

    data = Data("toy", "classification", shifted, validation=shifted, classes=("a", "b", "c"), augment=jitter)
    nets = [plain_net() for _ in range(3)]
    first, again = (run(net, data) for net in nets[:2])
    plain = run(nets[2], (shifted.inputs(), y), validation=(shifted.inputs(), y))
    assert same(nets[0], nets[1])
    assert first.column("validation_nll") == again.column("validation_nll") != plain.column("validation_nll")
