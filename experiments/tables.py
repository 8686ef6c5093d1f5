"""What the tables of trained networks share: parts that never overlap, checkpoints by name, and one row of scores."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import bnn
from bnn import metrics
from bnn.data import Data, Part
from bnn.nn.base import BayesianLayer
from experiments.nets import folder
from experiments.scores import class_scores, cost_scores, detection_scores

LAST_LAYER_DRAWS = 50  # where only the last layer has a posterior, a draw costs hardly anything


@dataclass(frozen=True)
class Sets:
    """What a table needs: training data, and held-out parts that choose (validation) and that count (test, foreign)."""

    data: Any  # as `bnn.fit` takes them
    validation: Part
    test: Part
    foreign: dict[str, Part]


def kept(name: str, build: Callable[[], nn.Module], train_: Callable[[nn.Module, Any], Any]) -> tuple[nn.Module, float]:
    """The network that `train_(net, out=folder)` leaves in the folder of this name, and its seconds of one processor.

    What is there is loaded; what was stopped resumes, and its seconds count from the last start.
    """
    out, net = folder(name), build()
    clock = out / "cpu_seconds.txt"
    if clock.exists():
        bnn.load_(net, out / "net.safetensors")
        return net.eval(), float(clock.read_text())
    begin = time.process_time()
    train_(net, out)
    seconds = time.process_time() - begin
    if not (out / "net.safetensors").exists():
        out.mkdir(parents=True, exist_ok=True)
        bnn.save(net, out / "net.safetensors")
    clock.write_text(f"{seconds:.2f}\n")
    return net.eval(), seconds


def with_laplace_(
    net: nn.Module, sets: Sets, settings: dict[str, Any], ending: str, directions: int | None = None
) -> None:
    """Gives the last layer Laplace's posterior, in place; "marginal laplace": the prior by marginal likelihood;
    "... temperature": by validation data, with one temperature for each precision.

    Of a plain layer in so many `directions` of its inputs, None: all.

    Settings may say of how many training inputs the curvature is (`curvature`, all by default), and by how many
    validation inputs and draws a precision is chosen (`choosing`, `choosing_draws`; 20
    draws where nothing else is drawn).
    """
    train = sets.data.train if isinstance(sets.data, Data) else sets.data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that draws are too wide is what validation data decide about
        bnn.laplace_(
            net,
            train.subset(slice(0, settings.get("curvature", len(train)))),
            prior_precision="marginal" if ending.startswith("marginal") else "validation",
            validation=sets.validation.subset(slice(0, settings.get("choosing", len(sets.validation)))),
            num_data=len(train),
            inducing_cols=directions,
            samples=settings.get("choosing_draws", 5) if drawn_layers(net) else 20,
            calibrated=ending.endswith("temperature"),
            progress=False,
        )


def plain_layer(linear: nn.Linear) -> nn.Linear:
    """The plain layer with the mean of a posterior: Laplace then has all directions of its inputs, not only those in
    which the posterior has weights."""
    plain = nn.Linear(linear.in_features, linear.out_features)
    plain.load_state_dict({"weight": linear.weight.detach(), "bias": linear.bias.detach()})
    return plain.eval()


def laplace_head(linear: nn.Linear, directions: int | None = None) -> int:
    """How many parameters Laplace over so many directions, or all, adds to a plain last layer."""
    own = copy.deepcopy(linear)
    data = (torch.randn(100, own.in_features), torch.randint(own.out_features, (100,)))
    bnn.laplace_(own, data, prior_precision=1.0, inducing_cols=directions, progress=False)
    return bnn.parameter_count(own) - bnn.parameter_count(linear)


def drawn_layers(net: nn.Module) -> int:
    """How many layers have noise."""
    return sum(isinstance(module, BayesianLayer) and not module.is_point() for module in net.modules())


def row(net: nn.Module, plain: nn.Module, sets: Sets, draws: int, timed: int = 100) -> dict[str, Any]:
    """All scores of a network on the test set, with those of every input; K draws, 0 for one without noise.

    Args:
        plain: the network that parameters and times are relative to.
        draws: K.
        timed: inputs of the batch that is timed.
    """

    def predicted(part: Part) -> Any:
        generator = torch.Generator().manual_seed(0)
        return bnn.predict(
            net, part.inputs(), samples=draws, likelihood="categorical", batch_size=250, generator=generator
        )

    inside, held_out = predicted(sets.test), predicted(sets.validation)
    outside = {name: predicted(part) for name, part in sets.foreign.items()}
    found = class_scores(inside.probs, _labels(sets.test), (held_out.probs, _labels(sets.validation)))
    found |= {"validation_nll": metrics.nll(held_out.probs, _labels(sets.validation)), "draws": draws}
    found |= detection_scores(inside, outside)
    if draws:
        found["mutual_information"] = float(inside.epistemic.mean())
        found |= {f"mutual_information_{name}": float(one.epistemic.mean()) for name, one in outside.items()}
    else:
        found = {name: value for name, value in found.items() if not name.startswith("auroc_mutual_information")}
    return found | cost_scores(net, plain, sets.test.inputs(slice(0, timed)), draws)


def _labels(part: Part) -> Tensor:
    assert part.y is not None
    return part.y
