"""A comparison in plain words: what is best at what, and what cannot be told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from bnn.report.comparison import QUALITY, Cell, Column, Comparison, marked

FEW_SETS = 2  # of out-of-distribution inputs that get a sentence each


class Name(str):
    """The name of a run within a sentence."""

    __slots__ = ()


Sentence = list[str]  # pieces of text, names among them; joined, they are the sentence

BEST = {  # column -> (how the sentence about the best begins, what it is called when all intervals overlap)
    "accuracy": ("Most accurate is", "accuracy"),
    "rmse": ("The smallest error (RMSE) is that of", "error (RMSE)"),
    "nll": ("The best likelihood (NLL) is that of", "likelihood (NLL)"),
    "ece": ("Best calibrated (ECE) is", "calibration (ECE)"),
    "coverage_90": ("Closest to the promise of its 90 % intervals is", "the coverage of 90 % intervals"),
}


def summary(found: Comparison) -> list[Sentence]:
    """Sentences about the numbers of a comparison.

    Where 95 % intervals overlap, they say so: runs on the same inputs may still differ for certain.
    """
    if len(found.runs) == 1:
        return list(_alone(found))
    inputs = f"{found.inputs:,}" if found.inputs == found.fewest else f"{found.fewest:,} to {found.inputs:,}"
    start = [f"{len(found.runs)} runs on ", found.data, f" were scored on {inputs} test inputs."]
    quality = [column for column in found.columns if column.group == QUALITY]
    return [start, *(s for c in quality if (s := _ranked(found, c, *_words(c)))), *_ood(found), *_size(found)]


def _words(column: Column) -> tuple[str, str]:
    """How the sentence about the best of a column begins, and what the column is called within one."""
    return BEST.get(column.key, (f"The best {column.title} is that of", column.title))


def _alone(found: Comparison) -> Iterator[Sentence]:
    """One run: its numbers."""
    yield [Name(found.runs[0]), " was scored on ", f"{found.inputs:,} test inputs of ", found.data, "."]
    for column in found.columns:
        cell = column.cells[0]
        if column.of is None and cell.value is not None and cell.low is not None:
            yield [f"{_capital(column.title)} is {cell.text} (95 % interval {cell.small})."]
    for column in _best_scores(found):
        cell = column.cells[0]
        if cell.value is not None:
            yield ["The AUROC against ", column.title, f" is {cell.text} (95 % interval {cell.small})."]
    yield from _size(found)


def _ranked(found: Comparison, column: Column, start: str, what: str) -> Sentence:
    """Which run is best at something, and which are within its interval; empty if fewer than two were measured."""
    best, same, others = ([Name(n) for n in _marked(found, column, mark)] for mark in ("best", "same", ""))
    if len(best) + len(same) + len(others) < 2:
        return []
    value = next(cell.text for cell in column.cells if cell.mark == "best")
    if not others:
        low, high = _ends(column)
        span = low if low == high else f"{low} to {high}"
        runs = "both runs" if len(best + same) == 2 else f"all {len(best + same)} runs"
        return [f"In {what} the 95 % intervals of {runs} overlap ({span})."]
    if same:
        return [f"{start} ", *listing(best), f" ({value}), with ", *listing(same), " within its interval."]
    return [f"{start} ", *listing(best), f" ({value}), its interval clear of all others."]


def _ood(found: Comparison) -> Iterator[Sentence]:
    """Which run spots out-of-distribution inputs best; where there are many sets, how often each is best."""
    columns = _best_scores(found)
    if len(columns) <= FEW_SETS:
        for column in columns:
            line = _ranked(found, column, f"Best at spotting {column.title} is", f"spotting {column.title}")
            if line:
                yield line
        return
    clear = [column for column in columns if not _marked(found, column, "same")]
    wins = {name: sum(name in _marked(found, column, "best") for column in clear) for name in found.runs}
    most = max(wins.values())
    if not most:
        yield [f"At spotting out-of-distribution inputs no run is clear of all others in any of {len(columns)} sets."]
        return
    first = [Name(name) for name, count in wins.items() if count == most]
    end = f", clear of all others in {most} of {len(columns)} sets."
    yield ["Best at spotting out-of-distribution inputs is ", *listing(first), end]


def _best_scores(found: Comparison) -> list[Column]:
    """A column for every set: the AUROC of each run by the score that is best for it, the best run marked."""
    names = dict.fromkeys(column.of[0] for column in found.columns if column.of is not None and column.of[0])
    return [_best_score(found, name) for name in names]


def _best_score(found: Comparison, name: str) -> Column:
    columns = [column for column in found.columns if column.of is not None and column.of[0] == name]
    cells = []
    for i in range(len(found.runs)):
        there = [(c.cells[i].value, c) for c in columns if c.cells[i].value is not None]
        _, best = max(there, key=lambda one: one[0] or 0.0, default=(None, columns[0]))
        text = f"{best.cells[i].text} {best.title}" if there else "-"
        cells.append(replace(best.cells[i], text=text, mark=""))
    return marked(replace(columns[0], title=name, cells=tuple(cells)))


def _size(found: Comparison) -> Iterator[Sentence]:
    column = found.column("parameters")
    if column is None:
        return
    cell = min(column.cells, key=lambda cell: cell.value or 0)
    small = [Name(name) for name, one in zip(found.runs, column.cells, strict=True) if one.value == cell.value]
    share = "" if cell.small == "plain" else f", {cell.small.removesuffix(' plain')} those of the plain network"
    if len(found.runs) == 1:
        yield [f"It has {cell.text} parameters{share}."]
    elif len(small) == len(found.runs):
        yield [f"Each has {cell.text} parameters{share}."]
    else:
        yield ["Smallest is ", *listing(small), f": {cell.text} parameters{share}."]


def _marked(found: Comparison, column: Column, mark: str) -> list[str]:
    pairs = zip(found.runs, column.cells, strict=True)
    return [name for name, cell in pairs if cell.value is not None and cell.mark == mark]


def _ends(column: Column) -> tuple[str, str]:
    cells: list[Cell] = [cell for cell in column.cells if cell.value is not None]
    cells.sort(key=lambda cell: cell.value or 0.0)
    return cells[0].text, cells[-1].text


def listing(names: Sequence[str]) -> Sentence:
    """Names as an English list.

    >>> "".join(listing(["a", "b", "c"]))
    'a, b and c'
    """
    between = [", "] * (len(names) - 2) + [" and "] * (len(names) > 1) + [""]
    return [piece for piece in chain(*zip(names, between, strict=True)) if piece]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
