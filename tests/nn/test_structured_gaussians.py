"""`matrixnormal` and `ktied` against dense Gaussians: moments of weights and outputs, KL, gradients, special cases."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import softplus_inverse
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import bnn
from bnn._engine.call import Call
from bnn._engine.draw import Draw
from bnn._engine.fold import in_one_pass
from bnn._engine.noise import Seeds
from bnn.bayesianize import bayesian_from_template
from bnn.distributions import MatrixNormal
from bnn.functional.linalg import pack_tril
from bnn.nn.base import Weights

ERRORS = 5.0  # tolerance of Monte Carlo, in standard errors
PRIOR: dict[str, Any] = {"prior_mean": 0.2, "prior_weight_sd": 1.7, "prior_bias_sd": 0.6}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "diagonal": ("matrixnormal", {"covariance": "diagonal"}),
    "full": ("matrixnormal", {"covariance": "full"}),
    "k-tied": ("ktied", {"rank": 2}),
    "k-tied of rank 1": ("ktied", {"rank": 1}),
}
LAYERS = {
    "linear": (lambda: nn.Linear(3, 2), (4, 3)),
    "no bias": (lambda: nn.Linear(4, 3, bias=False), (4, 4)),
    "conv": (lambda: nn.Conv2d(2, 3, (2, 1)), (2, 2, 2, 1)),  # one row per input
    "positions": (lambda: nn.Conv1d(2, 3, 2), (2, 2, 4)),
    "grouped": (lambda: nn.Conv2d(4, 2, (2, 1), groups=2, stride=2, padding=1), (2, 4, 3, 2)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_layer = pytest.mark.parametrize("name", LAYERS)


def softplus(raw: Tensor) -> Tensor:
    return torch.log1p(torch.exp(raw))


def tril(n: int) -> Tensor:
    return 0.4 * torch.randn(n, n).double().tril(-1) + torch.diag(0.3 + 0.7 * torch.rand(n).double())


def made(kind: str, name: str, **options: Any) -> Any:
    """A layer in float64 with random parameters, loaded as a state dict spells them."""
    family, own = KINDS[kind]
    layer = bayesian_from_template(LAYERS[name][0]().double(), family, **own, **PRIOR, **options)
    state = {key: torch.randn_like(value) for key, value in layer.state_dict().items()}
    for key, n in (("_row_scale_tril", layer.d_out), ("_col_scale_tril", layer.d_in)):
        if key in state:
            state[key] = pack_tril(tril(n))
    layer.load_state_dict(state)
    return layer


def unpacked(packed: Tensor, n: int) -> Tensor:
    """A triangle entry by entry."""
    T = torch.diag(softplus(packed[:n]))
    below = iter(packed[n:])
    for i in range(n):
        for j in range(i):
            T[i, j] = next(below)
    return T


def dense(layer: Any) -> MultivariateNormal:
    """q(W), row-major, from the state dict and the formulas."""
    state = layer.state_dict()
    if "_row_scale_tril" in state:
        T = torch.kron(unpacked(state["_row_scale_tril"], layer.d_out), unpacked(state["_col_scale_tril"], layer.d_in))
        return MultivariateNormal(state["mean"].flatten(), T @ T.T)
    row, col = softplus(state["_row_sd"]), softplus(state["_col_sd"])
    row, col = (row[:, None], col[None]) if row.ndim == 1 else (row, col)
    sds = sum(torch.outer(row[:, c], col[c]) for c in range(row.shape[1]))
    return MultivariateNormal(state["mean"].flatten(), torch.diag(sds.flatten() ** 2))


def as_matrices(weights: Weights) -> Tensor:
    """Sampled weights (K, ...) as rows (K, d_out d_in)."""
    W = weights.weight.flatten(2)
    return (W if weights.bias is None else torch.cat([W, weights.bias[..., None]], 2)).flatten(1)


@every_layer
@every_kind
def test_weights_have_the_dense_moments(kind: str, name: str) -> None:
    """40,000 draws."""
    layer, n = made(kind, name), 40_000
    with torch.no_grad():
        W, q = as_matrices(layer.sample_weights(Draw(count=n))), dense(layer)
    variance = q.variance
    assert ((W.mean(0) - q.mean).abs() < ERRORS * (variance / n).sqrt()).all()
    error = ((variance[:, None] * variance + q.covariance_matrix.square()) / n).sqrt()
    assert ((W.T.cov() - q.covariance_matrix).abs() < ERRORS * error).all()
    torch.testing.assert_close(layer.to_matrix(layer.mean_weights()).detach().flatten(), q.mean)
    torch.testing.assert_close(layer.sds_and_cap()[0].detach().flatten().sort()[0], q.stddev.sort()[0])


@every_layer
@every_kind
def test_the_kl_is_the_dense_one(kind: str, name: str) -> None:
    layer = made(kind, name)
    sds = torch.full((layer.d_out, layer.d_in), 1.7).double()
    if layer.has_bias:
        sds[:, -1] = 0.6
    prior = MultivariateNormal(torch.full_like(sds, 0.2).flatten(), torch.diag(sds.flatten() ** 2))
    torch.testing.assert_close(layer.kl_divergence().detach(), kl_divergence(dense(layer), prior))
    assert layer.kl_parts().lamda == 0


def test_the_kl_is_that_of_the_matrix_normal_distribution() -> None:
    layer = made("full", "linear")
    row, col = layer.row_and_col()
    sds = torch.tensor([1.7, 1.7, 1.7, 0.6]).double()
    q = MatrixNormal(layer.mean, row, col)
    p = MatrixNormal(torch.full_like(layer.mean, 0.2), torch.eye(2).double(), torch.diag(sds))
    torch.testing.assert_close(layer.kl_divergence(), kl_divergence(q, p))


@every_kind
def test_gradients_of_weights_and_kl(kind: str) -> None:
    """Against finite differences, for noise that stays the same."""
    layer = made(kind, "linear")
    names, values = zip(*layer.named_parameters(), strict=True)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self) -> Tensor:
            drawn = layer.sample_weights(Draw(count=2, seeds=Seeds(layer, 3)))
            return torch.cat([drawn.weight.flatten(), drawn.bias.flatten(), layer.kl_divergence()[None]])

    def of(*tensors: Tensor) -> Tensor:
        parameters = {f"layer.{name}": tensor for name, tensor in zip(names, tensors, strict=True)}
        return torch.func.functional_call(both, parameters, ())

    both = Both()
    assert torch.autograd.gradcheck(of, tuple(value.detach().clone().requires_grad_() for value in values))


@pytest.mark.parametrize("sampling", ["auto", "local", "weight"])
@every_layer
@every_kind
def test_every_output_has_the_moments_of_drawn_weights(
    kind: str, name: str, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30,000 draws; where an input is one row ("auto"), also the covariance of its outputs."""
    monkeypatch.setattr("bnn.nn.families.gaussian_weights.by_row", lambda *_: True)
    layer, n = made(kind, name, sampling=sampling), 30_000
    x, q = torch.randn(LAYERS[name][1]).double(), dense(layer)
    with torch.no_grad():
        draw = Draw(Call(layer, n, restarts=True), n, Seeds(layer, 1), inputs=len(x))
        outputs = in_one_pass(layer, x, draw)
    shape, together = (layer.d_out, layer.d_in), sampling == "weight" or (sampling == "auto" and name != "positions")
    J = torch.func.jacrev(lambda w: layer.run(x, *layer.from_matrix(w.reshape(shape))).flatten(1))(q.mean)
    want = layer.run(x, *layer.mean_weights()).detach().flatten(1)
    for own, mean, rows in zip(outputs.flatten(2).unbind(1), want, J, strict=True):  # of each input
        covariance = rows @ q.covariance_matrix @ rows.T
        variance = covariance.diagonal()
        assert ((own.mean(0) - mean).abs() <= ERRORS * (variance / n).sqrt()).all()
        assert ((own.var(0) - variance).abs() <= ERRORS * variance * (2 / n) ** 0.5).all()
        if together:
            error = ((variance[:, None] * variance + covariance.square()) / n).sqrt()
            assert ((own.T.cov() - covariance).abs() <= ERRORS * error + 1e-12).all()


