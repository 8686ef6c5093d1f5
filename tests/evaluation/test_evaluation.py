"""`bnn.evaluate` against what `bnn.predict` and `bnn.metrics` say directly, and its report of posterior and size."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from helpers import FAMILIES, SIZES, Family
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn import metrics
from bnn.data import CORRUPTIONS, Data, Part, TargetScale, corrupt
from bnn.evaluation import OOD, Scale, Uncertainty, predictor
from bnn.evaluation.corruptions import chosen
from bnn.evaluation.network import pooled
from bnn.evaluation.result import verdict
from bnn.evaluation.scores import informative

FEW = {"resamples": 30}


def mlp(width: int = 3, inputs: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, width))


def bayesian(width: int = 3, inputs: int = 4, **options: Any) -> nn.Sequential:
    """With noise that shows."""
    net = mlp(width, inputs)
    bnn.bayesianize_(net, "inducing", inducing_rows=4, inducing_cols=4, init_lamda=0.3, **options)
    return net


def blobs(n: int = 60, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.arange(n) % classes


def images(n: int = 12) -> Data:
    """Random images of two classes, and a validation part."""

    def part(n: int) -> Part:
        return Part(torch.randint(256, (n, 1, 6, 6), dtype=torch.uint8), torch.arange(n) % 2, lambda x: x.float() / 128)

    return Data("noise", "classification", part(4), part(n), part(10), classes=("even", "odd"))


def image_net() -> nn.Sequential:
    net = nn.Sequential(nn.Flatten(), *mlp(2, 36))
    bnn.bayesianize_(net, "inducing", init_lamda=0.3, **SIZES)
    return net


def direct(net: nn.Module, x: Tensor, samples: int | None = None, seed: int = 0, **options: Any) -> Any:
    return bnn.predict(net, x, samples, generator=torch.Generator().manual_seed(seed), batch_size=500, **options)


# ---- classes ---------------------------------------------------------------------------------------------------------


def test_classes_against_predict_and_metrics() -> None:
    net, (x, y), (xv, yv) = bayesian(), blobs(), blobs(40)
    far = 3 * torch.randn(50, 4)
    found = bnn.evaluate(net, (x, y), ood={"far": far}, validation=(xv, yv), samples=7, seed=3, **FEW)
    inside, outside, held = (direct(net, one, 7, seed=3) for one in (x, far, xv))
    temperature = metrics.temperature_scaling(held.probs.double().log(), yv)
    assert found.temperature == pytest.approx(temperature, rel=1e-6)
    want = metrics.classification_metrics(inside.probs, y, temperature=found.temperature, seed=3, **FEW)
    assert found.metrics == want
    assert found.metrics["nll_after_temperature"].value == pytest.approx(
        metrics.nll_after_temperature(inside.probs, y, held.probs, yv)
    )
    scores_in, scores_out = metrics.ood_scores(inside), metrics.ood_scores(outside)
    assert found.ood["far"].detection == {
        name: metrics.detection_metrics(scores_in[name], scores_out[name], seed=3, **FEW) for name in scores_in
    }
    assert found.ood["far"].inputs == 50
    for uncertainty, prediction in ((found.uncertainty, inside), (found.ood["far"].uncertainty, outside)):
        for name in ("total", "aleatoric", "epistemic"):
            assert getattr(uncertainty, name) == pytest.approx(float(getattr(prediction, name).double().mean()))
    assert found.uncertainty.epistemic > 1e-3
    assert (found.task, found.inputs, found.draws, found.seed) == ("classification", 60, 7, 3)


def test_curves() -> None:
    net, (x, y) = bayesian(), blobs(1001)
    found = bnn.evaluate(net, (x, y), bins=8, **FEW)
    probs = direct(net, x).probs
    coverage, accuracy = metrics.accuracy_coverage(probs, y)
    full = dict(zip(coverage.tolist(), accuracy.tolist(), strict=True))
    assert found.selective is not None
    assert len(found.selective.coverage) == 200
    assert found.selective.coverage[-1] == 1
    assert all(full[c] == a for c, a in zip(found.selective.coverage, found.selective.accuracy, strict=True))
    gaps = np.diff([0, *found.selective.coverage])
    assert gaps.max() < 0.007
    curve = bnn.calibration.calibration_curve(probs.numpy(), y.numpy(), 8)
    assert found.reliability is not None
    np.testing.assert_array_equal(found.reliability.probability, curve[0])
    np.testing.assert_array_equal(found.reliability.frequency, curve[1])
    np.testing.assert_array_equal(found.reliability.weights, curve[2])
    ece = bnn.calibration.expected_calibration_error(*curve)
    assert found.metrics["ece"].value == pytest.approx(ece)


def test_a_plain_network_runs_once_and_mutual_information_is_left_out() -> None:
    net, (x, y) = mlp(), blobs()
    found = bnn.evaluate(net, (x, y), ood=torch.randn(20, 4), samples=20, **FEW)
    with torch.no_grad():
        probs = net(x).softmax(1)
    assert found.metrics["nll"].value == pytest.approx(float(F.nll_loss(probs.double().log(), y)))
    assert found.draws == 1
    assert found.uncertainty.epistemic == 0
    assert list(found.ood["ood"].detection) == ["max_prob", "entropy"]
    assert any("mutual information" in note for note in found.notes)
    assert found.posterior is None
    assert found.verdict.startswith("one pass")


def test_draws_that_agree_up_to_rounding_are_no_score() -> None:
    net = mlp()
    bnn.bayesianize_(net, "inducing", max_lamda=0, max_sd_u=0, **SIZES)
    found = bnn.evaluate(net, blobs(), ood=torch.randn(20, 4), samples=5, **FEW)
    assert found.draws == 5
    assert "mutual_information" not in found.ood["ood"].detection
    assert "rounding" in found.notes[0]
    assert "shrinkage" in found.verdict


def test_disagreement_below_rounding_says_nothing() -> None:
    def said(name: str, size: float, draws: int) -> predictor.Outputs:
        ones = np.ones(3)
        own = 1e12 * ones  # a variance in units of its own
        return predictor.Outputs(ones, own, own, own, {"total": 5 * ones, name: size * ones}, None, draws)

    for name, least in (("mutual_information", 1e-6), ("epistemic", 5e-6)):  # of a total sd of 5
        assert not informative(name, said(name, 0.0, 5), said(name, 0.9 * least, 5))
        assert informative(name, said(name, 0.0, 5), said(name, 1.1 * least, 5))
        assert not informative(name, said(name, 1.0, 1), said(name, 1.0, 1))
    assert informative("entropy", said("entropy", 0.0, 1), said("entropy", 0.0, 1))


def test_an_ensemble_of_plain_networks() -> None:
    net, (x, y) = bnn.Ensemble(mlp(), members=3), blobs()
    found = bnn.evaluate(net, (x, y), **FEW)
    with torch.no_grad():
        probs = torch.stack([member(x).softmax(1) for member in net.members]).double()
    entropies = -(probs * probs.log()).sum(2).mean(0)
    mean = probs.mean(0)
    information = -(mean * mean.log()).sum(1) - entropies
    assert found.draws == 3
    assert found.metrics["nll"].value == pytest.approx(float(F.nll_loss(mean.log(), y)), rel=1e-5)
    assert found.uncertainty.epistemic == pytest.approx(float(information.mean()), rel=1e-4)
    assert (found.size.networks, found.size.plain) == (3, bnn.parameter_count(mlp()))
    assert found.size.ratio == 3


def test_one_logit_is_two_classes() -> None:
    net, x = mlp(1), torch.randn(40, 4)
    y = (torch.arange(40) % 2)[:, None].float()
    found = bnn.evaluate(net, (x, y), likelihood="bernoulli", **FEW)
    with torch.no_grad():
        want = F.binary_cross_entropy_with_logits(net(x), y)
    assert found.metrics["nll"].value == pytest.approx(float(want), rel=1e-5)
    assert found.task == "classification"


def test_digits_with_everything() -> None:
    data = bnn.data.load("digits", validation=0.1, first=200)
    net = nn.Sequential(nn.Flatten(), *mlp(10, 64))
    bnn.bayesianize_(net, "ffg", init_sd=0.1, max_sd=0.5)
    found = bnn.evaluate(net, data, ood=["digits"], corruptions={"fog": 5}, **FEW)
    assert data.test is not None
    probs = direct(net, data.test.inputs()).probs
    assert found.metrics["nll"].value == metrics.nll(probs, data.test.y)
    assert found.temperature is not None
    assert found.ood["digits"].inputs == 500  # the whole test part, of which 200 are the data
    for word in (
        "digits: classification, 200 inputs, 20 draws",
        "accuracy",
        "max probability",
        "severity 5",
        "verdict: ",
    ):
        assert word in str(found)


# ---- how inputs come and run -----------------------------------------------------------------------------------------


def test_all_forms_of_data_give_the_same() -> None:
    net, (x, y) = bayesian(), blobs()
    want = bnn.evaluate(net, (x, y), **FEW)
    dataset = TensorDataset(x, y)
    forms = [(x.numpy(), y.numpy()), Part(x, y), dataset, DataLoader(dataset, batch_size=7)]
    whole = Data("data", "classification", Part(x[:2], y[:2]), Part(x, y), classes=("a", "b", "c"))
    for data in forms:
        assert bnn.evaluate(net, data, **FEW) == want
    named = bnn.evaluate(net, whole, **FEW)
    assert {one.prediction for one in named.examples.certain} <= {"a", "b", "c"}
    assert dataclasses.replace(named, examples=want.examples, classes=want.classes) == want


def test_chunks_show_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (x, y) = bayesian(sampling="weight"), blobs()
    want = bnn.evaluate(net, (x, y), **FEW)
    calls: list[int] = []
    predict = predictor.predict
    monkeypatch.setattr(predictor, "predict", lambda net, x, *a, **k: calls.append(len(x)) or predict(net, x, *a, **k))
    monkeypatch.setattr(predictor, "INPUTS", 20)
    found = bnn.evaluate(net, (x, y), batch_size=8, **FEW)
    assert calls == [16, 16, 16, 12]
    assert found.metrics["nll"].value == pytest.approx(want.metrics["nll"].value, rel=1e-5)
    assert found.uncertainty.epistemic == pytest.approx(want.uncertainty.epistemic, rel=1e-4)
    calls.clear()
    monkeypatch.setattr(predictor, "INPUT_BYTES", 4 * 4 * 9)  # nine inputs
    bnn.evaluate(net, (x, y), batch_size=3, **FEW)
    assert calls == [9] * 6 + [6]


def test_the_seed_settles_everything_and_nothing_else_changes() -> None:
    net, data = image_net(), images()
    net.train()
    options: dict[str, Any] = {"corruptions": {"gaussian_noise": 3}, "ood": torch.randn(9, 1, 6, 6)} | FEW
    state = torch.get_rng_state()
    first = bnn.evaluate(net, data, **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert net.training
    torch.manual_seed(99)
    assert bnn.evaluate(net, data, **options) == first
    other = bnn.evaluate(net, data, seed=1, **options)
    assert other.uncertainty != first.uncertainty
    assert other.corruptions[0].uncertainty != first.corruptions[0].uncertainty


def test_progress_lines(capsys: pytest.CaptureFixture[str]) -> None:
    net, data = image_net(), images()
    bnn.evaluate(net, data, ood=data.train.x, corruptions={"fog": 1}, progress=True, **FEW)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "evaluating test: 0 of 38 inputs done",
        "evaluating validation: 12 of 38 inputs done",
        "evaluating ood: 22 of 38 inputs done",
        "evaluating fog 1: 26 of 38 inputs done",
    ]
    bnn.evaluate(net, data, **FEW)
    assert capsys.readouterr().err == ""


# ---- regression ------------------------------------------------------------------------------------------------------


def regression(scale: float = 1.0) -> Data:
    """Targets of two outputs, in units of `scale`; what the network sees is always the same."""
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(30, 4, generator=generator), torch.randn(30, 2, generator=generator)
    target = TargetScale((2.0 * scale, -1.0 * scale), (3.0 * scale, 0.5 * scale))
    return Data("numbers", "regression", Part(x[:3], y[:3]), Part(x, y), target=target)


def test_regression_against_the_mixture_by_hand() -> None:
    net, data = bayesian(2), regression()
    likelihood = bnn.likelihoods.Gaussian(sd=0.7)
    found = bnn.evaluate(net, data, likelihood=likelihood, samples=6, **FEW)
    assert data.test is not None
    assert data.test.y is not None
    prediction = direct(net, data.test.x, 6, likelihood=likelihood, keep_samples=True)
    sd = torch.tensor([3.0, 0.5]).double()
    shift = torch.tensor([2.0, -1.0]).double()
    means, y = prediction.samples.double() * sd + shift, data.test.y.double() * sd + shift
    logs = torch.distributions.Normal(means, 0.7 * sd).log_prob(y).sum(2)
    nll = -(logs.logsumexp(0) - math.log(6)).mean()
    assert found.metrics["nll"].value == pytest.approx(float(nll), rel=1e-6)
    assert found.metrics["rmse"].value == pytest.approx(float((means.mean(0) - y).square().mean().sqrt()), rel=1e-6)
    draws = (means.numpy(), np.broadcast_to((0.7 * sd).numpy(), means.shape))
    assert found.metrics["crps"].value == pytest.approx(metrics.mixture_crps(*draws, y.numpy()), rel=1e-6)
    low, high = metrics.mixture_interval(*draws, level=0.9)
    assert found.metrics["sharpness_90"].value == pytest.approx((high - low).mean(), rel=1e-6)
    inside = (low <= y.numpy()) & (y.numpy() <= high)
    assert found.metrics["coverage_90"].value == pytest.approx(inside.mean())
    assert {"coverage_50", "coverage_95", "sharpness_50", "sharpness_95"} <= found.metrics.keys()
    own = prediction.epistemic.double() * sd**2
    assert found.uncertainty.epistemic == pytest.approx(float(own.mean().sqrt()), rel=1e-6)
    assert found.task == "regression"
    assert found.selective is None
    assert found.reliability is None


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_own_units(likelihood: str) -> None:
    """Targets a thousand times as large: rmse, crps and widths too, nll by log 1000 for each output."""
    chosen = bnn.likelihoods.Gaussian(sd=0.7) if likelihood == "gaussian" else likelihood
    net = bayesian(2 if likelihood == "gaussian" else 4)
    far = 3 * torch.randn(25, 4)
    small, large = (bnn.evaluate(net, regression(scale), likelihood=chosen, ood=far, **FEW) for scale in (1.0, 1000.0))
    for name in ("rmse", "crps", "sharpness_95"):
        assert large.metrics[name].value == pytest.approx(1000 * small.metrics[name].value, rel=1e-6)
    assert large.metrics["nll"].value == pytest.approx(small.metrics["nll"].value + 2 * math.log(1000), rel=1e-6)
    assert large.metrics["coverage_90"].value == small.metrics["coverage_90"].value
    assert large.uncertainty.total == pytest.approx(1000 * small.uncertainty.total, rel=1e-6)
    assert large.ood["ood"].detection == small.ood["ood"].detection
    assert list(small.ood["ood"].detection) == ["total", "epistemic"]
    assert small.verdict == large.verdict


def test_regression_scores_against_predict() -> None:
    net, data, far = bayesian(2), regression(), 3 * torch.randn(25, 4)
    likelihood = bnn.likelihoods.Gaussian(sd=0.1)
    found = bnn.evaluate(net, data, likelihood=likelihood, ood=far, **FEW)
    assert data.test is not None
    inside, outside = (direct(net, x, likelihood=likelihood) for x in (data.test.x, far))
    for name in ("total", "epistemic"):
        a, b = (getattr(one, name).double().mean(1).numpy() for one in (inside, outside))
        assert found.ood["ood"].detection[name] == metrics.detection_metrics(a, b, **FEW)


def test_a_likelihood_of_ones_own_has_moments_only() -> None:
    class Laplace(bnn.likelihoods.Likelihood):
        def predictive(self, outputs: Tensor) -> Any:
            return bnn.likelihoods.Gaussian(sd=0.5).predictive(outputs)

    net, data = bayesian(2), regression()
    found = bnn.evaluate(net, data, likelihood=Laplace(), **FEW)
    known = bnn.evaluate(net, data, likelihood=bnn.likelihoods.Gaussian(sd=0.5), **FEW)
    assert any("the draws predict no Gaussians: nll, crps" in note for note in found.notes)
    assert found.metrics["rmse"] == known.metrics["rmse"]
    assert data.test is not None
    prediction, sd = direct(net, data.test.x, likelihood=Laplace()), torch.tensor([3.0, 0.5]).double()
    args = (prediction.mean.double(), prediction.total.double().sqrt(), data.test.y)
    nll = metrics.gaussian_nll(*args) + float(sd.log().sum())  # of the scaled target, and the change of units
    assert found.metrics["nll"].value == pytest.approx(nll, rel=1e-6)
    assert found.metrics["nll"] != known.metrics["nll"]


def test_the_nll_of_draws_that_are_no_gaussians_is_the_likelihoods_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the target's own units, chunk by chunk: of Gaussians that do not say so, it is that of their mixture."""

    class Unsaid(bnn.likelihoods.Gaussian):
        def components(self, outputs: Tensor) -> None:
            return None

    net, data = bayesian(2), regression(scale=10.0)
    monkeypatch.setattr(predictor, "INPUTS", 20)
    found = bnn.evaluate(net, data, likelihood=Unsaid(sd=0.5), **FEW)
    known = bnn.evaluate(net, data, likelihood=bnn.likelihoods.Gaussian(sd=0.5), **FEW)
    assert found.metrics["nll"].value == pytest.approx(known.metrics["nll"].value, rel=1e-5)
    assert found.metrics["crps"].value != known.metrics["crps"].value
    assert any("the draws predict no Gaussians: crps" in note for note in found.notes)


