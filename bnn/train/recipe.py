"""A run as data: which data, which network, which method, how it is trained. One JSON or TOML file holds it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from bnn._common.checks import check_bool, check_positive, check_size
from bnn._common.extras import need
from bnn._common.options import described
from bnn._common.text import nearest
from bnn._conversion.methods import METHODS, PLAIN, conversions, find
from bnn.data.sources import SOURCES, source_of
from bnn.train.class_weight_options import BALANCED, check_form
from bnn.train.laplace_options import check_stored
from bnn.train.prune_options import prune_options
from bnn.train.schedule import MORE, USUAL, Schedule

if TYPE_CHECKING:
    from typing_extensions import Self

DATA, NETWORK, RUN = "The data", "Network and method", "The run"  # groups of flags
_TEACHER = '{"weight": 0.5, "temperature": 2}'
_WEIGHTS = "yes=5,no=1"
_GLOBAL = '{"inducing_rows": 8, "inducing_cols": 8}'


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result of a run, apart from the data themselves.

    Stages: build the network (and `members` independent copies of it); train it plain by `pretrain`, or read `weights`;
    convert it by `method`; train by `schedule`; `prune` it; `laplace`; calibrate it. A stage that is not asked for is
    left out.

    Args:
        data: {"name": a named set, ...}, {"csv": file, "target": column, ...}, {"folder": path, ...} or
            {"arrays": file, ...}, with the options of `bnn.data.load`, `csv`, `folder`, `arrays`.
        net: {"name": "fcn", "hidden": [...]}, {"name": "cnn", "channels": [...], "hidden": [...]} or
            {"name": "resnet18", ...} with the options of `bnn.nn.nets.make_network`; the data set its ends.
        method: {"inference": "deterministic"}, or what `bnn.bayesianize_` takes, as a configuration file of it: a
            family or a method with options, or one per layer.
        schedule: of the main training.
        pretrain: of the plain training before; None leaves it out.
        weights: a file of `bnn.save` with a plain network (or an ensemble of `members`) to start from.
        members: more than 1 makes a deep ensemble; with an inducing method, a compressed one.
        together: whether the plain members train on the same batches; otherwise each alone, with a seed of its own.
        kl_weights: candidates for the weight of the KL; each is trained, and validation NLL chooses. Empty: the
            schedule's.
        teacher: {"weight": w, "temperature": T}, either of which may be left out: the plain network of `pretrain` or
            `weights` teaches the converted one, as with `bnn.fit(..., teacher=)`; None: it does not.
        global_inducing: arguments of `bnn.register_global_inducing_weights_`, or None.
        likelihood: as for `bnn.ELBO`, by name; None: by the kind of target. "auto": of real targets, "gaussian" or
            "heteroscedastic", whichever gives plain networks the lower validation NLL once its noise is settled; each
            trains its own in a stage of its own. It takes `pretrain`, or a deterministic method, and 20 validation
            inputs; else it is the usual one. With fewer than 100 the other has to be better by a standard error.
        activations: whether layers of limited rank start from weights that lose least of the network's outputs on
            training inputs (`bnn.bayesianize_(activations=)`), rather than least of the weights; others take nothing
            from it.
        retry: whether a run that is clearly worse than its plain network by validation NLL is trained a second time,
            from that network, with `activations`, less noise and a lower rate; validation NLL chooses between the two.
        class_weights: as for `bnn.fit`: "balanced", {class: weight}, or a weight for each class; None: all are 1.
        spread: the largest sd of the mean over draws at the start, relative to the noise of real targets that the plain
            network has: where it would be larger, max_lamda, init_lamda and max_sd_u, as far as `method` writes them
            out, are lowered; and the rate after the conversion is multiplied by noise / 0.1, from 0.3 to 1, for noise
            relative to the sd of the targets. None: they stay as they are.
        prune: the fraction of prunable parameters that `bnn.prune_` keeps after training; then the network is trained
            for a quarter of the schedule's epochs more, with a new optimiser. With other options, as
            {"keep": 0.5, "by": "output", "epochs": 5} (0: no more training; by the output: of training inputs). None:
            nothing is pruned.
        laplace: which layers get the posterior of `bnn.laplace_` after training, from the training data: "last", "all",
            a name or a glob, or a list of these; of an ensemble in every member. With other options, as
            {"layers": "last", "prior_precision": "marginal"}; see `bnn.fit`. None: no layer does.
        guarantee_by_class: whether a guarantee (`data.guarantee`) holds within every class, each by its own of the
            inputs set aside, or over inputs of all classes together.
        calibrate: whether `bnn.calibrate_` fits a temperature in the end, of classes, where there are at least 100
            validation inputs.
        seed: of everything random.
        name, about: what it is.
        ours: dotted names of values that the paper does not give, as "schedule.batch_size".
    """

    data: dict[str, Any] = described(
        "A CSV file, a folder of images, an .npz file, or a named set, as digits.", panel=DATA, typed=str
    )
    net: dict[str, Any] = described(
        "fcn, cnn, resnet18, ...; by default fcn for tables, cnn for images.", panel=NETWORK, typed=str
    )
    method: dict[str, Any] = described(
        f"{', '.join(METHODS)}. [ffg-u]", default_factory=lambda: {"inference": PLAIN}, panel=NETWORK, typed=str
    )
    schedule: Schedule = described("", default_factory=Schedule, flag=None)  # whose fields are flags
    pretrain: Schedule | None = described(
        "First train a plain network so long; 0: do not.",
        default=None,
        flag="--pretrain-epochs",
        panel=USUAL,
        typed=int,
        least=0,
        bayesian=True,
    )
    weights: str | None = described("Start from a network that bnn.save wrote.", default=None, panel=USUAL)
    members: int = described("Members of ensemble-u, or number of networks.", default=1, panel=NETWORK, least=1)
    together: bool = described("Train the networks of an ensemble on the same batches.", default=False, panel=MORE)
    kl_weights: tuple[float, ...] = described(
        "Weights of the KL to try, as 1,0.1: validation NLL chooses.", default=(), panel=MORE, example="1,0.1"
    )
    teacher: dict[str, Any] | None = described(
        f"Let the plain network teach the converted one, as {_TEACHER}; {{}} for its defaults.",
        default=None,
        panel=MORE,
        example=_TEACHER,
        bayesian=True,
    )
    global_inducing: dict[str, Any] | None = described(
        f"Global inducing weights, as {_GLOBAL}.", default=None, panel=NETWORK, example=_GLOBAL
    )
    likelihood: str | None = described(
        "categorical; gaussian, heteroscedastic or auto for real targets. [auto: what validation data like better]",
        default=None,
        panel=NETWORK,
    )
    spread: float | None = described(
        "Largest spread of draws at the start, relative to the noise of real targets.", default=None, panel=MORE
    )
    activations: bool = described(
        "Convert so that outputs on training inputs keep most, not weights.", default=False, panel=MORE, bayesian=True
    )
    retry: bool = described(
        "Train once more, with less noise, if worse than the plain network.", default=False, panel=MORE, bayesian=True
    )
    class_weights: dict[str, float] | str | tuple[float, ...] | None = described(
        f"How much each class counts: {BALANCED} (rare ones more), or {_WEIGHTS}.",
        default=None,
        panel=NETWORK,
        example=_WEIGHTS,
    )
    prune: float | dict[str, Any] | None = described(
        "Keep so much of what can be pruned, as 0.5, after training; then train on for a quarter of the epochs.",
        default=None,
        panel=NETWORK,
        typed=float,
        least=0,
        bayesian=True,
    )
    laplace: str | tuple[str, ...] | dict[str, Any] | None = described(
        "Laplace's posterior in the end, of these layers: last, all, or a name.", default=None, panel=NETWORK, typed=str
    )
    guarantee_by_class: bool = described(
        "Let the guarantee hold within every class, not over all inputs together.", default=False, panel=DATA
    )
    calibrate: bool = described("Fit a temperature on the validation data in the end. [yes]", default=True, panel=MORE)
    seed: int = described("Of everything random. [0]", default=0, panel=RUN, least=0)
    name: str = described("What the recipe is called.", default="run", panel=RUN)
    about: str = described("What it is, in a sentence.", default="", panel=RUN)
    ours: tuple[str, ...] = described("", default=(), flag=None)

    def __post_init__(self) -> None:
        for part in ("data", "net", "method"):
            if not isinstance(getattr(self, part), dict):
                raise ValueError(f"{part} must be an object, as {_EXAMPLES[part]}; got {getattr(self, part)!r}")
        source_of(self.data)
        if not isinstance(self.net.get("name"), str):
            raise ValueError(f"net must have a name, as {_EXAMPLES['net']}; got {self.net}")
        self._check_method()
        check_size("members", self.members)
        check_positive("spread", self.spread, none=True)
        check_bool("together", self.together)
        check_bool("calibrate", self.calibrate)
        check_bool("guarantee_by_class", self.guarantee_by_class)
        check_bool("activations", self.activations)
        check_bool("retry", self.retry)
        check_stored(self.laplace)
        check_form(self.class_weights)
        if self.prune is not None:
            prune_options(self.prune, self.schedule.epochs)
            if not self.bayesian:
                raise ValueError("prune needs a Bayesian method: what can be pruned are parameters of a posterior")
        for weight in self.kl_weights:
            check_positive("a weight in kl_weights", weight, zero=True)
        if self.kl_weights and not self.bayesian:
            raise ValueError("kl_weights need a Bayesian method: a deterministic network has no KL")
        if self.pretrain is not None and self.weights is not None:
            raise ValueError("give weights, a trained network, or pretrain, a schedule to train one; not both")
        self._check_teacher()

    def _check_teacher(self) -> None:
        if self.teacher is None:
            return
        if not isinstance(self.teacher, dict) or not set(self.teacher) <= {"weight", "temperature"}:
            raise ValueError(f"teacher must be an object with weight or temperature, as {_TEACHER}; got {self.teacher}")
        if not self.bayesian or (self.pretrain is None and self.weights is None):
            raise ValueError(
                "a teacher needs a plain network, by pretrain or weights, and a Bayesian method that learns"
            )

    def _check_method(self) -> None:
        inference = self.method.get("inference")
        if isinstance(inference, str):
            _check_inference(inference)
        if not isinstance(inference, str | Mapping):
            raise ValueError(f"method must have an inference, as {_EXAMPLES['method']}; got {self.method}")
        if inference == PLAIN and len(self.method) > 1:
            raise ValueError(f"a deterministic method has no options; got {self.method}")

    @property
    def bayesian(self) -> bool:
        """Whether the network is converted."""
        return self.method["inference"] != PLAIN

    def but(self, **changes: Any) -> Self:
        """The same recipe with other values; `schedule` and `pretrain` may be dicts of the fields to change, `data`,
        `net` and `method` are replaced.

        >>> Recipe({"name": "digits"}, {"name": "fcn"}).but(schedule={"epochs": 3}).schedule.epochs
        3
        """
        _check_names(changes)
        for part in ("schedule", "pretrain"):
            if isinstance(changes.get(part), dict):
                before = getattr(self, part)
                known = {} if before is None else before.to_dict()
                changes[part] = Schedule.of(known | changes[part])
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `from_dict` reads it back."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        for part in ("schedule", "pretrain"):
            values[part] = None if values[part] is None else values[part].to_dict()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From JSON or TOML; TypeError or ValueError for names and values that make no sense."""
        if not isinstance(values, Mapping):
            raise ValueError(f"a recipe is an object with data, net, method and schedule; got {values!r}")
        _check_names(values)
        missing = [name for name in ("data", "net") if name not in values]
        if missing:
            raise ValueError(f"a recipe needs {missing[0]!r}, as {_EXAMPLES[missing[0]]}")
        given = dict(values)
        for part in ("schedule", "pretrain"):
            if isinstance(given.get(part), Mapping):
                given[part] = Schedule.of(dict(given[part]))
        for part in ("kl_weights", "ours", "laplace", "class_weights"):
            if isinstance(given.get(part), list):
                given[part] = tuple(given[part])
        return cls(**given)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """From a .json or .toml file; errors name the file, and files it names are looked for beside it."""
        path = os.fspath(path)
        if not os.path.exists(path):
            raise FileNotFoundError(f"no recipe {path}: there is no such file; expected a .json or .toml file")
        try:
            return cls.from_dict(_from_here(_read(path), os.path.dirname(os.path.abspath(path))))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def preset(cls, name: str) -> Recipe:
        """A recipe of the paper or of ours, by its name; `bnn.train.presets()` lists them."""
        known = importlib.import_module("bnn.train.presets").presets()
        if name not in known:
            raise ValueError(f"unknown preset {name!r}{nearest(name, known)}; presets() lists all {len(known)}")
        return known[name]


_EXAMPLES = {
    "data": '{"name": "cifar10"}',
    "net": '{"name": "resnet18", "kernel_size": 3, "remove_maxpool": true}',
    "method": '{"inference": "inducing", "inducing_rows": 64, "inducing_cols": 64}',
}


def _check_inference(typed: str) -> None:
    """Raises ValueError unless it is "deterministic", a family, or a method that converts one network."""
    found = find(typed)
    if found is not None and found.networks > 1:
        single = next(one for one in METHODS.values() if (one.family, one.networks) == (found.family, 1))
        raise ValueError(
            f"{found.name!r} is {found.about}: in a recipe, members={found.networks} with the method {single.name!r}"
        )
    if found is None:
        from bnn.nn.base import families  # somebody's own: those of the library are names of methods, too

        known = [PLAIN, *families(), *conversions()]
        if typed.lower() not in known:
            raise ValueError(f"unknown inference {typed!r}{nearest(typed, known)}; expected one of {known}")


def _check_names(values: Mapping[str, Any]) -> None:
    known = [one.name for one in fields(Recipe)]
    for name in values:
        if name not in known:
            raise TypeError(f"unknown field {name!r}{nearest(name, known)}; a recipe has {known}")


def _from_here(values: Any, folder: str) -> Any:
    """Relative paths of data and weights, taken from the recipe's own folder where there is such a file."""
    if not isinstance(values, dict):
        return values
    beside = dict(values)
    data = dict(beside["data"]) if isinstance(beside.get("data"), dict) else {}
    for kind in (*(one.kind for one in SOURCES.values() if one.path), "test"):
        if isinstance(data.get(kind), str) and os.path.exists(os.path.join(folder, data[kind])):
            data[kind] = os.path.join(folder, data[kind])
    if isinstance(beside.get("weights"), str) and os.path.exists(os.path.join(folder, beside["weights"])):
        beside["weights"] = os.path.join(folder, beside["weights"])
    return beside | ({"data": data} if data else {})


def _read(path: str) -> Any:
    if path.endswith(".toml"):
        toml = importlib.import_module("tomllib") if sys.version_info >= (3, 11) else need("tomli", "train")
        with open(path, "rb") as file:
            return toml.load(file)
    if not path.endswith(".json"):
        raise ValueError("a recipe is a .json or a .toml file")
    with open(path, encoding="utf-8") as text:
        return json.load(text)
