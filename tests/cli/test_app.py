"""The command line as a whole: help, examples, exit codes, and no traceback for a mistake."""

from __future__ import annotations

import ast
import json
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from typing import Any

import pytest
import typer.main

import bnn
from bnn._common.errors import ArgumentError, ArgumentWarning
from bnn.cli import app as application
from bnn.cli import mistakes
from bnn.cli.app import app, run
from bnn.train import DivergenceError

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
EVERY = ("demo", "train", "presets", "methods", "evaluate", "predict", "report", "count", "bench")


def examples(command: Any) -> list[str]:
    return [line.strip() for line in command.epilog.splitlines() if line.strip().startswith("bayesianize")]


def test_all_commands_are_there() -> None:
    assert set(COMMANDS) == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_help_ends_with_examples_whose_options_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--json" in out
    assert examples(COMMANDS[name])
    known = {option for one in COMMANDS[name].params for option in (*one.opts, *one.secondary_opts)}
    for example in examples(COMMANDS[name]):
        program, command, *words = shlex.split(example)
        assert (program, command) == ("bayesianize", name)
        assert example.split()[-1] in out  # wrapped, perhaps, but there
        assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("name", EVERY)
def test_every_option_says_what_it_is(name: str) -> None:
    for option in COMMANDS[name].params:
        assert option.help, f"{name}: {option.opts}"
        assert option.help.strip().endswith((".", ")", "]")), option.help


def test_without_a_command_it_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Start with bayesianize demo" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["presets", "--jsn"], "No such option: --jsn"),
        (["presets", "ours/digts"], "did you mean 'ours/digits-ffg'"),
        (["evaluate"], "Missing argument"),
        (["demo", "--seed", "x"], "--seed"),
    ],
)
def test_typing_mistakes(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert "Traceback" not in captured.err


def test_presets_as_json_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    from bnn.train import Recipe
    from bnn.train.presets import presets

    assert run(["presets", "ours/digits", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {name: Recipe.from_dict(one) for name, one in printed.items()} == {
        name: recipe for name, recipe in presets().items() if "ours/digits" in name
    }


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ValueError("give it another folder"), 2, "error: give it another folder\n"),
        (FileNotFoundError("there is no file x"), 2, "error: there is no file x\n"),
        (KeyError("no such thing"), 2, "error: no such thing\n"),
        (mistakes.Mistake("so not"), 2, "error: so not\n"),
        (ImportError('this needs pillow: pip install "bayesianize[data]"'), 2, "error: this needs pillow"),
        (DivergenceError("smaller lr"), 1, "error: smaller lr\n"),
        (KeyboardInterrupt("stopped; start again"), 130, "\nstopped; start again\n"),
        (SystemExit(143), 143, ""),
        (SystemExit("why"), 1, "why\n"),
    ],
)
def test_how_commands_end(error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise error

    assert mistakes.guarded(mistakes.interruptible(command)) == code
    assert capsys.readouterr().err.startswith(text)


def test_hints_of_the_library_come_with_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise ArgumentError("leave it out with drop=['id'], or try encoding='cp1252'", "drop", "encoding")

    assert mistakes.guarded(command) == 2
    said = capsys.readouterr().err
    assert said == "error: leave it out with --drop id, or try --set 'data.encoding=\"cp1252\"'\n"


def test_warnings_of_the_library_come_with_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        warnings.warn(ArgumentWarning("leave it out with drop=['order_id']", "drop"), stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert mistakes.guarded(command) == 0
    assert capsys.readouterr().err == "note: leave it out with --drop order_id\n"


def unsaid(raised: ast.Call) -> list[str]:
    """Arguments that the message of an error tells people to give, and that the error does not carry."""
    message, *fields = ([part.value for part in ast.walk(one) if isinstance(part, ast.Constant)] for one in raised.args)
    carried = {value for values in fields for value in values}
    named = {name for name in mistakes.FLAGS for text in message if re.search(rf"\b{name}=", str(text))}
    return sorted(named - carried)


def test_errors_about_data_carry_the_arguments_they_name() -> None:
    """Or the command line could not say which flag would help; warnings, too."""
    found = {}
    for path in pathlib.Path(bnn.data.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        raised = [node.exc for node in nodes if isinstance(node, ast.Raise)]
        raised += [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"]
        calls = [one for one in raised if isinstance(one, ast.Call) and one.args]
        wrong = [(one.lineno, unsaid(one)) for one in calls if ast.unparse(one.func) != "MemoryError"]
        found[path.name] = [one for one in wrong if one[1]]
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_a_column_that_should_be_left_out_comes_with_the_flag(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "\n".join(f"name{i},{i % 3},{i % 2}" for i in range(60))
    (tmp_path / "rows.csv").write_text(f"who,x,y\n{rows}\n")
    assert run(["train", "--data", str(tmp_path / "rows.csv"), "--target", "y"]) == 2
    said = capsys.readouterr().err
    assert "leave it out with --drop who, or keep it with --set 'data.categories=[\"who\"]'" in said
    assert "drop=" not in said


@pytest.mark.slow
def test_ctrl_c_while_it_is_still_starting() -> None:
    """In the middle of the imports: no traceback."""
    script = pathlib.Path(sys.executable).with_name("bayesianize")
    with subprocess.Popen([script, "count"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(0.6)  # Python is up, torch is not
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert "Traceback" not in said
    assert process.returncode in (130, -signal.SIGINT)  # the second before Python has begun


def test_an_error_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        mistakes.guarded(broken)

    def mistaken() -> None:
        raise ValueError("where from?")

    monkeypatch.setenv("BNN_TRACEBACK", "1")
    with pytest.raises(ValueError, match="where from"):
        mistakes.guarded(mistaken)


def test_warnings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        warnings.simplefilter("default")
        warnings.warn("a column is left out", stacklevel=1)

    assert mistakes.guarded(command) == 0
    assert capsys.readouterr().err == "note: a column is left out\n"


@pytest.mark.slow
def test_both_ways_to_start_it() -> None:
    """`python -m bnn` and the console script; a pipe that closes early ends it quietly."""
    started = [sys.executable, "-m", "bnn"]
    version = subprocess.run([*started, "--version"], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"bayesianize \d+\.\d+\.\d+\n", version)
    script = pathlib.Path(sys.executable).with_name("bayesianize")
    assert subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout == version
    piped = f"{shlex.join(started)} presets --json | head -1"
    ended = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("{\n", "")


@pytest.mark.slow
def test_an_interrupted_command_leaves_nothing_half_written(tmp_path: pathlib.Path) -> None:
    """Ctrl-C in the middle of training: the exit code, what it says, and no temporary file."""
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "bnn", "demo", "--out", str(out), "--seed", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "Deterministic: training" in process.stderr.readline()
    while not (out / "deterministic" / "train" / "metrics.jsonl").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert printed == ""
    assert "Traceback" not in said
    assert "resume" in said
    left = [path.name for path in out.rglob("*")]
    assert not [name for name in left if name.endswith(".tmp") or name == "report.html"]


def test_the_commands_are_named_after_their_functions() -> None:
    assert {name: one.callback.__name__ for name, one in COMMANDS.items()} == {name: name for name in EVERY}
    assert application.run is run
