"""`BayesianRegressor`: predictive distributions of real targets, in the targets' own units, and the noise it learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bnn import likelihoods
from bnn._common.checks import check_choice
from bnn._common.extras import need
from bnn.data.dataset import Data, Part
from bnn.estimators.base import BayesianEstimator
from bnn.estimators.networks import Floats, Scaling
from bnn.metrics import mixture_interval

_sklearn = need("sklearn.base", "sklearn")
_validation = need("sklearn.utils.validation", "sklearn")

NOISE = {"constant": "gaussian", "varying": "heteroscedastic"}  # likelihoods, in the words of users


@dataclass(frozen=True)
class TargetDistribution:
    """What the posterior says about targets at N inputs, in their own units; all (N,), or (N, D) for D targets.

    Args:
        mean: of the predictive distribution.
        sd: its total standard deviation, sqrt(aleatoric^2 + epistemic^2).
        aleatoric: sd of the noise.
        epistemic: sd of the function over the posterior.
        lower, upper: ends of the central interval that holds a new target with probability `level`: quantiles of the
            mixture of all draws.
    """

    mean: Floats
    sd: Floats
    aleatoric: Floats
    epistemic: Floats
    lower: Floats
    upper: Floats
    level: float


class BayesianRegressor(_sklearn.RegressorMixin, BayesianEstimator):  # type: ignore[misc, name-defined]
    """A Bayesian network as a scikit-learn regressor, of one target or several.

    Args:
        noise: "constant": one learned sd per target; "varying": an sd that the network predicts for every input.
        hidden, method, options, epochs, batch_size, lr, kl_weight, samples, members, validation_fraction, patience,
            device, random_state, verbose: as for `BayesianClassifier`.
        network: likewise, (N, features) -> (N, targets); with "varying" noise (N, 2 targets).
        scale: scale every feature and every target to mean 0 and sd 1, as learned in `fit`. Predictions are in the
            target's own units either way.

    Attributes:
        n_features_in_, feature_names_in_ (from data frames), n_iter_ (epochs), network_, likelihood_ (the noise, in
        scaled units), history_ (a dict per epoch, as of `bnn.fit`).

    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = BayesianRegressor(hidden=(16,), epochs=50, random_state=0).fit(X, 1000 + 50 * X[:, 0])
    >>> p = model.predict_dist([[0.0]], level=0.9)
    >>> bool(p.lower[0] < 1000 < p.upper[0]), p.mean.shape
    (True, (1,))
    """

    y_scale_: Scaling
    likelihood_: likelihoods.Likelihood

    def __init__(
        self,
        *,
        noise: str = "constant",
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
        device: Any = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            hidden=hidden,
            method=method,
            options=options,
            network=network,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            kl_weight=kl_weight,
            samples=samples,
            members=members,
            scale=scale,
            validation_fraction=validation_fraction,
            patience=patience,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.noise = noise

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> BayesianRegressor:
        """Trains on X (N, features) and real targets y (N,) or (N, D)."""
        check_choice("noise", self.noise, list(NOISE))
        X, y = _validation.validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        self._one_target = y.ndim == 1
        y = y.reshape(len(y), -1)
        self.x_scale_, self.y_scale_ = self._learn_scaling(X), self._learn_scaling(y)
        rows, targets = (torch.from_numpy(z).float() for z in (self.x_scale_.scaled(X), self.y_scale_.scaled(y)))
        data = Data("X, y", "regression", Part(rows, targets))
        self._train(data, self._out_features(), self._likelihood())
        return self

    def predict(self, X: Any) -> Floats:
        """The predictive mean (N,), or (N, D)."""
        means, _ = self._components(X)
        return self._shaped(means.mean(0))

    def predict_dist(self, X: Any, level: float = 0.9) -> TargetDistribution:
        """The predictive distribution: mean, sds, and the interval that holds a new target with probability `level`."""
        means, sds = self._components(X)
        aleatoric, epistemic = np.sqrt(np.square(sds).mean(0)), means.std(0)
        lower, upper = mixture_interval(means, sds, level)
        return TargetDistribution(
            mean=self._shaped(means.mean(0)),
            sd=self._shaped(np.hypot(aleatoric, epistemic)),
            aleatoric=self._shaped(aleatoric),
            epistemic=self._shaped(epistemic),
            lower=self._shaped(lower),
            upper=self._shaped(upper),
            level=float(level),
        )

    def _components(self, X: Any) -> tuple[Floats, Floats]:
        """Mean and noise sd under each draw, both (K, N, D), in own units."""
        outputs = self._draws(X)
        found = self.likelihood_.components(outputs)
        assert found is not None
        means, noise = (part.detach().cpu().numpy() for part in found)
        return self.y_scale_.own_units(means), noise * self.y_scale_.sd

    def _shaped(self, values: Floats) -> Floats:
        """As y was: (N,) for one column of targets given as such."""
        return values[:, 0] if self._one_target else values

    def _out_features(self) -> int:
        return len(self.y_scale_.mean) * self._likelihood().outputs_per_target

    def _likelihood(self) -> likelihoods.Likelihood:
        return likelihoods.for_task(NOISE[self.noise], "regression", len(self.y_scale_.mean))

    def _notes(self) -> dict[str, Any]:
        raw = {name: value.tolist() for name, value in self.likelihood_.kept().items()}
        return super()._notes() | {"y": self.y_scale_.to_dict(), "one_target": self._one_target, "likelihood": raw}

    def _restore(self, notes: dict[str, Any]) -> None:
        super()._restore(notes)
        self.y_scale_, self._one_target = Scaling.from_dict(notes["y"]), notes["one_target"]
        self.likelihood_ = self._likelihood()
        kept = self.likelihood_.kept()
        raw = {name: torch.tensor(notes["likelihood"].get(name, kept[name].tolist())) for name in kept}
        self.likelihood_.learned_({name: value.reshape(kept[name].shape) for name, value in raw.items()})
