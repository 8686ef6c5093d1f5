"""Laplace's approximation: epistemic uncertainty for a trained network, without training it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bnn import likelihoods
from bnn._common.checks import check_bool, check_choice, check_positive, check_size
from bnn._common.progress import progress_of
from bnn._common.text import listed
from bnn._conversion.curvature import Seen, Watch
from bnn._conversion.laplace_layers import Layers, check_width, chosen_layers
from bnn._conversion.posterior import Found, before, set_whole_, to_plain_
from bnn._conversion.undo import unchanged_on_error
from bnn._engine.inputs import batches_of, check_network, device_of, evaluating
from bnn._engine.members import Mixture, last_layers, mixtures
from bnn._engine.noise import unwrapped
from bnn._engine.temperature import forget_temperature_, warn_of_temperature
from bnn.bayesianize import convert_chosen_
from bnn.closed_form import input_of
from bnn.data.dataset import Data, Part, each
from bnn.data.forms import batches_in_order, taken, to_device
from bnn.functional.kernels import to_matrix
from bnn.functional.laplace import (
    effective_number,
    fitted_noise,
    fitted_precision,
    log_evidence,
)
from bnn.functional.temperature import mixture_losses
from bnn.likelihoods.base import about, fitting_targets, predictive_nll
from bnn.likelihoods.registry import DEFAULTS
from bnn.nn.base import plain_weights
from bnn.nn.families.inducing import InducingBase
from bnn.prediction import draws
from bnn.temperature import fitted as fitted_temperature

GRID = tuple(10.0 ** (power / 2) for power in range(-8, 9))  # precisions that "validation" tries
FACTORS = tuple(10.0 ** (power / 4) for power in range(1, 9))  # of all variances: up to 100
CHOICES = ["marginal", "validation"]
ALLOWED = 0.01  # of the validation NLL: what a wider posterior may cost
KEPT_BYTES = 2**28  # of the last layer's inputs on validation data
LOOK, DRAWS, LOST = 200, 20, 0.1  # inputs and draws that tell whether a posterior is too wide: by so many nats
MOST_OUTPUTS = {"exact": math.inf, "sampled": 0}  # of a network for which one backward pass is made for each of them
FEW_OUTPUTS, FEW_OUTPUTS_OF_ALL = 100, 10  # where nobody says: only through the last layer these passes cost little


@dataclass(frozen=True)
class Laplace:
    """What `bnn.laplace_` found."""

    prior_precision: dict[str, float]  # tau by layer, in units of the prior the layer had
    log_evidence: float  # the log marginal likelihood, up to what no prior precision changes
    likelihood: Any  # as it was given, or with the noise that was fitted: `bnn.predict` needs it for regression
    effective_parameters: dict[str, float]  # how many the data determine, by layer
    inputs: int  # how many the curvature was taken from
    variance_factor: dict[str, float] = field(default_factory=dict)  # by layer, where "validation" chose one beyond 1


def laplace_(
    network: nn.Module,
    data: Any,
    layers: Layers = "last",
    prior_precision: str | float = "marginal",
    *,
    likelihood: Any = None,
    validation: Any = None,
    labels: str | None = None,
    inducing_cols: int | None = None,
    num_data: int | None = None,
    batch_size: int = 500,
    samples: int = 20,
    calibrated: bool = False,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> Laplace:
    """Gives some layers of a trained network, in place, a Gaussian posterior from the curvature of its loss.

    No training: one pass over the data with one backward pass (two passes where rows of convolutions do not fit in
    memory). With g = d loss / d s at s = u t and G = sum over rows g t^T, u gets independent entries in the eigenbasis
    of the second moments of g and t,

        v = Q_out^T u Q_in,   Lambda_ij = num_data E[(Q_out^T G Q_in)_ij^2],   sd(v_ij) = (Lambda_ij + tau)^-1/2

    around the mean it has, which is taken for the mode. Z takes up the rotations, so that this is an ordinary
    `q_inducing="diagonal"`: KL, files, `bnn.fit` and everything else work as for any other. A plain layer becomes an
    inducing one of full size, so that nothing of its weights is lost: for the last one that is last-layer Laplace.
    Classes: then let `bnn.predict` use it. Real targets: `bnn.predict(net, x, likelihood=found.likelihood)`.

    Args:
        network: trained; plain, converted, or an `Ensemble`, whose members are taken one by one.
        data: training data as `bnn.fit` takes them (of a `Data` the training part); several thousand inputs do, if
            `num_data` says how many the network was trained on.
        layers: "last" (of those that run), "all" inducing ones, a name, a glob on names, a module, or a list of these.
        prior_precision: tau: "marginal" maximises the marginal likelihood, layer by layer; "validation" takes, of 17
            for all layers, the smallest whose NLL on `validation` is within 1 %, or a paired standard error, of the
            least: a posterior as wide as costs nothing there. Where that is the smallest of all, so that the curvature
            alone keeps it narrow, all variances are multiplied by up to 100 by the same rule, as if there were so many
            times fewer data (unless `calibrated`). Or a number, in units of the prior the layer has (of a plain layer:
            the precision of its weights). It is folded into the layer's prior sd: sigma / sqrt(tau).
        likelihood: as for `bnn.fit`; None: "categorical" for integer targets, else Gaussian noise, whose sd is fitted
            by marginal likelihood (as for "gaussian"). A `Gaussian` object keeps its sd.
        validation: held-out data for "validation"; None: the validation part of a `Data`.
        labels: "sampled": one label per input, drawn from the network's prediction; "exact": the Gauss-Newton matrix,
            one backward pass for every output (what belongs to two positions of an input cancels in the mean only:
            positions get random signs). None: "exact" for at most 100 outputs if layers="last", else for at most 10:
            labels of a network that is sure hardly vary, so that samples of a few hundred say little.
        inducing_cols: of plain layers, at most so many directions of the input (M_in): those that the weights need,
            then those with most curvature; lamda covers the others so that their mean variance is kept. None: all of
            a plain layer. A layer that was converted without noise (method "point-u") has its posterior in the M_in
            directions in which it has weights; with `inducing_cols` it counts as the plain layer that it is.
        num_data: how many inputs the posterior is for; None: as many as there are in `data`.
        batch_size: inputs at a time, where `data` is no loader.
        samples: draws per prediction on `validation`.
        calibrated: of classes, whether "validation" judges each precision with the temperature that is best for it: for
            `bnn.calibrate_` afterwards. Otherwise a network that is too sure of itself gets a wider posterior, as its
            draws take the place of a temperature.
        generator: of sampled labels and of draws on validation data.
        progress: None shows a bar on terminals, True lines elsewhere, too, False nothing.

    Returns:
        The precisions, the evidence and the likelihood.

    Warns where draws explain the data worse than the mean by more than 0.1 nats: the posterior is too wide then.

    Raises:
        ValueError: no such layers; a layer of another family, of Ensemble-U or under global inducing weights; a plain
            layer with too many inputs; a network that gives NaN. An error leaves the network as it was.

    >>> import bnn
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))  # trained, say
    >>> found = bnn.laplace_(net, (torch.randn(90, 4), torch.randint(3, (90,))))
    >>> list(found.prior_precision), type(net[2]).__name__
    (['2'], 'InducingLinear')
    >>> bnn.predict(net, torch.randn(5, 4)).epistemic.shape
    torch.Size([5])
    """
    check_network(network)
    if labels is not None:
        check_choice("labels", labels, list(MOST_OUTPUTS))
    check_size("inducing_cols", inducing_cols, none=True)
    check_size("num_data", num_data, none=True)
    check_size("batch_size", batch_size)
    check_size("samples", samples)
    check_bool("calibrated", calibrated)
    if isinstance(prior_precision, str):
        check_choice("prior_precision", prior_precision, CHOICES)
    else:
        check_positive("prior_precision", prior_precision)
    source = _Source(data, validation, batch_size, device_of(network))
    if prior_precision == "validation" and source.validation is None:
        raise ValueError("prior_precision='validation' needs validation data: pass validation=, or use 'marginal'")
    asked = _Asked(layers, prior_precision, likelihood, labels, inducing_cols, num_data, samples, calibrated, generator)
    members = members_of(network)
    warn_of_temperature(network, "it gets another posterior now")
    with torch.inference_mode(False), unchanged_on_error(network, []):
        forget_temperature_(network)
        found = [_one(member, source, asked, progress) for member in members]
    return _together(found) if isinstance(network, Mixture) else found[0]


def members_of(network: nn.Module) -> list[nn.Module]:
    """The networks that get a posterior each: the members of an ensemble, or the network itself."""
    if isinstance(network, Mixture):
        return list(network.members)
    if mixtures(network):
        raise ValueError("there is an Ensemble inside this network: call laplace_ on the Ensemble itself")
    return [unwrapped(network)]


class _Asked(NamedTuple):
    """The arguments."""

    layers: Layers
    precision: str | float
    likelihood: Any
    labels: str | None
    columns: int | None
    num_data: int | None
    samples: int
    calibrated: bool
    generator: torch.Generator | None


class _Source:
    """The data, batch by batch, on the device of the network."""

    def __init__(self, data: Any, validation: Any, batch_size: int, device: torch.device) -> None:
        self.data = taken(data.train if isinstance(data, Data) else data)
        held_out = data.validation if validation is None and isinstance(data, Data) else validation
        self.validation = None if held_out is None else taken(held_out, "validation")
        self.batch_size, self.device = batch_size, device
        self.number = len(self.data) if isinstance(self.data, Part) else 0  # of inputs; 0: nobody knows

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Inputs and targets."""
        for x, y in self._of(self.data):
            check_known(y)
            yield x, y

    def held_out(self) -> Iterator[tuple[Any, Any]]:
        """Those of the validation data."""
        return self._of(self.validation)

    def _of(self, data: Any) -> Iterator[tuple[Any, Any]]:
        for x, y in batches_in_order(data, self.batch_size):
            yield _normal(to_device(x, self.device)), _normal(to_device(y, self.device))