# ---- corruptions -----------------------------------------------------------------------------------------------------


def test_corruption_rows_against_direct_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "INPUTS", 5)  # chunks must not change what is drawn
    net, data = image_net(), images()
    bnn.set_sampling_(net, "weight")
    asked = {"gaussian_noise": [2, 4], "contrast": 4}
    found = bnn.evaluate(net, data, corruptions=asked, batch_size=5, seed=2, **FEW)
    assert [(row.kind, row.severity) for row in found.corruptions] == [
        ("gaussian_noise", 2),
        ("gaussian_noise", 4),
        ("contrast", 4),
    ]
    assert data.test is not None
    assert data.test.prepare is not None
    for row in found.corruptions:
        x = data.test.prepare(corrupt(data.test.x, row.kind, row.severity, 2))
        prediction = direct(net, x, seed=2)
        for name in ("accuracy", "nll", "ece"):
            want = metrics.bootstrap(getattr(metrics, name), prediction.probs, data.test.y, seed=2, **FEW)
            assert row.metrics[name].value == pytest.approx(want.value, rel=1e-4)
            assert row.metrics[name].high == pytest.approx(want.high, rel=1e-4)
        assert row.uncertainty.epistemic == pytest.approx(float(prediction.epistemic.mean()), rel=1e-3)
    mild, strong = found.severities
    assert (mild.severity, mild.kinds, strong.severity, strong.kinds) == (2, 1, 4, 2)
    for name in ("accuracy", "nll", "ece"):
        values = [row.metrics[name].value for row in found.corruptions]
        assert mild.metrics[name] == values[0]
        assert strong.metrics[name] == pytest.approx((values[1] + values[2]) / 2)


