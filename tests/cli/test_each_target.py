"""Two targets of very different units, some missing, on the command line: what has a unit stands for itself."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from predict_runs import command, command_of
from train_data import train

import bnn
from bnn.cli import app
from bnn.cli.training.run_summary import lines

QUICK = ("--epochs", 1, "--pretrain-epochs", 1, "--hidden", "64,64")


def plants(folder: Path, rows: int = 300) -> Path:
    """A CSV file: `power` around 800, `loss` around 0.003, a quarter of it missing, and a number of the row."""
    rng = np.random.default_rng(4)
    lines = ["order_id,speed,power,loss"]
    for i, speed in enumerate(rng.normal(size=rows)):
        power, loss = 800 + 60 * speed + 40 * rng.normal(), 0.003 + 0.0005 * speed + 0.0004 * rng.normal()
        lines.append(f"{i},{speed:.4f},{power:.2f},{'' if i % 4 == 0 else f'{loss:.6f}'}")
    (folder / "plants.csv").write_text("\n".join(lines) + "\n")
    return folder / "plants.csv"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("several")
    ended = train("--data", plants(folder), "--target", "power,loss", "--guarantee", "--out", folder / "run", *QUICK)
    assert ended.code == 0, ended.err
    return folder / "run", ended.out, ended.err


def test_the_summary_of_training(trained: tuple[Path, str, str]) -> None:
    _, out, err = trained
    assert "if it is one, leave it out with --drop order_id\n" in err
    assert "at most 1 epoch of a plain network, then 1 epoch\n" in err
    scored = [line for line in out.splitlines() if "in its own units" in line]
    assert [line.split(" of ")[1].split(",")[0] for line in scored] == ["power", "loss"]
    assert all(line.strip().startswith("RMSE ") and "CRPS" in line and "NLL" not in line for line in scored)
    joint = next(line for line in out.splitlines() if line.startswith("validation"))
    assert "RMSE" not in joint
    power, loss = (float(line.split()[1].rstrip(",")) for line in scored)
    assert power > 10_000 * loss
    assert "e-0" not in out


def test_every_target_keeps_its_promise_by_itself(trained: tuple[Path, str, str]) -> None:
    """Training, its file and predictions judge each target, by the values of it that are known."""
    run, out, _ = trained
    found = json.loads((run / "promise.json").read_text())
    known = {name: one["inputs"] for name, one in found["by_target"].items()}
    assert list(known) == ["power", "loss"]
    assert known["loss"] < known["power"]
    assert found["kept"] == all(one["verdict"] == "as promised" for one in found["by_target"].values())
    assert found["kept"] == ("as promised for each of 2 targets, within what" in found["sentence"])
    assert found["sentence"] in " ".join(out.split())
    ended = command(run, run.parent / "plants.csv", "--json")
    assert json.loads(ended.out)["promise"]["by_target"] == found["by_target"]


def test_a_run_has_one_coverage(trained: tuple[Path, str, str]) -> None:
    """What training says, what an evaluation says, before its guarantee, too, and that of answers to the test rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the row number
        assert command_of("evaluate", trained[0], "--no-time", "--resamples", 10).code == 0
        run = bnn.open_run(trained[0])
        test = run.data().test
    found, before = run.evaluation, json.loads((trained[0] / "promise.json").read_text())
    assert found is not None
    assert found.guarantee is not None
    assert test is not None
    assert run.target is not None
    y = run.target.own_units(test.y.double()).numpy()
    for level, own, stored in zip((0.5, 0.8, 0.9), found.guarantee.before, before["levels"], strict=True):
        name = f"{100 * level:.0f}"
        answers = run.predict(test, level=level)
        low, high = (np.stack([answers[f"{end}_{one}"] for one in run.targets], 1) for end in ("low", "high"))
        inside = np.where(np.isnan(y), np.nan, (low <= y) & (y <= high))
        width = np.where(np.isnan(y), np.nan, high - low)
        share, sharpness = np.nanmean(np.nanmean(inside, 1)), np.nanmean(np.nanmean(width, 1))
        assert found.metrics[f"coverage_{name}"].value == pytest.approx(share)
        assert found.metrics[f"sharpness_{name}"].value == pytest.approx(sharpness)
        assert (own.covered.value, own.size) == pytest.approx((share, sharpness))
        assert stored["covered"]["value"] == pytest.approx(share)
    assert found.promise is not None
    assert found.promise.to_dict() == before


def test_evaluation(trained: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the row number
        assert app.run(["evaluate", str(trained[0]), "--no-time"]) == 0
    out = capsys.readouterr().out
    assert "RMSE, in sds of each target, by total" in out
    assert "e-0" not in out
    for start in ("power, in distribution", "loss, in distribution"):
        assert sum(line.strip().startswith(start) for line in out.splitlines()) == 1


def test_answers_on_a_narrow_terminal(trained: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [trained[0], trained[0].parent / "plants.csv", "--keep", "speed"]
    shown = re.sub(r"\x1b\[[0-9;]*m", "", command(*rows, terminal=True).out).splitlines()
    assert max(map(len, shown)) <= 80
    for target in ("power", "loss"):
        assert [line.strip() for line in shown].count(target) == 1
    power = "input speed mean low high total aleatoric epistemic"  # small numbers are long
    headers = [line.split() for line in shown if line.split()[:1] == ["input"]]
    assert headers == [power.split(), power.replace(" aleatoric", "").split()]
    assert "(without aleatoric, for lack of width: --out FILE.csv)" in shown
    table = command(*rows).out.splitlines()
    first = [line.split() for line in shown if line.split()[:2] == table[1].split(",")[0].split()]  # "line", "2"
    assert float(first[1][3]) == pytest.approx(
        float(table[1].split(",")[table[0].split(",").index("mean_loss")]), rel=1e-3
    )


def summary(inputs: int, df: float | None) -> list[str]:
    """The lines of a made run whose noise was settled on so many inputs."""
    found = dict.fromkeys(("likelihoods", "retry", "plain", "kl_weight", "laplace", "calibrated", "guarantee"))
    found |= {"scored": None, "promise": None, "hint": None, "best_epoch": None}
    settled = {"data": "validation", "inputs": inputs, "df": df}
    pruned = {"kept": 0.25, "by": "sd", "epochs": 1}
    sizes = {"parameters": 10, "plain_parameters": 20, "ratio": 0.5, "epochs": 1, "plain_epochs": 0, "seconds": 1.0}
    return lines(
        found | sizes | {"run": "runs/a", "settled": settled, "pruned": pruned, "task": "regression", "next": []}
    )


@pytest.mark.parametrize(
    ("inputs", "df", "said"), [(4, 6.55, False), (300, 9.0, False), (300, 3.1, True), (300, None, False)]
)
def test_heavy_tails_are_said_where_data_tell(inputs: int, df: float | None, said: bool) -> None:
    assert any(line.startswith("tails ") for line in summary(inputs, df)) == said


def test_one_epoch_is_singular() -> None:
    assert "pruned      to 25 % of what can be, then 1 epoch more" in summary(4, None)
