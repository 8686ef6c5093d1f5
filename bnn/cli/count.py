"""`bayesianize count`: how many parameters every method takes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn._common.text import nearest
from bnn.cli.console import print_json, print_table
from bnn.cli.mistakes import Mistake
from bnn.cli.options import MOST, NETS, Json

if TYPE_CHECKING:
    from bnn.cli.networks.architecture import Architecture
    from bnn.cli.networks.counting import Counted

Net = Annotated[
    str, typer.Argument(metavar="[NET]", help=f"{', '.join(NETS)}; or a run's folder, a recipe's file, a preset.")
]
Data = Annotated[str | None, typer.Option("--data", help="A named data set to take inputs and classes of.")]
InShape = Annotated[
    str | None, typer.Option("--in-shape", help="Of one input, as 3,32,32 or 13.", show_default="3,32,32")
]
Classes = Annotated[int | None, typer.Option("--classes", min=1, max=MOST, help="How many outputs.", show_default="10")]
Rows = Annotated[int | None, typer.Option("--rows", min=1, max=MOST, help="Rows of U, M_out.", show_default="64")]
Cols = Annotated[
    int | None, typer.Option("--cols", min=1, max=MOST, help="Columns of U, M_in.", show_default="as --rows")
]
Hidden = Annotated[str | None, typer.Option("--hidden", help="Hidden widths of an fcn, or of a cnn's head, as 64,64.")]
Channels = Annotated[str | None, typer.Option("--channels", help="Of a cnn's convolutions, as 32,64.")]
SmallImages = Annotated[
    bool | None,
    typer.Option(help="A ResNet that begins with a 3 x 3 kernel and no max-pooling.", show_default="up to 64 pixels"),
]
ROWS, MEMBERS, KEEP = 64, 5, 0.5  # the paper's


def count(
    net: Net = "resnet18",
    data: Data = None,
    in_shape: InShape = None,
    classes: Classes = None,
    rows: Rows = None,
    cols: Cols = None,
    members: Annotated[int | None, typer.Option(min=1, max=MOST, help="Of an ensemble.", show_default="5")] = None,
    keep: Annotated[float, typer.Option(min=0, max=1, help="What pruning leaves of Z, and of FFG-W.")] = KEEP,
    hidden: Hidden = None,
    channels: Channels = None,
    small_images: SmallImages = None,
    layers: Annotated[bool, typer.Option("--layers", help="Also layer by layer.")] = False,
    as_json: Json = False,
) -> None:
    """Counts the parameters of a network under every method, next to the plain network."""
    from bnn.cli.networks.architecture import named
    from bnn.cli.networks.counting import count_methods

    shape: dict[str, Any] = {
        "data": data,
        "in_shape": in_shape,
        "classes": classes,
        "hidden": hidden,
        "channels": channels,
    }
    shape |= {"small_images": small_images}
    sizes = {"rows": rows, "cols": cols, "members": members}
    if net.lower() in NETS:
        m, k = rows or ROWS, members or MEMBERS
        network, M = named(net, **shape), {"rows": m, "cols": cols or m, "members": k}
        result = Result(network, count_methods(network, **M, keep=keep), M | {"keep": keep})
    else:
        result = _of_recipe(net, shape | sizes, keep)
    if as_json:
        print_json(result.to_dict(layers))
    else:
        result.print(layers)


@dataclass(frozen=True)
class Result:
    """What is counted, under which methods, with which sizes."""

    network: Architecture
    methods: list[Counted]
    sizes: dict[str, Any]

    def to_dict(self, layers: bool) -> dict[str, Any]:
        """As JSON."""
        from bnn.cli.networks.counting import by_layer

        about = {"network": self.network.to_dict(), "plain": self.methods[0].plain, "sizes": self.sizes}
        rows = {"methods": [one.to_dict() for one in self.methods]}
        return about | rows | ({"layers": by_layer(self.methods)} if layers else {})

    def print(self, layers: bool) -> None:
        """As tables."""
        from bnn.cli.networks.counting import by_layer

        M = f"; U is {self.sizes['rows']} x {self.sizes['cols']}" if "rows" in self.sizes else ""
        rows = [_cells(one.to_dict()) for one in self.methods]
        print_table(["method", "parameters", "of plain", "float32"], rows, title=f"{self.network.title()}{M}")
        for one in self.methods:
            if one.note:
                print(f" {one.label}: {one.note}")
        if layers:
            shown = {one.method: one.label for one in self.methods if one.net is not None}
            table = by_layer(self.methods)
            cells = [[row["layer"], _shape(row), *(f"{row['parameters'][m]:,}" for m in shown)] for row in table]
            print_table(["layer", "weight", *shown.values()], cells, left=2)


def _of_recipe(name: str, flags: dict[str, Any], keep: float) -> Result:
    """The counts of a finished run, a recipe in a file, or a preset."""
    from bnn.cli.networks.architecture import Architecture
    from bnn.cli.networks.counting import count_recipe
    from bnn.train.outcome import load_run
    from bnn.train.presets import presets
    from bnn.train.recipe import Recipe

    given = [f"--{flag.replace('_', '-')}" for flag, value in flags.items() if value is not None]
    known = presets()
    there = os.path.exists(name) or name.endswith((".json", ".toml"))
    if not there and name not in known:
        raise Mistake(
            f"unknown network {name!r}{nearest(name, [*NETS, *known])}; expected one of {', '.join(NETS)}, the folder "
            "of a run, a recipe (.json or .toml), or a preset (`bayesianize presets` lists them)"
        )
    if given:
        raise Mistake(f"{name} is a whole recipe and sets {', '.join(given)} itself: leave out, or name a network")
    if os.path.isdir(name):
        run = load_run(name)
        assert run.recipe is not None  # load_run needs it to build the network
        network = Architecture(run.recipe.net, run.in_shape, run.out_features, run.recipe.members)
        return Result(network, count_recipe(run.recipe, keep, network, run.net), {"keep": keep})
    recipe = Recipe.from_file(name) if there else known[name]
    network = Architecture.of_recipe(recipe)
    return Result(network, count_recipe(recipe, keep, network), {"keep": keep})


def _cells(row: dict[str, Any]) -> list[str]:
    from bnn.cli.networks.counting import readable

    if row["parameters"] is None:
        return [row["label"], "-", "-", "-"]
    share = f"{100 * row['ratio']:,.1f} %" if row["ratio"] < 100 else f"{row['ratio']:,.0f} x"
    return [row["label"], f"{row['parameters']:,}", share, readable(row["bytes"])]


def _shape(row: dict[str, Any]) -> str:
    return "" if row["weight"] is None else " x ".join(map(str, row["weight"]))
