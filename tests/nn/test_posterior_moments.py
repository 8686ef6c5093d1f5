"""Layers against dense Gaussians: moments of sampled weights, KL divergences, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import sample_of_u
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import bnn
from bnn._engine.draw import Draw
from bnn._engine.noise import Seeds
from bnn.functional.linalg import inverse_softplus, pack_tril

EXACT = 1e-10  # tolerance of what is exact but for float64 rounding
ERRORS = 5.0  # tolerance of Monte Carlo, in standard errors
DRAWS = 100_000
SIGMA, LAMDA = 1.3, 0.7

Moments = tuple[Tensor, Tensor]  # of W flattened row-major, the bias as the last column

SHAPES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], tuple, dict[str, Any]]] = {
    "linear": (bnn.nn.InducingLinear, bnn.nn.FFGLinear, bnn.nn.FCGLinear, (3, 2), {}),
    "no bias": (bnn.nn.InducingLinear, bnn.nn.FFGLinear, bnn.nn.FCGLinear, (4, 3), {"bias": False}),
    "conv": (
        bnn.nn.InducingConv2d,
        bnn.nn.FFGConv2d,
        bnn.nn.FCGConv2d,
        (4, 2, (2, 1)),
        {"groups": 2, "stride": 2, "padding": 1},
    ),
}
POSTERIORS = ["diagonal", "matrix", "full", "ensemble"]
WHITENED = pytest.mark.parametrize("whitened", [True, False], ids=["whitened", "unwhitened"])


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double)


def scales(*shape: int) -> Tensor:
    return 0.3 + 0.7 * torch.rand(*shape, dtype=torch.double)


def tril(n: int) -> Tensor:
    return 0.4 * randn(n, n).tril(-1) + torch.diag(scales(n))


def inducing(shape: str, q: str = "diagonal", whitened: bool = True, sizes: tuple[int, int] = (2, 3), **k: Any) -> Any:
    """A layer in float64 with random parameters in which every noise term carries weight."""
    make, _, _, arguments, options = SHAPES[shape]
    options = options | {"inducing_rows": sizes[0], "inducing_cols": sizes[1], "prior_sd": SIGMA, "ensemble_size": 3}
    layer = make(*arguments, dtype=torch.double, q_inducing=q, whitened_u=whitened, **(options | k))
    (m_out, _), (m_in, _) = layer.z_row.shape, layer.z_col.shape
    fresh = {
        "z_row": 0.6 * randn(*layer.z_row.shape),
        "z_col": 0.6 * randn(*layer.z_col.shape),
        "_d_row": inverse_softplus(scales(m_out)),
        "_d_col": inverse_softplus(scales(m_in)),
        "_lamda": inverse_softplus(torch.tensor(LAMDA, dtype=torch.double)),
        "inducing_mean": randn(*layer.inducing_mean.shape),
        "_inducing_sd": inverse_softplus(scales(m_out, m_in)),
        "_inducing_row_scale_tril": pack_tril(tril(m_out)),
        "_inducing_col_scale_tril": pack_tril(tril(m_in)),
        "_inducing_scale_tril": pack_tril(tril(m_out * m_in)),
    }
    with torch.no_grad():
        for name, value in fresh.items():
            if name in dict(layer.state_dict()):
                layer.load_state_dict({name: value}, strict=False)
    return layer


# ---- the dense posterior, from the layer's parameters and the paper's formulas ---------------------------------------


def softplus(raw: Tensor) -> Tensor:
    return torch.log1p(torch.exp(raw))


def unpacked(packed: Tensor, n: int) -> Tensor:
    T = torch.diag(softplus(packed[:n]))
    below = iter(packed[n:])
    for i in range(n):
        for j in range(i):
            T[i, j] = next(below)
    return T


def q_of_u(state: dict[str, Tensor], q: str) -> Moments:
    """Mean and covariance of vec U (row-major), or of vec u where it is whitened."""
    mean = state["inducing_mean"]
    if q == "ensemble":
        members = mean.flatten(1)
        centred = members - members.mean(0)
        return members.mean(0), centred.T @ centred / len(members)
    if q == "full":
        T = unpacked(state["_inducing_scale_tril"], mean.numel())
    elif q == "matrix":
        m_out, m_in = mean.shape
        row, col = state["_inducing_row_scale_tril"], state["_inducing_col_scale_tril"]
        T = torch.kron(unpacked(row, m_out), unpacked(col, m_in))
    else:
        T = torch.diag(softplus(state["_inducing_sd"]).flatten())
    return mean.flatten(), T @ T.T


def psis(state: dict[str, Tensor]) -> list[Tensor]:
    return [
        state[f"z_{s}"] @ state[f"z_{s}"].T + torch.diag(softplus(state[f"_d_{s}"]).square()) for s in ("row", "col")
    ]


def conditional_covariance(state: dict[str, Tensor]) -> Tensor:
    """Cov[vec W | U] of the prior, row-major."""
    projections = [
        state[f"z_{side}"].T @ torch.linalg.inv(psi) @ state[f"z_{side}"]
        for side, psi in zip(("row", "col"), psis(state), strict=True)
    ]
    P = torch.kron(*projections)
    return SIGMA**2 * (torch.eye(len(P), dtype=torch.double) - P)


def dense_posterior(layer: Any, q: str, whitened: bool, lamda: float = LAMDA) -> Moments:
    """E[W] = G E[U], Cov[W] = G Cov[U] G^T + lamda^2 sigma^2 (I - P_r (x) P_c), G = sigma Z_r^T Psi_r^-1 (x) ..."""
    state = layer.state_dict()
    mean, covariance = q_of_u(state, q)
    psi_row, psi_col = psis(state)
    if whitened:
        colour = torch.kron(torch.linalg.cholesky(psi_row), torch.linalg.cholesky(psi_col))
        mean, covariance = colour @ mean, colour @ covariance @ colour.T
    gains = [state["z_row"].T @ torch.linalg.inv(psi_row), state["z_col"].T @ torch.linalg.inv(psi_col)]
    G = SIGMA * torch.kron(*(gain.contiguous() for gain in gains))
    return G @ mean, G @ covariance @ G.T + lamda**2 * conditional_covariance(state)


# ---- the moments a layer has -----------------------------------------------------------------------------------------


def flat(weights: Any) -> Tensor:
    """Samples (K, ...) as W row-major, the bias as the last column: (K, d)."""
    W = weights.weight.flatten(2)
    return (W if weights.bias is None else torch.cat([W, weights.bias[..., None]], dim=2)).flatten(1)


def stacked(weights: Any) -> Any:
    """One set of weights as K = 1 samples."""
    return type(weights)(*(None if part is None else part[None] for part in weights))


class ScriptedNoise:
    """Stands in for `Draw.normals` and hands out a given vector piece by piece."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noise: Tensor | None = None
        self.used = 0
        monkeypatch.setattr(Draw, "normals", lambda draw, *args, like, **_: self(draw.count, *args[2:], like=like))

    def __call__(self, *shape: int, like: Tensor) -> Tensor:
        first, self.used = self.used, self.used + math.prod(shape)
        return torch.zeros(shape, dtype=like.dtype) if self.noise is None else self.noise[first : self.used].view(shape)

    def moments(self, sample: Callable[[], Tensor]) -> Moments:
        """Exact mean and covariance of `sample()`, which is affine in the noise."""
        self.noise, self.used = None, 0
        mean = sample()

        def shifted(noise: Tensor) -> Tensor:
            self.noise, self.used = noise, 0
            return sample() - mean

        J = torch.func.vmap(shifted)(torch.eye(self.used, dtype=torch.double))
        return mean, J.T @ J


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedNoise]:
    with torch.no_grad():
        yield ScriptedNoise(monkeypatch)


