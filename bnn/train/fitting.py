"""`bnn.fit`: from a network and data to a trained network, in one call that survives anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from bnn import likelihoods
from bnn._common.checks import check_positive, check_size
from bnn._common.seeds import own_randomness
from bnn._conversion.laplace_layers import Layers
from bnn._engine.inputs import check_network
from bnn._engine.temperature import forget_temperature_, warn_of_temperature
from bnn.data.batches import Batches, InMemory, training_batches
from bnn.data.dataset import Data, Part
from bnn.likelihoods.registry import class_of
from bnn.teacher import teacher_of
from bnn.train.aside import guarantee_of, remember_rows_, set_aside
from bnn.train.class_weights import weighted
from bnn.train.devices import Interrupts, fabric_of, our_checkpoints, same_everywhere_
from bnn.train.history import History
from bnn.train.laplace import LaplaceStage
from bnn.train.loop import Loop, Settings
from bnn.train.monitor import Monitor, enough, held_out_of
from bnn.train.preflight import checked
from bnn.train.runs.folder import GUARANTEE, RunFolder
from bnn.train.runs.run import Run
from bnn.train.schedule import Schedule
from bnn.train.settling import NoiseStage
from bnn.train.step import sampling_of
from bnn.train.units import Units


def fit(
    net: nn.Module,
    data: Any,
    *,
    likelihood: str | Callable[..., Any] | None = None,
    class_weights: Any = None,
    validation: Any = None,
    guarantee: float | int | None = None,
    schedule: Schedule | None = None,
    teacher: nn.Module | None = None,
    teacher_weight: float | None = None,
    teacher_temperature: float | None = None,
    teacher_likelihood: Any = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    seed: int | None = None,
    laplace: Layers | dict[str, Any] | None = None,
    num_data: int | None = None,
    validation_samples: int = 10,
    save_every: float = 300.0,
    progress: bool | None = None,
    tensorboard: bool | None = None,
    workers: int = 0,
    devices: Any = 1,
    accelerator: str | None = None,
    precision: Any = "32-true",
    fabric: Any = None,
    **options: Any,
) -> History:
    """Trains `net` in place by the negative ELBO (`bnn.ELBO`); a plain network by maximum likelihood.

    The temperature of a network that was calibrated (`bnn.calibrate_`) is taken off, with a warning.

    With `out` the run writes checkpoints there. Started again with the same arguments after whatever ended it, it
    resumes from the last one and, on one process on the CPU, ends with the same bits as if nothing had happened. Ctrl-C
    and SIGTERM stop it after the step, with a checkpoint.

    Args:
        net: a converted network, a plain one, or an `Ensemble`, whose members train together.
        data: a `bnn.data.Data` or `Part`, a pair (x, y) of tensors or arrays, a torch `Dataset` of pairs, or a
            `DataLoader`; x may be a tuple or dict of several inputs.
        likelihood: as for `bnn.ELBO`; None: "categorical" for classes (integer targets), else "gaussian", whose noise
            is learned: `history.likelihood` is what `bnn.predict` needs then. A `Dataset` or `DataLoader` does not say
            what its targets are, so there it is needed.
        class_weights: how much the data of each class count, for classes of which some are rare: "balanced", which is
            n / (C n_c) for n_c of n data in one of C classes; a weight for each class, in order; or {class: weight}
            with 1 for the others. They are scaled to mean 1 over the training data, so that the KL weighs as before;
            weights as they are: `likelihood=bnn.likelihoods.Categorical(class_weights=[...])`. Probabilities are then
            those of reweighted classes, and so is the validation NLL; `bnn.evaluate` scores the data as they are.
        validation: held-out data, in any of these forms, scored after every epoch by `validation_samples` draws; None:
            the validation part of a `Data`, if it has one.
        guarantee: sets rows aside that nothing else sees, neither training nor validation, early stopping, a noise or a
            prior: a share, as 0.1 (at least 50 rows), or their number. `history.guarantee` then gives intervals, or
            sets of classes, that hold as often as they say (`bnn.conformal`), of predictions by
            `bnn.predict(..., generator=torch.Generator().manual_seed(0))`. A `Data` that was read with `guarantee=` has
            such a part already, whose rows its scaling has not seen either. None: none.
        schedule: a `Schedule`; or give its fields as keywords: `epochs=10, batch_size=100, optimiser="adam", lr=1e-3,
            momentum=0.9, weight_decay=0, milestones=(), decay=0.1, cosine=False, samples=1, split=False, sampling=None,
            kl_weight=1, warmup=0, anneal=0, function_space=False, scale_rate=10, u_rate=1, clip=None, patience=None,
            refresh_batchnorm=True`. With `patience` the parameters of the best validation NLL are kept. `sampling` is
            what draws guarantee in training steps, whatever the layers' own option says ("auto", "weight" or "local",
            see `bnn.set_sampling_`); None is the fastest way that trains as well: "local". Validation, the BatchNorm
            statistics and everything after training go by the layers' own option.
        teacher: a trained network, plain, Bayesian or an `Ensemble`, that says on the same augmented inputs what to
            predict: see `bnn.Teacher`. `data` may then be inputs alone: a `Part` without targets, or a data set or
            loader of inputs. None: there is none.
        teacher_weight, teacher_temperature, teacher_likelihood: w, T, and where the teacher's noise is, as for
            `bnn.Teacher`. The data term is (1 - w) NLL + w T^2 KL[teacher || student]; without targets w is 1.
        out: a folder, made if need be: `checkpoint.safetensors`, `metrics.jsonl` (a line per epoch), `net.safetensors`
            (the trained network, for `bnn.load_`), `tensorboard/`, and for a `Data` `run.json`: `bnn.open_run`
            gives the network back with its noise, its classes, and what reads new inputs.
        resume: False refuses a folder that holds a run already.
        seed: of everything random in the run; None draws one from torch's global generator. A run that resumes keeps
            the seed it began with. The global generators are left as they were.
        laplace: "last", "all", names or modules: in the end these layers get the posterior of `bnn.laplace_`, from the
            training data without augmentation and with the likelihood as trained; `history.laplace` says what was
            found. Whether it can be done is found out before training. A run that resumes begins from its checkpoint,
            which does not hold it, and ends with the same bits. The prior's precision is chosen by validation data if
            there are at least 100, else by marginal likelihood; a dict says otherwise, and has further arguments of it,
            as {"layers": "last", "prior_precision": "marginal"}. None leaves it out.
        num_data: number of training inputs, where a loader cannot say.
        save_every: seconds between checkpoints; there is one after every epoch anyway, but for epochs of less than two
            seconds. 0: after every step.
        progress: None shows a bar on terminals; True one line per epoch elsewhere, too; False nothing.
        tensorboard: None logs to it if it is installed and there is `out`.
        workers: processes that load a torch `Dataset`.
        devices, accelerator, precision: as for Lightning's `Fabric`; by default, the device the network is on
            (precisions that end in "-true" leave the network in that type). With
            several devices the script is started once for each, as Fabric does; under `torchrun` they are its
            processes. `batch_size` counts the inputs of all of them.
        fabric: a `Fabric` of your own, launched, instead of these three.

    Returns:
        The course of training, epoch by epoch, with the trained likelihood.

    Raises:
        DivergenceError: the loss or its gradient is not finite; the network keeps the parameters before that step.
        FileFormatError: a checkpoint is cut short, damaged or foreign.
        ValueError: the checkpoint in `out` is of another network, schedule, data set or teacher.

    >>> import bnn
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    >>> history = bnn.fit(net, (torch.randn(60, 4), torch.randint(3, (60,))), epochs=2, batch_size=20)
    >>> [round(epoch["kl_scale"], 1) for epoch in history.epochs]
    [1.0, 1.0]
    """
    check_network(net)
    given, (data, aside) = data, set_aside(data, guarantee, seed, net)
    plan = _schedule(schedule, options)
    sampling_of(net, plan.sampling)  # before anything is made
    if isinstance(data, DataLoader) and "batch_size" in options:
        raise ValueError("a DataLoader has a batch size already: leave batch_size out, or pass its dataset instead")
    check_size("validation_samples", validation_samples)
    check_positive("save_every", save_every, zero=True)
    if seed is not None and (not isinstance(seed, int | np.integer) or isinstance(seed, bool) or abs(seed) >= 2**63):
        raise ValueError(f"seed must be an integer below 2^63 or None, got {seed!r}")
    if isinstance(data, DataLoader) and data.persistent_workers and out is not None:
        raise ValueError(
            "persistent workers carry their random state from epoch to epoch, so a run that resumes could not repeat "
            "what they do: use a DataLoader with persistent_workers=False, or leave out= away"
        )
    taught = teacher_of(
        net, teacher, weight=teacher_weight, temperature=teacher_temperature, likelihood=teacher_likelihood
    )
    source = training_batches(data, plan.batch_size, num_data, workers, _least(net, plan), targets=taught is None)
    noise = likelihoods.get(_likelihood(likelihood, data, source))
    source, outputs = checked(source, net, noise, data, given=likelihood is not None or isinstance(data, Data))
    noise = weighted(noise, class_weights, source, data, outputs)
    elbo = plan.objective_of(net, source.num_data, noise, taught)
    held_out = held_out_of(data, validation)
    if plan.patience is not None and held_out is None:
        raise ValueError("patience needs validation data: pass validation=, or data.with_validation(0.1)")
    settles = likelihoods.about(noise).settles and enough(held_out)
    monitor = None if held_out is None else Monitor(held_out, elbo.likelihood, validation_samples, settles)
    ending = None if laplace is None else LaplaceStage(laplace, data, elbo.likelihood, source.num_data, validation)
    if ending is not None:
        ending.check(net)
    folder = None if out is None else RunFolder(out)
    if folder is not None:
        folder.create(resume)
    fabric = fabric_of(net, devices, accelerator, precision) if fabric is None else fabric
    start = torch.randint(2**62, (), device="cpu") if seed is None else torch.tensor(seed, device="cpu")
    start = start.to(fabric.device)
    same_everywhere_(fabric, [start])
    units = _units(data, held_out, taught is not None)
    settings = Settings(folder, save_every, progress, tensorboard, units=units)
    warn_of_temperature(net, "it is trained now")
    forget_temperature_(net)
    remember_rows_(net, given, guarantee, seed)
    with own_randomness(fabric.device), our_checkpoints(fabric), Interrupts() as interrupts:
        counts = taught is None or taught.weight < 1  # the targets
        settling = NoiseStage(elbo.likelihood, data if counts else None, held_out)
        loop = Loop(fabric, elbo, source, plan, monitor, int(start), settings, settling, ending)
        with loop.checkpoints.alone():
            if not loop.restore():
                loop.start_noise_()
            history = loop.train(interrupts)
            if folder is not None and isinstance(data, Data) and outputs and fabric.is_global_zero:
                Run.of(net, data, elbo.likelihood, outputs, history=history, folder=folder).write()
    history.guarantee = guarantee_of(net, elbo.likelihood, aside)
    if history.guarantee is not None and folder is not None and not isinstance(data, Data) and fabric.is_global_zero:
        folder.write(GUARANTEE, history.guarantee.to_dict(), indent=None)
    return history


def _units(data: Any, held_out: Any, taught: bool) -> Units:
    """In which units progress is shown: only a `Data` knows how its targets were scaled."""
    if not isinstance(data, Data) or data.target is None:
        return Units.of(None, taught)
    return Units.of(data.target, taught, data.train.y, held_out.y if isinstance(held_out, Part) else None)


def _least(net: nn.Module, plan: Schedule) -> int:
    """Inputs that a step needs: BatchNorm cannot normalise a single one, and `split` shares them out."""
    norms = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())
    return (2 if norms else 1) * (plan.samples if plan.split else 1)


def _schedule(schedule: Schedule | None, options: dict[str, Any]) -> Schedule:
    if schedule is None:
        return Schedule.of(options)
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a bnn.train.Schedule, got {type(schedule).__name__}")
    return Schedule.of(schedule.to_dict() | options)


def _likelihood(likelihood: Any, data: Any, source: Batches) -> Any:
    """The one asked for, by its name with a noise for each target, or the one the targets suggest."""
    y = source.part.y if isinstance(source, InMemory) else None
    targets = y.shape[1] if y is not None and y.is_floating_point() and y.ndim == 2 else 1
    log = isinstance(data, Data) and data.target is not None and data.target.log
    if isinstance(likelihood, str):
        kind = class_of(likelihood)
        found = kind.of(targets if kind.task == "regression" else 1)
        return found.of_logs() if log else found
    if likelihood is not None:
        return likelihood
    if isinstance(data, Data):
        return likelihoods.for_task(None, data.task, targets, log)
    if isinstance(source, InMemory):
        if y is None:
            raise ValueError(
                'data without targets do not say what they would be: pass likelihood="categorical" or another'
            )
        return likelihoods.for_task(None, "regression" if y.is_floating_point() else "classification", targets)
    raise ValueError('a data set or loader does not say what its targets are: pass likelihood="categorical" or another')
