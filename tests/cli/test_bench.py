"""`bayesianize bench`: what competes, what is printed; no assertion about how long anything takes."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from bnn import prediction
from bnn._common import timing
from bnn._conversion.methods import METHODS
from bnn.cli import bench as command
from bnn.cli.app import run
from bnn.cli.bench import USUAL, contestants, known, twins
from bnn.nn.base import BayesianLayer
from bnn.nn.families import inducing
from bnn.nn.families.inducing import InducingBase
from bnn.nn.nets import FCN

SMALL = ["fcn", "--in-shape", "6", "--classes", "3", "--hidden", "5", "--rows", "2", "--samples", "2", "--rounds", "1"]


def benched(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert run(["bench", *SMALL, *args, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def passes_of(net: nn.Module) -> Counter[str]:
    """Counts the passes of a network from now on."""
    seen: Counter[str] = Counter()
    net.register_forward_hook(lambda *_: seen.update(["pass"]))
    return seen


# ---- the contestants -------------------------------------------------------------------------------------------------


def test_the_plain_network_makes_k_passes() -> None:
    plain = FCN([4, 6, 3])
    seen = passes_of(plain)
    contestants(plain, {}, torch.randn(2, 4), draws=7)["plain"]()
    assert seen["pass"] == 7


def test_the_papers_way_builds_every_weight_and_factorises_in_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = FCN([4, 6, 3])
    nets = twins(plain, ["paper"], 2, 2)
    seen, factor, sample = passes_of(nets["paper"]), inducing.factor, InducingBase.sample_weights
    built: list[tuple[int, ...]] = []

    def counted_factor(*args: Any) -> Any:
        seen.update(["factor"])
        return factor(*args)

    def counted_sample(self: InducingBase, draw: Any) -> Any:
        weights = sample(self, draw)
        built.append(tuple(weights.weight.shape[-2:]))
        return weights

    monkeypatch.setattr(inducing, "factor", counted_factor)
    monkeypatch.setattr(InducingBase, "sample_weights", counted_sample)
    way = contestants(plain, nets, torch.randn(5, 4), draws=3)["paper"]
    for again in (1, 2):  # nothing is kept from one turn to the next
        way()
        assert seen == {"pass": 3 * again, "factor": 3 * 2 * 2 * again}  # two layers, rows and columns
        assert built == [(6, 4), (3, 6)] * 3 * again


@pytest.mark.parametrize("method", [name for name in known() if name != "paper"])
def test_the_others_are_predictions_with_k_draws(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    seen: list[Any] = []
    real = prediction.predict

    def predict(*args: Any, **options: Any) -> Any:
        seen.append(real(*args, **options, keep_samples=True))
        return seen[-1]

    monkeypatch.setattr(prediction, "predict", predict)
    plain = FCN([4, 6, 3])
    nets = twins(plain, [method], 2, 2)
    contestants(plain, nets, torch.randn(2, 4), draws=5)[method]()
    assert len(seen) == 1
    assert seen[0].samples.shape == (5, 2, 3)
    assert seen[0].samples[0].ne(seen[0].samples[1]).any() == (method != "point-u")  # whose draws come with Laplace


def test_what_the_twins_are() -> None:
    plain = FCN([4, 6, 3])
    before = [parameter.clone() for parameter in plain.parameters()]
    nets = twins(plain, list(known()), 2, 3)
    layers = {method: [m for m in net.modules() if isinstance(m, InducingBase)] for method, net in nets.items()}
    assert {method: layers[method][0].options.sampling for method in layers if layers[method]} == {
        "ffg-u": "auto",
        "ffg-u-local": "local",
        "ffg-u-weight": "weight",
        "paper": "weight",
        **dict.fromkeys(("matrix-u", "fcg-u", "ensemble-u", "ffg-u-lamda-0", "point-u"), "auto"),
    }
    for method, found in layers.items():
        if not found:
            families = {m.family for m in nets[method].modules() if isinstance(m, BayesianLayer)}
            assert families == {METHODS[method].family}
            continue
        assert [(len(layer.z_row), len(layer.z_col)) for layer in found] == [(2, 3), (2, 3)]
        assert (found[0].lamda() is None) == (method in ("ffg-u-lamda-0", "point-u"))
    assert layers["ensemble-u"][0].inducing_mean.shape == (5, 2, 3)
    assert len({id(p) for net in nets.values() for p in net.parameters()}) == sum(
        len(list(net.parameters())) for net in nets.values()
    )  # nobody warms another's cache
    assert all(map(torch.equal, before, plain.parameters()))


# ---- the command -----------------------------------------------------------------------------------------------------


def test_json_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    result = benched(capsys, "--batch", "1,3", "--seed", "4")
    assert {name: result[name] for name in ("rows", "cols", "samples", "rounds", "seed", "device")} == {
        "rows": 2,
        "cols": 2,
        "samples": 2,
        "rounds": 1,
        "seed": 4,
        "device": "cpu",
    }
    assert result["versions"]["torch"] == torch.__version__
    assert set(result["versions"]) == {"bnn", "torch", "python"}
    assert result["threads"] == torch.get_num_threads()
    assert result["network"] == {
        "net": {"name": "fcn", "hidden": [5]},
        "in_shape": [6],
        "outputs": 3,
        "members": 1,
    }
    assert "K passes of the plain network" in result["baseline"]
    assert "one run only" in result["caution"]
    assert [one["batch"] for one in result["results"]] == [1, 3]
    for one in result["results"]:
        assert list(one["seconds"]) == list(one["ratios"]) == ["plain", *USUAL]
        assert all(taken["median"] > 0 and taken["rounds"] == 1 for taken in one["seconds"].values())


def test_ratios_are_quotients_of_medians(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(n**2 for n in range(10_000))  # every turn takes longer than the one before
    monkeypatch.setattr(timing, "perf_counter", lambda: float(next(ticks)))
    args = [*SMALL, "--rounds", "3", "--batch", "2", "--method", "ffg-u,ffg-w"]
    assert run(["bench", *args, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["results"]
    plain = one["seconds"]["plain"]
    for name, ratio in one["ratios"].items():
        taken = one["seconds"][name]
        assert taken["median"] == median(taken["seconds"])
        assert ratio["value"] == taken["median"] / plain["median"]
        rounds = [mine / its for mine, its in zip(taken["seconds"], plain["seconds"], strict=True)]
        assert (ratio["low"], ratio["high"]) == (min(rounds), max(rounds))
    assert one["ratios"]["plain"] == {"value": 1, "low": 1, "high": 1}
    assert one["ratios"]["ffg-u"]["low"] < one["ratios"]["ffg-u"]["high"]


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))  # every turn takes a second
    monkeypatch.setattr(timing, "perf_counter", lambda: float(next(ticks)))
    assert run(["bench", *SMALL, "--batch", "1,3"]) == 0
    captured = capsys.readouterr()
    lines = [" ".join(line.split()) for line in captured.out.splitlines()]
    assert "time of 2 draws batch 1 batch 3" in lines
    assert "plain network 1 (1 s) 1 (1 s)" in lines
    for name in USUAL:
        assert f"{known()[name][0]} 1.00 (1.00-1.00) 1.00 (1.00-1.00)" in lines
    assert "1 is 2 passes of the plain network; in brackets the range over 1 rounds." in lines
    assert any("Compare ratios of one run only" in line for line in lines)
    assert captured.err == "timing 28 turns\n"  # 7 contestants, 2 batches, a round and one to warm up


def test_progress_comes_to_its_end(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    totals: list[int] = []

    @contextmanager
    def progress(total: int, wanted: bool) -> Iterator[Any]:
        totals.append(total)
        yield told.append

    monkeypatch.setattr(command, "_progress", progress)
    benched(capsys, "--batch", "2,2,1", "--method", "ffg-w,ffg-w", "--rounds", "2")
    assert totals == [len(told)] == [(2 + 1) * 2 * 2]
    assert told[:2] == ["batch 2, plain", "batch 2, ffg-w"]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *SMALL, "--batch", "1", "--method", "ffg-w", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_the_seed_decides_networks_and_inputs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(command, "contestants", lambda plain, nets, x, *_: seen.append(plain(x)) or {"plain": int})  # type: ignore[func-returns-value]
    monkeypatch.setattr(timing, "perf_counter", iter(range(100)).__next__)
    for seed in ("1", "1", "2"):
        benched(capsys, "--seed", seed, "--batch", "4")
    assert seen[0].shape == (4, 3)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_threads_are_set_for_the_run_only(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    result = benched(capsys, "--threads", str(before + 1), "--batch", "1", "--method", "ffg-w")
    assert result["threads"] == before + 1
    assert torch.get_num_threads() == before


def test_methods_in_any_spelling_and_a_network_with_one_output(capsys: pytest.CaptureFixture[str]) -> None:
    result = benched(capsys, "--method", "Ensemble_U, paper", "--batch", "1", "--classes", "1")
    assert list(result["results"][0]["ratios"]) == ["plain", "ensemble-u", "paper"]


def test_out_holds_what_json_prints(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    file = tmp_path / "bench.json"
    result = benched(capsys, "--batch", "1", "--method", "ffg-w", "--out", str(file))
    assert json.loads(file.read_text()) == result
    assert list(tmp_path.iterdir()) == [file]


def test_interrupted_it_leaves_no_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def interrupted(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "interleaved", interrupted)
    assert run(["bench", *SMALL, "--out", str(tmp_path / "bench.json")]) == 130
    assert not list(tmp_path.iterdir())


MISTAKES = [
    (["resnet81"], "unknown network 'resnet81' (did you mean 'resnet18'?); expected one of fcn, cnn, resnet18"),
    (["ours/digits-ffg"], "unknown network 'ours/digits-ffg'; expected one of fcn"),
    (["fcn", "--method", "ffg-u,fgg-w"], "unknown method 'fgg-w' (did you mean 'ffg-w'?); expected one of ffg-u"),
    (["fcn", "--device", "cup"], "unknown device 'cup' (did you mean 'cpu'?); expected one of cpu"),
    (["fcn", "--batch", "1,b"], "--batch must be whole numbers from 1 to 10,000,000 with commas between, as 1,8"),
    (["fcn", "--batch", "0"], "--batch must be whole numbers"),
    (["fcn", "--data", "digitz"], "did you mean 'digits'?"),
    (["fcn", "--samples", "0"], "--samples"),
    (["fcn", "--rounds", "0"], "--rounds"),
    (["fcn", "--threads", "0"], "--threads"),
    (["fcn", "--out", "result.txt"], "--out must be a .json file; got 'result.txt'"),
    (["fcn", "--out", "no/such/folder/result.json"], "create it first"),
]


@pytest.mark.parametrize(("args", "message"), MISTAKES, ids=[" ".join(args) for args, _ in MISTAKES])
def test_mistakes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    monkeypatch.setattr(command, "twins", lambda *_: pytest.fail("it began before it was checked"))
    assert run(["bench", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in " ".join(captured.err.replace("│", " ").split())
    assert "Traceback" not in captured.err


def test_too_large_for_memory_is_a_mistake_and_other_errors_are_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(message: str) -> Any:
        def contestants(*_: Any) -> Any:
            raise RuntimeError(message)

        return contestants

    monkeypatch.setattr(command, "contestants", failing("DefaultCPUAllocator: can't allocate memory"))
    assert run(["bench", *SMALL]) == 2
    assert "does not fit in memory: use a smaller --batch" in capsys.readouterr().err
    monkeypatch.setattr(command, "contestants", failing("a bug of ours"))
    with pytest.raises(RuntimeError, match="a bug of ours"):
        run(["bench", *SMALL])