def mixture(parts: list[Moments]) -> Moments:
    means = torch.stack([mean for mean, _ in parts])
    centred = means - means.mean(0)
    within = torch.stack([covariance for _, covariance in parts]).mean(0)
    return means.mean(0), within + centred.T @ centred / len(parts)


def by_member(layer: Any, scripted: ScriptedNoise, members: int) -> list[Moments]:
    """Of one draw of `sample_weights`, over the noise, for every member of an ensemble."""
    return [scripted.moments(lambda k=k: flat(layer.sample_weights(Draw(members=[k])))[0]) for k in range(members)]


def exact_moments(layer: Any, scripted: ScriptedNoise, members: int) -> Moments:
    """Of `sample_weights`, over the noise and, evenly, over the members of an ensemble."""
    return mixture(by_member(layer, scripted, members))


def side_by_side(parts: list[Moments]) -> Moments:
    """Of independent vectors, one after the other."""
    return torch.cat([mean for mean, _ in parts]), torch.block_diag(*(covariance for _, covariance in parts))


def sampled(layer: Any, draws: int) -> Tensor:
    """Draws of `sample_weights` (draws, d), all at once."""
    with torch.no_grad():
        return flat(layer.sample_weights(Draw(count=draws)))


def assert_moments(got: Moments, expected: Moments) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=EXACT, rtol=EXACT)


