"""Gradient checkpointing: a layer that runs again inside backward shows what it showed in its forward.

`torch.utils.checkpoint` runs a part of the network a second time, with torch's random state as it was, when the forward
that it belonged to has ended, and maybe in another thread. While it runs the part for the first time it watches
the tensors that autograd saves: so only then does a layer leave a record of its draw as it found it, by which it is
found again: by the layer and the random state. A record lives exactly as long as the graph: it hangs on the node of the
layer's output. Noise comes from generators of its own, so records move nobody's random stream.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bnn._engine.draw import SHARED, Draw
from bnn._engine.frozen import frozen_now
from bnn._engine.noise import rows_of

# Names that torch does not promise. Without the first nobody runs again, as far as we can tell; without the second
# every forward with gradients is watched, which costs time alone.
_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore: True)

# By id of the module and whether it took a number for itself, by random state.
_records: dict[tuple[int, bool], weakref.WeakValueDictionary[int, _Record]] = {}


class _Record:
    """A module that may run again, the random state from which it ran, and its draw as it found it."""

    def __init__(self, module: nn.Module, state: int) -> None:
        self.module, self.state = weakref.ref(module), state
        self.draw: Draw | None = None
        self.took_a_number = False  # the draw was made for this module alone, by a number from the random stream
        self.ambiguous = False  # another draw ran from the same random state

    def of(self, draw: Draw, took_a_number: bool = True) -> _Record:
        """This record with the draw, before the module has drawn anything from it."""
        module = self.module()
        assert module is not None
        self.draw, self.took_a_number = _as_found(draw, module), took_a_number
        return self

    def apart_from_others(self, draw: Draw) -> Draw:
        """The draw for the module to run with now: what runs again cannot draw for other draws of the call, too."""
        module = self.module()
        assert module is not None
        return draw if draw.parent is None else _as_found(draw, module)


def in_backward() -> bool:
    """Whether this thread is computing gradients, and what runs now will have gradients of its own."""
    return not torch.compiler.is_compiling() and _graph_task() != -1 and torch.is_grad_enabled()


def watched() -> bool:
    """Whether what runs now may have to run again."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    return _saving_hooks(True) is not None and _graph_task() == -1


def note(module: nn.Module) -> _Record | None:
    """A record for a module that begins to run; None where it cannot run again."""
    return _Record(module, _state()) if watched() else None


def keep(record: _Record | None, output: Any) -> None:
    """Ties the life of a record to the graph behind `output`."""
    if record is None:
        return
    tensor = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad), None)
    module = record.module()
    if tensor is None or tensor.grad_fn is None or module is None:
        return
    tensor.grad_fn.metadata.setdefault("bnn", []).append(record)  # type: ignore[attr-defined]
    key = id(module), record.took_a_number
    if key not in _records:
        _records[key] = weakref.WeakValueDictionary()
        weakref.finalize(module, _records.pop, key, None)
    own = _records[key]
    other = own.get(record.state)
    if other is not None and other.draw is not None and record.draw is not None:
        record.ambiguous = other.ambiguous or not _same(other.draw, record.draw)
    own[record.state] = record


def is_recorded(root: nn.Module) -> bool:
    """Whether the forward of `root` began from the present random state."""
    own = _records.get((id(root), True))
    return own is not None and _state() in own


def recorded(module: nn.Module, root: bool = False) -> Draw:
    """The draw that `module`, the `root` of a network or a layer, took part in when it ran from this random state."""
    state = _state()
    kinds = [True] if root else [False, True]
    found = (_records[id(module), kind].get(state) for kind in kinds if (id(module), kind) in _records)
    record = next((record for record in found if record is not None), None)
    if record is None or record.draw is None or record.ambiguous:
        raise RuntimeError(
            f"a {type(module).__name__} runs again inside backward, but not as it ran forward, so its gradient would "
            "be wrong; use torch.utils.checkpoint.checkpoint(..., use_reentrant=False, preserve_rng_state=True)"
        )
    if record.took_a_number:
        torch.randint(2**62, (), device="cpu")  # so that what comes next finds the random stream where it was
    return _as_found(record.draw, module)


def _as_found(draw: Draw, module: nn.Module) -> Draw:
    """A copy of `draw` as `module` finds it now."""
    found = copy.copy(draw)
    found.parent, found.shown = None, dict(draw.shown)
    found.around = frozen_now() if draw.around is None else draw.around
    drawn = draw.drawn
    if draw.parent is not None:  # a part of several draws: what it shows of them
        first, stop = draw.within(draw.parent)
        found.members = None if draw.members is None else draw.members[first:stop]
        drawn = {key: rows_of(value, first, stop) for key, value in draw.parent.drawn.items()} | drawn
    found.drawn = {key: value for key, value in drawn.items() if key[0] is module or key[1] == SHARED}
    found.call = copy.copy(draw.call)
    found.call.ways, found.call.by_rows = dict(draw.call.ways), set(draw.call.by_rows)
    found.call.posteriors, found.call.prepared = dict(draw.call.posteriors), set(draw.call.prepared)
    found.call.computed = {key: value for key, value in draw.call.computed.items() if key[0] is module}
    return found


def _same(one: Draw, other: Draw) -> bool:
    numbers = [None if draw.seeds is None else draw.seeds.number for draw in (one, other)]
    return numbers[0] is not None and numbers[0] == numbers[1] and one.first == other.first


def _state() -> int:
    """torch's random state on the CPU, from which every draw takes its number, as a number."""
    return hash(torch.get_rng_state().numpy().tobytes())
