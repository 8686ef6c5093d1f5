"""`bayesianize count`: how many parameters every method takes."""

from __future__ import annotations

from typing import Annotated

import typer

from bnn.cli.console import print_json
from bnn.cli.options import MOST, NETS, Json

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
KEEP = 0.5  # the paper's


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
    from bnn.cli.counting import counted

    shape = {"data": data, "in_shape": in_shape, "classes": classes, "hidden": hidden, "channels": channels}
    sizes = {"rows": rows, "cols": cols, "members": members}
    result = counted(net, shape | {"small_images": small_images}, sizes, keep)
    if as_json:
        print_json(result.to_dict(layers))
    else:
        result.print(layers)
