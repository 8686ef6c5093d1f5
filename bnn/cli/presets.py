"""`bayesianize presets` and `bayesianize methods`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from bnn._common.text import nearest
from bnn._conversion.methods import get
from bnn._conversion.methods import methods as all_methods
from bnn.cli.console import print_json, print_table
from bnn.cli.mistakes import Mistake
from bnn.cli.options import Json

LEGEND = (
    "W of a layer is d_out x d_in, a bias is an input; U is M_out x M_in; r is a rank; K members or networks. "
    "Multiplies are those of the products of matrices in a Linear layer, for K draws of N rows each, by whole weights."
)


def presets(
    only: Annotated[str, typer.Argument(metavar="TEXT", help="Only those whose name holds this.")] = "",
    as_json: Json = False,
) -> None:
    """Lists the presets for `train --preset`: the paper's runs and our own."""
    from bnn.train.presets import presets as all_presets

    known = all_presets()
    found = {name: recipe for name, recipe in known.items() if only in name}
    if not found:
        raise Mistake(f"no preset holds {only!r}{nearest(only, known)}; `bayesianize presets` lists all {len(known)}")
    if as_json:
        print_json({name: recipe.to_dict() for name, recipe in found.items()})
        return
    print_table(["preset", "what it is"], [[name, recipe.about] for name, recipe in found.items()], left=2)


def methods(
    name: Annotated[str, typer.Argument(metavar="[METHOD]", help="Only this one, with everything about it.")] = "",
    as_json: Json = False,
) -> None:
    """Lists the methods for `train --method` and `bnn.bayesianize_`: what each is, what it costs, when to choose it."""
    found = all_methods() if not name else {get(name).name: get(name)}
    if as_json:
        print_json({name: one.to_dict() for name, one in found.items()})
    elif name:
        (one,) = found.values()
        own = {key: value for key, value in one.to_dict().items() if key != "size_names" or one.size is not None}
        rows = [[key.replace("_", " "), _shown(value)] for key, value in own.items()]
        print_table(["", name], [row for row in rows if row[1]], left=2)
    else:
        for one in found.values():  # a table of all would be wider than a terminal
            print(f"{one.name} ({one.title}): {one.about}\n  choose it for  {one.when}")
            print(f"  parameters     {one.formula}\n  multiplies     {one.multiplies or 'not counted'}")
        print(LEGEND)


def _shown(value: object) -> str:
    """A field of a method for people."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={one!r}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else str(value)
