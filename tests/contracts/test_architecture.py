"""Imports point one way, nothing heavy comes with `import bnn`, no family knows another."""

from __future__ import annotations

import ast
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import bnn
from bnn.nn.base import PAIRINGS

PACKAGE = pathlib.Path(__file__).parents[2] / "bnn"

# each room may import from its own level and from those before it
ROOMS = [
    ["_common"],
    ["data"],
    ["functional"],
    ["distributions"],
    ["_engine"],
    ["nn", "likelihoods", "metrics", "calibration"],
    ["_conversion"],
    [],  # the verbs: every other module of the package
    ["plots"],
    ["train", "report", "evaluation"],
    ["estimators", "lightning"],
    ["cli", "__main__"],
]
LEVELS = {room: height for height, rooms in enumerate(ROOMS) for room in rooms}
OTHERS = ROOMS.index([])


def module_name(path: pathlib.Path) -> str:
    parts = ["bnn", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(name: str) -> Iterator[str]:
    """The absolute names of all modules that module `name` imports, inside functions too."""
    path = SOURCES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - (node.level - 1)] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            for alias in node.names:  # `from bnn import nn` imports bnn.nn
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in SOURCES else base


def level(name: str) -> int:
    parts = name.split(".")
    return LEVELS.get(parts[1], OTHERS) if len(parts) > 1 else len(ROOMS)  # bnn/__init__.py may import all


@pytest.mark.parametrize("name", list(SOURCES))
def test_imports_point_one_way(name: str) -> None:
    ours = [other for other in imported(name) if other.split(".")[0] == "bnn"]
    wrong = [other for other in ours if level(other) > level(name)]
    assert not wrong, f"{name} imports {wrong} from further up"


def test_imports_have_no_cycle() -> None:
    """Packages' `__init__` aside, which gather their modules' names."""
    graph = {name: {o for o in imported(name) if o in SOURCES and o != name} for name in SOURCES}
    modules = {name for name in SOURCES if SOURCES[name].name != "__init__.py"}
    seen: dict[str, int] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert seen.get(name) != 1, f"a cycle: {' -> '.join([*path, name])}"
        if name in seen:
            return
        seen[name] = 1
        for other in graph[name] & modules:
            visit(other, (*path, name))
        seen[name] = 2

    for name in modules:
        visit(name, ())


def of_the_engine(name: str) -> set[str]:
    """The modules of `bnn._engine` that one of them imports, by their short names."""
    return {other.split(".")[2] for other in imported(f"bnn._engine.{name}") if other.startswith("bnn._engine.")}


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("bnn._engine")])
def test_the_engine_knows_no_layer(name: str) -> None:
    ours = {other for other in imported(name) if other.split(".")[0] == "bnn"}
    assert all(other.split(".")[1:2] in (["_engine"], ["functional"], ["_common"]) for other in ours), ours
    assert {other.split(".")[0] for other in imported(name)} - set(sys.stdlib_module_names) <= {"torch", "bnn"}


def test_a_forward_has_a_draw_which_has_a_call() -> None:
    assert "draw" in of_the_engine("forward")
    assert "call" in of_the_engine("draw")
    assert not of_the_engine("draw") & {"forward", "fold", "recompute", "members"}
    assert not of_the_engine("call") & {"draw", "forward", "fold", "recompute", "members", "frozen"}
    assert not of_the_engine("forward") & {"fold", "members"}
    for alone in ("cache", "inputs", "noise"):
        assert not of_the_engine(alone), alone


@pytest.mark.parametrize("folder", ["examples", "configs"])
def test_the_engine_is_private(folder: str) -> None:
    files = [path for kind in ("*.py", "*.md", "*.toml") for path in (PACKAGE.parent / folder).rglob(kind)]
    assert not [path.name for path in files if "_engine" in path.read_text()]


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("bnn.functional")])
def test_functional_imports_only_torch(name: str) -> None:
    tops = {other.split(".")[0] for other in imported(name)}
    assert tops - set(sys.stdlib_module_names) <= {"torch", "bnn"}
    assert all(other.startswith("bnn.functional") for other in imported(name) if other.split(".")[0] == "bnn")


def test_no_family_and_no_layer_type_knows_another() -> None:
    families, layer_types = (
        {base.__module__ for cls in PAIRINGS.known.values() for base in cls.__mro__ if name in base.__dict__}
        for name in ("family", "plain")
    )
    for name in families | layer_types:
        assert not set(imported(name)) & ((families | layer_types) - {name}), name
    joining = {name for name in SOURCES if set(imported(name)) & layer_types}
    assert joining == {"bnn.nn.pairings"}


@pytest.mark.parametrize("name", list(SOURCES))
def test_sources_keep_off(name: str) -> None:
    tree = ast.parse(SOURCES[name].read_text())
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert "__subclasses__" not in attributes  # joining is one visible line in pairings
    assert "pickle" not in {other.split(".")[0] for other in imported(name)}
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & {"torch.load", "torch.save", "eval", "exec"}


IN_A_NEW_PROCESS = """
import json, sys, numpy, torch, torch.distributions, safetensors, safetensors.torch
torch.manual_seed(0)
before, state = set(sys.modules), torch.get_rng_state()
import bnn
new = sorted({name.split(".")[0] for name in set(sys.modules) - before})
same = torch.equal(torch.get_rng_state(), state) and torch.is_grad_enabled()
same = same and torch.get_default_dtype() == torch.float32
print(json.dumps({"new": new, "all": sorted({name.split(".")[0] for name in sys.modules}), "same": same}))
"""


@pytest.fixture(scope="module")
def after_import() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_A_NEW_PROCESS], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_import_bnn_loads_torch_numpy_and_safetensors_only(after_import: dict[str, Any]) -> None:
    third_party = set(after_import["new"]) - set(sys.stdlib_module_names) - {"bnn"}
    assert third_party <= {"torch", "numpy", "safetensors", "typing_extensions"}


def test_import_bnn_loads_nothing_heavy(after_import: dict[str, Any]) -> None:
    heavy = "sklearn matplotlib pandas scipy torchmetrics lightning pytorch_lightning accelerate transformers pyro"
    heavy += " torchvision typer rich click PIL hypothesis pytest tensorboard tomli"  # not tqdm: torch itself loads it
    assert not set(heavy.split()) & set(after_import["all"])


def test_import_bnn_changes_no_global_state(after_import: dict[str, Any]) -> None:
    assert after_import["same"]


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_six_files_from_predict_to_the_normals() -> None:
    """A stranger follows one forward: at every noise that is made, at most six of our files are on the stack."""
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32, 5))
    bnn.bayesianize_(net, "inducing", inducing_rows=3, inducing_cols=3, init_lamda=0.3)
    seen: list[set[str]] = []

    def watch(frame: Any, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__name__", "") == "normal_":
            files = set()
            while frame is not None:
                files.add(frame.f_code.co_filename)
                frame = frame.f_back
            seen.append({name for name in files if pathlib.Path(name).is_relative_to(PACKAGE)})

    sys.setprofile(watch)
    try:
        bnn.predict(net, torch.randn(4, 3, 4, 4), samples=3)
    finally:
        sys.setprofile(None)
    assert seen
    assert max(map(len, seen)) <= 6, max(seen, key=len)
