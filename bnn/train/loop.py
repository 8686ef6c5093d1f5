"""The training loop: steps, epochs, checkpoints. `bnn.fit` makes one and lets it run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.errors import DivergenceError
from bnn._common.seeds import derived, seed_everything
from bnn._engine.fold import Statistics
from bnn._engine.inputs import same_mode_after
from bnn.data.batches import Batch, Batches, Place
from bnn.ensemble import Ensemble
from bnn.files import save
from bnn.functional.gaussian import KLError
from bnn.functional.linalg import FactorisationError
from bnn.objective import ELBO
from bnn.train.batchnorm import refresh_batchnorm_
from bnn.train.checkpoint import Checkpoints, check_same, identity, optimiser_state
from bnn.train.devices import Interrupts, agreed, same_everywhere_, summed
from bnn.train.history import Best, History, Log
from bnn.train.laplace import LaplaceStage
from bnn.train.monitor import Monitor, is_bayesian
from bnn.train.progress import Progress, progress_of
from bnn.train.runs.folder import CHECKPOINT, NET, RunFolder
from bnn.train.schedule import Schedule
from bnn.train.settling import NoiseStage
from bnn.train.step import Objective, Sampling, Tally, sampling_of

STEP, SCORE, REFRESH, LAPLACE, NOISE = 2, 3, 4, 5, 6  # what a derived seed is for
BETWEEN = 2.0  # seconds between the checkpoints of epochs that are shorter than that


@dataclass
class Settings:
    """How a run is run, beside its hyper-parameters: nothing here changes its result."""

    folder: RunFolder | None = None
    save_every: float = 300.0
    progress: bool | None = None
    tensorboard: bool | None = None
    title: str = "training"

    @property
    def out(self) -> str | None:
        """The path of the run's folder."""
        return None if self.folder is None else self.folder.path


