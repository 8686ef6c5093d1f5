"""How networks train where nobody says how: first plain, which is cheap, then as what they are converted to.

On the tables of scikit-learn, the digits and made pictures that was as good as training from scratch or better, in half
the time. Real targets train longer, as their noise is what the network does not explain.
"""

from __future__ import annotations

from typing import Any

from bnn._conversion.methods import FEW, Method
from bnn.data.batches import step_count

STEPS, EPOCHS = 600, 12  # of plain training, or from scratch: at least so many of each
AFTER = 2  # what comes after plain training takes this part of its epochs
BATCH = (32, 100)  # up to FEW inputs, and for more: small batches, since each epoch costs time of its own
PLAIN_LR = (5e-3, 1e-3)
PATIENCE = 5  # plain networks overfit: they keep their best epoch, and stop after a fifth of all without a better one
# Real targets take ten times as many steps (docs/decisions.md), as long as validation data say when it is enough.
REAL_STEPS, REAL_AFTER = (4_000, 6_000), (1_500, 2_400)  # of plain training at most, and of what comes after it
REAL_LR = (5e-3, 3e-3)
REAL_PATIENCE = 3  # of what comes after: a third
SPREAD = 0.5  # posterior noise at the start, relative to that of real targets


def plain_schedule(
    inputs: int, validated: bool, epochs: int | None = None, real: bool = False, batch_size: int | None = None
) -> dict[str, Any]:
    """Maximum likelihood on so many inputs."""
    many = inputs > FEW
    longer, size = real and validated, batch_size or BATCH[many]
    if epochs is None:
        epochs = _epochs(inputs, REAL_STEPS[many] if longer else STEPS, size)
    lr = (REAL_LR if longer else PLAIN_LR)[size > BATCH[0]]
    chosen = {"epochs": epochs, "batch_size": size, "lr": lr, "cosine": True}
    return chosen | ({"patience": max(PATIENCE, epochs // PATIENCE)} if validated else {})


def schedule(
    inputs: int,
    method: Method,
    trained: bool,
    validated: bool = False,
    real: bool = False,
    batch_size: int | None = None,
) -> dict[str, Any]:
    """The training of a Bayesian method on so many inputs, of a network that is `trained` already or not."""
    many = inputs > FEW
    longer, size = real and validated, batch_size or BATCH[many]
    steps = (REAL_AFTER if trained else REAL_STEPS)[many] if longer else STEPS
    epochs = _epochs(inputs, steps, size)
    if trained and not longer:
        epochs = -(-epochs // AFTER)
    chosen = {"epochs": epochs, "batch_size": size, "lr": method.rate(inputs, trained), "cosine": True}
    chosen |= {"patience": max(PATIENCE, epochs // REAL_PATIENCE)} if longer else {}
    return chosen | {"samples": method.members, "kl_weight": method.kl_weight}


def _epochs(inputs: int, steps: int, batch_size: int) -> int:
    return max(EPOCHS, -(-steps // step_count(inputs, batch_size)))
