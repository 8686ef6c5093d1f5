"""Where training batches come from: arrays in memory, a torch data set, or a loader of the user's own.

The order of every epoch is a function of (seed, epoch), so that a run that goes on in the middle of an epoch sees the
batches it would have seen.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bnn.data.dataset import Data, Part
from bnn.train.seeds import derived, seed_everything

ORDER, FETCH = 0, 1  # what a derived seed is for


class Batch(NamedTuple):
    """What one process sees of one step."""

    x: Any
    y: Any
    share: float  # weight of its mean in the mean over all processes: 1 unless shares are uneven


@dataclass(frozen=True)
class Place:
    """Which epoch, which process of how many."""

    seed: int
    epoch: int
    rank: int = 0
    world: int = 1

    def fetch_seed(self, step: int) -> int:
        """For the noise of fetching batch `step`: augmentation, transforms."""
        return derived(self.seed, FETCH, self.epoch, step, self.rank)

    def order(self, n: int) -> Tensor:
        """The order of n inputs, the same in all processes."""
        generator = torch.Generator().manual_seed(derived(self.seed, ORDER, self.epoch))
        return torch.randperm(n, generator=generator, device="cpu")

    def parts(self, n: int, size: int, least: int = 2) -> list[tuple[list[int], float]]:
        """The indices this process takes in each step, and their share; no input is left out or counted twice.

        A last batch with fewer than `least` inputs for each process (BatchNorm needs 2) joins the one before.
        """
        if n < self.world:
            raise ValueError(f"{n} training inputs are too few for {self.world} processes: start fewer of them")
        whole = list(self.order(n).split(max(size, least * self.world)))
        if len(whole) > 1 and len(whole[-1]) < least * self.world:
            whole[-2:] = [torch.cat(whole[-2:])]
        mine = [indices[self.rank :: self.world].tolist() for indices in whole]
        return [(own, len(own) * self.world / len(indices)) for own, indices in zip(mine, whole, strict=True)]


def step_count(n: int, size: int, world: int = 1, least: int = 2) -> int:
    """How many parts `Place.parts` makes.

    >>> step_count(101, 20), step_count(102, 20), step_count(102, 20, world=2)
    (5, 6, 5)
    """
    size = max(size, least * world)
    full, rest = divmod(n, size)
    return max(1, full + (rest >= least * world))


@dataclass(frozen=True)
class InMemory:
    """Batches of a `Part`, with augmentation."""

    part: Part
    augment: Any = None
    batch_size: int = 100
    least: int = 2  # inputs of a process in a step

    @property
    def num_data(self) -> int:
        return len(self.part)

    def steps(self, world: int = 1) -> int:
        """Steps per epoch."""
        return step_count(len(self.part), self.batch_size, world, self.least)

    def epoch(self, place: Place, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `start` on."""
        assert self.part.y is not None
        for step, (indices, share) in enumerate(place.parts(len(self.part), self.batch_size, self.least)):
            if step < start:
                continue
            index = torch.tensor(indices, device="cpu")  # also where the default device is another
            x = self.part.x[index]
            if self.augment is not None:
                x = self.augment(x, torch.Generator().manual_seed(place.fetch_seed(step)))
            yield Batch(x if self.part.prepare is None else self.part.prepare(x), self.part.y[index], share)

    def fingerprint(self) -> dict[str, Any]:
        """Tells another data set apart: sizes, and a checksum of the targets and of some inputs."""
        some = self.part.x[:: max(1, len(self.part) // 64)]
        sums = [
            zlib.crc32(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            for part in (self.part.y, some)
            if part is not None
        ]
        return {"inputs": len(self.part), "shape": list(self.part.x.shape[1:]), "checksums": sums}


@dataclass(frozen=True)
class FromDataset:
    """Batches of a map-style torch data set of (input, target) pairs."""

    dataset: Any
    batch_size: int = 100
    workers: int = 0
    least: int = 2

    @property
    def num_data(self) -> int:
        return len(self.dataset)

    def steps(self, world: int = 1) -> int:
        """Steps per epoch."""
        return step_count(len(self.dataset), self.batch_size, world, self.least)

    def epoch(self, place: Place, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `start` on; with workers, earlier ones are fetched and passed over."""
        parts = place.parts(len(self.dataset), self.batch_size, self.least)
        first = 0 if self.workers else start
        seed_everything(place.fetch_seed(0))
        indices = [own for own, _ in parts[first:]]
        loader = DataLoader(self.dataset, batch_sampler=indices, num_workers=self.workers)
        for step, pair in _fetched(iter(loader), place, first):
            if step >= start:
                yield Batch(*inputs_and_targets(pair), parts[step][1])

    def fingerprint(self) -> dict[str, Any]:
        """Tells another data set apart, by its size."""
        return {"inputs": len(self.dataset)}


@dataclass(frozen=True)
class FromLoader:
    """Batches of a loader of the user's own, as it gives them."""

    loader: Any
    num_data: int
    length: int = field(default=0)

    def steps(self, world: int = 1) -> int:
        """Steps per epoch; 0: unknown."""
        return self.length

    def epoch(self, place: Place, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch; those before `start` are fetched and passed over."""
        sampler = getattr(self.loader, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(place.epoch)
        elif place.world > 1 and not isinstance(self.loader.dataset, IterableDataset):
            raise ValueError(
                f"every one of {place.world} processes would see all batches of this loader: give it a "
                "torch.utils.data.DistributedSampler, or pass the data set itself"
            )
        seed = derived(place.seed, ORDER, place.epoch)
        for generator in (self.loader.generator, getattr(sampler, "generator", None)):  # of the user's own
            if generator is not None:
                generator.manual_seed(seed)
        seed_everything(seed)
        for step, pair in _fetched(iter(self.loader), place, 0):
            if step >= start:
                yield Batch(*inputs_and_targets(pair), 1.0)

    def fingerprint(self) -> dict[str, Any]:
        """Tells another data set apart, by its size."""
        return {"inputs": self.num_data, "batches": self.length}


Source = InMemory | FromDataset | FromLoader


def source_of(data: Any, batch_size: int, num_data: int | None = None, workers: int = 0, least: int = 2) -> Source:
    """The batches of whatever `bnn.fit` was given.

    Args:
        data: a `Data`, a `Part`, a pair (x, y) of tensors or arrays, a torch `Dataset` or a `DataLoader`.
        num_data: the number of training inputs, where a loader cannot say.
        least: inputs of a process in a step; a smaller last batch joins the one before.
    """
    if isinstance(data, DataLoader):
        return FromLoader(data, _count(data, num_data), _length(data))
    if num_data is not None:
        raise ValueError("num_data is for a DataLoader that cannot count its inputs; these are counted: leave it out")
    if isinstance(data, Data):
        return InMemory(_with_targets(data.train), data.augment, batch_size, least)
    if isinstance(data, Part):
        return InMemory(_with_targets(data), None, batch_size, least)
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], tuple):
        return InMemory(_with_targets(Part(_tensor("x", data[0]), _tensor("y", data[1]))), None, batch_size, least)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset) and hasattr(data, "__len__"):
        return FromDataset(data, batch_size, workers, least)
    raise TypeError(
        "data must be a bnn.data.Data, a pair (x, y) of tensors or arrays, a torch Dataset with a length, or a "
        f"DataLoader; got {type(data).__name__}"
    )


def _with_targets(part: Part) -> Part:
    if part.y is None:
        raise ValueError("these data have no targets: nothing to learn from, or to be scored by")
    if len(part) == 0:
        raise ValueError("these data are empty")
    return part


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray | Sequence):
        raise TypeError(f"{name} must be a tensor or an array, got {type(value).__name__}")
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind in "US":
        raise TypeError(f"{name} must hold numbers, got {array.dtype}; bnn.data.arrays or bnn.data.csv read more kinds")
    tensor = torch.as_tensor(np.ascontiguousarray(array))
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def _count(loader: Any, num_data: int | None) -> int:
    if num_data is not None:
        return num_data
    try:
        return len(loader.dataset)
    except TypeError:
        raise ValueError("this loader does not know how many inputs it has: pass num_data=") from None


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:
        return 0


def _fetched(batches: Iterator[Any], place: Place, step: int) -> Iterator[tuple[int, Any]]:
    """Numbered batches, each fetched from generators seeded for it."""
    while True:
        seed_everything(place.fetch_seed(step))
        try:
            pair = next(batches)
        except StopIteration:
            return
        yield step, pair
        step += 1


def inputs_and_targets(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch: the last element is the target, several before it are several inputs."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        kind = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
        raise TypeError(f"a batch must be a pair (inputs, targets); the loader gave {kind}")
    return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]
