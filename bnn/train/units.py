"""In which units the numbers of training are shown: those of the target, where training scales it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bnn.data.dataset import TargetScale

NLL, TAUGHT = "NLL", "data term"


@dataclass(frozen=True)
class Units:
    """From numbers of training to those that are shown.

        y = mean + sd z:    RMSE of y = sd RMSE of z,    -log p(y) = -log p(z) + log sd

    On a log scale that is log y. An NLL is made one of y by the mean of log y in the training part, which is exact
    there and nearly so elsewhere; an RMSE stays that of the logarithm, which the note says.

    Args:
        nll: what is added to an NLL per row.
        rmse: what an RMSE is multiplied by; None where it cannot be told (several targets of different sds).
        loss: what the data term is: "NLL", or with a teacher "data term", which is left as it is.
        note: which units an RMSE is in, where these are not the target's own; "" where they are.
    """

    nll: float = 0.0
    rmse: float | None = 1.0
    note: str = ""
    loss: str = NLL

    @classmethod
    def of(cls, target: TargetScale | None, taught: bool = False) -> Units:
        """Those of a target that is scaled like this (None: not at all), in training with a teacher or without."""
        loss = TAUGHT if taught else NLL
        if target is None:
            return cls(loss=loss)
        nll = sum(map(math.log, target.sd)) + (sum(target.mean) if target.log else 0.0)
        if len(set(target.sd)) > 1:
            return cls(nll, None, "scaled", loss)
        return cls(nll, target.sd[0], "of the logarithm" if target.log else "", loss)

    def shown(self, name: str, value: float) -> float:
        """A number of `History.epochs`, as it is shown."""
        if name == "validation_nll" or (name == "data" and self.loss == NLL):
            return value + self.nll
        return value * (self.rmse or 1.0) if name in ("rmse", "validation_rmse") else value


AS_THEY_ARE = Units()
