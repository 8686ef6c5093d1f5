"""What a run may ask of Laplace's approximation; checked here, where nothing needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bnn._common.checks import check_choice, check_positive, check_size
from bnn._common.text import nearest

NAMES = ("layers", "prior_precision", "labels", "inducing_cols")  # arguments of `bnn.laplace_` that a run can choose
LAYERS = '"last", "all", a name, or a list of names'


def laplace_options(asked: Any) -> dict[str, Any]:
    """Arguments of `bnn.laplace_`: of layers alone, or of a dict with `layers` and others of NAMES.

    >>> laplace_options("all"), laplace_options({"prior_precision": "validation"})
    ({'layers': 'all'}, {'layers': 'last', 'prior_precision': 'validation'})
    """
    if not isinstance(asked, Mapping):
        return {"layers": asked}
    unknown = [name for name in asked if name not in NAMES]
    if unknown:
        raise ValueError(f"laplace: unknown {unknown[0]!r}{nearest(unknown[0], NAMES)}; expected some of {list(NAMES)}")
    options = {"layers": "last", **asked}
    precision = options.get("prior_precision", "marginal")
    if isinstance(precision, str):
        check_choice("laplace: prior_precision", precision, ["marginal", "validation"])
    else:
        check_positive("laplace: prior_precision", precision)
    check_choice("laplace: labels", options.get("labels", "sampled"), ["sampled", "exact"])
    check_size("laplace: inducing_cols", options.get("inducing_cols"), none=True)
    return options


def check_stored(asked: Any) -> None:
    """ValueError unless `asked` can stand in a recipe: layers are named there."""
    if asked is None:
        return
    layers = laplace_options(asked)["layers"]
    several = layers if isinstance(layers, tuple | list) else (layers,)
    if not several or not all(isinstance(one, str) and one for one in several):
        raise ValueError(f"laplace must be {LAYERS}; or such layers with other options of bnn.laplace_; got {asked!r}")
