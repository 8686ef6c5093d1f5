"""Recipes by name: those of the paper, with its values where it gives them, and our own."""

from __future__ import annotations

from typing import Any

from bnn.train.recipe import PLAIN, Recipe
from bnn.train.schedule import Schedule

NETS: dict[str, dict[str, Any]] = {
    name: {"name": name, "kernel_size": 3, "remove_maxpool": True} for name in ("resnet18", "resnet50")
}
ONE_RATE: dict[str, Any] = {"scale_rate": None, "refresh_batchnorm": False}  # as the paper: Adam, one rate for all
CLASSES = {"cifar10": 10, "cifar100": 100}

_FFG_W = {"inference": "ffg", "prior_weight_sd": 1, "prior_bias_sd": 1, "init_sd": 1e-4, "max_sd": 0.1}
_WHOLE: dict[str, Any] = {"sampling": "weight"}  # the paper draws whole weights
_WARMED_UP = Schedule(epochs=300, lr=1e-3, milestones=(200,), warmup=100, anneal=50, **ONE_RATE)
_ABLATION = Schedule(epochs=100, lr=3e-4, warmup=50, anneal=40, **ONE_RATE, **_WHOLE)


def presets() -> dict[str, Recipe]:
    """All recipes by name.

    `paper/<data>-<net>-<method>` for data cifar10, cifar100; net resnet18, resnet50; method deterministic, ensemble-w,
    ffg-w, ffg-u, ensemble-u; `paper/ablation-ffg-u`, `paper/ablation-ensemble-u`; `ours/...` for a trained network,
    from scratch, the compressed ensemble, and small ones on the digits that come with the package.
    """
    paper = [_paper(data, net, method) for data in CLASSES for net in NETS for method in _METHODS]
    return {recipe.name: recipe for recipe in [*paper, *_ablation(), *_ours()]}


def _paper(data: str, net: str, method: str) -> Recipe:
    schedule, options, members, ours = _METHODS[method](data)
    return Recipe(
        data={"name": data},
        net=NETS[net],
        method=options,
        schedule=schedule,
        members=members,
        name=f"paper/{data}-{net}-{method}",
        about=f"{_TITLES[method]} on {data.upper().replace('CIFAR', 'CIFAR-')}, {net}, as in the paper",
        ours=tuple(ours),
    )


def _deterministic(data: str) -> Any:
    if data == "cifar10":
        return Schedule(epochs=200, lr=3e-4, **ONE_RATE), {"inference": PLAIN}, 1, []
    sgd = Schedule(epochs=200, optimiser="sgd", lr=0.1, momentum=0.9, milestones=(60, 120, 160), **ONE_RATE)
    return sgd, {"inference": PLAIN}, 1, ["schedule.epochs", "schedule.weight_decay"]


def _ensemble_w(data: str) -> Any:
    schedule, method, _, ours = _deterministic(data)
    return schedule, method, 5, ours


def _ffg_w(data: str) -> Any:
    if data == "cifar10":
        return Schedule(epochs=200, lr=3e-4, warmup=100, anneal=50, **ONE_RATE), _FFG_W, 1, []
    return _WARMED_UP, _FFG_W, 1, []


def _inducing(data: str, M: int, **options: Any) -> dict[str, Any]:
    """Inducing weights of M x M, `fc` with as many rows as classes where the paper says so (CIFAR-10)."""
    common = {"inference": "inducing", "inducing_rows": M, "inducing_cols": M, **options}
    common |= {"prior_sd": 1, "sqrt_width_scaling": True, "init": "paper"}
    if data == "cifar100":
        return common
    return {"inference": {"Conv2d": common, "fc": common | {"inducing_rows": CLASSES[data]}}}


def _ffg_u(data: str) -> Any:
    ours = ["method.max_lamda", "method.max_sd_u"] if data == "cifar100" else []
    method = _inducing(data, 64, q_inducing="diagonal", max_lamda=0.03, max_sd_u=0.1)
    return Schedule.of(_WARMED_UP.to_dict() | _WHOLE), method, 1, [*ours, "method.init_lamda"]


def _ensemble_u(data: str) -> Any:
    method = _inducing(data, 64, q_inducing="ensemble", ensemble_size=5, max_lamda=0.1)
    # "1 MC sample per update, such that each member is used once": a draw of every member, each on its share
    schedule = Schedule.of(_WARMED_UP.to_dict() | {"samples": 5, "split": True} | _WHOLE)
    return schedule, method, 1, ["method.init_lamda", "schedule.split"]


