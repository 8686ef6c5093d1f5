"""`bnn.fit(guarantee=...)`: rows that nothing else sees, coverage by simulation, runs, and refusals."""

from __future__ import annotations

import copy
import json
import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bnn
from bnn.conformal import Guarantee
from bnn.train.aside import set_aside

QUICK: dict[str, Any] = {"epochs": 2, "lr": 0.05, "progress": False}


def reals(n: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator)
    return x, x[:, :1] + torch.empty(n, 1).exponential_(generator=generator)


def labels(n: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    x, y = reals(n, seed)
    return x, (y[:, 0] > 0.5).long() + (y[:, 0] > 2).long()


def bayesian(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, outputs))
    bnn.bayesianize_(net, "ffg-u")
    return net


def predict(net: nn.Module, x: Tensor, likelihood: Any = None, samples: int | None = None) -> Any:
    return bnn.predict(net, x, samples, likelihood, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", ["pair", "part", "data", "dataset"])
def test_nothing_else_sees_them(form: str) -> None:
    """With other inputs and targets in those rows alone, network and noise are the same to the last bit."""
    x, y = reals()
    _, aside = set_aside((torch.arange(300.0)[:, None], y), 60, 3)
    rows = aside.x[:, 0].long()
    assert len(set(rows.tolist())) == 60
    other_x, other_y = x.clone(), y.clone()
    other_x[rows], other_y[rows] = 50.0, -1000.0
    found = []
    for one in ((x, y), (other_x, other_y)):
        forms = {
            "pair": one,
            "part": bnn.data.Part(*one),
            "data": bnn.data.Data("made", "regression", bnn.data.Part(*one)).with_validation(0.2)
            if form == "data"
            else None,
            "dataset": TensorDataset(*one),
        }
        if form == "data":
            forms["data"] = bnn.data.Data(
                "made", "regression", bnn.data.Part(*one), validation=bnn.data.Part(*reals(50, 1))
            )
        net = bayesian()
        more = {"patience": 2} if form == "data" else {}
        history = bnn.fit(net, forms[form], guarantee=60, seed=3, likelihood="gaussian", **more, **QUICK)
        found.append((net.state_dict(), list(history.likelihood.parameters()), history.guarantee))
    for name, tensor in found[0][0].items():
        assert torch.equal(tensor, found[1][0][name]), name
    assert all(map(torch.equal, found[0][1], found[1][1]))
    assert found[0][2].rows == found[1][2].rows == 60
    assert found[0][2] != found[1][2]


@pytest.mark.parametrize("task", ["reals", "classes"])
def test_new_rows_are_covered_as_often_as_promised(task: str) -> None:
    """24 fits with 60 rows each: Beta(55, 6) has mean 0.902 and sd 0.038, so the mean of 24 is within 0.9 -+ 0.032."""
    covered = []
    for seed in range(24):
        x, y = (reals if task == "reals" else labels)(200, seed)
        new_x, new_y = (reals if task == "reals" else labels)(1000, 1000 + seed)
        torch.manual_seed(seed)
        net = nn.Linear(2, 1 if task == "reals" else 3)
        history = bnn.fit(net, (x, y), guarantee=60, seed=seed, **QUICK)
        assert history.guarantee is not None
        prediction = predict(net, new_x, history.likelihood, 0)
        if task == "reals":
            lower, upper = history.guarantee.intervals(prediction, 0.9)
            covered.append(((lower <= new_y.numpy()) & (new_y.numpy() <= upper)).mean())
        else:
            covered.append(history.guarantee.sets(prediction, 0.9)[np.arange(1000), new_y.numpy()].mean())
    assert abs(np.mean(covered) - 0.902) < 4 * 0.038 / 24**0.5


@pytest.mark.parametrize("task", ["reals", "classes"])
def test_a_run_keeps_it(tmp_path: pathlib.Path, task: str) -> None:
    """Of a pair the folder holds the guarantee; of a Data the run predicts with it."""
    pair = reals() if task == "reals" else labels()
    net = bayesian(1 if task == "reals" else 3)
    history = bnn.fit(copy.deepcopy(net), pair, guarantee=0.2, seed=0, out=tmp_path / "pair", **QUICK)
    assert Guarantee.from_dict(json.loads((tmp_path / "pair" / "guarantee.json").read_text())) == history.guarantee
    data = bnn.data.arrays(*(one.numpy() for one in pair), test=0.2, name="made")
    trained = copy.deepcopy(net)
    bnn.fit(trained, data, guarantee=0.3, seed=0, out=tmp_path / "data", **QUICK)
    run = bnn.open_run(
        tmp_path / "data", net=nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, data.out_features))
    )
    assert run.guarantee is not None
    assert run.guarantee.rows == round(0.3 * len(data.train))
    assert data.test is not None
    assert "72 inputs set aside" in (run.predict(data.test, guarantee=0.9).stated or "")


