"""`docs/layout.md` is true: its tree is the package, and its walks are what runs."""

from __future__ import annotations

import importlib
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bnn
from bnn.nn.families import ways
from bnn.train import Recipe, run_recipe
from bnn.train.build import build_data

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "bnn"
PAGE = (ROOT / "docs" / "layout.md").read_text()

Place = tuple[str, str]  # a file and a function in it


def tree() -> list[str]:
    """The paths below `bnn/` that the tree names, in its order; packages end with a slash."""
    lines = PAGE.split("```")[1].splitlines()[2:]
    parents: list[str] = []
    found = []
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
            parents[depth - 1 :] = [name]
            found.append("".join(parents))
    return found


def test_the_tree_is_the_package() -> None:
    packages = {f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.glob("*/**/__init__.py")}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    named = tree()
    assert len(named) == len(set(named))
    assert set(named) == packages | modules


def test_the_tree_is_in_the_order_of_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands higher in the tree is higher in the test that enforces the direction of imports."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "contracts")
    level = importlib.import_module("test_architecture").level
    heights = [level(f"bnn.{path.removesuffix('.py').removesuffix('/').replace('/', '.')}") for path in tree()]
    assert heights == sorted(heights, reverse=True)


def walks() -> dict[str, list[list[Place]]]:
    """The tables of every walk: rows of (file, function)."""
    found = {}
    for section in PAGE.split("\n## Walk: ")[1:]:
        tables = re.findall(r"^\| file .*\n\|---.*\n((?:\|.*\n)+)", section, flags=re.MULTILINE)
        rows = [[re.match(r"\| `([^`]+)` \| `([^`]+)` \|", row) for row in table.splitlines()] for table in tables]
        assert all(row is not None for table in rows for row in table)
        found[section.split(",")[0]] = [[(row[1], row[2]) for row in table if row] for table in rows]
    return found


WALKS = walks()


def test_every_file_and_function_of_a_walk_exists() -> None:
    assert list(WALKS) == ["a batch", "a row of a CSV file", "a KL term", "a metric"]
    for file, function in (place for tables in WALKS.values() for table in tables for place in table):
        source = (ROOT / file).read_text()
        assert all(re.search(rf"\b(def|class) {part}\b", source) for part in function.split(".")), (file, function)
    for file in re.findall(r"`((?:bnn|tests|docs)/[\w/.]+)`", PAGE):
        assert (ROOT / file).exists(), file


def called(run: Callable[[], Any]) -> list[Place]:
    """The functions of ours that `run` calls, each once, in the order of their first calls."""
    seen: dict[Place, None] = {}

    def watch(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            seen.setdefault((code.co_filename, code.co_name))

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    ours = [(pathlib.Path(file), function) for file, function in seen]
    return [(str(file.relative_to(ROOT)), function) for file, function in ours if file.is_relative_to(PACKAGE)]


def check(table: list[Place], run: Callable[[], Any]) -> None:
    """The places of `table` are called in its order."""
    order = called(run)
    places = [(file, function.rpartition(".")[2]) for file, function in table]
    assert not [place for place in places if place not in order]
    positions = [order.index(place) for place in places]
    wrong = [place for place, before, here in zip(places[1:], positions, positions[1:], strict=False) if here < before]
    assert not wrong, f"called before what stands above: {wrong}"


def test_the_walk_of_a_batch() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=3, init_lamda=0.3)
    (table,) = WALKS["a batch"]
    ways._cheapest.cache_clear()  # it may have been asked the same before
    check(table, lambda: bnn.predict(net, torch.randn(4, 3, 4, 4), samples=3))


@pytest.mark.slow
@pytest.mark.usefixtures("houses")
def test_the_walks_of_a_row_a_kl_term_and_a_metric() -> None:
    recipe = Recipe.from_dict(
        {
            "data": {"csv": "houses.csv", "target": "price"},
            "net": {"name": "fcn", "hidden": [8]},
            "method": {"inference": "inducing", "inducing_rows": 4, "inducing_cols": 4},
            "schedule": {"epochs": 1},
        }
    )
    reading, answering = WALKS["a row of a CSV file"]
    (kl_term,) = WALKS["a KL term"]
    check(reading, lambda: build_data(recipe.data))
    check(kl_term, lambda: run_recipe(recipe, "run", progress=False))
    check(answering, lambda: bnn.open_run("run").predict("new.csv"))
    (metric,) = WALKS["a metric"]
    run = bnn.open_run("run")
    data = run.data()

    def evaluate_and_report() -> None:
        found = bnn.evaluate(run.network, data, likelihood=run.likelihood, resamples=20)
        bnn.report.write([bnn.report.Entry("mine", found)], "report.html")

    check(metric, evaluate_and_report)


@pytest.fixture
def houses(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table to learn from, and one to predict."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    size, city = random.uniform(30, 200, 60), random.choice(["Ulm", "Kiel"], 60)
    price = 2.5 * size + 40 * (city == "Kiel") + random.normal(0, 15, 60)
    rows = [f"{a:.1f},{b},{c:.1f}" for a, b, c in zip(size, city, price, strict=True)]
    (tmp_path / "houses.csv").write_text("\n".join(["size,city,price", *rows]))
    (tmp_path / "new.csv").write_text("size,city\n80,Ulm\n120,Kiel\n")
