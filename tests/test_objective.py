"""The objective against its definition, written out by hand."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import SIZES, sizes_of
from torch import Tensor, nn

import bnn
from bnn.functional.gaussian import KLError
from bnn.likelihoods import Categorical, Gaussian
from bnn.objective import ELBO, ELBOResult, kl_divergence

FAMILIES: dict[str, dict[str, Any]] = {
    "ffg": {"inference": "ffg", "init_sd": 0.1},
    "fcg": {"inference": "fcg", "init_sd": 0.1},
    "inducing": {"inference": "inducing", "init_lamda": 0.1, **SIZES},
    "ensemble": {"inference": "inducing", "q_inducing": "ensemble", "ensemble_size": 3, "init_lamda": 0.1, **SIZES},
    "inducingdeterministic": {"inference": "inducingdeterministic", **SIZES},
}


def make_net(family: str = "inducing", **options: Any) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    bnn.bayesianize_(net, **(FAMILIES[family] | options))
    return net


def batch(n: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5), torch.randint(3, (n,))


class Squared(nn.Module):
    """A foreign Bayesian layer: all it shows is a KL."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([3.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x

    def kl_divergence(self) -> Tensor:
        return self.p.square().sum()


# ---- the KL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_kl_is_the_sum_over_modules(family):
    net = make_net(family)
    by_hand = sum(m.kl_divergence() for m in net.modules() if hasattr(m, "kl_divergence"))
    torch.testing.assert_close(kl_divergence(net), by_hand)


def test_tied_layers_count_once():
    layer = nn.Linear(4, 4)
    net = nn.Sequential(layer, nn.Tanh(), layer)
    bnn.bayesianize_(net, "ffg")
    torch.testing.assert_close(kl_divergence(net), net[0].kl_divergence())


def test_a_wrapper_does_not_count_what_it_wraps_twice():
    class Wrapper(nn.Module):  # as torch.compile's
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return self._modules["inner"] if name == "inner" else getattr(self._modules["inner"], name)

    layer = bnn.nn.FFGLinear(4, 4)
    assert hasattr(Wrapper(layer), "kl_divergence")
    torch.testing.assert_close(kl_divergence(Wrapper(layer)), layer.kl_divergence())


def test_foreign_layers_count():
    net = nn.Sequential(make_net("inducing"), Squared())
    torch.testing.assert_close(kl_divergence(net), 25 + kl_divergence(net[0]))
    out = ELBO(net, 10, "categorical")(*batch())
    parts = [m.kl_parts() for m in (net[0][0], net[0][2])]
    torch.testing.assert_close(out.kl_u, (25 + sum(part.u for part in parts)) / 10)
    torch.testing.assert_close(out.kl_lamda, sum(part.lamda for part in parts) / 10)


def test_global_inducing_weights_count():
    net = make_net("inducing", inducing_rows=2, inducing_cols=2)
    bnn.register_global_inducing_weights_(net, 2, 2, init_lamda=0.1)
    owner = net._global_inducing_module.kl_parts()
    out = ELBO(net, 10, "categorical")(*batch())
    torch.testing.assert_close(out.kl_u, owner.u / 10)
    layers = sum(net[i].kl_parts().lamda for i in (0, 2))
    torch.testing.assert_close(out.kl_lamda, (owner.lamda + layers) / 10)


def test_a_plain_network_has_no_kl():
    with pytest.raises(ValueError, match="convert it first"):
        kl_divergence(nn.Linear(3, 2))


# ---- the parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_by_hand(family):
    net = make_net(family)
    x, y = batch()
    with bnn.frozen_draw(net, seed=1):
        out = ELBO(net, num_data=50, likelihood="categorical", kl_weight=0.3)(x, y)
        data = F.cross_entropy(net(x), y)
    parts = [layer.kl_parts() for layer in (net[0], net[2])]
    kl_u, kl_lamda = sum(p.u for p in parts) / 50, sum(p.lamda for p in parts) / 50
    assert isinstance(out, ELBOResult)
    assert out.kl_scale == 0.3
    torch.testing.assert_close(out.data, data)
    torch.testing.assert_close(out.kl_u, kl_u)
    torch.testing.assert_close(out.kl_lamda, kl_lamda)
    torch.testing.assert_close(out.loss, data + 0.3 * (kl_u + kl_lamda))
    assert all(part.shape == () for part in out[:4])


