"""Predicting with K posterior draws."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bnn import closed_form, likelihoods
from bnn._engine.call import Call, NotLast, Repeated, TooLarge
from bnn._engine.draw import Draw
from bnn._engine.fold import (
    MISTAKES,
    Drawn,
    Statistics,
    counts_batches,
    in_one_pass,
    of_last_layer,
    one_by_one,
    warn_unfolded,
)
from bnn._engine.inputs import batches_of, check_network, evaluating, join_outputs, modules_of, number_of_inputs
from bnn._engine.members import (
    Drawing,
    blocks,
    combinations,
    deal_,
    default_samples,
    draws_differ,
    evenly,
    inducing_members,
    last_layers,
)
from bnn._engine.noise import Seeds, unwrapped
from bnn._engine.temperature import temperature_of
from bnn._engine.unused import warn_unused

HEAP_BYTES = 31 * 2**20  # glibc's largest threshold is 32 MiB; pages of larger blocks are fetched anew every time
# What inputs and outputs of a layer and the next may take, all draws of a pass together. Caches hold the less; every
# pass costs Python for every layer, so that deep networks are better off with fewer passes.
FOLD_BYTES, FOLD_BYTES_DEEP, DEEP = 2**24, 3 * 2**24, 16


def draws(
    network: nn.Module,
    x: Any,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
) -> Any:
    """The raw outputs (K, N, ...) of `network` under K posterior draws.

    All draws run in one pass, in chunks that fit in memory; what does not depend on the draw is computed once. Every
    input's outputs are distributed exactly as under the posterior of the weights. Whether a draw is one function of all
    inputs is up to the layers' option `sampling`: with "weight" it is; with "auto" inputs share u and the ensemble
    member, and what is left of the noise where that is cheaper (see `bnn.set_sampling_`, `bnn.frozen_draw`).

    Runs in the mode the network is in, and with gradients where they are on: call `network.eval()` first if it has
    BatchNorm or Dropout.

    Args:
        x: the input (N, ...), or a tuple (positional) or dict (keyword arguments) of inputs.
        samples: K; ensemble members are used evenly. None is 20, rounded up so that every member counts the same; for
            a `bnn.Ensemble` of plain networks, one draw of each. 0 is one pass at the posterior mean (of a plain
            network: as it is), of shape (1, N, ...); for an Ensemble of M networks one pass of each: (M, N, ...).
        generator: makes the draws repeatable. `batch_size` does not change u, the members or C, only the noise that
            belongs to single inputs.
        batch_size: how many inputs to run at a time; None runs all at once. Of several inputs, tensors as long as the
            first are cut along dimension 0, others are passed whole.

    Returns:
        A tensor, or a tuple or dict of tensors if that is what the network returns. Draws of a `bnn.Ensemble` are in
        the order of its members: first all that show member 0, which run as one pass, then member 1, and so on.

    >>> import bnn
    >>> net = nn.Linear(3, 2)
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    >>> bnn.draws(net, torch.randn(5, 3), samples=4).shape
    torch.Size([4, 5, 2])
    """
    check_network(network)
    if samples is None:
        samples = default_samples(network)
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 0:
        raise ValueError(f"samples must be an integer >= 0, got {samples!r}")
    if samples and not draws_differ(network):
        raise ValueError(
            "the network has no Bayesian layer, so all draws are the same: convert it with bnn.bayesianize_; "
            "samples=0 runs it as it is"
        )
    run = _Draws(network, batches_of(x, batch_size), samples, generator)
    outputs = run.run()
    if samples and not run.last:  # a last layer ran; at the mean, reading `layer.weight` is as good as calling it
        warn_unused(network, run.call)
    return outputs


def predict(
    network: nn.Module,
    x: Any,
    samples: int | str | None = None,
    likelihood: Any = "categorical",
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
    *,
    keep_samples: bool = False,
) -> likelihoods.ClassPrediction | likelihoods.RegressionPrediction:
    """The posterior predictive distribution of `network` at `x`, from K draws, with its uncertainty taken apart.

    Runs in evaluation mode and without gradients, and leaves the network's modes as they were. The logits of a network
    that was calibrated (`bnn.calibrate_`) are divided by its temperature.

    Args:
        x, generator, batch_size: as for `bnn.draws`.
        samples: K, as for `bnn.draws`. "logits": single-pass uncertainty where only the last layer is Bayesian, as
            after `bnn.laplace_`, and it is inducing with independent entries of U. The network runs once; the Gaussian
            over its outputs is exact. Real targets need no draws at all; for classes 200 draws of logits, whose normals
            all inputs share, give the probabilities. An `Ensemble` of such networks is the mixture of its members.
        likelihood: "categorical", "bernoulli", "heteroscedastic", or a likelihood object. For Gaussian noise pass the
            one that was trained, `elbo.likelihood`: it holds the noise.
        keep_samples: keep the raw outputs (K, N, ...) of the draws as `.samples`, not divided by a temperature;
            those of samples="logits" are right for every input by itself, and no functions of all inputs.

    Returns:
        For classes: `.probs` (N, C, ...) and total, aleatoric and epistemic uncertainty (entropy of the mean, expected
        entropy, mutual information; nats). For regression: `.mean` and the same three as variances.

    >>> import bnn
    >>> net = nn.Linear(3, 2)
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    >>> bnn.predict(net, torch.randn(5, 3), samples=8).probs.shape
    torch.Size([5, 2])
    >>> bnn.predict(net, torch.randn(5, 3), samples="logits").probs.shape
    torch.Size([5, 2])
    """
    check_network(network)
    found = likelihoods.get(likelihood)
    if isinstance(likelihood, str) and likelihoods.about(found).learns:
        warnings.warn(f"{likelihood!r} by name is untrained; pass the trained one, elbo.likelihood", stacklevel=2)
    if not hasattr(found, "predictive"):
        raise TypeError(f"predict needs a likelihood with a `predictive` method, not the bare callable {likelihood!r}")
    with torch.no_grad(), evaluating(network):
        if samples == closed_form.NAME:
            meaning = partial(_meaning, network, found, keep_samples=keep_samples)
            prediction = closed_form.predict_outputs(network, x, found, meaning, generator, batch_size)
            if keep_samples and prediction.samples is None:
                raise ValueError(f'samples="logits" draws nothing for {likelihood!r}: samples=20 draws, and keeps them')
            return prediction
        if isinstance(samples, str):
            raise ValueError(f'samples must be an integer >= 0, None or "{closed_form.NAME}", got {samples!r}')
        return _meaning(network, found, draws(network, x, samples, generator, batch_size), keep_samples=keep_samples)


def _meaning(network: nn.Module, likelihood: Any, outputs: Any, *, keep_samples: bool) -> Any:
    """What outputs (K, N, ...) of K draws predict, at the network's temperature."""
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        raise TypeError(f"predict needs one output tensor, the network returns a {kind}: use bnn.draws")
    prediction = likelihood.predictive(tempered(network, likelihood, outputs))
    if not keep_samples:
        return prediction
    if not isinstance(prediction, likelihoods.ClassPrediction | likelihoods.RegressionPrediction):
        raise TypeError(f"a {type(prediction).__name__} has no room for samples: use bnn.draws")
    prediction.samples = outputs
    return prediction


