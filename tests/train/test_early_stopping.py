"""Early stopping: the parameters of the best epoch are kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import blobs, plain_net, run, same

from bnn.files import FileFormatError
from bnn.train import DivergenceError
from bnn.train.monitor import Monitor


def test_patience_keeps_the_parameters_of_the_best_epoch() -> None:
    """Random labels: validation soon grows worse."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 4, generator=generator), torch.randint(3, (40,), generator=generator)
    validation = (torch.randn(40, 4, generator=generator), torch.randint(3, (40,), generator=generator))
    net = plain_net()
    history = run(net, (x, y), validation=validation, epochs=40, lr=0.02, patience=3)
    nll = history.column("validation_nll")
    assert history.best == nll.index(min(nll))
    assert len(nll) == history.best + 4 < 40
    assert history.stopped == "patience"
    score = Monitor(validation, history.likelihood, 1).score(net, torch.device("cpu"), 0)
    assert score["nll"] == min(nll) < nll[-1]


def test_without_patience_the_last_parameters_stay() -> None:
    validation = blobs(20, seed=2)
    net = plain_net()
    history = run(net, validation=validation, epochs=5, lr=0.3)
    score = Monitor(validation, history.likelihood, 1).score(net, torch.device("cpu"), 0)
    assert score["nll"] == history.last["validation_nll"] != min(history.column("validation_nll"))


def test_a_run_that_goes_on_without_patience_ends_with_its_last_parameters(tmp_path: Path) -> None:
    options: dict[str, Any] = {"validation": blobs(20, seed=2), "lr": 0.3}
    expected = plain_net()
    run(expected, epochs=3, **options)
    run(plain_net(), epochs=2, patience=5, out=tmp_path, **options)
    net = plain_net()
    assert run(net, epochs=3, out=tmp_path, **options).best is None
    assert same(net, expected)


def test_validation_that_is_not_a_number_is_an_error() -> None:
    x, y = blobs(20)
    x[0, 0] = math.nan
    with pytest.raises(DivergenceError, match="the validation NLL is nan after epoch 0"):
        run(plain_net(), validation=(x, y), epochs=3, patience=2)


def test_the_best_epoch_lost_is_an_error(tmp_path: Path) -> None:
    options: dict[str, Any] = {"validation": blobs(20, seed=2), "patience": 3, "out": tmp_path}
    run(plain_net(), **options)
    for path in tmp_path.glob("best*"):
        path.unlink()
    with pytest.raises(FileFormatError, match=r"best\.safetensors, the parameters of epoch ., is missing"):
        run(plain_net(), epochs=3, **options)
