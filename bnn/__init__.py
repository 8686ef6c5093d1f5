"""Bayesian neural networks with fewer parameters than the network itself.

>>> import torch, bnn
>>> net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
>>> bnn.bayesianize_(net, inference="inducing", inducing_rows=16, inducing_cols=16)
>>> net(torch.randn(5, 64)).shape
torch.Size([5, 10])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the public names for type checkers and editors; `_NAMES` and `_MODULES` are the same for Python
    from bnn import bayesianize as bayesianize
    from bnn import calibration as calibration
    from bnn import conformal as conformal
    from bnn import data as data
    from bnn import distributions as distributions
    from bnn import ensemble as ensemble
    from bnn import estimators as estimators
    from bnn import evaluation as evaluation
    from bnn import files as files
    from bnn import functional as functional
    from bnn import global_inducing as global_inducing
    from bnn import laplace as laplace
    from bnn import likelihoods as likelihoods
    from bnn import metrics as metrics
    from bnn import nn as nn
    from bnn import objective as objective
    from bnn import parameters as parameters
    from bnn import plots as plots
    from bnn import prediction as prediction
    from bnn import prune as prune
    from bnn import report as report
    from bnn import temperature as temperature
    from bnn import train as train
    from bnn._conversion.config import load_config as load_config
    from bnn._conversion.methods import Method as Method
    from bnn._conversion.methods import methods as methods
    from bnn._conversion.methods import register_method as register_method
    from bnn._conversion.summary import summary as summary
    from bnn._engine.fold import FoldingWarning as FoldingWarning
    from bnn._engine.frozen import frozen_draw as frozen_draw
    from bnn.bayesianize import bayesianize_ as bayesianize_
    from bnn.dropout import keep_dropout_ as keep_dropout_
    from bnn.ensemble import Ensemble as Ensemble
    from bnn.estimators import BayesianClassifier as BayesianClassifier
    from bnn.estimators import BayesianRegressor as BayesianRegressor
    from bnn.evaluation import Evaluation as Evaluation
    from bnn.evaluation import evaluate as evaluate
    from bnn.files import FileFormatError as FileFormatError
    from bnn.files import load_ as load_
    from bnn.files import load_legacy_ as load_legacy_
    from bnn.files import save as save
    from bnn.global_inducing import register_global_inducing_weights_ as register_global_inducing_weights_
    from bnn.laplace import Laplace as Laplace
    from bnn.laplace import laplace_ as laplace_
    from bnn.objective import ELBO as ELBO
    from bnn.objective import ELBOResult as ELBOResult
    from bnn.objective import kl_divergence as kl_divergence
    from bnn.parameters import parameter_count as parameter_count
    from bnn.parameters import parameter_groups as parameter_groups
    from bnn.prediction import draws as draws
    from bnn.prediction import predict as predict
    from bnn.prediction import set_sampling_ as set_sampling_
    from bnn.prune import prune_ as prune_
    from bnn.teacher import Teacher as Teacher
    from bnn.temperature import calibrate_ as calibrate_
    from bnn.train import History as History
    from bnn.train import Recipe as Recipe
    from bnn.train import Schedule as Schedule
    from bnn.train import fit as fit
    from bnn.train import open_run as open_run
    from bnn.train import refresh_batchnorm_ as refresh_batchnorm_

# Everything is imported when it is first asked for: `import bnn` loads nothing, and a command shows its help without
# torch.
_MODULES = frozenset(
    {
        "bayesianize",
        "calibration",
        "conformal",
        "data",
        "distributions",
        "ensemble",
        "estimators",
        "evaluation",
        "files",
        "functional",
        "global_inducing",
        "laplace",
        "likelihoods",
        "metrics",
        "nn",
        "objective",
        "parameters",
        "plots",
        "prediction",
        "prune",
        "report",
        "temperature",
        "train",
    }
)
_NAMES = {
    "load_config": "bnn._conversion.config",
    "Method": "bnn._conversion.methods",
    "methods": "bnn._conversion.methods",
    "register_method": "bnn._conversion.methods",
    "summary": "bnn._conversion.summary",
    "FoldingWarning": "bnn._engine.fold",
    "frozen_draw": "bnn._engine.frozen",
    "bayesianize_": "bnn.bayesianize",
    "keep_dropout_": "bnn.dropout",
    "Ensemble": "bnn.ensemble",
    "BayesianClassifier": "bnn.estimators",
    "BayesianRegressor": "bnn.estimators",
    "Evaluation": "bnn.evaluation",
    "evaluate": "bnn.evaluation",
    "FileFormatError": "bnn.files",
    "load_": "bnn.files",
    "load_legacy_": "bnn.files",
    "save": "bnn.files",
    "register_global_inducing_weights_": "bnn.global_inducing",
    "Laplace": "bnn.laplace",
    "laplace_": "bnn.laplace",
    "ELBO": "bnn.objective",
    "ELBOResult": "bnn.objective",
    "kl_divergence": "bnn.objective",
    "parameter_count": "bnn.parameters",
    "parameter_groups": "bnn.parameters",
    "draws": "bnn.prediction",
    "predict": "bnn.prediction",
    "set_sampling_": "bnn.prediction",
    "prune_": "bnn.prune",
    "Teacher": "bnn.teacher",
    "calibrate_": "bnn.temperature",
    "History": "bnn.train",
    "Recipe": "bnn.train",
    "Schedule": "bnn.train",
    "fit": "bnn.train",
    "open_run": "bnn.train",
    "refresh_batchnorm_": "bnn.train",
}
_EXTRA = ("bnn.estimators", "bnn.evaluation", "bnn.train")  # may need packages that are not there
__all__ = ["calibration", "distributions", "likelihoods", "nn"]  # for `from bnn import *`: what needs no extra
__all__ += [name for name, module in _NAMES.items() if module not in _EXTRA]


def __getattr__(name: str) -> Any:
    """The public module or name that is asked for the first time; from then on it is an ordinary attribute."""
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"bnn.{name}")  # which makes it an attribute
    if name not in _NAMES:
        raise AttributeError(f"module 'bnn' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_NAMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_MODULES} - {"Any", "TYPE_CHECKING"})
