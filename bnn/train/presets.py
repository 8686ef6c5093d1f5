"""Recipes by name: those of the paper, with its values where it gives them, and our own."""

from __future__ import annotations

from typing import Any

from bnn._conversion.methods import METHODS, PLAIN
from bnn.train.recipe import Recipe
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
    paper = [_paper(data, net, method) for data in CLASSES for net in NETS for method in _PAPER]
    return {recipe.name: recipe for recipe in [*paper, *_ablation(), *_ours()]}


def _paper(data: str, net: str, method: str) -> Recipe:
    schedule, options, members, ours = _PAPER[method](data)
    what, on = f"{METHODS[method].title}{_DETAILS.get(method, '')}", data.upper().replace("CIFAR", "CIFAR-")
    return Recipe(
        data={"name": data},
        net=NETS[net],
        method=options,
        schedule=schedule,
        members=members,
        calibrate=False,  # the paper does not
        name=f"paper/{data}-{net}-{method}",
        about=f"{what} on {on}, {net}, as in the paper",
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


_PAPER: dict[str, Any] = {  # the paper's values for methods of the registry
    "deterministic": _deterministic,
    "ensemble-w": _ensemble_w,
    "ffg-w": _ffg_w,
    "ffg-u": _ffg_u,
    "ensemble-u": _ensemble_u,
}
_DETAILS = {
    "ensemble-w": " (Ensemble-W) of five networks",
    "ffg-u": ", M = 64,",
    "ensemble-u": " of 5, M = 64,",
}


def _ablation() -> list[Recipe]:
    """The schedule of the ablation study: 50 epochs of maximum likelihood, 40 of annealing, 10 of the full bound."""
    common: dict[str, Any] = {"data": {"name": "cifar10"}, "net": NETS["resnet18"], "calibrate": False}
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
    """Our own runs; every value is ours."""
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
    """Every method with its own options, KL weight and rates; epochs, batches and the size of U are the preset's."""
    small = kind == "digits-"
    M, epochs, fine, inputs = (16, 20, 20, 1_167) if small else (24, 12, 4, 54_000)
    batch_size, lr = (64, 3e-3) if small else (100, 1e-3)
    plain = Schedule(epochs=epochs, batch_size=batch_size, lr=lr, cosine=True)

    def converted(name: str, trained: bool = True, **more: Any) -> dict[str, Any]:
        """A method, and the schedule that suits it after plain training, or from scratch."""
        method = METHODS[name]
        sizes = method.sizes(M, M)
        own = {"kl_weight": method.kl_weight, "lr": method.rate(inputs, trained), "samples": method.members}
        schedule = Schedule.of(plain.to_dict() | {"epochs": fine} | own | more)
        parts = {"method": {"inference": name, **sizes}, "schedule": schedule}
        return parts | ({"pretrain": plain} if trained else {})

    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("deterministic", "a plain network", {"schedule": plain}),
        ("ensemble", "a deep ensemble of three plain networks", {"schedule": plain, "members": 3}),
        ("ffg", "mean and sd per weight, from a trained network", converted("ffg-w")),
        ("from-trained", "train, convert, a few more epochs", converted("ffg-u")),
        (
            "point-u",
            "train, convert without noise, a few more epochs, Laplace on the last layer",
            converted("point-u") | {"activations": True, "laplace": METHODS["point-u"].laplace},
        ),
        (
            "from-scratch",
            "inducing weights from the start",
            converted("ffg-u", trained=False, epochs=epochs + fine, warmup=epochs // 2, anneal=fine),
        ),
        ("ensemble-u", "one network, five members of U", converted("ensemble-u")),
        (
            "compressed-ensemble",
            "three trained networks in fewer parameters than one",
            converted("ffg-u") | {"members": METHODS["compressed-ensemble"].networks},
        ),
    ]
    return [Recipe(**on, **parts, name=f"ours/{kind}{name}", about=about, ours=("all",)) for name, about, parts in rows]
