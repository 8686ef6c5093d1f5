"""Laplace's approximation at the end of training: found out beforehand whether it can be done, and done on all data."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from bnn._common.seeds import own_randomness, seed_everything
from bnn._conversion.laplace_layers import chosen_layers
from bnn._engine.inputs import device_of, evaluating
from bnn.data.dataset import Data, Part
from bnn.data.forms import batches_in_order, taken, to_device
from bnn.functional.kernels import to_matrix
from bnn.laplace import Laplace, check_known, laplace_, members_of
from bnn.likelihoods.base import about
from bnn.nn.base import plain_weights
from bnn.nn.families.inducing import InducingBase
from bnn.prediction import draws
from bnn.temperature import LEAST
from bnn.train.laplace_options import laplace_options

FEW = 2  # inputs to try the network on


@dataclass(frozen=True)
class LaplaceStage:
    """What `bnn.laplace_` is asked for once training has ended.

    Args:
        asked: layers, or a dict of arguments, as `laplace_options` reads them.
        data: the training data, as `bnn.fit` takes them.
        likelihood: the one that is trained; a noise that was learned is held.
        num_data: how many inputs the posterior is for; None: as many as there are.
        validation: held-out data; None: those of a `Data`.
        calibrated: whether a temperature is fitted afterwards.
    """

    asked: Any
    data: Any
    likelihood: Any
    num_data: int | None = None
    validation: Any = None
    calibrated: bool = False

    def check(self, network: nn.Module) -> None:
        """Raises before training what `run_` would raise after it: on a few inputs, and nothing is changed.

        Raises:
            ValueError: no such layers, or layers that cannot have one: Ensemble-U, global inducing weights, ....
            TypeError: a likelihood that does not know its curvature, or a network with several outputs.
        """
        options, device = self.options(), device_of(network)
        if options["prior_precision"] == "validation" and self._held_out() is None:
            raise ValueError(
                'laplace: prior_precision="validation" needs validation data: give some, or use "marginal"'
            )
        with own_randomness(device), torch.no_grad(), evaluating(network):
            data = self.data.train if isinstance(self.data, Data) else self.data
            check_known(data.y if isinstance(data, Part) else None)
            x = to_device(next(batches_in_order(data, FEW))[0], device)
            for member in members_of(network):
                _check_columns(chosen_layers(member, options["layers"], x), options.get("inducing_cols"))
            output = draws(network, x, samples=0, generator=torch.Generator())[0]
            about(self.likelihood).sampled_score(output, torch.Generator())

    def run_(self, network: nn.Module, seed: int, progress: bool | None = False) -> Laplace:
        """Gives the layers their posteriors, in place; the same again from the same network and seed."""
        with own_randomness(device_of(network)):
            seed_everything(seed)  # for a loader that shuffles
            return laplace_(
                network,
                self.data,
                likelihood=self.likelihood,
                validation=self.validation,
                num_data=self.num_data,
                calibrated=self.calibrated,
                generator=torch.Generator().manual_seed(seed),
                progress=progress,
                **self.options(),
            )

    def options(self) -> dict[str, Any]:
        """Arguments of `bnn.laplace_`; the prior's precision by validation data, where there are at least 100 of them.

        Networks that fit few inputs without an error have hardly any curvature left, so that the marginal likelihood
        leaves draws too wide to be of use (docs/laplace.md).
        """
        usual = "validation" if _many(self._held_out()) else "marginal"
        return {"prior_precision": usual, **laplace_options(self.asked)}

    def _held_out(self) -> Any:
        return self.data.validation if self.validation is None and isinstance(self.data, Data) else self.validation


def _check_columns(layers: dict[str, nn.Module], columns: int | None) -> None:
    """Raises where a layer's weights, once trained, will need more directions than it may have."""
    for name, layer in layers.items():
        if isinstance(layer, InducingBase):
            rank = min(len(layer.z_row), len(layer.z_col))
        else:
            rank = min(to_matrix(*plain_weights(layer)).shape)
        if columns is not None and columns < rank:
            raise ValueError(
                f"laplace: inducing_cols={columns} cannot keep the weights of layer {name!r}, which may have rank "
                f"{rank}: give at least as many, or leave it out"
            )


def _many(held_out: Any) -> bool:
    """Whether there are validation data for a choice, as many as for a temperature."""
    found = None if held_out is None else taken(held_out, "validation")
    kept = found.dataset if isinstance(found, DataLoader) else found
    return isinstance(kept, Sized) and len(kept) >= LEAST


def record(found: Laplace | None) -> dict[str, Any] | None:
    """As JSON, without the likelihood, which a run keeps for itself."""
    if found is None:
        return None
    names = ("prior_precision", "log_evidence", "effective_parameters", "inputs", "variance_factor")
    return {name: getattr(found, name) for name in names}


def from_record(stored: dict[str, Any] | None, likelihood: Any) -> Laplace | None:
    """What `record` gave."""
    return None if stored is None else Laplace(likelihood=likelihood, **stored)