def tempered(network: nn.Module, likelihood: Any, outputs: Tensor) -> Tensor:
    """Raw outputs (K, N, ...) of `network` divided by its temperature; the one place where that happens."""
    temperature = temperature_of(network)
    return outputs if temperature == 1 else likelihoods.about(likelihood).tempered(outputs, temperature)


def set_sampling_(network: nn.Module, value: str) -> None:
    """Sets the option `sampling` of every layer that has it, in place: what a draw guarantees.

    - "auto": every input's output is distributed exactly as under q(W); whatever way is cheapest.
    - "weight": one function per draw for the whole batch, as in the paper.
    - "local": every position's output is; positions of an input lose the residual's correlation.

    >>> import bnn
    >>> net = nn.Linear(3, 2)
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    >>> bnn.set_sampling_(net, "weight")
    """
    layers = layers_with_sampling(network)
    if not layers:
        raise ValueError(
            "no layer of this network has the option 'sampling'; layers of 'inducing', 'ffg' and some others do"
        )
    options = [replace(layer.options, sampling=value) for layer in layers]  # all are checked before one is set
    for layer, option in zip(layers, options, strict=True):
        layer.options = option


def layers_with_sampling(network: nn.Module) -> list[Drawn]:
    """The layers of `network` that have the option `sampling`."""
    return [m for m in network.modules() if isinstance(m, Drawn) and "sampling" in m.options.names()]


