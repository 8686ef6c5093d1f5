"""scikit-learn's own checks, and ours: units, coverage, rows apart, files."""

from __future__ import annotations

import copy
import json
import math
import pathlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from torch import nn

import bnn
from bnn import BayesianClassifier, BayesianRegressor
from bnn._conversion.methods import METHODS, get
from bnn.functional.noise import tails
from bnn.train import defaults
from bnn.train.converted_stage import CLOSE

QUICK: dict[str, Any] = {"hidden": (16,), "epochs": 40, "lr": 0.05, "batch_size": 300}
FAST_CHECKS = {
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_estimator_sparse_tag",
    "check_estimators_unfitted",
    "check_mixin_order",
    "check_fit2d_predict1d",
    "check_methods_subset_invariance",
    "check_estimators_pickle",
    "check_classifiers_one_label",
    "check_regressor_multioutput",
}


def cheap() -> Iterator[Any]:
    for kind in (BayesianClassifier, BayesianRegressor):
        for estimator, check in estimator_checks_generator(kind(hidden=(4,), epochs=2)):
            name = getattr(check, "func", check).__name__
            if name in FAST_CHECKS:
                yield pytest.param(estimator, check, id=f"{kind.__name__}-{name}")


@pytest.mark.slow
@parametrize_with_checks([BayesianClassifier(**QUICK), BayesianRegressor(**QUICK)])  # none is expected to fail
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(("estimator", "check"), list(cheap()))
def test_some_of_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def classes(n: int = 60) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(n, 3))
    return x, np.where(x[:, 0] + x[:, 1] > 0, "spam", "ham")


