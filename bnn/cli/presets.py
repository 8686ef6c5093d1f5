"""`bayesianize presets`: recipes by name."""

from __future__ import annotations

from typing import Annotated

import typer

from bnn._common.text import nearest
from bnn.cli.console import print_json, print_table
from bnn.cli.mistakes import Mistake
from bnn.cli.options import Json


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
