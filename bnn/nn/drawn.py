"""What takes part in draws: a module whose output depends on what was drawn for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bnn._engine import recompute
from bnn._engine.draw import Draw
from bnn._engine.fold import folded, mark_of
from bnn._engine.forward import End, eager_around, forward_of
from bnn._engine.members import Drawing


class Drawn(Drawing):
    """A module that sees all K draws together, whoever runs it: a forward, `torch.vmap`, checkpointing, the compiler.

    A subclass fills `output`.
    """

    options: Any

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        """The outputs (K, ...) under K draws, for an `input` (K, ...), or (1, ...) where all draws see the same."""
        raise NotImplementedError

    def folded_output(self, input: Tensor, draw: Draw) -> Tensor:
        """`output` where K draws run as one pass."""
        return self.output(input, draw)

    def forward(self, input: Tensor) -> Tensor:
        """The output under a draw: a different one at every call of the network."""
        if eager_around():
            return _outside_the_graph(self, input)
        record = recompute.note(self)
        forward = forward_of(self)
        forward.enter(self)
        draw = forward.draw
        if forward.token is not None:  # K draws in one pass: all of them come together here
            return folded(lambda x: self.folded_output(x, draw), input, forward)
        if forward.ends is not None:  # this is the last layer: the network ends with the first of all draws
            outputs = self.output(input.unsqueeze(0), draw)
            forward.ends.append(End(outputs, outputs[0], mark_of(outputs)))
            return forward.ends[-1].first
        if record is not None:
            draw = record.of(draw, took_a_number=forward.root is None).apart_from_others(draw)
        output = self.output(input.unsqueeze(0), draw).squeeze(0)  # views without a copy in backward
        recompute.keep(record, output)
        return output


def _run(module: Drawn, input: Tensor) -> Tensor:
    return module.forward(input)


# A compiled child of a network that is not compiled takes part in a forward that torch.compile cannot look into.
# Without this name, which torch does not promise, compiling such a child fails.
_outside_the_graph = getattr(torch, "_disable_dynamo", lambda function: function)(_run)
