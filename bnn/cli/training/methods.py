"""Methods by the names of the paper: what each puts on a network, and what suits its training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bnn.cli.mistakes import one_of

PLAIN = "deterministic"  # bnn.train.recipe has it, too; from there it would come with torch


@dataclass(frozen=True)
class Method:
    """A method of `bayesianize train`.

    Args:
        about: what it is.
        family: for `bnn.bayesianize_`, or "deterministic".
        options: of the family.
        networks: independent copies of the network.
        size: the inducing matrix is so large on either side, at most; None for methods without.
        kl_weight: of the objective.
        lr, scratch_lr: learning rates for a network that is trained already, and for one that is not.
        hidden: widths of hidden layers where nobody says; None: the network's own.
    """

    about: str
    family: str = PLAIN
    options: dict[str, Any] = field(default_factory=dict)
    networks: int = 1
    size: int | None = None
    kl_weight: float = 1.0
    lr: float = 0.005
    scratch_lr: float = 0.02
    hidden: tuple[int, ...] | None = None

    @property
    def members(self) -> int:
        """Members of Ensemble-U, each of which trains on every batch; 1 for the others."""
        return int(self.options.get("ensemble_size", 1))


M = 16  # full rank for narrow layers, a quarter of the usual width of 64 for the others
M_FULL = 6  # a full covariance over U has M^4 / 2 entries
MEMBERS = 5  # as in the paper

# lamda starts at its cap, the paper's 0.03: a run of some hundred steps has no time to bring it there. The prior sd is
# 8 / sqrt(d_in), so 1 at the usual width of 64, and 1 for what is narrower (see `defaults`). Noise is relative to it:
# with a prior sd of 1 at every width, wide layers drowned in it (pictures were guessed); with 1 / sqrt(d_in), draws
# hardly disagreed (mutual information of 2e-4 nats on the iris data; 1e-2 so).
PRIOR = {"prior_sd": 8.0, "sqrt_width_scaling": True}
LAMDA = PRIOR | {"max_lamda": 0.03, "init_lamda": 0.03}

# Posteriors over all weights: with the full KL they underfit (digits: accuracy 80 % instead of 97 %).
WEIGHTS: dict[str, Any] = {"kl_weight": 0.1, "lr": 0.003, "scratch_lr": 0.005}
# Every step of Adam moves every entry of a covariance by about its rate, and there are many of them.
COVARIANCES: dict[str, Any] = {"kl_weight": 0.1, "lr": 1e-4, "scratch_lr": 5e-4}

METHODS: dict[str, Method] = {
    "deterministic": Method("a plain network"),
    "ffg-w": Method("mean and sd per weight", "ffg", {"max_sd": 0.1, "init_sd": 0.02}, **WEIGHTS),
    "fcg-w": Method("a full covariance per layer", "fcg", {"init_sd": 0.02}, hidden=(24, 24), **COVARIANCES),
    "ffg-u": Method("inducing weights, mean and sd per entry of U", "inducing", LAMDA | {"max_sd_u": 0.1}, size=M),
    "matrix-u": Method(
        "inducing weights, a matrix normal over U", "inducing", LAMDA | {"q_inducing": "matrix"}, size=M
    ),
    "fcg-u": Method(
        "inducing weights, a full covariance over U", "inducing", LAMDA | {"q_inducing": "full"}, size=M_FULL
    ),
    "ensemble-u": Method(
        "inducing weights, an ensemble over U",
        "inducing",
        LAMDA | {"q_inducing": "ensemble", "ensemble_size": MEMBERS},
        size=M,
    ),
    "inducingdeterministic": Method(
        "inducing weights, W a point given U", "inducingdeterministic", PRIOR | {"max_sd_u": 0.1}, size=M
    ),
    "ensemble-w": Method("a deep ensemble of plain networks", networks=MEMBERS),
    "compressed-ensemble": Method(
        "trained networks, each with inducing weights", "inducing", LAMDA | {"max_sd_u": 0.1}, networks=3, size=M
    ),
}
ALIASES = {"ffg": "ffg-w", "fcg": "fcg-w", "inducing": "ffg-u", "deep-ensemble": "ensemble-w"}
DEFAULT = "ffg-u"


def method_name(typed: str) -> str:
    """The name in METHODS of what was typed, in any case and with _ for -.

    >>> method_name("FFG_U"), method_name("inducing")
    ('ffg-u', 'ffg-u')
    """
    spelled = typed.lower().replace("_", "-")
    spelled = {name.replace("-", ""): name for name in METHODS}.get(spelled.replace("-", ""), spelled)
    return ALIASES.get(spelled) or one_of("method", spelled, METHODS)
