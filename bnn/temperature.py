"""`calibrate_`: one number, fitted on validation data, that makes a network as sure of itself as it is right."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._common.checks import whole
from bnn._common.progress import progress_of
from bnn._engine.inputs import check_network, device_of, evaluating
from bnn._engine.members import combinations, default_samples, draws_differ
from bnn._engine.temperature import set_temperature_
from bnn.data.dataset import Data, Part
from bnn.data.forms import gathered, to_device, with_targets
from bnn.functional.temperature import mixture_losses
from bnn.likelihoods.base import Likelihood, fitting_targets
from bnn.metrics.temperature import BOUNDS, best_inverse
from bnn.prediction import draws

LEAST = 100  # inputs: with fewer, T is mostly noise
KEPT_BYTES = 2**30  # of the draws' logits that are kept, in float32
BATCH, BATCH_BYTES = 500, 2**28  # inputs that run at a time, and what their outputs may take
TERMS = 2**20  # logits whose losses are computed at a time
ROUNDING = 1e-12  # nats: an NLL that is as low at the smallest T has no minimum
NEAR = 1.01  # times a bound, or less, counts as at it
GRID = 13  # temperatures that are tried before the search, as a mixture's NLL may have several minima


def calibrate_(
    network: nn.Module,
    data: Any,
    *,
    likelihood: Any = None,
    samples: int | None = None,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> float:
    """Fits the temperature of `network`, in place, on validation data: `bnn.predict` divides all logits by it.

        T = argmin -1/N sum_n log 1/K sum_k softmax(f_k(x_n) / T)_{y_n}      within [0.05, 20]

    Every draw's logits are divided, so that total = aleatoric + epistemic uncertainty still holds; the most probable
    class of a draw stays what it was. `bnn.predict`, `bnn.evaluate` and all that is made of them use T; `network(x)`,
    `bnn.draws` and training do not. `bnn.save` keeps it, the state dict does not. `bnn.fit` and `bnn.bayesianize_` take
    it off, as it belongs to the network that was there before.

    Args:
        network: a converted network, a plain one, or an `Ensemble` (whose members' own temperatures do not count).
        data: inputs and labels that it was not trained on, in any form that `bnn.fit` takes; of a `Data` its validation
            part. None takes the temperature off.
        likelihood: "categorical", also along positions (N, C, H, W), or "bernoulli" (every label counts alike), or such
            an object, whose `ignore_index` holds; its class weights and label smoothing do not count. None: by the
            targets.
        samples: draws, as for `bnn.predict`; a plain network runs once.
        batch_size: inputs that run at a time; None: 500, or fewer where their outputs are large.
        generator: makes the draws repeatable.
        progress: None shows a bar on terminals; True lines where there is none, too; False nothing.

    Returns:
        T: above 1 the network was too sure of itself, below 1 not sure enough. It is left at 1, with a warning, where
        there are fewer than 100 inputs, or where the draws are right everywhere, so that the surer the better.

    Raises:
        ValueError: real targets, data without a validation part or without targets, logits that are not finite.

    >>> net, logits = nn.Identity(), torch.randn(400, 3)
    >>> labels = torch.distributions.Categorical(logits=logits).sample()
    >>> 3 < calibrate_(net, (5 * logits, labels)) < 8  # five times too sure
    True
    """
    check_network(network)
    if data is None:
        set_temperature_(network, 1.0)
        return 1.0
    if samples is not None:
        whole("samples", samples, 0)
    if batch_size is not None:
        whole("batch_size", batch_size)
    part = _held_out(data)
    found = _with_logits(likelihood, data, part)
    if len(part) < LEAST:
        few = f"{len(part)} inputs are too few to fit a temperature, which takes {LEAST}: it is left at 1"
        warnings.warn(few, UserWarning, stacklevel=2)
        set_temperature_(network, 1.0)
        return 1.0
    temperature, doubt = fitted(_gaps(network, part, found, samples, batch_size, generator, progress))
    if doubt:
        warnings.warn(doubt, UserWarning, stacklevel=2)
    set_temperature_(network, temperature)
    return temperature


# ---- the data --------------------------------------------------------------------------------------------------------


def _held_out(data: Any) -> Part:
    """The inputs and targets to fit to."""
    if isinstance(data, Data):
        if data.validation is None:
            raise ValueError(
                f"{data.name} has no validation part to fit a temperature on: set one aside before training, "
                "data.with_validation(0.1), or pass other inputs and labels (x, y) that the network was not trained on"
            )
        data = data.validation
    return with_targets(gathered(data, BATCH))


def _with_logits(likelihood: Any, data: Any, part: Part) -> Likelihood:
    """The likelihood, whose outputs are logits; ValueError for any other."""
    assert part.y is not None
    known = data.task if isinstance(data, Data) else None
    real = known == "regression" or (known is None and part.y.is_floating_point())
    usual = likelihoods.for_task(None, "regression" if real else "classification")
    found = likelihoods.about(usual if likelihood is None else likelihoods.get(likelihood))
    if found.logits:
        return found
    if found.task == "regression":
        raise ValueError(
            "a temperature is for classes, and these are real targets, whose noise is learned in training: leave "
            'calibrate_ out, or pass likelihood="bernoulli" for labels that are 0 or 1, y.long() for class indices'
        )
    raise ValueError(
        "a temperature needs a likelihood whose outputs are logits, as likelihood='categorical' or 'bernoulli'; "
        f"got {likelihood!r}"
    )


# ---- the draws -------------------------------------------------------------------------------------------------------


def _gaps(
    network: nn.Module,
    part: Part,
    likelihood: Likelihood,
    samples: int | None,
    batch_size: int | None,
    generator: torch.Generator | None,
    progress: bool | None,
) -> list[Tensor]:
    """The draws' logits less those of the true class, (K, m, C) of every batch, on the CPU; the same draws for all."""
    device = "cpu" if generator is None else generator.device
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    asked = default_samples(network) if samples is None else samples
    run = _Run(network, likelihood, asked if draws_differ(network) else 0, seed)
    kept = []
    with torch.no_grad(), evaluating(network):
        size = run.bytes_per_input(part)
        part, step = _thinned(part, size)
        batch = batch_size or max(1, min(BATCH, BATCH_BYTES // size))
        with progress_of(progress, len(part), "calibrating") as advance:
            for start in range(0, len(part), batch):
                chosen = part.subset(slice(start, start + batch))
                kept.append(run.gaps(chosen)[:, ::step].to("cpu", torch.float32).contiguous())
                advance("calibrating", len(chosen))
    if not sum(gaps.shape[1] for gaps in kept):
        raise ValueError("no target counts: all of them are the likelihood's ignore_index")
    return kept


class _Run:
    """K draws of a network, the same for every batch."""

    def __init__(self, network: nn.Module, likelihood: Likelihood, samples: int, seed: int) -> None:
        self.network, self.likelihood, self.samples, self.seed = network, likelihood, samples, seed

    def bytes_per_input(self, part: Part) -> int:
        """What all draws' outputs at one input take, in float32."""
        output = self._outputs(part.subset(slice(0, 1)), 0)[0]
        return 4 * output.numel() * (self.samples or combinations(self.network))

    def gaps(self, part: Part) -> Tensor:
        """(K, m, C) for the m targets of `part` that count."""
        outputs = self._outputs(part, self.samples)
        assert part.y is not None
        bad = (~torch.isfinite(outputs)).movedim(1, 0).flatten(1).any(1)  # (N,)
        if bool(bad.any()):
            raise ValueError(
                f"the network's outputs are NaN or infinite for {int(bad.sum())} of {len(part)} inputs of a batch, so "
                "that no temperature can be fitted: look for NaN in these inputs, and in the network's weights"
            )
        target = fitting_targets(to_device(part.y, outputs.device), outputs[0], self.likelihood)
        return self.likelihood.gaps(outputs, target)

    def _outputs(self, part: Part, samples: int) -> Tensor:
        x = to_device(part.inputs(), device_of(self.network))
        outputs = draws(self.network, x, samples, torch.Generator().manual_seed(self.seed))
        if not isinstance(outputs, Tensor):
            kind = type(outputs).__name__
            raise TypeError(f"calibrate_ needs a network with one output tensor, this one returns a {kind}")
        return outputs


def _thinned(part: Part, size: int) -> tuple[Part, int]:
    """The inputs to run, and every how many-th target to keep of them, so that what is kept fits in memory."""
    most = max(1, KEPT_BYTES // size)
    if len(part) <= most:
        return part, 1
    assert part.y is not None
    several = part.y[0].numel() > 1  # targets per input: fewer of each, and all inputs
    step = -(-len(part) // most)
    what = f"every {step}th target" if several else f"{most:,} inputs, evenly spaced"
    warnings.warn(
        f"the draws' outputs at {len(part):,} inputs would take {len(part) * size / 2**30:.1f} GB: the temperature is "
        f"fitted to {what}",
        UserWarning,
        stacklevel=4,
    )
    if several:
        return part, step
    return part.subset(torch.arange(most) * len(part) // most), 1


# ---- the fit ---------------------------------------------------------------------------------------------------------


def fitted(gaps: list[Tensor]) -> tuple[float, str]:
    """The best T for gaps (K, m, C), in parts, and what is doubtful about it; "" where nothing is."""
    if all(bool((part <= 0).all()) for part in gaps):
        return 1.0, f"all draws are right everywhere, so that the surer the better: {_STAYS}"
    slow, fast = 1 / BOUNDS[1], 1 / BOUNDS[0]
    best = _lowest(gaps, slow, fast)
    falling = best * NEAR >= fast or _mean(gaps, fast)[0] <= _mean(gaps, best)[0] + ROUNDING
    if falling and all(bool((part.amax(-1).amin(0) <= 0).all()) for part in gaps):
        return 1.0, f"some draw is right everywhere, so that the surer the better: {_STAYS}"
    if slow * NEAR < best < fast / NEAR:
        return 1 / best, ""
    more = "look at the network's logits, or give more validation data"
    return 1 / best, f"the temperature {1 / best:.3g} is at its bound: {more}"


def _lowest(gaps: list[Tensor], slow: float, fast: float) -> float:
    """The inverse temperature of the least NLL: a grid finds the valley, then Newton steps its lowest point."""
    grid = torch.logspace(math.log10(slow), math.log10(fast), GRID, dtype=torch.double).tolist()
    grid[0], grid[GRID // 2], grid[-1] = slow, 1.0, fast  # no rounding
    losses = [_mean(gaps, b)[0] for b in grid]
    i = min(range(GRID), key=lambda j: (losses[j], abs(j - GRID // 2)))  # of equal ones, the nearest to 1
    around = grid[max(i - 1, 0)], grid[min(i + 1, GRID - 1)]
    best = best_inverse(lambda b: _mean(gaps, b)[1:], *around, start=grid[i])
    return best if _mean(gaps, best)[0] < losses[i] else grid[i]


_STAYS = "the temperature is left at 1. More validation data, with some that the network gets wrong, would tell"


def _mean(gaps: list[Tensor], inverse: float) -> tuple[float, float, float]:
    """The mixture's NLL, and its first two derivatives with respect to the inverse temperature: means over targets."""
    sums = [torch.stack([part.sum() for part in mixture_losses(piece, inverse)]) for piece in _pieces(gaps)]
    nll, slope, curvature = (torch.stack(sums).sum(0) / sum(part.shape[1] for part in gaps)).tolist()
    return nll, slope, curvature


def _pieces(gaps: list[Tensor]) -> Iterator[Tensor]:
    """Parts of the targets that are small enough for a few copies in float64."""
    for part in gaps:
        draws_, _, classes = part.shape
        yield from part.split(max(1, TERMS // (draws_ * classes)), dim=1)
