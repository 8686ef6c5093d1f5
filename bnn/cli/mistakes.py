"""How a command ends when something is wrong: one line that says what to do, and an exit code."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

from bnn._common.errors import DivergenceError, OptionError
from bnn._common.text import nearest

FAILED, MISTAKE, INTERRUPTED = 1, 2, 130
TRACEBACK = "BNN_TRACEBACK"  # set to 1 it shows where a mistake was found

# What the library raises for input that makes no sense, each with a message that says what to do.
USERS = (ValueError, TypeError, LookupError, OSError, ImportError)


# Arguments that errors, warnings and hints of the library carry, and how to give them here.
FLAGS = {"drop": "--drop COLUMN", "task": "--task", "size": "--image-size HxW", "positive": "--positive"}
FLAGS |= {"test": "--test SHARE", "validation": "--validation SHARE"}
OTHERS = ["categories", "missing", "not_missing", "encoding", "delimiter", "decimal", "skip_corrupt", "layout"]
FLAGS |= {name: f"--set data.{name}=VALUE" for name in [*OTHERS, "drop_missing_target", "guarantee"]}


_TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_VALUE = rf"\[(?:{_TEXT}|[^\]'\"])*\]|\([^)]*\)|{_TEXT}|True|False|None|\d+(?:\.\d+)?"


class Mistake(Exception):  # noqa: N818 - not an error of the program
    """What was asked for makes no sense; the message says what would."""


def guarded(command: Callable[[], Any]) -> int:
    """Runs `command`; returns the exit code."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _shown  # one line each, without the source
            command()
    except SystemExit as end:
        return _code(end)
    except BrokenPipeError:  # the reader of a pipe has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Mistake, DivergenceError, *USERS) as error:
        if os.environ.get(TRACEBACK) == "1":
            raise
        print(f"error: {described(error)}", file=sys.stderr)
        return FAILED if isinstance(error, DivergenceError) else MISTAKE
    return 0


def interruptible(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command`, which on Ctrl-C says what the interrupt says (how to resume) and ends with 130."""

    @wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except KeyboardInterrupt as interrupt:
            text = str(interrupt)
            print(f"\n{text or 'interrupted'}", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None

    return wrapped


def described(error: BaseException) -> str:
    """The message of an error; of one that has none, its name."""
    if isinstance(error, OptionError):
        return error.spelled(flag)
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error) or type(error).__name__
    return in_flags(text, getattr(error, "arguments", ()))


def in_flags(text: str, arguments: Iterable[str]) -> str:
    r"""A text of the library with its arguments as flags; those that it does not write as `name=value` stand behind it.

    >>> in_flags("leave it out with drop=['my id'], or say missing=['-']", ["drop", "missing"])
    'leave it out with --drop \'my id\', or say --set \'data.missing=["-"]\''
    >>> in_flags("positive=True trains on a log scale", ["positive"]), in_flags("y holds classes", ["task"])
    ('--positive trains on a log scale', 'y holds classes [on the command line: --task]')
    """
    behind = []
    for name in [name for name in FLAGS if name in set(arguments)]:
        found = re.sub(rf"\b{name}=({_VALUE})?", partial(_as_flag, name), text)
        behind += [FLAGS[name]] if found == text else []
        text = found
    return f"{text} [on the command line: {', '.join(behind)}]" if behind else text


def _as_flag(name: str, found: re.Match[str]) -> str:
    """An argument as it is given here; one whose value is no single one as FLAGS has it."""
    try:
        value = ast.literal_eval(found[1] or "")
    except (SyntaxError, ValueError):
        return FLAGS[name]
    place, equals, _ = FLAGS[name].partition("=")
    if equals:  # --set data.name=VALUE
        word, _, place = place.partition(" ")
        return f"{word} {shlex.quote(f'{place}={json.dumps(value)}')}"
    flag = FLAGS[name].partition(" ")[0]
    if value is True:
        return flag
    return f"{flag} {shlex.quote(','.join(map(str, value)) if isinstance(value, list | tuple) else str(value))}"


def flag(name: str, value: Any) -> str:
    """An option as it is given here.

    >>> flag("abstain_above", None), flag("coverage", 0.9)
    ('--abstain-above', '--coverage 0.9')
    """
    return f"--{name.replace('_', '-')}" + ("" if value is None else f" {value}")


def one_of(what: str, name: str, known: Iterable[str]) -> str:
    """`name`, if it is known; otherwise a mistake that suggests the nearest.

    >>> one_of("method", "ffg_u", ["ffg-u", "ffg-w"])
    Traceback (most recent call last):
    bnn.cli.mistakes.Mistake: unknown method 'ffg_u' (did you mean 'ffg-u'?); expected one of ffg-u, ffg-w
    """
    known = list(known)
    if name in known:
        return name
    raise Mistake(f"unknown {what} {name!r}{nearest(name, known)}; expected one of {', '.join(known)}")


def _code(end: SystemExit) -> int:
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
        return FAILED
    return int(end.code or 0)


def _shown(
    message: Warning | str, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    print(f"note: {in_flags(str(message), getattr(message, 'arguments', ()))}", file=sys.stderr)
