"""A network shown layer by layer: the inputs of each from the network as changed so far, and its original outputs.

Batches of the original network and of the changed one travel together (`lanes`), so that all of it takes two passes,
however many layers there are, and the second moments of one layer are held at a time.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnn._conversion.activation_inputs import copied, number_of
from bnn._conversion.lanes import Lane, current_lane
from bnn._conversion.layer_rows import Sums, in_halves
from bnn._conversion.skips import Skip, SkipWatch, repaired, running_modules, skip_of
from bnn._engine.fold import call
from bnn._engine.inputs import batches_of
from bnn.nn.base import BayesianLayer, Weights, layer_types

BYTES = 2**31  # of activations held at a time; where the inputs would take more, fewer are used
LARGEST = 8192  # entries of a row: second moments of more take over half a gigabyte, to solve several times that


class Shown(NamedTuple):
    """What a layer saw and gave."""

    halves: tuple[Sums, Sums] | None  # of the inputs; None for a layer with too many entries
    norm: Tensor | None  # the running mean of a BatchNorm that takes nothing but the output of this layer, once


Change = Callable[[nn.Module, Shown], Weights]  # new weights for a layer; a bias also where it has none, for its `norm`


class Passage:
    """One network on its way from the first layer to the last. Use it once, inside `with`, in evaluation mode.

    Args:
        root: the network; it is left as it was.
        weights: of the layers to stop at; others run as they are, Bayesian ones at their posterior mean.
        change: what happens at a stop.
    """

    def __init__(self, root: nn.Module, weights: dict[nn.Module, Weights], change: Change) -> None:
        self.root, self.weights, self.change = root, weights, change
        self.changed: dict[nn.Module, Weights] = {}
        self.settled: set[nn.Module] = set()  # layers at which nobody stops any more
        self.calls: Counter[nn.Module] = Counter()  # in one forward; in the order of the first ones
        self.last: nn.Module | None = None  # the layer that runs last, of all that can be converted
        self.norms: dict[nn.Module, Tensor] = {}  # see `Shown.norm`
        self._size = 1  # bytes of activations per input
        self._blocks: dict[nn.Module, nn.Module] = {}  # residual ones, by the layer whose output meets the skip
        self._watch: SkipWatch | None = None
        self._look: Callable[[nn.Module, Tensor, Tensor], None] | None = None  # sees a layer's input and output
        self._stack = ExitStack()

    def __enter__(self) -> Passage:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(self._patched())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def run(self, inputs: Iterator[Any]) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Shows all layers in the order in which they run.

        Returns:
            The batches that were used, and for each the output of the original network and of the changed one.
        """
        first = next(inputs)
        self._explore(first)
        batches = self._as_many_as_fit(first, inputs)
        forwards = [functools.partial(self._run, x) for x in batches]
        pairs = [(Lane(forward, changed=False), Lane(forward, changed=True)) for forward in forwards]
        with self._noting_blocks():
            try:
                self._travel(pairs, batches)
            finally:
                for lane in (lane for pair in pairs for lane in pair):
                    lane.cancel()
        return batches, [(original.output, changed.output) for original, changed in pairs]

    def _run(self, x: Any) -> Any:
        return call(self.root, copied(x))

    # ---- before: one small batch -------------------------------------------------------------------------------------

    def _explore(self, x: Any) -> None:
        """Which layers run, in which order and how often, how much they take, and what becomes of their outputs."""
        few = batches_of(x, 2)[0] if number_of(x) > 2 else x

        def found(layer: nn.Module, skip: Skip) -> None:
            block = running.stack[-1]  # the module that adds
            if block is not self.root and layer in set(block.modules()):  # the whole network takes too long to run anew
                self._blocks[layer] = block

        def look(layer: nn.Module, input: Tensor, output: Tensor) -> None:
            self.calls[layer] += 1
            both = input.numel() * input.element_size() + output.numel() * output.element_size()
            self._size = max(self._size, 6 * both // number_of(few))  # of two networks, and what else is alive

        watching = self._watching(SkipWatch(found))
        with running_modules(self.root) as running, watching as watch, watch, self._looking(look):
            self._run(few)
        covered = tuple(layer_types())
        self.last = next((one for one in reversed(running.ended) if isinstance(one, covered)), None)
        shared = Counter(map(id, watch.norms.values()))
        for layer, count in self.calls.items():
            if count > 1:
                self._blocks.pop(layer, None)
            elif watch.uses[layer] == 1 and layer in watch.norms and shared[id(watch.norms[layer])] == 1:
                self.norms[layer] = watch.norms[layer]

    def _as_many_as_fit(self, first: Any, rest: Iterator[Any]) -> list[Any]:
        batches, seen, most = [first], number_of(first), BYTES // self._size
        for x in rest:
            seen += number_of(x)
            if seen > most:
                break
            batches.append(x)
        return batches

    # ---- layer by layer ----------------------------------------------------------------------------------------------

    def _travel(self, pairs: list[tuple[Lane, Lane]], batches: list[Any]) -> None:
        order = {layer: i for i, layer in enumerate(self.calls)}
        while True:
            for lane in (lane for pair in pairs for lane in pair):
                if not lane.ended and (lane.layer is None or lane.layer in self.settled):
                    lane.advance()
            # Layers that only the original network came to are not shown, but must not hold it up.
            stops = [c.layer for _, c in pairs if c.layer] or [o.layer for o, _ in pairs if o.layer]
            if not stops:
                return
            layer = min(stops, key=lambda one: order.get(one, len(order)))
            if any(c.layer is layer for _, c in pairs):
                halves = None
                if self.weights[layer].weight[0].numel() <= LARGEST:
                    seen = self._all_calls(layer, batches) if self.calls[layer] > 1 else self._met(layer, pairs)
                    halves = in_halves(layer, self.weights[layer], seen)
                self.changed[layer] = self.change(layer, Shown(halves, self.norms.get(layer)))
            self.settled.add(layer)

    def _met(self, layer: nn.Module, pairs: list[tuple[Lane, Lane]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The inputs that the changed network gives the layer, and the outputs of the original one."""
        for original, changed in pairs:
            if changed.layer is layer and changed.tensor is not None:
                yield changed.tensor, self._target(layer, original, changed.tensor, changed.skip)

    def _target(self, layer: nn.Module, original: Lane, input: Tensor, skip: Skip | None) -> Tensor:
        own = None if original.layer is not layer else original.tensor
        if own is None or own.shape[0] != input.shape[0]:
            return plain_output(layer, input, self.weights[layer])  # the original network went another way
        return own if original.skip is None or skip is None else repaired(own, original.skip, skip.tensor)

    def _all_calls(self, layer: nn.Module, batches: list[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """Of a layer that runs several times: all its inputs and outputs while it still is what it was."""
        for x in batches:
            seen: list[tuple[Tensor, Tensor]] = []
            with self._looking(lambda one, *both, seen=seen: seen.append(both) if one is layer else None):
                self._run(x)
            yield from seen

    # ---- what layers do instead of their forward ---------------------------------------------------------------------

    def _forward(self, layer: nn.Module, input: Tensor) -> Tensor:
        lane, own = current_lane(), self.weights[layer]
        if lane is None or self._watch is not None or layer in self.settled:
            shown = own if lane is not None and not lane.changed else self.changed.get(layer, own)
            output = plain_output(layer, input, shown)
            if self._watch is not None:
                self._watch.mark(layer, output, input)
            if lane is None and self._look is not None:
                self._look(layer, input, output)
            return output
        lane.skip = self._skip(layer, lane)
        if lane.changed:
            lane.stop(layer, input)
            return plain_output(layer, input, self.changed.get(layer, own))
        output = plain_output(layer, input, own)
        lane.stop(layer, output)
        return output

    def _skip(self, layer: nn.Module, lane: Lane) -> Skip | None:
        """What will be added to the layer's output, by running its block up to there."""
        block = self._blocks.get(layer)
        if block is None or block not in lane.inputs:
            return None
        args, kwargs = lane.inputs[block]
        return skip_of(block, copied(args), copied(kwargs), layer, self._watching)

    @contextmanager
    def _watching(self, watch: SkipWatch) -> Iterator[SkipWatch]:
        """Layers mark their outputs for `watch`, and stop nowhere. One lane runs at a time, so this is not per lane."""
        self._watch = watch
        try:
            yield watch
        finally:
            self._watch = None

    @contextmanager
    def _looking(self, look: Callable[[nn.Module, Tensor, Tensor], None]) -> Iterator[None]:
        """Layers show their inputs and outputs."""
        self._look = look
        try:
            yield
        finally:
            self._look = None

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Layers run as this object says."""
        patched: list[nn.Module] = []
        fast = torch.backends.mha.get_fastpath_enabled()  # which reads weights and calls no layer
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            for layer in self.root.modules():
                if layer in self.weights:
                    layer.__dict__["forward"] = functools.partial(self._forward, layer)
                elif isinstance(layer, BayesianLayer) and layer.plain is not nn.Module:
                    layer.__dict__["forward"] = functools.partial(_at_mean, layer, layer.mean_weights())
                else:
                    continue
                patched.append(layer)
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for layer in patched:
                del layer.__dict__["forward"]

    @contextmanager
    def _noting_blocks(self) -> Iterator[None]:
        """Lanes keep the inputs of residual blocks while these run."""

        def enter(block: nn.Module, args: Any, kwargs: Any) -> None:
            lane = current_lane()
            if lane is not None and self._watch is None:
                lane.inputs[block] = copied(args), copied(kwargs)

        def leave(block: nn.Module, args: Any, output: Any) -> None:
            lane = current_lane()
            if lane is not None and self._watch is None:
                lane.inputs.pop(block, None)

        with ExitStack() as stack:
            for block in set(self._blocks.values()):
                stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(leave).remove)
            yield


def plain_output(layer: nn.Module, input: Tensor, weights: Weights) -> Tensor:
    """The output of a plain layer with other weights."""
    if isinstance(layer, nn.Linear):
        return F.linear(input, *weights)
    output: Tensor = layer._conv_forward(input, *weights)  # type: ignore[operator]
    return output


def _at_mean(layer: BayesianLayer, mean: Weights, input: Tensor) -> Tensor:
    return layer.run(input, *mean)