def check_known(y: Any) -> None:
    """Raises where real targets are missing: curvature is of the outputs, and would count those nobody has seen."""
    if isinstance(y, Tensor) and y.is_floating_point() and not bool(torch.isfinite(y).all()):
        raise ValueError(
            "the targets have NaN or inf in them, and Laplace's approximation takes no missing ones: leave such inputs "
            "out"
        )


def _normal(x: Any) -> Any:
    """Tensors that autograd can use, also of those made in inference mode."""
    return each(x, lambda tensor: tensor.clone() if tensor.is_inference() else tensor)


def _one(network: nn.Module, source: _Source, asked: _Asked, progress: bool | None) -> Laplace:
    """`laplace_` for one network."""
    first = next(source.batches(), None)
    if first is None:
        raise ValueError("data holds no inputs, so there is no curvature: expected at least one batch")
    named = chosen_layers(network, asked.layers, first[0])
    noise, fits_noise = _likelihood(asked.likelihood, first[1])
    if asked.columns is not None:
        _free_points_(named)
    plain = _convert_plain_(network, named)
    if asked.columns is not None and not plain:
        raise ValueError(
            f"inducing_cols is for layers without a posterior, plain ones or points, and {listed(named)} have one, "
            "with sizes of its own: leave it out"
        )
    layers = {name: layer for name, layer in named.items() if isinstance(layer, InducingBase)}
    with progress_of(progress, source.number, "Laplace", "inputs", transient=True) as advance:
        watch = Watch(
            network, layers, noise, _most_outputs(asked, noise), asked.generator, lambda n: advance("curvature", n)
        )
        curvatures, seen = watch.curvatures(source.batches)
        for curvature in curvatures:
            if asked.columns is not None and curvature.layer in plain:
                mean = before(curvature.layer).mean
                curvature.narrow(mean.to(curvature.layer.z_row.dtype), asked.columns)  # which its rank is exact to
        eigenvalues = watch.eigenvalues(curvatures, source.batches)
    if not math.isfinite(seen.log_likelihood):
        raise ValueError("the likelihood of the targets is not finite: look for NaN or inf in them")
    scale = (asked.num_data or seen.inputs) / seen.inputs
    found = [Found.of(curvature, own, scale) for curvature, own in zip(curvatures, eigenvalues, strict=True)]
    fit = _Fit(network, found, seen.times(scale), noise, fits_noise)
    fit.choose_(asked, source)
    _warn_of_width(network, *first, fit.likelihood)
    return fit.result(list(named))


