"""The objective with a teacher, against losses that are written out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnn
from bnn.likelihoods import Categorical, Gaussian
from bnn.teacher import TEMPERATURE, WEIGHT


def plain(seed: int = 0, out: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, out))


def converted(net: nn.Module, **options: Any) -> nn.Module:
    student = copy.deepcopy(net)
    bnn.bayesianize_(student, "inducing", inducing_rows=3, inducing_cols=3, init="paper", **options)
    return student


def batch(n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)


def divergence(teacher: Tensor, student: Tensor, t: float) -> Tensor:
    log_p, log_q = (teacher / t).log_softmax(1), (student / t).log_softmax(1)
    return t**2 * (log_p.exp() * (log_p - log_q)).sum(1)


def gradients(loss: Tensor, net: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(net.parameters())))


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_the_gradient_is_that_of_the_loss_written_out(weight: float) -> None:
    teacher, student, (x, y) = plain(1), plain(2), batch()
    elbo = bnn.ELBO(student, 50, "categorical", teacher=bnn.Teacher(teacher, weight, 2.0))
    found = elbo(x, y)
    output = student(x)
    taught = divergence(teacher(x).detach(), output, 2.0).mean()
    expected = (1 - weight) * F.cross_entropy(output, y) + weight * taught
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(gradients(found.loss, student), gradients(expected, student))


def test_the_kl_of_the_weights_counts_as_before() -> None:
    student, (x, y) = converted(plain()), batch()
    result = bnn.ELBO(student, 50, "categorical", teacher=bnn.Teacher(plain(1), 0.5))(x, y)
    torch.testing.assert_close(result.kl_u + result.kl_lamda, bnn.kl_divergence(student) / 50)
    torch.testing.assert_close(result.loss, result.data + result.kl_u + result.kl_lamda)


def test_a_weight_of_zero_changes_no_bit_and_one_ignores_targets() -> None:
    student, (x, y) = converted(plain()), batch()

    def loss(targets: Tensor | None, teacher: bnn.Teacher | None) -> Tensor:
        torch.manual_seed(3)
        return bnn.ELBO(student, 50, "categorical", samples=2, teacher=teacher)(x, targets).loss

    assert torch.equal(loss(y, bnn.Teacher(plain(1), 0.0)), loss(y, None))
    everything = loss(y, bnn.Teacher(plain(1), 1.0))
    assert torch.equal(everything, loss((y + 1) % 3, bnn.Teacher(plain(1), 1.0)))
    assert torch.equal(everything, loss(None, bnn.Teacher(plain(1), 0.5)))  # no targets: all weight on the teacher
    assert not torch.equal(everything, loss(y, bnn.Teacher(plain(1), 0.5)))


def test_the_defaults() -> None:
    teacher = bnn.Teacher(plain())
    assert (teacher.weight, teacher.temperature(Categorical()), teacher.temperature(Gaussian())) == (
        WEIGHT,
        TEMPERATURE,
        1.0,
    )


def test_with_split_every_draw_learns_what_the_teacher_says_about_its_share() -> None:
    teacher, student, (x, _) = plain(1), plain(2), batch(7)
    elbo = bnn.ELBO(student, 50, "categorical", samples=3, split=True, teacher=bnn.Teacher(teacher, 1.0, 1.0))
    torch.testing.assert_close(elbo(x, None).data, divergence(teacher(x), student(x), 1.0).mean())


def test_the_teacher_is_copied_and_is_no_part_of_the_objective() -> None:
    original, student, (x, y) = nn.Sequential(plain(1), nn.Dropout(0.5), nn.BatchNorm1d(3)), plain(2), batch()
    teacher = bnn.Teacher(original, 0.5)
    elbo = bnn.ELBO(student, 50, "categorical", teacher=teacher)
    assert {*elbo.state_dict()} == {f"net.{name}" for name in student.state_dict()}
    assert {*elbo.parameters()} == {*student.parameters()}
    before = copy.deepcopy(original.state_dict())
    elbo(x, y).loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in original.state_dict().items())
    assert torch.equal(teacher.network[2].running_mean, torch.zeros(3))  # type: ignore[index]
    assert all(one.grad is None for one in [*original.parameters(), *teacher.network.parameters()])
    assert original.training
    states = []
    for one in (elbo, bnn.ELBO(student, 50, "categorical")):
        torch.manual_seed(0)
        one(x, y)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)  # no dropout, no draw


def test_a_bayesian_teacher_speaks_at_its_posterior_mean() -> None:
    original, student, (x, _) = converted(plain(1)), plain(2), batch()
    expected = divergence(bnn.draws(original, x, samples=0)[0], student(x), 1.0).mean()
    elbo = bnn.ELBO(student, 50, "categorical", teacher=bnn.Teacher(original, 1.0, 1.0))
    torch.testing.assert_close(elbo(x, None).data, expected)


def test_a_calibrated_teacher_divides_its_logits_by_its_own_temperature() -> None:
    original, student, (x, y) = plain(1), plain(2), batch(200)
    t = bnn.calibrate_(original, (x, y), progress=False)
    assert t != 1
    elbo = bnn.ELBO(student, 50, "categorical", teacher=bnn.Teacher(original, 1.0, 1.0))
    torch.testing.assert_close(elbo(x, None).data, divergence(original(x) / t, student(x), 1.0).mean())


# ---- several teachers ------------------------------------------------------------------------------------------------


def test_an_ensemble_teaches_one_network_by_its_mean_probabilities() -> None:
    members, student, (x, _) = [plain(1), plain(2)], plain(3), batch()
    elbo = bnn.ELBO(student, 50, "categorical", teacher=bnn.Teacher(bnn.Ensemble(members), 1.0, 1.0))
    p = torch.stack([member(x).softmax(1) for member in members]).mean(0)
    expected = (p * (p.log() - student(x).log_softmax(1))).sum(1).mean()
    torch.testing.assert_close(elbo(x, None).data, expected)


@pytest.mark.parametrize("samples", [1, 3])
def test_member_k_of_an_ensemble_learns_from_teacher_k(samples: int) -> None:
    """Members that equal their teachers have nothing to learn, whichever draw shows them."""
    teachers = bnn.Ensemble([plain(1), plain(2), plain(3)])
    student, (x, _) = copy.deepcopy(teachers), batch()
    elbo = bnn.ELBO(student, 50, "categorical", samples, teacher=bnn.Teacher(teachers, 1.0))
    assert elbo(x, None).data.abs() < 1e-5
    turned = bnn.Ensemble([*student.members[1:], student.members[0]])
    assert bnn.ELBO(turned, 50, "categorical", teacher=bnn.Teacher(teachers, 1.0))(x, None).data > 0.01


@pytest.mark.parametrize(("samples", "split"), [(1, False), (3, False), (3, True), (4, False)])
def test_member_k_of_ensemble_u_learns_from_teacher_k(samples: int, split: bool) -> None:
    """The teachers are the members themselves, at their means: only they have nothing to learn."""
    options: dict[str, Any] = {"q_inducing": "ensemble", "ensemble_size": 3, "max_lamda": 0.0}
    student, (x, _) = converted(plain(), **options), batch()
    with torch.no_grad():
        for name, value in student.named_parameters():
            if value.ndim == 3:  # the members of U
                value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name))))
    teachers = bnn.Ensemble([Shown(student, member) for member in range(3)])
    elbo = bnn.ELBO(student, 50, "categorical", samples, split=split, teacher=bnn.Teacher(teachers, 1.0))
    for seed in range(6):
        torch.manual_seed(seed)
        assert elbo(x, None).data.abs() < 1e-4
    turned = bnn.Ensemble([Shown(student, (member + 1) % 3) for member in range(3)])
    assert bnn.ELBO(student, 50, "categorical", samples, teacher=bnn.Teacher(turned, 1.0))(x, None).data > 0.01


class Shown(nn.Module):
    """One member of Ensemble-U as a plain network: a linear map, a ReLU and a linear map with that member's weights."""

    def __init__(self, net: Any, member: int) -> None:
        super().__init__()
        from bnn._engine.draw import Draw
        from bnn._engine.forward import Forward, open_forward

        self.layers = nn.ModuleList()
        with torch.no_grad(), open_forward(Forward(Draw(members=[member]), root=net, pinned=True)):
            for layer in (net[0], net[2]):
                one = nn.Linear(layer.in_features, layer.out_features)
                one.bias.copy_(layer(torch.zeros(1, layer.in_features))[0])
                one.weight.copy_((layer(torch.eye(layer.in_features)) - one.bias).T)
                self.layers.append(one)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layers[1](self.layers[0](x).relu())
        return output