def assert_samples(samples: Tensor, expected: Moments, gaussian: bool = True) -> None:
    """Mean and covariance of samples (N, d) within 5 standard errors."""
    mean, covariance = expected
    products = (samples - mean)[:, :, None] * (samples - mean)[:, None, :]
    n, variance = len(samples), covariance.diagonal()
    spread = torch.outer(variance, variance) + covariance**2 if gaussian else products.var(0)
    assert ((samples.mean(0) - mean).abs() < ERRORS * (variance / n).sqrt()).all()
    assert ((products.mean(0) - covariance).abs() < ERRORS * (spread / n).sqrt()).all()


@WHITENED
@pytest.mark.parametrize("q", POSTERIORS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sizes", [(1, 2), (2, 4), (4, 6)])  # M below, at and above d of "linear"
def test_inducing_weights_have_the_dense_moments(
    sizes: tuple[int, int], shape: str, q: str, whitened: bool, scripted: ScriptedNoise
) -> None:
    layer = inducing(shape, q, whitened, sizes)
    expected = dense_posterior(layer, q, whitened)
    assert_moments(exact_moments(layer, scripted, 3 if q == "ensemble" else 1), expected)
    torch.testing.assert_close(flat(stacked(layer.mean_weights()))[0], expected[0], atol=EXACT, rtol=EXACT)


@WHITENED
@pytest.mark.parametrize("q", POSTERIORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_draws_at_once_are_independent(shape: str, q: str, whitened: bool, scripted: ScriptedNoise) -> None:
    """The joint moments of K = 3 draws, an ensemble's of three given members."""
    layer = inducing(shape, q, whitened)
    got = scripted.moments(lambda: flat(layer.sample_weights(Draw(count=3, members=[2, 0, 1]))).flatten())
    parts = by_member(layer, scripted, 3)
    assert_moments(got, side_by_side([parts[k] for k in (2, 0, 1)]))
    if q != "ensemble":
        assert_moments(got, side_by_side([dense_posterior(layer, q, whitened)] * 3))


@WHITENED
@pytest.mark.parametrize("q", POSTERIORS)
def test_inducing_weights_by_monte_carlo(q: str, whitened: bool) -> None:
    """100,000 draws through the layer's own randomness."""
    layer = inducing("linear", q, whitened)
    assert_samples(sampled(layer, DRAWS), dense_posterior(layer, q, whitened), gaussian=q != "ensemble")


def test_inducing_conv_by_monte_carlo() -> None:
    layer = inducing("conv")
    assert_samples(sampled(layer, DRAWS), dense_posterior(layer, "diagonal", True))


def test_the_noise_of_a_seeded_draw_is_independent_too() -> None:
    """1,000 numbers, and 1,000 draws of one: a generator that started over between u, C and W would correlate them."""
    layer = inducing("linear")
    with torch.no_grad():
        numbers = torch.cat([flat(layer.sample_weights(Draw(seeds=Seeds(layer, n)))) for n in range(1_000)])
        one = Draw(count=1_000, seeds=Seeds(layer, 7))
        at_once = flat(layer.sample_weights(one))
        parts = [one.only(start, min(start + 7, 1_000)) for start in range(0, 1_000, 7)]
        in_parts = torch.cat([flat(layer.sample_weights(part)) for part in parts])
        few = flat(layer.sample_weights(Draw(count=5, seeds=Seeds(layer, 7))))
    assert_samples(numbers, dense_posterior(layer, "diagonal", True))
    assert_samples(at_once, dense_posterior(layer, "diagonal", True))
    torch.testing.assert_close(in_parts, at_once, atol=EXACT, rtol=EXACT)  # a draw is the same in any company
    torch.testing.assert_close(few, at_once[:5], atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("q", ["diagonal", "matrix", "full"])
@pytest.mark.parametrize("shape", SHAPES)
def test_without_lamda_only_u_varies(shape: str, q: str, scripted: ScriptedNoise) -> None:
    layer = inducing(shape, q, max_lamda=0)
    assert_moments(exact_moments(layer, scripted, 1), dense_posterior(layer, q, True, lamda=0.0))


def test_inducingdeterministic_ignores_lamda(scripted: ScriptedNoise) -> None:
    source = inducing("linear")
    layer = bnn.nn.InducingDeterministicLinear(
        3, 2, dtype=torch.double, inducing_rows=2, inducing_cols=3, prior_sd=SIGMA
    )
    layer.load_state_dict(source.state_dict())
    assert_moments(exact_moments(layer, scripted, 1), dense_posterior(source, "diagonal", True, lamda=0.0))
    assert layer.kl_parts().u == source.kl_parts().u
    assert layer.kl_parts().lamda == 0


def test_a_map_estimate_of_u_leaves_the_conditional(scripted: ScriptedNoise) -> None:
    layer = inducing("linear", max_sd_u=0)
    mean, _ = dense_posterior(layer, "diagonal", True)
    assert_moments(exact_moments(layer, scripted, 1), (mean, LAMDA**2 * conditional_covariance(layer.state_dict())))


@pytest.mark.parametrize("shape", SHAPES)
def test_unwhitened_with_u_transformed_is_the_same_posterior(shape: str, scripted: ScriptedNoise) -> None:
    """q(U) = N(m, S) unwhitened and u = L_r^-1 U L_c^-T ~ q(u) whitened: the same W, the same KL."""
    coloured = inducing(shape, "full", whitened=False)
    white = inducing(shape, "full", whitened=True)
    state = coloured.state_dict()
    inverse = torch.linalg.inv(torch.kron(*(torch.linalg.cholesky(psi) for psi in psis(state))))
    mean, covariance = q_of_u(state, "full")
    T = torch.linalg.cholesky(inverse @ covariance @ inverse.T)
    white.load_state_dict(state | {"inducing_mean": inverse @ mean, "_inducing_scale_tril": pack_tril(T)})
    assert_moments(exact_moments(white, scripted, 1), exact_moments(coloured, scripted, 1))
    torch.testing.assert_close(white.kl_parts().u, coloured.kl_parts().u)
    torch.testing.assert_close(white.kl_parts().lamda, coloured.kl_parts().lamda)


# ---- KL of the inducing layers ---------------------------------------------------------------------------------------


def prior_of_u(layer: Any, whitened: bool) -> MultivariateNormal:
    psi_row, psi_col = psis(layer.state_dict())
    covariance = torch.eye(len(psi_row) * len(psi_col), dtype=torch.double)
    return MultivariateNormal(
        torch.zeros(len(covariance), dtype=torch.double), covariance if whitened else torch.kron(psi_row, psi_col)
    )


@WHITENED
@pytest.mark.parametrize("q", ["diagonal", "matrix", "full"])
@pytest.mark.parametrize("shape", SHAPES)
def test_kl_of_an_inducing_layer_is_the_dense_one(shape: str, q: str, whitened: bool) -> None:
    layer = inducing(shape, q, whitened)
    posterior = MultivariateNormal(*q_of_u(layer.state_dict(), q))
    S = conditional_covariance(layer.state_dict())
    zero = torch.zeros(len(S), dtype=torch.double)
    kl = layer.kl_parts()
    torch.testing.assert_close(kl.u, kl_divergence(posterior, prior_of_u(layer, whitened)), atol=1e-9, rtol=1e-9)
    given_u = kl_divergence(MultivariateNormal(zero, LAMDA**2 * S), MultivariateNormal(zero, S))
    torch.testing.assert_close(kl.lamda, given_u, atol=1e-9, rtol=1e-9)
    assert layer.kl_divergence() == kl.u + kl.lamda


@WHITENED
@pytest.mark.parametrize("q", ["diagonal", "matrix", "full"])
def test_kl_of_u_by_monte_carlo(q: str, whitened: bool) -> None:
    """E[log q(U) - log p(U)] over 100,000 of the layer's own draws of U."""
    layer = inducing("linear", q, whitened)
    with torch.no_grad():
        U = sample_of_u(layer, Draw(count=DRAWS)).flatten(1)
        kl = layer.kl_parts().u
    ratio = MultivariateNormal(*q_of_u(layer.state_dict(), q)).log_prob(U) - prior_of_u(layer, whitened).log_prob(U)
    assert abs(ratio.mean() - kl) < ERRORS * ratio.std() / DRAWS**0.5


@WHITENED
def test_kl_of_point_estimates(whitened: bool) -> None:
    zero = torch.zeros((), dtype=torch.double)
    ensemble = inducing("linear", "ensemble", whitened)
    assert torch.equal(ensemble.kl_parts().u, zero)
    assert torch.equal(inducing("linear", whitened=whitened, max_lamda=0).kl_parts().lamda, zero)
    point = inducing("linear", whitened=whitened, max_sd_u=0)
    prior, mean = prior_of_u(point, whitened), point.inducing_mean.detach().flatten()
    charged = prior.log_prob(torch.zeros_like(mean)) - prior.log_prob(mean)
    torch.testing.assert_close(point.kl_parts().u.detach(), charged)


class KLOf(nn.Module):
    """Lets `functional_call`, which runs forwards, reach a layer's KL."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> Tensor:
        return self.layer.kl_divergence()


def check_kl_gradients(layer: Any) -> None:
    module = KLOf(layer)
    names, values = zip(*module.named_parameters(), strict=True)
    values = tuple(value.detach().clone().requires_grad_() for value in values)

    def kl(*parameters: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), ())

    assert torch.autograd.gradcheck(kl, values)


@WHITENED
@pytest.mark.parametrize("q", POSTERIORS)
def test_gradients_of_the_kl_of_an_inducing_layer(q: str, whitened: bool) -> None:
    check_kl_gradients(inducing("linear", q, whitened))


# ---- ffg and fcg -----------------------------------------------------------------------------------------------------


def ffg(shape: str, **options: Any) -> Any:
    _, make, _, arguments, layer_options = SHAPES[shape]
    layer = make(
        *arguments,
        dtype=torch.double,
        prior_mean=0.2,
        prior_weight_sd=1.7,
        prior_bias_sd=0.6,
        **layer_options,
        **options,
    )
    with torch.no_grad():
        for name, value in layer.named_parameters():
            value.copy_(inverse_softplus(scales(*value.shape)) if name.startswith("_") else randn(*value.shape))
    return layer


def fcg(shape: str) -> Any:
    _, _, make, arguments, options = SHAPES[shape]
    layer = make(*arguments, dtype=torch.double, prior_mean=0.2, prior_weight_sd=1.7, prior_bias_sd=0.6, **options)
    n = len(layer.mean)
    with torch.no_grad():
        layer.mean.copy_(randn(n))
        layer._scale_diag.copy_(inverse_softplus(scales(n)))
        layer.load_state_dict(layer.state_dict() | {"_scale_tril": 0.4 * randn(n, n)})  # only its lower part matters
    return layer


def weight_then_bias(weights: Any) -> Tensor:
    """Samples (K, ...) as vectors (K, n)."""
    return torch.cat([weights.weight.flatten(1)] + ([] if weights.bias is None else [weights.bias]), dim=1)


def dense_ffg(layer: Any) -> Moments:
    names = ("weight", "bias") if layer.has_bias else ("weight",)
    mean = torch.cat([getattr(layer, f"{name}_mean").flatten() for name in names]).detach()
    sd = torch.cat([softplus(getattr(layer, f"_{name}_sd")).flatten() for name in names]).detach()
    return mean, torch.diag(sd**2)


def dense_fcg(layer: Any) -> Moments:
    T = layer.state_dict()["_scale_tril"]
    for i in range(len(T)):
        T[i, i:] = 0
        T[i, i] = softplus(layer._scale_diag.detach()[i])
    return layer.mean.detach(), T @ T.T


FAMILIES: dict[str, tuple[Callable[[str], Any], Callable[[Any], Moments]]] = {
    "ffg": (ffg, dense_ffg),
    "fcg": (fcg, dense_fcg),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_have_the_dense_moments(family: str, shape: str, scripted: ScriptedNoise) -> None:
    make, dense = FAMILIES[family]
    layer = make(shape)
    for k in (1, 3):  # draws at once
        moments = scripted.moments(lambda k=k: weight_then_bias(layer.sample_weights(Draw(count=k))).flatten())
        assert_moments(moments, side_by_side([dense(layer)] * k))
    torch.testing.assert_close(weight_then_bias(stacked(layer.mean_weights()))[0], dense(layer)[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_by_monte_carlo(family: str) -> None:
    make, dense = FAMILIES[family]
    layer = make("linear")
    with torch.no_grad():
        assert_samples(weight_then_bias(layer.sample_weights(Draw(count=DRAWS))), dense(layer))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_kl_is_the_dense_one_and_that_of_monte_carlo(family: str, shape: str) -> None:
    make, dense = FAMILIES[family]
    layer = make(shape)
    q = MultivariateNormal(*dense(layer))
    sds = torch.full_like(q.mean, 1.7)
    sds[layer.weight_shape.numel() :] = 0.6  # the bias, if any
    p = MultivariateNormal(torch.full_like(sds, 0.2), torch.diag(sds**2))
    kl = layer.kl_parts()
    torch.testing.assert_close(kl.u.detach(), kl_divergence(q, p), atol=1e-9, rtol=1e-9)
    assert kl.lamda == 0
    draws = q.sample((DRAWS,))
    ratio = q.log_prob(draws) - p.log_prob(draws)
    assert abs(ratio.mean() - layer.kl_divergence()) < ERRORS * ratio.std() / DRAWS**0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_the_kl(family: str) -> None:
    check_kl_gradients(FAMILIES[family][0]("linear"))


INPUTS = {"linear": (2, 3), "no bias": (2, 4), "conv": (2, 4, 3, 2)}


@pytest.mark.parametrize("shape", SHAPES)
def test_local_reparameterisation_has_the_marginals_of_weight_sampling(shape: str, scripted: ScriptedNoise) -> None:
    """Exactly: outputs are linear in the weights, whose covariance is known; each output's noise is its own."""
    layer, x = ffg(shape), randn(3, *INPUTS[shape])  # three draws, each with an input of its own
    W_mean, W_covariance = dense_ffg(layer)

    def outputs(vector: Tensor, x: Tensor) -> Tensor:
        n = layer.weight_shape.numel()
        return layer.run(x, vector[:n].view(layer.weight_shape), vector[n:] if layer.has_bias else None).flatten()

    def expected(x: Tensor) -> Moments:
        J = torch.func.jacrev(outputs)(W_mean, x)
        return outputs(W_mean, x), torch.diag((J @ W_covariance @ J.T).diagonal())

    for k in (1, 3):
        moments = scripted.moments(lambda k=k: layer.output(x[:k], Draw(count=k)).flatten())
        assert_moments(moments, side_by_side([expected(own) for own in x[:k]]))
    moments = scripted.moments(lambda: layer.output(x[:1], Draw(count=3)).flatten())  # all draws see the same
    assert_moments(moments, side_by_side([expected(x[0])] * 3))


@pytest.mark.parametrize("shape", SHAPES)
def test_local_reparameterisation_by_monte_carlo(shape: str) -> None:
    """50,000 forwards each way: means and variances agree within 5 standard errors of their difference."""
    local, x, n = ffg(shape), randn(*INPUTS[shape]), 50_000
    dense = ffg(shape, local_reparameterization=False)
    dense.load_state_dict(local.state_dict())

    def forwards(layer: Any) -> Tensor:
        with torch.no_grad():
            return torch.func.vmap(lambda _: layer(x).flatten(), randomness="different")(torch.empty(n))

    a, b = forwards(local), forwards(dense)
    variance = (a.var(0) + b.var(0)) / 2
    assert ((a.mean(0) - b.mean(0)).abs() < ERRORS * (2 * variance / n).sqrt()).all()
    assert ((a.var(0) - b.var(0)).abs() < ERRORS * variance * (4 / n) ** 0.5).all()


# ---- pruned ----------------------------------------------------------------------------------------------------------


@WHITENED
@pytest.mark.parametrize("q", POSTERIORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_pruned_z_is_a_z(shape: str, q: str, whitened: bool, scripted: ScriptedNoise) -> None:
    """Draws, mean and KL are those of the dense Gaussian of the Z with zeros, though the parameter drifted since."""
    layer = inducing(shape, q, whitened)
    bnn.prune_(layer, keep=0.5)
    with torch.no_grad():
        layer.z_row.add_(1.0)  # as momentum of before would
    state = layer.state_dict()
    assert (state["z_row"] == 0).any()
    assert torch.equal(state["z_row"] == 0, ~state["_mask_z_row"])
    expected = dense_posterior(layer, q, whitened)
    assert_moments(exact_moments(layer, scripted, 3 if q == "ensemble" else 1), expected)
    if q != "ensemble":
        prior = prior_of_u(layer, whitened)
        kl = kl_divergence(MultivariateNormal(*q_of_u(state, q)), prior)
        torch.testing.assert_close(layer.kl_parts().u, kl)
