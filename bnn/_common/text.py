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


def counted(number: int, what: str) -> str:
    """How many of something.

    >>> counted(1, "epoch"), counted(2000, "epoch")
    ('1 epoch', '2,000 epochs')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def nearest(name: object, known: Iterable[object], shown: int = 1, cutoff: float = 0.6, before: str = "") -> str:
    """A suggestion to put behind an unknown name, or nothing.

    Args:
        known: the names there are; upper and lower case count as the same.
        shown: at most so many are suggested.
        cutoff: how similar they have to be, between 0 and 1.
        before: what stands before every suggested name, such as its folder.

    >>> nearest("difits", ["digits", "cifar10"])
    " (did you mean 'digits'?)"
    >>> nearest("relu", ["ReLU", "GELU"], shown=2)
    " (did you mean 'ReLU' or 'GELU'?)"
    >>> nearest("zebra", ["digits", "cifar10"])
    ''
    """
    spelled: dict[str, str] = {}
    for one in map(str, known):
        spelled.setdefault(one.lower(), one)
    close = difflib.get_close_matches(str(name).lower(), spelled, n=shown, cutoff=cutoff)
    return f" (did you mean {' or '.join(repr(before + spelled[one]) for one in close)}?)" if close else ""
