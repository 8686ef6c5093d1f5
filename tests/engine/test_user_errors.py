"""Errors of the user's own layers: mistakes come at once, others from a run of one draw, and none is disguised."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_nets import BY_ID, converted, unrelated, varies
from torch import Tensor, nn

import bnn

X, Y = torch.linspace(-1, 1, 24).reshape(4, 6), torch.zeros(4, dtype=torch.long)


class MissingError(KeyError):
    """A user's own kind of a mistake."""


class OwnError(Exception):
    """A user's own."""


class Users(nn.Module):
    """A layer of the user's, which counts its runs."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run, self.runs = run, 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.run(x)


def network(run: Callable[[Tensor], Tensor], place: str = "middle") -> tuple[Any, Users]:
    """A converted network with a layer of the user's, and that layer."""
    users = Users(run)
    layers = {
        "stem": [users, nn.Linear(6, 5), nn.Linear(5, 3)],
        "middle": [nn.Linear(6, 5), users, nn.Linear(5, 3)],
        "end": [nn.Linear(6, 5), nn.Linear(5, 3), users],
    }[place]
    return converted(nn.Sequential(*layers), BY_ID["diagonal"]), users


CALLS: dict[str, Callable[[Any], Any]] = {
    "draws": lambda net: bnn.draws(net, X, 3),
    "draws in batches": lambda net: bnn.draws(net, X, 3, batch_size=2),
    "predict": lambda net: bnn.predict(net, X, 3),
    "ELBO": lambda net: bnn.ELBO(net, 4, "categorical", samples=3)(X, Y),
    "split ELBO": lambda net: bnn.ELBO(net, 4, "categorical", samples=2, split=True)(X, Y),
}
every_call = pytest.mark.parametrize("call", CALLS)


def raised(call: str, net: Any, error: type[BaseException]) -> BaseException:
    """What `call` raises, without any warning before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(error) as info:
            CALLS[call](net)
    assert not caught, [str(warning.message) for warning in caught]
    return info.value


def check_own(error: BaseException, last: str) -> None:
    """It is the user's, from the user's line `last`, and hides behind no other."""
    own = [frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
    assert own[-1] == last
    assert own.count(last) == 1
    assert error.__cause__ is None
    assert error.__context__ is None
    shown = "".join(traceback.format_exception(error))
    assert shown.count("Traceback (most recent call last)") == 1
    assert "vmap" not in shown.splitlines()[-1]


# ---- mistakes --------------------------------------------------------------------------------------------------------


def type_error(x: Tensor) -> Tensor:
    return torch.tanh(x, 3)  # type: ignore[call-arg]


def attribute_error(x: Tensor) -> Tensor:
    return x.tahn()  # type: ignore[attr-defined, no-any-return]


def key_error(x: Tensor) -> Tensor:
    return {"relu": x}["rleu"]


def index_error(x: Tensor) -> Tensor:
    return [x][1]


def index_error_of_torch(x: Tensor) -> Tensor:
    return x.sum(7)


def missing(x: Tensor) -> Tensor:
    raise MissingError("mine")


MISTAKES: list[tuple[Callable[[Tensor], Tensor], type[Exception]]] = [
    (type_error, TypeError),
    (attribute_error, AttributeError),
    (key_error, KeyError),
    (index_error, IndexError),
    (index_error_of_torch, IndexError),
    (missing, MissingError),
]


@every_call
@pytest.mark.parametrize(("run", "error"), MISTAKES)
def test_a_mistake_is_raised_at_once(run: Callable[[Tensor], Tensor], error: type[Exception], call: str) -> None:
    net, users = network(run)
    check_own(raised(call, net, error), run.__name__)
    assert users.runs == 1
    assert varies(unrelated(), X)


@pytest.mark.parametrize("place", ["stem", "end"])
@pytest.mark.parametrize(("run", "error"), MISTAKES)
def test_a_mistake_anywhere(run: Callable[[Tensor], Tensor], error: type[Exception], place: str) -> None:
    net, users = network(run, place)
    check_own(raised("draws", net, error), run.__name__)
    assert users.runs == 1


# ---- other errors ----------------------------------------------------------------------------------------------------


def value_error(x: Tensor) -> Tensor:
    raise ValueError("mine")


def runtime_error(x: Tensor) -> Tensor:
    return x @ torch.ones(7, 7)


def own_error(x: Tensor) -> Tensor:
    raise OwnError("mine")


def division(x: Tensor) -> Tensor:
    return x * (1 / 0)


def assertion(x: Tensor) -> Tensor:
    assert x.shape[-1] == 99
    return x


OTHERS: list[tuple[Callable[[Tensor], Tensor], type[Exception]]] = [
    (value_error, ValueError),
    (runtime_error, RuntimeError),
    (own_error, OwnError),
    (division, ZeroDivisionError),
    (assertion, AssertionError),
]


@every_call
@pytest.mark.parametrize(("run", "error"), OTHERS)
def test_other_errors_come_from_the_run_of_one_draw(
    run: Callable[[Tensor], Tensor], error: type[Exception], call: str
) -> None:
    net, users = network(run)
    check_own(raised(call, net, error), run.__name__)
    assert users.runs == 2
    assert varies(unrelated(), X)


def test_the_second_run_decides_which_error_it_is() -> None:
    """In one pass it is vmap's refusal of `.item()`, alone it is the user's."""

    def item(x: Tensor) -> Tensor:
        if x.sum().item() is not None:
            raise OwnError("mine")
        return x

    for call in CALLS:
        net, users = network(item)
        check_own(raised(call, net, OwnError), "item")
        assert users.runs == 2


# ---- what only cannot be folded still runs ---------------------------------------------------------------------------

UNFOLDABLE: dict[str, Callable[[Tensor], Tensor]] = {
    "item": lambda x: x * (1 + 0 * x.sum().item()),
    "numpy": lambda x: torch.from_numpy(np.tanh(x.detach().numpy())),
    "tolist": lambda x: torch.tensor(x.tolist()),
    "index": lambda x: ([x] * 5)[x[0].argmax()],
    "if": lambda x: x if x.sum() > 0 else -x,
    "nonzero": lambda x: x + x[x > 0].sum(),
}


@pytest.mark.parametrize("name", UNFOLDABLE)
def test_what_vmap_refuses_is_no_mistake(name: str) -> None:
    net, users = network(UNFOLDABLE[name])
    with pytest.warns(bnn.FoldingWarning):
        outputs = bnn.draws(net, X, 3)
    assert outputs.shape == (3, 4, 3)
    assert users.runs == 4  # in one pass, then three draws