def test_which_corruptions() -> None:
    everything = [(kind, severity) for kind in CORRUPTIONS for severity in range(1, 6)]
    assert chosen(True) == chosen("all") == everything
    assert chosen("fog") == chosen(["fog"]) == [("fog", severity) for severity in range(1, 6)]
    assert chosen([2, 2]) == [(kind, 2) for kind in CORRUPTIONS]
    assert chosen({"fog": range(4, 6)}) == [("fog", 4), ("fog", 5)]
    assert chosen([2], ["fog", "snow"]) == [("fog", 2), ("snow", 2)]
    assert chosen("saturate", ["fog"])[0] == ("saturate", 1)  # what is named is not left out
    for bad, message in (
        (["fogg"], "did you mean 'fog'"),
        ([6], "one of"),
        ({"fog": True}, "severity"),
        ([], "asks for none"),
        ({"fog": []}, "asks for none"),
    ):
        with pytest.raises(ValueError, match=message):
            chosen(bad)
    with pytest.raises(TypeError, match="not both"):
        chosen(["fog", 3])


# ---- posterior and size ----------------------------------------------------------------------------------------------


def by_hand(layer: Any, family: Family) -> tuple[Tensor | None, float | None, Tensor | None, float | None]:
    """(sds, their cap, lamda, its cap) from the tensors of the state dict."""
    state = {name: tensor.double() for name, tensor in layer.state_dict().items()}
    options = family.options
    if family.inference == "ffg":
        sds = torch.cat([F.softplus(state["_weight_sd"]).flatten(), F.softplus(state["_bias_sd"])])
        return sds.clamp(max=options.get("max_sd", math.inf)), options.get("max_sd"), None, None
    if family.inference == "fcg":
        T = state["_scale_tril"].tril(-1) + F.softplus(state["_scale_diag"]).diag()
        return (T @ T.T).diagonal().sqrt(), None, None, None
    if family.inference == "ktied":  # (d_out, k) and (k, d_in)
        return (F.softplus(state["_row_sd"]) @ F.softplus(state["_col_sd"])).flatten(), None, None, None
    if family.id == "matrixnormal":
        return torch.outer(F.softplus(state["_row_sd"]), F.softplus(state["_col_sd"])).flatten(), None, None, None
    if family.id == "matrixnormal-full":
        sides = [triangle(state[name]) for name in ("_row_scale_tril", "_col_scale_tril")]
        return torch.outer(*((T @ T.T).diagonal().sqrt() for T in sides)).flatten(), None, None, None
    if family.inference == "singular":
        sds = torch.cat([F.softplus(state[name]).flatten() for name in ("_a_sd", "_b_sd")])
        return sds.clamp(max=options.get("max_sd", math.inf)), options.get("max_sd"), None, None
    if family.inference == "rank1":
        return F.softplus(torch.cat([state["_r_sd"].flatten(), state["_s_sd"].flatten()])), None, None, None
    if family.inference == "batchensemble":
        return torch.cat([(t - t.mean(0)).square().mean(0).sqrt() for t in (state["r"], state["s"])]), None, None, None
    if family.inference == "mcdropout":
        return None, None, None, None
    no_lamda = family.inference == "inducingdeterministic" or options.get("max_lamda") == 0
    cap = options.get("max_lamda")
    lamda = None if no_lamda else F.softplus(state["_lamda"]).clamp(max=cap or math.inf)
    q, cap_u = options.get("q_inducing", "diagonal"), options.get("max_sd_u")
    if q == "diagonal":
        sds = None if cap_u == 0 else F.softplus(state["_inducing_sd"]).clamp(max=cap_u or math.inf)
    elif q == "ensemble":
        sds = (state["inducing_mean"] - state["inducing_mean"].mean(0)).square().mean(0).sqrt()
    else:
        names = ["_inducing_scale_tril"] if q == "full" else ["_inducing_row_scale_tril", "_inducing_col_scale_tril"]
        covariances = [T @ T.T for T in map(triangle, (state[name] for name in names))]
        whole = covariances[0] if len(covariances) == 1 else torch.kron(*covariances)
        sds = whole.diagonal().sqrt()
    return sds, cap_u, lamda, cap


