"""Bayesian networks as modules of Lightning."""

from bnn.lightning.module import BayesianModule

__all__ = ["BayesianModule"]
