"""Metrics: plain functions of arrays or tensors, in float64, that return Python floats; each with a bootstrap interval.

Classes: `accuracy`, `nll`, `brier`, `ece`, `adaptive_ece`, `classwise_ece`, `aurc`, `accuracy_coverage`;
out-of-distribution inputs: `auroc`, `aupr`, `fpr95` of `ood_scores`; real numbers: `rmse`, `gaussian_nll`, `crps`,
`coverage`, `sharpness`, `interval` and, for the draws themselves, `mixture_nll` and its like, or `lognormal_nll` and
its like where they are of log targets; `temperature_scaling`;
`bootstrap`. `classification_metrics`, `detection_metrics` and `regression_metrics` give all of a kind at once; `metric`
registers one of your own, which evaluations and reports then show. `detection_comparison` has scores side by side, on
the same resamples; `risk_coverage` and `risk_area` are what abstaining by an uncertainty gains.

>>> from bnn import metrics
>>> metrics.accuracy([[0.9, 0.1], [0.2, 0.8]], [0, 0])
0.5
"""

from bnn.metrics.bootstrap import Interval, bootstrap
from bnn.metrics.classification import accuracy, adaptive_ece, brier, classwise_ece, ece, nll
from bnn.metrics.detection import aupr, auroc, fpr95, ood_scores
from bnn.metrics.lognormal import lognormal_crps, lognormal_interval, lognormal_moments, lognormal_nll
from bnn.metrics.mixture import mixture_crps, mixture_interval, mixture_nll, sample_crps
from bnn.metrics.paired import Compared, detection_comparison, risk_areas
from bnn.metrics.registry import metric
from bnn.metrics.regression import coverage, crps, gaussian_nll, interval, rmse, sharpness
from bnn.metrics.selective import (
    AccuracyCoverage,
    RiskCoverage,
    accuracy_coverage,
    accuracy_coverage_of_hits,
    aurc,
    aurc_of_hits,
    risk_area,
    risk_coverage,
)
from bnn.metrics.suites import classification_metrics, detection_metrics, regression_metrics
from bnn.metrics.temperature import apply_temperature, nll_after_temperature, temperature_scaling

__all__ = [
    "AccuracyCoverage",
    "Compared",
    "Interval",
    "RiskCoverage",
    "accuracy",
    "accuracy_coverage",
    "accuracy_coverage_of_hits",
    "adaptive_ece",
    "apply_temperature",
    "aupr",
    "aurc",
    "aurc_of_hits",
    "auroc",
    "bootstrap",
    "brier",
    "classification_metrics",
    "classwise_ece",
    "coverage",
    "crps",
    "detection_comparison",
    "detection_metrics",
    "ece",
    "fpr95",
    "gaussian_nll",
    "interval",
    "lognormal_crps",
    "lognormal_interval",
    "lognormal_moments",
    "lognormal_nll",
    "metric",
    "mixture_crps",
    "mixture_interval",
    "mixture_nll",
    "nll",
    "nll_after_temperature",
    "ood_scores",
    "regression_metrics",
    "risk_area",
    "risk_areas",
    "risk_coverage",
    "rmse",
    "sample_crps",
    "sharpness",
    "temperature_scaling",
]
