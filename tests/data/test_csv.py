"""Tables of one's own: what is read from them, what is refused, and that nothing is learned off the training part."""

from __future__ import annotations

import json
import math
import pathlib
import random
import statistics
from typing import Any

import numpy as np
import pytest
import torch

import bnn
from bnn.data import csv, preparation
from bnn.data.split import split
from bnn.data.tables.preparation import TablePreparation
from bnn.data.tables.rows_csv import read_csv


def write(folder: pathlib.Path, text: str, name: str = "table.csv") -> pathlib.Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def table(folder: pathlib.Path, rows: list[dict[str, Any]], name: str = "table.csv") -> pathlib.Path:
    lines = [",".join(rows[0]), *(",".join(str(cell) for cell in row.values()) for row in rows)]
    return write(folder, "\n".join(lines) + "\n", name)


def people(count: int = 60, seed: int = 0) -> list[dict[str, Any]]:
    """Numbers (one with gaps), categories (one with gaps), and classes that depend on them."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        age, colour = rng.gauss(40, 10), rng.choice(["red", "green", "blue"])
        income = "" if i % 7 == 0 else round(rng.gauss(3000, 500), 2)
        town = "NA" if i % 5 == 0 else rng.choice(["Rome", "Bonn"])
        label = "yes" if age > 40 else "no"
        rows.append({"age": round(age, 3), "income": income, "colour": colour, "town": town, "buys": label})
    return rows


# What is read


def test_columns_become_features_scaled_on_the_training_part_alone(tmp_path: pathlib.Path) -> None:
    rows = people()
    data = csv(table(tmp_path, rows), "buys")
    assert isinstance(data.preparation, TablePreparation)
    assert data.preparation.features == (
        *("age", "income", "income is missing", "colour=blue", "colour=green", "colour=red"),
        *("town=Bonn", "town=Rome", "town is missing"),
    )
    index = split(60, 0.2, 0.1, 0, torch.tensor([row["buys"] == "yes" for row in rows]).long(), ("no", "yes"))
    ages = [rows[i]["age"] for i in index.train.tolist()]
    incomes = [rows[i]["income"] for i in index.train.tolist() if rows[i]["income"] != ""]
    mean, sd = statistics.fmean(ages), statistics.pstdev(ages)
    assert data.validation is not None
    assert data.test is not None
    for part, chosen in ((data.train, index.train), (data.validation, index.validation), (data.test, index.test)):
        for x, y, i in zip(*part.tensors(), chosen.tolist(), strict=True):
            row = rows[i]
            income = 0.0
            if row["income"] != "":
                income = (row["income"] - statistics.fmean(incomes)) / statistics.pstdev(incomes)
            colours = [float(row["colour"] == one) for one in ("blue", "green", "red")]
            towns = [float(row["town"] == one) for one in ("Bonn", "Rome", "NA")]
            want = [(row["age"] - mean) / sd, income, float(row["income"] == ""), *colours, *towns]
            torch.testing.assert_close(x, torch.tensor(want))
            assert data.classes[y] == row["buys"]
    assert data.train.x[:, 0].mean().abs() < 1e-6


def test_the_preparation_survives_json_and_reads_the_same_rows_the_same(tmp_path: pathlib.Path) -> None:
    rows = people()
    path = table(tmp_path, rows)
    data = csv(path, "buys", missing=["unknown"], unknown="error")
    back = preparation(json.loads(json.dumps(data.preparation.to_dict())))
    assert back == data.preparation
    x = back(path)
    index = split(60, 0.2, 0.1, 0, torch.tensor([row["buys"] == "yes" for row in rows]).long(), ("no", "yes"))
    assert torch.equal(x[index.train], data.train.x)
    assert torch.equal(x[index.test], data.test.x)
    shuffled = [dict(reversed(list(row.items()))) | {"shoe size": 42} for row in rows]  # other order, one more
    without = [{name: cell for name, cell in row.items() if name != "buys"} for row in shuffled]
    columns = {name: [row[name] for row in without] for name in without[0]}
    assert torch.equal(back(table(tmp_path, shuffled, "other.csv")), x)
    assert torch.equal(back(without), x)
    assert torch.equal(back(columns), x)
    columns["age"] = torch.tensor(columns["age"], dtype=torch.double)
    columns["income"] = [math.nan if cell == "" else cell for cell in columns["income"]]
    columns["town"] = [None if cell == "NA" else cell for cell in columns["town"]]
    assert torch.equal(back(columns), x)


def test_a_net_trains_on_a_table_and_predicts_new_rows(tmp_path: pathlib.Path) -> None:
    data = csv(table(tmp_path, people(200)), "buys")
    net = torch.nn.Linear(*data.in_shape, data.out_features)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(data.train.x), data.train.y).backward()
        optimiser.step()
    assert (net(data.test.x).argmax(1) == data.test.y).float().mean() > 0.9
    old, young = net(data.preparation([{"age": a, "income": 3000, "colour": "red", "town": "Rome"} for a in (60, 20)]))
    assert data.classes[old.argmax()] == "yes"
    assert data.classes[young.argmax()] == "no"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_quotes_and_line_ends(tmp_path: pathlib.Path, delimiter: str) -> None:
    lines = [["a", "b, c; d|e", "y"], ["1", '"x"", y"', "2.5"], [" 3 ", '"two\nlines"', "3.5"], ["5", "plain", "1e1"]]
    lines[0][1] = f'"{lines[0][1]}"'
    text = "\ufeff" + "\r\n".join(delimiter.join(line) for line in lines) + "\r\n\r\n" + delimiter * 2 + "\r\n\r\n"
    rows = read_csv(write(tmp_path, text))
    assert rows.columns == {
        "a": ["1", "3", "5"],
        "b, c; d|e": ['x", y', "two\nlines", "plain"],
        "y": ["2.5", "3.5", "1e1"],
    }
    assert rows.numbers == [2, 3, 5]  # the second row takes two lines


def test_a_decimal_comma_is_understood_between_semicolons(tmp_path: pathlib.Path) -> None:
    points = "a;y\n" + "".join(f"{i}.5;{i * i}.25\n" for i in range(30))
    one = csv(write(tmp_path, points), "y")
    two = csv(write(tmp_path, points.replace(".", ","), "commas.csv"), "y")
    assert torch.equal(one.train.x, two.train.x)
    assert torch.equal(one.train.y, two.train.y)
    both = write(tmp_path, "a;y\n1,5;2.5\n2,5;3.5\n")
    with pytest.raises(
        ValueError, match=r"a point in table.csv, line 2, column 'y' \('2.5'\) and a comma in .*decimal="
    ):
        csv(both, "y")
    assert read_csv(both, decimal=".").decimal == "."


def test_every_word_for_missing_counts(tmp_path: pathlib.Path) -> None:
    words = ["", "NA", "n/a", "NaN", "NULL", "none", "?", "-999"]
    rows = [{"a": word, "y": i % 2} for i, word in enumerate(words)] + [{"a": i, "y": i % 2} for i in range(8)]
    data = csv(table(tmp_path, rows), "y", missing=["-999"], test=None, validation=None)
    assert data.preparation.features == ("a", "a is missing")
    assert data.train.x[:8].tolist() == [[0.0, 1.0]] * 8
    assert data.train.x[8:, 1].tolist() == [0.0] * 8


def test_the_task_is_found_out(tmp_path: pathlib.Path) -> None:
    def found(targets: list[Any], **options: Any) -> bnn.data.Data:
        rows = [{"a": 3 * i, "y": y} for i, y in enumerate(targets)]
        return csv(table(tmp_path, rows), "y", **options)

    data = found([10, 2, 10.0, 2] * 10)
    assert (data.task, data.classes) == ("classification", ("2", "10"))  # by size, and 10.0 is 10
    assert found([f"c{i % 3}" for i in range(40)]).classes == ("c0", "c1", "c2")
    assert found([i % 20 for i in range(100)]).task == "classification"
    assert found([i % 21 for i in range(105)]).task == "regression"
    assert found([10, 2] * 20, task="regression").task == "regression"
    data = found([i + 0.5 for i in range(40)])
    assert data.train.y.shape == (28, 1)
    assert data.train.y.dtype == torch.float32
    assert data.target is not None
    own = torch.cat([data.target.own_units(part.y) for part in (data.train, data.validation, data.test)])
    torch.testing.assert_close(own.flatten().sort().values, torch.arange(40) + 0.5)
    torch.testing.assert_close(data.train.y.std(correction=0), torch.tensor(1.0))


def test_the_split_depends_on_the_seed_alone(tmp_path: pathlib.Path) -> None:
    path = table(tmp_path, people())
    torch.manual_seed(5)
    one, two = csv(path, "buys", seed=3), csv(path, "buys", seed=3)
    assert torch.equal(one.train.x, two.train.x)
    assert not torch.equal(one.train.x, csv(path, "buys", seed=4).train.x)


@pytest.mark.parametrize("seed", range(10))
def test_every_class_is_in_training_and_keeps_its_share(seed: int) -> None:
    labels = torch.tensor([0] * 100 + [1] * 50 + [2] * 2 + [3])
    with pytest.warns(UserWarning, match="single input, which is used for training and never tested: 'd'"):
        index = split(153, 0.2, 0.1, seed, labels, "abcd")
    assert labels[index.train].unique().tolist() == [0, 1, 2, 3]
    assert sorted([*index.train.tolist(), *index.validation.tolist(), *index.test.tolist()]) == list(range(153))
    assert (len(index.test), len(index.validation)) == (31, 15)
    counts = labels[index.test].bincount(minlength=4)
    assert abs(counts[0] - 20) <= 1
    assert abs(counts[1] - 10) <= 1
    assert counts[3] == 0


def test_test_rows_of_a_second_file(tmp_path: pathlib.Path) -> None:
    path, other = table(tmp_path, people()), table(tmp_path, people(30, seed=1), "test.csv")
    data = csv(path, "buys", test=other, validation=None)
    assert (len(data.train), len(data.test), data.validation) == (60, 30, None)
    assert torch.equal(data.preparation(other), data.test.x)
    wrong = table(tmp_path, [*people(3), people(1)[0] | {"buys": "maybe"}], "wrong.csv")
    with pytest.raises(
        ValueError, match=r"wrong.csv, line 5: class 'maybe' of column 'buys' does not occur .*'no'; 'yes'"
    ):
        csv(path, "buys", test=wrong)


def test_constant_columns_are_left_out(tmp_path: pathlib.Path) -> None:
    rows = [row | {"planet": "Earth", "zero": 0.1, "empty": ""} for row in people()]
    with pytest.warns(UserWarning, match="the same in all of the training part: 'planet'; 'zero'; 'empty'"):
        data = csv(table(tmp_path, rows), "buys")
    assert data.in_shape == (9,)
    with pytest.raises(ValueError, match="no column to predict from changes in the training part: 'a'"):
        csv(write(tmp_path, "a,y\n" + "1,u\n1,v\n" * 10), "y")


def test_a_column_that_is_one_number_or_missing_says_which(tmp_path: pathlib.Path) -> None:
    data = csv(write(tmp_path, "a,y\n" + "1,u\n,v\n" * 10), "y", test=None, validation=None)
    assert data.preparation.features == ("a=1", "a is missing")
    assert torch.equal(data.train.x, torch.eye(2).repeat(10, 1))


def test_huge_numbers_are_scaled_and_infinite_ones_refused(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "a,y\n" + "1e308,u\n-1e308,v\n" * 10)
    data = csv(path, "y", test=None, validation=None)
    assert data.train.x.flatten().tolist() == [1.0, -1.0] * 10
    small = csv(write(tmp_path, "a,y\n" + "1,u\n2,v\n" * 10), "y", test=None, validation=None)
    with pytest.raises(ValueError, match="the table, row 0: 1e\\+300 in column 'a' is too large"):
        small.preparation([{"a": 1e300}])


# What is refused: {case: (text of the file, options, the error)}

NUMBERS = "a,b,y\n" + "".join(f"{i + i // 10},{i % 3},{'uv'[i % 2]}\n" for i in range(20))


def disguised(form: str) -> str:
    return "a,y\n" + "".join(f"{form.format(1 + 2 * (i // 2))},{'uv'[i % 2]}\n" for i in range(12))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "text in a number column": (
        NUMBERS.replace("\n7,", "\nseven,"),
        {},
        r"table.csv, line 9: text in a column of numbers, 'seven' in 'a' \(1 of 20 values are no numbers\).*missing=\["
        r"'seven'\].*categories=\['a'\]",
    ),
    "a thousands separator": (
        NUMBERS.replace("\n7,", '\n"1,007",'),
        {},
        r"line 9: a number that is written as text, '1,007' in 'a' \(1 of 20 .*; write 1007 in .*categories=\['a'\]",
    ),
    "text of many kinds": (
        "name,y\n" + "".join(f"n{i},{i % 2}\n" for i in range(60)),
        {},
        r"line 2: column 'name' holds text \('n0'\) with 60 different values.*drop=\['name'\].*categories=\['name'\]",
    ),
    "inf": (NUMBERS.replace("\n7,", "\n-inf,"), {"test": None}, "line 9: '-inf' in column 'a' is not a finite number"),
    "1e400": (NUMBERS.replace("\n7,", "\n1e400,"), {"test": None}, "line 9: '1e400' in column 'a' is not a finite"),
    "a line too long": (NUMBERS + "1,2,u,3\n", {}, "line 22 has 4 cells, the line of names has 3"),
    "a line too short": (NUMBERS + "1,u\n", {}, "line 22 has 2 cells, the line of names has 3"),
    "names twice": (NUMBERS.replace("a,b", "a,a"), {}, "two columns have the same name: 'a'"),
    "no names": (
        NUMBERS.partition("\n")[2].replace("u", "1").replace("v", "0"),
        {},
        "the first line must name the colu",
    ),
    "data for names": (
        "5.1,3.5,u\n4.9,3.0,v\n",
        {},
        "no column 'y'; .*first line must name the columns, and looks like data",
    ),
    "a nameless column": (NUMBERS.replace("a,b", ",b"), {}, r"a column has no name in the first line.*drop=\[''\]"),
    "nothing": ("", {}, "is empty; its first line must name the columns"),
    "blank lines": ("\n\n", {}, "is empty; its first line must name the columns"),
    "names only": ("a,b,y\n", {}, "has a line of names and no rows below it"),
    "an open quote": (NUMBERS + '"1,2,u\n', {}, "line 22: unexpected end of data; quotes around a cell must close"),
    "an unknown target": (NUMBERS, {"target": "Y"}, "no column 'Y'; its columns are 'a'; 'b'; 'y'"),
    "a mistyped target": (NUMBERS.replace("y\n", "price\n", 1), {"target": "prise"}, "did you mean 'price'?"),
    "an unknown drop": (NUMBERS, {"drop": ["c"]}, "no column 'c'"),
    "a dropped target": (NUMBERS, {"drop": "y"}, "drop names 'y', which is the target"),
    "everything dropped": (NUMBERS, {"drop": ["a", "b"]}, "no column left to predict 'y' from"),
    "missing targets": (
        NUMBERS + "1,2,\n3,4,?\n",
        {},
        "the target 'y' is missing on line 22, 23; fill it in, or say drop_missing_target=True",
    ),
    "a class that is a word for nothing": (
        NUMBERS + "1,2,none\n3,4,none\n",
        {"drop_missing_target": True},
        r"the target 'y' is 'none' on line 22, 23, .*if it is a class, say not_missing=\['none'\]; .* missing=\['no",
    ),
    "a class of numbers that is a word for nothing": (
        "a,y\n" + "".join(f"{2 * i},{i % 2}\n" for i in range(20)) + "1,None\n",
        {},
        r"is missing on line 22; .*; if it is a class, say task='classification' and not_missing=\['None'\]",
    ),
    "missing and not": (
        NUMBERS,
        {"missing": "NA", "not_missing": "na"},
        r"\['na'\] cannot be in missing and in not_mi",
    ),
    "not_missing of no such word": (
        NUMBERS,
        {"not_missing": ["x"]},
        r"not_missing takes words .*'none'.*; got \['x'\]",
    ),
    "dollars": (disguised("${}.50"), {}, r"line 2: .*, '\$1.50' in 'a' \(12 of 12 .*; write 1.50 in its place"),
    "euros": (disguised("€ {}"), {}, "'€ 1' in 'a' .*; write 1 in its place"),
    "per cent": (disguised("{} %"), {}, "'1 %' in 'a' .*; write 1 in its place"),
    "thousands": (disguised('"{},000"'), {}, r"'1,000' in 'a' .*; write 1000 in its place \([^)]*\), or say cat"),
    "blanks": (disguised("{} 000 000"), {}, "'1 000 000' in 'a' .*; write 1000000 in its place"),
    "a decimal comma between commas": (disguised('"{},5"'), {}, "write 1.5 in its place .*, or say decimal=',' if"),
    "dollars as targets": (
        "a,y\n" + "".join(f'{2 * i},"${i},000"\n' for i in range(1, 20)),
        {},
        "line 2: .*'\\$1,000' in 'y' .*; write 1000 in .*or say task='classification' if they are classes",
    ),
    "per cent as classes": ("a,y\n" + "".join(f"{2 * i},{i % 3}%\n" for i in range(20)), {}, "'0%' in 'y'.*; write 0"),
    "dollars to regress on": (
        "a,y\n" + "".join(f"{2 * i},${i}\n" for i in range(20)),
        {"task": "regression"},
        r"line 2: .*'\$0' in 'y' .*; write 0 in its place",
    ),
    "dates": (
        "day,b,y\n" + "".join(f"2024-01-{i + 1:02},{i // 2},{'uv'[i % 2]}\n" for i in range(12)),
        {},
        r"'day' holds text \('2024-01-01'\) with 12 different values in 12 rows.*drop=\['day'\], make numbers of ",
    ),
    "no targets": ("a,y\n1,\n2,\n", {"drop_missing_target": True}, "the target 'y' is missing in every row"),
    "one class": (NUMBERS.replace("v", "u"), {}, "the target 'y' is 'u' in every row"),
    "text in a target of numbers": (
        "a,y\n" + "".join(f"{i},{i}.5\n" for i in range(10)) + "1,many\n",
        {},
        "line 12: text in a target of numbers, 'many' in 'y' .*task='classification'",
    ),
    "a constant target": ("a,y\n" + "".join(f"{i}.5,0.5\n" for i in range(20)), {}, "the target 'y' is 0.5 in all of"),
    "an infinite target": (
        "a,y\n" + "".join(f"{i},{i}.5\n" for i in range(20)) + "1,inf\n",
        {},
        "line 22: 'inf' in col",
    ),
    "an unknown task": (NUMBERS, {"task": "ranking"}, "unknown task 'ranking'"),
    "too few rows": ("a,y\n1,u\n2,v\n", {}, "2 inputs with 2 classes.*are too few to set 2 aside"),
    "a fraction above 1": (NUMBERS, {"validation": 10}, "validation must be a fraction from 0 up to 1"),
    "nothing to train on": (NUMBERS, {"test": 0.5, "validation": 0.5}, "leave nothing to train on"),
    "unknown=": (NUMBERS, {"unknown": "ignore"}, r"unknown must be one of \['warn', 'error'\], got 'ignore'"),
    "a long delimiter": (NUMBERS, {"delimiter": "::"}, "delimiter must be one character, got '::'"),
    "decimal=": (NUMBERS, {"decimal": ";"}, "decimal must be '.', ','"),
    "bytes of zero": ("a\0b\0", {}, "try encoding='utf-16'"),
}


@pytest.mark.parametrize(("text", "options", "error"), REFUSED.values(), ids=REFUSED)
def test_errors_name_the_place(tmp_path: pathlib.Path, text: str, options: dict[str, Any], error: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=error):
        csv(path, **{"target": "y"} | options)


def test_files_that_are_no_csv(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent.csv"):
        csv(tmp_path / "absent.csv", "y")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        csv(tmp_path, "y")
    with pytest.raises(TypeError, match=r"path must name a CSV file, got a list; bnn.data.arrays takes arrays"):
        csv([1, 2], "y")
    (tmp_path / "latin.csv").write_bytes("a,y\nMünchen,1\nKöln,2\n".encode("cp1252"))
    with pytest.raises(ValueError, match=r"is not utf-8-sig text .*encoding='cp1252'"):
        csv(tmp_path / "latin.csv", "y")
    assert read_csv(tmp_path / "latin.csv", encoding="cp1252").columns["a"] == ["München", "Köln"]
    (tmp_path / "wide.csv").write_bytes("a,y\n1,2\n".encode("utf-16"))
    with pytest.raises(ValueError, match="encoding='utf-16'"):
        csv(tmp_path / "wide.csv", "y")


def test_what_the_errors_say_helps(tmp_path: pathlib.Path) -> None:
    text, _, _ = REFUSED["text in a number column"]
    path = write(tmp_path, text)
    assert "a is missing" in csv(path, "y", missing="seven", test=None, validation=None).preparation.features
    assert "a=seven" in csv(path, "y", categories=["a"], test=None, validation=None).preparation.features
    text, _, _ = REFUSED["missing targets"]
    assert len(csv(write(tmp_path, text), "y", drop_missing_target=True, test=None, validation=None).train) == 20
    assert csv(write(tmp_path, REFUSED["a nameless column"][0]), "y", drop=[""], test=None).in_shape == (1,)
    text, _, _ = REFUSED["a class that is a word for nothing"]
    data = csv(write(tmp_path, text), "y", not_missing=["none"], test=None, validation=None)
    assert data.classes == ("none", "u", "v")
    assert len(data.train) == 22
    data = csv(write(tmp_path, text), "y", missing=["none"], drop_missing_target=True, test=None, validation=None)
    assert data.classes == ("u", "v")
    text, _, _ = REFUSED["per cent as classes"]
    assert csv(write(tmp_path, text), "y", task="classification", test=None).classes[0] == "0%"
    text, _, _ = REFUSED["a decimal comma between commas"]
    data = csv(write(tmp_path, text), "y", decimal=",", test=None, validation=None)
    torch.testing.assert_close(data.train.x.std(correction=0), torch.tensor(1.0))
    text, _, _ = REFUSED["dates"]
    assert csv(write(tmp_path, text), "y", drop=["day"], test=None).in_shape == (1,)
    assert csv(write(tmp_path, text), "y", categories=["day"], test=None, validation=None).in_shape == (13,)


@pytest.mark.parametrize("target", [[], [1], None, 2])
def test_a_target_is_a_name_or_several(tmp_path: pathlib.Path, target: Any) -> None:
    with pytest.raises(TypeError, match=r"target must be the name of one column, or of several in a list, got "):
        csv(write(tmp_path, NUMBERS), target)


def test_a_target_is_named_once(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"target has 'a' more than once, got \['a', 'b', 'a'\]: name every column"):
        csv(write(tmp_path, NUMBERS), ["a", "b", "a"])


# What may be meant otherwise


def test_a_word_may_be_a_value_among_texts_and_stays_missing_among_numbers(tmp_path: pathlib.Path) -> None:
    rows = [
        {"country": ["NA", "DE", ""][i % 3], "age": "NA" if i % 4 == 0 else 3 * i, "y": i % 2 + 0.5} for i in range(24)
    ]
    data = csv(table(tmp_path, rows), "y", not_missing=["na"], test=None, validation=None)
    back = preparation(json.loads(json.dumps(data.preparation.to_dict())))
    assert back.features == ("country=DE", "country=NA", "country is missing", "age", "age is missing")
    assert back([{"country": "NA", "age": "NA"}]).tolist() == [[0, 1, 0, 0, 1]]
    assert csv(table(tmp_path, rows), "y", test=None).preparation.features[:2] == ("country=DE", "country is missing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NUMBERS.replace(",u", ",Yes").replace(",v", ",yes"), "column 'y' differ in case .*: 'Yes' and 'yes'; write"),
        (
            "m,b,y\n" + "".join(f"{('true', 'TRUE', 'no')[i % 3]},{i}.5,{i}.5\n" for i in range(20)),
            "column 'm' differ in case or blanks alone and are kept apart: 'TRUE' and 'true'; write",
        ),
        (
            "id,b,y\n" + "".join(f"{5 + 7 * i % 20},{i}.5,{i}.5\n" for i in range(20)),
            r"column 'id' holds every whole number from 5 to 24 once, .*drop=\['id'\]",
        ),
    ],
)
def test_values_alike_and_row_numbers_warn(tmp_path: pathlib.Path, text: str, message: str) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        csv(write(tmp_path, text), "y", validation=None)
    assert [warning.filename for warning in caught] == [__file__]


def test_no_warning_of_numbers_that_only_resemble_row_numbers(tmp_path: pathlib.Path) -> None:
    columns = {"gap": [*range(19), 20], "twice": [*range(19), 18], "gone": [*range(19), ""], "half": range(20)}
    columns["half"] = [i + 0.5 for i in range(20)]
    rows = [{name: cells[i] for name, cells in columns.items()} | {"y": i + 0.5} for i in range(20)]
    assert csv(table(tmp_path, rows), "y", test=None, validation=None).in_shape == (5,)  # warnings are errors here


def test_test_rows_that_training_knows_are_counted(tmp_path: pathlib.Path) -> None:
    rows = people()
    train, other = table(tmp_path, rows), people(20, seed=1)
    mixed = [*other, *rows[:3], rows[7] | {"age": 40.5}]
    with pytest.warns(UserWarning, match=r"table.csv: 3 of 24 test rows occur in the training part") as caught:
        csv(train, "buys", test=table(tmp_path, mixed, "test.csv"), validation=None)
    assert [warning.filename for warning in caught] == [__file__]
    changed = [row | {"buys": "yes" if row["buys"] == "no" else "no"} for row in rows]
    csv(train, "buys", test=table(tmp_path, changed, "test.csv"), validation=None)  # another target: no copy


def test_rows_of_a_guarantee_that_fitting_knows_are_counted(tmp_path: pathlib.Path) -> None:
    """Of 40 rows, each there twice: those of the guarantee whose copy is not there, too."""
    rows = [row | {"age": 20 + i / 4} for i, row in enumerate(people(40))]
    path, again = table(tmp_path, rows), table(tmp_path, [*rows, *rows], "twice.csv")
    csv(path, "buys", test=None, guarantee=15)  # warnings are errors here
    with pytest.warns(UserWarning, match="rows set aside for a guarantee occur in the training or val") as caught:
        data = csv(again, "buys", test=None, validation=0.2, guarantee=15)
    alone = len({row.numpy().tobytes() for row in data.guarantee.x})
    assert f": {15 - 2 * (15 - alone)} of 15 rows set aside" in str(caught[0].message)


def test_what_differs_by_rounding_alone_is_constant(tmp_path: pathlib.Path) -> None:
    rows = [{"a": [0.1, 0.10000000000000002][i % 2], "b": 1e6 + i % 2, "y": i + 0.5} for i in range(20)]
    with pytest.warns(UserWarning, match="the same in all of the training part: 'a'$"):
        assert csv(table(tmp_path, rows), "y", validation=None).preparation.features == ("b",)
    gone = [row | {"a": "" if i % 3 == 0 else row["a"]} for i, row in enumerate(rows)]
    data = csv(table(tmp_path, gone), "y", test=None, validation=None)
    assert data.preparation.features == ("a", "a is missing", "b")
    assert data.train.x[:, 0].abs().max() < 1e-6
    flat = [row | {"y": row["a"]} for row in rows]
    with pytest.raises(ValueError, match=r"the target 'y' is 0\.1 in all of the training part"):
        csv(table(tmp_path, flat), "y", drop=["a"], test=None, validation=None)


# New rows


def test_text_of_new_rows_may_have_the_decimal_sign_of_training(tmp_path: pathlib.Path) -> None:
    text = "size;y\n" + "".join(f"{i},5;{i * i},25\n" for i in range(30))
    stored = csv(write(tmp_path, text), "y").preparation.to_dict()
    prepare = preparation(json.loads(json.dumps(stored)))
    want = prepare([{"size": 100.5}] * 2)
    assert torch.equal(prepare([{"size": "100,5"}, {"size": "100.5"}]), want)
    assert torch.equal(prepare({"size": ["100,5", 100.5]}), want)
    with pytest.raises(ValueError, match=r"row 0: '1\.000' in column 'size', which holds numbers with ',' for a de"):
        prepare([{"size": "1.000"}])
    points = csv(write(tmp_path, text.replace(",", ".")), "y").preparation
    with pytest.raises(ValueError, match=r"row 0: '100,5' in column 'size', which holds numbers$"):
        points([{"size": "100,5"}])


def test_unknown_categories_warn_or_are_refused(tmp_path: pathlib.Path) -> None:
    path, row = table(tmp_path, people()), {"age": 40, "income": 3000, "colour": "mauve", "town": "Rome"}
    data = csv(path, "buys")
    with pytest.warns(UserWarning, match=r"the table: not in the training part of column 'colour': 'mauve' \(row 1\)"):
        x = data.preparation([row | {"colour": "red"}, row])
    assert x[:, 3:6].tolist() == [[0, 0, 1], [0, 0, 0]]
    strict = csv(path, "buys", unknown="error").preparation
    with pytest.raises(ValueError, match=r"'colour': 'mauve' \(row 0\); known are 'blue'; 'green'; 'red'"):
        strict([row])


def test_a_value_that_was_never_missing_in_training_warns(tmp_path: pathlib.Path) -> None:
    data = csv(table(tmp_path, people()), "buys")
    row = {"age": 40, "income": 3000, "colour": "red", "town": "Rome"}
    with pytest.warns(UserWarning, match="column 'age' has 1 missing values and had none in training"):
        assert data.preparation([row | {"age": None}])[0, 0] == 0
    with pytest.warns(UserWarning, match=r"of column 'colour': missing \(row 0\)"):
        assert data.preparation([row | {"colour": ""}])[0, 3:6].sum() == 0


def test_categories_of_numbers_and_truths_are_found_as_python_values(tmp_path: pathlib.Path) -> None:
    rows = [{"grade": i % 3, "member": "true" if i % 2 else "false", "y": i % 2} for i in range(20)]
    data = csv(table(tmp_path, rows), "y", categories="grade", test=None, validation=None)
    new = [{"grade": 2, "member": True}, {"grade": 2.0, "member": False}, {"grade": "2", "member": "true"}]
    assert data.preparation(new).tolist() == [[0, 0, 1, 0, 1], [0, 0, 1, 1, 0], [0, 0, 1, 0, 1]]


def test_new_rows_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    prepare = csv(table(tmp_path, people()), "buys").preparation
    row = {"age": 40, "income": 3000, "colour": "red", "town": "Rome"}
    with pytest.raises(ValueError, match=r"the table: no column 'age'; its columns are 'Age'; .*did you mean 'Age'"):
        prepare([{"Age" if name == "age" else name: cell for name, cell in row.items()}])
    with pytest.raises(ValueError, match="the table, row 1: 'old' in column 'age', which holds numbers"):
        prepare([row, row | {"age": "old"}])
    with pytest.raises(ValueError, match=r"new.csv, line 3: 'old' in column 'age', which holds numbers"):
        prepare(table(tmp_path, [row, row | {"age": "old"}], "new.csv"))
    with pytest.raises(ValueError, match="the table, row 0: inf in column 'age' is not a finite number"):
        prepare([row | {"age": math.inf}])
    with pytest.raises(ValueError, match="row 1 of the table has no 'town', others have; None is a missing value"):
        prepare([row, {name: row[name] for name in ("age", "income", "colour")}])
    with pytest.raises(ValueError, match="the table has no rows"):
        prepare([])
    with pytest.raises(ValueError, match="all columns must be equally long"):
        prepare({"age": [1, 2], "income": [1], "colour": ["red"], "town": ["Rome"]})
    with pytest.raises(TypeError, match="column 'age' must be a list of cells, got 40; one row is a list of one dict"):
        prepare(row)
    with pytest.raises(TypeError, match=r"a list of dicts .* got a Tensor"):
        prepare(torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"columns": []}, "needs at least one column"),
        ({"columns": [{"kind": "date"}]}, r"unknown kind of column 'date'; expected one of \['category', 'number'\]"),
        ({"columns": [{"kind": "number", "name": "a", "mean": 0, "sd": 0, "missing": False}]}, "sd must be above 0"),
        ({"columns": [{"kind": "number", "name": "a"}]}, r"has \['mean', 'missing', 'name', 'sd'\], got \['name'\]"),
        ({"encoding": None}, "'encoding' of a stored table cannot be None"),
        ({"text_decimal": ";"}, "text_decimal must be '.' or ',', got ';'"),
        ({"more": 1}, "got .*'more'"),
        ({"kind": "tables"}, r"unknown kind of preparation 'tables'; expected one of \[.*'table'\]"),
    ],
)
def test_a_damaged_preparation_is_refused(tmp_path: pathlib.Path, change: dict[str, Any], error: str) -> None:
    stored = csv(table(tmp_path, people()), "buys").preparation.to_dict()
    with pytest.raises(ValueError, match=error):
        preparation(stored | change)


def test_a_target_scale_takes_tensors_arrays_and_numbers() -> None:
    scale = bnn.data.dataset.TargetScale((10.0, 0.5), (2.0, 4.0))
    y = np.array([[12.0, 4.5], [9.0, 0.5]])
    want = torch.tensor([[1.0, 1.0], [-0.5, 0.0]], dtype=torch.double)
    for values in (y, y.tolist(), torch.from_numpy(y), np.flip(y.copy()[::-1])[:, ::-1]):
        assert torch.equal(scale.scaled(values), want)
    assert torch.equal(scale.own_units(want.numpy()), torch.from_numpy(y))
    assert torch.equal(scale.own_units(want.numpy().astype(np.float32)), torch.from_numpy(y).float())
    assert scale.own_variance(np.ones((1, 2))).tolist() == [[4.0, 16.0]]
    one = bnn.data.dataset.TargetScale((0.5,), (2.0,))
    assert (one.own_units(1).item(), one.own_variance(0.25).item(), one.scaled(1.5).item()) == (2.5, 1.0, 0.5)
    assert one.own_units(torch.tensor([1, 2])).tolist() == [2.5, 4.5]  # a mean of 0.5 is no whole number
