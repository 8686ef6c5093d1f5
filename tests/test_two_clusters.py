"""The toy regression: the exact posterior against dense formulas, the example, and what the pages say of it."""

from __future__ import annotations

import importlib
import json
import math
import pathlib
import re
import runpy
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

ROOT = pathlib.Path(__file__).parents[1]
POSTERIORS = ["FFG-W", "FCG-W", "FFG-U", "FCG-U", "Ensemble-U", "Laplace-U", "NUTS"]
NUTS_SETTINGS = {"method": "NUTS", "data_seed": 0, "warmup": 3, "draws": 8, "chains": 2}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of experiments/."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"experiments.{name}")


@pytest.fixture
def stored(load) -> dict[str, dict[str, Any]]:
    """The metrics of finished runs, by method."""
    case = load("case")
    records = load("records").Records(case.Case.named("regression"), case.RESULTS).done()
    return {run["settings"]["method"]: run["metrics"] for run in records.values()}


def hidden_weights(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 100, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def units(w: Tensor, x: Tensor) -> Tensor:
    """tanh units and 1, (N, 51), of hidden weights with prior sd 4 / sqrt(2)."""
    inner = 4 / math.sqrt(2) * (x * w[:50] + w[50:])
    return torch.cat([torch.tanh(inner), torch.ones(len(x), 1, dtype=torch.double)], dim=1)


def split_rhat(values: np.ndarray) -> float:
    """The largest R-hat of two chains of 8 draws (16, G), each taken for two of 4."""
    parts = values.reshape(4, 4, -1)
    within, between = parts.var(axis=1, ddof=1).mean(0), parts.mean(axis=1).var(axis=0, ddof=1)
    return float(np.sqrt((within * 3 / 4 + between) / within).max())


# ---- the exact posterior ---------------------------------------------------------------------------------------------


def test_the_potential_is_the_joint_density_without_the_output_layer(load) -> None:
    nuts = load("nuts")
    x, y = load("two_clusters").data(0)
    constants = []
    for w in hidden_weights(5):
        phi = units(w, x)
        covariance = 16 / 51 * phi @ phi.mT + 0.01 * torch.eye(100, dtype=torch.double)
        evidence = MultivariateNormal(torch.zeros(100, dtype=torch.double), covariance).log_prob(y[:, 0])
        constants.append(float(nuts.potential(w, x, y) + evidence - w.square().sum() / 2))
    np.testing.assert_allclose(constants, constants[0], atol=1e-6)  # equal but for what no w changes


def test_functions_given_the_hidden_layer_are_gaussian_regression(load) -> None:
    nuts = load("nuts")
    x, y = load("two_clusters").data(0)
    w, at = hidden_weights(3), torch.linspace(-1.6, 1.6, 7, dtype=torch.double)[:, None]
    means, variances = nuts.functions(w, x, y, at)
    for i in range(3):
        here, there = units(w[i], x), units(w[i], at)
        gain = 16 / 51 * there @ here.mT @ torch.linalg.inv(16 / 51 * here @ here.mT + 0.01 * torch.eye(100).double())
        np.testing.assert_allclose(means[i], (gain @ y)[:, 0], atol=1e-8)
        dense = 16 / 51 * there @ there.mT - gain @ (16 / 51 * here @ there.mT)
        np.testing.assert_allclose(variances[i], dense.diagonal(), atol=1e-8)


def test_moments_and_diagnostics_are_those_of_all_chains(load, tmp_path: pathlib.Path, monkeypatch) -> None:
    pytest.importorskip("pyro")
    nuts, clusters = load("nuts"), load("two_clusters")
    x, y = clusters.data(0)
    monkeypatch.setattr(nuts, "chain", lambda x, y, seed, warmup, draws: hidden_weights(draws, seed))
    found = nuts.posterior(x, y, NUTS_SETTINGS, tmp_path)
    means, variances = nuts.functions(
        torch.cat([hidden_weights(8, seed) for seed in (0, 1)]), x, y, clusters.GRID[:, None]
    )
    np.testing.assert_allclose(found["mean"], means.mean(0))
    np.testing.assert_allclose(np.square(found["sd"]), variances.mean(0) + means.var(0))
    noise = torch.randn(means.shape, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    f = means + variances.sqrt() * noise
    expected = [split_rhat(one.numpy()) for one in (f, (f - means.mean(0)).square())]
    assert found["rhat"] == pytest.approx(max(expected))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Pyro's own
def test_a_chain_reaches_the_data(load) -> None:
    pytest.importorskip("pyro")
    nuts, clusters = load("nuts"), load("two_clusters")
    x, y = clusters.data(0)
    w = nuts.chain(x, y, seed=0, warmup=30, draws=10)
    assert w.shape == (10, 100)
    assert float(w.std(0).mean()) > 0.2  # it moves
    means, _ = nuts.functions(w, x, y, x)
    assert float((means.mean(0) - clusters.truth(x)[:, 0]).abs().max()) < 0.1


def test_finished_chains_are_not_repeated(load, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nuts = load("nuts")
    seeds = []

    def chain(x: Tensor, y: Tensor, seed: int, warmup: int, draws: int) -> Tensor:
        seeds.append(seed)
        if len(seeds) == 2:
            raise KeyboardInterrupt
        return hidden_weights(draws, seed)

    monkeypatch.setattr(nuts, "chain", chain)
    x, y = load("two_clusters").data(0)
    with pytest.raises(KeyboardInterrupt):
        nuts.chains(x, y, NUTS_SETTINGS, tmp_path)
    found = nuts.chains(x, y, NUTS_SETTINGS, tmp_path)
    assert seeds == [0, 1, 1]
    assert torch.equal(found, torch.stack([hidden_weights(8, seed) for seed in (0, 1)]))


def test_without_pyro_an_error_says_what_to_install(load, tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyro", None)
    monkeypatch.setattr(load("regression"), "RESULTS", tmp_path)
    with pytest.raises(ImportError, match=r'this needs pyro-ppl: pip install "bayesianize\[examples\]"'):
        load("regression").run(NUTS_SETTINGS)


# ---- the data, the example -------------------------------------------------------------------------------------------


def test_data_are_two_clusters_around_the_function(load) -> None:
    clusters = load("two_clusters")
    x, y = clusters.data(3)
    assert x.shape == y.shape == (100, 1)
    ends = [(float(part.min()), float(part.max())) for part in x.split(50)]
    for (low, high), (least, most) in zip(ends, [(-1, -0.7), (0.5, 1)], strict=True):
        assert least <= low < high <= most
    left = y - torch.cos(4 * x + 0.8)
    assert float(left.std()) == pytest.approx(0.1, rel=0.25)  # of 100: sd 7 %
    assert all(torch.equal(a, b) for a, b in zip(clusters.data(3), (x, y), strict=True))
    masks = torch.stack(list(clusters.regions().values()))
    assert (masks.sum(0) == 1).all()
    assert clusters.by_region(clusters.GRID.abs())["outside"] == pytest.approx(1.31)


@pytest.fixture
def example(load, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """Runs examples/regression.py in an empty folder; returns what it saved."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load("regression"), "DRAWS", 50)
    monkeypatch.setattr(load("regression"), "RESULTS", tmp_path)

    def main(*arguments: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["regression.py", *arguments])
        runpy.run_path(str(ROOT / "examples" / "regression.py"), run_name="__main__")
        return json.loads((tmp_path / "regression.json").read_text())["posteriors"]

    return main


@pytest.mark.filterwarnings("ignore:Laplace's approximation is too wide")  # after two steps it is
def test_the_example_draws_every_posterior_beside_the_stored_exact_one(example, stored, capsys, tmp_path) -> None:
    found = example("--steps", "2")
    assert list(found) == POSTERIORS
    assert found["NUTS"] == stored["NUTS"]
    assert (tmp_path / "regression.png").stat().st_size > 10_000
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "%)" in line}
    assert list(rows) == POSTERIORS
    for name in POSTERIORS:
        for region in ("inside", "between", "outside"):
            sd, exact = (found[one][f"sd_{region}"] for one in (name, "NUTS"))
            assert re.search(rf"{sd:.3f} \( *{sd / exact:.0%}\)", rows[name])


@pytest.mark.filterwarnings("ignore:Laplace's approximation is too wide")
def test_the_example_without_pyro_draws_what_it_can(example, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "pyro", None)
    assert list(example("--steps", "2", "--again")) == POSTERIORS[:-1]
    assert "NUTS is left out: this needs pyro-ppl" in capsys.readouterr().out


# ---- what the pages say ----------------------------------------------------------------------------------------------


def test_the_readme_is_what_the_pages_write(load) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert load("pages").readme(text) == text


def test_a_picture_reaches_the_readme_with_the_figures_of_its_case(load, stored, monkeypatch) -> None:
    pages, case = load("pages"), load("case").Case.named("regression")
    runs = {case.key(axes): {"settings": axes, "metrics": stored["NUTS"]} for axes in case.runs()}
    monkeypatch.setattr(pages, "cases", lambda: [(case, runs)])
    text = pages.readme("# top\n<!-- regression -->\nold\n<!-- end -->\nrest\n")
    assert text.startswith("# top\n<!-- regression -->\n![Two clusters of data")
    assert text.endswith("\n<!-- end -->\nrest\n")
    assert "old" not in text.split()
    assert text.count(f"{stored['NUTS']['sd_between']:.3f}") == 7
    with pytest.raises(
        ValueError, match="the README has no place for regression: <!-- regression --> and <!-- end -->"
    ):
        pages.readme("# another")
    runs.popitem()
    assert pages.readme("# another") == "# another"  # not before the last run is there


def test_the_exact_posterior_is_trusted_for_a_reason(stored) -> None:
    assert stored["NUTS"]["rhat"] < 1.01
    assert stored["NUTS"]["effective_size"] > 1000  # sds within 3 %
