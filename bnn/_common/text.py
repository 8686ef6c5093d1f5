"""Words for messages: lists of names, and the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def listed(items: Iterable[str], shown: int = 3) -> str:
    """The first few items, and how many more there are.

    >>> listed("abcde")
    'a; b; c; and 2 more'
    """
    items = list(items)
    return "; ".join([*items[:shown], *([f"and {len(items) - shown} more"] if len(items) > shown else [])])


def nearest(name: object, known: Iterable[object], shown: int = 1, cutoff: float = 0.6) -> str:
    """A suggestion to put behind an unknown name, or nothing.

    >>> nearest("difits", ["digits", "cifar10"])
    " (did you mean 'digits'?)"
    >>> nearest("zebra", ["digits", "cifar10"])
    ''
    """
    close = difflib.get_close_matches(str(name), [str(one) for one in known], n=shown, cutoff=cutoff)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