def test_a_part_that_is_there_is_used() -> None:
    x, y = reals()
    data = bnn.data.arrays(x.numpy(), y.numpy(), test=0.2, guarantee=70, name="made")
    history = bnn.fit(bayesian(), data, seed=0, **QUICK)
    assert history.guarantee is not None
    assert history.guarantee.rows == 70
    with pytest.raises(ValueError, match="made has set 70 inputs aside for a guarantee already"):
        bnn.fit(bayesian(), data, guarantee=0.1, **QUICK)
    assert bnn.fit(bayesian(), (x, y), seed=0, **QUICK).guarantee is None


def test_what_it_takes_is_said() -> None:
    x, y = reals(80)
    with pytest.raises(ValueError, match="would set 50 of 80 inputs aside, more than half"):
        bnn.fit(bayesian(), (x, y), guarantee=0.1, **QUICK)
    with pytest.raises(ValueError, match="a DataLoader cannot: pass its dataset"):
        bnn.fit(bayesian(), DataLoader(TensorDataset(x, y)), guarantee=20, likelihood="gaussian", epochs=1)
    net = bayesian()
    history = bnn.fit(net, (x, y), guarantee=20, seed=0, **QUICK)
    assert history.guarantee is not None
    with pytest.raises(ValueError, match=r"level 0\.99 takes 99 calibration rows, and there are 20: set more aside"):
        history.guarantee.intervals(predict(net, x, history.likelihood), 0.99)


def test_progress_is_in_the_units_of_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line of progress and the result: one unit, the same names."""
    x, y = reals(200)
    data = bnn.data.arrays(x.numpy(), 1e5 * y.numpy(), test=0.2, validation=0.2, name="made")
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    history = bnn.fit(net, data, epochs=3, seed=0, progress=True)
    line = capsys.readouterr().err.splitlines()[-1]
    found = bnn.evaluate(
        net, bnn.data.Data("v", "regression", data.train, data.validation, target=data.target),
        likelihood=history.likelihood, resamples=20,
    )  # fmt: skip
    assert f"RMSE {found.metrics['rmse'].value:,.0f}" in line.split("validation")[1]
    assert data.target is not None
    nll = history.last["validation_nll"] + np.log(data.target.sd[0])
    assert f"validation NLL {nll:.3f}" in line


def trained_before(net: nn.Module, **first: Any) -> nn.Module:
    bnn.fit(net, reals(), **first, **QUICK)
    return net


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        ({"guarantee": 60, "seed": 0}, {"guarantee": 60, "seed": 1}, None),
        ({"guarantee": 60}, {"guarantee": 80}, 20),  # the first 60 of the same order
        ({}, {"guarantee": 60}, 60),
        ({"seed": 1}, {"guarantee": 60, "seed": 1}, 60),
        ({"guarantee": 60, "seed": 0}, {"guarantee": 60}, 0),
        ({"guarantee": 80}, {"guarantee": 60}, 0),
        ({"guarantee": 60, "seed": 1}, {"seed": 2}, 0),  # none is promised
    ],
)
def test_rows_that_it_was_trained_on_are_no_guarantee(
    first: dict[str, Any], second: dict[str, Any], known: int | None
) -> None:
    """A warning says how many of the rows set aside now were trained on before, which the samples themselves tell."""
    if known is None:
        numbered = (torch.arange(300.0)[:, None], reals()[1])
        chosen = [set(set_aside(numbered, 60, seed)[1].x[:, 0].tolist()) for seed in (0, 1)]
        known = len(chosen[1] - chosen[0])
        assert 30 < known < 60
    net = trained_before(bayesian(), **first)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bnn.fit(net, reals(), **second, **QUICK)
    said = [str(one.message) for one in caught if "guarantee will not hold" in str(one.message)]
    assert len(said) == (known > 0)
    assert not said or f"this network has been trained on {known} before" in said[0]


@pytest.mark.parametrize("change", ["copied", "converted", "ensemble", "part of another"])
def test_what_it_was_trained_on_is_remembered(change: str) -> None:
    torch.manual_seed(0)
    plain = trained_before(nn.Linear(2, 1))
    assert list(plain.state_dict()) == ["weight", "bias"]
    if change == "converted":
        bnn.bayesianize_(plain, "ffg-u")
    changed = {
        "copied": lambda: copy.deepcopy(plain),
        "converted": lambda: plain,
        "ensemble": lambda: bnn.Ensemble([plain, copy.deepcopy(plain)]),
        "part of another": lambda: nn.Sequential(nn.Identity(), plain),
    }[change]()
    with pytest.warns(UserWarning, match="has been trained on 60 before.*the same seed= and guarantee="):
        bnn.fit(changed, reals(), guarantee=60, **QUICK)


@pytest.mark.parametrize("change", ["other data", "fresh members"])
def test_a_guarantee_on_other_rows_says_nothing(change: str) -> None:
    """Neither other data of as many rows, nor copies that begin anew: warnings are errors."""
    torch.manual_seed(0)
    net = trained_before(nn.Linear(2, 1))
    other = bnn.Ensemble(net, members=2) if change == "fresh members" else net
    bnn.fit(other, reals() if change == "fresh members" else reals(seed=5), guarantee=60, **QUICK)
