"""Where a run runs: Lightning Fabric set up for our objective, with checkpoints that are no pickles; and signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.extras import need
from bnn.train.checkpoint import read_checkpoint, write_checkpoint


def fabric_of(network: nn.Module, devices: Any, accelerator: str | None, precision: Any) -> Any:
    """A Fabric for this network, launched: on the device the network is on unless `accelerator` says otherwise.

    Under `torchrun` the number of devices is that of its processes. Several processes average their gradients
    (DistributedDataParallel); parameters that the warm-up leaves out of the loss do not matter.
    """
    fabric_package = need("lightning.fabric", "train")
    strategies = need("lightning.fabric.strategies", "train")
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    local, world = (int(os.environ.get(name, 0)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    external = "TORCHELASTIC_RUN_ID" in os.environ and local > 0
    devices = local if external and devices == 1 else devices
    if accelerator is None and devices == 1 and device.type == "cuda" and device.index is not None:
        devices = [device.index]
    several = (isinstance(devices, int) and devices > 1) or (isinstance(devices, list | tuple) and len(devices) > 1)
    fabric = fabric_package.Fabric(
        accelerator=accelerator or device.type,
        devices=devices,
        num_nodes=world // local if external else 1,
        precision=precision,
        strategy=strategies.DDPStrategy(find_unused_parameters=True) if several or external else "auto",
    )
    fabric.launch()
    return fabric


@contextmanager
def our_checkpoints(fabric: Any) -> Iterator[None]:
    """Inside the block `fabric`, also one of the user's own, writes and reads our checkpoints: no pickles."""
    before, fabric.strategy.checkpoint_io = fabric.strategy.checkpoint_io, checkpoint_io()
    try:
        yield
    finally:
        fabric.strategy.checkpoint_io = before


def checkpoint_io() -> Any:
    """Fabric's plugin for checkpoints, writing and reading ours."""
    base = need("lightning.fabric.plugins.io", "train").CheckpointIO

    class SafetensorsIO(base):  # type: ignore[misc, valid-type]
        """Checkpoints as safetensors with a JSON record."""

        def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
            write_checkpoint(checkpoint, os.fspath(path))

        def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
            return read_checkpoint(os.fspath(path))

        def remove_checkpoint(self, path: Any) -> None:
            os.remove(path)

    return SafetensorsIO()


def agreed(fabric: Any, *flags: bool) -> list[bool]:
    """Flags that hold in any process, known to all of them."""
    if fabric.world_size == 1:
        return list(flags)
    counts = fabric.all_reduce(torch.tensor([float(flag) for flag in flags], device=fabric.device), reduce_op="sum")
    return [bool(count > 0) for count in counts]


def summed(fabric: Any, values: Tensor) -> Tensor:
    """The sum over processes."""
    return values if fabric.world_size == 1 else fabric.all_reduce(values.clone(), reduce_op="sum")


def same_everywhere_(fabric: Any, tensors: list[Tensor]) -> None:
    """Gives every process the first one's values, in place."""
    if fabric.world_size > 1:
        for tensor in tensors:
            received = tensor.detach().clone()
            torch.distributed.broadcast(received, 0)
            with torch.no_grad():
                tensor.copy_(received)  # unlike the broadcast itself, caches take note of this


class Interrupts:
    """Ctrl-C and SIGTERM, noted so that a run stops after the step rather than in the middle of it.

    Inside the block the first signal is only noted in `caught`; a second one interrupts at once.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # others cannot handle signals
            for number in self.SIGNALS:
                handler = signal.getsignal(number)
                if handler not in (signal.SIG_IGN, None):  # nohup stays nohup; None: not Python's to give back
                    self._before[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt
        self.caught = number

    def stop(self, message: str) -> None:
        """Ends the program as the signal would have, with a message."""
        if self.caught == signal.SIGTERM:
            print(message, file=sys.stderr)
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt(message)
