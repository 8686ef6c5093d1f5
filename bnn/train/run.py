"""One training run: steps, epochs, checkpoints. `bnn.fit` makes one and lets it go."""

from __future__ import annotations

import contextlib
import glob
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnn.ensemble import Ensemble
from bnn.files import FileFormatError, save, state_mismatch
from bnn.functional.linalg import FactorisationError
from bnn.objective import ELBO
from bnn.passes import Statistics
from bnn.record import Conversion, listed
from bnn.train.batches import Batch, Place, Source
from bnn.train.batchnorm import refresh_batchnorm_
from bnn.train.checkpoint import previous
from bnn.train.devices import agreed, same_everywhere_, summed
from bnn.train.history import History, Log
from bnn.train.interrupt import Interrupts
from bnn.train.monitor import Monitor, is_bayesian
from bnn.train.progress import Progress, progress_of
from bnn.train.schedule import Schedule
from bnn.train.seeds import derived, seed_everything
from bnn.train.tally import Tally

STEP, SCORE, REFRESH = 2, 3, 4  # what a derived seed is for
CHECKPOINT, BEST, NET = "checkpoint.safetensors", "best.safetensors", "net.safetensors"


class DivergenceError(ArithmeticError):
    """The loss or its gradient is no longer a finite number; the parameters are those before that step."""