@pytest.mark.parametrize("kind", ["ensemble", "ensemble-u"])
def test_another_number_of_members_is_an_error(kind: str) -> None:
    options: dict[str, Any] = {"q_inducing": "ensemble", "ensemble_size": 3}
    student = bnn.Ensemble(plain(), 3) if kind == "ensemble" else converted(plain(), **options)
    with pytest.raises(ValueError, match=r"the student has 3 members and the teacher 2: member k learns from teacher"):
        bnn.ELBO(student, 50, "categorical", teacher=bnn.Teacher(bnn.Ensemble(plain(), 2)))
    bnn.ELBO(student, 50, "categorical", teacher=bnn.Teacher(plain()))  # one teaches all


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": 1.5}, r"teacher_weight must lie in \[0, 1\], got 1.5"),
        ({"weight": -0.1}, r"teacher_weight must be a finite number >= 0"),
        ({"temperature": 0}, r"teacher_temperature must be a finite number > 0"),
    ],
)
def test_values_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bnn.Teacher(plain(), **options)


def test_a_likelihood_that_is_no_likelihood() -> None:
    with pytest.raises(TypeError, match=r"teacher_likelihood must be an object of bnn.likelihoods"):
        bnn.Teacher(plain(), likelihood="gaussian")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"teacher_likelihood is Categorical, the student's Gaussian"):
        bnn.ELBO(plain(), 5, "gaussian", teacher=bnn.Teacher(plain(), likelihood=Categorical()))


def test_a_temperature_is_for_logits() -> None:
    with pytest.raises(ValueError, match=r"teacher_temperature=2.0 divides logits, and outputs are none under Gauss"):
        bnn.ELBO(plain(), 5, "gaussian", teacher=bnn.Teacher(plain(), temperature=2.0))


def test_a_function_as_likelihood_is_an_error_at_once() -> None:
    with pytest.raises(TypeError, match=r"does not say how far a teacher's prediction"):
        bnn.ELBO(plain(), 5, F.cross_entropy, teacher=bnn.Teacher(plain()))


def test_a_teacher_with_two_outputs_is_an_error() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(TypeError, match="a teacher must return one tensor, this one returns a tuple"):
        bnn.ELBO(plain(), 5, "categorical", teacher=bnn.Teacher(Two()))(*batch())
