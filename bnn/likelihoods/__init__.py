"""Likelihoods: how likely a target is given the network's output, and what K draws of the output predict.

To the objective a likelihood is anything callable as `likelihood(output, target)` that gives the **negative**
log-likelihood in nats: per datum (N,), or (N, ...) to be summed over all but dimension 0, or a scalar, which is then
taken as the mean over the batch (so `F.cross_entropy` works as it is). The objects here do that, check what they are
given, and turn K draws into a prediction with its uncertainty.
"""

from bnn.likelihoods.base import Likelihood
from bnn.likelihoods.classes import Bernoulli, Categorical, ClassPrediction
from bnn.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian, RegressionPrediction
from bnn.likelihoods.names import get

__all__ = [
    "Bernoulli",
    "Categorical",
    "ClassPrediction",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "RegressionPrediction",
    "get",
]
