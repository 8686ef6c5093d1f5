"""What makes a run this run: a checkpoint of another one is refused, with what differs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bnn._common.text import listed
from bnn._conversion.record import Conversion
from bnn.data.batches import Batches
from bnn.files import FileFormatError, state_mismatch
from bnn.objective import ELBO
from bnn.train.folder import OTHER_FOLDER
from bnn.train.schedule import Schedule


def identity(elbo: ELBO, source: Batches, schedule: Schedule, processes: int, sampling: str | None) -> dict[str, Any]:
    """Everything that decides the course of a run, as JSON; its seed aside, which the checkpoint decides.

    Args:
        sampling: what draws guarantee in a step. Where the schedule leaves it open, the checkpoint decides that, too.
    """
    return {
        "schedule": schedule.to_dict(),
        "data": source.fingerprint(),
        "likelihood": getattr(elbo.likelihood, "__name__", type(elbo.likelihood).__name__),
        "conversion": Conversion.of(elbo.net).to_json(),
        "trained": [name for name, parameter in elbo.named_parameters() if parameter.requires_grad],
        "processes": processes,
        "sampling": sampling,
    }


def check_same(path: str, state: dict[str, Any], elbo: ELBO, own: dict[str, Any], schedule: Schedule) -> None:
    """Raises ValueError unless the checkpoint is of the run that `own` identifies; FileFormatError if of no run."""
    if not {"run", "objective", "optimiser"} <= state.keys():
        raise FileFormatError(f"{path} is no checkpoint of a run, it holds {sorted(state)}; {OTHER_FOLDER}")
    record = state["run"]
    network = _network_differs(state["objective"], record, elbo, own)
    if network:
        raise ValueError(f"{path} is a checkpoint of another network: {listed(network)}; {OTHER_FOLDER}")
    run = _run_differs(record, own, schedule)
    if run:
        raise ValueError(f"{path} is a checkpoint of another run: {listed(run)}; {OTHER_FOLDER}")


def _network_differs(tensors: dict[str, Tensor], record: dict[str, Any], elbo: ELBO, own: dict[str, Any]) -> list[str]:
    mismatch = state_mismatch({f"elbo.{name}": value for name, value in elbo.state_dict().items()}, tensors)
    if not mismatch and record["conversion"] != own["conversion"]:
        mismatch = ["its layers were converted with other options"]
    if not mismatch and record["trained"] != own["trained"]:
        mismatch = ["other parameters are frozen"]
    return mismatch


def _run_differs(record: dict[str, Any], own: dict[str, Any], schedule: Schedule) -> list[str]:
    different = schedule.differences(record["schedule"])
    if record["epoch"] + bool(record["step"]) > schedule.epochs:
        different.append(f"epochs: {record['epoch']} behind it already, {schedule.epochs} now")
    if schedule.cosine and record["schedule"]["epochs"] != schedule.epochs:
        different.append("epochs: with cosine they set the rate of every epoch")
    different += [
        f"{name}: {record[name]} then, {own[name]} now" for name in ("likelihood", "data") if record[name] != own[name]
    ]
    if record["processes"] != own["processes"] and record["step"]:
        different.append(
            f"processes: {record['processes']} then, {own['processes']} now; amid an epoch only as many can go on"
        )
    return different
