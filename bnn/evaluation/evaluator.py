"""`bnn.evaluate`: predicts every set of inputs once, and measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from bnn._common.checks import whole
from bnn._common.progress import Advance, progress_of
from bnn._engine.fold import Drawn
from bnn._engine.inputs import check_network
from bnn._engine.temperature import temperature_of
from bnn.conformal import Guarantee
from bnn.conformal.ranks import usual_level
from bnn.data.dataset import Data, Part
from bnn.ensemble import Ensemble
from bnn.evaluation import corruptions as corrupted
from bnn.evaluation import scores
from bnn.evaluation.classes import classes_of, weights_of
from bnn.evaluation.coverage import guaranteed, own_coverage
from bnn.evaluation.examples import examples, points
from bnn.evaluation.network import posterior_of, size_of
from bnn.evaluation.pieces import OOD, Corrupted, Detection, Guaranteed
from bnn.evaluation.predictor import Array, Change, Outputs, Predictor
from bnn.evaluation.promise import Promise, promise_of
from bnn.evaluation.result import Evaluation
from bnn.evaluation.task import Task, likelihood_of, task_of
from bnn.metrics.lognormal import LARGEST
from bnn.metrics.temperature import BOUNDS


def evaluate(
    net: nn.Module,
    data: Any,
    *,
    ood: Any = None,
    corruptions: Any = None,
    samples: int | str | None = None,
    likelihood: Any = None,
    validation: Any = None,
    guarantee: Guarantee | None = None,
    batch_size: int = 500,
    seed: int = 0,
    resamples: int = 1000,
    bins: int = 15,
    progress: bool | None = None,
) -> Evaluation:
    """Everything that is known about `net` on `data`, as one data structure.

    Predictions are those of `bnn.predict` with `generator=torch.Generator().manual_seed(seed)`; the same draws serve
    all sets. Layers draw by their own option `sampling`; in `Run.predict` and `bayesianize evaluate` they draw by
    "weight", and after `bnn.set_sampling_(net, "weight")` so they do here. The network is left in the mode it was in,
    and torch's global generator as it was.

    Args:
        net: a converted network, an `Ensemble`, or a plain network, which runs once.
        data: a `bnn.data.Data`, whose test part is scored, a `Part`, a pair (x, y) of tensors or arrays, a torch
            `Dataset` of pairs, or a `DataLoader`.
        ood: out-of-distribution inputs: the name of a data set (see `bnn.data.ood`) or of synthetic ones ("noise",
            "shuffled", "inverted", "letters", "far": see `bnn.data.synthetic_ood`), a folder of images (needs no
            classes), a `Data` (its test part, else its training part), a tensor of inputs as the network takes them, a
            `Part`, `Dataset` or `DataLoader`, a list of names and folders, or a dict of any of these.
        corruptions: of images: True or "all" (19 kinds, 18 of grey images; 5 severities), kinds, severities, or a
            dict kind -> severities.
        samples: draws, as for `bnn.predict`; None is 20, or as many more as count every member alike. Of
            classes also "logits", where only the last layer is Bayesian.
        likelihood: as for `bnn.predict`; None is "categorical" for classes. For real targets pass the one that was
            trained, `history.likelihood`, or "heteroscedastic".
        validation: what the temperature is learned on; None: the validation part of a `Data`, if it has one.
        guarantee: of this network (`bnn.conformal`, `history.guarantee`), made of as many draws of this seed: coverage
            and size of intervals, or sets of classes, before and after.
        batch_size: inputs that run at a time.
        seed: of the draws, the corruptions and the resamples.
        resamples: of the intervals (see `bnn.metrics.bootstrap`).
        bins: of the calibration errors.
        progress: None shows a bar on terminals; True lines where there is none, too; False nothing.

    >>> import torch, bnn
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2, max_lamda=0.1)
    >>> x, y = torch.randn(50, 4), torch.randint(3, (50,))
    >>> found = evaluate(net, (x, y), ood={"far": 10 * torch.randn(40, 4)}, resamples=100)
    >>> list(found.ood["far"].detection["entropy"]), found.size.plain
    (['auroc', 'aupr', 'fpr95'], 131)
    """
    check_network(net)
    for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("bins", bins, 1)):
        whole(name, value, least)
    resampling = scores.Resampling(whole("resamples", resamples), seed, bins)
    task = task_of(data, ood, corruptions, validation, batch_size)
    target = data.target if isinstance(data, Data) else None
    number = samples if isinstance(samples, str) else drawn(net, samples)
    predictor = Predictor(net, likelihood_of(likelihood, task), number, batch_size, seed, target)
    with progress_of(progress, task.inputs) as advance:
        return _Evaluator(task, predictor, resampling, advance, guarantee).result()


def drawn(net: nn.Module, samples: int | None) -> int | None:
    """A plain network runs once, whatever the number of draws."""
    if samples is not None:
        whole("samples", samples, 0)
    return samples if any(isinstance(module, Drawn | Ensemble) for module in net.modules()) else 0


class _Evaluator:
    """One evaluation: the test part first, which settles the task, then everything else."""

    def __init__(
        self,
        task: Task,
        predictor: Predictor,
        resampling: scores.Resampling,
        advance: Advance,
        guarantee: Guarantee | None = None,
    ) -> None:
        self.task, self.predictor, self.resampling, self.advance = task, predictor, resampling, advance
        self.guarantee = guarantee

    def result(self) -> Evaluation:
        """All of it."""
        task, inside = self.task, self._predict("test", self.task.part)
        real = "max_prob" not in inside.scores
        kind = "regression" if real else "classification"
        if task.kind not in (None, kind):
            raise ValueError(f"{task.name} is a {task.kind} task, but the likelihood predicts for {kind}")
        targets = self._targets(inside, task.part, real)
        if real and task.validation is not None:
            raise ValueError("validation data serve temperature scaling, which is for classes: leave them out")
        temperature = None if task.validation is None else self._temperature(task.validation)
        ood, detection = self._ood(inside)
        rows = tuple(self._corrupted(corruption, severity, targets, real) for corruption, severity in task.corruptions)
        return Evaluation(
            data=task.name,
            task=kind,
            inputs=len(task.part),
            draws=inside.draws,
            seed=self.resampling.seed,
            metrics=self.resampling.of_reals(inside, targets)
            if real
            else self.resampling.of_classes(inside, targets, temperature),
            temperature=temperature,
            uncertainty=scores.uncertainty(inside),
            ood=ood,
            corruptions=rows,
            severities=corrupted.by_severity(rows),
            selective=None if real else scores.selective(inside, targets),
            reliability=None if real else scores.reliability(inside, targets, self.resampling.bins),
            posterior=posterior_of(self.predictor.network),
            size=size_of(self.predictor.network),
            notes=tuple(_notes(inside, real, temperature, ood)),
            examples=examples(inside, task.part, targets, task.classes, task.preparation),
            points=points(inside, targets) if real else None,
            network_temperature=temperature_of(self.predictor.network),
            detection=detection,
            risk_coverage=self.resampling.risk_coverage(inside, targets),
            targets=task.targets,
            by_target=scores.by_target(self.resampling, inside, targets, task.targets) if real else {},
            scale=inside.scale,
            coverage=own_coverage(inside, targets) if real else (),
            promise=self._promise(inside, targets),
            guarantee=self._guaranteed(inside, targets),
            classes=None if real else classes_of(inside.mean, targets, task.classes, self.predictor.likelihood),
        )

    def _promise(self, inside: Outputs, targets: Array) -> Promise | None:
        weighted = bool(weights_of(self.predictor.likelihood))
        level = None if self.guarantee is None else usual_level(self.guarantee.rows)
        classes, names = self.task.classes, self.task.targets
        return promise_of(inside, targets, level=level, classes=classes, names=names, weighted=weighted)

    def _guaranteed(self, inside: Outputs, targets: Array) -> Guaranteed | None:
        if self.guarantee is None:
            return None
        classes, names, target = self.task.classes, self.task.targets, self.predictor.target
        return guaranteed(self.guarantee, inside, targets, target, classes=classes, names=names)

    def _ood(self, inside: Outputs) -> tuple[dict[str, OOD], Detection | None]:
        parts = self.task.ood
        outputs = {name: replace(self._predict(name, part), components=None) for name, part in parts.items()}
        found, detection = self.resampling.ood(inside, outputs, self.task.targets)
        shown = {name: examples(one, parts[name], None, self.task.classes) for name, one in outputs.items()}
        return {name: replace(one, examples=shown[name]) for name, one in found.items()}, detection

    def _predict(self, what: str, part: Part, change: Change | None = None) -> Outputs:
        self.advance(what, 0)
        return self.predictor(part, change, lambda inputs: self.advance(what, inputs), what)

    def _targets(self, outputs: Outputs, part: Part, real: bool) -> Array:
        assert part.y is not None
        if real:
            return scores.own_targets(outputs, part.y, self.predictor.target)
        return scores.class_labels(outputs, part.y, self.task.classes)

    def _temperature(self, part: Part) -> float:
        outputs = self._predict("validation", part)
        return scores.best_temperature(outputs, self._targets(outputs, part, real=False))

    def _corrupted(self, kind: str, severity: int, targets: Array, real: bool) -> Corrupted:
        change = corrupted.corruption(kind, severity, self.predictor.seed)
        outputs = self._predict(f"{kind} {severity}", self.task.part, change)
        metrics = self.resampling.few(outputs, targets, real)
        return Corrupted(kind, severity, metrics, scores.uncertainty(outputs))


def _notes(inside: Outputs, real: bool, temperature: float | None, ood: Mapping[str, OOD]) -> Iterator[str]:
    """What was left out, and why."""
    score = "epistemic" if real else "mutual_information"
    left_out = [name for name, one in ood.items() if score not in one.detection]
    if left_out:
        words = score.replace("_", " ")
        why = "there is one draw" if inside.draws < 2 else "the draws agree up to rounding"
        yield f"{why}, so {words} is no score for {', '.join(left_out)} (by definition: chance)"
    if temperature is not None and not BOUNDS[0] * 1.01 < temperature < BOUNDS[1] / 1.01:
        yield f"the temperature {temperature:.3g} is at its bound: too few validation data, or all of them right"
    if not real and temperature is None:
        yield "no validation data, so no temperature was learned"
    if real and (inside.components is None or inside.losses is not None):
        what = "crps" if inside.losses is not None else "nll, crps"
        yield f"the draws predict no Gaussians: {what} and intervals are those of one with the mean and variance"
    wild = int((inside.mean > LARGEST / (inside.draws + 1)).sum()) if inside.scale == "log" else 0
    if wild:
        yield (
            f"{wild} of {inside.mean.size} predicted means have draws beyond {LARGEST:g}, as wild sds of the logarithm "
            "make them, which count as that: RMSE and mean uncertainties say little; intervals are right"
        )
