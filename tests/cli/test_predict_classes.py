from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from predict_runs import PLAIN, command, expected, files_in, rows_of, trained, write_table

from bnn.evaluation.promise import NOT_KNOWN
from bnn.train import load_run

FCN = {"name": "fcn", "hidden": [8]}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "rows.csv")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, table: Path) -> Path:
    data = {"csv": str(table), "target": "label", "drop": ["id", "price"]}
    return trained(
        tmp_path_factory.mktemp("runs") / "label", data, FCN, schedule={"epochs": 8, "lr": 0.1, "batch_size": 20}
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, table: Path) -> Path:
    data = {"csv": str(table), "target": "label", "drop": ["id", "price"]}
    return trained(tmp_path_factory.mktemp("runs") / "plain", data, FCN, method=PLAIN)


def prepared(run: Path, table: Path) -> torch.Tensor:
    x = load_run(run).preparation(table)
    assert isinstance(x, torch.Tensor)
    return x


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_rows_are_what_bnn_predict_says(run: Path, table: Path) -> None:
    rows = rows_of(run, table, "--samples", 7, "--seed", 3, "--probs")
    wanted = expected(run, prepared(run, table), 7, 3)
    classes = load_run(run).classes
    assert column(rows, "class") == [classes[i] for i in wanted.probs.argmax(1).tolist()]
    assert len(set(column(rows, "class"))) == 2
    for name, values in (
        ("probability", wanted.probs.max(1).values),
        ("total", wanted.total),
        ("aleatoric", wanted.aleatoric),
        ("epistemic", wanted.epistemic),
        ("p(short)", wanted.probs[:, 0]),
        ("p(tall)", wanted.probs[:, 1]),
    ):
        np.testing.assert_allclose(column(rows, name), values.numpy(), rtol=2e-6, atol=1e-9)
    assert max(column(rows, "epistemic")) > 1e-3  # draws disagree
    assert column(rows, "input") == [f"line {i + 2}" for i in range(80)]
    assert list(rows[0]) == [
        *("input", "class", "probability", "total", "aleatoric", "epistemic"),
        *("p(short)", "p(tall)"),
    ]


def test_seed_and_samples_matter_and_repeat(run: Path, table: Path) -> None:
    first = rows_of(run, table, "--samples", 3)
    assert rows_of(run, table, "--samples", 3) == first
    assert rows_of(run, table, "--samples", 3, "--seed", 1) != first
    assert command(run, table, "--json").json["draws"] == 20
    assert command(run, table, "--json", "--samples", 0).json["draws"] == 1


def test_a_plain_run_runs_once_whatever_samples_say(plain: Path, table: Path) -> None:
    rows = rows_of(plain, table, "--samples", 5)
    probs = load_run(plain).net(prepared(plain, table)).softmax(1)
    np.testing.assert_allclose(column(rows, "probability"), probs.max(1).values.detach().numpy(), rtol=2e-6)
    assert set(column(rows, "epistemic")) == {0.0}
    assert rows == rows_of(plain, table, "--batch-size", 7)


def test_several_tables_are_joined_in_order_and_columns_kept(run: Path, table: Path, tmp_path: Path) -> None:
    other = write_table(tmp_path / "more.csv", rows=3, seed=1)
    rows = rows_of(run, other, table, "--keep", "id", "--keep", "price")
    assert len(rows) == 83
    assert column(rows, "input")[:4] == [*(f"{other}, line {i}" for i in (2, 3, 4)), f"{table}, line 2"]
    with open(other, newline="") as file:
        wanted = [[row["id"], row["price"]] for row in csv.DictReader(file)]
    assert [[row["id"], row["price"]] for row in rows[:3]] == wanted
    x = torch.cat([prepared(run, other), prepared(run, table)])
    np.testing.assert_allclose(column(rows, "total"), expected(run, x).total.numpy(), rtol=2e-6)


def test_a_kept_column_whose_name_is_taken_is_renamed(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("height,kind,class\n0.5,a,mine\n")
    (row,) = rows_of(run, path, "--keep", "class")
    assert row["given class"] == "mine"
    assert row["class"] in ("short", "tall")


@pytest.mark.parametrize("by", ["total", "aleatoric", "epistemic"])
def test_abstains_where_the_uncertainty_is_above(run: Path, table: Path, by: str) -> None:
    values = getattr(expected(run, prepared(run, table)), by).numpy()
    threshold = float(np.sort(values)[40])
    ended = command(run, table, "--abstain-above", repr(threshold), "--by", by, "--json")
    for row, value in zip(ended.json["rows"], values, strict=True):
        assert row["answer"] == ("abstain" if value > threshold else row["class"])
    assert column(ended.json["rows"], "answer").count("abstain") == 39
    assert (ended.json["threshold"], ended.json["by"]) == (threshold, by)
    assert f"80 inputs, 39 abstained ({by} uncertainty above" in ended.err


def test_no_answer_column_unless_asked_for(run: Path, table: Path) -> None:
    ended = command(run, table, "--json")
    assert "answer" not in ended.json["rows"][0]
    assert ended.json["threshold"] is None
    assert ended.err == f"{NOT_KNOWN}\n80 inputs\n"
    assert command(run, table, "--quiet").err == ""


def test_a_threshold_that_no_entropy_passes_is_noted(run: Path, table: Path) -> None:
    assert f"above {math.log(2):.4g} nats" in command(run, table, "--abstain-above", 50).err
    assert "note" not in command(run, table, "--abstain-above", 0.5).err


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".json":
        return list(json.loads(path.read_text())["rows"])
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.json", "t.jsonl", "T.CSV"])
def test_files_hold_the_rows(run: Path, table: Path, tmp_path: Path, name: str) -> None:
    ended = command(run, table, "--out", tmp_path / name, "--keep", "id")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"{NOT_KNOWN}\n80 inputs: written to {tmp_path / name}\n"
    wanted = rows_of(run, table, "--keep", "id")
    text = name.lower().endswith(("csv", "tsv"))
    assert read(tmp_path / name) == ([{k: str(v) for k, v in row.items()} for row in wanted] if text else wanted)
    assert files_in(tmp_path) == {name}


def test_a_pipe_gets_csv_and_a_terminal_a_table(run: Path, table: Path) -> None:
    piped = command(run, table).out
    assert [row["input"] for row in csv.DictReader(io.StringIO(piped))] == [f"line {i + 2}" for i in range(80)]
    shown = command(run, table, terminal=True).out
    assert "line 51" in shown  # the 50th
    assert "line 52" not in shown
    assert shown.endswith("... 30 more: --out FILE.csv\n")
    assert "," not in shown


def test_json_and_a_file_at_once(run: Path, table: Path, tmp_path: Path) -> None:
    ended = command(run, table, "--json", "--out", tmp_path / "t.json")
    assert ended.json == json.loads((tmp_path / "t.json").read_text())
    assert (ended.json["run"], ended.json["task"]) == (str(run), "classification")


def test_unknown_categories_are_a_note(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("kind,height\nzz,0.5\n")
    ended = command(run, path)
    assert ended.code == 0
    assert "note: rows.csv: not in the training part of column 'kind': 'zz' (line 2)" in ended.err