def test_gradient_reaches_every_parameter_and_the_noise():
    net = make_net("inducing", q_inducing="full")
    elbo = ELBO(net, 50, Gaussian())
    elbo(torch.randn(6, 5), torch.randn(6, 3)).loss.backward()
    parameters = dict(elbo.named_parameters())
    assert "likelihood._sd" in parameters
    assert set(parameters) == {f"net.{name}" for name, _ in net.named_parameters()} | {"likelihood._sd"}
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in parameters.values())


def test_gradients_of_batches_add_up_to_the_whole_data_set():
    net = make_net("ffg", init_sd=1e-9)  # nearly no noise: gradients can be compared
    x, y = batch(12)
    elbo = ELBO(net.double(), num_data=12, likelihood="categorical")
    elbo(x.double(), y).loss.backward()
    whole = [p.grad.clone() for p in elbo.parameters()]
    elbo.zero_grad()
    for i in range(0, 12, 4):
        (elbo(x[i : i + 4].double(), y[i : i + 4]).loss / 3).backward()  # accumulated over three batches
    for p, expected in zip(elbo.parameters(), whole, strict=True):
        torch.testing.assert_close(p.grad, expected, rtol=1e-5, atol=1e-5)


def test_a_plain_network_is_maximum_likelihood():
    net, (x, y) = nn.Linear(5, 3), batch()
    out = ELBO(net, 50, "categorical", warmup=1)(x, y, epoch=9)
    torch.testing.assert_close(out.loss, F.cross_entropy(net(x), y))
    assert (out.kl_u, out.kl_lamda, out.kl_scale) == (0, 0, 1.0)


def test_half_precision_data_term_does_not_round_the_kl():
    net, (x, y) = make_net("inducing"), batch()
    out = ELBO(net, 50, lambda output, target: F.cross_entropy(output, target).bfloat16())(x, y)
    assert {part.dtype for part in out[:4]} == {torch.float32}
    torch.testing.assert_close(50 * (out.kl_u + out.kl_lamda), kl_divergence(net))


def test_modes_and_types_reach_the_network():
    elbo = ELBO(nn.Sequential(nn.Dropout(), make_net()), 50, Categorical(class_weights=[1.0, 2.0, 3.0]))
    assert not elbo.eval().net[0].training
    x, y = batch()
    assert elbo.double()(x.double(), y).loss.dtype == torch.float64


# ---- several draws ---------------------------------------------------------------------------------------------------


def test_samples_are_averaged():
    net, (x, y) = make_net("ffg", init_sd=0.5), batch()
    seen: list[Tensor] = []

    def likelihood(output: Tensor, target: Tensor) -> Tensor:
        seen.append(F.cross_entropy(output, target))
        return seen[-1]

    out = ELBO(net, 50, likelihood, samples=5)(x, y)
    assert len({value.item() for value in seen}) == 5
    torch.testing.assert_close(out.data, torch.stack(seen).mean())


def test_samples_use_ensemble_members_evenly():
    net, x = make_net("ensemble", max_lamda=0.0), torch.randn(6, 5)
    seen: list[Tensor] = []

    def likelihood(output: Tensor, target: Tensor) -> Tensor:
        seen.append(output.detach())
        return output.square()

    for _ in range(4):
        seen.clear()
        ELBO(net, 50, likelihood, samples=6)(x, None)
        counts = [sum(torch.equal(a, b) for b in seen) for a in seen]
        assert counts == [2] * 6


def test_a_layer_that_runs_twice_shows_one_function_per_draw():
    layer = nn.Linear(5, 5)
    net = nn.Sequential(layer, layer)
    bnn.bayesianize_(net, "inducing", init_lamda=0.5, sampling="weight", **SIZES)
    calls: list[Any] = []
    outputs: list[Tensor] = []
    run_each, x = layer.run_each, torch.randn(6, 5)
    layer.run_each = lambda input, weights: calls.append(weights) or run_each(input, weights)
    ELBO(net, 50, lambda output, target: outputs.append(output) or output.square(), samples=2)(x, None)
    assert len(calls) == 2  # both draws at once
    assert all(torch.equal(first, second) for first, second in zip(*calls, strict=True))
    assert not torch.equal(calls[0].weight[0], calls[0].weight[1])
    for output, weight, bias in zip(outputs, *calls[0], strict=True):
        torch.testing.assert_close(output, F.linear(F.linear(x, weight, bias), weight, bias))


