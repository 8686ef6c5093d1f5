"""`BayesianClassifier`: class probabilities with their uncertainty taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnn import likelihoods
from bnn._common.extras import need
from bnn.conformal import calibrate
from bnn.data.dataset import Data, Part
from bnn.estimators.base import BayesianEstimator
from bnn.estimators.networks import Floats
from bnn.prediction import tempered
from bnn.train.class_weight_options import asked_for, scaled

_sklearn = need("sklearn.base", "sklearn")
_validation = need("sklearn.utils.validation", "sklearn")
_multiclass = need("sklearn.utils.multiclass", "sklearn")


@dataclass(frozen=True)
class ClassDistribution:
    """What the posterior says about N inputs and C classes; uncertainties are in nats.

    Args:
        probs: (N, C), in the order of `classes_`.
        total: entropy of `probs` (N,).
        aleatoric: the part that no data would remove: expected entropy of one draw's probabilities (N,).
        epistemic: the part that is the draws' disagreement, mutual information (N,).
    """

    probs: Floats
    total: Floats
    aleatoric: Floats
    epistemic: Floats


class BayesianClassifier(_sklearn.ClassifierMixin, BayesianEstimator):  # type: ignore[misc, name-defined]
    """A Bayesian network as a scikit-learn classifier.

    A draw is one function for all rows (`sampling="weight"`), and every call uses the same K draws: a row's prediction
    depends neither on the rows beside it nor on the call.

    Args:
        class_weight: None: all classes count alike, datum by datum; "balanced": n / (C n_c) for n_c of n rows in one
            of C classes; or a dict from class to weight, 1 for classes that it does not name. Weights are scaled to
            mean 1 over the rows; probabilities are then those of reweighted classes.
        hidden: widths of the hidden layers of a multilayer perceptron.
        method: a name of `bnn.methods()`: "ffg-u" (or "inducing"), "ensemble-u" (Ensemble-U of `members`), "ffg-w"
            ("ffg"), "ensemble-w" (a deep ensemble of `members` plain networks, "ensemble"), "deterministic", ...
        options: of `bnn.bayesianize_`, beside or instead of the method's own.
        network: instead of the perceptron: a module (N, features) -> (N, classes), of which a copy is trained from the
            weights it has (with several networks from fresh ones), or a function (in_features, out_features) -> module.
        epochs: of training from scratch. None: with 300 rows or more a plain network is trained first, until validation
            rows say that it is enough, then converted and trained on; with fewer, 500 steps from scratch.
        batch_size: rows per step.
        lr: the rate of Adam at the start, of training from scratch; it falls to 0 along a cosine. None: the method's.
        kl_weight: 1 is Bayes; less stays closer to the data. Worth a grid search on log loss. None: the method's.
        samples: K, posterior draws per prediction.
        members: of an ensemble; None: the method's.
        scale: scale every feature to mean 0 and sd 1, as learned in `fit`.
        validation_fraction: the rows that say when to stop, where there are enough for it (30) and epochs are not
            given, or `patience` asks for it.
        patience: stop after so many epochs without a better validation NLL, and keep the best; None: train to the end.
        guarantee: sets rows aside that nothing else in `fit` sees: a share, as 0.1 (at least 50), or their number; with
            them `predict_set` gives sets of classes that hold the true one as often as they say. None: none.
        device: as for torch; None: the CPU.
        random_state: an int makes `fit` repeatable.
        verbose: show progress on a terminal.

    Attributes:
        classes_, n_features_in_, feature_names_in_ (from data frames), n_iter_ (epochs), network_, likelihood_,
        history_ (a dict per epoch, as of `bnn.fit`), guarantee_ (a `bnn.conformal.Guarantee`, or None).

    >>> X, y = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array(["no", "no", "yes", "yes"])
    >>> model = BayesianClassifier(hidden=(8,), epochs=50, random_state=0).fit(X, y)
    >>> model.predict([[-3.0], [3.0]]).tolist()
    ['no', 'yes']
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        *,
        class_weight: str | dict[Any, float] | None = None,
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
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any) -> BayesianClassifier:
        """Trains on X (N, features) and labels y (N,) of any kind; at least two classes."""
        X, y = _validation.validate_data(self, X, y, dtype=np.float64)
        _multiclass.check_classification_targets(y)
        self.classes_, labels = np.unique(_validation.column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has only one class, {self.classes_.tolist()[0]!r}: a classifier needs at least two classes"
            )
        names = tuple(map(str, self.classes_))
        X, labels, aside = self._set_aside(X, labels, names)
        self.x_scale_ = self._learn_scaling(X)
        rows = torch.from_numpy(self.x_scale_.scaled(X)).float()
        part = Part(rows, torch.from_numpy(labels.astype(np.int64)))
        data = Data("X, y", "classification", part, classes=names)
        self._train(data, {"": self._likelihood(labels)})
        self.guarantee_ = None if aside is None else calibrate(self._of(self._drawn(aside[0])).probs, aside[1])
        return self

    def _likelihood(self, labels: NDArray[Any]) -> likelihoods.Categorical:
        """With weights in the order of `classes_`."""
        asked = self.class_weight
        if asked is None:
            return likelihoods.Categorical()
        if not isinstance(asked, str | dict):
            raise TypeError(f'class_weight must be None, "balanced" or a dict from class to weight; got {asked!r}')
        counts = np.bincount(labels, minlength=len(self.classes_)).tolist()
        names = [str(name) for name in self.classes_]
        return likelihoods.Categorical(scaled(asked_for(asked, counts, names), counts))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row (N,)."""
        probs = self.predict_proba(X)
        return np.asarray(self.classes_[probs.argmax(1)])

    def predict_proba(self, X: Any) -> Floats:
        """Class probabilities (N, C), averaged over the draws, in the order of `classes_`."""
        return self.predict_dist(X).probs

    def predict_set(self, X: Any, level: float = 0.9) -> NDArray[np.bool_]:
        """Which classes are in the set of every row (N, C), in the order of `classes_`: it holds the true one with a
        probability of at least `level`, as `bnn.conformal` says.

        Raises:
            ValueError: it was fitted without `guarantee`, or with too few rows for this level.
        """
        return self._guaranteed().sets(self.predict_dist(X).probs, level)

    def predict_dist(self, X: Any) -> ClassDistribution:
        """Probabilities with total, aleatoric and epistemic uncertainty."""
        return self._of(self._draws(X))

    def _of(self, outputs: Tensor) -> ClassDistribution:
        """The same of raw outputs."""
        likelihood = likelihoods.Categorical()
        prediction = likelihood.predictive(tempered(self.network_, likelihood, outputs))
        return ClassDistribution(*(part.numpy() for part in prediction))

    def _out_features(self) -> int:
        return len(self.classes_)

    def _notes(self) -> dict[str, Any]:
        return super()._notes() | {"classes_": self.classes_.tolist(), "dtype": self.classes_.dtype.str}

    def _restore(self, notes: dict[str, Any]) -> None:
        super()._restore(notes)
        self.classes_ = np.array(notes["classes_"], dtype=np.dtype(notes["dtype"]))
        self.likelihood_ = likelihoods.Categorical()
