"""Methods by the names of the paper, each declared once: command line, recipes, estimators and docs read them here.

A family says how a posterior looks; a method is a family with the options, sizes and rates that suit it, as measured,
and with a number of networks. Adding one is one entry at the end of this file, or `bnn.register_method` from outside.
"""

from __future__ import annotations

import re
from typing import Any

from bnn._common.text import nearest
from bnn._conversion.method import FEW as FEW
from bnn._conversion.method import MEMBER_OPTIONS as MEMBER_OPTIONS
from bnn._conversion.method import PLAIN as PLAIN
from bnn._conversion.method import Method as Method

METHODS: dict[str, Method] = {}
DEFAULT = "ffg-u"


def methods() -> dict[str, Method]:
    """All methods by name, as data.

    >>> methods()["ensemble-u"].title
    'Ensemble-U'
    """
    return dict(METHODS)


def register_method(method: Method) -> None:
    """Adds a method: from then on it is known to conversion, command line, estimators and tables.

    Raises:
        ValueError: a name that is taken or badly spelled, a formula that cannot be evaluated, or no `instead` where
            the method is no conversion of one network.
    """
    for name in (method.name, *method.aliases):
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise ValueError(f"a method's name is of small letters, digits and '-', as 'ffg-u'; got {name!r}")
        if find(name) is not None:
            raise ValueError(f"there is a method {name!r} already; choose another name")
    if (method.family == PLAIN or method.networks > 1) and not method.instead:
        raise ValueError(f"{method.name!r} is no conversion of one network: say with instead= what to do")
    method.parameters(2, 2)
    if method.multiplies:
        method.work(2, 2, N=2, K=2)
    METHODS[method.name] = method


def find(typed: str) -> Method | None:
    """The method of this name or alias, in any case and with _ for -; None where there is none.

    >>> find("FFG_U").name, find("ensembleu").name, find("deep-ensemble").name
    ('ffg-u', 'ensemble-u', 'ensemble-w')
    """
    names = {name.replace("-", ""): one for one in METHODS.values() for name in (one.name, *one.aliases)}
    return names.get(re.sub("[-_]", "", typed.lower()))


def get(typed: str) -> Method:
    """The method of this name or alias; ValueError that suggests the nearest where there is none."""
    found = find(typed)
    if found is None:
        known = [name for one in METHODS.values() for name in (one.name, *one.aliases)]
        hint = nearest(typed.lower().replace("_", "-"), known)
        raise ValueError(f"unknown method {typed!r}{hint}; expected one of {', '.join(METHODS)}")
    return found


def conversion(typed: str) -> Method | None:
    """The method of this name that `bnn.bayesianize_` can put on one network; None where there is none of that name.

    Raises:
        ValueError: a method that is something else, with what to do instead.
    """
    found = find(typed)
    if found is not None and found.instead:
        raise ValueError(f"{found.name!r} is {found.about}, no conversion of one network: {found.instead}")
    return found


def family_of(typed: str) -> str:
    """The family of a method; a family's own name is left as it is."""
    found = find(typed)
    return typed.lower() if found is None else found.family


def conversions() -> list[str]:
    """The names of all methods that convert one network."""
    return [one.name for one in METHODS.values() if not one.instead]


def method_of(inference: str) -> Method | None:
    """The method that `inference=` names; None for a family, which has defaults of its own, and for an unknown name.

    Raises:
        ValueError: a method that is no conversion of one network.
    """
    from bnn.nn.base import families

    return None if inference.lower() in families() else conversion(inference)


def unknown(inference: str) -> str:
    """The message for an `inference=`, as shown, that is neither a family nor a method."""
    from bnn.nn.base import families

    return f"unknown inference {inference}; expected one of {families()}, or a method: {conversions()}"


def layer_shape(layer: Any, family: str) -> tuple[int, int]:
    """(d_out, d_in) of the matrix that a family makes of a plain torch layer; d_in counts the bias."""
    from bnn.nn.base import Weights, pairing, plain_weights

    weight, bias = plain_weights(layer)
    empty = Weights(weight.to("meta"), None if bias is None else bias.to("meta"))  # a shape needs no copy
    d_out, d_in = pairing(family, type(layer)).to_matrix(empty).shape
    return d_out, d_in


def full_rank(layer: Any, kernel: str = "paper") -> int:
    """The smaller side of the matrix that inducing weights make of a plain torch layer with this `kernel`."""
    from bnn.functional.kernels import matrix_shape
    from bnn.nn.base import plain_weights

    weight, bias = plain_weights(layer)
    return min(matrix_shape(weight.shape, bias is not None, kernel))


# ---- the methods -----------------------------------------------------------------------------------------------------

