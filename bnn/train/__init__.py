"""Training: `fit`, recipes and presets, BatchNorm under draws. A loop of your own stays valid without any of it."""

from typing import TYPE_CHECKING, Any

from bnn._common.errors import DivergenceError
from bnn.train.presets import presets
from bnn.train.recipe import Recipe
from bnn.train.schedule import Schedule

if TYPE_CHECKING:
    from bnn.train.batchnorm import refresh_batchnorm_
    from bnn.train.execute import run_recipe
    from bnn.train.fitting import fit
    from bnn.train.history import History
    from bnn.train.runs.folder import RunFolder
    from bnn.train.runs.opening import load_run, open_run
    from bnn.train.runs.run import Run

__all__ = [
    "DivergenceError",
    "History",
    "Recipe",
    "Run",
    "RunFolder",
    "Schedule",
    "fit",
    "load_run",
    "open_run",
    "presets",
    "refresh_batchnorm_",
    "run_recipe",
]

# Where what needs torch lives; imported when it is first asked for, so that recipes and their flags need no torch.
_LATER = {
    "History": "bnn.train.history",
    "Run": "bnn.train.runs.run",
    "RunFolder": "bnn.train.runs.folder",
    "fit": "bnn.train.fitting",
    "load_run": "bnn.train.runs.opening",
    "open_run": "bnn.train.runs.opening",
    "refresh_batchnorm_": "bnn.train.batchnorm",
    "run_recipe": "bnn.train.execute",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'bnn.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
