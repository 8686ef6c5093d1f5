"""A method as data: what is put on a network, what suits its training, and what it costs."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PLAIN = "deterministic"
NARROW = 64  # inputs of a layer; the prior sd of 8 / sqrt(d_in) would be above 1 below
FEW = 2000  # inputs of a data set, up to which the rates of a method are meant; small batches suit them
MEMBER_OPTIONS = ("ensemble_size", "components")  # of families: how many members there are in one network
SLOWER = 0.2  # factor of a method's rates for more inputs than that


@dataclass(frozen=True)
class Method:
    """What is put on a network, and what suits its training.

    Args:
        name: as in the paper, in small letters; "-" between the words.
        title: for tables.
        about: what it is.
        when: when to choose it.
        formula: parameters of a layer with the matrix W (d_out x d_in; d_in counts the bias), c_in input channels of
            its kernel (of a linear layer: its inputs, the bias not counted), the inducing matrix U (M_out x M_in), the
            rank r and K members or networks. Sums of products, powers, quotients without remainder. For inducing
            weights and ranks W is as `kernel` arranges it (`bnn.functional.kernels.matrix_shape`).
        multiplies: of a Linear layer for K draws of N rows each, by whole weights (`sampling="weight"`) and without
            gradients, as a formula of these sizes, N, and K draws. Products of matrices count, with what a call makes
            once for all draws; entrywise steps, factorisations and triangular solves do not. "" where it was not
            counted.
        family: for `bnn.bayesianize_`, or "deterministic".
        options: of the family.
        size: each side of U, or the rank, at most (see `layer_options`); None for methods without.
        size_names: the options of the family that `size` is for.
        networks: independent copies of the network.
        kl_weight: of the objective.
        lr, scratch_lr: learning rates for a network that is trained already, and for one that is not.
        hidden: default widths of hidden layers; None: the network's own.
        aliases: other names for it.
        laplace: what `bnn.fit(laplace=)` is given by the command line and by estimators, unless they are told
            otherwise. None: nothing.
        instead: what to do where one network is to be converted, and this method is something else.
    """

    name: str
    title: str
    about: str
    when: str
    formula: str
    family: str = PLAIN
    options: Mapping[str, Any] = field(default_factory=dict)
    size: int | None = None
    networks: int = 1
    kl_weight: float = 1.0
    lr: float = 0.005
    scratch_lr: float = 0.02
    hidden: tuple[int, ...] | None = None
    aliases: tuple[str, ...] = ()
    instead: str = ""
    multiplies: str = ""
    size_names: tuple[str, ...] = ("inducing_rows", "inducing_cols")
    laplace: Mapping[str, Any] | None = None

    @property
    def member_option(self) -> str | None:
        """The option that says how many members there are in one network; None: there are none."""
        return next((name for name in MEMBER_OPTIONS if name in self.options), None)

    @property
    def members(self) -> int:
        """Members in one network, as of Ensemble-U, each of which trains on every batch; 1 for the others."""
        return 1 if self.member_option is None else int(self.options[self.member_option])

    def rate(self, inputs: int, trained: bool = True) -> float:
        """The learning rate for so many inputs, of a network that is `trained` already or not."""
        return (self.lr if trained else self.scratch_lr) * (SLOWER if inputs > FEW else 1.0)

    def layer_options(
        self, d_out: int, d_in: int, given: Collection[str] = (), rank: int | None = None
    ) -> dict[str, Any]:
        """The options for a layer with the matrix W (d_out x d_in), apart from those that somebody gives.

        A side of U is at most the smaller side of W, since the mean of W has no larger rank than that; so small layers
        hardly take more parameters than they had; a budget that is given chooses them instead. Narrow layers have a
        prior sd of 1 (see `PRIOR`).

        Args:
            rank: the smaller side of W where a kernel is split, see `full_rank`; else that of d_out and d_in.

        >>> from bnn import methods
        >>> methods()["ffg-u"].layer_options(10, 129, given=["max_sd_u", "prior_sd"])["inducing_cols"]
        10
        """
        own = dict(self.options)
        if self.size is not None:
            side = min(self.size, min(d_out, d_in) if rank is None else rank)
            if "budget" not in given:
                own |= self.sizes(side, side)
            if d_in < NARROW and not {"prior_sd", "sqrt_width_scaling"} & set(given):
                own |= {"prior_sd": 1.0, "sqrt_width_scaling": False}
        return {name: value for name, value in own.items() if name not in given}

    def sizes(self, rows: int | None, cols: int | None) -> dict[str, int]:
        """The options that give U so many rows and columns, of those that are given; a rank is the smaller of both.

        >>> from bnn import methods
        >>> methods()["ffg-u"].sizes(8, None), methods()["singular-w"].sizes(8, 6)
        ({'inducing_rows': 8}, {'rank': 6})
        """
        if self.size is None:
            return {}
        asked = [rows, cols] if len(self.size_names) > 1 else [min((n for n in (rows, cols) if n), default=None)]
        return {name: size for name, size in zip(self.size_names, asked, strict=True) if size is not None}

    def parameters(
        self,
        d_out: int,
        d_in: int,
        rows: int | None = None,
        cols: int | None = None,
        K: int = 0,
        c_in: int | None = None,
    ) -> int:
        """How many parameters a layer takes: with U, or a rank, of the usual size, or as given; K members or networks.

        Args:
            c_in: input channels of the kernel; None: d_in, as of a linear layer without a bias.

        >>> from bnn import methods
        >>> methods()["ffg-u"].parameters(512, 4609, rows=64, cols=64)  # the last conv of a ResNet-18, with a bias
        336065
        """
        usual = min(self.size or 1, d_out, d_in)
        sizes = {"d_out": d_out, "d_in": d_in, "M_out": rows or usual, "M_in": cols or usual, "c_in": c_in or d_in}
        sizes |= {"K": K or max(self.members, self.networks), "r": min(sizes["M_out"], sizes["M_in"])}
        return _value(_parsed(self.formula), sizes)

    def work(self, d_out: int, d_in: int, N: int, K: int, rows: int | None = None, cols: int | None = None) -> int:
        """How many multiplies a Linear layer takes for K draws of N rows each, see `multiplies`; sizes of U as above.

        >>> from bnn import methods
        >>> methods()["ffg-w"].work(10, 64, N=100, K=20)
        1280000
        """
        usual = min(self.size or 1, d_out, d_in)
        sizes = {"d_out": d_out, "d_in": d_in, "M_out": rows or usual, "M_in": cols or usual, "K": K, "N": N}
        return _value(_parsed(self.multiplies), sizes | {"r": min(sizes["M_out"], sizes["M_in"])})

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


_OPERATIONS = {ast.Add: operator.add, ast.Mult: operator.mul, ast.Pow: operator.pow, ast.Div: operator.floordiv}


def _parsed(formula: str) -> ast.expr:
    """A formula as mathematicians write it, "2 d_out d_in + K^2", as a tree."""
    spelled = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula).replace("^", "**")
    return ast.parse(spelled, mode="eval").body


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name in sizes:
            return sizes[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return int(_OPERATIONS[type(op)](_value(left, sizes), _value(right, sizes)))
    raise ValueError(f"a formula is of {', '.join(sizes)}, whole numbers, + and ^; got {ast.unparse(node)!r}")
