"""What a run may ask of pruning; checked here, where nothing needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bnn._common.checks import check_choice
from bnn._common.text import nearest

NAMES = ("keep", "by", "epochs")
CRITERIA = ["paper", "output"]
SHARE = 4  # the paper trains 50 epochs more after 200


class PruneOptions(NamedTuple):
    """Arguments of `bnn.prune_`, and for how many epochs the network is trained on."""

    keep: float
    by: str
    epochs: int


def prune_options(asked: Any, epochs: int) -> PruneOptions:
    """What a recipe means: a fraction to keep, or a dict with `keep` and others of NAMES, after so many epochs.

    >>> prune_options(0.5, 10), prune_options({"keep": 0.25, "epochs": 0}, 10)
    (PruneOptions(keep=0.5, by='paper', epochs=2), PruneOptions(keep=0.25, by='paper', epochs=0))
    """
    given = dict(asked) if isinstance(asked, Mapping) else {"keep": asked}
    unknown = [name for name in given if name not in NAMES]
    if unknown:
        raise ValueError(f"prune: unknown {unknown[0]!r}{nearest(unknown[0], NAMES)}; expected some of {list(NAMES)}")
    found = PruneOptions(given.get("keep", 0.5), given.get("by", "paper"), given.get("epochs", max(1, epochs // SHARE)))
    if not _is_number(found.keep) or not 0 <= found.keep <= 1:
        raise ValueError(f"prune must be the fraction to keep, between 0 and 1, or an object with it; got {asked!r}")
    check_choice("prune: by", found.by, CRITERIA)
    if not isinstance(found.epochs, int) or isinstance(found.epochs, bool) or found.epochs < 0:
        raise ValueError(f"prune: epochs must be 0 or a positive integer, got {found.epochs!r}")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