class Objective(nn.Module):
    """What every process runs: the loss of its share of a batch, and numbers to add up."""

    def __init__(self, elbo: ELBO) -> None:
        super().__init__()
        self.elbo = elbo

    def forward(self, x: Any, y: Any, epoch: float, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, its parts (3,) and the tally of the outputs.

        The mean of the loss over processes is the loss of the whole batch. The gradient of each member of an ensemble
        is that of training it alone.
        """
        result, pairs = self.elbo.with_outputs(x, y, epoch=epoch)
        members = len(self.elbo.net.members) if isinstance(self.elbo.net, Ensemble) else 1
        loss = members * (result.loss + (share - 1) * result.data)
        parts = torch.stack([result.data * share, result.kl_u, result.kl_lamda]).detach()
        tally = Tally()
        tally.add_outputs(self.elbo.likelihood, pairs)
        return loss, parts, tally.values.to(loss.device)


@dataclass
class Settings:
    """How a run is run, beside its hyper-parameters: nothing here changes its result."""

    out: str | None = None
    save_every: float = 300.0
    progress: bool | None = None
    tensorboard: bool | None = None
    title: str = "training"


class Run:
    """A run in progress: its state is (epoch, step) and what the checkpoint holds; randomness follows from them."""

    def __init__(
        self,
        fabric: Any,
        elbo: ELBO,
        source: Source,
        schedule: Schedule,
        monitor: Monitor | None,
        seed: int,
        settings: Settings,
    ) -> None:
        self.elbo, self.net, self.source, self.schedule = elbo, elbo.net, source, schedule
        self.fabric, self.monitor, self.seed, self.settings = fabric, monitor, seed, settings
        fabric.to_device(elbo)
        same_everywhere_(fabric, [*elbo.parameters(), *elbo.buffers()])  # the rate of u depends on its start
        self.objective, self.optimiser = fabric.setup(Objective(elbo), schedule.optimiser_of(elbo))
        self.epoch = self.step = 0
        self.tally = Tally()
        self.history = History(likelihood=elbo.likelihood, out=settings.out)
        self.best: dict[str, float] | None = None  # {"epoch": ..., "nll": ...}
        self._best_state: dict[str, Tensor] | None = None
        self._saved = self._started = time.monotonic()

    # -- training ------------------------------------------------------------------------------------------------------

    def train(self, interrupts: Interrupts) -> History:
        """Runs to the end, from wherever the run is."""
        modes = {module: module.training for module in self.elbo.modules()}
        first = self.fabric.is_global_zero
        with self._writing():
            log = Log(self.settings.out if first else None, self.history.epochs, self.settings.tensorboard)
        wanted = self.settings.progress if first else False
        try:
            with progress_of(wanted, self.schedule.epochs, self._done(), self.settings.title) as progress:
                while self.epoch < self.schedule.epochs and not self._out_of_patience():
                    self.elbo.train()
                    self._run_epoch(interrupts, progress)
                    self._end_epoch(log, progress)
            self._finish()
            if interrupts.caught is not None:  # too late to stop training, but whoever sent it wants the program to end
                interrupts.stop("stopped after training had ended")
        finally:
            log.close()
            for module, mode in modes.items():
                module.training = mode
        return self.history

    def _run_epoch(self, interrupts: Interrupts, progress: Progress) -> None:
        place = Place(self.seed, self.epoch, self.fabric.global_rank, self.fabric.world_size)
        for group in self.optimiser.param_groups:
            group["lr"] = group["initial_lr"] * self.schedule.rate(self.epoch)
        self._started = time.monotonic()
        for batch in self.source.epoch(place, self.step):
            self._take_step(batch, place)
            self.step += 1
            progress.step(self._done(), self.tally.summary())
            due = self.settings.out is not None and time.monotonic() - self._saved >= self.settings.save_every
            stop, save_now = agreed(self.fabric, interrupts.caught is not None, due and self.fabric.is_global_zero)
            if stop or save_now:
                self.save()
            if stop:
                interrupts.stop(self._how_to_go_on())
        if not self.step:
            raise ValueError("the data gave no batch: nothing was trained")

    def _take_step(self, batch: Batch, place: Place) -> None:
        seed_everything(derived(self.seed, STEP, self.epoch, self.step, place.rank))
        x, y = self.fabric.to_device((batch.x, batch.y))
        self.optimiser.zero_grad()
        statistics = Statistics(self.net)
        try:
            loss, parts, seen = self.objective(x, y, self._done(), batch.share)
            if self.fabric.world_size == 1:
                self._check_finite(loss, "the loss", parts)
            self.fabric.backward(loss)
            self._check_finite(self._clip(), "the gradient", parts)
        except (DivergenceError, FactorisationError) as error:
            statistics.restore_()  # NaN inputs are in those of BatchNorm already
            if isinstance(error, DivergenceError):
                raise
            raise DivergenceError(f"in epoch {self.epoch}, step {self.step}: {error}{self._kept()}") from error
        self.optimiser.step()
        self.tally.add_step(parts)
        self.tally.values += seen.cpu()

    def _clip(self) -> Tensor:
        """Clips the gradient, of every ensemble member by itself, and returns its norm."""
        limit = self.schedule.clip or math.inf
        if isinstance(self.net, Ensemble) and self.schedule.clip:
            noise = self.elbo.likelihood
            groups = [[*one.parameters()] for one in [*self.net.members, noise] if isinstance(one, nn.Module)]
            return torch.stack([nn.utils.clip_grad_norm_(group, limit) for group in groups if group]).norm()
        return self.fabric.clip_gradients(self.objective, self.optimiser, max_norm=limit, error_if_nonfinite=False)

    def _check_finite(self, value: Tensor, what: str, parts: Tensor) -> None:
        if bool(torch.isfinite(value.detach()).all()) or self.fabric._precision.precision == "16-mixed":
            return
        data, kl_u, kl_lamda = (f"{float(part):.4g}" for part in parts)
        raise DivergenceError(
            f"{what} is {float(value.detach()):g} in epoch {self.epoch}, step {self.step} (data term {data}, KL parts "
            f"{kl_u} and {kl_lamda} per datum). The network holds the parameters from before this step{self._kept()}. "
            "Look for NaN in the inputs; otherwise try a smaller lr, clip=1.0, or a longer warmup"
        )

    def _check_parameters(self) -> None:
        """A finite loss may still make a step too large for the numbers there are: no checkpoint of that."""
        if not all(bool(torch.isfinite(one).all()) for one in self.elbo.parameters() if one.requires_grad):
            raise DivergenceError(
                f"a parameter is not finite after epoch {self.epoch}, step {self.step}{self._kept()}: try a smaller "
                "lr, or clip=1.0"
            )

    def _kept(self) -> str:
        return f"; the last checkpoint in {self.settings.out} is intact" if self.settings.out else ""

    def _end_epoch(self, log: Log, progress: Progress) -> None:
        self._check_parameters()
        self.tally.values = summed(self.fabric, self.tally.values)
        self.tally.values[:4] /= self.fabric.world_size
        numbers: dict[str, Any] = {"epoch": self.epoch, "step": self.step}
        numbers |= {"lr": self.schedule.lr * self.schedule.rate(self.epoch), "kl_scale": self.elbo.kl_scale(self.epoch)}
        numbers |= self.tally.summary()
        same_everywhere_(self.fabric, list(self.elbo.buffers()))  # BatchNorm statistics differ by process
        if self.monitor is not None:
            seed_everything(derived(self.seed, SCORE, self.epoch))  # for a loader that shuffles
            score = self.monitor.score(self.net, self.fabric.device, derived(self.seed, SCORE, self.epoch))
            numbers |= {f"validation_{name}": value for name, value in score.items()}
            self._note_best(score["nll"])
        numbers["seconds"] = round(time.monotonic() - self._started, 3)
        self.history.epochs.append(numbers)
        with self._writing():
            log.add(numbers)
        progress.epoch(numbers)
        self.epoch, self.step, self.tally = self.epoch + 1, 0, Tally()
        self.save()

    def _done(self) -> float:
        """How far the run is, in epochs."""
        steps = self.source.steps(self.fabric.world_size)
        return self.epoch + (min(self.step / steps, 1.0) if steps else 0.0)

    # -- early stopping and the end ------------------------------------------------------------------------------------

    def _note_best(self, nll: float) -> None:
        if self.schedule.patience is None or not nll < (math.inf if self.best is None else self.best["nll"]):
            return
        self.best = {"epoch": self.epoch, "nll": nll}
        self._best_state = {name: tensor.detach().clone() for name, tensor in self.elbo.state_dict().items()}
        if self.settings.out is not None:
            with self._writing():
                self.fabric.save(self._path(BEST), {"best": self.best, "elbo": self._best_state})

    def _out_of_patience(self) -> bool:
        patience = self.schedule.patience
        return patience is not None and self.best is not None and self.epoch - 1 - self.best["epoch"] >= patience

    def _finish(self) -> None:
        """The best parameters, BatchNorm statistics under draws, and the network as a file."""
        if self._out_of_patience():
            self.history.stopped = "patience"
        if self.best is not None and self._best_state is not None:
            self.elbo.load_state_dict(self._best_state)
            self.history.best = int(self.best["epoch"])
        if self.schedule.refresh_batchnorm and is_bayesian(self.net):
            seed_everything(derived(self.seed, REFRESH))
            place = Place(derived(self.seed, REFRESH, 1), 0)
            refresh_batchnorm_(self.net, (batch[:2] for batch in self.source.epoch(place)))
        same_everywhere_(self.fabric, [*self.elbo.parameters(), *self.elbo.buffers()])
        if self.settings.out is not None and self.fabric.is_global_zero:
            with self._writing():
                save(self.net, self._path(NET))
        self.fabric.barrier()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Writes a checkpoint, if the run has a folder."""
        if self.settings.out is None:
            return
        self._check_parameters()
        state = {"objective": self.objective, "optimiser": self.optimiser, "run": self._record()}
        with self._writing():
            self.fabric.save(self._path(CHECKPOINT), state)
        self._saved = time.monotonic()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Says what to do when the disk is full."""
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot write to {self.settings.out}: {error.strerror or error}; the last checkpoint there is intact: "
                "make room and start the run again to go on from it",
            ) from error

    def _record(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "step": self.step,
            "seed": self.seed,
            "schedule": self.schedule.to_dict(),
            "data": self.source.fingerprint(),
            "likelihood": _name(self.elbo.likelihood),
            "conversion": Conversion.of(self.net).to_json(),
            "trained": self._trained(),
            "processes": self.fabric.world_size,
            "tally": summed(self.fabric, self.tally.values) / self.fabric.world_size,
            "best": self.best,
            "history": self.history.epochs,
        }

    def restore(self) -> bool:
        """Goes on from the run's checkpoint, if there is one; every check comes before any change."""
        path = self._found()
        if path is None:
            return False
        state = self.fabric.load(path)
        if not {"run", "objective", "optimiser"} <= state.keys():
            raise FileFormatError(f"{path} is no checkpoint of a run, it holds {sorted(state)}; {_OTHER_FOLDER}")
        record, tensors = state["run"], state["objective"]
        self._check_same_run(path, record, tensors)
        record["best"] = None if self.schedule.patience is None else record["best"]
        self._restore_best(record["best"])
        self.elbo.load_state_dict({name.removeprefix("elbo."): value for name, value in tensors.items()})
        self.optimiser.load_state_dict(state["optimiser"])
        self.epoch, self.step, self.seed = record["epoch"], record["step"], record["seed"]
        self.tally.values, self.best = record["tally"], record["best"]
        self.history.epochs[:] = record["history"]
        return True

    def _check_same_run(self, path: str, record: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        own = {f"elbo.{name}": value for name, value in self.elbo.state_dict().items()}
        mismatch = state_mismatch(own, tensors)
        if not mismatch and record["conversion"] != Conversion.of(self.net).to_json():
            mismatch = ["its layers were converted with other options"]
        if not mismatch and record["trained"] != self._trained():
            mismatch = ["other parameters are frozen"]
        if mismatch:
            raise ValueError(f"{path} is a checkpoint of another network: {listed(mismatch)}; {_OTHER_FOLDER}")
        different = self.schedule.differences(record["schedule"])
        if record["epoch"] + bool(record["step"]) > self.schedule.epochs:
            different.append(f"epochs: {record['epoch']} behind it already, {self.schedule.epochs} now")
        if record["likelihood"] != _name(self.elbo.likelihood):
            different.append(f"likelihood: {record['likelihood']} then, {_name(self.elbo.likelihood)} now")
        if self.schedule.cosine and record["schedule"]["epochs"] != self.schedule.epochs:
            different.append("epochs: with cosine they set the rate of every epoch")
        if record["data"] != self.source.fingerprint():
            different.append(f"data: {record['data']} then, {self.source.fingerprint()} now")
        if record["processes"] != self.fabric.world_size and record["step"]:
            different.append(f"processes: {record['processes']} then, {self.fabric.world_size} now, amid an epoch")
        if different:
            raise ValueError(f"{path} is a checkpoint of another run: {listed(different)}; {_OTHER_FOLDER}")

    def _restore_best(self, best: dict[str, float] | None) -> None:
        if best is None:
            return
        path = self._path(BEST)
        for one in (path, previous(path)):  # the first is missing if the run was killed while replacing it
            if not os.path.exists(one):
                continue
            state = self.fabric.load(one)
            epoch = state.get("best", {}).get("epoch", -1)
            if epoch >= best["epoch"]:  # a later one the run will come by again
                self._best_state = state["elbo"]
            if epoch <= best["epoch"]:
                break
        if self._best_state is None:
            raise FileFormatError(f"{path}, the parameters of epoch {best['epoch']}, is missing; {_OTHER_FOLDER}")

    def _found(self) -> str | None:
        """The newest checkpoint; what a killed run left half-written is removed."""
        if self.settings.out is None:
            return None
        if self.fabric.is_global_zero:
            for leftover in glob.glob(os.path.join(glob.escape(self.settings.out), ".*.tmp")):
                with contextlib.suppress(OSError):
                    os.remove(leftover)
        path = self._path(CHECKPOINT)
        return next((one for one in (path, previous(path)) if os.path.exists(one)), None)

    def _trained(self) -> list[str]:
        return [name for name, parameter in self.elbo.named_parameters() if parameter.requires_grad]

    def _path(self, name: str) -> str:
        assert self.settings.out is not None
        return os.path.join(self.settings.out, name)

    def _how_to_go_on(self) -> str:
        where = f"epoch {self.epoch}, step {self.step}"
        if self.settings.out is None:
            return f"stopped in {where}; with out=<folder> a run can go on where it stopped"
        return f"stopped in {where}; start it again to go on from {self._path(CHECKPOINT)}"


def _name(likelihood: Any) -> str:
    return getattr(likelihood, "__name__", type(likelihood).__name__)


_OTHER_FOLDER = "give this run another folder (out=), or delete the old one to start anew"
