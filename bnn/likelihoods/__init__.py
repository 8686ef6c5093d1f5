"""Likelihoods: how likely a target is given the network's output, and what K draws of the output predict.

To the objective a likelihood is anything callable as `likelihood(output, target)` that gives the **negative**
log-likelihood in nats: per datum (N,), or (N, ...) to be summed over all but dimension 0, or a scalar, which is then
taken as the mean over the batch (so `F.cross_entropy` works as it is). The objects here do that, check what they are
given, turn K draws into a prediction with its uncertainty, and say what they can do, which is all that training,
evaluation and the command line know about them. `names()` lists them without importing torch.
"""

from typing import TYPE_CHECKING, Any

from bnn.likelihoods.registry import for_task, from_record, get, names

if TYPE_CHECKING:
    from bnn.likelihoods.base import Likelihood, about, record
    from bnn.likelihoods.bernoulli import Bernoulli
    from bnn.likelihoods.categorical import Categorical
    from bnn.likelihoods.gaussian import Gaussian
    from bnn.likelihoods.heteroscedastic import HeteroscedasticGaussian
    from bnn.likelihoods.predictions import ClassPrediction, RegressionPrediction

# Where names live that need torch; imported when they are first asked for.
_LATER = {
    "Bernoulli": "bernoulli",
    "Categorical": "categorical",
    "ClassPrediction": "predictions",
    "Gaussian": "gaussian",
    "HeteroscedasticGaussian": "heteroscedastic",
    "Likelihood": "base",
    "RegressionPrediction": "predictions",
    "about": "base",
    "record": "base",
}

__all__ = [
    "Bernoulli",
    "Categorical",
    "ClassPrediction",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "RegressionPrediction",
    "about",
    "for_task",
    "from_record",
    "get",
    "names",
    "record",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LATER:
        return getattr(importlib.import_module(f"bnn.likelihoods.{_LATER[name]}"), name)
    try:
        return importlib.import_module(f"bnn.likelihoods.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module 'bnn.likelihoods' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
