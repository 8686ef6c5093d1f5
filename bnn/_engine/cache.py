"""Values computed from tensors, kept until one of the tensors changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Cache(Generic[T]):
    """Remembers one value without gradients, together with copies of the tensors it came from.

    Whether the value still holds is seen by comparing the tensors with the copies, entry by entry: whoever changed them
    and however (an optimiser, `load_state_dict`, `.data`, NumPy, another process through shared memory), a value is
    never out of date. Comparing takes one look at each entry; the factors it saves take M looks.
    """

    def __init__(self) -> None:
        self._kept: tuple[list[Tensor], Any, T] | None = None  # in one piece, so that threads never see half a change

    def get(self, sources: Sequence[Tensor], compute: Callable[[], T], setting: Any = None) -> T:
        """The value of `compute()`, computed anew only if one of `sources`, or `setting`, changed since."""
        if torch.compiler.is_compiling():
            return compute()
        kept = self._kept
        try:
            for source in sources:
                source.data_ptr()  # tensors of torch.func's transforms have none: they are not to be kept
            if kept is not None and kept[1] == setting and _all_same(sources, kept[0]):
                return kept[2]
            with torch.inference_mode(False), torch.no_grad():  # usable wherever it is asked for next
                copies = [source.detach().clone() for source in sources]
                value = compute()
        except RuntimeError:  # of such a tensor; or of `compute`, which will say it again
            return compute()
        if _all_same(sources, copies):  # else another thread changed them meanwhile
            self._kept = copies, setting, value
        return value

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a file starts empty."""
        return {"_kept": None}


def _all_same(sources: Sequence[Tensor], copies: Sequence[Tensor]) -> bool:
    return len(sources) == len(copies) and all(map(_same, sources, copies))


def _same(source: Tensor, copy: Tensor) -> bool:
    return source.dtype == copy.dtype and source.device == copy.device and torch.equal(source, copy)
