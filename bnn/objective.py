"""The objective: negative log-likelihood of the data plus KL divergence of the weights, per datum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._common.checks import check_bool, check_number, check_positive, check_size
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.fold import MISTAKES, Statistics, counts_batches, in_one_pass, one_by_one, warn_unfolded
from bnn._engine.forward import Forward, open_forward
from bnn._engine.inputs import grouped, number_of_inputs, split_inputs, split_outputs
from bnn._engine.members import combinations, deal_, even_members, shares, shown_members
from bnn._engine.unused import warn_unused
from bnn.functional.gaussian import KLError, check_kl
from bnn.functional.linalg import at_least_float32
from bnn.likelihoods.base import per_datum
from bnn.nn.base import KL, BayesianLayer
from bnn.nn.global_inducing import GlobalInducing
from bnn.teacher import MEMBER, TOGETHER, Teacher


class ELBOResult(NamedTuple):
    """The objective of a batch and its parts: loss = data + kl_scale (kl_u + kl_lamda), in nats per datum.

    The tensors are scalars with gradients; take `.item()` of what you log.
    """

    loss: Tensor
    data: Tensor  # negative log-likelihood, mean over the batch and the draws
    kl_u: Tensor  # KL[q(U) || p(U)] / num_data; for families without U, KL[q(W) || p(W)] / num_data
    kl_lamda: Tensor  # KL[q(W|U) || p(W|U)] / num_data
    kl_scale: float  # kl_weight times the annealing factor


class ELBO(nn.Module):
    """The negative evidence lower bound of `net` per datum: minimise it with any optimiser.

        loss = 1/N_batch sum_i -log p(y_i | x_i, W) + kl_scale KL[q || p] / num_data,    W ~ q

    How to weight the KL: **pass the number of training inputs as `num_data` and leave the rest alone.**

    - `num_data` counts rows, images or sequences: `len(train_set)`. Not batches, not pixels, not tokens: the likelihood
      sums the targets of one input.
    - The batch size never matters: the data term is a mean, and the KL is divided by `num_data` at every step.
    - Augmentation does not change `num_data`: it makes no new evidence.
    - `kl_weight=1` is Bayes. Less is a tempered ("cold") posterior, closer to the data; choose it on validation NLL.
    - `warmup` and `anneal` help training start: kl_scale is 0 for `epoch < warmup`, then grows linearly to `kl_weight`
      over `anneal` epochs, then stays (the paper: 50, 40, then 10 more). Pass `epoch` to every call; nothing counts
      by itself, so a resumed run continues where it was.
    - Gradient accumulation over k batches: `(out.loss / k).backward()`, as for any mean. The KL then counts once.
    - Several devices: wrap this object, `DistributedDataParallel(elbo)`; `num_data` counts the data of all ranks once.
    - A network without Bayesian layers has no KL: the loss is then maximum likelihood.
    - The objective of a `bnn.Ensemble` is the mean over its members of each member's own: every member sees every
      batch, with `samples` draws of its own, and the KL parts are means, too. Members share the likelihood's noise.

    Args:
        net: the network; its parameters, and those of the likelihood, are this module's parameters.
        num_data: number of training inputs.
        likelihood: a name (`"categorical"`, `"bernoulli"`, `"gaussian"`, `"heteroscedastic"`), an object of
            `bnn.likelihoods`, or any callable (output, target) -> negative log-likelihood: per datum (N,), (N, ...) to
            be summed per datum, or a scalar, taken as the mean over the batch (`F.cross_entropy` as it is; for pixels
            or tokens give it `reduction="none"`, or its mean goes over them too).
        samples: draws from the posterior that the data term averages, run in one pass where the network allows it. With
            Ensemble-U, members are used evenly: `samples=ensemble_size` trains every member on all of the batch.
        warmup, anneal: in epochs, or in whatever unit `epoch` is given.
        kl_weight: the final weight of the KL.
        split: each of the `samples` draws sees its share of the batch instead of all of it: every k-th input. With
            Ensemble-U and `samples=ensemble_size` each member trains on its share, at the cost of one pass.
        function_space: multiplies each layer's lamda part by min(1, num_data / d_in), the paper's function-space bound.
        teacher: a `bnn.Teacher`, which then has its part of the data term; it is no part of this module's parameters.

    >>> import bnn
    >>> x, y = torch.randn(50, 8), torch.randint(3, (50,))
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    >>> elbo = bnn.ELBO(net, num_data=50, likelihood="categorical", warmup=1, anneal=2)
    >>> optimiser = torch.optim.Adam(elbo.parameters(), lr=1e-3)
    >>> for epoch in range(4):
    ...     for i in range(0, 50, 10):
    ...         out = elbo(x[i : i + 10], y[i : i + 10], epoch=epoch)
    ...         optimiser.zero_grad()
    ...         out.loss.backward()
    ...         optimiser.step()
    ...     print(epoch, out.kl_scale)
    0 0.0
    1 0.0
    2 0.5
    3 1.0
    """

    def __init__(
        self,
        net: nn.Module,
        num_data: int,
        likelihood: str | Callable[..., Any],
        samples: int = 1,
        warmup: float = 0,
        anneal: float = 0,
        kl_weight: float = 1.0,
        *,
        function_space: bool = False,
        split: bool = False,
        teacher: Teacher | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
        check_size("num_data", num_data)
        check_size("samples", samples)
        check_positive("warmup", warmup, zero=True)
        check_positive("anneal", anneal, zero=True)
        check_positive("kl_weight", kl_weight, zero=True)
        check_bool("function_space", function_space)
        check_bool("split", split)
        self.net = net
        self.likelihood = likelihoods.get(likelihood)
        self.num_data, self.samples = num_data, samples
        self.warmup, self.anneal, self.kl_weight = warmup, anneal, kl_weight
        self.function_space = function_space
        self.split = split
        self.teacher = teacher  # no module, so that nothing of it is trained or stored
        self._pairing = TOGETHER if teacher is None else teacher.check(net, self.likelihood)

    def forward(self, x: Any, y: Any, epoch: float | None = None) -> ELBOResult:
        """The objective on one batch.

        Args:
            x: the network's input; a tuple or list holds positional arguments, a dict keyword arguments.
            y: targets, as the likelihood wants them; None, where a teacher alone teaches.
            epoch: how far training is, from 0; may be fractional, as `epoch + i / len(loader)`. Needed with `warmup` or
                `anneal`.
        """
        return self.with_outputs(x, y, epoch)[0]

    def with_outputs(self, x: Any, y: Any, epoch: float | None = None) -> tuple[ELBOResult, list[tuple[Any, Any]]]:
        """The objective on one batch, and what it came from: the network's output and its target, for every draw.

        With `split=True` a target is the draw's share of `y`. Draws of an `Ensemble` are in the order of its members.
        """
        scale, shared = self.kl_scale(epoch), Call(self.net, self.samples)
        if number_of_inputs(x) == 0:
            raise ValueError("the batch is empty: the objective is a mean over its inputs; leave such batches out")
        taught = self.teacher is not None and self.teacher.needed(y)
        targets = (y, self.teacher.outputs(x, self.net, self.likelihood)) if self.teacher and taught else y
        pairs, shown, weights = self._pairs(x, targets, shared)
        warn_unused(self.net, shared)
        if self.teacher is not None and taught:
            parts = [_mean(self._taught(*pair, member)) for pair, member in zip(pairs, shown, strict=True)]
            pairs = [(output, target[0]) for output, target in pairs]
        else:
            parts = [_mean(self.likelihood(*pair)) for pair in pairs]
        if weights is None:
            data = parts[0] if len(parts) == 1 else torch.stack(parts).mean()
        else:
            data = (torch.stack(parts) * parts[0].new_tensor(weights)).sum()
        with open_forward(Forward(Draw(shared), shared.root, pinned=True)):  # the KL uses what the forward computed
            kl = kl_parts(self.net, self.num_data if self.function_space else None, shares(self.net))
        both = [data.new_zeros(())] * 2 if kl is None else [part.to(data.device) for part in kl]
        kl_u, kl_lamda = (part / self.num_data for part in both)
        loss = data
        if scale:  # 0 * KL would let a bad KL spoil the warm-up
            total = kl_u + kl_lamda
            _check_kl(self.net, total)
            loss = data + scale * total
        return ELBOResult(loss, data, kl_u, kl_lamda, scale), pairs

    def kl_scale(self, epoch: float | None = None) -> float:
        """kl_weight times the annealing factor: 0 while epoch < warmup, then linear to 1 over `anneal`, then 1."""
        if not self.warmup and not self.anneal:
            return float(self.kl_weight)
        if epoch is None:
            raise ValueError(
                f"warmup={self.warmup:g}, anneal={self.anneal:g}: the KL is annealed, so every call needs to know how "
                "far training is: elbo(x, y, epoch=epoch), or epoch + i / len(loader) to anneal within epochs"
            )
        check_number("epoch", epoch)
        done = float(epoch) - self.warmup
        factor = 0.0 if done < 0 else 1.0 if done >= self.anneal else done / self.anneal
        return self.kl_weight * factor

    def _taught(self, output: Any, target: tuple[Any, list[Tensor]], member: int) -> Tensor:
        """The data term of a draw that shows `member` and has a teacher beside its targets."""
        assert self.teacher is not None
        y, teachers = target
        own = teachers if self._pairing == TOGETHER else [teachers[member]]
        return self.teacher.term(self.likelihood, output, y, own)

    def _pairs(self, x: Any, y: Any, shared: Call) -> tuple[list[tuple[Any, Any]], list[int], list[float] | None]:
        """Outputs and targets of all draws, `samples` for each network, the members that they show (of a deep
        ensemble, or else of Ensemble-U), and how much each counts; None: the same.
        """
        k, networks = self.samples, combinations(self.net)
        inputs, targets, whole, dims, weights = [x] * k, [y] * k, x, None, None
        if self.split and k > 1:
            n = number_of_inputs(x)
            if n is None or n < k:
                raise ValueError(f"split=True gives each of {k} draws its share of the batch, but it has {n} inputs")
            inputs, targets = split_inputs(x, n, k), split_inputs(y, n, k)
            whole, dims = (None, None) if n % k else grouped(x, n, k)
            weights = [len(range(i, n, k)) / (n * networks) for i in range(k)] * networks
        found = [self._outputs(inputs, whole, dims, shared, i) for i in range(networks)]
        outputs = [output for own, _ in found for output in own]
        shown = [member if networks == 1 else i for i, (_, members) in enumerate(found) for member in members]
        return list(zip(outputs, targets * networks, strict=True)), shown, weights

    def _outputs(
        self, inputs: list[Any], whole: Any, dims: Any, shared: Call, shown: int
    ) -> tuple[list[Any], list[int]]:
        """The network's output under each of `samples` draws; several draws use members of Ensemble-U evenly.

        Args:
            inputs: what each draw sees.
            whole, dims: the same as one input for `in_one_pass`; None if it cannot be.
            shown: which network of a deep ensemble all these draws show.

        Returns:
            The outputs, and the member of Ensemble-U behind each.
        """
        k = len(inputs)
        members = even_members(self.net, k) if k > 1 else None
        reason: Exception | None = None
        if k > 1 and whole is not None and not counts_batches(self.net):
            statistics = Statistics(self.net)
            try:
                draw = self._draw(inputs[0], members, shared, shown, k)
                return split_outputs(in_one_pass(self.net, whole, draw, dims), k), self._members(draw)
            except MISTAKES:
                raise
            except Exception as error:
                reason = error
                statistics.restore_()
        given = [None if members is None else members[i : i + 1] for i in range(k)]
        seen: list[int] = []

        def drawn() -> Iterator[Draw]:  # each made as it runs
            for pair in zip(inputs, given, strict=True):
                draw = self._draw(*pair, shared, shown)
                seen.extend(self._members(draw))
                yield draw

        outputs = one_by_one(self.net, inputs, drawn())
        if reason is not None:
            warn_unfolded(reason)
        return outputs, seen

    def _members(self, draw: Draw) -> list[int]:
        """The members of Ensemble-U that a draw shows, where each has a teacher of its own; zeros elsewhere."""
        return shown_members(self.net, draw) if self._pairing == MEMBER else [0] * draw.count

    def _draw(self, x: Any, members: list[int] | None, shared: Call, shown: int, count: int = 1) -> Draw:
        draw = Draw.fresh(self.net, shared, count=count, members=members, inputs=number_of_inputs(x))
        deal_(draw, torch.full((count,), shown, device="cpu"))  # inside `frozen_draw`, too: all members see all batches
        return draw

    def extra_repr(self) -> str:
        shown = ["num_data", "samples", "warmup", "anneal", "kl_weight", "function_space", "split"]
        return ", ".join(f"{name}={getattr(self, name)}" for name in shown)


def kl_divergence(net: nn.Module) -> Tensor:
    """KL[q || p] of all weights of `net`, a scalar in nats: the sum over its layers, each (tied ones too) once.

    For a `bnn.Ensemble` that is the sum over its members, of which `bnn.ELBO` takes the mean.

    Raises:
        ValueError: no module of `net` has a KL.
        bnn.functional.gaussian.KLError: it is inf or NaN; names the layer.

    >>> import bnn
    >>> net = torch.nn.Linear(3, 2)
    >>> bnn.bayesianize_(net, "ffg", prior_weight_sd=1.0, init_sd=1.0)
    >>> torch.allclose(kl_divergence(net), 0.5 * sum(p.square().sum() for p in (net.weight, net.bias)), atol=1e-5)
    True
    """
    kl = kl_parts(net)
    if kl is None:
        raise ValueError("no layer of this network is Bayesian, so it has no KL: convert it first, bnn.bayesianize_")
    total = kl.u + kl.lamda
    _check_kl(net, total)
    return total


def _check_kl(net: nn.Module, kl: Tensor) -> None:
    """Raises KLError, naming the layers, unless the KL of `net` is finite."""
    try:
        check_kl(kl, "the network")
    except KLError:
        names = {module: name or "the network" for name, module in net.named_modules()}
        with torch.no_grad():
            for module in _with_kl(net):
                shown = module.summary() if isinstance(module, BayesianLayer) else "a module of your own"
                u, lamda = _module_kl(module, None)
                check_kl(u + lamda, f"layer {names.get(module, type(module).__name__)!r} ({shown})")
        raise  # every layer's is finite, their sum is not


def kl_parts(net: nn.Module, function_space: int | None = None, shares: Mapping[int, float] | None = None) -> KL | None:
    """The KL of `net` in its two parts, None for a network without any; a foreign module's counts to the first.

    Args:
        function_space: N, with which each layer's lamda part is multiplied by beta = min(1, N / d_in).
        shares: how much a module counts, by its id; those not named count once.
    """
    modules = _with_kl(net)
    parts = [_module_kl(module, function_space) for module in modules]
    if shares:
        factors = [shares.get(id(module), 1.0) for module in modules]
        parts = [KL(factor * part.u, factor * part.lamda) for factor, part in zip(factors, parts, strict=True)]
    if not parts:
        return None
    device = parts[0].u.device  # a network may be spread over several
    u, lamda = (_sum([part.to(device) for part in column]) for column in zip(*parts, strict=True))
    return KL(u, lamda)


def _sum(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


def _with_kl(net: nn.Module) -> list[Any]:
    """The modules that have a KL, each once: also where a wrapper (`torch.compile`) passes on what it wraps."""
    owners = {}
    for module in net.modules():
        method = getattr(module, "kl_divergence", None)
        if callable(method):
            owner = getattr(method, "__self__", module)
            owners[id(owner)] = owner
    return list(owners.values())


def _module_kl(module: Any, function_space: int | None) -> KL:
    if not isinstance(module, BayesianLayer):
        kl = module.kl_divergence()
        return KL(u=kl, lamda=torch.zeros_like(kl))
    u, lamda = module.kl_parts()
    if function_space is None or isinstance(module, GlobalInducing):  # V acts on no inputs
        return KL(u, lamda)
    return KL(u, min(1.0, function_space / module.d_in) * lamda)


def _mean(nll: Any) -> Tensor:
    """The mean over the data of what a likelihood returned: a scalar, (N,), or (N, ...)."""
    if not isinstance(nll, Tensor):
        raise TypeError(f"the likelihood must return a tensor, got {type(nll).__name__}")
    nll = at_least_float32(nll)
    return per_datum(nll).mean()
