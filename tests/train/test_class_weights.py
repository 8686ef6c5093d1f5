"""Class weights: against scikit-learn's, scaled to mean 1; in training, validation and runs."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from small_runs import blobs, plain_net, run
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn.data import Data, Part
from bnn.likelihoods import Categorical
from bnn.likelihoods.base import predictive_nll
from bnn.train import Recipe, run_recipe
from bnn.train.aside import set_aside
from bnn.train.class_weight_options import balanced

COUNTS = (12, 6, 2)


def labels() -> Tensor:
    return torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS))


def table(n: int = 20) -> Data:
    """A rare class, `c`."""
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return Data("rows", "classification", Part(x, labels()), classes=("a", "b", "c"))


def trained_weights(asked: Any, data: Any = None, **options: Any) -> list[float]:
    """Those of the likelihood that a run trained."""
    likelihood = run(plain_net(), table() if data is None else data, class_weights=asked, **options).likelihood
    return likelihood.class_weights.tolist()


def test_balanced_is_scikit_learns() -> None:
    y = labels().numpy()
    assert balanced(COUNTS) == pytest.approx(compute_class_weight("balanced", classes=np.arange(3), y=y))
    assert trained_weights("balanced") == pytest.approx(balanced(COUNTS))


def test_a_class_without_data_has_weight_1_and_the_mean_is_1() -> None:
    assert balanced([30, 0, 10]) == pytest.approx([2 / 3, 1.0, 2.0])


DICTS = [{"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 3}]
FORMS = [*DICTS, [1, 2, 3], (1.0, 2.0, 3.0), np.array([2, 4, 6]), torch.tensor([1, 2, 3])]


@pytest.mark.parametrize("asked", FORMS, ids=str)
def test_weights_are_scaled_to_mean_1_over_the_data(asked: Any) -> None:
    assert trained_weights(asked) == pytest.approx([20 / 30, 40 / 30, 60 / 30])  # 12 + 2 * 6 + 3 * 2 = 30 for 20 data


def test_pairs_take_indices() -> None:
    data = (table().train.x, labels())
    assert trained_weights({2: 3, 1: 2}, data) == pytest.approx([20 / 30, 40 / 30, 60 / 30])
    assert trained_weights("balanced", data) == pytest.approx(balanced(COUNTS))


def test_no_weights_is_no_likelihood_of_another_kind() -> None:
    assert run(plain_net(), table()).likelihood.class_weights is None


def test_weights_change_the_gradient_as_repeating_data_does() -> None:
    """Weight 2 for a class is each of its data twice, but for the scale: one step of full-batch SGD."""
    x, y = blobs(30)
    again = (torch.cat([x, x[y == 2]]), torch.cat([y, y[y == 2]]))
    one, other = plain_net(norm=False), plain_net(norm=False)
    options = {"epochs": 1, "batch_size": 1000, "optimiser": "sgd", "momentum": 0.0, "lr": 0.1}
    run(one, (x, y), class_weights=[1, 1, 2], **options)
    run(other, again, **options)
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(first, second)


def test_balanced_weights_find_the_rare_class() -> None:
    """Overlapping classes, 10 % and 90 %: without weights one answer for all, with them both classes alike."""
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(1000) % 10 == 0).long()
    x = torch.randn(1000, 2, generator=generator) + y[:, None] * 0.7
    found = {}
    for asked in (None, "balanced"):
        torch.manual_seed(0)
        net = nn.Linear(2, 2)
        run(net, (x, y), class_weights=asked, epochs=60, batch_size=100, lr=0.02)
        result = bnn.evaluate(net, (x, y), resamples=20)
        assert result.classes is not None
        found[asked] = (result.metrics["balanced_accuracy"].value, result.classes.results[1].recall)
    assert found[None][1] < 0.1
    assert found["balanced"][0] > found[None][0] + 0.1
    assert 0.5 < found["balanced"][1] < 0.9


def test_held_out_scores_weight_the_mean_over_draws() -> None:
    """w_y (-log mean_k p_k(y)), not -log mean_k p_k(y)^w."""
    outputs, y = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(1)), torch.arange(7) % 3
    weights = torch.tensor([0.5, 1.0, 4.0])
    p = outputs.softmax(-1).mean(0)[torch.arange(7), y]
    found = predictive_nll(Categorical(class_weights=weights), outputs, y)
    torch.testing.assert_close(found, (-p.log() * weights[y]).double())
    torch.testing.assert_close(predictive_nll(Categorical(), outputs, y), -p.log().double())


def test_held_out_scores_leave_out_what_does_not_count() -> None:
    outputs, y = torch.zeros(2, 3, 3), torch.tensor([0, -100, 2])
    found = predictive_nll(Categorical(class_weights=[1.0, 1.0, 2.0]), outputs, y)
    assert found.tolist() == pytest.approx([np.log(3), 0.0, 2 * np.log(3)])


def test_validation_is_weighted_and_evaluation_is_not() -> None:
    data, net = table(), plain_net(norm=False)
    history = run(net, data, class_weights=[1, 1, 5], validation=data.train)
    p = net.eval()(data.train.x).softmax(1)[torch.arange(20), labels()].detach()
    weights = history.likelihood.class_weights[labels()]
    assert history.epochs[-1]["validation_nll"] == pytest.approx(float((-p.log() * weights).mean()), rel=1e-5)
    plain = bnn.evaluate(net, (data.train.x, labels()), likelihood=history.likelihood, resamples=20)
    assert plain.metrics["nll"].value == pytest.approx(float(-p.log().mean()), rel=1e-5)


MISTAKES = [
    ("balance", ValueError, 'class weights must be "balanced"'),
    ([1, 2], ValueError, "2 weights were given, there are 3 classes, 'a', 'b', 'c'"),
    ({"d": 1}, ValueError, "there is no class 'd'"),
    ({"a": -1}, ValueError, "the weight of class 'a' must be a finite number, 0 or more; got -1"),
    ([1, float("nan"), 1], ValueError, "the weight of class 1 must be a finite number"),
    ({"a": "much"}, ValueError, "got 'much'"),
    ([0, 0, 0], ValueError, "0 for every class of the training data"),
    ({}, ValueError, "empty dict"),
    (3, TypeError, "class weights must be"),
]


@pytest.mark.parametrize(("asked", "kind", "message"), MISTAKES, ids=[str(one[0]) for one in MISTAKES])
def test_mistakes_show_before_training(asked: Any, kind: type[Exception], message: str) -> None:
    net = plain_net()
    before = [one.clone() for one in net.parameters()]
    with pytest.raises(kind, match=message):
        run(net, table(), class_weights=asked)
    assert all(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))


def test_where_there_can_be_none() -> None:
    x, y = blobs()
    with pytest.raises(ValueError, match="this is the likelihood gaussian, of regression"):
        run(plain_net(), (x, torch.randn(30, 3)), class_weights="balanced")
    with pytest.raises(ValueError, match="has class weights already"):
        run(plain_net(), (x, y), likelihood=Categorical([1.0, 1.0, 2.0]), class_weights="balanced")
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    with pytest.raises(ValueError, match="does not say"):
        run(plain_net(), loader, likelihood="categorical", class_weights="balanced")


def test_a_run_does_not_resume_with_other_weights(tmp_path: Path) -> None:
    run(plain_net(), table(), class_weights="balanced", out=tmp_path, epochs=1)
    with pytest.raises(ValueError, match="class weights: "):
        run(plain_net(), table(), class_weights=[1, 1, 2], out=tmp_path, epochs=2)
    history = run(plain_net(), table(), class_weights="balanced", out=tmp_path, epochs=2)
    assert len(history.epochs) == 2


def recipe(**more: Any) -> Recipe:
    schedule = {"epochs": 1, "batch_size": 10}
    made = {"data": {"name": "digits"}, "net": {"name": "fcn", "hidden": [8]}, "schedule": schedule} | more
    return Recipe.from_dict(made)


@pytest.mark.parametrize("asked", ["balanced", {"a": 1.0, "c": 4.0}, [1.0, 1.0, 3.0]], ids=str)
def test_recipes_hold_them_and_all_stages_have_them(asked: Any, tmp_path: Path) -> None:
    method = {"inference": "inducing", "inducing_rows": 2, "inducing_cols": 2}
    own = recipe(class_weights=asked, method=method, pretrain={"epochs": 1, "batch_size": 10})
    assert Recipe.from_dict(own.to_dict()) == own
    assert own.to_dict()["class_weights"] == asked
    done = run_recipe(own, tmp_path / "run", data=table(), progress=False, tensorboard=False)
    wanted = trained_weights(asked)
    assert done.likelihood.class_weights.tolist() == wanted
    assert bnn.open_run(tmp_path / "run").likelihood.class_weights.tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("asked", ["balance", {}, [], 5, {"a": -1.0}, [1.0, None]], ids=str)
def test_recipes_are_checked(asked: Any) -> None:
    with pytest.raises(ValueError, match="class weights"):
        recipe(class_weights=asked)


def test_a_recipe_with_an_unknown_class_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no class 'd'"):
        run_recipe(recipe(class_weights={"d": 2.0}), tmp_path / "run", data=table())
    assert not (tmp_path / "run").exists()


# ---- a class that has no row left ------------------------------------------------------------------------------------


def lonely() -> tuple[Tensor, Tensor]:
    """Inputs (200, 4) and labels, of which one is a 2."""
    y = torch.arange(200) % 2
    y[7] = 2
    return torch.randn(200, 4, generator=torch.Generator().manual_seed(0)), y


def seed_that_takes_it(x: Tensor, y: Tensor) -> int:
    """With which the guarantee of 60 rows has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return next(seed for seed in range(50) if 2 in set_aside((x, y), 60, seed)[1].y)