_METHODS: dict[str, Any] = {
    "deterministic": _deterministic,
    "ensemble-w": _ensemble_w,
    "ffg-w": _ffg_w,
    "ffg-u": _ffg_u,
    "ensemble-u": _ensemble_u,
}
_TITLES = {
    "deterministic": "Deterministic-W",
    "ensemble-w": "Ensemble-W, five independent networks,",
    "ffg-w": "FFG-W",
    "ffg-u": "FFG-U, M = 64,",
    "ensemble-u": "Ensemble-U of 5, M = 64,",
}


def _ablation() -> list[Recipe]:
    """The schedule of the ablation study: 50 epochs of maximum likelihood, 40 of annealing, 10 of the full bound."""
    common: dict[str, Any] = {"data": {"name": "cifar10"}, "net": NETS["resnet18"]}
    about = "one point of the paper's ablation grid: M in {16, 32, 64, 128}, max_lamda in {0, 0.03, 0.1, 0.3}"
    ffg = _inducing("cifar10", 128, q_inducing="diagonal", max_lamda=0.03, max_sd_u=0.1)
    ensemble = _inducing("cifar10", 128, q_inducing="ensemble", ensemble_size=5, max_lamda=0.1)
    split = Schedule.of(_ABLATION.to_dict() | {"samples": 5, "split": True})
    ours = ("method.init_lamda", "method.max_lamda")
    return [
        Recipe(**common, method=ffg, schedule=_ABLATION, name="paper/ablation-ffg-u", about=about, ours=ours),
        Recipe(**common, method=ensemble, schedule=split, name="paper/ablation-ensemble-u", about=about, ours=ours),
    ]


def _ours() -> list[Recipe]:
    """What worked best in our measurements; every value is ours."""
    fashion: dict[str, Any] = {
        "data": {"name": "fashion_mnist", "validation": 0.1},
        "net": {"name": "cnn", "channels": [32, 64, 64], "hidden": [256]},
    }
    digits: dict[str, Any] = {
        "data": {"name": "digits", "validation": 0.1},
        "net": {"name": "cnn", "channels": [32, 64], "hidden": [128], "maxpool_freq": 2},
    }
    return [recipe for kind, on in (("", fashion), ("digits-", digits)) for recipe in _family(kind, on)]


def _family(kind: str, on: dict[str, Any]) -> list[Recipe]:
    small = kind == "digits-"
    M, epochs, fine = (16, 20, 10) if small else (24, 12, 4)
    inducing: dict[str, Any] = {"inference": "inducing", "inducing_rows": M, "inducing_cols": M}
    inducing |= {"sqrt_width_scaling": True, "init_lamda": 0.03, "max_lamda": 0.1, "max_sd_u": 0.1}
    plain = Schedule(epochs=epochs, batch_size=64 if small else 100, lr=1e-3, cosine=True)
    after = Schedule.of(plain.to_dict() | {"epochs": fine, "kl_weight": 0.1})
    scratch = Schedule.of(
        after.to_dict() | {"epochs": epochs + fine, "lr": 3e-3, "warmup": epochs // 2, "anneal": fine}
    )
    ensemble_u = {**inducing, "q_inducing": "ensemble", "ensemble_size": 5}
    del ensemble_u["max_sd_u"]
    every = Schedule.of(after.to_dict() | {"samples": 5})
    ffg = {"inference": "ffg", "init_sd": 1e-3, "max_sd": 0.1, "prior_weight_sd": "neal"}
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("deterministic", "a plain network", {"schedule": plain}),
        ("ensemble", "a deep ensemble of three plain networks", {"schedule": plain, "members": 3}),
        (
            "ffg",
            "mean and sd per weight, from a trained network",
            {"method": ffg, "pretrain": plain, "schedule": after},
        ),
        (
            "from-trained",
            "train, convert, a few more epochs",
            {"method": inducing, "pretrain": plain, "schedule": after},
        ),
        ("from-scratch", "inducing weights from the start", {"method": inducing, "schedule": scratch}),
        ("ensemble-u", "one network, five members of U", {"method": ensemble_u, "pretrain": plain, "schedule": every}),
        (
            "compressed-ensemble",
            "three trained networks in fewer parameters than one",
            {"method": inducing, "pretrain": plain, "schedule": after, "members": 3},
        ),
    ]
    return [Recipe(**on, **parts, name=f"ours/{kind}{name}", about=about, ours=("all",)) for name, about, parts in rows]