class _Draws:
    """K named draws over batches of inputs, run in chunks of draws, and once more where they must be.

    Draws are named by one number, so neither chunks, nor batches, nor the order of layers change u, members or C, and
    running again repeats exactly what was drawn before. Those of an `Ensemble` come in blocks, one for each of its
    networks.
    """

    def __init__(self, network: nn.Module, batches: list[Any], samples: int, generator: torch.Generator | None) -> None:
        self.network, self.batches, self.at_mean = network, batches, samples == 0
        self.networks = combinations(network)
        self.count = samples or self.networks
        device = "cpu" if generator is None else generator.device
        number = int(torch.randint(2**62, (), generator=generator, device=device))
        self.seeds = Seeds(network, number)
        self.shown = evenly(self.count, self.networks, generator)
        self.blocks = blocks(self.shown)  # draws that may run in one pass: those of one network
        self.members = inducing_members(network, self.blocks, generator) if samples else None
        self.reason: Exception | None = None  # why draws cannot run in one pass
        self.last = [] if torch.is_grad_enabled() else last_layers(unwrapped(network))

    def run(self) -> Any:
        """All outputs, (K, N, ...)."""
        most = max(stop - start for start, stop in self.blocks)
        self.last = self.last if most > 1 else []
        chunk = most if most > 1 and (self.last or not counts_batches(self.network)) else None
        blocks, statistics = self._fresh(), None if self.last else Statistics(self.network)  # nothing trains there
        _keep_heap()
        while True:
            try:
                outputs = [self._run(batch, part, blocks, chunk) for part, batch in enumerate(self.batches)]
                if self.reason is not None:
                    warn_unfolded(self.reason)
                return join_outputs(outputs, lambda parts: torch.cat(parts, 1) if len(parts) > 1 else parts[0])
            except Repeated:  # a layer ran twice; it is marked now and will draw its weights
                blocks = self._fresh()
            except NotLast:
                for layer in self.last:
                    layer.followed = True
                blocks, self.last = self._fresh(), []
            except TooLarge as error:
                assert chunk is not None
                chunk = _chunk(most, min(chunk - 1, -(-3 * error.draws // 4)))  # layers to come may be larger
            except MISTAKES:
                raise
            except Exception as error:
                if chunk is None:
                    raise
                chunk, self.reason, self.last = None, error, []
            if statistics is not None:
                statistics.restore_()

    def _fresh(self) -> list[Draw]:
        """All draws of the call, those of each network together, with nothing drawn yet."""
        layers = sum(isinstance(module, Drawing) for module in modules_of(self.network))
        limit = FOLD_BYTES if layers < DEEP else FOLD_BYTES_DEEP
        call = Call(self.network, self.count, self.at_mean, restarts=True, limit=limit)
        self.call, draw = call, Draw(call, self.count, self.seeds, self.members)
        found = [draw.block(start, stop) for start, stop in self.blocks]
        if self.networks > 1:
            for block, (start, stop) in zip(found, self.blocks, strict=True):
                deal_(block, self.shown[start:stop])
        return found

    def _run(self, batch: Any, part: int, blocks: list[Draw], chunk: int | None) -> Any:
        """The outputs of one batch, `chunk` draws at a time in one pass, or without folding (None)."""
        inputs = number_of_inputs(batch)
        size = 1 if chunk is None else self.count if self.last else chunk
        draws = [
            block.only(first, min(first + size, block.count), inputs=inputs, part=part)
            for block in blocks
            for first in range(0, block.count, size)
        ]
        if chunk is None:
            return join_outputs(one_by_one(self.network, [batch] * len(draws), draws), torch.stack)
        run = of_last_layer if self.last else in_one_pass
        outputs = [run(self.network, batch, draw) for draw in draws]
        return join_outputs(outputs, lambda parts: torch.cat(parts) if len(parts) > 1 else parts[0])


_heap = [False]


def _keep_heap() -> None:
    """Once per process: glibc keeps the memory of tensors up to the size of a block that was freed before."""
    if not _heap[0]:
        torch.empty(HEAP_BYTES, dtype=torch.uint8)
        _heap[0] = True


def _chunk(most: int, fits: int) -> int:
    """How many of `most` draws to run at a time where `fits` would fit: as even as possible."""
    passes = -(-most // max(1, fits))
    return -(-most // passes)
