"""K draws where only the last layer is Bayesian: what comes before runs once, as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import always, choose_ways, set_noise_
from torch import Tensor, nn

import bnn
from bnn import prediction
from bnn._engine.members import last_layers
from bnn._engine.noise import Seeds
from bnn._engine.unused import UnusedLayerWarning
from bnn.functional.cost import Way

POINT = {"inference": "inducingdeterministic", "max_sd_u": 0, "inducing_rows": 4, "inducing_cols": 4}


def head_only(end: nn.Module | None = None, **options: Any) -> nn.Sequential:
    """A convolutional stem with BatchNorm, and a Bayesian head."""
    stem = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()]
    net = nn.Sequential(*stem, nn.Linear(36, 3), *([] if end is None else [end]))
    given = {"inference": "inducing", "inducing_rows": 3, "inducing_cols": 6, "init_lamda": 0.1} | options
    bnn.bayesianize_(net, {"4": given})
    set_noise_(net, 0.2)
    return net.eval()


def inputs(n: int = 7) -> Tensor:
    return torch.randn(n, 1, 5, 5)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def counted(net: nn.Module) -> list[tuple[int, ...]]:
    """The shapes that the first layer of `net` gives from now on, one for each of its runs."""
    seen: list[tuple[int, ...]] = []
    net[0].register_forward_hook(lambda layer, args, output: seen.append(tuple(output.shape)))  # type: ignore[operator]
    return seen


def without_the_shortcut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "last_layers", lambda network: [])


@pytest.mark.parametrize("options", [{}, {"max_lamda": 0.0}, {"sampling": "weight"}, {"q_inducing": "full"}])
def test_draws_are_those_of_folded_passes(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = head_only(**options), inputs()
    with torch.no_grad():
        found = bnn.draws(net, x, samples=20, generator=seeded())
        without_the_shortcut(monkeypatch)
        expected = bnn.draws(net, x, samples=20, generator=seeded())
    assert found.shape == (20, 7, 3)
    assert torch.allclose(found, expected, atol=1e-6)


def test_the_stem_runs_once() -> None:
    net = head_only()
    seen = counted(net)
    bnn.predict(net, inputs(), samples=20)
    assert seen == [(7, 4, 3, 3)]
    seen.clear()
    bnn.predict(net, inputs(), samples=20, batch_size=4)
    assert seen == [(4, 4, 3, 3), (3, 4, 3, 3)]
    assert not net[4].followed


def test_the_stem_runs_once_however_large_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded passes take few draws at a time where many do not fit; the head alone need not."""
    monkeypatch.setattr(prediction, "FOLD_BYTES", 100)
    net = head_only()
    seen = counted(net)
    assert bnn.predict(net, inputs(), samples=50, keep_samples=True).samples.shape == (50, 7, 3)
    assert len(seen) == 1


def test_the_stem_of_every_member_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, x = bnn.Ensemble([head_only(), head_only()]), inputs()
    seen = [counted(member) for member in ensemble.members]
    found = bnn.predict(ensemble, x, samples=20, generator=seeded())
    assert [len(one) for one in seen] == [1, 1]
    without_the_shortcut(monkeypatch)
    assert torch.allclose(found.probs, bnn.predict(ensemble, x, samples=20, generator=seeded()).probs, atol=1e-6)


