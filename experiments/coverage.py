"""Do intervals keep their promise? Regression by the defaults of `bayesianize train`, on tables of many kinds.

    BNN_DATA=<folder> python -m experiments.run coverage

A run writes a table as two CSV files, trains on them as `bayesianize train --data train.csv --target y --test test.csv`
does, and scores what the network says about the test rows, in the target's own units. Nothing is kept but the scores.
"""

from __future__ import annotations

import math
import pathlib
import tempfile
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bnn
from bnn.cli.training.describe import Described, describe
from bnn.cli.training.flags import Flags
from bnn.data import Data
from bnn.evaluation.predictor import Outputs, Predictor
from bnn.evaluation.scores import own_targets
from bnn.metrics.predicted import predictive_crps, predictive_losses
from bnn.train.execute import run_recipe
from bnn.train.runs.guaranteeing import BATCH, SEED
from bnn.train.runs.run import Run
from bnn.train.step import Sampling
from experiments import coverage_sets

LEVELS = (0.5, 0.8, 0.9)
FLAGS: dict[str, dict[str, Any]] = {  # of `bayesianize train`, beside the data
    "plain": {"method": "deterministic"},
    "ffg-u": {},
    "guarantee": {"guarantee": True},
}

Floats = NDArray[np.float64]
Ends = dict[float, tuple[Floats, Floats]]


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """One network on one split of one table: scores, seconds of one processor, and scores of every test row."""
    table = coverage_sets.load(settings["data"], settings["seed"])
    with tempfile.TemporaryDirectory() as folder:
        train, test = table.write(pathlib.Path(folder))
        own = table.flags | FLAGS["plain" if settings["method"] == "mlp" else settings["method"]]
        paths = {"data": str(train), "target": table.target, "test": str(test)}
        described = describe(Flags(**paths, task="regression", seed=settings["seed"], **own))
    sizes = {"rows": len(table.rows), "test_rows": len(table.test)}
    return sizes | (mlp(described.data, settings["seed"]) if settings["method"] == "mlp" else trained(described))


def trained(described: Described) -> dict[str, Any]:
    """A network of ours, trained as `bayesianize train` does; its intervals are guaranteed where the recipe says so."""
    begin = time.process_time()
    found = run_recipe(described.recipe, data=described.data, progress=False)
    seconds = time.process_time() - begin
    outputs, y = predicted(found, described.data)
    about = {
        "training_seconds": seconds,
        "parameters": bnn.parameter_count(found.network),
        "varying_noise": float(found.likelihood.name != "gaussian"),
    }
    return about | scores(outputs, y, ends(found, outputs))


def predicted(found: Run, data: Data) -> tuple[Outputs, Floats]:
    """What a run says about the test rows, as `bayesianize predict` has it, and their targets (N, 1)."""
    assert data.test is not None
    assert data.test.y is not None
    plain = found.recipe is not None and not found.recipe.bayesian
    predict = Predictor(found.network, found.likelihood, 0 if plain else None, BATCH, SEED, found.target)
    with Sampling(found.network, "weight").in_force():  # every draw is one function of all rows, as in `Run.predict`
        outputs = predict(data.test)
    return outputs, own_targets(outputs, data.test.y, found.target)


def ends(found: Run, outputs: Outputs) -> Ends:
    """The ends of the intervals at every level: those that are guaranteed where there is a guarantee."""
    if found.guarantee is None:
        return {level: outputs.interval(level) for level in LEVELS}
    return {level: found.guarantee.intervals(outputs, level, found.target) for level in LEVELS}


def scores(outputs: Outputs, y: Floats, intervals: Ends) -> dict[str, Any]:
    """RMSE, NLL, CRPS, coverage and width at every level, in the target's own units.

    Args:
        outputs: what is predicted, of which NLL and CRPS are those of the mixture of draws.
        y: (N, 1).
        intervals: {level: ends (N, 1)}.
    """
    about = (outputs.mean, np.sqrt(outputs.total), y, outputs.components)
    rows = {
        "nll": predictive_losses(*about, outputs.losses, outputs.scale, outputs.df),
        "crps": predictive_crps(*about, outputs.scale, outputs.df),
        "squared_error": np.square(outputs.mean - y)[:, 0],
    }
    found = {"rmse": math.sqrt(rows["squared_error"].mean()), "nll": rows["nll"].mean(), "crps": rows["crps"].mean()}
    for level, (low, high) in intervals.items():
        found[f"coverage_{100 * level:.0f}"] = ((low <= y) & (y <= high)).mean()
        found[f"width_{100 * level:.0f}"] = (high - low).mean()
    return {name: float(value) for name, value in found.items()} | {"per_input": rows}


def of_gaussian(mean: Floats, sd: Floats) -> Outputs:
    """What a network without draws predicts, mean and sd (N, 1)."""
    nothing = np.zeros_like(mean)
    return Outputs(mean, np.square(sd), np.square(sd), nothing, {}, (mean[None], sd[None]), 1)


def mlp(data: Data, seed: int) -> dict[str, Any]:
    """scikit-learn's MLPRegressor with its defaults, on inputs and targets that are scaled as ours are.

    Its noise is Gaussian with the sd of residuals on the rows that ours validates on, to which a first network was not
    fitted; the network that counts is then fitted to all rows.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    assert data.target is not None
    assert not data.target.log
    (x, y), (x_held, y_held), (x_test, y_test) = (
        (part.inputs().numpy().astype(float), data.target.own_units(part.y.double()).numpy()[:, 0])
        for part in (data.train, data.validation, data.test)
    )
    centre, scale = data.target.mean[0], data.target.sd[0]

    def fitted(inputs: Floats, targets: Floats) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # 200 epochs are its default
            return MLPRegressor(random_state=seed).fit(inputs, (targets - centre) / scale)

    begin = time.process_time()
    residuals = y_held - (centre + scale * fitted(x, y).predict(x_held))
    net = fitted(np.concatenate([x, x_held]), np.concatenate([y, y_held]))
    seconds = time.process_time() - begin
    mean = (centre + scale * net.predict(x_test))[:, None]
    sd = np.full_like(mean, math.sqrt(np.square(residuals).mean()))
    about = {"training_seconds": seconds, "parameters": sum(w.size for w in (*net.coefs_, *net.intercepts_))}
    outputs = of_gaussian(mean, sd)
    return about | scores(outputs, y_test[:, None], {level: outputs.interval(level) for level in LEVELS})
