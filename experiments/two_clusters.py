"""The paper's toy regression (Foong et al., 2019): two clusters of data, and the regions where a posterior is judged.

    50 inputs each of U[-1, -0.7] and U[0.5, 1],   y ~ N(cos(4 x + 0.8), 0.1^2)
    a hidden layer of 50 tanh units, every weight and bias N(0, 16 / d_in), where d_in counts the bias

The paper's text has cos(4 x + 0.8), its appendix cos(0.4 x + 0.8). This is the text's: both places follow Foong et
al., whose data are known with 4 x, and the function then turns between the clusters. With 0.4 it is nearly a straight
line there, which leaves nothing to be unsure about.
"""

from __future__ import annotations

import torch
from torch import Tensor

HIDDEN, NOISE = 50, 0.1
PRIOR_SDS = (4 / 2**0.5, 4 / (HIDDEN + 1) ** 0.5)  # of the two layers
CLUSTERS = ((-1.0, -0.7), (0.5, 1.0))
EDGE = 1.6  # how far the figure reaches on both sides
GRID = torch.linspace(-EDGE, EDGE, 161, dtype=torch.double)  # steps of 0.02


def truth(x: Tensor) -> Tensor:
    """The function behind the data."""
    return torch.cos(4 * x + 0.8)


def data(seed: int, each: int = 50) -> tuple[Tensor, Tensor]:
    """x and y, (2 each, 1) in float64, cluster by cluster."""
    generator = torch.Generator().manual_seed(seed)
    parts = [low + (high - low) * torch.rand(each, 1, generator=generator).double() for low, high in CLUSTERS]
    x = torch.cat(parts)
    return x, truth(x) + NOISE * torch.randn(len(x), 1, generator=generator).double()


def regions(x: Tensor = GRID) -> dict[str, Tensor]:
    """Which inputs are inside, between and outside the clusters.

    >>> [int(one.sum()) for one in regions().values()]
    [42, 59, 60]
    """
    (left, begins), (ends, right) = CLUSTERS
    slack = 1e-9  # edges belong to the clusters
    outside = (x < left - slack) | (x > right + slack)
    between = (x > begins + slack) & (x < ends - slack)
    return {"inside": ~outside & ~between, "between": between, "outside": outside}


def by_region(values: Tensor) -> dict[str, float]:
    """The mean of values on `GRID` over each region."""
    return {name: float(values[here].mean()) for name, here in regions().items()}
