"""A process in which private names of torch are hidden from `bnn`, and from nobody else: `python hidden_names.py`.

Prints JSON: what is drawn here, and what the process could see. Covers `from X import name` and `X.name`, `getattr` and
`hasattr` included, at import and at call time, for every module of torch that has the name; not what goes around the
attributes of modules (`vars(X)["name"]`), nor what code outside `bnn` hands over.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import types
import warnings
from typing import Any

import torch
import torch._functorch.pyfunctorch
from torch import Tensor, nn

NAMES = {"_add_batch_dim", "get_unwrapped", "is_batchedtensor", "maybe_get_bdim", "maybe_get_level"}
NAMES |= {"_set_vmap_fallback_warning_enabled", "peek_interpreter_stack", "is_functorch_wrapped_tensor"}
NAMES |= {"temporarily_pop_interpreter_stack"}


class HidesNames(types.ModuleType):
    """A module without `NAMES` for whoever asks from inside `bnn`."""

    def __getattribute__(self, name: str) -> Any:
        if name in NAMES:
            asking = sys._getframe(1).f_globals.get("__name__", "")
            if asking == "bnn" or asking.startswith("bnn."):
                raise AttributeError(f"{name} is hidden from {asking}")
        return super().__getattribute__(name)


def hide() -> None:
    """Hides `NAMES` in all modules of torch, in place."""
    for key, module in list(sys.modules.items()):
        if key.partition(".")[0] == "torch" and type(module) is types.ModuleType and NAMES & vars(module).keys():
            module.__class__ = HidesNames


class Residual(nn.Module):
    """A small convolutional network with BatchNorm and a skip connection, for inputs (N, 3, 6, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](self.stem(x)).relu()
        h = (h + self.norms[1](self.conv(h))).relu()
        return self.head(h.mean((2, 3)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


SIZES = {"inducing_rows": 4, "inducing_cols": 4}
CASES: dict[str, tuple[Any, tuple[int, ...], str, dict[str, Any]]] = {
    "mlp, ffg": (mlp, (5, 12), "ffg", {"init_sd": 0.3}),
    "mlp, lamda 0": (mlp, (5, 12), "inducing", SIZES | {"max_lamda": 0}),
    "mlp, lamda 0.3": (mlp, (5, 12), "inducing", SIZES | {"init_lamda": 0.3}),
    "mlp, lamda 0.3, weight": (mlp, (5, 12), "inducing", SIZES | {"init_lamda": 0.3, "sampling": "weight"}),
    "residual, ffg": (Residual, (5, 3, 6, 6), "ffg", {"init_sd": 0.1}),
    "residual, lamda 0": (Residual, (5, 3, 6, 6), "inducing", SIZES | {"max_lamda": 0}),
    "residual, lamda 0.3": (Residual, (5, 3, 6, 6), "inducing", SIZES | {"init_lamda": 0.3}),
}


def outputs(name: str) -> dict[str, Tensor]:
    """`bnn.draws` in train and in eval mode, and `bnn.predict`, from fixed seeds."""
    import bnn

    make, shape, family, options = CASES[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(shape)
    bnn.bayesianize_(net, family, **options)
    seeded = lambda: torch.Generator().manual_seed(3)  # noqa: E731
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", bnn.FoldingWarning)
        found = {"train": bnn.draws(net, x, 6, seeded())}
        found["probs"] = bnn.predict(net, x, 6, generator=seeded()).probs
        found["eval"] = bnn.draws(net.eval(), x, 6, seeded())
    return found


def engine_fold() -> Any:
    """`bnn._engine.fold`, whose `FAST` says whether the names are there; None for a library without it."""
    import bnn

    there = any(module.name == "_engine" for module in pkgutil.iter_modules(bnn.__path__))
    return importlib.import_module("bnn._engine.fold") if there else None


def main() -> None:
    """Everything, with the names hidden."""
    torch.set_num_threads(1)
    hide()
    probe = types.ModuleType("bnn.probe")
    seen = []
    for module in ("torch._C._functorch", "torch._functorch.pyfunctorch"):
        for name in NAMES:
            for line in (f"from {module} import {name}", f"import {module}; {module}.{name}"):
                try:
                    exec(line, vars(probe))
                    seen.append(line)
                except (ImportError, AttributeError):
                    pass
    torch_works = torch.equal(torch.vmap(torch.sin)(torch.ones(3)), torch.ones(3).sin())
    drawn = {name: {key: value.tolist() for key, value in outputs(name).items()} for name in CASES}
    fold = engine_fold()
    fast = None if fold is None else fold.FAST
    print(json.dumps({"seen": seen, "torch works": torch_works, "drawn": drawn, "fast": fast}))


if __name__ == "__main__":
    main()
