"""The registry of data sources: what is declared is true, joining is checked, and the example of the docs works."""

from __future__ import annotations

import csv
import inspect
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import bnn
from bnn.cli import app
from bnn.data import preparation, source
from bnn.data.sources import FLAGS, SOURCES, Source, found, register, source_at, source_of
from bnn.train import Recipe, load_run

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def _same_sources() -> Iterator[None]:
    before = dict(SOURCES)
    yield
    SOURCES.clear()
    SOURCES.update(before)


@pytest.mark.parametrize("kind", list(SOURCES))
def test_what_is_declared_is_true(kind: str) -> None:
    one = SOURCES[kind]
    parameters = inspect.signature(found(one.reader)).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        assert {FLAGS[flag] for flag in one.flags} | set(one.needs) <= set(parameters)
    assert {name: found(type_).kind for name, type_ in one.preparations.items()} == {n: n for n in one.preparations}
    assert one.complete is None or callable(found(one.complete))
    assert not one.path or getattr(bnn.data, kind) is found(one.reader)


DECLARATIONS = """
import sys, types
package = types.ModuleType("bnn")  # in place of the one whose names need torch
package.__path__ = [sys.argv[1]]
sys.modules["bnn"] = package
from bnn.data.sources import SOURCES, source_of
assert source_of({"csv": "a.csv"}).endings == (".csv", ".tsv")
print(sorted({"torch", "numpy"} & set(sys.modules)))
"""


def test_declarations_import_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DECLARATIONS, str(ROOT / "bnn")], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_sources_by_description_and_by_path(tmp_path: pathlib.Path) -> None:
    assert source_of({"folder": "x", "size": 32}) is SOURCES["folder"]
    for description in ({}, {"size": 32}, {"csv": "a.csv", "name": "digits"}):
        with pytest.raises(ValueError, match="data must have one of name, csv, folder, arrays"):
            source_of(description)
    assert source_at(str(tmp_path)) is SOURCES["folder"]
    assert source_at("A.TSV") is SOURCES["csv"]
    assert source_at("a.txt") is None


class Prepared:
    kind = "prepared"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_dict(cls, stored: Any) -> Prepared:
        return cls()


@pytest.mark.usefixtures("_same_sources")
def test_a_source_joins_by_one_declaration(tmp_path: pathlib.Path) -> None:
    @source("rows", "a file of rows", endings=(".rows",), flags=("validation",), preparation=Prepared)
    def rows(path: str, *, validation: float = 0.1, width: int = 2) -> Any:
        return path, validation, width

    assert Recipe({"rows": "a.rows"}, {"name": "fcn"}).data == {"rows": "a.rows"}
    assert bnn.train.build.build_data({"rows": "a.rows", "width": 5}) == ("a.rows", 0.1, 5)
    assert bnn.data.rows is rows  # type: ignore[attr-defined]
    assert isinstance(preparation({"kind": "prepared"}), Prepared)
    with pytest.raises(ValueError, match=r"data: rows has no option 'widht' \(did you mean 'width'\?\)"):
        source_of({"rows": "a.rows"}).read({"rows": "a.rows", "widht": 5})
    (tmp_path / "here.rows").touch()
    (tmp_path / "recipe.json").write_text(json.dumps({"data": {"rows": "here.rows"}, "net": {"name": "fcn"}}))
    assert Recipe.from_file(tmp_path / "recipe.json").data == {"rows": str(tmp_path / "here.rows")}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "csv"}, "data source 'csv': this kind is taken by 'csv', a CSV file"),
        ({"endings": (".tsv",)}, r"data source 'new': \.tsv is taken by 'csv', a CSV file"),
        ({"folders": True}, "data source 'new': folders is taken by 'folder', a folder of images"),
        ({"preparations": {"table": Prepared}}, "'csv' has another preparation 'table'"),
        ({"kind": "json lines"}, "a kind of data is one word, as 'csv'; got 'json lines'"),
        ({"endings": ("jsonl",)}, r"an ending is written as '\.csv', in lower case; got 'jsonl'"),
        ({"flags": ("targets",)}, r"unknown flag 'targets' \(did you mean 'target'\?\); there are \['target', "),
    ],
)
def test_a_source_that_cannot_join(fields: dict[str, Any], message: str) -> None:
    before = dict(SOURCES)
    with pytest.raises(ValueError, match=message):
        register(Source(**{"kind": "new", "title": "new data", "reader": "bnn.data:new"} | fields))
    assert before == SOURCES


def test_a_preparation_that_cannot_be_stored_cannot_join() -> None:
    with pytest.raises(TypeError, match=r"a preparation has kind, to_dict and from_dict; .* has no kind"):
        source("new", "new data", preparation=object)


@pytest.fixture
def example(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, _same_sources: None) -> dict[str, Any]:
    """What the section about data sources in docs/extending.md defines and does, in a folder of its own."""
    page = (ROOT / "docs" / "extending.md").read_text()
    section = page[page.index("## A data source") :].split("\n## ", 1)[0]
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("from dataclasses import dataclass", namespace)  # of the page's first block
    for block in re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "extending.md", "exec", dont_inherit=True), namespace)
    return namespace


def test_the_example_trains_and_predicts_on_the_command_line(example: dict[str, Any]) -> None:
    """The answers are those of Python, from the stored preparation."""
    run = load_run("runs/flowers")
    assert run.recipe is not None
    assert run.recipe.data == {"json_lines": "flowers.jsonl", "validation": 0.1, "target": "kind"}
    assert isinstance(run.preparation, example["JsonLinesPreparation"])
    data = bnn.data.json_lines("flowers.jsonl", "kind")  # type: ignore[attr-defined]
    assert run.preparation == data.preparation
    assert (data.classes, len(data.train), len(data.validation), len(data.test)) == (("rose", "tulip"), 56, 8, 16)
    with open("answers.csv", newline="") as file:
        answers = list(csv.DictReader(file))
    assert [one["input"] for one in answers[:2]] == ["row 0", "row 1"]
    x = run.preparation("flowers.jsonl")
    assert torch.equal(x[:1], run.preparation(example["objects_in"]("flowers.jsonl")[:1]))
    probs = bnn.predict(run.net, x, generator=torch.Generator().manual_seed(0)).probs
    assert [one["class"] for one in answers] == [data.classes[i] for i in probs.argmax(1).tolist()]
    assert len(answers) == 80


def test_mistakes_with_the_example_are_told(example: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in [
        (
            ["train", "--data", "flowers.jsonl"],
            "flowers.jsonl is a file of JSON lines, which needs the name",
        ),
        (["train", "--data", "flowers.jsonl"], "value to predict: give --target"),
        (["train", "--data", "flowers.jsonl", "--target", "kind", "--drop", "x"], "--drop is for a CSV file; "),
        (["train", "--data", "notes.txt"], "expected a .csv, .tsv, .npz or .jsonl file, or a folder of images"),
        (["predict", "runs/flowers", "flower.jsonl"], "did you mean 'flowers.jsonl'?"),
        (["predict", "runs/flowers", "notes.txt"], "notes.txt: Expecting value"),
        (["predict", "runs/flowers", "other.jsonl"], "other.jsonl: width"),
        (["predict", "runs/flowers", "flowers.jsonl", "--keep", "kind"], "--keep kind names a column of a table"),
    ]:
        pathlib.Path("notes.txt").write_text("none\n")
        pathlib.Path("other.jsonl").write_text('{"size": 3}\n')
        capsys.readouterr()
        assert app.run(words) == 2
        assert message in capsys.readouterr().err