@every_kind
def test_one_row_is_drawn_without_weights_only_where_that_is_asked_for(kind: str) -> None:
    """Equal inputs of one batch: one function, or a draw for each of them."""
    x = torch.randn(1, 3).double().expand(4, 3)
    for sampling, alike in (("weight", True), ("local", False)):
        layer = made(kind, "linear", sampling=sampling)
        outputs = bnn.draws(layer, x, 3)
        assert torch.allclose(outputs, outputs[:, :1].expand_as(outputs)) == alike
    with bnn.frozen_draw(layer, 1):
        outputs = layer(x)
        assert torch.allclose(outputs, outputs[:1].expand_as(outputs))


# ---- special cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linear", "conv"])
def test_k_tied_of_full_rank_holds_any_ffg(name: str) -> None:
    """sd = I sd for d_out <= d_in; the zeros of I are softplus(-30), 1e-13."""
    ffg = bayesian_from_template(LAYERS[name][0]().double(), "ffg", **PRIOR)
    with torch.no_grad():
        for parameter in ffg.parameters():
            parameter.copy_(torch.randn_like(parameter))
    tied = bayesian_from_template(LAYERS[name][0]().double(), "ktied", rank=ffg.d_out, **PRIOR)
    eye = torch.full((ffg.d_out, ffg.d_out), -100.0).double().fill_diagonal_(softplus_inverse(1.0))
    sds, mean = ffg.to_matrix(ffg.sds()), ffg.to_matrix(ffg.mean_weights())
    tied.load_state_dict({"mean": mean, "_row_sd": eye, "_col_sd": sds + torch.log(-torch.expm1(-sds))})
    for mine, theirs in zip(tied.sds(), ffg.sds(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=0)
    torch.testing.assert_close(tied.kl_divergence(), ffg.kl_divergence(), rtol=1e-11, atol=0)


def test_diagonal_covariances_are_k_tied_of_rank_1_and_full_ones_with_empty_triangles() -> None:
    diagonal = made("diagonal", "linear")
    tied = copy.deepcopy(made("k-tied of rank 1", "linear"))
    state = diagonal.state_dict()
    tied.load_state_dict(state | {"_row_sd": state["_row_sd"][:, None], "_col_sd": state["_col_sd"][None]})
    full = made("full", "linear")
    triangles = {
        f"_{side}_scale_tril": pack_tril(torch.diag(softplus(state[f"_{side}_sd"]))) for side in ("row", "col")
    }
    full.load_state_dict({"mean": state["mean"]} | triangles)
    for other in (tied, full):
        torch.testing.assert_close(other.kl_divergence(), diagonal.kl_divergence())
        torch.testing.assert_close(dense(other).covariance_matrix, dense(diagonal).covariance_matrix)
    x = torch.randn(5, 3).double()
    with torch.no_grad(), bnn.frozen_draw(diagonal, 1), bnn.frozen_draw(full, 1):
        torch.testing.assert_close(full(x), diagonal(x))


# ---- starts, caps, training ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3, 7])
def test_k_tied_starts_at_one_sd_with_components_that_differ(rank: int) -> None:
    layer = bayesian_from_template(nn.Linear(6, 5).double(), "ktied", rank=rank, init_sd=0.02)
    sds = layer.to_matrix(layer.sds()).detach()
    torch.testing.assert_close(sds, torch.full_like(sds, 0.02))
    optimiser = torch.optim.Adam(layer.parameters(), 1e-2)
    target = 0.02 + 0.1 * torch.rand(5, 7).double()
    for _ in range(300):
        optimiser.zero_grad()
        (layer.to_matrix(layer.sds()) / target).log().square().sum().backward()
        optimiser.step()
    values = torch.linalg.svdvals(layer.to_matrix(layer.sds()).detach())
    assert (values[: min(rank, 3)] > 1e-3 * values[0]).all()  # components that stayed alike would be of rank 1
    assert (values[rank:] < 1e-12 * values[0]).all()


@pytest.mark.parametrize("kind", ["diagonal", "k-tied"])
def test_caps_hold_and_keep_their_gradient(kind: str) -> None:
    family, own = KINDS[kind]
    layer = bayesian_from_template(nn.Linear(6, 5), family, **own, max_sd=0.1, init_sd=3.0)
    sds = layer.sds_and_cap()[0]
    assert layer.sds_and_cap()[1] == 0.1
    assert 0.08 < sds.min() <= sds.max() < 0.1 + 1e-6
    with torch.no_grad():
        layer._row_sd.fill_(4.0)
        layer._col_sd.fill_(4.0)
    sds = layer.sds_and_cap()[0]
    torch.testing.assert_close(sds.float(), torch.full_like(sds, 0.1).float())
    sds.sum().backward()  # a loss that wants them smaller
    assert (layer._row_sd.grad > 0).all()
    with pytest.raises(ValueError, match="max_sd caps a 'diagonal' covariance only"):
        bayesian_from_template(nn.Linear(6, 5), "matrixnormal", covariance="full", max_sd=0.1)


def test_storage_is_as_the_paper_says() -> None:
    plain = nn.Conv2d(3, 8, 3)  # 8 x 28
    counts = {"diagonal": 8 + 28, "full": 8 * 9 // 2 + 28 * 29 // 2, "k-tied": 2 * (8 + 28), "k-tied of rank 1": 36}
    for kind, more in counts.items():
        family, own = KINDS[kind]
        assert bnn.parameter_count(bayesian_from_template(plain, family, **own)) == 8 * 28 + more


def test_a_covariance_beyond_memory_is_refused() -> None:
    wide = nn.Linear(4_000_000, 1, bias=False, device="cpu")
    with pytest.raises(ValueError, match=r"matrixnormal over .* covariance.*GiB"):
        bnn.bayesianize_(wide, "matrixnormal", covariance="full")
