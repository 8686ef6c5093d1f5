"""The curvature of a loss in the inducing matrices of some layers, seen while the network runs at its posterior mean.

A layer is s = u t, y = sigma A_r^T s. Hooks catch its inputs and outputs, one backward pass per score of the likelihood
gives d loss / d y, and from these follow t and g = d loss / d s for every row (`rows_of`, `gradients_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bnn._common.text import listed
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.fold import one_by_one
from bnn._engine.inputs import evaluating, number_of_inputs
from bnn.functional.laplace import Basis, Kept, curvature_in, eigenbasis, kept_directions
from bnn.functional.linalg import at_least_float32, without_autocast
from bnn.likelihoods.base import about, fitting_targets, per_datum
from bnn.nn.families.inducing import InducingBase

BYTES = 2**29  # of rows and gradients that are kept, so that the data need no second pass
CHUNK = 2**24  # numbers in the gradients of several scores that are looked at together
Batches = Callable[[], Iterable[tuple[Any, Any]]]  # (inputs, targets) on the network's device, from the start each time
Look = Callable[[str, Tensor, Tensor, bool], None]  # a layer's name, g (scores, n, p, M_out), t; was t there before?
Count = Callable[[int, Tensor, Any], None]  # the number of inputs, outputs, targets


class Moments(NamedTuple):
    """Two ways to take the second moments behind a Kronecker eigenbasis; the same where an input has one row."""

    of_rows: tuple[Tensor, Tensor]  # E[sum over rows g g^T], E[sum over rows t t^T]: rows are independent
    of_inputs: tuple[Tensor, Tensor]  # E[(sum g) (sum g)^T], E[(mean t) (mean t)^T]: all rows of an input are alike


class Curvature:
    """What was seen of one layer: second moments, and its rows while they fit in memory."""

    def __init__(self, layer: InducingBase) -> None:
        self.layer, self.rows, self.one_row = layer, 0, True
        self.columns: Kept | None = None  # of t, where only some are kept
        m_out, m_in = len(layer.z_row), len(layer.z_col)
        zeros = [layer.z_row.new_zeros(m, m, dtype=torch.double) for m in (m_out, m_in) * 2]
        self.moments = Moments((zeros[0], zeros[1]), (zeros[2], zeros[3]))
        self.kept: list[tuple[Tensor, Tensor]] | None = []  # g (scores n, p, M_out) and t (n, p, M_in); None: too many

    @property
    def bytes(self) -> int:
        """Of what is kept."""
        return sum(one.numel() * one.element_size() for pair in self.kept or [] for one in pair)

    def add(self, g: Tensor, t: Tensor, again: bool) -> None:
        """Adds n inputs: g (scores, n, p, M_out) and t (n, p, M_in); again: t was there with other scores."""
        (g_rows, t_rows), (g_inputs, t_inputs) = self.moments
        g_rows += _gram(g.flatten(0, 2))
        if not again:
            self.rows += t.shape[0] * t.shape[1]
            t_rows += _gram(t.flatten(0, 1))
        if t.shape[1] > 1:
            self.one_row = False
            g_inputs += _gram(g.sum(2).flatten(0, 1))
            if not again:
                t_inputs += _gram(t.mean(1))
        if self.kept is not None:
            self.kept.append((g, t))

    def narrow(self, mean: Tensor, m: int) -> None:
        """Keeps m directions of t: those that the mean of u needs, and those with most curvature."""
        self.columns = kept_directions(mean, self.moments.of_rows[1], min(m, len(self.layer.z_col)))

    def bases(self) -> list[Basis]:
        """The Kronecker eigenbases to choose from."""
        pairs = self.moments[:1] if self.one_row else self.moments
        if self.columns is None:
            return [eigenbasis(*pair) for pair in pairs]
        V = self.columns.V
        found = [eigenbasis(g, V.mT @ t @ V) for g, t in pairs]
        return [Basis(out, V @ into) for out, into in found]


def _gram(rows: Tensor) -> Tensor:
    return (rows.mT @ rows).double()


class Seen(NamedTuple):
    """What a pass over the data gave beside the curvature."""

    inputs: int
    log_likelihood: float
    squares: float  # the residual sum of squares, of outputs that have the shape of the targets
    values: float  # how many targets there are

    def times(self, scale: float) -> Seen:
        """As if there were so many times the data."""
        return Seen(self.inputs, scale * self.log_likelihood, scale * self.squares, scale * self.values)


class Watch:
    """Runs a network at its mean over data and shows what some layers saw, with the gradients of the likelihood.

    Args:
        network: it is left as it was.
        layers: inducing ones, by name.
        likelihood: with `sampled_score` or `scores`.
        most: all scores of a network with at most so many outputs, one that is sampled of others.
        generator: of sampled labels and signs.
        advance: told how many inputs are done.
    """

    def __init__(
        self,
        network: nn.Module,
        layers: Mapping[str, InducingBase],
        likelihood: Any,
        most: float,
        generator: torch.Generator | None,
        advance: Callable[[int], None],
    ) -> None:
        self.network, self.layers, self.likelihood, self.most = network, layers, likelihood, most
        self.generator, self.advance = generator, advance

    def curvatures(self, batches: Batches) -> tuple[list[Curvature], Seen]:
        """The second moments of all layers, from one pass."""
        found = {name: Curvature(layer) for name, layer in self.layers.items()}
        inputs, log_likelihood, squares, values = 0, 0.0, 0.0, 0

        def look(name: str, g: Tensor, t: Tensor, again: bool) -> None:
            found[name].add(g, t, again)
            if sum(curvature.bytes for curvature in found.values()) > BYTES:
                max(found.values(), key=lambda curvature: curvature.bytes).kept = None

        def count(n: int, output: Tensor, y: Any) -> None:
            nonlocal inputs, log_likelihood, squares, values
            inputs += n
            y = fitting_targets(y, output, self.likelihood)
            log_likelihood -= float(per_datum(self.likelihood(output, y)).double().sum())
            if isinstance(y, Tensor) and y.shape == output.shape:
                squares += float((output.double() - y).square().sum())
                values += y.numel()

        self._run(batches, self.layers, look, count)
        return list(found.values()), Seen(inputs, log_likelihood, squares, values)

    def eigenvalues(self, found: Sequence[Curvature], batches: Batches) -> list[list[Tensor]]:
        """sum over inputs of (Q_out^T G Q_in)^2 in each basis of every layer; another pass where rows were many."""
        bases = {name: curvature.bases() for name, curvature in zip(self.layers, found, strict=True)}
        sums = {
            name: [one.out.new_zeros(len(one.out), one.into.shape[1]) for one in own] for name, own in bases.items()
        }

        def look(name: str, g: Tensor, t: Tensor, again: bool) -> None:
            for total, basis in zip(sums[name], bases[name], strict=True):
                total += curvature_in(basis, g, t)

        missing = {}
        for (name, layer), curvature in zip(self.layers.items(), found, strict=True):
            if curvature.kept is None:
                missing[name] = layer
            for g, t in curvature.kept or []:
                look(name, g, t, False)
        if missing:
            self._run(batches, missing, look, lambda n, output, y: None)
        return list(sums.values())

    # ---- running -----------------------------------------------------------------------------------------------------

    def _run(self, batches: Batches, layers: Mapping[str, InducingBase], look: Look, count: Count) -> None:
        """Runs over the data; shows `look` what each layer saw, and tells `count` of inputs, outputs and targets."""
        with evaluating(self.network), _without_gradients_of(self.network):
            for x, y in batches():
                n = number_of_inputs(x) or 1
                with torch.enable_grad(), _caught(layers.values()) as calls:
                    output = one_by_one(self.network, [x], [at_mean(self.network, n)])[0]
                check_output(output)
                with torch.no_grad(), without_autocast(output):
                    count(n, output.detach(), y)
                    self._show(output, y, n, {name: calls[layer] for name, layer in layers.items()}, look)
                self.advance(n)

    def _show(self, output: Tensor, y: Any, n: int, calls: dict[str, list[_Run]], look: Look) -> None:
        """Shows `look` every layer's g and t of one batch, some scores at a time."""
        _check_reached(calls)
        places = [call.output for own in calls.values() for call in own]
        scores, again = self._scores(output.detach(), y), False
        while chunk := list(islice(scores, max(CHUNK // max(place.numel() for place in places), 1))):
            gradients = [iter(_gradients(output, places, score)) for score in chunk]
            for name, own in calls.items():
                at_calls = _of_layer(name, own, [[next(one) for _ in own] for one in gradients])
                look(name, *_rows(self.layers[name], own, at_calls, n), again)
            again = True

    def _scores(self, output: Tensor, y: Any) -> Iterator[Tensor]:
        """d loss / d output, for one sampled label or for each output; 0 where targets are ignored."""
        likelihood = about(self.likelihood)
        if (output.shape[1] if output.ndim > 1 else 1) <= self.most:
            scores = likelihood.scores(output, self.generator)
        else:
            scores = iter([likelihood.sampled_score(output, self.generator)])
        counts = _counted(likelihood, output, y)
        return scores if counts is None else (score * counts for score in scores)


def at_mean(network: nn.Module, inputs: int) -> Draw:
    """One draw at the posterior mean."""
    return Draw.fresh(network, Call(network, at_mean=True), inputs=inputs)


def check_output(output: Any) -> None:
    """Raises unless a network returned one finite tensor."""
    if not isinstance(output, Tensor):
        raise TypeError(
            f"Laplace's approximation needs one output tensor, the network returns a {type(output).__name__}: wrap it "
            "in a module that returns the part that the likelihood takes"
        )
    if not bool(torch.isfinite(output).all()):
        raise ValueError(
            "the network gave NaN or inf at its posterior mean: look for them in the data, and train first"
        )


def _counted(likelihood: Any, output: Tensor, y: Any) -> Tensor | None:
    """1 where a target counts, 0 where it is `ignore_index`, (N, 1, ...); None where all count."""
    if likelihood.ignore_index is None or not isinstance(y, Tensor) or y.is_floating_point():
        return None
    counts = y != likelihood.ignore_index
    return None if bool(counts.all()) else counts.unsqueeze(1).to(output)


class _Run(NamedTuple):
    """One call of a layer."""

    input: Tensor
    output: Tensor


@contextmanager
def _caught(layers: Iterable[InducingBase]) -> Iterator[dict[nn.Module, list[_Run]]]:
    """Catches inputs and outputs of layers; gradients flow to the outputs, whatever is done to them in place."""
    calls: dict[nn.Module, list[_Run]] = {layer: [] for layer in layers}

    def hook(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> Tensor:
        kept = output if output.requires_grad else output.detach().requires_grad_()
        calls[layer].append(_Run((*args, *kwargs.values())[0].detach(), kept))
        return kept.clone()

    with ExitStack() as stack:
        for layer in calls:  # before the user's own hooks, which may change the output
            stack.callback(layer.register_forward_hook(hook, with_kwargs=True, prepend=True).remove)
        yield calls


@contextmanager
def _without_gradients_of(network: nn.Module) -> Iterator[None]:
    """No parameter takes a gradient inside the block: only what follows the watched layers is differentiated."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def _check_reached(calls: dict[str, list[_Run]]) -> None:
    silent = [name for name, own in calls.items() if not own]
    if silent:
        raise ValueError(
            f"layers that did not run on some of the data have no curvature there: {listed(silent)}; leave them out of "
            "layers="
        )


def _gradients(output: Tensor, places: list[Tensor], score: Tensor) -> list[Tensor | None]:
    """d loss / d places from d loss / d output; None where the output does not depend on a place."""
    if not output.requires_grad:
        return [None] * len(places)
    return list(torch.autograd.grad(output, places, score.to(output.dtype), retain_graph=True, allow_unused=True))


def _of_layer(name: str, calls: list[_Run], gradients: list[list[Tensor | None]]) -> list[list[Tensor]]:
    """The gradients at a layer's calls, for every score; 0 at calls without effect."""
    if all(one is None for one in gradients[0]):
        raise ValueError(
            f"no gradient flows from the network's output to layer {name or 'the network'!r}: either the output does "
            "not depend on it (layers= names another), or it is cut off (torch.no_grad, detach, reentrant checkpoints)"
        )
    return [
        [torch.zeros_like(call.output) if one is None else one for one, call in zip(own, calls, strict=True)]
        for own in gradients
    ]


def _rows(layer: InducingBase, calls: list[_Run], gradients: list[list[Tensor]], n: int) -> tuple[Tensor, Tensor]:
    """g (scores, n, p, M_out) and t (n, p, M_in) of a layer, from d loss / d y of every score and call.

    Where dimension 0 of a layer's inputs does not count those of the network (windows, time first), each row stands for
    an input of its own: what rows of one input have in common is not seen then.
    """
    ts = [rows_of(layer, call.input) for call in calls]
    gs = [
        torch.stack([gradients_of(layer, call.input, score[i]) for score in gradients]) for i, call in enumerate(calls)
    ]
    by_input = all(len(t) == n for t in ts)
    if not by_input:  # each row stands for itself
        ts, gs = [t.reshape(-1, 1, t.shape[-1]) for t in ts], [g.reshape(len(g), -1, 1, g.shape[-1]) for g in gs]
    joined = 1 if by_input else 0
    return torch.cat(gs, dim=joined + 1), torch.cat(ts, dim=joined)


# ---- one layer -------------------------------------------------------------------------------------------------------


def rows_of(layer: InducingBase, x: Tensor) -> Tensor:
    """t = A_c x for the rows of inputs: (N, p, M_in), p counting groups, and all positions of t of a split kernel."""
    x, A, groups = _batched(layer, at_least_float32(x)), layer.posterior().col.A, _groups(layer)
    with without_autocast(x):
        A = A.to(x)
        if layer.split:
            apart = x.unflatten(1, (groups, -1)).flatten(0, 1)[None]  # groups as inputs of their own
            t = layer.project_split(apart, layer.split_projection(A))[0]
            return t.flatten(1, -2).unflatten(0, (-1, groups)).flatten(1, 2)
        weight, bias = layer.from_matrix(A)
        if groups == 1:
            return layer.project(x[None], layer.from_matrix(A))[0].unflatten(0, (len(x), -1))
        bias = None if bias is None else bias.repeat(groups)
        t = layer.run(x, weight.repeat(groups, *[1] * (weight.ndim - 1)), bias)  # (N, groups M_in, *space)
        return t.flatten(2).unflatten(1, (groups, -1)).mT.flatten(1, 2)


def gradients_of(layer: InducingBase, x: Tensor, gradient: Tensor) -> Tensor:
    """g = d loss / d s (N, p, M_out), for the rows of `rows_of`, from d loss / d y in the shape of the output."""
    own, sigma, groups = layer.posterior(), layer.prior_sd(), _groups(layer)
    gradient = _batched(layer, at_least_float32(gradient))
    with without_autocast(gradient):
        A = sigma * own.row.A.to(gradient)  # (M_out, rows of W)
        if isinstance(layer, nn.Linear):
            return (gradient @ A.mT).reshape(len(gradient), -1, len(A))
        if layer.split:
            return _split_gradients(layer, _batched(layer, x), gradient, A)
        apart = gradient.flatten(2).unflatten(1, (groups, -1)).mT  # (N, groups, p, c_out / groups)
        return (apart @ A.unflatten(1, (groups, -1)).permute(1, 2, 0)).flatten(1, 2)


def _split_gradients(layer: InducingBase, x: Tensor, gradient: Tensor, A: Tensor) -> Tensor:
    """The adjoint of y = conv_{1 x kw}(s; A^T) at all positions of t, groups as inputs of their own."""
    groups = _groups(layer)
    t = layer.project_split(
        at_least_float32(x).unflatten(1, (groups, -1)).flatten(0, 1)[None],
        layer.split_projection(layer.posterior().col.A.to(gradient)),
    )[0]
    target = gradient.flatten(2).unflatten(1, (groups, -1)).mT  # (N, groups, p, c_out / groups)
    each = A.unflatten(1, (groups, target.shape[-1], -1))  # (M_out, groups, c_out / groups, kw)
    seen = torch.einsum("ngpo,mgok->ngpkm", target, each)  # of the neighbours that each row of the output sees
    with torch.enable_grad():
        s = gradient.new_zeros(1, *t.shape[:-1], len(A), requires_grad=True)
        rows = layer.side_by_side(s)
        (found,) = torch.autograd.grad(rows, s, seen.reshape(rows.shape))
    return found[0].flatten(1, -2).unflatten(0, (-1, groups)).flatten(1, 2)


def _batched(layer: nn.Module, x: Tensor) -> Tensor:
    """Inputs or outputs with a dimension that counts them."""
    least = 2 if isinstance(layer, nn.Linear) else len(layer.kernel_size) + 2  # type: ignore[arg-type]
    return x[None] if x.ndim < least else x


def _groups(layer: nn.Module) -> int:
    return int(getattr(layer, "groups", 1))
