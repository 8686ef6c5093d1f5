"""Entries: read from a run's folder, named apart, and grouped by what can be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import bare, epochs, real

from bnn.report import Entry, grouped, read_entry
from bnn.report.entry import named_apart


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with two stages, the second of two members."""
    run = tmp_path / "my-run"
    for stage in ("pretrain", "member0", "member1"):
        (run / stage).mkdir(parents=True)
        lines = [json.dumps(epoch) for epoch in epochs(2, stage=float(len(stage)))]
        (run / stage / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "recipe.json").write_text('{"seed": 3}')
    bare().save(run / "evaluation.json")
    return run


def test_a_folder_is_read_whole(folder: Path) -> None:
    entry = read_entry(folder)
    assert (entry.name, entry.recipe, entry.evaluation) == ("my-run", {"seed": 3}, bare())
    assert list(entry.training) == ["pretrain", "member0", "member1"]  # what comes first, first
    assert entry.training["member1"] == epochs(2, stage=7.0)
    assert read_entry(folder, "other").name == "other"


def test_a_line_that_is_being_written_is_left_out(folder: Path) -> None:
    path = folder / "member0" / "metrics.jsonl"
    path.write_text(path.read_text() + '{"epoch": 2, "da')
    assert len(read_entry(folder).training["member0"]) == 2


def test_a_run_of_one_stage_needs_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 0, "data": 1.0}\n')
    bare().save(tmp_path / "evaluation.json")
    entry = read_entry(tmp_path)
    assert entry.recipe is None
    assert list(entry.training) == ["train"]


def test_what_is_missing_is_said(folder: Path) -> None:
    (folder / "evaluation.json").unlink()
    with pytest.raises(FileNotFoundError, match=f"run `bayesianize evaluate {folder}` first"):
        read_entry(folder)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        read_entry(folder / "no")


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_a_damaged_recipe_is_named(folder: Path, text: str) -> None:
    (folder / "recipe.json").write_text(text)
    with pytest.raises(ValueError, match=r"recipe\.json cannot be read"):
        read_entry(folder)


def test_an_entry_is_checked() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        Entry(" ", bare())
    with pytest.raises(TypeError, match="an Evaluation; got a dict"):
        Entry("a", {})  # type: ignore[arg-type]


def test_names_are_told_apart() -> None:
    names = ["a", "b", "a", "a (2)", "a"]
    assert [one.name for one in named_apart([Entry(name, bare()) for name in names])] == [
        "a",
        "b",
        "a (2)",
        "a (2) (2)",
        "a (3)",
    ]


def test_runs_on_other_data_are_compared_apart() -> None:
    runs = [Entry("a", bare()), Entry("b", real()), Entry("c", bare()), Entry("a", bare("other"))]
    assert [[one.name for one in group] for group in grouped(runs)] == [["a", "c"], ["b"], ["a (2)"]]
    with pytest.raises(ValueError, match="at least one run"):
        grouped([])
