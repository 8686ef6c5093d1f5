"""Likelihoods by name, as configurations spell them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bnn.likelihoods.base import Likelihood
from bnn.likelihoods.classes import Bernoulli, Categorical
from bnn.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian

_NAMED: dict[str, Callable[[], Likelihood]] = {
    "bernoulli": Bernoulli,
    "categorical": Categorical,
    "gaussian": Gaussian,
    "heteroscedastic": HeteroscedasticGaussian,
}


def get(likelihood: str | Callable[..., Any]) -> Callable[..., Any]:
    """The likelihood of that name with its default options, or the callable itself.

    >>> get("categorical")
    Categorical()
    """
    if isinstance(likelihood, str):
        if likelihood not in _NAMED:
            raise ValueError(f"unknown likelihood {likelihood!r}; expected one of {sorted(_NAMED)} or a callable")
        return _NAMED[likelihood]()
    if isinstance(likelihood, type):
        raise TypeError(f"likelihood is the class {likelihood.__name__}: pass an object, {likelihood.__name__}()")
    if not callable(likelihood):
        raise TypeError(
            f"likelihood must be one of {sorted(_NAMED)} or a callable (output, target) -> negative log-likelihood, "
            f"got {type(likelihood).__name__}"
        )
    return likelihood
