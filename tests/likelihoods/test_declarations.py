"""What likelihoods say about themselves is all that the rest of the library knows about them."""

from __future__ import annotations

import ast
import json
import math
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnn
from bnn import likelihoods
from bnn.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, registry
from bnn.likelihoods.base import fitting_targets, predictive_nll
from bnn.train.monitor import Scores
from bnn.train.step import Tally

PACKAGE = pathlib.Path(bnn.__file__).parent
ALL = likelihoods.names()


@pytest.fixture(autouse=True)
def same_likelihoods():
    """Forgets the likelihoods that a test defines."""
    before = dict(registry._REGISTERED)
    yield
    registry._REGISTERED.clear()
    registry._REGISTERED.update(before)


def test_the_names() -> None:
    assert ALL == ["bernoulli", "categorical", "gaussian", "heteroscedastic"]
    assert likelihoods.names("classification") == ["categorical"]
    assert likelihoods.names("regression") == ["gaussian", "heteroscedastic"]
    assert all(registry.class_of(name).name == name for name in ALL)


def test_names_import_no_torch() -> None:
    code = f"""
import sys, types
bnn = types.ModuleType("bnn")  # the package without its own __init__
bnn.__path__ = [{str(PACKAGE)!r}]
sys.modules["bnn"] = bnn
from bnn import likelihoods
assert likelihoods.names() == {ALL}, likelihoods.names()
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def asked_by_class(path: pathlib.Path) -> list[int]:
    """Lines with `isinstance(..., Gaussian)` or a comparison with the name of a likelihood."""
    classes, lines = {"Bernoulli", "Categorical", "Gaussian", "HeteroscedasticGaussian"}, []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            asked = {getattr(part, "attr", getattr(part, "id", None)) for part in ast.walk(node.args[1])}
            lines += [node.lineno] if asked & classes else []
        if isinstance(node, ast.Compare):
            words = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
            lines += [node.lineno] if words & set(ALL) else []
    return lines


def test_nobody_asks_for_the_class_of_a_likelihood() -> None:
    found = {str(path.relative_to(PACKAGE)): asked_by_class(path) for path in PACKAGE.rglob("*.py")}
    assert not {path: lines for path, lines in found.items() if lines}


def test_points_are_predictions_of_one_draw() -> None:
    for one, output in (
        (Categorical(), torch.randn(5, 3)),
        (Bernoulli(), torch.randn(5, 3)),
        (Gaussian(0.5), torch.randn(5, 2)),
        (HeteroscedasticGaussian(), torch.randn(5, 4)),
    ):
        torch.testing.assert_close(one.point(output), one.predictive(output[None])[0])


@pytest.mark.parametrize(
    "one",
    [
        Categorical(class_weights=[1.0, 2.0, 0.5], ignore_index=1, label_smoothing=0.1),
        Bernoulli(pos_weight=[1.0, 3.0, 2.0]),
        Gaussian(sd=0.3),
        Gaussian(sd=0.3, learn=False),
        HeteroscedasticGaussian(min_sd=0.2),
        *(likelihoods.get(name) for name in ALL),
    ],
)
def test_records_read_back(one: Any) -> None:
    stored = json.loads(json.dumps(likelihoods.record(one)))
    read = likelihoods.from_record(stored)
    assert type(read) is type(one)
    assert likelihoods.record(read).keys() == stored.keys()
    assert repr(read) == repr(one)
    outputs = torch.randn(4, 6, 4 if one.name == "heteroscedastic" else 3)
    for part, want in zip(read.predictive(outputs), one.predictive(outputs), strict=True):
        torch.testing.assert_close(part, want)


def test_records_of_earlier_versions_read_back() -> None:
    read = likelihoods.from_record({"name": "gaussian", "sd": 0.7})
    assert isinstance(read, Gaussian)
    assert read.sd().item() == pytest.approx(0.7)
    for name in ("categorical", "bernoulli", "heteroscedastic"):
        assert likelihoods.record(likelihoods.from_record({"name": name, "sd": None})) == likelihoods.record(
            likelihoods.get(name)
        )
    assert likelihoods.from_record({"name": None, "sd": None}) is None


def test_what_was_learned_reads_back_to_the_bit() -> None:
    one = Gaussian()
    with torch.no_grad():
        one._sd.fill_(0.1234567)
    read = likelihoods.from_record(json.loads(json.dumps(likelihoods.record(one))))
    assert torch.equal(read._sd, one._sd)
    stored = likelihoods.record(one)
    for learned in ({"_other": 1.0}, {"_sd": [1.0, 2.0]}, {"_sd": 1.0, "_other": 1.0}):
        with pytest.raises(ValueError, match=r"the likelihood 'gaussian' learns \['_sd', '_tails'\], got"):
            likelihoods.from_record(stored | {"learned": learned})


def test_a_function_has_a_record_without_a_name() -> None:
    assert likelihoods.record(F.cross_entropy) == {"name": None}
    assert likelihoods.from_record({"name": None}) is None


def test_noise_learned_apart_is_pooled() -> None:
    sds = [0.5, 1.0, 2.0]
    pooled = Gaussian(0.5).pooled([Gaussian(sd) for sd in sds])
    assert pooled.sd().item() ** 2 == pytest.approx(sum(sd**2 for sd in sds) / 3)
    plain = Categorical()
    assert likelihoods.record(plain.pooled([plain, Categorical()])) == likelihoods.record(plain)


class Scaled(Likelihood):
    """Absolute errors in units of a learned scale; not registered."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return ((output - target).abs() / self.scale).flatten(1).sum(1)


