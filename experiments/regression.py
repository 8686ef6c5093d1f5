"""What posteriors say between and beyond two clusters of data: the paper's first figure, against the exact posterior.

    python -m experiments.run regression

`run` trains one posterior as the paper's appendix says (Adam at 1e-3, all data in every step, 32 draws; FCG-U and
Ensemble-U go on with a tenth of the rate after half of the steps), or samples the exact one (`experiments.nuts`).
"""

from __future__ import annotations

import pathlib
from typing import Any

import torch
from torch import Tensor, nn

import bnn
from bnn.likelihoods import Gaussian
from experiments import nuts
from experiments.case import RESULTS
from experiments.two_clusters import GRID, HIDDEN, NOISE, by_region, data

CONFIGS = pathlib.Path(__file__).parents[1] / "configs" / "paper"
DECAYED = ("FCG-U", "Ensemble-U")
DRAWS = 2000  # of the function: an sd within 1.6 % (one standard error)


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Mean and sd of the function on the grid, its sd by region, and the parameters."""
    x, y = data(settings["data_seed"])
    if settings["method"] == "NUTS":
        found = nuts.posterior(x, y, settings, RESULTS / "per_input" / "regression")
    else:
        found = approximate(x.float(), y.float(), settings)
    rounded = {name: [round(value, 5) for value in found.pop(name)] for name in ("mean", "sd")}
    sds = by_region(torch.tensor(rounded["sd"]))
    return found | {f"sd_{name}": value for name, value in sds.items()} | rounded


def approximate(x: Tensor, y: Tensor, settings: dict[str, Any]) -> dict[str, Any]:
    """One of the paper's posteriors, or Laplace's in the space of U, trained.

    Laplace takes the last layer, in which the output is linear. Over both layers its draws leave the data, and
    `laplace_` warns of it.
    """
    net, noise = network(settings["method"]), Gaussian(sd=NOISE, learn=False)
    loss = train(net, x, y, noise, settings)
    if settings["method"] == "Laplace-U":
        bnn.laplace_(net, (x, y), layers="last", prior_precision=1.0, likelihood=noise)
    generator = torch.Generator().manual_seed(settings["seed"])
    with torch.no_grad():
        f = bnn.draws(net, GRID[:, None].float(), DRAWS, generator).squeeze(-1).double()  # (draws, G)
    moments = {"mean": f.mean(0).tolist(), "sd": f.std(0).tolist()}
    return {"parameters": bnn.parameter_count(net), "loss": loss} | moments


def network(method: str) -> nn.Module:
    """A hidden layer of tanh units, converted by configs/paper/regression_*.json.

    Laplace starts from the mode: FFG-U's network without noise, whose loss charges |u|^2 / 2.
    """
    net = bnn.nn.nets.make_network("fcn", sizes=[1, HIDDEN, 1], nonlinearity="Tanh")
    file = "ffg_u" if method == "Laplace-U" else method.lower().replace("-", "_")
    config = bnn.load_config(CONFIGS / f"regression_{file}.json")
    if method == "Laplace-U":
        point = {"max_sd_u": 0.0, "max_lamda": 0.0}
        config["inference"] = {name: options | point for name, options in config["inference"].items()}
    bnn.bayesianize_(net, **config)
    return net


def train(net: nn.Module, x: Tensor, y: Tensor, noise: nn.Module, settings: dict[str, Any]) -> float:
    """Trains in place; returns the negative ELBO per input, over the last tenth of the steps."""
    steps, losses = settings["steps"], []
    elbo = bnn.ELBO(net, len(x), noise, samples=settings["samples"])
    optimiser = torch.optim.Adam(elbo.parameters(), lr=1e-3)
    rate = torch.optim.lr_scheduler.MultiStepLR(optimiser, [steps // 2] if settings["method"] in DECAYED else [])
    for step in range(steps):
        optimiser.zero_grad()
        loss = elbo(x, y).loss
        loss.backward()
        optimiser.step()
        rate.step()
        if step >= steps - max(1, steps // 10):
            losses.append(loss.detach())
    return float(torch.stack(losses).mean())
