"""Gradient checkpointing: a layer that runs again inside backward shows what it showed in its forward.

`torch.utils.checkpoint` runs a part of the network a second time, with torch's random state as it was, after the draw
that the part belonged to has closed. So every layer that gradients flow through leaves a record of its draw as it was
when the layer began, found again by the layer and the random state. A record lives exactly as long as the graph: it
hangs on the node of the layer's output.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from bnn.nn.draw import Draw

_records: dict[int, weakref.WeakValueDictionary[int, _Record]] = {}  # by id of the layer, by random state


class _Record:
    """A draw as a layer found it, the layer, and the random state."""

    def __init__(self, draw: Draw, layer: nn.Module, state: int) -> None:
        self.draw, self.state = draw, state
        self.layer = weakref.ref(layer)


def in_backward() -> bool:
    """Whether this thread is computing gradients."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def note(layer: nn.Module, draw: Draw, like: Tensor) -> Any:
    """A record of `draw` before `layer` has drawn anything from it; None where no gradient can ask for it."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or draw.token is not None:
        return None
    if like.is_meta or torch._C._functorch.peek_interpreter_stack() is not None:  # no random state to tell forwards by
        return None
    record = _Record(draw.snapshot(layer), layer, _state(like))
    torch.rand((), device=like.device)  # no other run of a layer, seeded ones included, starts from the same state
    return record


def keep(record: Any, output: Tensor) -> None:
    """Ties the life of a record to the graph behind `output`."""
    if record is None or output.grad_fn is None:
        return
    layer = record.layer()
    output.grad_fn.metadata.setdefault("bnn", []).append(record)  # type: ignore[attr-defined]
    if id(layer) not in _records:
        _records[id(layer)] = weakref.WeakValueDictionary()
        weakref.finalize(layer, _records.pop, id(layer), None)
    _records[id(layer)][record.state] = record


def recorded(layer: nn.Module, like: Tensor) -> Draw:
    """The draw that `layer` took part in when it ran forward from the present random state."""
    own = _records.get(id(layer))
    record = None if own is None else own.get(_state(like))
    if record is None:
        raise RuntimeError(
            f"a {type(layer).__name__} runs again inside backward, but not as it ran forward, so its gradient would be "
            "wrong; use torch.utils.checkpoint.checkpoint(..., use_reentrant=False, preserve_rng_state=True)"
        )
    draw: Draw = record.draw.snapshot(layer)
    return draw


def is_recorded(network: nn.Module) -> bool:
    """Whether some layer of `network` has run forward and waits for its gradient."""
    return any(_records.get(id(module)) for module in network.modules())


def _state(like: Tensor) -> int:
    """The random state of the device of `like`, as a number."""
    if like.device.type == "cpu":
        return hash(torch.get_rng_state().numpy().tobytes())
    return hash(torch.get_device_module(like.device).get_rng_state(like.device).numpy().tobytes())
