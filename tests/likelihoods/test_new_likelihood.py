"""The likelihood of docs/extending.md, run as printed: all that the library does with its own it does with this one."""

from __future__ import annotations

import csv
import json
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import StudentT

import bnn
from bnn import likelihoods
from bnn.cli.app import run as cli
from bnn.data import Data, Part, TargetScale
from bnn.likelihoods import registry
from bnn.train import Recipe, load_run, run_recipe

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def student():
    """The class, as a reader of the page defines it; forgotten afterwards."""
    likelihoods.names("regression")  # imports the library's own: what is forgotten below would not come back
    before = dict(registry._REGISTERED)
    section = PAGE.read_text().split("\n## A likelihood\n")[1].split("\n## ")[0]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "extending.md", "exec", dont_inherit=True), namespace)
    yield namespace["Student"]
    registry._REGISTERED.clear()
    registry._REGISTERED.update(before)


def numbers(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator)
    return x, x.sum(1, keepdim=True) + 0.3 * torch.randn(n, 1, generator=generator)


def bayesian() -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    bnn.bayesianize_(net, "ffg", init_sd=0.1)
    return net


def test_it_is_known_by_name(student: Any) -> None:
    assert likelihoods.names("regression") == ["gaussian", "heteroscedastic", "student"]
    assert isinstance(likelihoods.get("student"), student)
    one = student(degrees=3.0)
    with torch.no_grad():
        one._scale.fill_(-2.0)
    read = likelihoods.from_record(json.loads(json.dumps(likelihoods.record(one))))
    assert (read.degrees, read._scale.item()) == (3.0, -2.0)


def test_the_objective(student: Any) -> None:
    x, y = numbers()
    net = nn.Linear(3, 1)
    result = bnn.ELBO(net, len(x), "student")(x, y)
    torch.testing.assert_close(result.loss, -StudentT(4.0, net(x), 1.0).log_prob(y).mean())


def test_fit_predict_evaluate(student: Any) -> None:
    x, y = numbers()
    net = bayesian()
    history = bnn.fit(net, (x, y[:, 0]), likelihood="student", epochs=30, lr=1e-2, validation=(x, y), seed=0)
    noise = history.likelihood
    assert isinstance(noise, student)
    assert abs(noise.scale().item() - 1.0) > 0.01  # learned
    assert history.epochs[-1]["validation_rmse"] < history.epochs[0]["validation_rmse"]
    prediction = bnn.predict(net, x, 7, noise, torch.Generator().manual_seed(0), keep_samples=True)
    torch.testing.assert_close(prediction.aleatoric, 2 * noise.scale().square().detach().expand(60, 1))
    found = bnn.evaluate(net, (x, y), likelihood=noise, samples=7, resamples=20)
    logs = StudentT(4.0, prediction.samples, noise.scale().detach()).log_prob(y)[..., 0].double()
    assert found.metrics["nll"].value == pytest.approx((math.log(7) - logs.logsumexp(0)).mean().item(), rel=1e-5)
    assert found.metrics["rmse"].value == pytest.approx(bnn.metrics.rmse(prediction.mean, y), rel=1e-5)
    assert any("predict no Gaussians: crps and intervals" in note for note in found.notes)
    with pytest.raises(ValueError, match="real targets need the noise that was trained"):
        bnn.evaluate(net, (x, y), likelihood="student")


RECIPE = {
    "data": {"name": "unused"},
    "net": {"name": "fcn", "hidden": [8]},
    "method": {"inference": "ffg", "init_sd": 0.05},
    "likelihood": "student",
    "schedule": {"epochs": 4, "batch_size": 20, "lr": 1e-2},
}


def scaled() -> Data:
    x, y = numbers()
    return Data("numbers", "regression", Part(x[:50], y[:50]), Part(x[50:], y[50:]), target=TargetScale((5.0,), (2.0,)))


def test_a_recipe_is_saved_and_resumed(student: Any, tmp_path: pathlib.Path) -> None:
    recipe = Recipe.from_dict(RECIPE)
    whole = run_recipe(recipe, tmp_path / "whole", data=scaled(), progress=False)
    run_recipe(recipe.but(schedule={"epochs": 2}), tmp_path / "parts", data=scaled(), progress=False)
    resumed = run_recipe(recipe, tmp_path / "parts", data=scaled(), progress=False)
    read = load_run(tmp_path / "parts")
    stored = json.loads((tmp_path / "parts" / "run.json").read_text())["likelihood"]
    assert stored == {"name": "student", "degrees": 4.0, "learned": {"_scale": resumed.likelihood._scale.item()}}
    for one in (resumed, read):
        assert isinstance(one.likelihood, student)
        assert torch.equal(one.likelihood.scale(), whole.likelihood.scale())
        assert all(map(torch.equal, one.net.parameters(), whole.net.parameters()))


def test_members_trained_apart_share_their_noise(student: Any) -> None:
    recipe = Recipe.from_dict(RECIPE | {"method": {"inference": "deterministic"}, "members": 2})
    assert isinstance(run_recipe(recipe, data=scaled(), progress=False).likelihood, student)


def test_the_command_line(
    student: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = numbers(80)
    with open("houses.csv", "w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "price"], *np.round(torch.cat([x, y], 1).numpy(), 4).tolist()])
    with open("new.csv", "w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c"], *np.round(x[:3].numpy(), 4).tolist()])
    train = "train --data houses.csv --target price --likelihood student --epochs 2 --hidden 8 --out run --quiet"
    assert cli(train.split()) == 0, capsys.readouterr().err
    assert "NLL" in capsys.readouterr().out
    assert load_run("run").likelihood.name == "student"
    assert cli(["evaluate", "run", "--quiet", "--json"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert cli(["predict", "run", "new.csv", "--json"]) == 0, capsys.readouterr().err
    rows = json.loads(capsys.readouterr().out)
    found = rows["rows"]
    assert len(found) == 3
    assert all(one["low"] < one["mean"] < one["high"] for one in found)
    wrong = "train --data houses.csv --target price --likelihood categorical --out other"
    assert cli(wrong.split()) != 0
    assert "student" in capsys.readouterr().err
