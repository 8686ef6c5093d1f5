"""What a training run leaves behind: its epochs in numbers, in memory and as JSON lines."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from bnn._common.atomic import write_atomically


@dataclass
class History:
    """The course of a training run.

    Args:
        epochs: one dict per epoch: epoch, step, lr, kl_scale, seconds, data, kl_u, kl_lamda, accuracy and ece (or rmse)
            of the training steps, and the same of the validation data as `validation_nll`, ....
        likelihood: the likelihood as trained, with its noise; `bnn.predict` takes it.
        best: the epoch whose parameters were kept, where validation data chose; None: the last one.
        stopped: why training ended: "finished" or "patience".
        out: the run's folder, or None.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    likelihood: Any = None
    best: int | None = None
    stopped: str = "finished"
    out: str | None = None

    @property
    def last(self) -> dict[str, Any]:
        """The numbers of the last epoch."""
        return self.epochs[-1]

    def column(self, name: str) -> list[Any]:
        """One number over the epochs; None where an epoch has none."""
        return [epoch.get(name) for epoch in self.epochs]


class Log:
    """Writes the epochs of a run to `metrics.jsonl`, and to TensorBoard where asked for."""

    def __init__(self, folder: str | None, known: list[dict[str, Any]], tensorboard: bool | None) -> None:
        self._path = None if folder is None else os.path.join(folder, "metrics.jsonl")
        self._board = None if folder is None else _board(os.path.join(folder, "tensorboard"), tensorboard, len(known))
        if self._path is not None:  # lines of epochs that will run again, and half a line, go away
            text = "".join(json.dumps(epoch) + "\n" for epoch in known)
            write_atomically(text.encode(), self._path)

    def add(self, epoch: dict[str, Any]) -> None:
        """Adds an epoch."""
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(epoch) + "\n")
        if self._board is not None:
            for name, value in epoch.items():
                if isinstance(value, int | float) and name not in ("epoch", "step"):
                    self._board.add_scalar(name, value, epoch["epoch"])
            self._board.flush()

    def close(self) -> None:
        """Closes what is open."""
        if self._board is not None:
            self._board.close()


def _board(folder: str, wanted: bool | None, epochs: int) -> Any:
    """A TensorBoard writer; None if it is not wanted, or (wanted is None) not installed."""
    if wanted is False:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        if wanted:
            raise ImportError('tensorboard=True needs tensorboard: pip install "bayesianize[tensorboard]"') from None
        return None
    return SummaryWriter(folder, purge_step=epochs)