def _warn_of_width(network: nn.Module, x: Any, y: Any, likelihood: Any) -> None:
    """Warns where draws explain the data much worse than the mean does: the curvature there is too small to be true.

    A network that is sure of few data has hardly any curvature at its mode; the Gaussian then reaches to where the loss
    is high.
    """
    (x, *_), (y, *_) = batches_of(x, LOOK), batches_of(y, LOOK)
    with torch.no_grad(), evaluating(network):
        outputs = [draws(network, x, samples, torch.Generator().manual_seed(0)) for samples in (0, DRAWS)]
    targets = fitting_targets(y, outputs[0][0], likelihood)
    mean, drawn = (predictive_nll(likelihood, own, targets).mean().item() for own in outputs)
    if drawn > mean + LOST:
        warnings.warn(
            f"Laplace's approximation is too wide here: the NLL of {len(outputs[0][0])} of these inputs is {drawn:.3g} "
            f"under draws and {mean:.3g} at the mean. Networks that fit few data closely have hardly any curvature: "
            'use prior_precision="validation" with held-out data, or a larger number',
            UserWarning,
            stacklevel=4,
        )


def _likelihood(given: Any, y: Any) -> tuple[Any, bool]:
    """The likelihood, and whether its noise is to be fitted; it then stands for noise of sd 1."""
    if given is None:
        integers = isinstance(y, Tensor) and not y.is_floating_point()
        given = DEFAULTS["classification" if integers else "regression"]
    if given == DEFAULTS["regression"]:  # by name: nobody gave a noise
        return likelihoods.Gaussian(1.0, learn=False), True
    return likelihoods.get(given), False


