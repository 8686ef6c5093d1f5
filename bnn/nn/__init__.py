"""Bayesian layers: families (`ffg`, `fcg`, `inducing`, ...) on layer types (Linear, Conv1d, Conv2d, Conv3d)."""

from bnn.nn import nets
from bnn.nn.base import BayesianLayer
from bnn.nn.pairings import *  # noqa: F403  every pairing, by its name
