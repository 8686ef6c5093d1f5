"""Bayesian neural networks with fewer parameters than the network itself.

>>> import torch, bnn
>>> net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
>>> bnn.bayesianize_(net, inference="inducing", inducing_rows=16, inducing_cols=16)
>>> net(torch.randn(5, 64)).shape
torch.Size([5, 10])
"""

from typing import TYPE_CHECKING, Any

from bnn import calibration, distributions, likelihoods, nn
from bnn._conversion.config import load_config
from bnn._conversion.methods import Method, methods, register_method
from bnn._engine.fold import FoldingWarning
from bnn._engine.frozen import frozen_draw
from bnn.bayesianize import bayesianize_
from bnn.ensemble import Ensemble
from bnn.files import FileFormatError, load_, load_legacy_, save
from bnn.global_inducing import register_global_inducing_weights_
from bnn.objective import ELBO, ELBOResult, kl_divergence
from bnn.parameters import parameter_count, parameter_groups
from bnn.prediction import draws, predict, set_sampling_

if TYPE_CHECKING:
    from bnn import data, metrics, plots, report, train
    from bnn.estimators import BayesianClassifier, BayesianRegressor
    from bnn.evaluation import Evaluation, evaluate
    from bnn.train import History, Recipe, Schedule, fit, open_run, refresh_batchnorm_

# Where names of the application live; imported when they are first asked for, so that `import bnn` stays light.
_LATER = {
    "data": "bnn.data",
    "metrics": "bnn.metrics",
    "plots": "bnn.plots",
    "report": "bnn.report",
    "train": "bnn.train",
    "fit": "bnn.train",
    "open_run": "bnn.train",
    "refresh_batchnorm_": "bnn.train",
    "Schedule": "bnn.train",
    "History": "bnn.train",
    "Recipe": "bnn.train",
    "evaluate": "bnn.evaluation",
    "Evaluation": "bnn.evaluation",
    "BayesianClassifier": "bnn.estimators",
    "BayesianRegressor": "bnn.estimators",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _LATER:
        raise AttributeError(f"module 'bnn' has no attribute {name!r}")
    module = importlib.import_module(_LATER[name])
    return module if _LATER[name] == f"bnn.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