def test_balanced_weights_of_a_class_that_the_guarantee_took_are_finite() -> None:
    """It counts as 1, which nothing is weighted by; the others are balanced among themselves."""
    x, y = lonely()
    options = {"guarantee": 60, "seed": seed_that_takes_it(x, y), "class_weights": "balanced"}
    with pytest.warns(UserWarning, match="the data: classes of which all inputs were set aside for the guarantee"):
        history = run(plain_net(), (x, y), **options)
    weights = history.likelihood.class_weights
    assert weights.isfinite().all()
    left = set_aside_labels(x, y, options["seed"])
    assert weights[:2].tolist() == pytest.approx([len(left) / (2 * int((left == c).sum())) for c in range(2)])
    assert all(np.isfinite(value) for value in history.column("data"))


def set_aside_labels(x: Tensor, y: Tensor, seed: int) -> Tensor:
    """What is left to train on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        left: Tensor = set_aside((x, y), 60, seed)[0].y
    return left


def test_a_weight_for_a_class_without_rows_is_an_error() -> None:
    x, y = lonely()
    message = "there is a weight for class 2, of which the training data hold nothing, so that it would change nothing"
    with pytest.raises(ValueError, match=message):
        run(plain_net(), (x[:7], y[:7]), class_weights={2: 5})
    with pytest.warns(UserWarning, match="set aside for the guarantee"), pytest.raises(ValueError, match=message):
        run(plain_net(), (x, y), class_weights={2: 5}, guarantee=60, seed=seed_that_takes_it(x, y))
    found = run(plain_net(), (x[:7], y[:7]), class_weights=[1, 1, 5]).likelihood.class_weights
    assert found.tolist() == pytest.approx([1, 1, 5])  # in order each class has to have one


@pytest.mark.parametrize("weight", [None, "balanced", {"rare": 5}], ids=str)
def test_estimators_say_so_too(weight: Any) -> None:
    x, y = lonely()
    names = np.array(["a", "b", "rare"])[y.numpy()]
    model = bnn.BayesianClassifier(hidden=(4,), epochs=1, guarantee=60, class_weight=weight)
    for seed in range(50):
        model.set_params(random_state=seed)
        if "rare" in model._set_aside(x.numpy(), names)[2][1]:
            break
    warned = pytest.warns(UserWarning, match="X, y: classes of which all inputs were set aside .*: 'rare'")
    if isinstance(weight, dict):
        refused: Any = pytest.raises(
            ValueError, match="weight for class 'rare', of which the training data hold nothing"
        )
    else:
        refused = contextlib.nullcontext()
    with warned, refused:
        model.fit(x.numpy(), names)
    if not isinstance(weight, dict):
        assert np.isfinite(model.predict_proba(x.numpy())).all()
