"""The units of progress: an NLL is shown as one of targets in their own units, whatever is missing or logarithmic."""

from __future__ import annotations

import json
import math
import pathlib
import re

import numpy as np
import pytest
import torch
from torch import nn

import bnn
from bnn.data.dataset import Data, Part, TargetScale
from bnn.metrics import lognormal_nll, mixture_nll
from bnn.report.entry import _units
from bnn.train.runs.folder import RunFolder
from bnn.train.units import added_nll

SCALES = {
    "linear": TargetScale((5.0, -300.0), (0.5, 40.0)),
    "log": TargetScale((2.0, -1.0), (0.5, 1.5), log=True),
}


def scaled(n: int, seed: int) -> torch.Tensor:
    """Targets (n, 2) of which a third are missing, whose mean is not 0."""
    y = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed)) + 0.3
    y[::3, 0] = math.nan
    y[1::3, 1] = math.nan
    return y


@pytest.mark.parametrize("kind", SCALES)
def test_what_is_added_is_what_the_densities_differ_by(kind: str) -> None:
    """-log p of targets in their own units, less that of scaled ones, from the densities themselves."""
    target, y = SCALES[kind], scaled(40, 0)
    zeros, sds = np.zeros((1, 40, 2)), np.full((1, 40, 2), 1.3)
    own = (zeros + target.mean, sds * target.sd, np.asarray(target.own_units(y.double())))
    expected = (lognormal_nll if target.log else mixture_nll)(*own) - mixture_nll(zeros, sds, y.numpy())
    assert added_nll(target, y) == pytest.approx(expected)


@pytest.mark.parametrize("kind", SCALES)
def test_progress_shows_the_nll_that_an_evaluation_finds(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(120, 3, generator=torch.Generator().manual_seed(1))
    parts = [Part(x[:60], scaled(60, 2)), Part(x[60:], scaled(60, 3))]
    data = Data("d", "regression", parts[0], parts[1], parts[1], target=SCALES[kind])
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    noise = bnn.likelihoods.Gaussian(targets=2, tails=False)  # with which epochs are judged
    history = bnn.fit(net, data, likelihood=noise, epochs=1, seed=0, progress=True)
    shown = re.search(r"validation NLL ([-\d.]+)", capsys.readouterr().err)
    found = bnn.evaluate(net, data, likelihood=history.likelihood, resamples=10)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(found.metrics["nll"].value, abs=6e-4)


def test_a_report_knows_that_training_was_on_a_log_scale(tmp_path: pathlib.Path) -> None:
    """RMSE of the logarithm is not in the target's own units, and is called so."""
    scale = TargetScale((9.0,), (0.5,), log=True)
    (tmp_path / "run.json").write_text(json.dumps({"target": scale.to_dict()}))
    units = _units(RunFolder(tmp_path))
    assert units.note == "of the logarithm"
    assert units.shown("validation_nll", 1.0) == pytest.approx(1.0 + math.log(0.5) + 9.0)
