"""Values computed from tensors, kept until one of the tensors changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

T = TypeVar("T")

_steps = [0]  # of all optimisers


def _count_step(*_: Any) -> None:
    _steps[0] += 1


register_optimizer_step_post_hook(_count_step)


class Cache(Generic[T]):
    """Remembers one value without gradients, together with the tensors it came from and their versions.

    torch counts every in-place change of a tensor: `load_state_dict`, `copy_`, most optimisers. Fused ones escape it:
    the step of any optimiser counts as a change. Assigning another tensor or another storage (`.to()`) is seen as well.
    Only writes through `.data` go unnoticed, as by autograd.
    """

    def __init__(self) -> None:
        self._key: list[tuple[Any, ...]] | None = None
        self._value: T | None = None

    def get(self, sources: Sequence[Tensor], compute: Callable[[], T]) -> T:
        """The value of `compute()`, computed anew only if one of `sources` changed since."""
        key = _key(sources)
        if key is None:
            return compute()
        if self._value is None or self._key is None or not _same(key, self._key):
            with torch.inference_mode(False), torch.no_grad():  # usable wherever it is asked for next
                self._value = compute()
            self._key = key
        return self._value

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a file starts empty."""
        return {"_key": None, "_value": None}


def _key(sources: Sequence[Tensor]) -> list[tuple[Any, ...]] | None:
    """What identifies the values of `sources`; None for tensors that nobody can watch."""
    if torch.compiler.is_compiling():
        return None
    if any(t.is_inference() or torch._C._functorch.is_functorch_wrapped_tensor(t) for t in sources):
        return None
    return [(t, t._version, t.data_ptr(), t.dtype, t.device, _steps[0]) for t in sources]


def _same(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> bool:
    return all(a[0] is b[0] and a[1:] == b[1:] for a, b in zip(one, other, strict=True))
