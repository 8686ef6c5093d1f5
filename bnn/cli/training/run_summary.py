"""What a finished run comes to, in a few lines or as JSON."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping
from typing import Any

from bnn._common.text import counted
from bnn.cli.mistakes import in_flags
from bnn.cli.training.class_summary import class_results, never_lines, weight_lines
from bnn.cli.training.guarantee_summary import guarantee_lines, guarantee_result
from bnn.cli.training.sources import file_of, new_file
from bnn.data.dataset import Data
from bnn.evaluation.network import size_of
from bnn.evaluation.promise import Promise
from bnn.evaluation.scores import Resampling, by_target
from bnn.likelihoods import about
from bnn.metrics import Interval, written
from bnn.train.cross_fit import FOLDS
from bnn.train.execute import why_not_calibrated
from bnn.train.laplace import record
from bnn.train.prune_options import prune_options
from bnn.train.runs.abstaining import predictions
from bnn.train.runs.folder import is_pretraining
from bnn.train.runs.guaranteeing import RunGuarantee
from bnn.train.runs.run import Run
from bnn.train.settling import TRAINING
from bnn.train.units import added_nll

WIDTH, INDENT = 110, 12 * " "  # of a paragraph
FEW_LAYERS = 2  # that a line names
SETTLED = {  # on which data the noise of real targets was settled, where these are no validation data
    FOLDS: "of what networks say about {inputs:,} training rows they have not seen: validation rows are few",
    TRAINING: "of training rows, too small where they are fitted too well: --validation 0.1 sets rows aside",
}
ENOUGH, HEAVY = 100, 8.0  # inputs, and degrees of freedom below which their noise is hardly Gaussian
RESAMPLES = 100  # of intervals that are not shown here: `bayesianize evaluate` measures properly


def summary(run: Run, data: Data, promise: Promise | None = None) -> dict[str, Any]:
    """The result of a run, as JSON: where it is, what it took, how large it is, and how good."""
    assert run.folder is not None
    assert run.recipe is not None
    assert run.history is not None
    stages = run.folder.training()
    size = size_of(run.network)
    return {
        "run": run.folder.path,
        "recipe": run.recipe.to_dict(),
        "epochs": len(run.history.epochs),
        "plain_epochs": max((len(epochs) for stage, epochs in stages.items() if is_pretraining(stage)), default=0),
        "best_epoch": run.history.best,
        "seconds": round(sum(float(epoch["seconds"]) for epochs in stages.values() for epoch in epochs), 1),
        "parameters": size.parameters,
        "plain_parameters": size.plain,
        "ratio": size.ratio,
        "target": ", ".join(run.targets) or None if data.task == "regression" else None,
        **_scores(run, data),
        **_noise(run, data),
        "promise": None if promise is None else promise.to_dict(),
        "temperature": run.temperature if data.task == "classification" else None,
        "calibrated": _calibrated(run, data),
        "laplace": record(run.history.laplace),
        "pruned": _pruned(run),
        "guarantee": guarantee_result(run),
        "targets": list(run.targets),
        "log_scale": run.target is not None and run.target.log,
        "hint": None if data.hint is None else in_flags(data.hint, ["positive"]),
        "kl_weight": run.recipe.schedule.kl_weight if run.candidates else None,
        "next": _next(run.folder.path, run.recipe.data, run.guarantee),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    ratio = f"{100 * found['ratio']:.0f} % of the plain network's {found['plain_parameters']:,}"
    kept = "" if found["best_epoch"] is None else f", of which number {found['best_epoch'] + 1}, the best, was kept"
    kept += f", after {found['plain_epochs']} of a plain network" if found["plain_epochs"] else ""
    text = [
        f"run         {found['run']}",
        f"trained     {counted(found['epochs'], 'epoch')}{kept}, {_time(found['seconds'])}",
        f"parameters  {found['parameters']:,} ({ratio})",
    ]
    if found["likelihoods"] is not None:
        text.append(f"noise       {_chosen(found['likelihood'], found['likelihoods'])}")
    if found["settled"] is not None and found["settled"]["data"] in SETTLED:
        text.append(f"noise       {SETTLED[found['settled']['data']].format(inputs=found['settled']['inputs'])}")
    if found["settled"] is not None and heavy_tails(found["settled"]):
        df = found["settled"]["df"]
        text.append(f"tails       heavier than Gaussian noise has: as Student's t with {df:.3g} degrees of freedom")
    if found["retry"] is not None:
        text.append(f"retried     {_retried(found['retry'])}")
    if found["plain"] is not None and found["plain"]["worse"]:
        text.append(f"worse       {_worse(found['plain'])}")
    if found["kl_weight"] is not None:
        text.append(f"KL weight   {found['kl_weight']:g}, chosen on the validation data")
    if found["pruned"] is not None:
        kept, more = found["pruned"]["kept"], found["pruned"]["epochs"]
        text.append(f"pruned      to {100 * kept:g} % of what can be, then {counted(more, 'epoch')} more")
    if found["laplace"] is not None:
        text.append(f"Laplace     {_laplace(found['laplace'])}")
    classes = found.get("classes") or {}
    text += weight_lines(classes.get("class_weights"))
    if found["calibrated"] is not None:
        text.append(f"calibrated  {found['calibrated']}")
    if found["guarantee"] is not None:
        text += guarantee_lines(found["guarantee"])
    if found["scored"] is not None:
        text += [*_score_lines(found, classes.get("balanced_accuracy")), *never_lines(classes.get("never"))]
    if found["promise"] is not None:
        what = "intervals" if found["task"] == "regression" else "promise"
        text += textwrap.wrap(
            found["promise"]["sentence"], WIDTH, initial_indent=f"{what:<12}", subsequent_indent=INDENT
        )
    if found["hint"] is not None:
        text.append(f"hint        {found['hint']}")
    return [*text, "next", *(f"  {command}" for command in found["next"])]


def heavy_tails(settled: dict[str, Any]) -> bool:
    """Whether the data make tails heavier than a Gaussian's clearly likelier: df is a mean over what few inputs allow.

    Of 100 Gaussian residuals it is below 8 in 3 % of cases, of 35 in 30 %; of noise with df = 3 almost always.

    >>> heavy_tails({"inputs": 4, "df": 6.55}), heavy_tails({"inputs": 300, "df": 3.1})
    (False, True)
    """
    return settled["df"] is not None and settled["inputs"] >= ENOUGH and settled["df"] < HEAVY


def _score_lines(found: dict[str, Any], balanced: float | None) -> list[str]:
    """How good the run is; of several targets what has a unit stands in a line for each."""
    task, each = found["task"], found["by_target"]
    shared = {k: v for k, v in found["metrics"].items() if not (each and written.in_own_units(task, k))}
    shared |= {} if balanced is None else {"balanced_accuracy": balanced}
    draws = f", {found['draws']} draws" if found["draws"] > 1 else ""
    of = "" if found["target"] is None or each else f" of {found['target']}, in its own units"
    text = [f"{found['scored']:<10}  {_numbers(task, shared)}{of} ({found['inputs']:,} inputs{draws})"]
    for name, one in each.items():
        own = {k: v for k, v in one["metrics"].items() if written.in_own_units(task, k)}
        few = "" if one["inputs"] == found["inputs"] else f" ({one['inputs']:,} inputs)"
        text.append(f"{INDENT}{_numbers(task, own)} of {name}, in its own units{few}")
    return text


def _noise(run: Run, data: Data) -> dict[str, Any]:
    """Which likelihood, how it was chosen, what its noise is, and whether the plain network was better.

    NLLs are per input, in the target's own units. `df` of what was settled is None where the noise is Gaussian.
    """
    assert run.history is not None
    known = None if data.validation is None else data.validation.y
    shift = 0.0 if data.target is None else added_nll(data.target, known)
    nlls = None if run.likelihoods is None else {name: nll + shift for name, nll in run.likelihoods.items()}
    second = None if run.retry is None or run.retry.second is None else run.retry.second + shift
    retry = run.retry and {"first": run.retry.first + shift, "second": second, "kept": run.retry.kept}
    plain = run.plain and {"plain": run.plain.plain + shift, "run": run.plain.run + shift, "worse": run.plain.worse}
    noise = run.history.noise and {name: run.history.noise[name] for name in ("data", "inputs")}
    df = about(run.likelihood).df()
    noise = noise and noise | {"df": None if math.isinf(df) else df}
    return {
        "likelihood": about(run.likelihood).name,
        "likelihoods": nlls,
        "settled": noise,
        "plain": plain,
        "retry": retry,
    }


def _chosen(likelihood: str, nlls: dict[str, float]) -> str:
    """The likelihood that validation data chose, and how much worse the others are, or that few rows cannot tell.

    >>> _chosen("heteroscedastic", {"gaussian": 12.613, "heteroscedastic": 12.5})
    'heteroscedastic, by validation NLL: 12.5 instead of 12.613 (gaussian)'
    >>> _chosen("gaussian", {"gaussian": 12.613, "heteroscedastic": 12.611})
    'gaussian: by validation NLL, 12.613, others are not clearly better: 12.611 (heteroscedastic)'
    """
    others = ", ".join(f"{nll:.5g} ({name})" for name, nll in nlls.items() if name != likelihood)
    if nlls[likelihood] > min(nlls.values()):
        return f"{likelihood}: by validation NLL, {nlls[likelihood]:.5g}, others are not clearly better: {others}"
    return f"{likelihood}, by validation NLL: {nlls[likelihood]:.5g} instead of {others}"


def _retried(found: dict[str, Any]) -> str:
    """What was done about a run that was worse than its plain network, and what came of it.

    >>> _retried({"first": -6.24, "second": -7.05, "kept": True})
    'with less noise, as the first training was clearly worse than the plain network: NLL -7.05 instead of -6.24, kept'
    """
    came = "kept" if found["kept"] else "so the first one was kept"
    second = "it diverged" if found["second"] is None else f"NLL {found['second']:.5g} instead of {found['first']:.5g}"
    return f"with less noise, as the first training was clearly worse than the plain network: {second}, {came}"


def _worse(found: dict[str, Any]) -> str:
    return (
        f"than the plain network by validation NLL, {found['run']:.5g} instead of {found['plain']:.5g}: more --epochs "
        "or --rows, or --kl-weight 0.1, may help; --method deterministic keeps the plain one"
    )


def _pruned(run: Run) -> dict[str, Any] | None:
    """What was asked for, and the epochs after it; None where nothing was pruned."""
    assert run.recipe is not None
    assert run.history is not None
    if run.recipe.prune is None:
        return None
    keep, by, _ = prune_options(run.recipe.prune, run.recipe.schedule.epochs)
    return {"kept": keep, "by": by, "epochs": 0 if run.history.tuned is None else len(run.history.tuned.epochs)}


def _laplace(found: dict[str, Any]) -> str:
    """Which layers have Laplace's posterior, and their prior precisions; of many layers the range."""
    precisions = found["prior_precision"]
    if len(precisions) <= FEW_LAYERS:
        text = ", ".join(f"{name} (prior precision {value:.3g})" for name, value in precisions.items())
    else:
        low, high = min(precisions.values()), max(precisions.values())
        text = f"{len(precisions)} layers (prior precisions {low:.3g} to {high:.3g})"
    factors = set(found["variance_factor"].values())
    wider = f", sds times {max(factors) ** 0.5:.2g}" if factors else ""
    return f"{text}{wider}, from {found['inputs']:,} training inputs"


