"""Everything that takes data takes the same: fit, its validation, evaluate, refresh_batchnorm_."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bnn
from bnn.data import Data, Part
from bnn.data.batches import training_batches, training_inputs
from bnn.data.dataset import each, tensors_in
from bnn.data.forms import FORMS, batches_in_order, gathered, taken

N = 24


class Two(nn.Module):
    """A network of two inputs, by position or by name; one alone is both."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        return self.last(self.norm(torch.cat([left, left if right is None else right], 1)))


class Named(Dataset[Any]):
    """Items of a dict and a label."""

    def __init__(self, left: Tensor, right: Tensor, y: Tensor) -> None:
        self.left, self.right, self.y = left, right, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> Any:
        return {"left": self.left[i], "right": self.right[i]}, self.y[i]


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, N, 3, generator=generator)
    return left, right, torch.arange(N) % 3


def forms() -> dict[str, Any]:
    left, right, y = tensors()
    part = Part(left, y)
    return {
        "Data": Data("toy", "classification", part, part, part, classes=("a", "b", "c")),
        "Part": part,
        "pair": (left, y),
        "list": [left, y],
        "arrays": (left.numpy(), y.numpy()),
        "lists": (left.tolist(), y.tolist()),
        "dataset": TensorDataset(left, y),
        "loader": DataLoader(TensorDataset(left, y), batch_size=7),
        "Part of two": Part((left, right), y),
        "Part of names": Part({"left": left, "right": right}, y),
        "pair of two": ((left, right), y),
        "pair of names": ({"left": left.numpy(), "right": right}, y),
        "dataset of two": TensorDataset(left, right, y),
        "dataset of names": Named(left, right, y),
        "loader of two": DataLoader(TensorDataset(left, right, y), batch_size=7),
        "loader of names": DataLoader(Named(left, right, y), batch_size=7),
    }


FORM = pytest.mark.parametrize("form", list(forms()))


def network() -> nn.Module:
    torch.manual_seed(1)
    net = Two()
    bnn.bayesianize_(net, "ffg", init_sd=0.1)
    return net


def same(form: str) -> Any:
    """The same inputs as a pair of tensors: what a form must amount to."""
    left, right, y = tensors()
    x = {"left": left, "right": right} if "names" in form else (left, right) if "two" in form else left
    return x, y


@FORM
def test_fit_takes_it(form: str) -> None:
    """And learns the same from it, but from a loader, which has an order of its own."""
    options: dict[str, Any] = {"likelihood": "categorical", "epochs": 3, "seed": 0, "progress": False}
    net, other = network(), network()
    own = bnn.fit(net, forms()[form], validation=forms()[form], **options).epochs
    assert [set(epoch) >= {"validation_nll", "validation_accuracy"} for epoch in own] == [True] * 3
    if "loader" not in form:
        theirs = bnn.fit(other, same(form), validation=same(form), **options).epochs
        assert own[2]["validation_nll"] == pytest.approx(theirs[2]["validation_nll"], rel=1e-6)


@FORM
def test_evaluate_takes_it(form: str) -> None:
    """With the numbers of the same inputs in memory; and as out-of-distribution inputs."""
    net = network().eval()
    value = forms()[form]
    found = bnn.evaluate(net, value, ood={"o": value}, samples=3, resamples=20, likelihood="categorical")
    x, y = same(form)
    probs = bnn.predict(net, x, 3, generator=torch.Generator().manual_seed(0)).probs
    nll = -probs[range(N), y].log().mean()
    assert found.metrics["nll"].value == pytest.approx(float(nll), rel=1e-5)
    assert found.inputs == N
    assert found.ood["o"].detection["entropy"]["auroc"].value == pytest.approx(0.5)


@FORM
def test_refresh_batchnorm_takes_it(form: str) -> None:
    net = network()
    value = forms()[form]
    bnn.refresh_batchnorm_(net, tuple(value) if form == "list" else value)  # a list would hold batches
    x, _ = same(form)
    mean = torch.cat([x, x] if isinstance(x, Tensor) else tensors_in(x), 1).mean(0)
    torch.testing.assert_close(net.norm.running_mean, mean, rtol=0, atol=0.2)  # batches of unequal size


@FORM
def test_gathered_and_in_order(form: str) -> None:
    if form == "Data":
        return
    x, y = same(form)
    part = gathered(forms()[form], 5)
    assert all(map(torch.equal, tensors_in(part.x), tensors_in(x)))
    assert each(part.x, len) == each(x, len)
    assert part.y is not None
    assert torch.equal(part.y, y)
    batches = list(batches_in_order(forms()[form], 7))
    assert [len(targets) for _, targets in batches] == [7, 7, 7, 3]
    assert torch.equal(torch.cat([tensors_in(inputs)[0] for inputs, _ in batches]), tensors_in(x)[0])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield torch.zeros(3), 0


@pytest.mark.parametrize("data", [torch.zeros(3, 2), {"x": 1}, Stream(), None, [torch.zeros(2)], "digits"])
@pytest.mark.parametrize("taker", ["fit", "evaluate"])
def test_what_is_no_data_is_told_alike(data: Any, taker: str) -> None:
    with pytest.raises(TypeError) as error:
        bnn.fit(network(), data) if taker == "fit" else bnn.evaluate(network(), data)
    assert str(error.value) == f"data must be {FORMS}; got {type(data).__name__}"


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ((torch.zeros(3, 2), torch.zeros(4, 2)), ValueError, r"all tensors of x must be equally long, got \[3, 4\]"),
        ({"a": torch.zeros(3, 2), "b": 3}, TypeError, r"x must be a tensor \(N, ...\), got a int"),
        ((), TypeError, r"x must be a tensor \(N, ...\), got a tuple"),
    ],
)
def test_parts_of_several_tensors_are_checked(x: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Part(x)


def test_a_data_holds_one_tensor() -> None:
    left, right, y = tensors()
    with pytest.raises(TypeError, match="toy: a Data holds one tensor of inputs"):
        Data("toy", "classification", Part((left, right), y), classes=("a", "b", "c"))


def test_parts_of_several_tensors_are_cut_alike() -> None:
    left, right, y = tensors()
    part = Part({"left": left, "right": right}, y, prepare=lambda x: each(x, torch.neg)).subset(slice(2, 5))
    assert len(part) == 3
    assert torch.equal(part.x["right"], right[2:5])
    assert torch.equal(part.inputs([0])["left"], -left[2:3])


def test_inputs_without_targets_serve_statistics() -> None:
    left, right, _ = tensors()
    shown = torch.cat(list(training_inputs(Part(left), batch_size=5)))
    assert torch.equal(shown.sort(0).values, left.sort(0).values)
    assert all(map(torch.equal, training_inputs([left, right]), (left, right)))  # a list holds batches
    with pytest.raises(TypeError, match="or any iterable that gives batches, as a list of tensors; got Tensor"):
        next(training_inputs(left))


@pytest.mark.parametrize("data", [(lambda: DataLoader([], batch_size=2)), lambda: DataLoader(["a", "b"], batch_size=2)])
def test_loaders_without_tensors_are_an_error(data: Any) -> None:
    with pytest.raises(
        (ValueError, TypeError), match=r"data is empty|a batch must be a pair|must be \(inputs, targets\)"
    ):
        gathered(data(), 5)


def test_taken_keeps_what_is_read_batch_by_batch() -> None:
    loader = forms()["loader"]
    assert taken(loader) is loader
    assert taken(loader.dataset) is loader.dataset
    assert training_batches(forms()["pair of two"], 7).num_data == N
