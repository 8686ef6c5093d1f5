"""Bayesian layers: families (`ffg`, `fcg`, `inducing`, ...) on layer types (Linear, Conv1d, Conv2d, Conv3d)."""

from bnn.nn import nets
from bnn.nn.base import BayesianLayer
from bnn.nn.pairings import (
    FCGConv1d,
    FCGConv2d,
    FCGConv3d,
    FCGLinear,
    FFGConv1d,
    FFGConv2d,
    FFGConv3d,
    FFGLinear,
    InducingConv1d,
    InducingConv2d,
    InducingConv3d,
    InducingDeterministicConv1d,
    InducingDeterministicConv2d,
    InducingDeterministicConv3d,
    InducingDeterministicLinear,
    InducingLinear,
)