def _most_outputs(asked: _Asked, likelihood: Any) -> float:
    """Up to how many outputs the curvature is exact."""
    if asked.labels is not None:
        return MOST_OUTPUTS[asked.labels]
    if not about(likelihood).has_scores:
        return MOST_OUTPUTS["sampled"]
    return FEW_OUTPUTS if asked.layers == "last" else FEW_OUTPUTS_OF_ALL


def _free_points_(named: dict[str, nn.Module]) -> None:
    """Turns layers that are points, in place, into the plain ones that they are, so that they may get other sizes."""
    for name, layer in named.items():
        if isinstance(layer, InducingBase) and layer.is_point():
            to_plain_(layer)
            check_width(name, layer)


def _convert_plain_(network: nn.Module, named: dict[str, nn.Module]) -> set[nn.Module]:
    """Turns the plain layers among some, in place, into inducing ones of full size: all that they were is kept."""
    plain = {layer: to_matrix(*plain_weights(layer)) for layer in named.values() if not isinstance(layer, InducingBase)}
    if plain:
        whole = {"inference": "inducing", "max_lamda": 0.0, "kernel": "paper"}
        sizes = {layer: {"inducing_rows": len(W), "inducing_cols": W.shape[1]} for layer, W in plain.items()}
        convert_chosen_(network, {layer: whole | own for layer, own in sizes.items()}, {}, {})
    for layer, W in plain.items():
        assert isinstance(layer, InducingBase)
        set_whole_(layer, W)
    return set(plain)


def _together(found: list[Laplace]) -> Laplace:
    """Of an ensemble: layers by their names in it, and the noise of all members together."""
    precisions, numbers, factors = (
        {f"members.{i}.{name}": value for i, one in enumerate(found) for name, value in getattr(one, part).items()}
        for part in ("prior_precision", "effective_parameters", "variance_factor")
    )
    likelihood = found[0].likelihood
    if any(one.likelihood is not likelihood for one in found):
        likelihood = likelihood.pooled([one.likelihood for one in found])
    return Laplace(precisions, sum(one.log_evidence for one in found), likelihood, numbers, found[0].inputs, factors)


