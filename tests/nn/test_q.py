"""Posteriors q(U): one class each, by name or as an object, found by whatever needs them."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch
from helpers import SIZES
from torch import Tensor, nn

import bnn
from bnn._engine.draw import Draw
from bnn.bayesianize import bayesian_from_template
from bnn.evaluation.network import posterior_of
from bnn.functional.gaussian import TrilPair, kl_diagonal_u
from bnn.functional.linalg import inverse_softplus, positive
from bnn.nn.families.q import diagonal, full, members
from bnn.nn.families.q.base import CLASSES, QInducing
from bnn.nn.families.q.choice import names


@pytest.fixture(autouse=True)
def same_names() -> Iterator[None]:
    """Forgets the classes that a test defines."""
    before = dict(CLASSES)
    yield
    CLASSES.clear()
    CLASSES.update(before)


def shared_sd() -> Any:
    """A q(U) of our own, with an option of its own: one standard deviation for all entries."""

    @dataclass(frozen=True)
    class SharedSd(QInducing):
        name = "shared-sd"
        scales = ("_shared_sd",)

        init_sd: float = 1e-2

        def start(self, u: Tensor) -> dict[str, Tensor]:
            return {"inducing_mean": u, "_shared_sd": inverse_softplus(torch.tensor(self.init_sd)).to(u)}

        def spread(self, layer: Any) -> Tensor:
            return positive(layer._shared_sd)

        def spread_of(self, layer: Any) -> list[Tensor]:
            return [layer._shared_sd]

        def sds(self, layer: Any) -> Tensor:
            return self.spread(layer).expand_as(layer.inducing_mean)

        def noise_shape(self, layer: Any) -> tuple[int, ...]:
            return tuple(layer.inducing_mean.shape)

        def sample(self, layer: Any, spread: Tensor, noise: Tensor, draw: Draw) -> Tensor:
            return self.mean(layer) + spread * noise

        def kl(self, layer: Any, spread: Tensor, prior: TrilPair | None) -> Tensor:
            return kl_diagonal_u(self.mean(layer), spread.expand_as(layer.inducing_mean), prior)

    return SharedSd


def layer_of(q: Any, **options: Any) -> Any:
    return bayesian_from_template(nn.Linear(7, 5), "inducing", q_inducing=q, **options)


def test_every_file_of_the_folder_is_known() -> None:
    assert names() == ["diagonal", "ensemble", "full", "matrix", "point"]
    with pytest.raises(ValueError, match=r"unknown q_inducing 'diag' \(did you mean 'diagonal'\?\); expected one of"):
        layer_of("diag")


def test_no_family_and_no_evaluation_lists_the_names() -> None:
    """Neither code that knows a q(U) by its name, nor one that knows its class."""
    package = pathlib.Path(bnn.__file__).parent
    files = [package / "bayesianize.py", package / "parameters.py", package / "nn" / "families" / "inducing.py"]
    files += sorted((package / "evaluation").glob("*.py"))
    words = [*names(), *(kind.__name__ for kind in CLASSES.values())]
    for file in files:
        code = re.sub(r'q_inducing: Any = "diagonal"|"""(?s:.*?)"""|#.*', "", file.read_text())  # the default may
        found = [word for word in words if re.search(rf'"{word}"|\bq\.{word}\b|import.*\b{word}\b', code)]
        assert not found, (file, found)


def test_an_object_of_ones_own_works_everywhere(tmp_path: pathlib.Path) -> None:
    SharedSd = shared_sd()
    net, fresh, same = (nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)) for _ in range(3))
    x = torch.randn(4, 7)
    bnn.bayesianize_(net, "inducing", q_inducing=SharedSd(init_sd=0.3), **SIZES)
    assert net[0].options.q_inducing == {"name": "shared-sd", "init_sd": 0.3}
    assert "q=shared-sd" in repr(net)
    assert bnn.draws(net, x, samples=3).std(0).min() > 0
    bnn.ELBO(net, num_data=4, likelihood="categorical")(x, torch.zeros(4, dtype=torch.long)).loss.backward()
    assert net[0]._shared_sd.grad.isfinite()
    groups = {group["name"]: group["params"] for group in bnn.parameter_groups(net, lr=1e-3)}
    assert any(one is net[0]._shared_sd for one in groups["scales"])
    posterior = posterior_of(net)
    assert posterior is not None
    assert posterior.sd is not None
    assert posterior.sd.mean == pytest.approx(0.3, rel=1e-3)
    bnn.save(net, tmp_path / "net.safetensors")
    bnn.load_(fresh, tmp_path / "net.safetensors")
    assert fresh[0].q == SharedSd(init_sd=0.3)
    assert torch.equal(bnn.kl_divergence(fresh), bnn.kl_divergence(net))
    bnn.bayesianize_(same, "inducing", inducing_rows=2, inducing_cols=2)
    handle = bnn.register_global_inducing_weights_(same, 2, 2, q_inducing=SharedSd)
    assert type(same._global_inducing_module.q) is SharedSd
    handle.remove()


def test_names_classes_objects_and_records_mean_the_same() -> None:
    SharedSd = shared_sd()
    for given in ("shared-sd", SharedSd):
        assert layer_of(given).options.q_inducing == "shared-sd"
        assert layer_of(given).q == SharedSd()
    for given in (SharedSd(0.2), {"name": "shared-sd", "init_sd": 0.2}):
        layer = layer_of(given)
        assert layer.q == SharedSd(0.2)
        assert layer_of(**_renamed(asdict(layer.options))).q == SharedSd(0.2)
    assert layer_of(diagonal.Diagonal()).options.q_inducing == "diagonal"
    assert layer_of(diagonal.Diagonal(), max_sd_u=0.1).q.max_sd == 0.1  # what an object leaves open, options say
    assert layer_of(diagonal.Diagonal(0.2)).q.max_sd == 0.2
    assert layer_of(full.Full()).options.q_inducing == "full"
    assert layer_of(members.Members(3)).inducing_mean.shape[0] == 3
    assert layer_of("ensemble", ensemble_size=4).member_count() == 4


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    return {("q" if name == "q_inducing" else name): value for name, value in options.items()}


def test_what_cannot_be_recorded_is_refused() -> None:
    SharedSd = shared_sd()

    class Nameless(SharedSd):  # type: ignore[misc, valid-type]
        pass

    with pytest.raises(ValueError, match="Nameless needs a `name` of its own"):
        layer_of(Nameless())
    with pytest.raises(ValueError, match=r"are written to files as JSON; SharedSd: .*Tensor is not JSON"):
        layer_of(SharedSd(torch.tensor(0.1)))
    with pytest.raises(ValueError, match=r"q_inducing='shared-sd' does not take \{'sd': 1\}"):
        layer_of({"name": "shared-sd", "sd": 1})
    with pytest.raises(ValueError, match="q_inducing must be one of"):
        layer_of(3)
    with pytest.raises(ValueError, match="unknown q_inducing"):
        layer_of({"name": ["diagonal"]})
    with pytest.raises(TypeError, match="q_inducing='diagonal' is Diagonal already"):
        type("Again", (SharedSd,), {"name": "diagonal"})
