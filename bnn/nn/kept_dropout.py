"""torch's Dropout layers as parts of a draw: they drop in evaluation mode, too, with masks that the draw names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from bnn._common.checks import check_choice
from bnn._engine import recompute
from bnn._engine.draw import Draw
from bnn._engine.fold import Drawn
from bnn._engine.forward import running
from bnn.functional.dropout import dropout_mask
from bnn.functional.linalg import at_least_float32
from bnn.nn.options import Options

RUNS = "runs"  # under this name a draw counts how often a module ran


@dataclass(frozen=True)
class KeptDropoutOptions(Options):
    """Options of kept Dropout layers."""

    sampling: str = "auto"  # a mask for every input; "weight": one for the batch, a function; "local" is as "auto"

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, ["auto", "weight", "local"])


class Kept(Drawn):
    """Drops in both modes; one that runs at several places of a network has a mask of its own at each."""

    plain: ClassVar[type[nn.Module]]
    space: ClassVar[int] = 0  # how many of the last dimensions share an entry of the mask
    runs = False  # is not missed where it does not run: its functional form may

    p: float
    options: KeptDropoutOptions

    @classmethod
    def convert_(cls, layer: nn.Module) -> None:
        """Turns a Dropout layer of torch, in place, into a kept one."""
        layer.__class__ = cls
        layer.options = KeptDropoutOptions()  # type: ignore[assignment]

    def revert_(self) -> None:
        """Turns it, in place, into torch's own again."""
        del self.options
        self.__class__ = self.plain  # type: ignore[assignment]

    def forward(self, input: Tensor) -> Tensor:
        """The input with some of its entries set to 0, the others divided by 1 - p: others in every draw."""
        forward = running()
        if forward is not None and forward.ran(self) and recompute.watched():
            raise RuntimeError(
                f"a {self.plain.__name__} that runs twice in a forward cannot run again for gradient checkpointing: "
                "give each place a Dropout layer of its own"
            )
        return super().forward(input)

    def output(self, input: Tensor, draw: Draw) -> Tensor:
        if draw.call.at_mean:
            return input.expand(draw.count, *input.shape[1:])
        run = draw.drawn.get((self, RUNS), 0)
        draw.drawn[self, RUNS] = run + 1
        shape = tuple(input.shape[1:])  # of one draw
        batched = len(shape) > 1 + self.space and draw.inputs in (None, shape[0])
        shape = shape[: len(shape) - self.space] + (1,) * self.space
        by_input = self._by_input(draw)
        shape = (1, *shape[1:]) if batched and not by_input else shape
        noise = draw.normals(self, f"mask {run}", *shape, like=at_least_float32(input), by_input=by_input)
        return input * dropout_mask(noise, self.p).to(input.dtype)

    def _by_input(self, draw: Draw) -> bool:
        """Whether every input has a mask of its own, where `sampling` lets us choose."""
        if self.options.sampling == "weight" or draw.frozen(self):
            return False
        return not draw.call.restarts or self.options.sampling == "local" or not draw.call.couples_inputs()


class KeptDropout(Kept, nn.Dropout):
    """Drops single entries of (N, ...)."""

    plain = nn.Dropout


class KeptDropout1d(Kept, nn.Dropout1d):
    """Drops channels of (N, c, length) or (c, length)."""

    plain, space = nn.Dropout1d, 1


class KeptDropout2d(Kept, nn.Dropout2d):
    """Drops channels of (N, c, height, width) or (c, height, width)."""

    plain, space = nn.Dropout2d, 2


class KeptDropout3d(Kept, nn.Dropout3d):
    """Drops channels of (N, c, depth, height, width) or (c, depth, height, width)."""

    plain, space = nn.Dropout3d, 3


KEPT: dict[type[nn.Module], type[Kept]] = {
    one.plain: one for one in (KeptDropout, KeptDropout1d, KeptDropout2d, KeptDropout3d)
}