def _calibrated(run: Run, data: Data) -> str | None:
    """What was done about the temperature, in words; None where nothing was asked for."""
    assert run.recipe is not None
    if data.task != "classification" or not run.recipe.calibrate:
        return None
    reason = why_not_calibrated(data, run.likelihood)
    if reason is not None:
        return f"no: the temperature is left at 1, {reason}"
    assert data.validation is not None
    return f"logits / {run.temperature:.3g}, fitted to {len(data.validation):,} validation inputs"


def _scores(run: Run, data: Data) -> dict[str, Any]:
    """How good the run is on the validation data, or on the test data where there are none."""
    scored = next((name for name in ("validation", "test") if getattr(data, name) is not None), None)
    if scored is None:
        return {"scored": None, "inputs": 0, "draws": 0, "metrics": {}, "by_target": {}, "task": data.task}
    outputs, targets = predictions(run.network, run.likelihood, data, getattr(data, scored))
    resampling, real = Resampling(RESAMPLES, 0, 15), data.task == "regression"
    each = by_target(resampling, outputs, targets, data.targets, brief=True) if real else {}
    result = {
        "scored": scored,
        "inputs": len(targets),
        "draws": outputs.draws,
        "metrics": _values(resampling.few(outputs, targets, real)),
        "by_target": {name: {"inputs": one.inputs, "metrics": _values(one.metrics)} for name, one in each.items()},
        "task": data.task,
    }
    if real:
        return result
    return result | {"classes": class_results(outputs, targets, data, run.likelihood, scored)}


