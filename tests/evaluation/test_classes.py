"""What an evaluation knows about each class: numbers counted by hand, the table, the sentence, the file."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import bnn
from bnn.data import Data, Part
from bnn.evaluation import Evaluation
from bnn.evaluation.classes import classes_of, never_said, said, shown_results
from bnn.evaluation.result import class_lines
from bnn.likelihoods import Categorical


def sure(answers: list[int], classes: int) -> np.ndarray:
    """Probabilities of 0.7 for the answer, and the rest for all others alike."""
    rest = 0.3 / (classes - 1)
    return np.full((len(answers), classes), rest) + (0.7 - rest) * np.eye(classes)[answers]


# truth: 6 a, 3 b, 1 c; answers: one b and the c are taken for a
TRUTH, ANSWERS = [0] * 6 + [1] * 3 + [2], [0] * 6 + [1, 1, 0] + [0]
SMALL = classes_of(sure(ANSWERS, 3), np.array(TRUTH), ("a", "b", "c"))


def test_numbers_are_those_counted_by_hand() -> None:
    a, b, c = SMALL.results
    assert SMALL.confusion == ((6, 0, 0), (1, 2, 0), (1, 0, 0))
    assert (a.name, a.inputs, a.predicted, a.precision, a.recall) == ("a", 6, 8, 0.75, 1.0)
    assert a.f1 == pytest.approx(12 / 14)
    assert (b.inputs, b.predicted, b.precision, b.recall) == (3, 2, 1.0, pytest.approx(2 / 3))
    assert (c.inputs, c.predicted, c.recall, c.f1) == (1, 0, 0.0, 0.0)
    assert np.isnan(c.precision)
    assert [one.probability for one in SMALL.results] == pytest.approx([0.59, 0.26, 0.15])
    assert [(one.true, one.predicted, one.inputs, one.share) for one in SMALL.mistakes] == [
        ("b", "a", 1, pytest.approx(1 / 3)),
        ("c", "a", 1, 1.0),
    ]


def test_a_class_that_is_never_predicted_is_named() -> None:
    text = never_said(SMALL)
    assert text is not None
    assert text.startswith("'c' (10 % of the test inputs) is never predicted: train with --class-weights balanced")
    assert "--probs" in text
    assert text in class_lines(SMALL)
    assert never_said(SMALL, advice=False) == "'c' (10 % of the test inputs) is never predicted"
    assert never_said(classes_of(sure([0, 1], 2), np.array([1, 0]), ("a", "b"))) is None
    assert never_said(classes_of(sure([0, 1], 3), np.array([1, 0]), ("a", "b", "c"))) is None  # no input is of c


def test_many_classes_are_counted() -> None:
    truth = np.arange(200) % 40
    found = classes_of(sure([0] * 200, 40), truth, ())
    text = never_said(found, "validation inputs")
    assert text is not None
    assert text.startswith("'1' (2.5 % of the validation inputs), '2' (2.5 % of the validation inputs), '3' (2.5 %")
    assert " and 36 more classes are never predicted" in text
    results = shown_results(found)
    assert [one.name for one in results] == [str(i) for i in range(1, 9)]  # the worst: those of recall 0
    assert "  (8 of 40 classes, those that are found least often)" in class_lines(found)


def test_matrices_of_very_many_classes_are_left_out() -> None:
    labels = np.arange(300) % 150
    found = classes_of(sure(((labels + 1) % 150).tolist(), 150), labels, ())
    assert found.confusion == ()
    assert len(found.results) == 150
    assert len(found.mistakes) == 20
    assert found.mistakes[0].share == 1.0


@pytest.mark.parametrize(
    ("counts", "unequal"), [((10, 10), False), ((14, 10), False), ((15, 10), True), ((9, 0), False)]
)
def test_unequal_is_half_as_frequent_again(counts: tuple[int, int], unequal: bool) -> None:
    labels = np.repeat([0, 1], counts)
    assert classes_of(sure(labels.tolist(), 2), labels, ()).unequal is unequal


def test_class_weights_are_said() -> None:
    likelihood = Categorical(class_weights=[0.5, 1.0, 6.0])
    found = classes_of(sure(ANSWERS, 3), np.array(TRUTH), ("a", "b", "c"), likelihood)
    never, weights = said(found)
    assert "larger class weights for it" in never
    assert "the largest is 6, of 'c'" in weights
    assert "no temperature undoes" in weights
    same = classes_of(sure(ANSWERS, 3), np.array(TRUTH), (), Categorical(class_weights=[2.0, 2.0, 2.0]))
    assert same.weights == ()


def evaluation() -> Evaluation:
    """Of a network that always answers with the first of two classes."""
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor([2.0, 0.0]))
    y = torch.tensor([0] * 9 + [1])
    part = Part(torch.randn(10, 2), y)
    return bnn.evaluate(net, Data("churn", "classification", part, test=part, classes=("nein", "ja")), resamples=20)


def test_evaluations_carry_classes() -> None:
    found = evaluation()
    assert found.classes is not None
    assert found.classes.confusion == ((9, 0), (1, 0))
    assert found.metrics["balanced_accuracy"].value == 0.5
    assert found.about_classes == [never_said(found.classes)]
    assert "'ja' (10 % of the test inputs) is never predicted" in found.table()
    assert Evaluation.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_older_files_have_none() -> None:
    stored = evaluation().to_dict()
    del stored["classes"], stored["metrics"]["balanced_accuracy"]
    found = Evaluation.from_dict(stored)
    assert found.classes is None
    assert found.about_classes == []
    assert "precision" not in found.table()


def test_real_targets_have_none() -> None:
    x = torch.randn(20, 3)
    found = bnn.evaluate(nn.Linear(3, 1), (x, x[:, :1]), likelihood=bnn.likelihoods.Gaussian(sd=1.0), resamples=20)
    assert found.classes is None
