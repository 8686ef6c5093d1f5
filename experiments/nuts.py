"""The exact posterior of the network of `experiments.two_clusters`, by the no-U-turn sampler of Pyro.

Given the hidden weights w ~ N(0, I) (in units of their prior sd) the output is linear in the rest, v ~ N(0, I). So v is
integrated out and only w, 100 numbers, is sampled. With features Phi (N, 51) that hold tanh units and 1, times the
prior sd of v over the sd of the noise:

    B = I + Phi^T Phi = L L^T,   -log p(y, w) = |w|^2 / 2 + log |L| - |L^-1 Phi^T y|^2 / (2 noise^2) + const
    v | w, y ~ N(noise^-1 B^-1 Phi^T y, B^-1)

This is the same posterior as that of all 151 numbers, which a sampler crosses a hundred times more slowly: noise of 0.1
makes it stiff in v.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnn._common.extras import need
from experiments.two_clusters import GRID, HIDDEN, NOISE, PRIOR_SDS


def features(w: Tensor, x: Tensor) -> Tensor:
    """Phi (..., N, 51) of hidden weights (..., 100), slopes before biases, at inputs x (N, 1)."""
    slopes, biases = (PRIOR_SDS[0] * w).unsqueeze(-2).split(HIDDEN, dim=-1)
    units = torch.tanh(x * slopes + biases)
    return torch.cat([units, torch.ones_like(units[..., :1])], dim=-1) * (PRIOR_SDS[1] / NOISE)


def precision_cholesky(phi: Tensor) -> Tensor:
    """L with L L^T = I + Phi^T Phi."""
    return torch.linalg.cholesky(torch.eye(phi.shape[-1], dtype=phi.dtype) + phi.mT @ phi)


def potential(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """-log p(y, w) up to a constant."""
    phi = features(w, x)
    L = precision_cholesky(phi)
    fit = torch.linalg.solve_triangular(L, phi.mT @ y, upper=False) / NOISE
    return w.square().sum() / 2 + L.diagonal().log().sum() - fit.square().sum() / 2


def functions(w: Tensor, x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (S, G) of the function at inputs `at` (G, 1) given each of S hidden weights (S, 100)."""
    phi, there = features(w, x), features(w, at)
    L = precision_cholesky(phi)
    mean = there @ torch.cholesky_solve(phi.mT @ y, L)
    half = torch.linalg.solve_triangular(L, there.mT, upper=False)
    return mean.squeeze(-1), NOISE**2 * half.square().sum(-2)


def chain(x: Tensor, y: Tensor, seed: int, warmup: int, draws: int) -> Tensor:
    """One chain (draws, 100) from a draw of the prior."""
    need("pyro", extra="examples").set_rng_seed(seed)
    infer = need("pyro.infer", extra="examples")
    start = torch.randn(2 * HIDDEN, dtype=torch.double)
    kernel = infer.NUTS(potential_fn=lambda values: potential(values["w"], x, y))
    sampler = infer.MCMC(kernel, draws, warmup, initial_params={"w": start}, disable_progbar=True)
    sampler.run()
    divergent = sum(map(len, sampler.diagnostics()["divergences"].values()))
    if divergent:
        raise RuntimeError(f"{divergent} of {draws} draws diverged: the chain of seed {seed} is not to be used")
    return sampler.get_samples()["w"]


def chains(x: Tensor, y: Tensor, settings: dict[str, Any], folder: pathlib.Path) -> Tensor:
    """All chains (C, draws, 100), one after another; each is kept in `folder`, and what is there is not repeated."""
    folder.mkdir(parents=True, exist_ok=True)
    warmup, draws, found = settings["warmup"], settings["draws"], []
    for number in range(settings["chains"]):
        path = folder / f"nuts_data{settings['data_seed']}_warmup{warmup}_draws{draws}_chain{number}.npz"
        if not path.exists():
            np.savez_compressed(path, w=chain(x, y, number, warmup, draws).numpy())
        with np.load(path) as stored:
            found.append(torch.from_numpy(stored["w"]))
        print(f"NUTS: chain {number + 1} of {settings['chains']}", flush=True)
    return torch.stack(found)


def posterior(x: Tensor, y: Tensor, settings: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """Mean and sd of the function on `GRID`, and how far the chains agree on them.

    Weights of a network are not identified (units may change places), so R-hat (of split chains) and effective sizes
    are those of function values f and of their squared deviations (f - mean)^2: the worst on the grid.
    """
    w = chains(x, y, settings, folder)
    means, variances = functions(w.flatten(0, 1), x, y, GRID[:, None])
    mean = means.mean(0)
    sd = (variances.mean(0) + means.var(0)).sqrt()
    noise = torch.randn(means.shape, dtype=torch.double, generator=torch.Generator().manual_seed(settings["data_seed"]))
    f = (means + variances.sqrt() * noise).unflatten(0, w.shape[:2])
    stats = need("pyro.ops.stats", extra="examples")
    judged = [f, (f - mean).square()]
    return {
        "mean": mean.tolist(),
        "sd": sd.tolist(),
        "rhat": max(float(stats.split_gelman_rubin(one).max()) for one in judged),
        "effective_size": min(float(stats.effective_sample_size(one).min()) for one in judged),
        "pyro": str(need("pyro", extra="examples").__version__),
    }
