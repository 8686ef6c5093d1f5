"""`bayesianize bench`: what K posterior draws cost, next to K passes of the plain network."""

from __future__ import annotations

import copy
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnn._common.progress import progress_of
from bnn._conversion.methods import METHODS, conversions, find
from bnn.cli.console import print_json, print_table, say
from bnn.cli.count import Channels, Classes, Cols, Data, Hidden, InShape, Rows, SmallImages
from bnn.cli.mistakes import Mistake, one_of
from bnn.cli.options import NETS, Json, Quiet, Seed, whole_numbers

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from bnn._common.timing import Timing
    from bnn.cli.architecture import Architecture

ROWS = 64  # and columns of U: the paper's
BASELINE = "K passes of the plain network, one after the other"
CAUTION = "Compare ratios of one run only: contestants took turns in it, and other runs meet other conditions."
PLAIN = "plain"
USUAL = ["ffg-u", "ffg-u-local", "ffg-u-weight", "ffg-u-lamda-0", "ffg-w", "paper"]
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {  # of methods: what each is, of which, with which options
    "ffg-u": ("FFG-U, sampling auto", "ffg-u", {}),
    "ffg-u-local": ("FFG-U, sampling local", "ffg-u", {"sampling": "local"}),
    "ffg-u-weight": ("FFG-U, sampling weight", "ffg-u", {"sampling": "weight"}),
    "paper": ("FFG-U, the paper's way", "ffg-u", {"sampling": "weight"}),
}


