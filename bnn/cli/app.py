"""The commands in one place, and how a command ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from bnn.cli import mistakes
from bnn.cli.bench import bench
from bnn.cli.count import count
from bnn.cli.demo import demo
from bnn.cli.evaluate import evaluate
from bnn.cli.predict import predict
from bnn.cli.presets import methods, presets
from bnn.cli.report import report
from bnn.cli.train import train

app = typer.Typer(
    name="bayesianize",
    help="Trustworthy uncertainty for deep networks that costs less than the network itself.",
    epilog="Start with `bayesianize demo`. Every command shows an example with `--help` and prints JSON with `--json`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"bayesianize {version('bayesianize')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Trustworthy uncertainty for deep networks that costs less than the network itself."""


def add(command: Callable[..., Any], *examples: str) -> None:
    """Joins a command; its help ends with these examples."""
    lines = "\n\n".join(f"    {example}" for example in examples)
    app.command(command.__name__, epilog=f"Examples:\n\n{lines}")(mistakes.interruptible(command))


add(demo, "bayesianize demo", "bayesianize demo --out my-demo --open")
add(
    train,
    "bayesianize train --data houses.csv --target price",
    "bayesianize train --data photos/ --image-size 32 --method ensemble-u --out runs/photos",
    "bayesianize train --preset ours/digits-from-trained --epochs 5",
    "bayesianize train recipe.toml --seed 1",
)
add(presets, "bayesianize presets", "bayesianize presets ours/ --json")
add(methods, "bayesianize methods", "bayesianize methods ffg-u")
add(
    evaluate,
    "bayesianize evaluate runs/digits --ood letters --ood noise --corruptions fog,contrast",
    "bayesianize evaluate runs/photos --ood my-other-photos/ --json",
)
add(
    predict,
    "bayesianize predict runs/prices new.csv --out answers.csv",
    "bayesianize predict runs/photos inbox/ --coverage 0.9",
    "bayesianize predict runs/digits images.npy --abstain-above 0.5 --json",
)
add(
    report,
    "bayesianize report runs/a runs/b --out comparison.html",
    "bayesianize report runs/a --plots pictures --format png,svg --open",
)
add(count, "bayesianize count", "bayesianize count resnet50 --rows 64 --cols 64")
add(bench, "bayesianize bench", "bayesianize bench resnet18 --batch 1,8 --samples 8 --out bench.json")


def run(args: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code, and prints a mistake in one line instead of a traceback."""
    return mistakes.guarded(lambda: app(args, prog_name="bayesianize"))