# ---- annealing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warmup", "anneal", "epoch", "factor"),
    [
        (0, 0, None, 1.0),
        (0, 0, 3, 1.0),
        (50, 40, 0, 0.0),
        (50, 40, 49.999, 0.0),
        (50, 40, 50, 0.0),
        (50, 40, 60, 0.25),
        (50, 40, 70.5, 20.5 / 40),
        (50, 40, 90, 1.0),
        (50, 40, 99, 1.0),
        (2, 0, 1, 0.0),
        (2, 0, 2, 1.0),
        (0, 4, 0, 0.0),
        (0, 4, 1, 0.25),
        (0, 0.5, 0.25, 0.5),
    ],
)
@pytest.mark.parametrize("kl_weight", [1.0, 0.1])
def test_annealing(warmup, anneal, epoch, factor, kl_weight):
    net, (x, y) = make_net(), batch()
    elbo = ELBO(net, 50, "categorical", warmup=warmup, anneal=anneal, kl_weight=kl_weight)
    out = elbo(x, y, epoch=epoch)
    assert out.kl_scale == pytest.approx(kl_weight * factor, abs=0)
    torch.testing.assert_close(50 * (out.kl_u + out.kl_lamda), kl_divergence(net))  # the parts are not annealed
    torch.testing.assert_close(out.loss, out.data + kl_weight * factor * (out.kl_u + out.kl_lamda))


@pytest.mark.parametrize("schedule", [{"warmup": 3}, {"anneal": 3}])
def test_annealing_needs_the_epoch(schedule):
    elbo = ELBO(make_net(), 50, "categorical", **schedule)
    with pytest.raises(ValueError, match=r"elbo\(x, y, epoch=epoch\)"):
        elbo(*batch())
    with pytest.raises(ValueError, match="epoch must be a finite number, got nan"):
        elbo(*batch(), epoch=math.nan)


@pytest.mark.parametrize("switched_off", [{"warmup": 1}, {"kl_weight": 0.0}])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_bad_kl_does_not_spoil_the_warmup(switched_off, bad):
    net = nn.Sequential(nn.Linear(5, 3), Squared())
    with torch.no_grad():
        net[1].p[0] = bad
    out = ELBO(net, 50, "categorical", **switched_off)(*batch(), epoch=0)
    out.loss.backward()
    assert out.loss.isfinite()
    assert net[0].weight.grad.isfinite().all()
    assert net[1].p.grad is None


# ---- function space --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_data", "betas"), [(3, (3 / 6, 3 / 9)), (7, (1.0, 7 / 9)), (100, (1.0, 1.0))])
def test_function_space_scales_the_lamda_part(num_data, betas):
    net = make_net("inducing")  # d_in = 5 + 1 and 8 + 1: the bias counts
    out = ELBO(net, num_data, "categorical", function_space=True)(*batch())
    parts = [net[0].kl_parts(), net[2].kl_parts()]
    lamda = sum(beta * part.lamda for beta, part in zip(betas, parts, strict=True))
    torch.testing.assert_close(out.kl_lamda, lamda / num_data)
    torch.testing.assert_close(out.kl_u, sum(part.u for part in parts) / num_data)


# ---- inputs and likelihoods ------------------------------------------------------------------------------------------


class TwoInputs(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return 2 * first + second


@pytest.mark.parametrize("kind", [tuple, list, lambda pair: dict(zip(("first", "second"), pair, strict=True))])
def test_inputs_of_several_tensors(kind):
    first, second = torch.randn(6, 3), torch.randn(6, 3)
    out = ELBO(TwoInputs(), 50, lambda output, target: (output - target).square().mean())(
        kind((first, second)), 2 * first + second
    )
    assert out.data == 0


def test_a_packed_sequence_is_one_input():
    class Last(nn.GRU):
        def forward(self, x: Any) -> Tensor:
            return super().forward(x)[1][-1]

    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 2), torch.randn(3, 2)])
    assert ELBO(Last(2, 3), 50, "categorical")(packed, torch.tensor([0, 1])).loss.isfinite()


@pytest.mark.parametrize(
    "likelihood",
    [
        "categorical",
        Categorical(),
        F.cross_entropy,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="none"),
        lambda output, target: -output.log_softmax(1) * F.one_hot(target, 3),  # (N, C): summed per datum
    ],
)
def test_any_callable_is_a_likelihood(likelihood):
    net, (x, y) = make_net(), batch()
    with bnn.frozen_draw(net):
        torch.testing.assert_close(ELBO(net, 50, likelihood)(x, y).data, F.cross_entropy(net(x), y))


