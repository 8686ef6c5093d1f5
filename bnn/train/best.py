"""Early stopping: the best validation NLL so far, and the parameters that had it."""

from __future__ import annotations

import math
import os
from typing import Any

from torch import Tensor, nn

from bnn.files import FileFormatError
from bnn.train.checkpoint import previous
from bnn.train.folder import BEST, OTHER_FOLDER, RunFolder


class Best:
    """The best epoch of a run; without `patience` nothing is kept.

    Args:
        patience: epochs without a better one until training stops.
        folder: where its parameters are kept, for a run that goes on.
    """

    def __init__(self, patience: int | None, folder: RunFolder) -> None:
        self.patience, self.folder = patience, folder
        self.record: dict[str, float] | None = None  # {"epoch": ..., "nll": ...}
        self._state: dict[str, Tensor] | None = None

    def note(self, epoch: int, nll: float, elbo: nn.Module) -> None:
        """Keeps the parameters if this is the best epoch so far."""
        if self.patience is None or not nll < (math.inf if self.record is None else self.record["nll"]):
            return
        self.record = {"epoch": epoch, "nll": nll}
        self._state = {name: tensor.detach().clone() for name, tensor in elbo.state_dict().items()}
        self.folder.save(BEST, {"best": self.record, "elbo": self._state})

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
        """Goes on from what a checkpoint says; ValueError if the parameters are gone."""
        if record is None or self.patience is None:
            return
        path = self.folder.path(BEST)
        for one in (path, previous(path)):  # the first is missing if the run was killed while replacing it
            if not os.path.exists(one):
                continue
            state = self.folder.load(one)
            epoch = state.get("best", {}).get("epoch", -1)
            if epoch >= record["epoch"]:  # a later one the run will come by again
                self._state = state["elbo"]
            if epoch <= record["epoch"]:
                break
        if self._state is None:
            raise FileFormatError(f"{path}, the parameters of epoch {record['epoch']}, is missing; {OTHER_FOLDER}")
        self.record = record