def triangle(packed: Tensor) -> Tensor:
    n = (math.isqrt(8 * len(packed) + 1) - 1) // 2
    T = F.softplus(packed[:n]).diag()
    T[tuple(torch.tril_indices(n, n, -1))] = packed[n:]
    return T


def check(scale: Scale | None, values: Tensor | None, cap: float | None) -> None:
    if values is None:
        assert scale is None
        return
    assert scale is not None
    assert scale.count == values.numel()
    assert (scale.mean, scale.largest) == pytest.approx((float(values.mean()), float(values.max())), rel=1e-5)
    assert scale.cap == cap
    if cap is None:
        assert (scale.ratio, scale.at_cap, scale.capped) == (None, None, 0)
        return
    assert scale.ratio == pytest.approx(float(values.mean()) / cap, rel=1e-5)
    assert scale.at_cap == float((values >= 0.99 * cap).double().mean())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.id)
def test_where_the_posterior_ended(family: Family) -> None:
    net = mlp()
    bnn.bayesianize_(net, family.inference, **family.options)
    with torch.no_grad():
        for name, tensor in net.named_parameters():
            if name.rpartition(".")[2].startswith("_"):
                tensor.copy_(torch.randn_like(tensor) - 2)  # some sds beyond their cap, some below
    found = bnn.evaluate(net, blobs(), samples=2, **FEW).posterior
    assert found is not None
    assert [layer.name for layer in found.layers] == ["0", "2"]
    for layer in found.layers:
        assert layer.family == family.inference
        sds, cap, lamda, lamda_cap = by_hand(net.get_submodule(layer.name), family)
        check(layer.sd, sds, cap)
        check(layer.lamda, lamda, lamda_cap)
    every = [by_hand(net.get_submodule(name), family) for name in ("0", "2")]
    if every[0][0] is not None:
        check(found.sd, torch.cat([sds.flatten() for sds, *_ in every if sds is not None]), every[0][1])


