"""Tables of answers as files, by their endings."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable

from bnn._common.atomic import write_atomically
from bnn.cli.mistakes import Mistake
from bnn.train.runs.answers import Answers


def _json(answers: Answers) -> str:
    return json.dumps(answers.to_dict(), indent=1, allow_nan=False) + "\n"


def _json_lines(answers: Answers) -> str:
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in answers.records())


def as_csv(answers: Answers, delimiter: str = ",") -> str:
    """A line of names, then one line per row."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(answers.columns)
    writer.writerows(answers.rows())
    return text.getvalue()


WRITERS: dict[str, Callable[[Answers], str]] = {
    ".csv": as_csv,
    ".tsv": lambda answers: as_csv(answers, "\t"),
    ".json": _json,
    ".jsonl": _json_lines,
}


def checked_file(path: str, inputs: Iterable[str]) -> str:
    """`path`, if a table can be written there that replaces none of the inputs; otherwise a mistake."""
    if _ending(path) not in WRITERS:
        raise Mistake(f"--out {path}: a table is written as {', '.join(WRITERS)}, by the ending of the file")
    if os.path.isdir(path):
        raise Mistake(f"--out {path} is a folder; name a file in it")
    parent = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(parent):
        raise Mistake(f"--out {path}: there is no folder {os.path.dirname(path)}; create it first")
    if os.path.exists(path) and any(os.path.exists(one) and os.path.samefile(path, one) for one in inputs):
        raise Mistake(f"--out {path} would replace one of the inputs; give another file")
    return path


def write_table(path: str, answers: Answers) -> None:
    """Writes the table; the file appears whole or not at all."""
    text = WRITERS[_ending(path)](answers)
    write_atomically(text.encode(), os.path.realpath(path))  # a link stays a link


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower()
