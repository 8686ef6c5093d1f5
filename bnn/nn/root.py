"""The root of a converted network: hooks that make each of its forwards one draw."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

from bnn.nn.draw import Draw, inputs_of, open_now, set_open
from bnn.nn.recompute import in_backward, is_recorded, recorded


def current_draw(layer: nn.Module, input: Tensor) -> Draw:
    """The draw `layer` takes part in: the open one, the one of its forward where it runs again, or one of its own."""
    draw = open_now()
    if draw is not None:
        return draw
    return recorded(layer, input) if in_backward() else Draw()


def mark_root_(network: nn.Module) -> None:
    """Marks `network` in place as a root: each of its forwards is one draw. Marking twice changes nothing."""
    if "_draw_hooks" in network.__dict__:
        return
    # The handles travel with the network: unpickling them reserves their ids, so that no later hook overwrites ours.
    network.__dict__["_draw_hooks"] = [
        network.register_forward_pre_hook(_open, with_kwargs=True),
        network.register_forward_hook(_close, always_call=True),
    ]


def _open(module: nn.Module, args: Any, kwargs: Any) -> None:
    draw = open_now()
    if draw is None and in_backward() and is_recorded(module):
        return  # runs again for its gradient: its layers know their draw
    if draw is not None and draw.root is module and not draw.pinned:
        if _calls_itself(module):
            draw.depth += 1
            return
        draw = draw.outer  # left behind by an interrupted forward: closing hooks do not run on Ctrl-C
    elif draw is not None and draw.covers(module):
        return
    new = Draw(root=module, inputs=inputs_of(args, kwargs))
    new.outer = draw
    set_open(new)


def _close(module: nn.Module, args: Any, output: Any) -> None:
    draw = open_now()
    if draw is None or draw.root is not module or draw.pinned:
        return
    draw.depth -= 1
    if not draw.depth:
        set_open(draw.outer)


def _calls_itself(module: nn.Module) -> bool:
    """Whether a call of `module` is running below the one whose opening hook asks."""
    frame, calls = sys._getframe(), 0
    while frame is not None:
        calls += frame.f_code is nn.Module._call_impl.__code__ and frame.f_locals.get("self") is module
        frame = frame.f_back  # type: ignore[assignment]
    return calls > 1
