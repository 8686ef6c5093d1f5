"""Inputs the network is most and least certain about, to look at."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bnn import plots
from bnn._common.extras import need
from bnn.evaluation.pieces import Example, Examples
from bnn.metrics import written
from bnn.report.entry import Entry
from bnn.report.sections.picture import slug

MOST, LEAST = 8, 3  # inputs in a strip
COLUMNS = 8  # of a table's row
BUDGET = 600_000  # letters of all pictures together: a page stays small enough to send

CERTAIN = (
    "The test inputs with the smallest total uncertainty, most certain first: an error (✗) among them is a costly one."
)
UNCERTAIN = "The test inputs with the largest total uncertainty, the least sure first: mistakes (✗) belong here."
OUTSIDE = "Inputs of {} with the smallest total uncertainty: unlike the training data, so a sure answer is dangerous."
CERTAIN_REAL = "The test inputs with the narrowest predictions, most certain first: the truth should lie close to each."
UNCERTAIN_REAL = "The test inputs with the widest predictions, the least sure first: the truth may lie far from these."


@dataclass(frozen=True)
class Card:
    """One input as it is shown.

    Args:
        place: which input of its set it is.
        prediction, truth: what the network says, and what is true ("" where nothing is).
        sure: how sure the network is, in words and numbers: the probability, or one standard deviation.
        uncertainty: total, and how much of it is epistemic.
        right: None where there is no right or wrong.
        picture: a PNG in base64, or None.
        values: the first columns of a row of a table.
    """

    place: str
    prediction: str
    truth: str
    sure: str
    uncertainty: str
    right: bool | None
    picture: str | None
    values: str = ""


@dataclass(frozen=True)
class Strip:
    """Some inputs in a row, and the one sentence that says what they are."""

    run: str
    key: str
    title: str
    how: str
    cards: tuple[Card, ...]
    measure: str = "probability"  # what `sure` of the cards is
    parts: str = "total uncertainty"  # what `uncertainty` of the cards is

    @property
    def images(self) -> bool:
        """Whether every input has a picture."""
        return all(card.picture is not None for card in self.cards)


def strips(entries: Sequence[Entry]) -> list[Strip]:
    """All strips, shortened together until their pictures fit the budget."""
    found = [strip for entry in entries for strip in _of(entry)]
    for n in range(MOST, LEAST - 1, -1):
        short = [replace(strip, cards=strip.cards[:n]) for strip in found]
        if sum(len(card.picture or "") for strip in short for card in strip.cards) <= BUDGET:
            break
    return short if found else []


def _of(entry: Entry) -> Iterator[Strip]:
    evaluation, name = entry.evaluation, slug(entry.name)
    real = evaluation.task == "regression"
    about = ("one sd", "sd of the noise, and of the network") if real else ("probability", "total uncertainty")
    if evaluation.examples is not None and _telling(evaluation.examples, real):
        least, most = (UNCERTAIN_REAL, CERTAIN_REAL) if real else (UNCERTAIN, CERTAIN)
        parts = (("uncertain", "Least sure", least), ("certain", "Surest", most))
        for part, title, how in parts:
            cards = _cards(getattr(evaluation.examples, part), real)
            if cards:
                yield Strip(entry.name, f"{part}-{name}", f"{title} of the test inputs", how, cards, *about)
    for place, one in evaluation.ood.items():
        if one.examples is not None and one.examples.certain and _telling(one.examples, real):
            cards = _cards(one.examples.certain, real)
            key = f"most-certain-{slug(place)}-{name}"
            yield Strip(entry.name, key, f"Surest about {place}", OUTSIDE.format(place), cards, *about)


def _telling(examples: Examples, real: bool) -> bool:
    """Whether some inputs are less sure than others: of real targets, one noise for all leaves nothing to show."""
    totals = [one.total for one in (*examples.certain, *examples.uncertain)]
    return bool(totals) and (not real or max(totals) > (1 + 1e-6) * min(totals))


def _cards(examples: Sequence[Example], real: bool) -> tuple[Card, ...]:
    return tuple(_card(example, real) for example in examples)


def _card(example: Example, real: bool) -> Card:
    if real:
        sure = f"± {_each(example, 'total')}"
    else:
        sure = "" if example.probability is None else written.probability(example.probability)
    right = None if real or example.target is None else example.target == example.prediction
    return Card(
        place=str(example.index),
        prediction=example.prediction,
        truth=example.target or "",
        sure=sure,
        uncertainty=_uncertainty(example, real),
        right=right,
        picture=example.picture,
        values=_values(example),
    )


def _values(example: Example) -> str:
    """The first columns of a row."""
    shown = [f"{name} {value or 'missing'}" for name, value in list(example.values.items())[:COLUMNS]]
    return ", ".join([*shown, *(["…"] if len(example.values) > COLUMNS else [])])


def _uncertainty(example: Example, real: bool) -> str:
    if real:
        return f"{_each(example, 'aleatoric')}, {_each(example, 'epistemic')}"
    return f"entropy {written.figures(example.total, 2)}"


def _each(example: Example, kind: str) -> str:
    """A standard deviation; of several targets that of each, as their predictions are written."""
    return "; ".join(written.figures(getattr(one, kind)) for one in example.each or (example,))


def figures(entries: Sequence[Entry]) -> Iterator[tuple[str, Any]]:
    """The strips that have pictures, each as a figure of matplotlib with its key."""
    matplotlib_figure, image = need("matplotlib.figure", "plots"), need("matplotlib.image", "plots")
    taken: dict[str, int] = {}
    for strip in strips(entries):
        if not strip.images:
            continue
        figure = matplotlib_figure.Figure(figsize=(0.95 * len(strip.cards) + 0.2, 1.9))
        arrays = [image.imread(io.BytesIO(base64.b64decode(card.picture or "")), format="png") for card in strip.cards]
        plots.pictures(figure, [_opaque(array) for array in arrays], [caption(card) for card in strip.cards])
        figure.suptitle(f"{strip.run}: {strip.title}")
        taken[strip.key] = taken.get(strip.key, 0) + 1
        yield strip.key if taken[strip.key] == 1 else f"{strip.key}-{taken[strip.key]}", figure


def caption(card: Card) -> str:
    """A card in words."""
    truth = f", truly {card.truth}" if card.right is False else ""
    wrong = "✗ " if card.right is False else ""
    return f"{wrong}{card.prediction} {card.sure}{truth}"


def _opaque(array: Any) -> Any:
    return array[..., :3] if array.ndim == 3 and array.shape[2] == 4 else array