class Loop:
    """Training in progress: its state is (epoch, step) and what the checkpoint holds; randomness follows from them."""

    def __init__(
        self,
        fabric: Any,
        elbo: ELBO,
        source: Batches,
        schedule: Schedule,
        monitor: Monitor | None,
        seed: int,
        settings: Settings,
        noise: NoiseStage,
        laplace: LaplaceStage | None = None,
    ) -> None:
        self.elbo, self.net, self.source, self.schedule = elbo, elbo.net, source, schedule
        self.fabric, self.monitor, self.seed, self.settings = fabric, monitor, seed, settings
        self.noise, self.laplace = noise, laplace
        fabric.to_device(elbo)
        same_everywhere_(fabric, [*elbo.parameters(), *elbo.buffers()])  # the rate of u depends on its start
        self.objective, self.optimiser = fabric.setup(Objective(elbo), schedule.optimiser_of(elbo))
        self.epoch = self.step = 0
        self.tally = Tally()
        self.history = History(likelihood=elbo.likelihood, out=settings.out)
        self.checkpoints = Checkpoints(fabric, settings.folder)
        self.best = Best(schedule.patience, self.checkpoints)
        sampling = sampling_of(self.net, schedule.sampling)
        self.sampling = Sampling(self.net, sampling)
        self.identity = identity(elbo, source, schedule, fabric.world_size, sampling)
        self._saved = self._started = time.monotonic()

    # -- training ------------------------------------------------------------------------------------------------------

    def start_noise_(self) -> None:
        """Puts the noise of real targets where the network at hand leaves it; of a run that does not resume."""
        place = Place(derived(self.seed, NOISE), 0)
        with self.sampling.in_force():
            self.noise.start_(self.net, (batch[:2] for batch in self.source.epoch(place)))
        same_everywhere_(self.fabric, [*self.elbo.parameters(), *self.elbo.buffers()])

    def train(self, interrupts: Interrupts) -> History:
        """Runs to the end, from wherever the run is."""
        first = self.fabric.is_global_zero
        with self.checkpoints.writing():
            log = Log(self.settings.folder if first else None, self.history.epochs, self.settings.tensorboard)
        wanted = self.settings.progress if first else False
        try:
            showing = progress_of(wanted, self.schedule.epochs, self._done(), self.settings.title)
            with same_mode_after(self.elbo), showing as progress:
                while self.epoch < self.schedule.epochs and not self.best.out_of_patience(self.epoch):
                    self.elbo.train()
                    self._run_epoch(interrupts, progress)
                    self._end_epoch(log, progress)
            self._finish()
            if interrupts.caught is not None:  # too late to stop training, but whoever sent it wants the program to end
                interrupts.stop("stopped after training had ended")
        finally:
            log.close()
        return self.history

    def _run_epoch(self, interrupts: Interrupts, progress: Progress) -> None:
        place = Place(self.seed, self.epoch, self.fabric.global_rank, self.fabric.world_size)
        self._started = time.monotonic()
        for batch in self.source.epoch(place, self.step):
            with self.sampling.in_force():
                self._take_step(batch, place)
            self.step += 1
            progress.step(self._done(), self.tally.summary())
            due = self.settings.folder is not None and time.monotonic() - self._saved >= self.settings.save_every
            stop, save_now = agreed(self.fabric, interrupts.caught is not None, due and self.fabric.is_global_zero)
            if stop or save_now:
                self.save()
            if stop:
                interrupts.stop(self._how_to_resume())
        if not self.step:
            raise ValueError("the data gave no batch: nothing was trained")

    def _take_step(self, batch: Batch, place: Place) -> None:
        seed_everything(derived(self.seed, STEP, self.epoch, self.step, place.rank))
        x, y = self.fabric.to_device((batch.x, batch.y))
        for group in self.optimiser.param_groups:
            group["lr"] = group["initial_lr"] * self.schedule.rate(self._done())
        self.optimiser.zero_grad()
        statistics = Statistics(self.net)
        try:
            loss, parts, seen = self.objective(x, y, self._done(), batch.share)
            if self.fabric.world_size == 1:
                self._check_finite(loss, "the loss", parts)
            self.fabric.backward(loss)
            self._check_finite(self._clip(), "the gradient", parts)
        except (DivergenceError, FactorisationError, KLError) as error:
            statistics.restore_()  # NaN inputs are in those of BatchNorm already
            if isinstance(error, DivergenceError):
                raise
            raise DivergenceError(f"in epoch {self.epoch}, step {self.step}: {error}{self._intact()}") from error
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
            f"{kl_u} and {kl_lamda} per datum). The network holds the parameters from before this step"
            f"{self._intact()}. Look for NaN in the inputs; otherwise try a smaller lr, clip=1.0, or a longer "
            "warmup"
        )

    def _check_parameters(self) -> None:
        """A finite loss may still make a step too large for the numbers there are: no checkpoint of that."""
        if not all(bool(torch.isfinite(one).all()) for one in self.elbo.parameters() if one.requires_grad):
            raise DivergenceError(
                f"a parameter is not finite after epoch {self.epoch}, step {self.step}{self._intact()}: try a "
                "smaller lr, or clip=1.0"
            )

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
            self._check_score(score["nll"])
            self.best.note(self.epoch, score["nll"], self.elbo)
        numbers["seconds"] = round(time.monotonic() - self._started, 3)
        self.history.epochs.append(numbers)
        with self.checkpoints.writing():
            log.add(numbers)
        progress.epoch(numbers)
        self.epoch, self.step, self.tally = self.epoch + 1, 0, Tally()
        ended = self.epoch in (1, self.schedule.epochs) or self.best.out_of_patience(self.epoch)
        due = time.monotonic() - self._saved >= min(BETWEEN, self.settings.save_every)
        if agreed(self.fabric, False, (due or ended) and self.fabric.is_global_zero)[1]:
            self.save()

    def _check_score(self, nll: float) -> None:
        if not math.isfinite(nll):
            raise DivergenceError(
                f"the validation NLL is {nll:g} after epoch {self.epoch}{self._intact()}. Look for NaN in the "
                "validation data; otherwise the network has diverged: try a smaller lr, or clip=1.0"
            )

    def _intact(self) -> str:
        return self.checkpoints.intact()

    def _done(self) -> float:
        """How far the run is, in epochs."""
        steps = self.source.steps(self.fabric.world_size)
        return self.epoch + (min(self.step / steps, 1.0) if steps else 0.0)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Best parameters, BatchNorm statistics under draws, Laplace's posterior, noise, and the network as a file."""
        if self.best.out_of_patience(self.epoch):
            self.history.stopped = "patience"
        self.history.best = self.best.keep_(self.elbo)
        if self.schedule.refresh_batchnorm and is_bayesian(self.net):
            seed_everything(derived(self.seed, REFRESH))
            place = Place(derived(self.seed, REFRESH, 1), 0)
            refresh_batchnorm_(self.net, (batch[:2] for batch in self.source.epoch(place)))
        if self.laplace is not None:  # every process takes it from all data
            self.history.laplace = self.laplace.run_(self.net, derived(self.seed, LAPLACE))
        self.history.noise = self.noise.run_(self.net, derived(self.seed, NOISE, 1))
        same_everywhere_(self.fabric, [*self.elbo.parameters(), *self.elbo.buffers()])
        if self.settings.folder is not None and self.fabric.is_global_zero:
            with self.checkpoints.writing():
                save(self.net, self.checkpoints.path(NET))
        self.fabric.barrier()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Writes a checkpoint, if the run has a folder."""
        if self.settings.folder is None:
            return
        self._check_parameters()
        record = self.identity | {
            "epoch": self.epoch,
            "step": self.step,
            "seed": self.seed,
            "tally": summed(self.fabric, self.tally.values) / self.fabric.world_size,
            "best": self.best.record,
            "history": self.history.epochs,
        }
        self.checkpoints.save(CHECKPOINT, {"objective": self.objective, "optimiser": self.optimiser, "run": record})
        self._saved = time.monotonic()

    def restore(self) -> bool:
        """Resumes from the run's checkpoint, if there is one; every check comes before any change."""
        path = self.checkpoints.newest()
        if path is None:
            return False
        state = self.checkpoints.load(path)
        check_same(path, state, self.elbo, self.identity, self.schedule)
        record = state["run"]
        self.best.restore(record["best"])
        self.elbo.load_state_dict({name.removeprefix("elbo."): value for name, value in state["objective"].items()})
        self.optimiser.load_state_dict(optimiser_state(state["optimiser"], self.optimiser))
        self.epoch, self.step, self.seed = record["epoch"], record["step"], record["seed"]
        sampling = record.get("sampling", self.schedule.sampling)  # where there is none, it began with the layers' own
        self.sampling, self.identity["sampling"] = Sampling(self.net, sampling), sampling
        self.tally.values = record["tally"]
        self.history.epochs[:] = record["history"]
        return True

    def _how_to_resume(self) -> str:
        where = f"epoch {self.epoch}, step {self.step}"
        if self.settings.folder is None:
            return f"stopped in {where}; with out=<folder> a run can be resumed where it stopped"
        return f"stopped in {where}; start it again to resume from {self.checkpoints.path(CHECKPOINT)}"
