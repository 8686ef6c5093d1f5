"""Packages that come with an extra: imported where they are used, with an error that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any

PACKAGES = {
    "PIL": "pillow",
    "pyro": "pyro-ppl",
    "sklearn": "scikit-learn",
}  # where the package has another name than the module


def need(module: str, extra: str) -> Any:
    """The module of this name, or an ImportError that names the package and the extra it comes with.

    >>> need("math", extra="train").sqrt(4.0)
    2.0
    >>> need("no_such_module", extra="train")
    Traceback (most recent call last):
    ImportError: this needs no_such_module: pip install "bayesianize[train]"
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != top:
            raise  # it is there, but broken inside
        package = PACKAGES.get(top, top)
        raise ImportError(f'this needs {package}: pip install "bayesianize[{extra}]"', name=error.name) from None