M = 16  # full rank for narrow layers, a quarter of the usual width of 64 for the others
M_FULL = 6  # a full covariance over U has M^4 / 2 entries
MEMBERS = 5  # as in the paper
DIRECTIONS = 128  # at most, of the last layer's inputs, over which Laplace's posterior of a point reaches

# lamda starts at its cap, the paper's 0.03: a run of some hundred steps has no time to bring it there. The prior sd is
# 8 / sqrt(d_in), so 1 at the usual width of 64, and 1 for what is narrower. Noise is relative to it: with a prior sd of
# 1 at every width, wide layers drowned in it (pictures were guessed); with 1 / sqrt(d_in), draws hardly disagreed
# (mutual information of 2e-4 nats on the iris data; 1e-2 so).
PRIOR = {"prior_sd": 8.0, "sqrt_width_scaling": True}
LAMDA = PRIOR | {"max_lamda": 0.03, "init_lamda": 0.03}
SD_U = {"max_sd_u": 0.1}

# Posteriors over all weights: with the full KL they underfit (digits: accuracy 80 % instead of 97 %).
WEIGHTS: dict[str, Any] = {"kl_weight": 0.1, "lr": 0.003, "scratch_lr": 0.005}
# Tied sds, which all reach their cap; at that of 0.1 they fit less. What each method reaches on the digits with these
# options and rates: `python -m experiments.run methods`.
TIED: dict[str, Any] = {"kl_weight": 0.1, "lr": 0.005, "scratch_lr": 0.005}
# Every step of Adam moves every entry of a covariance by about its rate, and there are many of them.
COVARIANCES: dict[str, Any] = {"kl_weight": 0.1, "lr": 1e-4, "scratch_lr": 5e-4}

SIDES = "d_out M_out + d_in M_in + M_out + M_in"  # Z and D of both sides
FFG_U = f"{SIDES} + 2 M_out M_in + 1"  # mean and sd of U, lamda

RUN = "K N d_out d_in"  # the plain layer under every draw
FACTORS = "2 d_in M_in^2 + 2 d_out M_out^2"  # Psi and A of both sides, once
ONCE = "2 d_in M_in^2 + 3 d_out M_out^2"  # and G_r A_r
DRAW_W = "2 d_out d_in M_in + d_out M_in^2 + 2 d_out M_out M_in"  # W given u, by two stages

