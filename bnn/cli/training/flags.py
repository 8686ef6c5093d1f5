"""The flags of `bayesianize train`: the fields of a recipe and its schedule, and what says more about its data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from bnn.cli.options import json_object, numbers, whole_numbers
from bnn.train.recipe import DATA, NETWORK, RUN, Recipe
from bnn.train.schedule import MORE, USUAL, Schedule

READERS: dict[Any, Callable[[str, str, str], Any]] = {  # of values that are typed as text
    tuple[int, ...]: whole_numbers,
    tuple[float, ...]: numbers,
    dict[str, Any]: json_object,
}
Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True)
class Flag:
    """A flag that decides what a run is.

    Args:
        name: of the field of the recipe or the schedule, or one of its own.
        about, panel: what it is, and the group it is shown in.
        typed: the type of what is typed.
        option: how it is typed; "": by its name.
        least: the smallest number allowed.
        reader: what makes the field's value of (option, what was typed, example); None: it is what was typed.
        bayesian: whether it means nothing to a plain network.
    """

    name: str
    about: str
    panel: str
    typed: Any = str
    option: str = ""
    least: float | None = None
    reader: Callable[[str, str, str], Any] | None = None
    example: str = ""
    bayesian: bool = False

    @classmethod
    def of(cls, one: Field[Any], kind: Any, panel: str) -> Flag:
        """The flag of a field of this type; what the field does not say is taken from its name and type."""
        told = one.metadata
        kind = next((part for part in get_args(kind) if type(None) in get_args(kind)), kind)  # of `int | None`, int
        reader = READERS.get(kind) if told.get("typed") is None else None
        typed = told.get("typed") or (kind if kind in (int, float, bool) else str)
        more = {name: told[name] for name in ("least", "example", "bayesian") if name in told}
        place = told.get("panel") or panel
        return cls(one.name, told.get("about", ""), place, typed, told.get("flag") or "", reader=reader, **more)

    def spelled(self) -> str:
        """How it is typed."""
        return self.option or f"--{self.name.replace('_', '-')}"

    def value(self, typed: Any) -> Any:
        """What the recipe holds of what was typed."""
        return typed if self.reader is None else self.reader(self.spelled(), typed, self.example)

    def parameter(self) -> inspect.Parameter:
        """For the signature of a command: None, or what was typed."""
        on = self.spelled()
        names = f"{on}/--no-{on[2:]}" if self.typed is bool else on
        info = typer.Option(names, help=self.about, rich_help_panel=self.panel, show_default=False, min=self.least)
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, kind, default=None, annotation=Annotated[self.typed | None, info])


# What is no field of a recipe: a recipe by name, and what says more about its data, network and method.
PRESET = Flag("preset", "A recipe by name; `bayesianize presets` lists them.", DATA)
OWN = (
    Flag("target", "The column of the CSV file to predict, or several with commas.", DATA),
    Flag("positive", "Targets are above 0: train on a log scale.", DATA, bool),
    Flag("drop", "Columns to leave out, with commas between.", DATA),
    Flag("task", "classification or regression, where it is in doubt.", DATA),
    Flag("image_size", "Scale images to N or HxW pixels.", DATA),
    Flag("test", "Share of test data [0.2], or a CSV file of test rows.", DATA),
    Flag("validation", "Share of validation data [0.1].", DATA, float),
    Flag("guarantee", "Set 10 % aside, at least 50 inputs, for `predict --guarantee`.", DATA, bool),
    Flag("download", "Fetch a named set that is not there.", DATA, bool),
    Flag("hidden", "Widths of the hidden layers, as 64,64.", NETWORK),
    Flag("channels", "Channels of the convolutions, as 32,64.", NETWORK),
    Flag("rows", "Rows of the inducing matrix of every layer, or its rank.", NETWORK, int, least=1),
    Flag("cols", "Its columns.", NETWORK, int, least=1),
    Flag("max_lamda", "Cap of lamda; 0: W is a point given U.", NETWORK, float),
    Flag("max_sd", "Cap of the sds of U, or of the weights.", NETWORK, float),
    Flag(
        "settings", "Any other value of the recipe: method.whitened_u=false, data.first=500.", USUAL, list[str], "--set"
    ),
)


def flags() -> dict[str, Flag]:
    """All flags by name, in the order of help; a new field of a recipe or a schedule is among them at once."""
    kinds = get_type_hints(Schedule) | get_type_hints(Recipe)
    found = [PRESET]
    for one in fields(Recipe):
        if one.name == "schedule":
            found += [Flag.of(part, kinds[part.name], MORE) for part in fields(Schedule)]
        elif one.metadata.get("flag", "") is not None:
            found.append(Flag.of(one, kinds[one.name], RUN))
    return {one.name: one for one in (*found, *OWN)}


def option(name: str) -> str:
    """How a flag is typed.

    >>> option("image_size"), option("warmup")
    ('--image-size', '--ml-epochs')
    """
    return flags()[name].spelled()


class Flags:
    """What was asked for, as it was typed: every flag is an attribute, None where it was not given.

    >>> asked = Flags(data="digits", milestones="60,120")
    >>> asked.data, asked.lr, asked.given("data", "lr"), asked.values("milestones")
    ('digits', None, {'data': 'digits'}, {'milestones': [60.0, 120.0]})
    """

    def __init__(self, file: str | None = None, **typed: Any) -> None:
        unknown = [name for name in typed if name not in flags()]
        if unknown:
            raise TypeError(f"unknown flag {unknown[0]!r}; expected some of {list(flags())}")
        self.file = file  # a recipe
        self._typed = {name: value for name, value in typed.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in flags():
            raise AttributeError(f"there is no flag {name!r}")
        return self._typed.get(name)

    def given(self, *names: str) -> dict[str, Any]:
        """Those of `names` that were given, as they were typed."""
        return {name: self._typed[name] for name in names if name in self._typed}

    def values(self, *names: str) -> dict[str, Any]:
        """Those of `names` that were given, as a recipe holds them."""
        known = flags()
        return {name: known[name].value(typed) for name, typed in self.given(*names).items()}

    def but(self, **changes: Any) -> Flags:
        """The same with other flags."""
        return Flags(**{"file": self.file} | self._typed | changes)


def with_flags(command: Command) -> Command:
    """`command`, whose `**flags` typer reads as one parameter each."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY  # so that the panels of the flags come first
    named = [one.replace(kind=kind) for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD]
    vars(command)["__signature__"] = inspect.Signature([*(one.parameter() for one in flags().values()), *named])
    return command
