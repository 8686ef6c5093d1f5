"""scikit-learn estimators: arrays in, calibrated predictions out, with the network, its scaling and training inside."""

from bnn.estimators.classifier import BayesianClassifier, ClassDistribution
from bnn.estimators.regressor import BayesianRegressor, TargetDistribution

__all__ = ["BayesianClassifier", "BayesianRegressor", "ClassDistribution", "TargetDistribution"]