def test_pooling_counts_what_has_a_cap_only() -> None:
    a, b = Scale(3, 0.05, 0.1, 0.1, 0.5, 1 / 3, 3), Scale(1, 2.0, 2.0)
    assert pooled([a, None, b]) == Scale(4, pytest.approx(2.15 / 4), 2.0, None, 0.5, pytest.approx(1 / 3), 3)
    c = Scale(1, 0.2, 0.2, 0.2, 1.0, 1.0, 1)
    assert pooled([a, c]) == Scale(4, pytest.approx(0.35 / 4), 0.2, None, pytest.approx(0.625), pytest.approx(0.5), 4)
    assert pooled([None]) is None


@pytest.mark.slow  # registering loads much of torch, once
def test_global_inducing_weights_are_a_layer_of_their_own() -> None:
    net = bayesian()
    bnn.register_global_inducing_weights_(net, inducing_rows=2, inducing_cols=2)
    found = bnn.evaluate(net, blobs(), samples=2, **FEW)
    assert found.posterior is not None
    assert [layer.sd is None for layer in found.posterior.layers] == [True, True, False]
    assert found.size.plain == bnn.parameter_count(mlp())


def test_sizes(tmp_path: pathlib.Path) -> None:
    def cnn() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))

    plain = bnn.parameter_count(cnn())
    net = bnn.Ensemble(cnn(), members=2)
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    size = bnn.evaluate(net, images(), **FEW).size
    assert (size.parameters, size.plain, size.networks) == (bnn.parameter_count(net), plain, 2)
    assert size.ratio == bnn.parameter_count(net) / plain
    bnn.save(net, tmp_path / "net.safetensors")
    stored = safetensors.torch.load_file(tmp_path / "net.safetensors")
    assert size.bytes == sum(tensor.numel() * tensor.element_size() for tensor in stored.values())