@pytest.mark.parametrize("end", [nn.Softmax(1), nn.ReLU(inplace=True), nn.Flatten(0)])
def test_what_follows_the_layer_is_seen_once(end: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call starts again, and the next ones know."""
    net, x = head_only(end), inputs()
    seen = counted(net)
    with torch.no_grad():
        found = bnn.draws(net, x, samples=20, generator=seeded())
        assert len(seen) == 2
        assert net[4].followed
        again = bnn.draws(net, x, samples=20, generator=seeded())
        assert len(seen) == 3
        without_the_shortcut(monkeypatch)
        expected = bnn.draws(net, x, samples=20, generator=seeded())
    assert torch.equal(found, again)
    assert torch.allclose(found, expected, atol=1e-6)


class Noisy(nn.Module):
    """Noise in every mode, as of Monte Carlo dropout."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=True)


def test_a_random_stem_is_different_in_every_draw() -> None:
    net = nn.Sequential(Noisy(), nn.Linear(8, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2, max_sd_u=0.0, max_lamda=0.0)
    net.eval()
    with torch.no_grad():
        torch.manual_seed(0)
        found = bnn.draws(net, torch.ones(1, 8), samples=20, generator=seeded())
        torch.manual_seed(0)
        again = bnn.draws(net, torch.ones(1, 8), samples=20, generator=seeded())
    assert len(found.unique(dim=0)) > 10
    assert torch.equal(found, again)


def test_dropout_in_train_mode_is_different_in_every_draw() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2, max_sd_u=0.0, max_lamda=0.0)
    net.train()
    assert last_layers(net) == []
    with torch.no_grad():
        assert len(bnn.draws(net, torch.ones(1, 8), samples=20).unique(dim=0)) > 10


def first_only() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    bnn.bayesianize_(net, {"0": {"inference": "inducing", "inducing_rows": 2, "inducing_cols": 2}})
    return net


def both() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    return net


@pytest.mark.parametrize("make", [first_only, both, lambda: nn.Linear(4, 3)])
def test_other_networks_take_no_shortcut(make: Callable[[], nn.Module]) -> None:
    assert last_layers(make().eval()) == []


class Reads(nn.Module):
    """Computes with the weight of a layer, which never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = bnn.nn.InducingLinear(4, 3, inducing_rows=2, inducing_cols=2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.head.weight)


@pytest.mark.parametrize("samples", [1, 5])
def test_a_last_layer_that_never_runs_is_named(samples: int) -> None:
    with pytest.warns(UnusedLayerWarning, match="head"):
        bnn.predict(Reads(), torch.randn(2, 4), samples=samples)


def test_a_layer_that_runs_twice_shows_one_function() -> None:
    layer = bnn.nn.InducingLinear(4, 4, inducing_rows=2, inducing_cols=2, init_lamda=0.5)
    net = nn.Sequential(layer, layer).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        found = bnn.draws(net, x, samples=6, generator=seeded())
        again = bnn.draws(copy.deepcopy(net), x, samples=6, generator=seeded())
    assert layer.repeats
    assert torch.allclose(found, again, atol=1e-6)


def test_inference_mode_and_gradients() -> None:
    net, x = head_only(), inputs()
    with torch.inference_mode():
        found = bnn.draws(net, x, samples=5, generator=seeded())
    with_gradients = bnn.draws(net, x, samples=5, generator=seeded())
    assert with_gradients.requires_grad
    assert torch.allclose(found, with_gradients, atol=1e-6)


def test_layers_without_noise_run_once_before_the_last() -> None:
    """A point in inducing form draws nothing: 50 draws of the last layer pass through it once."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    bnn.bayesianize_(net, {"0": POINT, "2": POINT})
    bnn.laplace_(net, (torch.randn(200, 4), torch.randint(3, (200,))), prior_precision=1.0)
    x, seen = torch.randn(7, 4), []
    net[1].register_forward_hook(lambda *args: seen.append(args[2].shape))
    found = bnn.draws(net.eval(), x, samples=50, generator=torch.Generator().manual_seed(1))
    assert seen == [(7, 32)]
    hidden = torch.relu(net[2].eval()(torch.relu(net[0](x)))).detach()
    want = bnn.draws(net[4], hidden, samples=20_000, generator=torch.Generator().manual_seed(2))
    more = bnn.draws(net, x, samples=20_000, generator=torch.Generator().manual_seed(3))
    assert len(found) == 50
    torch.testing.assert_close(more.mean(0), want.mean(0), atol=0.05 * want.std().item(), rtol=0)  # 7 standard errors
    torch.testing.assert_close(more.std(0), want.std(0), atol=0, rtol=0.05)
    closed = bnn.predict(net, x, samples="logits", likelihood="categorical")
    drawn = bnn.predict(net, x, samples=20_000, likelihood="categorical")
    torch.testing.assert_close(closed.probs, drawn.probs, atol=0.04, rtol=0)


def test_points_before_the_last_layer_have_the_memory_layout_of_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(16, 8, 3), nn.Linear(72, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.head(y.view(len(y), -1))  # type: ignore[no-any-return]

    net = Viewing().eval()
    bnn.bayesianize_(net, {"conv": POINT, "head": {"inference": "inducing", "inducing_rows": 3, "inducing_cols": 6}})
    for way in (Way.DENSE, Way.PER_ROW):
        with monkeypatch.context() as patch:
            always(patch, way)
            assert bnn.predict(net, torch.randn(4, 16, 5, 5), samples=6).probs.shape == (4, 3)  # FoldingWarning: error


def test_points_before_the_last_layer_are_judged_as_what_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    bnn.bayesianize_(net, {"0": POINT, "2": {"inference": "inducing", "inducing_rows": 3, "inducing_cols": 3}})
    asked = []
    choose_ways(monkeypatch, lambda ways, size: asked.append(size) or ways[0])  # type: ignore[func-returns-value]
    bnn.predict(net, torch.randn(4, 6), samples=50)
    assert [(size.settled, size.draws) for size in asked] == [(True, 1), (False, 50)]


def test_a_member_of_an_ensemble_draws_its_own_draws_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, x = bnn.Ensemble([head_only() for _ in range(3)]), inputs()
    made: list[tuple[str, range]] = []
    normals = Seeds.normals

    def noted(self: Seeds, module: nn.Module, noise: Any, shape: Any, draws: range, *args: Any) -> Tensor:
        made.append((noise.name, draws))
        return normals(self, module, noise, shape, draws, *args)

    monkeypatch.setattr(Seeds, "normals", noted)
    found = bnn.draws(net.eval(), x, samples=12, generator=seeded())
    assert [draws for name, draws in made if name == "u"] == [range(4), range(4, 8), range(8, 12)]
    without_the_shortcut(monkeypatch)
    torch.testing.assert_close(bnn.draws(net, x, samples=12, generator=seeded()), found)