class _Fit:
    """The layers of one network: their precisions, and the noise."""

    def __init__(self, network: nn.Module, found: list[Found], seen: Seen, likelihood: Any, fits_noise: bool) -> None:
        self.network, self.found, self.seen = network, found, seen
        self.likelihood, self.fits_noise = likelihood, fits_noise
        self.taus: list[float] = []
        self.factor = 1.0  # of all variances

    def choose_(self, asked: _Asked, source: _Source) -> None:
        """Chooses precisions and noise, and gives all layers their posteriors, in place."""
        if not isinstance(asked.precision, str):
            self.set_(float(asked.precision))
            return
        if asked.precision == "marginal":
            self.set_(None)
            return
        number = int(torch.randint(2**62, (), generator=asked.generator, device=_device_of(asked.generator)))

        self.set_(GRID[0])  # layers that were points draw now
        end = self._end(source)

        def losses(tau: float, factor: float) -> Tensor:
            self.set_(tau, factor)
            return self._losses(end, asked, number)

        candidates = [(tau, 1.0) for tau in GRID]
        found = [losses(*one) for one in candidates]
        if widest(torch.stack(found)) == 0 and not asked.calibrated:
            wider = [(GRID[0], factor) for factor in reversed(FACTORS)]
            candidates, found = wider + candidates, [losses(*one) for one in wider] + found
        self.set_(*candidates[widest(torch.stack(found))])

    def set_(self, tau: float | None, factor: float = 1.0) -> None:
        """Posteriors under the precision `tau`, all variances times `factor`; None: by marginal likelihood."""
        curvatures, means = [one.all_entries() for one in self.found], [one.mean for one in self.found]
        variance = 1.0
        if self.fits_noise:
            sd, self.taus = fitted_noise(curvatures, means, self.seen.squares, self.seen.values, tau)
            self.likelihood, variance = likelihoods.Gaussian(sd), sd**2
        elif tau is None:
            self.taus = [fitted_precision(*pair) for pair in zip(curvatures, means, strict=True)]
        else:
            self.taus = [tau] * len(means)
        self.factor, self.taus = factor, [own / factor for own in self.taus]
        self.curvatures = [one / (variance * factor) for one in curvatures]
        for one, own in zip(self.found, self.taus, strict=True):
            one.set_(own, variance * factor)

    def _end(self, source: _Source) -> tuple[nn.Module, Callable[[], Iterable[tuple[Any, Any]]]]:
        """What draws, and the validation data for it: the last layer alone on its inputs, which no precision changes,
        where nothing else draws and nothing follows; else the whole network."""
        layer, kept, size = self.found[0].layer, [], 0
        with torch.no_grad(), evaluating(self.network):
            if len(self.found) == 1 and last_layers(self.network) == [layer]:
                for x, y in source.held_out():
                    try:
                        kept.append((input_of(self.network, layer, x), y))
                    except ValueError:  # something follows
                        return self.network, source.held_out
                    size += kept[-1][0].numel() * kept[-1][0].element_size()
                    if size > KEPT_BYTES:
                        return self.network, source.held_out
                return layer, lambda: kept
        return self.network, source.held_out

    def _losses(
        self, end: tuple[nn.Module, Callable[[], Iterable[tuple[Any, Any]]]], asked: _Asked, number: int
    ) -> Tensor:
        """The NLL of every validation input, (N,), the same draws for all precisions; of every target if calibrated."""
        losses: list[Tensor] = []
        network, batches = end
        known = about(self.likelihood)
        calibrated = asked.calibrated and known.logits
        with torch.no_grad(), evaluating(self.network):
            for part, (x, y) in enumerate(batches()):
                outputs = draws(network, x, asked.samples, torch.Generator().manual_seed((number + part) % 2**62))
                targets = fitting_targets(y, outputs[0], self.likelihood)
                of_batch = known.gaps if calibrated else partial(predictive_nll, self.likelihood)
                losses.append(of_batch(outputs, targets).cpu())
        if not losses:
            raise ValueError("validation holds no inputs: expected at least one batch")
        if not calibrated:
            return torch.cat(losses)
        temperature, _ = fitted_temperature(losses)
        return torch.cat([mixture_losses(gaps, 1 / temperature)[0] for gaps in losses])

    def result(self, names: list[str]) -> Laplace:
        """What users get."""
        parts = list(zip(self.curvatures, (one.mean for one in self.found), self.taus, strict=True))
        fit = self.seen.log_likelihood
        if self.fits_noise:
            sd = self.likelihood.sd().item()
            fit = -self.seen.squares / (2 * sd**2) - self.seen.values * (math.log(sd) + 0.5 * math.log(2 * math.pi))
        numbers = [effective_number(curvature, tau) for curvature, _, tau in parts]
        return Laplace(
            dict(zip(names, self.taus, strict=True)),
            fit + sum(log_evidence(*part) for part in parts),
            self.likelihood,
            dict(zip(names, numbers, strict=True)),
            self.seen.inputs,
            {} if self.factor == 1 else dict.fromkeys(names, self.factor),
        )


def widest(losses: Tensor) -> int:
    """Which of several precisions, the smallest first, to take: the first whose loss is about as small as the least.

    About: mean(l - l_best) <= max(se(l - l_best), 0.01 |mean(l_best)|), with the standard error over inputs. The NLL
    hardly depends on the precision over decades, while what a network does not know shows only in a wide posterior.

    Args:
        losses: of every precision and input, (G, N).

    >>> widest(torch.tensor([[3.0, 4.0, 3.0], [1.1, 0.9, 1.2], [1.0, 1.0, 1.1]]))
    1
    >>> widest(torch.tensor([[1.02, 1.02], [1.005, 1.005], [1.0, 1.0]]))
    1
    """
    means = losses.mean(1)
    gaps = losses - losses[means.argmin()]
    error = gaps.std(1) / math.sqrt(gaps.shape[1]) if gaps.shape[1] > 1 else torch.zeros_like(means)
    return int((gaps.mean(1) <= error.clamp(min=ALLOWED * float(means.min().abs()))).nonzero()[0])


def _device_of(generator: torch.Generator | None) -> Any:
    return "cpu" if generator is None else generator.device
