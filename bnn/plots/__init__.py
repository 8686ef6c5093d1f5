"""Plots: functions that take axes, draw one thing on them, label them and return them.

Call one several times on the same axes to compare; with a `label` each series joins a key above the axes. Colours,
markers and line styles follow `series` unless `color` says otherwise. Draw under `theme` for the look of the reports;
then every colour is one of `PALETTE`, `INK`, `FAINT` and `SURFACE`. Needs `pip install "bayesianize[plots]"`.

>>> from types import SimpleNamespace
>>> from matplotlib.figure import Figure
>>> from bnn import plots
>>> with plots.theme():
...     ax = Figure().subplots()
...     curve = SimpleNamespace(probability=[0.3, 0.8], frequency=[0.2, 0.9], weights=[0.4, 0.6])
...     plots.reliability(ax, curve, label="FFG-U").get_xlabel()
'predicted probability'
"""

from bnn.plots.calibration import interval_coverage, predicted_against_true, reliability
from bnn.plots.confusion import confusion_matrix, frequent_mistakes
from bnn.plots.curves import accuracy_coverage, corruption_curve, risk_coverage, training_curve
from bnn.plots.ood import roc, score_histogram
from bnn.plots.pictures import pictures
from bnn.plots.style import FAINT, INK, PALETTE, SURFACE, series, theme
from bnn.plots.tradeoff import tradeoff

__all__ = [
    "FAINT",
    "INK",
    "PALETTE",
    "SURFACE",
    "accuracy_coverage",
    "confusion_matrix",
    "corruption_curve",
    "frequent_mistakes",
    "interval_coverage",
    "pictures",
    "predicted_against_true",
    "reliability",
    "risk_coverage",
    "roc",
    "score_histogram",
    "series",
    "theme",
    "tradeoff",
    "training_curve",
]