def bench(
    net: Annotated[str, typer.Argument(metavar="[NET]", help=f"One of {', '.join(NETS)}.")] = "resnet18",
    data: Data = None,
    in_shape: InShape = None,
    classes: Classes = None,
    rows: Rows = None,
    cols: Cols = None,
    hidden: Hidden = None,
    channels: Channels = None,
    small_images: SmallImages = None,
    batch: Annotated[str, typer.Option(help="How many inputs at a time: one size, or several.")] = "1,8",
    samples: Annotated[int, typer.Option(min=1, help="K, draws of each.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each that count, after one that does not.")] = 5,
    method: Annotated[
        str, typer.Option(help=f"What competes, of {', '.join(known())}.", show_default="ffg-u in every way, ffg-w")
    ] = "",
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Of the processor.", show_default="as torch has")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or mps.")] = "cpu",
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="A .json file to write the result to, too.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Times K posterior draws against K passes of the plain network; about a minute on two cores.

    A larger network, batch or number of rounds takes longer in proportion.
    """
    import torch

    from bnn._common.atomic import write_atomically
    from bnn.cli.architecture import named

    network = named(net, data, in_shape, classes, hidden, channels, small_images)
    m = rows or ROWS
    sizes = {"rows": m, "cols": cols or m, "samples": samples, "rounds": rounds}
    batches = list(dict.fromkeys(whole_numbers("--batch", batch, "1,8")))
    methods = chosen(method)
    place = _device(device)
    target = None if out is None else _target(out)
    with _threads(threads):
        torch.manual_seed(seed)
        with _progress((rounds + 1) * (len(methods) + 1) * len(batches), not quiet) as advance:
            times = _in_memory(_measure, network, methods, batches, sizes, place, advance)
        about = {"seed": seed, "threads": torch.get_num_threads(), "device": str(place)}
    result = _result(network, sizes, times) | about
    if target is not None:
        write_atomically((json.dumps(result, indent=1) + "\n").encode(), target)
    if as_json:
        print_json(result)
    else:
        _print(network, sizes, times)


def _measure(
    network: Architecture,
    methods: list[str],
    batches: list[int],
    sizes: dict[str, int],
    device: torch.device,
    advance: Callable[[str], Any],
) -> dict[int, dict[str, Timing]]:
    """Times of all contestants, for every size of a batch."""
    import torch

    from bnn._common.timing import interleaved
    from bnn.likelihoods import Gaussian

    plain = network.build().to(device).eval()
    nets = twins(plain, methods, sizes["rows"], sizes["cols"])
    times = {}
    for batch in batches:
        x = torch.randn(batch, *network.in_shape, device=device)
        runs = contestants(plain, nets, x, sizes["samples"], "categorical" if network.outputs > 1 else Gaussian())
        times[batch] = interleaved(
            runs,
            rounds=sizes["rounds"],
            device=device,
            advance=partial(_told, advance, batch),
        )
    return times


def _told(advance: Callable[[str], Any], batch: int, name: str) -> None:
    advance(f"batch {batch}, {name}")


def _in_memory(measure: Callable[..., Any], *args: Any) -> Any:
    """The result of `measure`; what does not fit in memory is a mistake."""
    try:
        return measure(*args)
    except (RuntimeError, MemoryError) as error:  # torch has no error of its own for the processor's memory
        if not any(word in str(error) for word in ("allocate", "out of memory", "overflow")):
            raise
        raise Mistake("this does not fit in memory: use a smaller --batch, --samples or network") from error


def _result(network: Architecture, sizes: dict[str, int], times: dict[int, dict[str, Timing]]) -> dict[str, Any]:
    """Everything as JSON, with what is needed to do it again."""
    import torch

    results = []
    for batch, of_batch in times.items():
        ratios = {name: timing.ratio_to(of_batch[PLAIN])._asdict() for name, timing in of_batch.items()}
        seconds = {name: asdict(timing) for name, timing in of_batch.items()}
        results.append({"batch": batch, "samples": sizes["samples"], "seconds": seconds, "ratios": ratios})
    versions = {"bnn": version("bayesianize"), "torch": torch.__version__, "python": platform.python_version()}
    about = {"baseline": BASELINE, "caution": CAUTION, "versions": versions, "network": network.to_dict()}
    return about | sizes | {"results": results}


def _print(network: Architecture, sizes: dict[str, int], times: dict[int, dict[str, Timing]]) -> None:
    """One row per contestant, one column per size of a batch."""
    K = sizes["samples"]
    plain = ["plain network", *(f"1 ({of_batch[PLAIN].median:.3g} s)" for of_batch in times.values())]
    rows = [plain]
    for name in next(iter(times.values())):
        if name != PLAIN:
            ratios = [of_batch[name].ratio_to(of_batch[PLAIN]) for of_batch in times.values()]
            cells = [f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})" for ratio in ratios]
            rows.append([known()[name][0], *cells])
    title = f"{network.title()}; U is {sizes['rows']} x {sizes['cols']}"
    print_table([f"time of {K} draws", *(f"batch {batch}" for batch in times)], rows, title=title)
    print(f" 1 is {K} passes of the plain network; in brackets the range over {sizes['rounds']} rounds.")
    print(f" {CAUTION}")


def _device(name: str) -> torch.device:
    """The device of this name; Mistake if there is none here."""
    import torch

    several = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    here = ["cpu", *(["cuda", *several] if several else []), *(["mps"] if torch.backends.mps.is_available() else [])]
    return torch.device(one_of("device", name, here))


def _target(out: Path) -> str:
    """Where the result goes, found wrong before anything is timed."""
    path = os.path.realpath(out)
    if os.path.isdir(path) or not path.endswith(".json"):
        raise Mistake(f"--out must be a .json file; got {str(out)!r}")
    if not os.path.isdir(os.path.dirname(path)):
        raise Mistake(f"there is no folder {os.path.dirname(path)} to write {out.name} into: create it first")
    return path


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Inside the block torch uses `count` threads; None leaves it alone."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _progress(total: int, wanted: bool) -> Iterator[Callable[[str], Any]]:
    """A bar on standard error; where that is no terminal, one line."""
    if not wanted or not sys.stderr.isatty():
        if wanted:
            say(f"timing {total} turns")
        yield lambda what: None
        return
    with progress_of(None, total, "building the networks", transient=True) as advance:
        yield lambda what: advance(what, 1)


def known() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """All contestants: every method that converts one network, and variants of some."""
    titles = {name: METHODS[name].title for name in conversions() if name not in VARIANTS}
    several = {name: f" of {METHODS[name].members}" if METHODS[name].members > 1 else "" for name in titles}
    return VARIANTS | {name: (f"{title}{several[name]}", name, {}) for name, title in titles.items()}


def twins(plain: nn.Module, methods: list[str], rows: int, cols: int) -> dict[str, nn.Module]:
    """A converted copy of `plain` for every method, in evaluation mode.

    What has a limited rank starts at random, at the scale of ordinary weights: a projection of large layers takes
    minutes, and the time of a draw depends on sizes, not on values.
    """
    from bnn.bayesianize import bayesianize_

    start: dict[str, Any] = {"init": "paper", "prior_sd": 1.0, "sqrt_width_scaling": True}
    found = {}
    for contestant in methods:
        _, method, options = known()[contestant]
        found[contestant] = copy.deepcopy(plain)
        sizes = METHODS[method].sizes(rows, cols)
        bayesianize_(found[contestant], method, **options, **(sizes | start if sizes else {}))
        found[contestant].eval()
    return found


def chosen(text: str) -> list[str]:
    """The methods that a list with commas names, each once; the usual ones where it is empty.

    >>> chosen("ffg-w, FFG_U")
    ['ffg-w', 'ffg-u']
    """
    typed = [name.strip().lower().replace("_", "-") for name in text.split(",")] if text else USUAL
    names = [found.name if name not in VARIANTS and (found := find(name)) is not None else name for name in typed]
    return list(dict.fromkeys(one_of("method", name, known()) for name in names))


def contestants(
    plain: nn.Module, nets: dict[str, nn.Module], x: Tensor, draws: int, likelihood: Any = "categorical"
) -> dict[str, Callable[[], Any]]:
    """Functions that make K = `draws` passes, or draws, at the inputs x (N, ...); the plain network comes first."""
    from bnn.prediction import predict

    runs: dict[str, Callable[[], Any]] = {PLAIN: lambda: plain_passes(plain, x, draws)}
    for method, net in nets.items():
        if method == "paper":
            runs[method] = partial(papers_way, net, x, draws)
        else:
            runs[method] = partial(predict, net, x, draws, likelihood)
    return runs


def plain_passes(net: nn.Module, x: Tensor, draws: int) -> None:
    """K passes of a network, one after the other."""
    import torch

    with torch.no_grad():
        for _ in range(draws):
            net(x)


def papers_way(net: nn.Module, x: Tensor, draws: int) -> None:
    """K passes in a loop; each factorises every layer anew and builds all of its weights."""
    import torch

    from bnn.nn.families.inducing import InducingBase

    layers = [module for module in net.modules() if isinstance(module, InducingBase)]
    with torch.no_grad():
        for _ in range(draws):
            for layer in layers:
                layer.reset_cache()
            net(x)