def test_tied_layers_are_counted_once(tmp_path: pathlib.Path) -> None:
    tied = nn.Linear(4, 4)
    net = nn.Sequential(tied, nn.ReLU(), tied)
    size = bnn.evaluate(net, blobs(), **FEW).size
    assert (size.parameters, size.plain, size.bytes) == (20, 20, 80)


# ---- the verdict -----------------------------------------------------------------------------------------------------


def test_the_verdict() -> None:
    def outside(*values: float) -> dict[str, OOD]:
        return {str(i): OOD(5, Uncertainty(1.0, 1.0 - value, value), {}) for i, value in enumerate(values)}

    inside = Uncertainty(0.5, 0.4, 0.1)
    assert "shrinkage" in verdict("classification", 20, inside, outside(9e-4))
    assert "shrinkage" in verdict("classification", 20, Uncertainty(0.5, 0.5, 9e-4), {})
    assert "2 times as much" in verdict("classification", 20, inside, outside(0.1, 0.3))
    assert "no more out of distribution" in verdict("classification", 20, inside, outside(0.05))
    assert "in distribution); whether more so out of it, out-of-distribution inputs would tell" in verdict(
        "classification", 20, inside, {}
    )
    assert "shrinkage" in verdict(
        "regression", 20, Uncertainty(1000.0**0.5, 999.1**0.5, 0.9**0.5), {}
    )  # a share of the variance
    assert "one pass" in verdict("regression", 1, inside, outside(0.3))
    sds = Uncertainty(5.0, 4.0, 3.0)
    assert "(the epistemic sd is 60 % of the total sd in distribution)" in verdict("regression", 20, sds, {})
    told = verdict("regression", 20, sds, outside(0.9))
    assert told == (
        "draws disagree 1.5 times as much out of distribution: the epistemic sd is 60 % of the total sd in it, "
        "90 % out of it"
    )
    each = {"large": sds, "small": Uncertainty(1.0, 1.0, 0.0)}  # a share of each, whatever the units
    assert "42 % of the total sd in distribution" in verdict("regression", 20, sds, {}, each)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_json_there_and_back(tmp_path: pathlib.Path) -> None:
    net, data = image_net(), images()
    found = bnn.evaluate(net, data, ood={"a": torch.randn(9, 1, 6, 6)}, corruptions={"fog": [1, 2]}, **FEW)
    stored = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert None in stored["reliability"]["probability"]  # bins below 1/2 are empty
    assert bnn.Evaluation.from_dict(stored) == found
    path = tmp_path / "found.json"
    path.write_text("older")
    found.save(path)
    assert bnn.Evaluation.load(path) == found
    assert bnn.Evaluation.load(path).table() == found.table()
    assert list(tmp_path.iterdir()) == [path]
    real = bnn.evaluate(bayesian(2), regression(), likelihood=bnn.likelihoods.Gaussian(sd=0.7), **FEW)
    assert bnn.Evaluation.from_dict(json.loads(json.dumps(real.to_dict(), allow_nan=False))) == real


