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


def ours(name: str) -> set[str]:
    """Our modules that module `name` imports."""
    return {other for other in imported(name) if other.split(".")[0] == "bnn"}


def others(name: str) -> set[str]:
    """The packages of others that module `name` imports."""
    return {other.split(".")[0] for other in imported(name)} - {*sys.stdlib_module_names, "bnn"}


def below(room: str) -> list[str]:
    """The modules of a room."""
    return [name for name in SOURCES if f"{name}.".startswith(f"bnn.{room}.")]


def test_imports_point_one_way() -> None:
    wrong = {name: [other for other in ours(name) if level(other) > level(name)] for name in SOURCES}
    assert not {name: found for name, found in wrong.items() if found}


def test_helpers_import_no_torch() -> None:
    """Messages, checks and records serve the command line, too, which shows its help without torch."""
    about_torch = {"bnn._common.timing", "bnn._common.seeds"}  # wait for its devices, seed its generators
    small = {"rich", "filelock", "typing_extensions"}
    found = {name: others(name) - small for name in below("_common") if name not in about_torch}
    assert {name: packages for name, packages in found.items() if packages} == {}
    assert {name for name in below("_common") if "torch" in others(name)} == about_torch
    assert {name for name in below("_common") if not ours(name) <= set(below("_common"))} == set()


def test_one_of_each_helper() -> None:
    """Suggestions, locks and bars are made in `bnn._common` alone."""
    for module in ("difflib", "fcntl", "rich.progress"):
        used = {name for name in SOURCES if module in imported(name)}
        assert not used - set(below("_common")), module


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


def test_the_engine_knows_no_layer() -> None:
    known = {*below("_engine"), *below("functional"), *below("_common")}
    assert {name: found for name in below("_engine") if (found := ours(name) - known)} == {}
    assert {name: found for name in below("_engine") if (found := others(name) - {"torch"})} == {}


def test_a_forward_has_a_draw_which_has_a_call() -> None:
    assert "draw" in of_the_engine("forward")
    assert "call" in of_the_engine("draw")
    assert not of_the_engine("draw") & {"forward", "fold", "recompute", "members"}
    assert not of_the_engine("call") & {"draw", "forward", "fold", "recompute", "members", "frozen"}
    assert not of_the_engine("forward") & {"fold", "members"}
    for alone in ("cache", "inputs", "noise"):
        assert not of_the_engine(alone), alone


def test_the_engine_is_private() -> None:
    folders = [PACKAGE.parent / folder for folder in ("examples", "configs")]
    files = [path for folder in folders for kind in ("*.py", "*.md", "*.toml") for path in folder.rglob(kind)]
    assert not [path.name for path in files if "_engine" in path.read_text()]


def test_functional_imports_only_torch() -> None:
    rooms = set(below("functional"))
    assert {name: found for name in rooms if (found := others(name) - {"torch"} | ours(name) - rooms)} == {}


def test_no_family_and_no_layer_type_knows_another() -> None:
    families, layer_types = (
        {base.__module__ for cls in PAIRINGS.known.values() for base in cls.__mro__ if name in base.__dict__}
        for name in ("family", "plain")
    )
    for name in families | layer_types:
        assert not set(imported(name)) & ((families | layer_types) - {name}), name
    joining = {name for name in SOURCES if set(imported(name)) & layer_types}
    assert joining == {"bnn.nn.pairings"}


def kept_off(name: str) -> Iterator[str]:
    """What module `name` uses and no module should."""
    tree = ast.parse(SOURCES[name].read_text())
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    yield from attributes & {"__subclasses__"}  # joining is one visible line in pairings
    yield from {"pickle"} & {other.split(".")[0] for other in imported(name)}
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    yield from calls & {"torch.load", "torch.save", "eval", "exec"}


def test_sources_keep_off() -> None:
    assert {name: found for name in SOURCES if (found := list(kept_off(name)))} == {}


