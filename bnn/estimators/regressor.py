"""`BayesianRegressor`: predictive distributions of real targets, in the targets' own units, and the noise it learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnn import likelihoods
from bnn._common.checks import check_bool, check_choice
from bnn._common.extras import need
from bnn.conformal import Guarantee, calibrate
from bnn.data.dataset import Data, Part
from bnn.data.target_scale import above_zero
from bnn.estimators.base import BayesianEstimator
from bnn.estimators.networks import Floats, Scaling
from bnn.estimators.targets import CHECKS, check_each_known, check_targets, names_of, r2_of_known
from bnn.metrics import lognormal_interval, lognormal_moments, mixture_interval

_sklearn = need("sklearn.base", "sklearn")
_validation = need("sklearn.utils.validation", "sklearn")

AUTO = "auto"
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
        noise: "constant": one sd per target; "varying": an sd that the network predicts for every input; "auto": the
            one of both with which plain networks have the lower validation NLL, with 1,000 rows or more; else, and
            where `network`, `epochs` or `lr` are given, constant.
        hidden, method, options, epochs, batch_size, lr, kl_weight, samples, members, validation_fraction, patience,
            device, random_state, verbose: as for `BayesianClassifier`.
        network: likewise, (N, features) -> (N, targets); with "varying" noise (N, 2 targets).
        guarantee: as for `BayesianClassifier`; `predict_interval` gives intervals that hold as often as they say.
        scale: scale every feature and every target to mean 0 and sd 1, as learned in `fit`. Predictions are in the
            target's own units either way.
        positive: all targets are above 0, and trained on as their logarithm: no mean or interval is below 0.

    Attributes:
        n_features_in_, feature_names_in_ (from data frames), n_iter_ (epochs), network_, noise_ ("constant" or
        "varying"), likelihood_ (the noise, in scaled units, settled on validation rows if there are 30), history_ (a
        dict per epoch, as of `bnn.fit`).

    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = BayesianRegressor(hidden=(16,), epochs=50, random_state=0).fit(X, 1000 + 50 * X[:, 0])
    >>> p = model.predict_dist([[0.0]], level=0.9)
    >>> bool(p.lower[0] < 1000 < p.upper[0]), p.mean.shape
    (True, (1,))
    """

    y_scale_: Scaling
    likelihood_: likelihoods.Likelihood
    noise_: str

    def __init__(
        self,
        *,
        noise: str = "auto",
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
        positive: bool = False,
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
            guarantee=guarantee,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.noise = noise
        self.positive = positive

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> BayesianRegressor:
        """Trains on X (N, features) and real targets y (N,) or (N, D), where NaN is a missing one of several.

        What is known of a row counts. A row without any target, and one without its only target, is an error.
        """
        check_bool("positive", self.positive)
        check_choice("noise", self.noise, [AUTO, *NOISE])
        names = names_of(y)
        X, y = _validation.validate_data(self, X, y, validate_separately=({"dtype": np.float64}, CHECKS))
        _validation.check_consistent_length(X, y)
        check_targets(y)
        if self.positive:
            above_zero(y.reshape(len(y), -1), lambda row: f"row {row}", lambda column: f"column {column}", "y")
        X, y, aside = self._set_aside(X, y)
        check_each_known(y, "training", names)
        if aside is not None:
            check_each_known(aside[1], "guarantee", names)
        self._one_target = y.ndim == 1
        y = np.log(y.reshape(len(y), -1)) if self.positive else y.reshape(len(y), -1)
        self.x_scale_, self.y_scale_ = self._learn_scaling(X), self._learn_scaling(y)
        rows, targets = (torch.from_numpy(z).float() for z in (self.x_scale_.scaled(X), self.y_scale_.scaled(y)))
        data = Data("X, y", "regression", Part(rows, targets))
        kinds = list(NOISE) if self.noise == AUTO and self.network is None else [self._asked()]
        self.noise_ = self._train(data, {kind: self._kind(kind) for kind in kinds})
        self.guarantee_ = None if aside is None else self._calibrated(*aside)
        return self

    def predict(self, X: Any) -> Floats:
        """The predictive mean (N,), or (N, D)."""
        means, sds = self._components(X)
        return self._shaped(lognormal_moments(means, sds, self._df).mean if self.positive else means.mean(0))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2 of `predict`, the mean over targets; a target that is NaN is missing, and its row does not count for it.

        Without missing targets it is `sklearn.metrics.r2_score`, which refuses them.
        """
        predicted = self.predict(X)
        if predicted.ndim == 2 and predicted.shape[1] > 1:
            return r2_of_known(y, predicted, sample_weight)
        return float(super().score(X, y, sample_weight))

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Floats, Floats]:
        """Lower and upper ends, as `predict` is shaped, of intervals mean -+ q sd that hold a new target with a
        probability of at least `level`, as `bnn.conformal` says; of several targets each by itself.

        Those of `predict_dist` need no rows set aside, and hold as often as the model is right.

        Raises:
            ValueError: it was fitted without `guarantee`, or with too few rows for this level.
        """
        guarantee = self._guaranteed()
        lower, upper = guarantee.intervals(self._components(X), level)
        return self._shaped(lower), self._shaped(upper)

    def predict_dist(self, X: Any, level: float = 0.9) -> TargetDistribution:
        """The predictive distribution: mean, sds, and the interval that holds a new target with probability `level`."""
        means, sds = self._components(X)
        if self.positive:
            mean, aleatoric, epistemic = lognormal_moments(means, sds, self._df)
            lower, upper = lognormal_interval(means, sds, level, self._df)
        else:
            mean, aleatoric, epistemic = means.mean(0), np.sqrt(np.square(sds).mean(0)), means.std(0)
            lower, upper = mixture_interval(means, sds, level, self._df)
        return TargetDistribution(
            mean=self._shaped(mean),
            sd=self._shaped(np.hypot(aleatoric, epistemic)),
            aleatoric=self._shaped(aleatoric),
            epistemic=self._shaped(epistemic),
            lower=self._shaped(lower),
            upper=self._shaped(upper),
            level=float(level),
        )

    @property
    def _df(self) -> float:
        """Degrees of freedom of the noise."""
        return self.likelihood_.df()

    def _components(self, X: Any) -> tuple[Floats, Floats]:
        """Mean and noise sd under each draw, both (K, N, D), in own units; where targets are positive, of log y."""
        return self._of(self._draws(X))

    def _of(self, outputs: Tensor) -> tuple[Floats, Floats]:
        """The same of raw outputs."""
        found = self.likelihood_.components(outputs)
        assert found is not None
        means, noise = (part.detach().cpu().numpy() for part in found)
        return self.y_scale_.own_units(means), noise * self.y_scale_.sd

    def _calibrated(self, X: Any, y: Floats) -> Guarantee:
        return calibrate(self._of(self._drawn(X)), y, scale="log" if self.positive else "linear")

    def _shaped(self, values: Floats) -> Floats:
        """As y was: (N,) for one column of targets given as such."""
        return values[:, 0] if self._one_target else values

    def _out_features(self) -> int:
        return len(self.y_scale_.mean) * self._kind(self.noise_).outputs_per_target

    def _asked(self) -> str:
        return next(iter(NOISE)) if self.noise == AUTO else self.noise

    def _kind(self, noise: str) -> likelihoods.Likelihood:
        found: likelihoods.Likelihood = likelihoods.for_task(
            NOISE[noise], "regression", len(self.y_scale_.mean), self.positive
        )
        return found

    def _notes(self) -> dict[str, Any]:
        raw = {name: value.tolist() for name, value in self.likelihood_.kept().items()}
        return super()._notes() | {
            "y": self.y_scale_.to_dict(),
            "one_target": self._one_target,
            "likelihood": raw,
            "noise_": self.noise_,
        }

    def _restore(self, notes: dict[str, Any]) -> None:
        super()._restore(notes)
        self.y_scale_, self._one_target = Scaling.from_dict(notes["y"]), notes["one_target"]
        self.noise_ = notes.get("noise_", self._asked())  # older files have no choice
        self.likelihood_ = self._kind(self.noise_)
        kept = self.likelihood_.kept()
        raw = {name: torch.tensor(notes["likelihood"].get(name, kept[name].tolist())) for name in kept}
        self.likelihood_.learned_({name: value.reshape(kept[name].shape) for name, value in raw.items()})
