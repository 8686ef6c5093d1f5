"""What both estimators share: parameters, training, draws at new inputs, files."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnn._common.checks import check_bool, check_size
from bnn._common.extras import need
from bnn._common.seeds import derived, own_randomness
from bnn._conversion.energy import EnergyWarning
from bnn._conversion.methods import PLAIN, Method, get
from bnn._engine.fold import Drawn
from bnn.conformal import Guarantee
from bnn.data.dataset import Data
from bnn.data.split import ASIDE, inputs_aside, warn_gone
from bnn.ensemble import Ensemble
from bnn.estimators.files import read_estimator, write_estimator
from bnn.estimators.networks import Floats, Scaling, convert_, plain_network
from bnn.likelihoods import Likelihood
from bnn.nn.base import BayesianLayer
from bnn.prediction import draws, layers_with_sampling, set_sampling_
from bnn.train import History, defaults
from bnn.train import fit as train
from bnn.train.converted_stage import CLOSE, GENTLER
from bnn.train.cross_fit import Trained, cross_fit, cross_fits
from bnn.train.monitor import LEAST
from bnn.train.plain_stage import MANY
from bnn.train.settling import Comparison, held_out_losses
from bnn.train.spread import CAPS, factor_within, rate_factor

_sklearn = need("sklearn.base", "sklearn")
_utils = need("sklearn.utils", "sklearn")
_validation = need("sklearn.utils.validation", "sklearn")

STEPS, EPOCHS = 500, 20  # at least so many of each, by default, where there are no validation rows
ROWS = 1024  # predicted at a time
BUILD, PREDICT, FOLD = 0, 1, 2  # what a derived seed is for


class BayesianEstimator(_sklearn.BaseEstimator):  # type: ignore[misc, name-defined]
    """The abstract base: see `BayesianClassifier` and `BayesianRegressor`, which list the parameters."""

    network_: nn.Module
    likelihood_: nn.Module
    x_scale_: Scaling
    n_features_in_: int
    n_iter_: int
    seed_: int
    history_: list[dict[str, Any]]
    guarantee_: Guarantee | None = None  # also of what older versions have pickled

    def __init__(
        self,
        *,
        hidden: tuple[int, ...] = (64, 64),
        method: str = "ffg-u",
        options: dict[str, Any] | None = None,
        network: Any = None,
        epochs: int | None = None,
        batch_size: int = 100,
        lr: float | None = None,
        kl_weight: float | None = None,
        samples: int = 20,
        members: int | None = None,
        scale: bool = True,
        validation_fraction: float = 0.1,
        patience: int | None = None,
        guarantee: float | int | None = None,
        device: Any = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.method = method
        self.options = options
        self.network = network
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.kl_weight = kl_weight
        self.samples = samples
        self.members = members
        self.scale = scale
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.guarantee = guarantee
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the fitted estimator to one file without pickle: safetensors, with everything else as JSON in it.

        `bnn.load_` reads the network alone from the same file. A `network` of your own is code, which is not stored:
        `load` needs it again.
        """
        _validation.check_is_fitted(self, "network_")
        write_estimator(self, self._notes(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], network: Any = None) -> Any:
        """The estimator that `save` wrote.

        Args:
            network: as for the constructor, where the estimator was fitted with one.
        """
        estimator, notes = read_estimator(cls, path, network)
        estimator._restore(notes)
        return estimator

    def _notes(self) -> dict[str, Any]:
        """The fitted state that is not in the network, as JSON."""
        names = getattr(self, "feature_names_in_", None)
        return {
            "n_features_in_": self.n_features_in_,
            "feature_names_in_": None if names is None else names.tolist(),
            "n_iter_": self.n_iter_,
            "seed_": self.seed_,
            "history_": self.history_,
            "x_scale_": self.x_scale_.to_dict(),
            "guarantee_": None if self.guarantee_ is None else self.guarantee_.to_dict(),
        }

    def _restore(self, notes: dict[str, Any]) -> None:
        for name in ("n_features_in_", "n_iter_", "seed_", "history_"):
            setattr(self, name, notes[name])
        if notes["feature_names_in_"] is not None:
            self.feature_names_in_ = np.array(notes["feature_names_in_"], dtype=object)
        self.x_scale_ = Scaling.from_dict(notes["x_scale_"])
        stored = notes.get("guarantee_")
        self.guarantee_ = None if stored is None else Guarantee.from_dict(stored)

    # -- a guarantee ---------------------------------------------------------------------------------------------------

    def _set_aside(self, X: Any, y: Any, classes: Sequence[str] = ()) -> tuple[Any, Any, tuple[Any, Any] | None]:
        """Rows to learn from, and a random sample for the guarantee, which nothing of `fit` sees; None without one.

        Args:
            classes: names, where y holds labels.
        """
        count = inputs_aside(self.guarantee, len(X), "X, y")
        if not count:
            return X, y, None
        seed = derived(int(_utils.check_random_state(copy.deepcopy(self.random_state)).randint(2**31 - 1)), ASIDE)
        order = np.random.default_rng(seed).permutation(len(X))
        aside, others = np.sort(order[:count]), np.sort(order[count:])
        if classes:
            warn_gone(torch.from_numpy(y), torch.from_numpy(others), classes, "X, y")
        return X[others], y[others], (X[aside], y[aside])

    def _guaranteed(self) -> Guarantee:
        """The guarantee; ValueError where no rows were set aside."""
        _validation.check_is_fitted(self, "network_")
        if self.guarantee_ is None:
            raise ValueError(
                "a guarantee needs rows that were set aside before training, and none were: fit again with "
                f"{type(self).__name__}(guarantee=0.1), which takes 10 % of the rows, at least 50"
            )
        return self.guarantee_

    # -- training ------------------------------------------------------------------------------------------------------

    def _plain(self, out_features: int) -> nn.Module:
        return plain_network(self.network, self.hidden, self.n_features_in_, out_features)

    def _check(self) -> torch.device:
        """Raises unless the parameters that nothing else checks make sense; returns the device."""
        get(self.method)
        check_size("samples", self.samples)
        check_size("members", self.members, none=True)
        check_size("batch_size", self.batch_size)
        check_bool("scale", self.scale)
        check_bool("verbose", self.verbose)
        if self.options is not None and not isinstance(self.options, dict):
            raise TypeError(f"options must be a dict of options of bnn.bayesianize_, or None; got {self.options!r}")
        return torch.device("cpu" if self.device is None else self.device)

    def _learn_scaling(self, columns: Floats) -> Scaling:
        return Scaling.learned(columns) if self.scale else Scaling.none(columns.shape[1])

    def _train(self, data: Data, kinds: dict[str, Likelihood]) -> str:
        """Builds and trains the network; sets network_, likelihood_, seed_, history_, n_iter_.

        Args:
            kinds: likelihoods by the names that users know; validation data choose, where there are several.

        Returns:
            The name of the likelihood.
        """
        device, method = self._check(), get(self.method)
        seed = int(_utils.check_random_state(self.random_state).randint(2**31 - 1))
        if self._validates(data):
            data = data.with_validation(self.validation_fraction, seed)
        alone = self.epochs is not None or self.lr is not None or data.validation is None
        if alone or method.family == PLAIN or method.networks > 1:
            kind, history = self._trained_at_once(data, next(iter(kinds.items())), seed, device)
        else:
            kind, history = self._trained_in_two(data, kinds, seed, device)
        if cross_fits(history.likelihood, data):
            train_one, place = self._for_folds(history, seed, device), derived(seed, FOLD)
            folds = cross_fit(history.likelihood, data, place, train_one, self.verbose)
            history.noise = folds.settle_(history.likelihood)
        if layers_with_sampling(self.network_):
            set_sampling_(self.network_, "weight")  # so that a draw is one function, whatever rows are asked together
        self.likelihood_ = history.likelihood
        self.seed_, self.history_, self.n_iter_ = seed, history.epochs, len(history.epochs)
        return kind

    def _validates(self, data: Data) -> bool:
        """Whether rows are set aside: for patience, and where there are enough for schedules and noise of our own."""
        enough = len(data.train) * self.validation_fraction >= LEAST
        return self.patience is not None or (enough and (self.epochs is None or data.task == "regression"))

    def _trained_at_once(self, data: Data, kind: tuple[str, Likelihood], seed: int, device: Any) -> tuple[str, History]:
        """Trains from scratch, by the epochs that were asked for."""
        (name, likelihood), method = kind, get(self.method)
        with own_randomness(device):
            torch.manual_seed(derived(seed, BUILD))
            plain = self._plain(data.out_features * likelihood.outputs_per_target)
            self.network_ = convert_(plain, method, self.options, self.members).to(device)
        steps = -(-len(data.train) // self.batch_size)
        epochs = max(EPOCHS, -(-STEPS // steps)) if self.epochs is None else self.epochs
        lr = method.rate(len(data.train), trained=False) if self.lr is None else self.lr
        schedule = {"epochs": epochs, "batch_size": self.batch_size, "lr": lr, "cosine": True}
        return name, self._fitted(data, likelihood, seed, schedule | self._own(method))

    def _trained_in_two(self, data: Data, kinds: dict[str, Likelihood], seed: int, device: Any) -> tuple[str, History]:
        """Trains a plain network for every likelihood until validation data say it is enough, and converts the best."""
        method, real = get(self.method), data.task == "regression"
        several = data.validation is not None and len(data.validation) >= MANY
        common: Any = {"validated": True, "real": real, "batch_size": self.batch_size}
        found = []
        for name, likelihood in list(kinds.items())[: None if several else 1]:
            with own_randomness(device):
                torch.manual_seed(derived(seed, BUILD))
                self.network_ = self._plain(data.out_features * likelihood.outputs_per_target).to(device)
            history = self._fitted(data, likelihood, seed, defaults.plain_schedule(len(data.train), **common))
            found.append((name, self.network_, history))
        name, plain, history = min(found, key=lambda one: one[2].noise["nll"] if one[2].noise else 0.0)
        schedule = defaults.schedule(len(data.train), method, trained=True, **common) | self._own(method)
        noise, limit = history.likelihood, defaults.SPREAD if real else None
        schedule["lr"] *= rate_factor(plain, data, noise)
        first = self._attempt(plain, data, noise, seed, schedule, limit)
        compared = self._compared(plain, noise, data, first) if real else None
        if compared is None or not compared.worse:
            return name, first
        kept = self.network_  # a second training, as `converted_stage` has it for recipes
        second = self._attempt(plain, data, noise, seed, schedule | {"lr": GENTLER * schedule["lr"]}, CLOSE)
        again = self._compared(plain, noise, data, second)
        if again is not None and again.run < compared.run:
            return name, second
        self.network_ = kept
        return name, first

    def _for_folds(self, history: History, seed: int, device: Any) -> Callable[[Data, int], Trained]:
        """What trains a plain network for a fold of the data."""

        def trained(data: Data, fold: int) -> Trained:
            with own_randomness(device):
                torch.manual_seed(derived(seed, BUILD))
                net = self._plain(data.out_features * history.likelihood.outputs_per_target).to(device)
            validated: bool = data.validation is not None
            plan = defaults.plain_schedule(len(data.train), validated, self.epochs, True, self.batch_size)
            plan |= {} if self.lr is None else {"lr": self.lr}
            noise = copy.deepcopy(history.likelihood)
            found = train(net, data, likelihood=noise, seed=derived(seed, FOLD, fold), progress=False, **plan)
            return net, found.likelihood

        return trained

    def _attempt(
        self, plain: nn.Module, data: Data, noise: Likelihood, seed: int, schedule: dict[str, Any], limit: float | None
    ) -> History:
        """Converts a copy of the plain network and trains it, as `network_`."""
        self.network_ = self._converted(plain, data, noise, seed, limit)
        return self._fitted(data, copy.deepcopy(noise), seed, schedule)

    def _compared(self, plain: nn.Module, noise: Likelihood, data: Data, history: History) -> Comparison | None:
        """How `network_` compares with the plain network on the validation data; None where there are none."""
        before = held_out_losses(plain, noise, data)
        after = held_out_losses(self.network_, history.likelihood, data)
        return None if before is None else Comparison.of(before, after)

    def _converted(self, plain: nn.Module, data: Data, noise: Likelihood, seed: int, limit: float | None) -> nn.Module:
        """A copy of the plain network with its posterior, of real targets no wider than `limit` times their noise."""
        method, given = get(self.method), self.options or {}

        def converted(factor: float) -> nn.Module:
            caps = {name: method.options[name] * factor for name in CAPS if name in method.options}
            start = None if limit is None else data.train
            return convert_(copy.deepcopy(plain), method, caps | given, self.members, start)

        place = derived(seed, BUILD, 1)
        factor = 1.0 if limit is None else factor_within(converted, data, noise, limit, place)
        device = next(plain.parameters()).device
        with own_randomness(device), warnings.catch_warnings():
            warnings.simplefilter("ignore", EnergyWarning)  # training follows, and mends it
            torch.manual_seed(derived(seed, BUILD))
            return converted(factor).to(device)

    def _own(self, method: Method) -> dict[str, Any]:
        """What of a schedule is the method's, or was asked for."""
        chosen = {"kl_weight": method.kl_weight if self.kl_weight is None else self.kl_weight}
        return chosen | ({} if self.patience is None else {"patience": self.patience})

    def _fitted(self, data: Data, likelihood: Likelihood, seed: int, schedule: dict[str, Any]) -> History:
        device = next(self.network_.parameters()).device
        samples = {"samples": _members(self.network_)}
        converted = any(isinstance(module, BayesianLayer) for module in self.network_.modules())
        laplace = get(self.method).laplace if converted else None
        return train(
            self.network_,
            data,
            likelihood=likelihood.to(device),
            seed=seed,
            progress=self.verbose,
            laplace=None if laplace is None else dict(laplace),
            **schedule | samples,
        )

    # -- predicting ----------------------------------------------------------------------------------------------------

    def _draws(self, X: Any) -> Tensor:
        """Raw outputs (K, N, D) at new inputs, float64 on the CPU; the K functions are those of every call."""
        _validation.check_is_fitted(self, "network_")
        return self._drawn(_validation.validate_data(self, X, reset=False, dtype=np.float64))

    def _drawn(self, rows: Floats) -> Tensor:
        """The same at rows that are checked, and have lost their names, as those of `fit` that are set aside."""
        device = next(self.network_.parameters()).device
        dtype = torch.float32 if device.type == "mps" else torch.float64  # else rounding depends on the other rows
        network = copy.deepcopy(self.network_).to(dtype).eval()
        x = torch.from_numpy(self.x_scale_.scaled(rows)).to(device, dtype)
        generator = torch.Generator().manual_seed(derived(self.seed_, PREDICT))
        with torch.no_grad():
            return draws(network, x, self._samples(network), generator, batch_size=ROWS).double().cpu()

    def _samples(self, network: nn.Module) -> int | None:
        if any(isinstance(module, Drawn) for module in network.modules()):
            return self.samples
        return None if isinstance(network, Ensemble) else 0  # every member once; a plain network as it is


def _members(network: nn.Module) -> int:
    """Draws per step: as many as one network has members, so that each trains on every batch."""
    sizes = [m.member_count() for m in network.modules() if isinstance(m, BayesianLayer)]
    return max(sizes, default=1) if all(sizes) else 1
