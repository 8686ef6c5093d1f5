"""Likelihoods against torch.distributions and torch's losses; predictions against formulas written out."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributions

from bnn import likelihoods
from bnn.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian

DENSE = [(6, 4), (5, 4, 7), (3, 4, 2, 3)]  # (N, C, ...)


def log_prob(logits: Tensor, target: Tensor) -> Tensor:
    """log p(target) per position; classes along dimension 1."""
    return distributions.Categorical(logits=logits.movedim(1, -1)).log_prob(target)


def logits_and_classes(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return torch.randn(shape), torch.randint(shape[1], (shape[0], *shape[2:]))


# ---- Categorical -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", DENSE)
def test_categorical_sums_over_positions(shape):
    logits, target = logits_and_classes(shape)
    expected = -log_prob(logits, target).flatten(1).sum(1) if len(shape) > 2 else -log_prob(logits, target)
    nll = Categorical()(logits, target)
    assert nll.shape == shape[:1]
    torch.testing.assert_close(nll, expected)


@pytest.mark.parametrize("shape", DENSE)
def test_categorical_weights_and_ignored_positions(shape):
    logits, target = logits_and_classes(shape)
    target[0] = 255
    weights = torch.tensor([0.5, 1.0, 2.0, 4.0])
    kept = target != 255
    safe = target.where(kept, 0)
    expected = (-weights[safe] * log_prob(logits, safe) * kept).reshape(len(target), -1).sum(1)
    nll = Categorical(class_weights=weights, ignore_index=255)(logits, target)
    torch.testing.assert_close(nll, expected)
    assert nll[0] == 0
    # torch divides by the weights of what counts; we do not
    mean = F.cross_entropy(logits, target, weight=weights, ignore_index=255)
    torch.testing.assert_close(nll.sum() / weights[target[kept]].sum(), mean)


def test_categorical_smooths_labels_towards_uniform():
    logits, target = logits_and_classes((6, 4))
    smooth = 0.9 * F.one_hot(target, 4) + 0.1 / 4
    expected = -(smooth * logits.log_softmax(1)).sum(1)
    torch.testing.assert_close(Categorical(label_smoothing=0.1)(logits, target), expected)
    torch.testing.assert_close(Categorical()(logits, smooth), expected)  # the same as probabilities


@pytest.mark.parametrize("shape", DENSE)
def test_categorical_takes_probabilities(shape):
    logits, probs = torch.randn(shape), torch.randn(shape).softmax(1)
    expected = -(probs * logits.log_softmax(1)).reshape(shape[0], -1).sum(1)
    torch.testing.assert_close(Categorical()(logits, probs.double()), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int16])
def test_categorical_takes_any_integer_type(dtype):
    logits, target = logits_and_classes((6, 4))
    torch.testing.assert_close(Categorical()(logits, target.to(dtype)), -log_prob(logits, target))


def test_half_precision_logits_are_evaluated_in_float32():
    logits, target = logits_and_classes((6, 4))
    half = logits.bfloat16()
    nll = Categorical(class_weights=[1.0, 1.0, 1.0, 1.0])(half, target)
    assert nll.dtype == torch.float32
    torch.testing.assert_close(nll, -log_prob(half.float(), target))
    assert Bernoulli()(half, torch.ones(6, 4)).dtype == torch.float32
    assert Gaussian()(half, torch.ones(6, 4)).dtype == torch.float32


@pytest.mark.parametrize(
    ("output", "target", "error", "match"),
    [
        ((6, 4), torch.tensor([0, 1, 2, 3, 4, 0]), ValueError, r"from 0 to 4.* 4 classes: expected 0 to 3"),
        ((2, 4, 3), torch.full((2, 3), -1), ValueError, r"from -1 to -1.* ignore_index=-100"),
        ((6, 4), torch.zeros(6), TypeError, r"integer type, got torch.float32: use target.long"),
        ((6, 4), torch.zeros(6, dtype=torch.bool), TypeError, r"integer type, got torch.bool"),
        ((6, 4), torch.zeros(6, 1).long(), ValueError, r"\(6, 1\), expected \(6,\).*target.reshape\(\(6,\)\)"),
        ((6, 4), torch.zeros(6, 4).long(), ValueError, r"class probabilities use target.float"),
        ((6, 4), torch.zeros(6, 5), ValueError, r"\(6, 5\); class probabilities must have .* \(6, 4\)"),
        ((6, 9, 4), torch.zeros(6, 9).long(), ValueError, r"output.movedim\(-1, 1\)"),
        ((6, 4), torch.zeros(5).long(), ValueError, r"\(5,\), expected \(6,\) for logits \(6, 4\)"),
        ((6, 1), torch.zeros(6).long(), ValueError, r"use Bernoulli"),
        ((6,), torch.zeros(6).long(), ValueError, r"expected \(N, C, ...\)"),
    ],
)
def test_categorical_explains_wrong_targets(output, target, error, match):
    with pytest.raises(error, match=match):
        Categorical()(torch.zeros(output), target)


def test_categorical_explains_wrong_options():
    with pytest.raises(ValueError, match="3 class_weights, but the output has 4 classes"):
        Categorical(class_weights=[1.0, 1.0, 1.0])(torch.zeros(2, 4), torch.zeros(2).long())
    with pytest.raises(ValueError, match=r"shape \(C,\), got \(1, 2\)"):
        Categorical(class_weights=torch.ones(1, 2))
    with pytest.raises(ValueError, match="finite and >= 0"):
        Categorical(class_weights=[1.0, -1.0])
    with pytest.raises(ValueError, match="label_smoothing"):
        Categorical(label_smoothing=1.5)
    with pytest.raises(TypeError, match=r"output is a dict, expected a tensor.*pass a function"):
        Categorical()({"logits": torch.zeros(2, 4)}, torch.zeros(2))


# ---- Bernoulli -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (6, 3), (4, 3, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64])
def test_bernoulli_sums_over_labels(shape, dtype):
    logits, target = torch.randn(shape), torch.randint(2, shape)
    expected = -distributions.Bernoulli(logits=logits).log_prob(target.float())
    torch.testing.assert_close(Bernoulli()(logits, target.to(dtype)), expected.reshape(shape[0], -1).sum(1))


def test_bernoulli_weighs_ones():
    logits, target = torch.randn(6, 3), torch.randint(2, (6, 3)).float()
    weight = torch.tensor([0.5, 1.0, 3.0])
    expected = -(weight * target * logits.sigmoid().log() + (1 - target) * (-logits).sigmoid().log()).sum(1)
    torch.testing.assert_close(Bernoulli(pos_weight=weight)(logits, target), expected)


def test_bernoulli_explains_mistakes():
    with pytest.raises(ValueError, match=r"\(6,\), expected \(6, 1\).*target.reshape\(\(6, 1\)\)"):
        Bernoulli()(torch.zeros(6, 1), torch.zeros(6))
    with pytest.raises(ValueError, match="from 0 to 2, expected 0 and 1"):
        Bernoulli()(torch.zeros(3), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="does not broadcast"):
        Bernoulli(pos_weight=[1.0, 2.0])(torch.zeros(6, 3), torch.zeros(6, 3))


# ---- Gaussians -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (6, 3), (4, 2, 3)])
@pytest.mark.parametrize("learn", [True, False])
def test_gaussian(shape, learn):
    mean, target = torch.randn(shape), torch.randn(shape, dtype=torch.float64)
    expected = -distributions.Normal(mean.double(), 0.3).log_prob(target).reshape(shape[0], -1).sum(1)
    likelihood = Gaussian(sd=0.3, learn=learn)
    nll = likelihood(mean, target)
    assert nll.dtype == torch.float32
    torch.testing.assert_close(nll.double(), expected, rtol=1e-4, atol=1e-4)
    assert [name for name, _ in likelihood.named_parameters()] == ["_sd"] * learn
    assert sorted(likelihood.state_dict()) == ["_sd", "_tails"]


def test_gaussian_learns_the_noise():
    likelihood, residual = Gaussian(sd=1.0), 0.2 * torch.randn(500, 1)
    optimiser = torch.optim.LBFGS(likelihood.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = likelihood(torch.zeros_like(residual), residual).mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    torch.testing.assert_close(likelihood.sd().item(), residual.square().mean().sqrt().item(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("shape", [(6, 1), (6, 3), (4, 2, 5)])
def test_heteroscedastic(shape):
    mean, raw, target = (torch.randn(shape) for _ in range(3))
    sd = 1e-3 + F.softplus(raw)
    expected = -distributions.Normal(mean, sd).log_prob(target).reshape(shape[0], -1).sum(1)
    torch.testing.assert_close(HeteroscedasticGaussian()(torch.cat([mean, raw], 1), target), expected)


def test_heteroscedastic_noise_has_a_floor():
    output = torch.tensor([[0.0, -200.0]], requires_grad=True)
    nll = HeteroscedasticGaussian(min_sd=0.01)(output, torch.zeros(1, 1))
    nll.sum().backward()
    torch.testing.assert_close(nll.item(), math.log(0.01) + 0.5 * math.log(2 * math.pi))
    assert output.grad.isfinite().all()


@pytest.mark.parametrize("sd", [0.0, -1.0, math.inf, "1"])
def test_noise_must_be_positive(sd):
    with pytest.raises(ValueError, match="sd must be a finite number > 0"):
        Gaussian(sd=sd)
    with pytest.raises(ValueError, match="min_sd must be a finite number > 0"):
        HeteroscedasticGaussian(min_sd=sd)


def test_gaussians_broadcast_nothing():
    with pytest.raises(ValueError, match=r"\(6,\), expected \(6, 1\) .*target.reshape\(\(6, 1\)\)"):
        Gaussian()(torch.zeros(6, 1), torch.zeros(6))
    with pytest.raises(ValueError, match=r"\(6, 1\), expected \(6,\) .*target.reshape\(\(6,\)\)"):
        Gaussian()(torch.zeros(6), torch.zeros(6, 1))
    with pytest.raises(ValueError, match=r"\(6,\), expected \(6, 1\)"):
        HeteroscedasticGaussian()(torch.zeros(6, 2), torch.zeros(6))
    with pytest.raises(ValueError, match="2 D values along dimension 1"):
        HeteroscedasticGaussian()(torch.zeros(6, 3), torch.zeros(6, 1))


# ---- predictions from K draws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 6, 4), (5, 3, 4, 2, 2)])
def test_categorical_prediction(shape):
    outputs = 3 * torch.randn(shape, dtype=torch.float64)
    probs, total, aleatoric, epistemic = Categorical().predictive(outputs)
    p = outputs.softmax(2)
    torch.testing.assert_close(probs, p.mean(0))
    torch.testing.assert_close(total, distributions.Categorical(p.mean(0).movedim(1, -1)).entropy())
    torch.testing.assert_close(aleatoric, distributions.Categorical(p.movedim(2, -1)).entropy().mean(0))
    kl = (p * (p.log() - p.mean(0).log())).sum(2).mean(0)  # mutual information as a mean KL to the mean
    torch.testing.assert_close(epistemic, kl)


@pytest.mark.parametrize("shape", [(7, 6), (7, 6, 4), (5, 3, 4, 2)])
def test_bernoulli_prediction(shape):
    outputs = 3 * torch.randn(shape, dtype=torch.float64)
    probs, total, aleatoric, epistemic = Bernoulli().predictive(outputs)
    p = outputs.sigmoid()
    torch.testing.assert_close(probs, p.mean(0))
    torch.testing.assert_close(total, distributions.Bernoulli(p.mean(0)).entropy())
    torch.testing.assert_close(aleatoric, distributions.Bernoulli(p).entropy().mean(0))
    torch.testing.assert_close(epistemic, total - aleatoric)


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_probabilities_of_exactly_zero_and_one(likelihood):
    sure = torch.tensor([[[1e5, -1e5]], [[-1e5, 1e5]]], requires_grad=True)  # two draws, opposed
    _, total, aleatoric, epistemic = likelihood.predictive(sure)
    torch.testing.assert_close(total, torch.full_like(total, math.log(2)))
    torch.testing.assert_close(epistemic, total)
    assert torch.equal(aleatoric, torch.zeros_like(aleatoric))
    (total + aleatoric + epistemic).sum().backward()
    assert sure.grad.isfinite().all()


def test_masked_classes_have_no_entropy():
    outputs = torch.tensor([0.0, 0.0, -math.inf]).expand(3, 5, 3)
    probs, total, aleatoric, epistemic = Categorical().predictive(outputs)
    assert torch.equal(probs[:, 2], torch.zeros(5))
    torch.testing.assert_close(total, torch.full((5,), math.log(2)))
    torch.testing.assert_close(aleatoric, total)
    assert (epistemic >= 0).all()


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_equal_draws_have_no_mutual_information(likelihood):
    outputs = (10 * torch.randn(1, 100, 6)).expand(30, 100, 6)
    epistemic = likelihood.predictive(outputs).epistemic
    assert (epistemic >= 0).all()
    assert epistemic.max() < 1e-6


def test_gaussian_prediction_is_the_mixture_of_the_draws():
    outputs = torch.randn(9, 4, 2)
    mean, total, aleatoric, epistemic = Gaussian(sd=0.7).predictive(outputs)
    mixture = distributions.MixtureSameFamily(
        distributions.Categorical(torch.ones(4, 2, 9)), distributions.Normal(outputs.movedim(0, -1), 0.7)
    )
    torch.testing.assert_close(mean, mixture.mean)
    torch.testing.assert_close(total, mixture.variance)
    torch.testing.assert_close(aleatoric, torch.full((4, 2), 0.49))
    torch.testing.assert_close(epistemic, outputs.var(0, unbiased=False))


def test_heteroscedastic_prediction_is_the_mixture_of_the_draws():
    means, raws = torch.randn(9, 4, 2), torch.randn(9, 4, 2)
    sds = 1e-3 + F.softplus(raws)
    mean, total, aleatoric, epistemic = HeteroscedasticGaussian().predictive(torch.cat([means, raws], 2))
    mixture = distributions.MixtureSameFamily(
        distributions.Categorical(torch.ones(4, 2, 9)), distributions.Normal(means.movedim(0, -1), sds.movedim(0, -1))
    )
    torch.testing.assert_close(mean, mixture.mean)
    torch.testing.assert_close(total, mixture.variance)
    torch.testing.assert_close(aleatoric, sds.square().mean(0))
    torch.testing.assert_close(epistemic, total - aleatoric)


def test_one_draw_has_no_epistemic_variance():
    assert torch.equal(Gaussian().predictive(torch.randn(1, 4)).epistemic, torch.zeros(4))


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli(), Gaussian(), HeteroscedasticGaussian()])
def test_prediction_wants_draws_first(likelihood):
    with pytest.raises(ValueError, match=r"outputs? ha(s|ve) shape \(4,\), expected"):
        likelihood.predictive(torch.zeros(4))


# ---- by name, under transforms ---------------------------------------------------------------------------------------


def test_get():
    named = {"categorical": Categorical, "bernoulli": Bernoulli, "gaussian": Gaussian}
    named["heteroscedastic"] = HeteroscedasticGaussian
    for name, kind in named.items():
        assert type(likelihoods.get(name)) is kind
    for own in (F.cross_entropy, Gaussian(sd=2.0)):
        assert likelihoods.get(own) is own
    with pytest.raises(ValueError, match=r"unknown likelihood 'normal'; expected one of \['bernoulli', 'categorical'"):
        likelihoods.get("normal")
    with pytest.raises(TypeError, match="got int"):
        likelihoods.get(3)
    with pytest.raises(TypeError, match=r"pass an object, Categorical\(\)"):
        likelihoods.get(Categorical)


@pytest.mark.parametrize(
    ("likelihood", "target"),
    [(Categorical(), torch.randint(4, (6,))), (Bernoulli(), torch.rand(6, 4)), (Gaussian(), torch.rand(6, 4))],
)
def test_per_example_gradients_by_vmap(likelihood, target):
    output = torch.randn(6, 4)

    def nll(out: Tensor, y: Tensor) -> Tensor:
        return likelihood(out[None], y[None]).squeeze(0)

    each = torch.func.vmap(torch.func.grad(nll))(output, target)
    whole = torch.func.grad(lambda out: likelihood(out, target).sum())(output)
    torch.testing.assert_close(each, whole)


def test_weights_follow_the_module():
    likelihood = Categorical(class_weights=[1, 2]).double()
    assert likelihood.class_weights.dtype == torch.float64
    assert likelihood(torch.zeros(3, 2, dtype=torch.float64), torch.ones(3).long()).dtype == torch.float64
