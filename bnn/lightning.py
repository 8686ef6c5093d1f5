"""`BayesianModule`: a Bayesian network as a module of Lightning, for those who train with its `Trainer`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bnn._common.checks import check_size
from bnn._common.extras import need
from bnn._common.seeds import derived, own_randomness
from bnn._engine.temperature import forget_temperature_, warn_of_temperature
from bnn.ensemble import Ensemble
from bnn.likelihoods import about
from bnn.prediction import draws, predict, tempered
from bnn.train.monitor import LEAST, Scores, scoring_samples
from bnn.train.schedule import Schedule
from bnn.train.settling import TRAINING, VALIDATION, NoiseStage, settle_

_lightning = need("lightning.pytorch", "train")

ELSEWHERE = {
    "epochs": "Trainer(max_epochs=...)",
    "batch_size": "the loader's batch_size",
    "patience": 'Trainer(callbacks=[EarlyStopping("validation_nll", patience=...)])',
    "refresh_batchnorm": "bnn.refresh_batchnorm_(module.net, loader) after training",
    "sampling": "bnn.set_sampling_(module.net, ...) before training",
}
SEED = 0  # of the draws that score held-out data: the same in every epoch, so that epochs compare


class BayesianModule(_lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Trains `net` by the negative ELBO, and scores and predicts with posterior draws.

    Logs `loss`, `data`, `kl_u`, `kl_lamda` and `kl_scale` in training; `validation_nll` (`test_nll`) of the posterior
    predictive distribution, and `_accuracy` and `_ece`, or `_rmse`, over all of the held-out data. Batches are
    (inputs, targets); `Trainer.predict` takes inputs alone, too, and gives what `bnn.predict` gives.

    The noise of real targets begins at the residuals of the network at hand, and is settled when training ends, as in
    `bnn.fit`: on the validation data, if there are 30 or more, else on those of training; `noise` says what was found.
    A checkpoint that Lightning wrote before the end holds the noise before it.

    Under several processes `num_data` counts the data of all of them once, and each draws noise of its own.

    Args:
        net: a converted network, a plain one, or an `Ensemble`, whose members train together.
        num_data: number of training inputs: `len(train_set)`.
        likelihood: as for `bnn.ELBO`.
        schedule: a `bnn.train.Schedule`, of which epochs and batch size are left to the Trainer and the loader; or its
            fields as keywords: `lr`, `optimiser`, `milestones`, `cosine` (over the Trainer's `max_epochs`), `samples`,
            `kl_weight`, `warmup`, `anneal`, `scale_rate`, `clip`, .... Draws guarantee what the layers' own option
            `sampling` says, in training, too.
        validation_samples: draws that score held-out data.
        prediction_samples: draws of `Trainer.predict`; None is 20, rounded up so that members count the same.

    >>> import bnn
    >>> net = nn.Linear(3, 2)
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    >>> module = BayesianModule(net, num_data=100, lr=1e-2, warmup=2)
    >>> module.schedule.warmup, type(module.configure_optimizers()["optimizer"]).__name__
    (2, 'Adam')
    """

    def __init__(
        self,
        net: nn.Module,
        num_data: int,
        likelihood: str | Callable[..., Any] = "categorical",
        schedule: Schedule | None = None,
        *,
        validation_samples: int = 10,
        prediction_samples: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_size("validation_samples", validation_samples)
        check_size("prediction_samples", prediction_samples, none=True)
        self.schedule = plan = _schedule(schedule, options)
        self.elbo = plan.objective_of(net, num_data, likelihood)
        self.validation_samples, self.prediction_samples = validation_samples, prediction_samples
        self._scores = Scores(self.elbo.likelihood)
        self.noise: dict[str, Any] | None = None

    @property
    def net(self) -> nn.Module:
        """The network."""
        return self.elbo.net

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output under one draw."""
        return self.elbo.net(*args, **kwargs)

    # -- training ------------------------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Gives every process noise of its own: `seed_everything` seeds them alike. Takes a temperature off."""
        warn_of_temperature(self.net, "it is trained now")
        forget_temperature_(self.net)
        if self.trainer.world_size > 1:
            torch.manual_seed(derived(torch.initial_seed(), self.global_rank))
        if about(self.elbo.likelihood).starts and self.trainer.global_step == 0:
            with own_randomness(self.device):
                NoiseStage(self.elbo.likelihood, ()).start_(self.net, _pairs(self.trainer.train_dataloader))
            self._share_noise()

    def on_fit_end(self) -> None:
        """Settles the noise of real targets; what the first process finds holds for all."""
        if not about(self.elbo.likelihood).settles:
            return
        held_out = _first(self.trainer.val_dataloaders)
        validated = held_out is not None and not _few(held_out)
        name, data = (VALIDATION, held_out) if validated else (TRAINING, self.trainer.train_dataloader)
        with own_randomness(self.device):
            found = settle_(self.net, self.elbo.likelihood, _pairs(data), SEED)
        self.noise = None if found is None else found | {"data": name}
        self._share_noise()

    def _share_noise(self) -> None:
        """The noise of the first process in all of them."""
        if self.trainer.world_size > 1:
            with torch.no_grad():
                for value in about(self.elbo.likelihood).kept().values():
                    value.copy_(self.trainer.strategy.broadcast(value.detach()))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch; of an ensemble the sum over members, so that each trains as if alone."""
        x, y = _pair(batch)
        batches = self.trainer.num_training_batches
        within = batch_idx / batches if math.isfinite(batches) else 0.0
        result = self.elbo(x, y, epoch=self.current_epoch + within)
        parts = {
            name: value.detach() if isinstance(value, Tensor) else value for name, value in result._asdict().items()
        }
        self.log_dict(parts, on_step=True, on_epoch=False, batch_size=len(y))
        loss: Tensor = result.loss
        return loss * len(self.net.members) if isinstance(self.net, Ensemble) else loss

    def configure_optimizers(self) -> dict[str, Any]:
        """The optimiser of the schedule, with its rates for scales and u, and the rate of every step."""
        plan = self.schedule
        if plan.cosine:
            plan = replace(plan, epochs=_epochs(self.trainer.max_epochs))
        optimiser = plan.optimiser_of(self.elbo)
        rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: plan.rate(self._done(step)))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def _done(self, step: int) -> float:
        """How many epochs so many steps of the optimiser are; whole ones where nobody knows how long one is."""
        if step == 0:
            return 0.0
        batches = self.trainer.num_training_batches
        if not math.isfinite(batches):
            return self.current_epoch
        return step / math.ceil(batches / self.trainer.accumulate_grad_batches)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clips as the Trainer says, or by the schedule's `clip`."""
        limit = self.schedule.clip if gradient_clip_val is None else gradient_clip_val
        self.clip_gradients(optimizer, limit, gradient_clip_algorithm)

    # -- held-out data and predictions ---------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        """Starts counting."""
        self._scores = Scores(self.elbo.likelihood)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Adds a batch to the scores."""
        x, y = _pair(batch)
        generator = torch.Generator().manual_seed(SEED)  # the same functions for every batch
        outputs = draws(self.net, x, scoring_samples(self.net, self.validation_samples), generator)
        self._scores.add(tempered(self.net, self.elbo.likelihood, outputs), y)

    def on_validation_epoch_end(self) -> None:
        """Logs the scores of all batches, of all processes."""
        self._log_scores("validation")

    def on_test_epoch_start(self) -> None:
        """Starts counting."""
        self._scores = Scores(self.elbo.likelihood)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Adds a batch to the scores."""
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """Logs the scores of all batches, of all processes."""
        self._log_scores("test")

    def _log_scores(self, name: str) -> None:
        values = self._scores.values()
        if self.trainer.world_size > 1:
            values = self.trainer.strategy.reduce(values.to(self.device), reduce_op="sum").cpu()
        self.log_dict({f"{name}_{key}": value for key, value in self._scores.summary(values).items()})

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """What `bnn.predict` says about the inputs of a batch."""
        x = _pair(batch)[0] if isinstance(batch, tuple | list) and len(batch) > 1 else batch
        samples = scoring_samples(self.net, self.prediction_samples)
        return predict(self.net, x, samples, self.elbo.likelihood)


def _schedule(schedule: Schedule | None, options: dict[str, Any]) -> Schedule:
    for name, place in ELSEWHERE.items():
        if name in options:
            raise TypeError(f"{name} is the Trainer's business here: use {place}")
    if schedule is None:
        return Schedule.of(options)
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a bnn.train.Schedule, got {type(schedule).__name__}")
    for name in ("patience", "sampling"):
        if getattr(schedule, name) is not None:
            raise ValueError(f"{name} is the Trainer's business here: use {ELSEWHERE[name]}")
    return Schedule.of(schedule.to_dict() | options)


def _epochs(most: int | None) -> int:
    if most is None or most < 1:
        raise ValueError(f"cosine needs to know when training ends: Trainer(max_epochs=...), got {most}")
    return most


def _pairs(loaders: Any) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets of a loader; of several of the first."""
    yield from map(_pair, _first(loaders))


def _first(loaders: Any) -> Any:
    """A loader; of several the first."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    return loaders[0] if isinstance(loaders, list | tuple) and loaders else loaders


def _few(loader: Any) -> bool:
    """Whether a loader is known to have fewer inputs than it takes to settle a noise on, as `bnn.fit` has it."""
    found = getattr(loader, "dataset", None)
    return isinstance(found, Sized) and len(found) < LEAST


def _pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets: the last element is the target, several before it are several inputs."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise TypeError(f"a batch must be (inputs, targets), got {type(batch).__name__}")
    return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]
