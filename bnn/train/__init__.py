"""Training: `fit`, recipes and presets, BatchNorm under draws. A loop of your own stays valid without any of it."""

from bnn._common.errors import DivergenceError
from bnn.train.batchnorm import refresh_batchnorm_
from bnn.train.execute import run_recipe
from bnn.train.fitting import fit
from bnn.train.history import History
from bnn.train.outcome import Outcome, load_run
from bnn.train.presets import presets
from bnn.train.recipe import Recipe
from bnn.train.schedule import Schedule

__all__ = [
    "DivergenceError",
    "History",
    "Outcome",
    "Recipe",
    "Schedule",
    "fit",
    "load_run",
    "presets",
    "refresh_batchnorm_",
    "run_recipe",
]
