"""Which way of drawing is cheapest: the one place where the engine's prices live.

A way's cost is a sum of counts times prices: multiplies, normals, entries of elementwise passes, multiplies of small
factorisations, and a fixed price per call. Prices are in nanoseconds on a 2-core CPU; only their ratios decide.
`make bench` measures the regret of the choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Way(Enum):
    """Where the randomness of a layer's output is drawn; the formulas are in `bnn.functional.draws`."""

    DENSE = "dense"
    JOINT = "joint"
    JOINT_WITHOUT_COLUMNS = "joint without columns"
    PER_ROW = "per row"
    PER_ROW_WITHOUT_COLUMNS = "per row without columns"


class Size(NamedTuple):
    """One call of a layer."""

    draws: int  # K
    inputs: int  # N
    rows: int  # p, per input
    d_out: int
    d_in: int
    m_out: int
    m_in: int
    gram: int = 0  # multiplies of X X^T per input
    taps: int = 1  # entries of a row that come from one channel
    shared: bool = False  # all draws see the same inputs
    residual: bool = True  # lamda > 0
    last_taps: int = 1  # kw of a split kernel: W is (d_out kw) x (d_in / kw), and
    projected: int = 0  # T = X A_c^T is taken at so many positions per input; else at the rows
    settled: bool = False  # W is the same in all draws, and its factors are at hand
    built: bool = False  # and so is W itself


class Prices(NamedTuple):
    """Nanoseconds."""

    multiply: float = 0.014  # in large products and convolutions
    tap: float = 0.016  # in convolutions along one dimension, as split kernels are: fewer taps for every output
    small: float = 0.035  # in products of K N small matrices
    wide: float = 24.0  # columns from which a product of matrices runs at full speed
    normal: float = 4.2
    entry: float = 0.35  # an entry of an elementwise pass
    weight: float = 0.6  # an entry of a weight that a convolution has to bring into its own order
    factor: float = 0.06  # a multiply of a Cholesky factorisation
    call: float = 4_000.0  # one operation, whatever its size, and the Python around it


VECTOR = 16  # channels that a convolution computes at a time
SETTLED_CALLS = 3  # of a layer whose W is settled; one more for a second layer
SPLIT_CALLS = 6  # further ones of a split kernel that is drawn: padding, two convolutions, their layouts

# Operations of a way on a layer, without and with residual: what a small layer costs, whatever its size.
CALLS = {
    Way.DENSE: (13, 27),
    Way.JOINT: (42, 42),
    Way.JOINT_WITHOUT_COLUMNS: (43, 43),
    Way.PER_ROW: (11, 30),
    Way.PER_ROW_WITHOUT_COLUMNS: (8, 25),
}