for _method in (
    Method(
        "deterministic",
        "Deterministic",
        "a plain network",
        "the baseline, without uncertainty about its weights",
        "d_out d_in",
        multiplies="N d_out d_in",
        instead="leave the network as it is, and train it",
    ),
    Method(
        "ffg-w",
        "FFG-W",
        "a mean and an sd per weight",
        "the classical baseline, at twice the parameters",
        "2 d_out d_in",
        multiplies=RUN,
        family="ffg",
        options={"max_sd": 0.1, "init_sd": 0.02},
        aliases=("ffg",),
        **WEIGHTS,
    ),
    Method(
        "fcg-w",
        "FCG-W",
        "a full covariance of all weights of a layer",
        "a small last layer",
        "2 d_out d_in + (d_out d_in)^2",
        multiplies=f"{RUN} + K (d_out d_in)^2",
        family="fcg",
        options={"init_sd": 0.02},
        hidden=(24, 24),
        aliases=("fcg",),
        **COVARIANCES,
    ),
    Method(
        "ensemble-w",
        "Deep ensemble",
        "a deep ensemble of plain networks",
        "the strongest baseline, where memory and time are no matter",
        "K d_out d_in",
        multiplies=RUN,
        networks=MEMBERS,
        aliases=("deep-ensemble", "ensemble"),
        instead=f"use bnn.Ensemble(net, members={MEMBERS})",
    ),
    Method(
        "ffg-u",
        "FFG-U",
        "inducing weights with a mean and an sd per entry of U",
        "the default: a fraction of the network's parameters",
        FFG_U,
        multiplies=f"{RUN} + K ({DRAW_W}) + {ONCE}",
        family="inducing",
        options=LAMDA | SD_U,
        size=M,
        aliases=("inducing",),
    ),
    Method(
        "matrix-u",
        "Matrix-U",
        "inducing weights with a matrix normal over U",
        "correlations within U, for hardly more parameters",
        f"{SIDES} + M_out M_in + M_out (M_out + 1) / 2 + M_in (M_in + 1) / 2 + 1",
        multiplies=f"{RUN} + K ({DRAW_W} + M_out^2 M_in + M_out M_in^2) + {ONCE}",
        family="inducing",
        options=LAMDA | {"q_inducing": "matrix"},
        size=M,
    ),
    Method(
        "fcg-u",
        "FCG-U",
        "inducing weights with a full covariance over U",
        "every correlation within a small U",
        f"{SIDES} + M_out M_in + M_out M_in (M_out M_in + 1) / 2 + 1",
        multiplies=f"{RUN} + K ({DRAW_W} + (M_out M_in)^2) + {ONCE}",
        family="inducing",
        options=LAMDA | {"q_inducing": "full"},
        size=M_FULL,
    ),
    Method(
        "ensemble-u",
        "Ensemble-U",
        "inducing weights with an ensemble of K points over U",
        "members that disagree, for little more than one network",
        f"{SIDES} + K M_out M_in + 1",
        multiplies=f"{RUN} + K ({DRAW_W}) + {ONCE}",
        family="inducing",
        options=LAMDA | {"q_inducing": "ensemble", "ensemble_size": MEMBERS},
        size=M,
    ),
    Method(
        "ffg-u-lamda-0",
        "FFG-U, lamda = 0",
        "inducing weights without noise given U",
        "the fastest draws: a low-rank network with a posterior over its core",
        f"{SIDES} + 2 M_out M_in",
        multiplies=f"K N (d_in M_in + M_in M_out + M_out d_out) + {FACTORS}",  # W is never built
        family="inducingdeterministic",
        options=PRIOR | SD_U,
        size=M,
        aliases=("inducingdeterministic",),
    ),
    Method(
        "point-u",
        "Point-U",
        "inducing weights without any noise, and Laplace's posterior on the last layer",
        "a trained network in fewer parameters, in one to two plain passes",
        f"{SIDES} + M_out M_in",
        multiplies=f"K N M_in (d_in + d_out) + d_out M_out M_in + {FACTORS}",
        family="inducingdeterministic",
        options=PRIOR | {"max_sd_u": 0.0},
        size=M,
        kl_weight=0.0,
        laplace={"layers": "last", "inducing_cols": DIRECTIONS},
    ),
    Method(
        "compressed-ensemble",
        "Compressed ensemble",
        "K trained networks, each in inducing form",
        "an ensemble's accuracy and calibration, in fewer parameters than one network",
        f"K ({FFG_U})",
        multiplies=f"{RUN} + K ({DRAW_W} + {ONCE})",
        family="inducing",
        options=LAMDA | SD_U,
        size=M,
        networks=3,
        instead='use ensemble = bnn.Ensemble(net, members=3), then bnn.bayesianize_(ensemble, "ffg-u")',
    ),
    Method(
        "singular-w",
        "Singular BNN",
        "two factors of rank r with a mean and an sd per entry, W = A B^T",
        "the rival that also stores less than the network: compare it at equal parameters",
        "2 r (d_out + d_in)",
        family="singular",
        options=PRIOR | {"max_sd": 0.1, "init_sd": 0.02},
        size=M,
        size_names=("rank",),
        aliases=("singular",),
        multiplies="K N r (d_out + d_in)",
        kl_weight=0.1,
        lr=0.01,
        scratch_lr=0.01,
    ),
    Method(
        "matrix-w",
        "Matrix-normal-W",
        "a mean per weight, a variance per row and per column",
        "uncertainty at hardly more parameters than the network's",
        "d_out d_in + d_out + d_in",
        multiplies=RUN,
        family="matrixnormal",
        options={"max_sd": 0.05, "init_sd": 0.02},
        aliases=("matrixnormal", "matrix-normal"),
        **TIED,
    ),
    Method(
        "k-tied",
        "k-tied FFG-W",
        "a mean per weight, sds that are a product of rank 2",
        "nearly FFG-W, at hardly more parameters than the network's",
        "d_out d_in + 2 (d_out + d_in)",
        multiplies=f"{RUN} + 2 d_out d_in",
        family="ktied",
        options={"max_sd": 0.05, "init_sd": 0.02, "rank": 2},
        aliases=("ktied",),
        **TIED,
    ),
    Method(
        "rank-1",
        "Rank-1 BNN",
        "one matrix, with Gaussian factors on its inputs and outputs in each of K components",
        "members that disagree and uncertainty in each, for hardly more than one network",
        "d_out d_in + 2 K (c_in + d_out)",
        family="rank1",
        options={"components": 4},
        aliases=("rank1",),
        multiplies=RUN,
        **WEIGHTS,
    ),
    Method(
        "batch-ensemble",
        "BatchEnsemble",
        "K members that share one matrix, each with factors on its inputs and outputs",
        "an ensemble that trains like a plain network, for hardly more than one",
        "d_out d_in + K (c_in + d_out)",
        family="batchensemble",
        options={"ensemble_size": 4},
        aliases=("batchensemble",),
        multiplies=RUN,
        **WEIGHTS,
    ),
    Method(
        "mc-dropout",
        "MC dropout",
        "a plain network that drops inputs of its layers at prediction, too",
        "the baseline that takes no parameter, and needs no other training",
        "d_out d_in",
        family="mcdropout",
        options={"p": 0.1},
        aliases=("mcdropout",),
        multiplies=RUN,
        **WEIGHTS,
    ),
):
    register_method(_method)
