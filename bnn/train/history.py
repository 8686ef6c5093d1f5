"""What training keeps of its epochs: their numbers, in memory and as JSON lines, and the parameters of the best."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from bnn._common.atomic import write_atomically
from bnn.conformal import Guarantee
from bnn.files import FileFormatError
from bnn.laplace import Laplace
from bnn.train.checkpoint import Checkpoints, previous
from bnn.train.runs.folder import ANOTHER_FOLDER, BEST, METRICS, TENSORBOARD, RunFolder


@dataclass
class History:
    """The course of a training run.

    Args:
        epochs: one dict per epoch: epoch, step, lr, kl_scale, seconds, data, kl_u, kl_lamda, accuracy and ece (or rmse)
            of the training steps, and the same of the validation data as `validation_nll`, ...: of real targets with
            the noise settled on these data, as it is in the end, where there are enough of them.
        likelihood: the likelihood as trained, with its noise; `bnn.predict` takes it.
        best: the epoch whose parameters were kept, where validation data chose; None: the last one.
        stopped: why training ended: "finished" or "patience".
        out: the run's folder, or None.
        laplace: what `bnn.laplace_` found in the end, where it was asked for.
        noise: of real targets, what was settled in the end: {"sd": [...]} (of a noise that depends on the input
            {"factor": [...]}), `before` it, and the `nll` of so many `inputs` of `data`: "validation", "training",
            or "folds" where a recipe, or an estimator, has few inputs (`bnn.train.cross_fit`).
        guarantee: of the trained network, where rows were set aside for it; it takes what
            `bnn.predict(..., generator=torch.Generator().manual_seed(0))` gives.
        tuned: the course of training after pruning, where a recipe asked for it.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    likelihood: Any = None
    best: int | None = None
    stopped: str = "finished"
    out: str | None = None
    laplace: Laplace | None = None
    tuned: History | None = None
    noise: dict[str, Any] | None = None
    guarantee: Guarantee | None = None

    @property
    def last(self) -> dict[str, Any]:
        """The numbers of the last epoch."""
        return self.epochs[-1]

    def column(self, name: str) -> list[Any]:
        """One number over the epochs; None where an epoch has none."""
        return [epoch.get(name) for epoch in self.epochs]


class Log:
    """Writes the epochs of a run to `metrics.jsonl`, and to TensorBoard where asked for."""

    def __init__(self, folder: RunFolder | None, known: list[dict[str, Any]], tensorboard: bool | None) -> None:
        self._path = None if folder is None else folder.file(METRICS)
        self._board = None if folder is None else _board(folder.file(TENSORBOARD), tensorboard, len(known))
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


class Best:
    """Early stopping: the best validation NLL so far, and its parameters; without `patience` nothing is kept.

    Args:
        patience: epochs without a better one until training stops.
        checkpoints: where its parameters are kept, for a run that resumes.
    """

    def __init__(self, patience: int | None, checkpoints: Checkpoints) -> None:
        self.patience, self.checkpoints = patience, checkpoints
        self.record: dict[str, float] | None = None  # {"epoch": ..., "nll": ...}
        self._state: dict[str, Tensor] | None = None

    def note(self, epoch: int, nll: float, elbo: nn.Module) -> None:
        """Keeps the parameters if this is the best epoch so far."""
        if self.patience is None or not nll < (math.inf if self.record is None else self.record["nll"]):
            return
        self.record = {"epoch": epoch, "nll": nll}
        self._state = {name: tensor.detach().clone() for name, tensor in elbo.state_dict().items()}
        self.checkpoints.save(BEST, {"best": self.record, "elbo": self._state})

    def out_of_patience(self, epochs: int) -> bool:
        """Whether, after so many epochs, the last `patience` of them brought nothing."""
        return self.patience is not None and self.record is not None and self._since(epochs) >= self.patience

    def _since(self, epochs: int) -> float:
        assert self.record is not None
        return epochs - 1 - self.record["epoch"]

    def keep_(self, elbo: nn.Module) -> int | None:
        """Puts the best parameters back, in place; returns their epoch, or None if nothing was kept."""
        if self.record is None or self._state is None:
            return None
        elbo.load_state_dict(self._state)
        return int(self.record["epoch"])

    def restore(self, record: dict[str, Any] | None) -> None:
        """Resumes from what a checkpoint says; ValueError if the parameters are gone."""
        if record is None or self.patience is None:
            return
        path = self.checkpoints.path(BEST)
        for one in (path, previous(path)):  # the first is missing if the run was killed while replacing it
            if not os.path.exists(one):
                continue
            state = self.checkpoints.load(one)
            epoch = state.get("best", {}).get("epoch", -1)
            if epoch >= record["epoch"]:  # a later one the run will come by again
                self._state = state["elbo"]
            if epoch <= record["epoch"]:
                break
        if self._state is None:
            raise FileFormatError(f"{path}, the parameters of epoch {record['epoch']}, is missing; {ANOTHER_FOLDER}")
        self.record = record