def cost(way: Way, size: Size, prices: Prices = Prices()) -> float:  # noqa: B008
    """The price of drawing a layer's outputs for all draws and inputs."""
    k, n, p, d_out, d_in, m_out, m_in = size[:7]
    kw, at = size.last_taps, size.projected or p
    inputs = n if size.shared else k * n  # distinct inputs
    multiply = prices.multiply if kw == 1 else prices.tap
    thin = multiply * _narrow(m_in, kw, prices.wide)  # a multiply of a product with one short side
    project = thin * inputs * at * d_in / kw * m_in
    columns = k * d_out * kw * m_in * (prices.multiply * m_out)
    if size.residual:
        columns += k * d_out * kw * m_in * (prices.normal + prices.multiply * m_out)
    mean = thin * k * n * p * kw * m_in * d_out
    through_rows = thin * k * n * m_out * (at * m_in + p * kw * d_out)
    normals = (prices.normal + prices.entry) * k * n * p * d_out
    norms = inputs * p * (d_in / size.taps + size.taps) * prices.entry * (1.0 if size.taps > 1 else 0.2)
    factor = inputs * (prices.small * size.gram + prices.entry * 2 * p * p + prices.factor * p**3 / 3)
    spread = prices.small * k * n * p * p * d_out
    on_positions = 0.0  # the first stage of a split kernel without columns, at all positions of t, for kw d_out outputs
    if kw > 1:
        mean += k * (prices.weight * kw * m_in * d_out + 2 * prices.call)  # K convolutions, or products of matrices
        factor += prices.small * inputs * min(at**2, p**2 * kw) * m_in
        on_positions = k * n * kw * d_out * (at * (prices.normal + prices.multiply * m_out) + prices.small * p * at)
        on_positions += inputs * (prices.small * at**2 * m_in + prices.entry * 4 * at**2 + prices.factor * at**3 / 3)
    calls = prices.call * CALLS[way][size.residual]
    if size.settled:
        calls = prices.call * SETTLED_CALLS
        if way is Way.DENSE:
            weights = d_out * d_in * (prices.multiply * m_in + prices.weight)
            build = 0.0 if size.built else weights + prices.call * (CALLS[way][False] - SETTLED_CALLS)
            return build + prices.multiply * k * n * p * d_in * d_out + calls
        return project + prices.entry * inputs * at * m_in + mean + prices.call + calls  # t is written and read
    if (
        kw > 1 and not size.residual and way in (Way.PER_ROW, Way.PER_ROW_WITHOUT_COLUMNS)
    ):  # t is padded and rearranged, and so are the outputs
        calls += SPLIT_CALLS * prices.call
        calls += prices.entry * (inputs * at * (d_in / size.taps + 2 * m_in) + k * n * p * d_out)
    match way:
        case Way.DENSE:
            weights = k * d_out * d_in
            build = weights * (prices.multiply * m_in + prices.weight) + columns
            if size.residual:
                build += weights * (prices.normal + prices.entry + prices.multiply * m_in)
            run = prices.multiply * k * n * p * d_in * d_out
            each = 2 * k if size.taps > 1 else 0  # a convolution with K kernels runs K times
            return build + run + calls + prices.call * each
        case Way.JOINT:
            return project + columns + mean + normals + factor + spread + calls
        case Way.JOINT_WITHOUT_COLUMNS:
            if kw == 1:
                second = through_rows + normals + prices.small * 2 * k * n * p * m_out * d_out
                return project + 2 * (factor + spread) + second + normals + calls
            return project + through_rows + on_positions + factor + spread + normals + calls
        case Way.PER_ROW:
            return project + columns + mean + (normals + norms if size.residual else 0.0) + calls
        case Way.PER_ROW_WITHOUT_COLUMNS:
            first = prices.multiply * 2 * k * n * p * m_out * d_out if kw == 1 else on_positions
            residual = normals + norms + first
            return project + through_rows + (residual if size.residual else 0.0) + calls


def _narrow(m: int, kw: int, wide: float) -> float:
    """How much longer a multiply takes where one side of a product, or the channels of a convolution, are only m."""
    return max(1.0, wide / m) if kw == 1 else -(-m // VECTOR) * VECTOR / m


def cheapest(ways: Iterable[Way], size: Size, prices: Prices = Prices()) -> Way:  # noqa: B008
    """The cheapest of `ways`."""
    return min(ways, key=lambda way: cost(way, size, prices))


def by_factors(size: Size, prices: Prices = Prices()) -> bool:  # noqa: B008
    """Whether outputs through two factors of each draw (rank m_in) cost less than their product and a dense layer."""
    n, p, d_out, d_in, kw = size.inputs, size.rows, size.d_out, size.d_in, size.last_taps
    thin = (prices.multiply if kw == 1 else prices.tap) * _narrow(size.m_in, kw, prices.wide)
    through = thin * n * size.m_in * ((size.projected or p) * d_in / kw + p * kw * d_out)
    dense = d_out * d_in * (prices.multiply * (size.m_in + n * p) + prices.weight)
    return through < dense


def by_row(size: Size, of_row: int, of_weights: int = 0, prices: Prices = Prices()) -> bool:  # noqa: B008
    """Whether a Gaussian's outputs cost less drawn for every row (with d_out normals) than drawn weights do.

    Args:
        of_row, of_weights: multiplies beyond those of the plain layer, of one row whose outputs are drawn, and of
            drawing the weights once.
    """
    each_row = prices.multiply * of_row + (prices.normal + 4 * prices.entry) * size.d_out
    weights = size.d_in * size.d_out * (prices.normal + prices.weight) + prices.multiply * of_weights
    return size.inputs * size.rows * each_row < weights
