"""In which units the numbers of training are shown: those of the target, where training scales it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from bnn.data.dataset import TargetScale

NLL, TAUGHT = "NLL", "data term"


@dataclass(frozen=True)
class Units:
    """From numbers of training to those that are shown.

        y = mean + sd z:    RMSE of y = sd RMSE of z,    -log p(y) = -log p(z) + log sd

    On a log scale that is log y, and an NLL of y has its mean added; an RMSE stays that of the logarithm, which the
    note says. Of several targets those that are missing add nothing.

    Args:
        nll: what is added to an NLL per row of training data.
        validation_nll: of validation data.
        rmse: what an RMSE is multiplied by; None where it cannot be told (several targets of different sds).
        loss: what the data term is: "NLL", or with a teacher "data term", which is left as it is.
        note: which units an RMSE is in, where these are not the target's own; "" where they are.
    """

    nll: float = 0.0
    validation_nll: float = 0.0
    rmse: float | None = 1.0
    note: str = ""
    loss: str = NLL

    @classmethod
    def of(
        cls,
        target: TargetScale | None,
        taught: bool = False,
        training: Tensor | None = None,
        validation: Tensor | None = None,
    ) -> Units:
        """Those of a target that is scaled like this (None: not at all), in training with a teacher or without.

        Args:
            training, validation: scaled targets (N, D) of both parts; None where they are not at hand: as if none were
                missing, with the mean of the training part.
        """
        loss = TAUGHT if taught else NLL
        if target is None:
            return cls(loss=loss)
        nlls = (added_nll(target, training), added_nll(target, validation))
        if len(set(target.sd)) > 1:
            return cls(*nlls, None, "scaled", loss)
        return cls(*nlls, target.sd[0], "of the logarithm" if target.log else "", loss)

    def shown(self, name: str, value: float) -> float:
        """A number of `History.epochs`, as it is shown."""
        if name == "validation_nll":
            return value + self.validation_nll
        if name == "data" and self.loss == NLL:
            return value + self.nll
        return value * (self.rmse or 1.0) if name in ("rmse", "validation_rmse") else value


def added_nll(target: TargetScale, y: Tensor | None = None) -> float:
    """What an NLL per row of scaled targets lacks to be one of targets in their own units.

        mean_n sum_d [log sd_d + log y_nd],    over the d that are known; log y on a log scale alone

    Args:
        y: the scaled targets (N, D), NaN where one is missing; None: as if all were known, with mean 0.

    >>> added_nll(TargetScale((0.0, 0.0), (1.0, math.e)), Tensor([[0.3, math.nan], [0.1, 2.0]]))
    0.5
    """
    if y is None:
        return sum(map(math.log, target.sd)) + (sum(target.mean) if target.log else 0.0)
    y = y.double().reshape(len(y), -1)
    each = y.new_tensor(target.sd).log().expand_as(y)
    each = each + target.linear(y) if target.log else each
    return float(each.where(~y.isnan(), each.new_zeros(())).sum(1).mean())


AS_THEY_ARE = Units()