def test_foreign_and_damaged_files(tmp_path: pathlib.Path) -> None:
    found = bnn.evaluate(mlp(), blobs(), **FEW)
    good = found.to_dict()
    for bad, message in (
        ({}, "no evaluation"),
        ({**good, "format_version": 3}, "format version 3"),
        ({**good, "extra": 1}, "exactly the fields"),
        ({**good, "draws": "many"}, r"evaluation\.draws must be of type int"),
        ({**good, "metrics": {"nll": {"value": "x", "low": 0, "high": 1, "left_out": 0}}}, r"metrics\.nll\.value"),
    ):
        with pytest.raises(ValueError, match=message):
            bnn.Evaluation.from_dict(bad)
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps(good)[:-9])
    with pytest.raises(ValueError, match=r"cannot read .*cut\.json"):
        bnn.Evaluation.load(cut)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        found.save(tmp_path / "missing" / "found.json")
    with pytest.raises(IsADirectoryError, match="name a file in it"):
        found.save(tmp_path)


# ---- errors ----------------------------------------------------------------------------------------------------------


def fails(kind: type[Exception], message: str, net: nn.Module, data: Any, **options: Any) -> None:
    with pytest.raises(kind, match=message):
        bnn.evaluate(net, data, **options)


def test_data_that_do_not_fit() -> None:
    net, (x, y) = mlp(), blobs()
    three = Data("three", "classification", Part(x, y), Part(x, y), classes=("a", "b", "c"))
    fails(ValueError, "has 5 outputs, the data 3 classes", mlp(5), three)
    fails(ValueError, "class indices from 0 to 1", mlp(2), (x, y))
    fails(ValueError, "three has no test part", net, Data("three", "classification", Part(x, y), classes=("a", "b")))
    fails(ValueError, "no targets", net, Part(x))
    fails(ValueError, "is empty", net, (x[:0], y[:0]))
    fails(TypeError, "got str", net, "digits")
    fails(TypeError, "expected a network", None, (x, y))  # type: ignore[arg-type]
    fails(ValueError, "three is a classification task", net, three, likelihood=bnn.likelihoods.Gaussian())
    pixels = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 1))
    fails(ValueError, "one label per input", pixels, (x, y))


def test_regression_needs_its_noise() -> None:
    net, data = bayesian(2), regression()
    fails(ValueError, r"history\.likelihood", net, data)
    fails(ValueError, r"history\.likelihood", net, data, likelihood="gaussian")
    fails(ValueError, r"history\.likelihood", net, (torch.randn(5, 4), torch.randn(5, 2)))
    noise = bnn.likelihoods.Gaussian()
    fails(ValueError, "temperature scaling", net, data, likelihood=noise, validation=data.train)
    wrong = (torch.randn(5, 4), torch.randn(5))
    fails(ValueError, r"shape \(5,\), the network predicts \(5, 2\)$", net, wrong, likelihood=noise)
    fails(ValueError, r"use y\.reshape\(5, 1\)", bayesian(1), wrong, likelihood=noise)


def test_ood_that_does_not_fit() -> None:
    net, (x, y), data = mlp(), blobs(), images()
    fails(ValueError, r"ood 'wide' have shape \(5,\), expected \(4,\)", net, (x, y), ood={"wide": torch.randn(3, 5)})
    both = "neither a folder of images nor the name of a data set.*did you mean 'svhn'"
    fails(ValueError, both, image_net(), data, ood="svnh")
    fails(ValueError, both, net, (x, y), ood="svnh")
    fails(TypeError, "by name", net, (x, y), ood="svhn")
    fails(TypeError, "give others a name", net, (x, y), ood=[torch.randn(3, 4)])
    fails(TypeError, "got int", net, (x, y), ood={"a": 3})
    fails(ValueError, "ood is empty", net, (x, y), ood={})
    fails(ValueError, "ood 'a' is empty", net, (x, y), ood={"a": x[:0]})