def test_parameters_are_pooled_by_their_mean() -> None:
    noises = [Scaled(1.0), Scaled(4.0)]
    assert noises[0].pooled(noises).scale.item() == 2.5
    assert noises[0].scale.item() == 1.0


def test_one_without_a_name_says_nothing_and_trains() -> None:
    net, x = nn.Linear(2, 1), torch.randn(20, 2)
    history = bnn.fit(net, (x, x.sum(1, keepdim=True)), epochs=1, likelihood=Scaled(), validation=(x, x[:, :1]))
    assert "validation_nll" in history.epochs[0]
    assert "rmse" not in history.epochs[0]


def test_unfinished_and_duplicate_likelihoods_are_refused() -> None:
    with pytest.raises(TypeError, match="'unfinished' is unfinished: Unfinished must define predictive, point"):

        class Unfinished(Scaled):
            name = "unfinished"
            task = "regression"

    with pytest.raises(TypeError, match=r"Wrong.task must be one of .*, got 'sorting'"):

        class Wrong(Gaussian):
            name = "wrong"
            task = "sorting"

    with pytest.raises(TypeError, match=r"there is a likelihood 'gaussian' already, bnn.likelihoods.gaussian.Gaussian"):

        class Again(Gaussian):
            name = "gaussian"

    assert likelihoods.names() == ALL


def test_the_same_definition_twice_is_a_cell_run_again() -> None:
    for _ in range(2):

        class Own(Gaussian):
            name = "own"

    assert "own" in likelihoods.names("regression")


def test_an_unknown_name_suggests() -> None:
    with pytest.raises(
        ValueError, match=r"unknown likelihood 'gausian' \(did you mean 'gaussian'\?\); expected one of"
    ):
        likelihoods.get("gausian")


def test_by_name_a_learned_noise_is_not_the_trained_one() -> None:
    assert [name for name in ALL if likelihoods.get(name).learns] == ["gaussian"]  # type: ignore[attr-defined]
    net, x = nn.Linear(2, 1), torch.randn(6, 2)
    with pytest.warns(UserWarning, match="'gaussian' by name is untrained"):
        bnn.predict(net, x, 0, "gaussian")


def test_targets_fit_what_the_likelihood_says() -> None:
    y = torch.randn(4)
    assert fitting_targets(y, torch.zeros(4, 1), Gaussian()).shape == (4, 1)
    assert fitting_targets(y, torch.zeros(4, 2), HeteroscedasticGaussian()).shape == (4, 1)
    assert fitting_targets(y, torch.zeros(4, 2), Gaussian()).shape == (4,)
    labels = torch.zeros(4, 1, dtype=torch.long)
    assert fitting_targets(labels, torch.zeros(4, 3), Categorical()).shape == (4,)
    assert fitting_targets(labels, torch.zeros(4, 1), Bernoulli()).shape == (4, 1)
    assert fitting_targets(labels, torch.zeros(4, 3), F.cross_entropy).shape == (4, 1)


def test_scores_of_batches_add_up() -> None:
    """Batch by batch, and as sums of two processes: what all data at once give."""
    outputs, y = torch.randn(5, 40, 3), torch.randint(3, (40,))
    whole, first, second = (Scores(Categorical()) for _ in range(3))
    whole.add(outputs, y)
    first.add(outputs[:, :25], y[:25])
    second.add(outputs[:, 25:], y[25:])
    found = whole.summary()
    assert first.summary(first.values() + second.values()) == pytest.approx(found)
    probs = outputs.softmax(2).mean(0)
    assert found["nll"] == pytest.approx(bnn.metrics.nll(probs, y), abs=1e-6)
    assert found["accuracy"] == pytest.approx(bnn.metrics.accuracy(probs, y))
    assert found["ece"] == pytest.approx(bnn.metrics.ece(probs, y), abs=1e-6)


def test_scores_of_real_targets() -> None:
    outputs, y = torch.randn(5, 40, 4), torch.randn(40, 2)
    one = HeteroscedasticGaussian()
    scores = Scores(one)
    scores.add(outputs, y)
    means, sds = (part.double() for part in one.components(outputs))
    log_p = torch.distributions.Normal(means, sds).log_prob(y).sum(2).logsumexp(0) - math.log(5)
    assert scores.summary() == pytest.approx(
        {"nll": -log_p.mean().item(), "rmse": bnn.metrics.rmse(means.mean(0), y)}, abs=1e-5
    )
    torch.testing.assert_close(predictive_nll(one, outputs, y), -log_p, atol=1e-5, rtol=1e-5)


def test_ignored_positions_do_not_count() -> None:
    tally, output = Tally(), torch.tensor([[9.0, 0.0], [9.0, 0.0], [9.0, 0.0]])
    tally.add_outputs(Categorical(ignore_index=1), [(output, torch.tensor([0, 1, 1]))])
    assert tally.quality()["accuracy"] == 1.0
    assert Tally().quality() == {}
