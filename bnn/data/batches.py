"""Where training batches come from: arrays in memory, a torch data set, or a loader of the user's own.

The order of every epoch is a function of (seed, epoch), so that a run that resumes in the middle of an epoch sees the
batches it would have seen.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bnn._common.seeds import derived, seed_everything
from bnn.data.dataset import Data, Part, tensors_in
from bnn.data.forms import FORMS, inputs_and_targets, is_pair, not_empty, taken, with_targets

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
        for step, (indices, share) in enumerate(place.parts(len(self.part), self.batch_size, self.least)):
            if step < start:
                continue
            index = torch.tensor(indices, device="cpu")  # also where the default device is another
            chosen = self.part.subset(index)
            if self.augment is not None:
                generator = torch.Generator().manual_seed(place.fetch_seed(step))
                chosen = replace(chosen, x=self.augment(chosen.x, generator))
            yield Batch(chosen.inputs(), chosen.y, share)

    def fingerprint(self) -> dict[str, Any]:
        """Tells another data set apart: sizes, and a checksum of the targets and of some inputs."""
        some = tensors_in(self.part.subset(slice(None, None, max(1, len(self.part) // 64))).x)
        sums = [
            zlib.crc32(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            for part in (self.part.y, *some)
            if part is not None
        ]
        shapes = [list(one.shape[1:]) for one in some]
        return {"inputs": len(self.part), "shape": shapes[0] if len(shapes) == 1 else shapes, "checksums": sums}


@dataclass(frozen=True)
class FromDataset:
    """Batches of a map-style torch data set of (input, target) pairs."""

    dataset: Any
    batch_size: int = 100
    workers: int = 0
    least: int = 2
    targets: bool = True  # False: items may be inputs alone

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
                yield Batch(*inputs_and_targets(pair, self.targets), parts[step][1])

    def fingerprint(self) -> dict[str, Any]:
        """Tells another data set apart, by its size."""
        return {"inputs": len(self.dataset)}


@dataclass(frozen=True)
class FromLoader:
    """Batches of a loader of the user's own, as it gives them."""

    loader: Any
    num_data: int
    length: int = field(default=0)
    targets: bool = True  # False: batches may be inputs alone

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
                yield Batch(*inputs_and_targets(pair, self.targets), 1.0)

    def fingerprint(self) -> dict[str, Any]:
        """Tells another data set apart, by its size."""
        return {"inputs": self.num_data, "batches": self.length}


Batches = InMemory | FromDataset | FromLoader


def training_batches(
    data: Any,
    batch_size: int,
    num_data: int | None = None,
    workers: int = 0,
    least: int = 2,
    targets: bool = True,
) -> Batches:
    """The batches of whatever `bnn.fit` was given; of a `Data`, those of its training part, augmented.

    Args:
        data: in any form that `taken` knows, or a `Data`.
        num_data: the number of training inputs, where a loader cannot say.
        least: inputs of a process in a step; a smaller last batch joins the one before.
        targets: whether there must be targets; without, those of a batch are None.
    """
    found = taken(data.train if isinstance(data, Data) else data)
    if isinstance(found, DataLoader):
        return FromLoader(found, _count(found, num_data), _length(found), targets)
    if num_data is not None:
        raise ValueError("num_data is for a DataLoader that cannot count its inputs; these are counted: leave it out")
    if isinstance(found, Part):
        part = with_targets(found) if targets else not_empty(found)
        return InMemory(part, data.augment if isinstance(data, Data) else None, batch_size, least)
    return FromDataset(found, batch_size, workers, least, targets)


def training_inputs(data: Any, batch_size: int = 100) -> Iterator[Any]:
    """The inputs of training batches, without targets: what statistics and activations are computed from.

    Args:
        data: as `bnn.fit` takes them (a pair is a tuple: a list holds batches), of a `Data` the training part,
            augmented; a `Part` without targets; or any iterable of batches, inputs or (inputs, targets).
        batch_size: where it is not a loader's.
    """
    pair = isinstance(data, tuple) and is_pair(data)
    data_set = isinstance(data, Dataset) and not isinstance(data, Iterable)
    if isinstance(data, Part) and data.y is None:
        data = replace(data, y=torch.zeros(len(data)))
    if isinstance(data, Data | Part) or pair or data_set:
        for batch in training_batches(data, batch_size).epoch(Place(0, 0)):
            yield batch.x
        return
    if isinstance(data, Tensor) or not isinstance(data, Iterable):
        raise TypeError(
            f"expected {FORMS}, or any iterable that gives batches, as a list of tensors; got {type(data).__name__}"
        )
    for batch in data:
        several = isinstance(batch, tuple | list) and len(batch) > 1
        yield inputs_and_targets(batch)[0] if several else batch


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
