"""The matrix normal as a torch distribution; importing this package also registers its KL divergences."""

from __future__ import annotations

from bnn.distributions import kl
from bnn.distributions.matrix_normal import MatrixNormal

__all__ = ["MatrixNormal"]