def _next(folder: str, data: dict[str, Any], guarantee: RunGuarantee | None) -> list[str]:
    """What to do next; a guarantee says nothing about inputs that were trained on, so that there it is new ones."""
    run, level = _quoted(folder), None if guarantee is None else guarantee.level
    inputs = file_of(data) if level is None else new_file(data)
    predict = f"bayesianize predict {run} {_quoted(inputs or 'FILE')}"
    predict += "" if level is None else f" --guarantee {level:g}"
    return [f"bayesianize evaluate {run}", predict, f"bayesianize report {run}"]


def _quoted(path: str) -> str:
    return f"'{path}'" if " " in path else os.fspath(path)


def _time(seconds: float) -> str:
    """As people say it.

    >>> _time(7.26), _time(754.0), _time(7300.0)
    ('7.3 s', '12.6 min', '2.0 h')
    """
    for limit, length, unit in ((60, 1, "s"), (3600, 60, "min")):
        if seconds < limit:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / 3600:.1f} h"


def _values(found: Mapping[str, Interval]) -> dict[str, float]:
    return {name: one.value for name, one in found.items()}


def _numbers(task: str, found: dict[str, float]) -> str:
    return ", ".join(_number(task, name, value) for name, value in found.items())


def _number(task: str, name: str, value: float) -> str:
    text = written.percent(value) if written.is_share(task, name) else written.real(value)
    return f"{written.metric_title(task, name)} {text}"
