"""Which input is seen when, by which process, and how much it counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bnn.data.batches import FromDataset, FromLoader, InMemory, Place, step_count, training_batches
from bnn.data.dataset import Data, Part

SIZES = {"n": st.integers(1, 300), "size": st.integers(1, 60), "world": st.integers(1, 5), "least": st.integers(2, 7)}


def blobs(n: int = 30) -> tuple[Tensor, Tensor]:
    """Three classes."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)


def places(seed: int, epoch: int, world: int) -> list[Place]:
    return [Place(seed, epoch, rank, world) for rank in range(world)]


@settings(max_examples=150, deadline=None)
@given(**SIZES, seed=st.integers(0, 2**62), epoch=st.integers(0, 500))
def test_all_processes_together_see_every_input_once(
    n: int, size: int, world: int, least: int, seed: int, epoch: int
) -> None:
    if n < world:
        return
    parts = [place.parts(n, size, least) for place in places(seed, epoch, world)]
    assert sorted(i for part in parts for indices, _ in part for i in indices) == list(range(n))
    assert {len(part) for part in parts} == {step_count(n, size, world, least)}


@settings(max_examples=150, deadline=None)
@given(**SIZES)
def test_weighted_means_of_the_processes_are_the_mean_of_the_whole_batch(
    n: int, size: int, world: int, least: int
) -> None:
    if n < world:
        return
    value = torch.arange(n, dtype=torch.double).square()
    parts = [place.parts(n, size, least) for place in places(3, 1, world)]
    for step in zip(*parts, strict=True):
        whole = [i for indices, _ in step for i in indices]
        weighted = [share * value[indices].mean() for indices, share in step]
        assert torch.stack(weighted).mean().item() == pytest.approx(value[whole].mean().item(), rel=1e-12)
        assert sum(share for _, share in step) / world == pytest.approx(1, abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(**SIZES)
def test_every_process_gets_enough_inputs_where_there_are_enough(n: int, size: int, world: int, least: int) -> None:
    if n < least * world:
        return
    lengths = [[len(indices) for indices, _ in place.parts(n, size, least)] for place in places(0, 0, world)]
    assert min(min(own) for own in lengths) >= least
    steps = [sum(step) for step in zip(*lengths, strict=True)]
    assert set(steps[:-1]) <= {max(size, least * world)}
    assert steps[-1] < max(size, least * world) + least * world


def test_fewer_inputs_than_processes_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 training inputs are too few for 3 processes"):
        Place(0, 0, 0, 3).parts(2, 10)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    torch.manual_seed(5)
    order = Place(1, 2).order(50)
    torch.manual_seed(6)
    assert torch.equal(order, Place(1, 2, rank=1, world=2).order(50))
    assert not torch.equal(order, Place(1, 3).order(50))
    assert not torch.equal(order, Place(2, 2).order(50))
    assert order.sort().values.tolist() == list(range(50))


def test_augmentation_differs_by_epoch_and_process_but_not_by_where_a_run_starts() -> None:
    def jitter(x: Tensor, generator: torch.Generator) -> Tensor:
        return x + torch.randn(x.shape, generator=generator)

    x, y = blobs(23)
    source = InMemory(Part(torch.zeros_like(x), y, lambda x: 2 * x), jitter, 5)
    whole = list(source.epoch(Place(1, 0)))
    late = list(source.epoch(Place(1, 0), start=3))
    assert [batch.x.tolist() for batch in whole[3:]] == [batch.x.tolist() for batch in late]
    assert not torch.equal(whole[0].x, next(source.epoch(Place(1, 1))).x)
    other = next(source.epoch(Place(1, 0, 1, 2)))
    assert not torch.equal(whole[0].x[: len(other.x)], other.x)


class Noisy(Dataset[Any]):
    """Items with noise of the global generator, as transforms have it."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, i: int) -> Any:
        return torch.full((2,), float(i)), torch.rand(()), i


@pytest.mark.parametrize("kind", ["dataset", "loader", "loader with a generator"])
def test_a_run_that_starts_within_an_epoch_sees_what_it_would_have_seen(kind: str) -> None:
    def source() -> Any:
        if kind == "dataset":
            return training_batches(Noisy(), 5)
        generator = torch.Generator() if "generator" in kind else None
        return training_batches(DataLoader(Noisy(), batch_size=5, shuffle=True, generator=generator), 5)

    def shown(batches: Any) -> list[Any]:
        return [[batch.x[0].tolist(), batch.x[1].tolist(), batch.y.tolist()] for batch in batches]

    one, other = source(), source()
    first, second = (shown(one.epoch(Place(4, epoch))) for epoch in range(2))
    assert first != second
    assert sorted(i for _, _, y in first for i in y) == list(range(23))
    torch.rand(9)
    assert shown(other.epoch(Place(4, 1), start=2)) == second[2:]


@pytest.mark.slow
def test_workers_repeat_their_noise_too() -> None:
    source = training_batches(Noisy(), 5, workers=2)
    whole = [batch.x[1].tolist() for batch in source.epoch(Place(4, 1))]
    assert [batch.x[1].tolist() for batch in source.epoch(Place(4, 1), start=3)] == whole[3:]
    assert len({noise for batch in whole for noise in batch}) == 23


def test_shares_of_a_data_set_follow_the_size_of_the_parts() -> None:
    sources = [list(training_batches(Noisy(), 7).epoch(Place(0, 0, rank, 2))) for rank in range(2)]
    assert [(len(a.y), len(b.y)) for a, b in zip(*sources, strict=True)] == [(4, 3), (4, 3), (5, 4)]
    assert [a.share + b.share for a, b in zip(*sources, strict=True)] == pytest.approx([2, 2, 2])
    assert sources[0][0].share == pytest.approx(8 / 7)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from ((torch.zeros(4), 0) for _ in range(6))


def test_what_data_may_be() -> None:
    x, y = blobs(12)
    part = Part(x, y)
    data = Data("toy", "classification", part, classes=("a", "b", "c"))
    for given_data in (data, part, (x, y), [x, y], (x.numpy(), y.numpy()), (x.tolist(), y.tolist())):
        source = training_batches(given_data, 5)
        assert isinstance(source, InMemory)
        assert (source.num_data, source.steps(), source.part.x.dtype) == (12, 3, torch.float)
    assert isinstance(training_batches(TensorDataset(x, y), 5), FromDataset)
    loader = training_batches(DataLoader(Stream(), batch_size=2), 5, num_data=6)
    assert isinstance(loader, FromLoader)
    assert (loader.num_data, loader.steps()) == (6, 0)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (Stream(), TypeError, "a torch Dataset with a length"),
        (DataLoader(Stream()), ValueError, "pass num_data="),
        (torch.zeros(3, 2), TypeError, "got Tensor"),
        ({"x": 1}, TypeError, "got dict"),
        ((torch.zeros(3, 2), torch.zeros(4)), ValueError, "one target per input, 3"),
        ((torch.zeros(0, 2), torch.zeros(0)), ValueError, "empty"),
        (Part(torch.zeros(3, 2)), ValueError, "no targets"),
        (([["a"], ["b"]], [0, 1]), TypeError, "x must hold numbers"),
        ((torch.zeros(2, 2), ["a", "b"]), TypeError, "y must hold numbers"),
        ((torch.zeros(2, 2), 3), TypeError, "y must be a tensor or an array, got int"),
    ],
)
def test_data_of_another_kind_are_an_error(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        training_batches(data, 5)


def test_num_data_where_inputs_are_counted_is_an_error() -> None:
    with pytest.raises(ValueError, match="leave it out"):
        training_batches(blobs(), 5, num_data=1000)


@pytest.mark.parametrize("item", [torch.zeros(2), {"x": torch.zeros(2)}, (torch.zeros(2),)])
def test_batches_that_are_no_pairs_are_an_error(item: Any) -> None:
    source = training_batches(DataLoader([item, item, item], batch_size=2), 2, num_data=3)
    with pytest.raises(TypeError, match="a batch must be a pair"):
        next(source.epoch(Place(0, 0)))


def test_a_loader_that_would_show_everything_to_every_process_is_an_error() -> None:
    source = training_batches(DataLoader(TensorDataset(*blobs()), batch_size=5), 5)
    with pytest.raises(ValueError, match="DistributedSampler"):
        next(source.epoch(Place(0, 0, 0, 2)))


def test_fingerprints_tell_data_apart() -> None:
    x, y = blobs(200)
    prints = [
        training_batches(data, 5).fingerprint() for data in [(x, y), (x + 1, y), (x, y.roll(1)), (x[:99], y[:99])]
    ]
    assert all(prints.count(one) == 1 for one in prints)
    assert training_batches((x.clone(), y.clone()), 9).fingerprint() == prints[0]
    assert training_batches((x.bfloat16(), y), 5).fingerprint()["inputs"] == 200