def line(n: int = 64, noise: float = 0.5) -> tuple[Any, Any]:
    """y = 3 x + noise, on a grid of 2^-10: sums of y, and y plus an integer, are exact in float64."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, size=(n, 1))
    return x, np.round((3 * x[:, 0] + noise * generator.normal(size=n)) * 2**10) / 2**10


OLD = ["inducing", "ffg", "fcg", "ensemble"]  # words of earlier versions


@pytest.mark.parametrize("method", [*METHODS, "inducing"])
def test_every_method_learns_and_predicts_rows_apart(method: str) -> None:
    """Any rows together, in any number: the same predictions, to the rounding of float64."""
    x, y = classes()
    epochs, lr = (300, 0.02) if method.startswith("fcg") else (60, 0.05)  # a covariance takes its time
    model = BayesianClassifier(hidden=(8,), method=method, members=3, epochs=epochs, lr=lr, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.9
    whole = model.predict_dist(x)
    by_row = np.concatenate([model.predict_proba(row[None]) for row in x])
    np.testing.assert_allclose(by_row, whole.probs, rtol=1e-9)
    np.testing.assert_allclose(whole.probs.sum(1), 1)
    np.testing.assert_allclose(whole.total, whole.aleatoric + whole.epistemic, atol=1e-12)
    entropy = -(whole.probs * np.log(whole.probs)).sum(1)
    np.testing.assert_allclose(whole.total, entropy, rtol=1e-9)
    if method == "deterministic":
        assert np.all(whole.epistemic == 0)
    else:
        assert whole.epistemic.max() > 1e-4


def test_random_state_decides_everything_and_the_global_generators_are_left_alone() -> None:
    x, y = classes()
    probs = []
    for place, seed in enumerate((0, 0, 1)):
        torch.manual_seed(place)
        before = torch.get_rng_state()
        probs.append(BayesianClassifier(**QUICK, random_state=seed).fit(x, y).predict_proba(x))
        assert torch.equal(torch.get_rng_state(), before)
    one, same, other = probs
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)


def test_own_units_are_exact() -> None:
    """Targets times 2^10, plus 10^6: predictions likewise, since the network sees the same numbers."""
    x, y = line()
    plain, moved = (BayesianRegressor(**QUICK, random_state=0).fit(x, z) for z in (y, 2**10 * y + 10**6))
    p, q = plain.predict_dist(x), moved.predict_dist(x)
    for part in ("mean", "lower", "upper"):
        np.testing.assert_allclose(getattr(q, part), 2**10 * getattr(p, part) + 10**6, rtol=1e-12)
    for part in ("sd", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(q, part), 2**10 * getattr(p, part), rtol=1e-9)
    np.testing.assert_allclose(p.sd**2, p.aleatoric**2 + p.epistemic**2)
    np.testing.assert_array_equal(p.mean, plain.predict(x))


def test_positive_targets_are_lognormal(tmp_path: pathlib.Path) -> None:
    """Trained on log y, the same network, but for tails; moments and quantiles are those of the lognormal mixture."""
    x, y = line()
    own, logs = (
        BayesianRegressor(**QUICK, positive=True, random_state=0).fit(x, np.exp(y)),
        BayesianRegressor(**QUICK, random_state=0).fit(x, np.log(np.exp(y))),
    )
    means, sds = (torch.from_numpy(model._components(x)[i][:, :, 0]) for i, model in enumerate((logs, own)))
    assert own.likelihood_.df() == math.inf
    each = torch.distributions.LogNormal(means, sds)
    p = own.predict_dist(x, level=0.8)
    np.testing.assert_allclose(p.mean, each.mean.mean(0))
    np.testing.assert_allclose(p.aleatoric, each.variance.mean(0).sqrt())
    np.testing.assert_allclose(p.epistemic, each.mean.std(0, correction=0))
    for end, level in ((p.lower, 0.1), (p.upper, 0.9)):
        np.testing.assert_allclose(each.cdf(torch.from_numpy(end)).mean(0), level, atol=1e-9)
    assert (p.lower > 0).all()
    np.testing.assert_array_equal(own.predict(x), p.mean)
    own.save(tmp_path / "model")
    again = BayesianRegressor.load(tmp_path / "model")
    assert again.positive
    np.testing.assert_array_equal(again.predict(x), p.mean)
    with pytest.raises(ValueError, match=r"y: positive=True takes targets above 0, and \d+ rows have others: row"):
        BayesianRegressor(**QUICK, positive=True).fit(x, y)


def test_the_interval_holds_its_share_of_the_mixture() -> None:
    """By 4000 targets per input drawn from the mixture: within 4 standard errors, 4 sqrt(0.8 0.2 / 4000) = 0.025."""
    x, y = line(16)
    model = BayesianRegressor(**QUICK, random_state=0).fit(x, y)
    p = model.predict_dist(x, level=0.8)
    means, sds = (np.repeat(part[:, :, 0], 200, 0) for part in model._components(x))
    probabilities, scales = tails(model.likelihood_.df())
    rng = np.random.default_rng(0)
    draws = rng.normal(means, sds * rng.choice(scales, p=probabilities, size=means.shape))  # (4000, N)
    assert np.abs(((p.lower <= draws) & (draws <= p.upper)).mean(0) - 0.8).max() < 0.025
    assert p.level == 0.8


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["constant", "varying"])
def test_intervals_cover_new_targets(noise: str) -> None:
    """y = 3 x + noise of known sd, 400 points: 90 % intervals cover 2000 new targets in 85 to 97 % of cases."""
    generator = np.random.default_rng(1)

    def sample(n: int) -> tuple[Any, Any, Any]:
        x = generator.uniform(-1, 1, size=(n, 1))
        sd = 0.5 * np.ones(n) if noise == "constant" else np.exp(1.5 * x[:, 0] - 1)
        return x, 3 * x[:, 0] + sd * generator.normal(size=n), sd

    x, y, _ = sample(400)
    new, targets, sd = sample(2000)
    p = BayesianRegressor(noise=noise, hidden=(16,), random_state=0).fit(x, y).predict_dist(new, level=0.9)
    assert 0.85 < np.mean((p.lower <= targets) & (targets <= p.upper)) < 0.97
    assert (
        np.corrcoef(np.log(p.aleatoric), np.log(sd))[0, 1] > 0.9 if noise == "varying" else np.ptp(p.aleatoric) < 1e-9
    )
    np.testing.assert_allclose(p.aleatoric.mean(), sd.mean(), rtol=0.25)


@pytest.mark.slow
def test_several_targets_have_noise_and_units_of_their_own() -> None:
    x, y = line(200, noise=0.1)
    both = np.stack([y, 1e4 + 100 * np.random.default_rng(1).normal(size=200)], 1)
    p = BayesianRegressor(hidden=(16,), epochs=150, lr=0.03, random_state=0).fit(x, both).predict_dist(x)
    assert p.mean.shape == p.lower.shape == (200, 2)
    assert p.aleatoric[0, 0] < 0.3  # the line is explained,
    assert 60 < p.aleatoric[0, 1] < 140  # the noise is not
    assert abs(p.mean[:, 1].mean() - 1e4) < 30


def test_pipelines_searches_and_scores() -> None:
    x, y = classes(40)
    model = BayesianClassifier(hidden=(4,), epochs=10, random_state=0)
    assert cross_val_score(make_pipeline(StandardScaler(), model), x, y, cv=2).shape == (2,)
    search = GridSearchCV(model, {"kl_weight": [0.1, 1.0]}, cv=2, scoring="neg_log_loss", error_score="raise").fit(x, y)
    assert search.best_params_["kl_weight"] in (0.1, 1.0)
    assert len({round(score, 9) for score in search.cv_results_["mean_test_score"]}) == 2  # the weight matters


def test_patience_keeps_the_best_epoch() -> None:
    x, y = line(100)
    model = BayesianRegressor(hidden=(8,), epochs=200, lr=0.1, patience=2, validation_fraction=0.2, random_state=0)
    model.fit(x, y)
    assert model.n_iter_ == len(model.history_) < 200
    nlls = [epoch["validation_nll"] for epoch in model.history_]
    assert int(np.argmin(nlls)) == model.n_iter_ - 3


def test_a_network_of_ones_own() -> None:
    """A module is copied and trained on from its weights; a function is asked for one."""
    x, y = classes()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    before = copy.deepcopy(net.state_dict())
    model = BayesianClassifier(network=net, epochs=1, lr=1e-9, method="deterministic", scale=False).fit(x, y)
    want = net(torch.from_numpy(x).float()).softmax(1).detach().numpy()
    np.testing.assert_allclose(model.predict_proba(x), want, atol=1e-5)
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())
    made = clone(BayesianClassifier(network=nn.Linear, epochs=1)).fit(x, y).network_
    assert "Inducing" in type(made).__name__


@pytest.mark.parametrize("method", [*METHODS, *OLD])
def test_files_bring_back_the_same_predictions(method: str, tmp_path: pathlib.Path) -> None:
    x, y = line(32)
    path = tmp_path / "model.safetensors"
    model = BayesianRegressor(hidden=(4,), method=method, members=2, epochs=2, random_state=np.int64(3)).fit(x, y)
    model.save(path)
    again = BayesianRegressor.load(path)
    for part in ("mean", "sd", "lower"):
        np.testing.assert_array_equal(getattr(again.predict_dist(x), part), getattr(model.predict_dist(x), part))
    assert again.get_params() == model.get_params()
    pickled = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(pickled.predict(x), model.predict(x))
    plain = bnn.nn.nets.FCN([1, 4, 1])
    bnn.load_(bnn.Ensemble(plain, 2) if get(method).networks > 1 else plain, path)  # it is a file of bnn.save, too


@pytest.mark.parametrize("labels", [["a", "b"], [3, 7], [False, True], [0.0, 1.0]])
def test_files_keep_classes_and_names(labels: list[Any], tmp_path: pathlib.Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(10, 2)), np.array(labels)[np.arange(10) % 2]
    model = BayesianClassifier(hidden=(4,), epochs=1, options={"max_lamda": 0.1}).fit(x, y)
    model.feature_names_in_ = np.array(["height", "weight"], dtype=object)
    model.save(tmp_path / "model.safetensors")
    again = BayesianClassifier.load(tmp_path / "model.safetensors")
    assert again.classes_.dtype == model.classes_.dtype
    assert again.classes_.tolist() == model.classes_.tolist() == sorted(labels)
    assert again.feature_names_in_.tolist() == ["height", "weight"]
    assert again.options == {"max_lamda": 0.1}


def test_files_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    x, y = line(8)
    path = tmp_path / "model.safetensors"
    BayesianRegressor(network=nn.Linear(1, 1), epochs=1).fit(x, y).save(path)
    with pytest.raises(ValueError, match=r"holds a BayesianRegressor: use BayesianRegressor\.load"):
        BayesianClassifier.load(path)
    with pytest.raises(ValueError, match=r"pass the same one, load\(path, network="):
        BayesianRegressor.load(path)
    with pytest.raises(ValueError, match=r"network must turn \(N, 1\) into \(N, 1\)"):
        BayesianRegressor.load(path, network=nn.Linear(1, 2))
    assert BayesianRegressor.load(path, network=nn.Linear).predict(x).shape == (8,)
    bnn.save(nn.Linear(1, 1), path)
    with pytest.raises(bnn.FileFormatError, match=r"holds no estimator; bnn\.load_ reads"):
        BayesianRegressor.load(path)
    path.write_text(json.dumps({}))
    with pytest.raises(bnn.FileFormatError, match="not a safetensors file, or was cut short"):
        BayesianRegressor.load(path)
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        BayesianRegressor.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="create it first"):
        BayesianRegressor(epochs=1, hidden=(2,)).fit(x, y).save(tmp_path / "no" / "model")


@pytest.mark.parametrize("record", ["{", "[]", "{}", "null", '{"version": "1"}', '{"version": 1}', "[" * 100_000])
def test_a_damaged_record_is_a_format_error(record: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"weight": torch.ones(1)}, path, {"estimator": record})
    with pytest.raises(bnn.FileFormatError, match="its record of the estimator") as caught:
        BayesianRegressor.load(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "inducin"}, r"unknown method 'inducin' \(did you mean 'inducing'\?\); expected one of deter"),
        ({"hidden": 64}, r"hidden must be the widths of the hidden layers, as \(64, 64\); got 64"),
        ({"hidden": (0,)}, "a width of hidden must be an integer >= 1"),
        ({"samples": 0}, "samples must be an integer >= 1"),
        ({"batch_size": "all"}, "batch_size must be an integer >= 1"),
        ({"lr": -1.0}, "lr must be a finite number > 0"),
        ({"options": {"max_lambda": 1}}, "unknown option 'max_lambda'"),
        ({"method": "ensemble", "options": {"max_sd": 1}}, "it takes no options"),
        ({"network": 3}, "network must be a torch module, a function"),
        ({"network": lambda a, b: None}, "must return a torch module, got NoneType"),
        ({"network": nn.ReLU()}, "network must turn"),
        ({"patience": 1, "validation_fraction": 2.0}, "fraction must lie between 0 and 1"),
    ],
)
def test_parameters_are_checked_in_fit(params: dict[str, Any], message: str) -> None:
    model = BayesianClassifier(**{"epochs": 1, **params})
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(*classes(10))


def test_other_refusals() -> None:
    x, _ = classes(10)
    with pytest.raises(ValueError, match="y has only one class, 'ham'"):
        BayesianClassifier().fit(x, ["ham"] * 10)
    with pytest.raises(ValueError, match="unknown noise 'loud'"):
        BayesianRegressor(noise="loud").fit(x, x[:, 0])
    with pytest.raises(ValueError, match="level must"):
        BayesianRegressor(hidden=(2,), epochs=1).fit(x, x[:, 0]).predict_dist(x, level=90)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("bnn.estimators")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(vars(bnn), "BayesianClassifier", raising=False)  # an attribute once it was asked for
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ImportError, match=r'needs scikit-learn: pip install "bayesianize\[sklearn\]"'):
        _ = bnn.BayesianClassifier


def test_data_frames_bring_names() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = classes(10)
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    model = BayesianClassifier(hidden=(2,), epochs=1).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))


# ---- class weights ---------------------------------------------------------------------------------------------------


def rare(n: int = 400) -> tuple[Any, Any]:
    """A tenth of the rows are "spam", which one weak feature tells."""
    generator = np.random.default_rng(0)
    y = np.where(np.arange(n) % 10 == 0, "spam", "ham")
    return generator.normal(size=(n, 2)) + 0.8 * (y == "spam")[:, None], y


def test_balanced_classes_find_the_rare_one(tmp_path: Any) -> None:
    x, y = rare()
    found = {}
    for weight in (None, "balanced", {"spam": 9, "ham": 1}):
        model = BayesianClassifier(hidden=(8,), epochs=15, random_state=0, class_weight=weight).fit(x, y)
        found[str(weight)] = (model.predict(x) == "spam")[y == "spam"].mean()
    assert found["None"] < 0.2
    assert found["balanced"] > 0.5
    assert found["balanced"] == found[str({"spam": 9, "ham": 1})]  # n / (C n_c) is 5 and 0.556: 9 to 1
    model.save(tmp_path / "model")
    assert BayesianClassifier.load(tmp_path / "model").class_weight == {"spam": 9, "ham": 1}


def test_weights_of_numbered_classes_survive_a_file(tmp_path: Any) -> None:
    x, y = rare(60)
    model = BayesianClassifier(hidden=(4,), epochs=1, class_weight={1: 9, 0: 1}).fit(x, (y == "spam").astype(int))
    model.save(tmp_path / "model")
    again = BayesianClassifier.load(tmp_path / "model")
    assert again.class_weight == {1: 9, 0: 1}
    again.fit(x, (y == "spam").astype(int))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("balance", "must be"),
        ({"eggs": 1}, "no class 'eggs'"),
        ([1, 2], "class_weight must be"),
        ({"ham": -1}, "0 or more"),
    ],
)
def test_wrong_class_weights(weight: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        BayesianClassifier(**QUICK, class_weight=weight).fit(*rare(60))


@pytest.mark.parametrize("wide", [True, False])
def test_a_posterior_that_loses_what_the_plain_network_had_is_trained_again(
    wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a target without noise, drowned by a posterior that begins far wider: the second one begins within it."""
    x = np.random.default_rng(0).uniform(-1, 1, size=(600, 2))
    plain = {"epochs": 60, "batch_size": 50, "lr": 0.02, "cosine": True}
    monkeypatch.setattr(defaults, "plain_schedule", lambda *_, **__: plain)
    monkeypatch.setattr(defaults, "schedule", lambda *_, **__: {"epochs": 1, "batch_size": 50, "lr": 1e-9})
    monkeypatch.setattr(defaults, "SPREAD", 1e3 if wide else 0.1)
    starts: list[float | None] = []
    attempt = BayesianRegressor._attempt

    def counted(self: Any, *given: Any) -> Any:
        starts.append(given[-1])
        return attempt(self, *given)

    monkeypatch.setattr(BayesianRegressor, "_attempt", counted)
    model = BayesianRegressor(hidden=(16,), noise="constant", random_state=0).fit(x, x[:, 0] + x[:, 1] / 2)
    p = model.predict_dist(x)
    assert starts == ([1e3, CLOSE] if wide else [0.1])
    assert 0 < np.median(p.epistemic) < 0.5 * np.median(p.aleatoric)