def in_a_new_process(code: str, *args: str) -> Any:
    """What `code` prints as JSON in its last line; a warning is an error."""
    command = [sys.executable, "-W", "error", "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


IMPORTING = """
import json, sys
before = set(sys.modules)
import bnn
dir(bnn)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_import_bnn_loads_nothing() -> None:
    assert [name for name in in_a_new_process(IMPORTING) if name.split(".")[0] not in sys.stdlib_module_names] == [
        "bnn"
    ]


# Sees every name of the library below the application, converts, predicts, and takes a step without an optimiser.
USING = """
import json, sys, numpy, torch, torch.distributions, safetensors, safetensors.torch
torch.manual_seed(0)
before, state = set(sys.modules), torch.get_rng_state()
import bnn
bnn.nn.FFGLinear, bnn.distributions.MatrixNormal, bnn.calibration.calibration_curve, bnn.functional
bnn.bayesianize.bayesian_from_template, bnn.Ensemble, bnn.ELBO, bnn.save, bnn.load_config, bnn.likelihoods
same = torch.equal(torch.get_rng_state(), state) and torch.is_grad_enabled()
same = same and torch.get_default_dtype() == torch.float32
small = {"inference": "inducing", "inducing_rows": 2}
for options in ({"inference": "ffg"}, {"inference": "fcg"}, small, {"global": True}):
    last = torch.nn.Linear(16, 8), torch.nn.Linear(8, 3)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), *last)
    of_all = options.pop("global", False)
    bnn.bayesianize_(net, **options or {"inference": "inducing", "inducing_rows": 3, "inducing_cols": 3})
    if of_all:
        bnn.register_global_inducing_weights_(net, 2, 2)
    x, y = torch.randn(5, 1, 4, 4), torch.zeros(5, dtype=torch.long)
    bnn.predict(net, x, samples=3)
    bnn.predict(net, x, samples=3, batch_size=2)
    bnn.ELBO(net, 5, bnn.likelihoods.Categorical(), samples=2)(x, y).loss.backward()
    with bnn.frozen_draw(net):
        net(x)
print(json.dumps({"new": sorted(set(sys.modules) - before), "all": sorted(sys.modules), "same": same}))
"""


@pytest.fixture(scope="module")
def after_use() -> dict[str, Any]:
    result: dict[str, Any] = in_a_new_process(USING)
    return result


def tops(names: list[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_a_first_use_loads_torch_numpy_and_safetensors_only(after_use: dict[str, Any]) -> None:
    third_party = tops(after_use["new"]) - set(sys.stdlib_module_names) - {"bnn"}
    assert third_party <= {"torch", "numpy", "safetensors", "typing_extensions"}


def test_a_first_use_loads_nothing_heavy(after_use: dict[str, Any]) -> None:
    heavy = "sklearn matplotlib pandas scipy torchmetrics lightning pytorch_lightning accelerate transformers pyro"
    heavy += " torchvision typer rich click PIL hypothesis pytest tensorboard tomli"  # not tqdm: torch itself loads it
    assert not set(heavy.split()) & tops(after_use["all"])


def test_a_first_use_does_not_load_the_compiler(after_use: dict[str, Any]) -> None:
    """They cost as much as torch itself. An optimiser of torch loads them when it is made, whatever we do."""
    assert not {"torch._dynamo", "torch._inductor", "sympy"} & set(after_use["all"])


def test_a_first_use_loads_no_application(after_use: dict[str, Any]) -> None:
    rooms = {name.split(".")[1] for name in after_use["all"] if name.startswith("bnn.")}
    assert not rooms & {"data", "plots", "train", "evaluation", "report", "estimators", "lightning", "cli"}


def test_import_bnn_changes_no_global_state(after_use: dict[str, Any]) -> None:
    assert after_use["same"]


COMMAND = """
import json, sys
from bnn.cli.app import run
found = [[args, run(args), sorted(sys.modules)] for args in json.loads(sys.argv[1])]
print(json.dumps(found))
"""
COMMANDS = ["demo", "train", "presets", "methods", "evaluate", "predict", "report", "count", "bench"]
SLOW = {"torch", "numpy", "safetensors", "scipy", "matplotlib", "lightning", "sklearn", "jinja2", "PIL"}


def test_help_lists_and_mistyped_commands_load_nothing_slow() -> None:
    helped = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    helped += [["presets"], ["presets", "ours/", "--json"], ["methods"], ["methods", "ffg-u"], ["methods", "--json"]]
    mistyped = [[], ["nonsense"], *([name, "--no-such-option"] for name in COMMANDS)]
    for args, code, loaded in in_a_new_process(COMMAND, json.dumps(helped + mistyped)):
        assert not SLOW & set(loaded), args
        assert code == (2 if args in mistyped else 0), args


def test_every_public_name_is_there_and_typed() -> None:
    """The table that Python reads and the imports that type checkers read say the same, and `dir` shows all."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == {**bnn._NAMES, **dict.fromkeys(bnn._MODULES, "bnn")}
    assert set(typed) <= set(dir(bnn))
    for name, module in bnn._NAMES.items():
        assert getattr(bnn, name) is getattr(sys.modules[module], name)
    for name in bnn._MODULES:
        assert getattr(bnn, name) is sys.modules[f"bnn.{name}"]
    with pytest.raises(AttributeError, match="module 'bnn' has no attribute 'bayesianise_'"):
        bnn.bayesianise_  # noqa: B018
    names: dict[str, Any] = {}
    exec("from bnn import *", names)
    assert {"bayesianize_", "predict", "ELBO", "nn", "likelihoods"} <= set(names)
    assert not {"fit", "evaluate", "BayesianClassifier", "Any"} & set(names)


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
