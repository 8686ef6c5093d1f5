"""How far a teacher's prediction is from a student's, against torch.distributions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from bnn import likelihoods

TEMPERATURES = [1.0, 2.5]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("positions", [(), (2, 3)])
def test_classes(temperature: float, positions: tuple[int, ...]) -> None:
    teacher, student = drawn(5, 4, *positions), drawn(5, 4, *positions, seed=1)
    found = likelihoods.Categorical(ignore_index=0).divergence(teacher[None], student, temperature)
    p, q = (Categorical(logits=one.movedim(1, -1) / temperature) for one in (teacher, student))
    expected = temperature**2 * kl_divergence(p, q).reshape(5, -1).sum(1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_several_teachers_of_classes_are_the_mean_of_their_probabilities(temperature: float) -> None:
    teachers, student = drawn(3, 5, 4), drawn(5, 4, seed=1)
    found = likelihoods.Categorical().divergence(teachers, student, temperature)
    p = Categorical(probs=(teachers / temperature).softmax(-1).mean(0))
    expected = temperature**2 * kl_divergence(p, Categorical(logits=student / temperature))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("count", [1, 3])
def test_labels(temperature: float, count: int) -> None:
    teachers, student = drawn(count, 5, 4), drawn(5, 4, seed=1)
    found = likelihoods.Bernoulli(pos_weight=3.0).divergence(teachers, student, temperature)
    p = Bernoulli(probs=(teachers / temperature).sigmoid().mean(0))
    expected = temperature**2 * kl_divergence(p, Bernoulli(logits=student / temperature)).sum(1)
    torch.testing.assert_close(found, expected)


def test_certain_teachers_have_no_infinite_divergence() -> None:
    teacher, student = torch.tensor([[1e4, 0.0]]), torch.zeros(1, 2, requires_grad=True)
    for likelihood in (likelihoods.Categorical(), likelihoods.Bernoulli()):
        found = likelihood.divergence(teacher[None], student)
        assert torch.autograd.grad(found.sum(), student)[0].isfinite().all()
        assert found.isfinite().all()


@pytest.mark.parametrize("count", [1, 3])
def test_real_targets_with_a_noise_of_the_teachers_own(count: int) -> None:
    teachers, student = drawn(count, 5, 2), drawn(5, 2, seed=1)
    own, theirs = likelihoods.Gaussian(sd=0.7), likelihoods.Gaussian(sd=1.3)
    found = own.divergence(teachers, student, likelihood=theirs)
    sd = (theirs.sd().detach().double() ** 2 + teachers.var(0, correction=0)).sqrt()
    expected = kl_divergence(Normal(teachers.mean(0), sd), Normal(student, own.sd().detach().double())).sum(1)
    torch.testing.assert_close(found.detach(), expected)
    found.sum().backward()
    assert own._sd.grad is not None  # the noise learns from a teacher that has one


def test_real_targets_with_the_students_noise() -> None:
    teacher, student = drawn(5, 2), drawn(5, 2, seed=1)
    own = likelihoods.Gaussian(sd=0.7)
    found = own.divergence(teacher[None], student.requires_grad_())
    torch.testing.assert_close(found, ((teacher - student) ** 2).sum(1) / (2 * own.sd().detach().double() ** 2))
    found.sum().backward()
    assert own._sd.grad is None  # it would grow for ever


@pytest.mark.parametrize("count", [1, 3])
def test_real_targets_with_predicted_noise(count: int) -> None:
    teachers, student = drawn(count, 5, 4), drawn(5, 4, seed=1)
    own = likelihoods.HeteroscedasticGaussian(min_sd=0.1)
    mean, raw = teachers.chunk(2, -1)
    variance = (0.1 + F.softplus(raw)).square().mean(0) + mean.var(0, correction=0)
    expected = kl_divergence(
        Normal(mean.mean(0), variance.sqrt()), Normal(student[:, :2], 0.1 + F.softplus(student[:, 2:]))
    ).sum(1)
    torch.testing.assert_close(own.divergence(teachers, student), expected)


def test_a_teacher_with_predicted_noise_teaches_one_with_the_same_everywhere() -> None:
    teacher, student, theirs = drawn(5, 4), drawn(5, 2, seed=1), likelihoods.HeteroscedasticGaussian()
    own = likelihoods.Gaussian(sd=0.7)
    p, q = Normal(*theirs.split(teacher)), Normal(student, own.sd().detach().double())
    found = own.divergence(teacher[None], student, likelihood=theirs)
    torch.testing.assert_close(found.detach(), kl_divergence(p, q).sum(1))


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "gaussian"])
def test_other_outputs_than_the_students_are_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=r"the teacher predicts \(5, 4\), the student \(5, 3\)"):
        likelihoods.get(name).divergence(drawn(1, 5, 4), drawn(5, 3))  # type: ignore[attr-defined]


def test_a_likelihood_of_ones_own_says_what_is_missing() -> None:
    with pytest.raises(TypeError, match=r"this likelihood does not say .*: use one of bnn.likelihoods, or define"):
        likelihoods.about(F.cross_entropy).divergence(drawn(1, 2, 2), drawn(2, 2))
