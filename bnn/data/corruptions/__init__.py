"""The nineteen corruptions of Hendrycks and Dietterich (2019) at five severities, with the constants of CIFAR-10-C.

Fifteen are their benchmark, four more (`GROUPS["extra"]`) they give to tune on; the paper averages over all.

Computed when asked for and deterministic by seed. The published procedures are followed with NumPy, SciPy and Pillow in
place of scikit-image, OpenCV and ImageMagick; each function says where it differs. The one that is not the original is
`frost`: it needs photographs, and has a drawn texture instead.
"""

from bnn.data.corruptions.kinds import CORRUPTIONS, GROUPS, OF_COLOUR, corrupt

__all__ = ["CORRUPTIONS", "GROUPS", "OF_COLOUR", "corrupt"]
