"""`BayesianRegressor`: predictive distributions of real targets, in the targets' own units, and the noise it learns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnn._common.checks import check_choice
from bnn._common.extras import need
from bnn.conformal import calibrate
from bnn.data.dataset import Data, Part
from bnn.estimators.base import BayesianEstimator
from bnn.estimators.networks import Floats, Scaling
from bnn.functional.linalg import at_least_float32, inverse_softplus, positive
from bnn.likelihoods import HeteroscedasticGaussian, RegressionPrediction, about
from bnn.likelihoods.base import Likelihood, check_draws, check_shape, check_tensors, per_datum
from bnn.metrics import mixture_interval

_sklearn = need("sklearn.base", "sklearn")
_validation = need("sklearn.utils.validation", "sklearn")

NOISE = ["constant", "varying"]
SMALLEST = 0.2  # relative to what training found
START = 0.3  # of the targets' sd: training moves it down as it learns to explain them


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
        guarantee: as for `BayesianClassifier`; `predict_interval` gives intervals that hold as often as they say.
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
        guarantee: float | int | None = None,
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
            guarantee=guarantee,
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
        check_choice("noise", self.noise, NOISE)
        X, y = _validation.validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        X, y, aside = self._set_aside(X, np.asarray(y, dtype=np.float64))
        self._one_target = y.ndim == 1
        y = y.reshape(len(y), -1)
        self.x_scale_, self.y_scale_ = self._learn_scaling(X), self._learn_scaling(y)
        rows, targets = (torch.from_numpy(z).float() for z in (self.x_scale_.scaled(X), self.y_scale_.scaled(y)))
        data = Data("X, y", "regression", Part(rows, targets))
        self._train(data, self._out_features(), self._likelihood())
        if isinstance(self.likelihood_, TargetNoise):
            self.likelihood_.refit_(self._draws(X), targets.double())
        self.guarantee_ = None if aside is None else calibrate(self._components(aside[0]), aside[1])
        return self

    def predict(self, X: Any) -> Floats:
        """The predictive mean (N,), or (N, D)."""
        means, _ = self._components(X)
        return self._shaped(means.mean(0))

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
        found = about(self.likelihood_).components(outputs)
        assert found is not None
        means, noise = (part.detach().cpu().numpy() for part in found)
        return self.y_scale_.own_units(means), noise * self.y_scale_.sd

    def _shaped(self, values: Floats) -> Floats:
        """As y was: (N,) for one column of targets given as such."""
        return values[:, 0] if self._one_target else values

    def _out_features(self) -> int:
        return len(self.y_scale_.mean) * about(self._likelihood()).outputs_per_target

    def _likelihood(self) -> nn.Module:
        return HeteroscedasticGaussian() if self.noise == "varying" else TargetNoise(len(self.y_scale_.mean))

    def _notes(self) -> dict[str, Any]:
        raw = {name: value.tolist() for name, value in self.likelihood_.state_dict().items()}
        return super()._notes() | {"y": self.y_scale_.to_dict(), "one_target": self._one_target, "likelihood": raw}

    def _restore(self, notes: dict[str, Any]) -> None:
        super()._restore(notes)
        self.y_scale_, self._one_target = Scaling.from_dict(notes["y"]), notes["one_target"]
        self.likelihood_ = self._likelihood()
        self.likelihood_.load_state_dict({name: torch.tensor(raw) for name, raw in notes["likelihood"].items()})


class TargetNoise(Likelihood):
    """Real targets (N, D): -sum_d log N(y_d; output_d, sd_d^2), with learned sds that are the same at every input.

    >>> TargetNoise(2)(torch.zeros(3, 2), torch.zeros(3, 2)).shape
    torch.Size([3])
    """

    _sd: Tensor

    def __init__(self, targets: int) -> None:
        super().__init__()
        raw = inverse_softplus(torch.full((targets,), START, dtype=torch.double)).float()
        self._sd = nn.Parameter(raw)

    def sd(self) -> Tensor:
        """The sds of the noise (D,)."""
        return positive(self._sd)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood (N,) for means (N, D) and targets (N, D)."""
        check_tensors(output, target)
        check_shape(target, output.shape)
        sd = self.sd()
        standardised = (target - at_least_float32(output)) / sd
        return per_datum(0.5 * standardised.square() + sd.log() + 0.5 * math.log(2 * math.pi))

    def refit_(self, outputs: Tensor, target: Tensor) -> None:
        """Sets the sds, in place, to what the prediction as a whole makes likeliest: the mixture over K draws.

        The objective averages the log-likelihood of single draws, so its noise holds the spread of the draws as well;
        a prediction that adds the two would count that spread twice.

        Args:
            outputs: means of K draws (K, N, D) at inputs with targets (N, D).
        """
        factors = torch.linspace(math.log(SMALLEST), 0.0, 100, dtype=torch.double).exp()
        deviations = (target - outputs).double()
        best = []
        for d, sd in enumerate(self.sd().detach().double().cpu()):
            scores = [_mixture_log_likelihood(deviations[..., d], sd * factor) for factor in factors]
            best.append(sd * factors[int(torch.stack(scores).argmax())])
        with torch.no_grad():
            self._sd.copy_(inverse_softplus(torch.stack(best)).to(self._sd))

    def predictive(self, outputs: Tensor) -> RegressionPrediction:
        """Mean and variances, all (N, D), from K draws of the mean (K, N, D)."""
        check_draws(outputs)
        mean, epistemic = outputs.mean(0), outputs.var(0, correction=0)
        aleatoric = self.sd().square().to(mean.dtype).expand_as(mean)
        return RegressionPrediction(mean, aleatoric + epistemic, aleatoric, epistemic)

    def components(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs and the sds, both (K, N, D)."""
        return outputs, self.sd().detach().to(outputs).expand_as(outputs)


def _mixture_log_likelihood(deviations: Tensor, sd: Tensor) -> Tensor:
    """sum_n log 1/K sum_k N(deviation_kn; 0, sd^2), up to a constant, for deviations (K, N)."""
    return (-0.5 * (deviations / sd).square() - sd.log()).logsumexp(0).sum()