def test_dense_predictions_are_summed_per_input():
    net, x, y = nn.Conv2d(2, 3, 1), torch.randn(4, 2, 5, 5), torch.randint(3, (4, 5, 5))
    expected = 25 * F.cross_entropy(net(x), y)  # torch: the mean over 4 * 25 pixels
    torch.testing.assert_close(ELBO(net, 50, "categorical")(x, y).data, expected)
    torch.testing.assert_close(ELBO(net, 50, nn.CrossEntropyLoss(reduction="none"))(x, y).data, expected)


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"num_data": 0}, "num_data must be an integer >= 1, got 0"),
        ({"num_data": 50.0}, "num_data must be an integer"),
        ({"samples": 0}, "samples must be an integer >= 1"),
        ({"warmup": -1}, "warmup must be a finite number >= 0"),
        ({"anneal": math.inf}, "anneal must be a finite number >= 0"),
        ({"kl_weight": -0.1}, "kl_weight must be a finite number >= 0"),
        ({"function_space": 1}, "function_space must be true or false"),
        ({"likelihood": "softmax"}, "unknown likelihood 'softmax'"),
    ],
)
def test_arguments_are_checked(arguments, match):
    with pytest.raises(ValueError, match=match):
        ELBO(**({"net": nn.Linear(5, 3), "num_data": 50, "likelihood": "categorical"} | arguments))


def test_wrong_types_are_named():
    with pytest.raises(TypeError, match=r"net must be a torch.nn.Module, got function"):
        ELBO(lambda x: x, 50, "categorical")
    with pytest.raises(TypeError, match="the likelihood must return a tensor, got float"):
        ELBO(nn.Linear(5, 3), 50, lambda output, target: 1.0)(*batch())


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("bayesian", [True, False])
def test_an_empty_batch_is_refused(bayesian: bool, samples: int):
    """Its mean would be nan; before anything runs."""
    net = make_net() if bayesian else nn.Linear(5, 3)
    net.register_forward_pre_hook(lambda *_: pytest.fail("the network ran"))
    x, y = batch(0)
    for given in (x, (x,), {"input": x}):
        with pytest.raises(ValueError, match="the batch is empty"):
            ELBO(net, 50, "categorical", samples=samples)(given, y)


# ---- a KL that no number holds ---------------------------------------------------------------------------------------


def set_to(name, value):
    def change(net):
        with torch.no_grad():
            getattr(net[2], name).fill_(value)

    return change


EXTREMES = {
    "sd of u": ("inducing", {}, set_to("_inducing_sd", 1e20)),
    "u": ("inducing", {}, set_to("inducing_mean", 1e25)),
    "nan u": ("inducing", {}, set_to("inducing_mean", math.nan)),
    "lamda": ("inducing", {}, set_to("_lamda", math.inf)),
    "narrow prior": ("inducing", {"prior_sd": 1e-30}, None),
    "narrow prior of ffg": ("ffg", {"prior_weight_sd": 1e-30}, None),
    "wide start of ffg": ("ffg", {"init_sd": 1e30}, None),
    "nan mean of ffg": ("ffg", {}, set_to("weight_mean", math.nan)),
    "narrow prior of fcg": ("fcg", {"prior_weight_sd": 1e-30}, None),
}


@pytest.mark.parametrize("case", list(EXTREMES))
def test_a_kl_beyond_all_numbers_names_the_layer(case):
    family, options, change = EXTREMES[case]
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    bnn.bayesianize_(net, {"2": family}, **sizes_of(family), **options)
    if change is not None:
        change(net)
    with pytest.raises(KLError, match=rf"the KL of layer '2' \(family={family}, .*\) is (inf|nan): its parameters"):
        bnn.kl_divergence(net)
    with pytest.raises(KLError, match="the KL of layer '2'"):
        ELBO(net, 50, "categorical")(*batch())
    with pytest.raises(KLError, match=f"family={family}"):
        net[2].kl_divergence()


@pytest.mark.parametrize("case", ["sd of u", "narrow prior", "wide start of ffg"])
def test_in_float64_there_is_room_for_it(case):
    family, options, change = EXTREMES[case]
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    bnn.bayesianize_(net, {"2": family}, **sizes_of(family), **options)
    if change is not None:
        change(net)
    assert bnn.kl_divergence(net).isfinite()


def test_a_foreign_kl_is_named_too():
    net = nn.Sequential(nn.Linear(5, 3), Squared())
    with torch.no_grad():
        net[1].p[0] = math.inf
    with pytest.raises(KLError, match=r"the KL of layer '1' \(a module of your own\) is inf"):
        bnn.kl_divergence(net)