def saved_images(folder: pathlib.Path, sizes: list[tuple[int, int]], mode: str = "RGB") -> pathlib.Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(len(sizes))
    for i, (height, width) in enumerate(sizes):
        pixels = rng.integers(256, size=(height, width) if mode == "L" else (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def test_ood_from_a_folder_of_images(tmp_path: pathlib.Path) -> None:
    """As the data's own preparation reads them, and for data that came otherwise in their shape."""
    for name in ("cat", "dog"):
        saved_images(tmp_path / "pets" / name, [(6, 6)] * 10)
    loose = saved_images(tmp_path / "loose", [(6, 6), (9, 12), (6, 6)])
    data = bnn.data.folder(tmp_path / "pets", size=6, validation=None)
    assert data.preparation is not None
    net = nn.Sequential(nn.Flatten(), *mlp(2, 108))
    want = dataclasses.replace(
        bnn.evaluate(net, data, ood={"loose": data.preparation(loose)}, **FEW).ood["loose"], examples=None
    )
    for ood in (str(loose), loose, [loose]):
        found = bnn.evaluate(net, data, ood=ood, **FEW).ood
        assert {name: dataclasses.replace(one, examples=None) for name, one in found.items()} == {str(loose): want}
    unnamed = bnn.evaluate(net, data.test, ood={"mine": loose}, **FEW).ood["mine"]
    assert dataclasses.replace(unnamed, examples=None) == want
    grey = bnn.evaluate(image_net(), images(), ood=loose, **FEW)  # colours averaged
    assert grey.ood[str(loose)].inputs == 3
    fails(ValueError, r"no images as they are stored.*float32 \(60, 4\)", mlp(), blobs(), ood=loose)
    (tmp_path / "none").mkdir()
    fails(ValueError, "none' is a folder without images", net, data, ood=tmp_path / "none")


def test_ood_from_other_data() -> None:
    """The test part, else the training part; images are scaled as the network's own are, not as the others'."""
    net, data = image_net(), images()
    x = torch.randint(256, (8, 1, 6, 6), dtype=torch.uint8)
    y = torch.arange(8) % 2
    other = Data("other", "classification", Part(x[:3], y[:3], lambda x: x.float()), classes=("a", "b"))
    want = bnn.evaluate(net, data, ood={"other": x[:3]}, **FEW).ood
    assert bnn.evaluate(net, data, ood=other, **FEW).ood == want
    tested = dataclasses.replace(other, test=Part(x, y))
    assert bnn.evaluate(net, data, ood={"all": tested}, **FEW).ood["all"].inputs == 8
    wide = Data("wide", "classification", Part(torch.randn(4, 5), torch.arange(4) % 2), classes=("a", "b"))
    fails(ValueError, r"ood 'wide' have shape \(5,\), expected \(4,\)", mlp(), blobs(), ood=wide)


def test_what_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "INPUTS", 20)  # counted over chunks
    net, (x, y) = mlp(), blobs()
    holes = x.clone()
    holes[[3, 30, 59], [0, 1, 2]] = math.nan
    fails(ValueError, r"3 of 60 rows of the inputs \(test\) hold NaN", net, (holes, y), batch_size=10)
    fails(ValueError, r"3 of 60 rows of the inputs \(far\) hold NaN", net, (x, y), ood={"far": holes}, batch_size=10)
    huge = x.clone()
    huge[[1, 2]] = math.inf
    fails(ValueError, r"predictions for 2 of 60 rows \(test\) are NaN or infinite", net, (huge, y), batch_size=10)
    with torch.no_grad():
        net[2].bias.fill_(math.nan)
    fails(ValueError, r"predictions for 60 of 60 rows \(test\) are NaN", net, (x, y))
    real = mlp(2)
    with torch.no_grad():
        real[2].weight.fill_(math.nan)
    noise = bnn.likelihoods.Gaussian(sd=0.5)
    fails(ValueError, r"predictions for 30 of 30 rows \(test\) are NaN", real, regression(), likelihood=noise)


def test_grey_images_have_all_kinds_but_those_of_colour() -> None:
    net, data = image_net(), images()
    found = bnn.evaluate(net, data, corruptions=[3], **FEW)
    assert [row.kind for row in found.corruptions] == [kind for kind in CORRUPTIONS if kind != "saturate"]
    assert [one.kinds for one in found.severities] == [18]
    fails(ValueError, r"\['saturate'\] change colours.*grey", net, data, corruptions={"saturate": 1, "fog": 1})


def test_corruptions_need_stored_images() -> None:
    fails(ValueError, r"uint8 \(N, 1 or 3, H, W\).*float32 \(60, 4\)", mlp(), blobs(), corruptions=True)


@pytest.mark.parametrize(
    ("option", "value"), [("samples", -1), ("batch_size", 0), ("seed", -1), ("resamples", 0), ("bins", 0)]
)
def test_options_are_checked_first(option: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "predict", lambda *a, **k: pytest.fail("predicted before checking"))
    fails(ValueError, option, bayesian(), blobs(), **{option: value})


def test_no_warnings_on_sure_networks() -> None:
    """Probabilities of exactly 0 and 1."""
    net, (x, y) = mlp(), blobs()
    with torch.no_grad():
        net[2].weight.mul_(1e4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = bnn.evaluate(net, (x, y), validation=(x, y), ood=100 * x, **FEW)
    assert found.temperature is not None
