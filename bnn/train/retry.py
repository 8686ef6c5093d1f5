"""How two trainings of one run compare, where the first was clearly worse than the plain network."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Retry:
    """A second training, with less noise and at a lower rate.

    Args:
        first, second: validation NLL per input of both, in the units that are trained on; None where the second
            diverged. The lower is kept.
    """

    first: float
    second: float | None

    @property
    def kept(self) -> bool:
        """Whether the second one was kept."""
        return self.second is not None and self.second < self.first
