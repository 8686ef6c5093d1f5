"""Split conformal prediction: intervals and sets of classes that hold the truth as often as they say.

**The statement.** Set n rows with known targets aside. Each gets a score s_i, which says how far its target is from
what was predicted. With k = ceil((n + 1) level) let q be the k-th smallest of them, and C(x) all y whose score at x is
at most q: an interval, or a set of classes. Then for a new row (x, y)

    level <= P(y in C(x)) <= level + 1 / (n + 1)        the upper bound where scores have no ties

whatever the network, its likelihood and the data are. It takes k <= n, that is n >= level / (1 - level) rows.

**Its assumptions.**

1. Nothing has seen the n rows: neither training nor early stopping, temperature, prior, or the choice of a method.
2. The n rows and the new one are exchangeable, as rows drawn independently from one source are. A new row of
   another source, or of a later time, when things have changed, has no guarantee.
3. All are predicted by one function: the same network, with the same draws (`bnn.predict` with as many samples and a
   generator of the same seed).

**What P is over.** The n rows and the new one together: it is an average. For the n rows at hand, coverage of new ones
is a number that varies about it, as Beta(k, n + 1 - k) without ties, with an sd of about sqrt(level (1 - level) / n): 4
points for 50 rows at 0.9, 1 point for 1,000. It is an average over inputs, too: intervals may hold more often here and
less often there. Made `by_class` it holds within every class, with the n of that class. Of several targets it holds for
each by itself, not for all at once.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> y, means, sds = rng.normal(size=99), np.zeros((1, 99)), np.full((1, 99), 5.0)  # one draw, whose sd is far too large
>>> guarantee = calibrate((means, sds), y)
>>> lower, upper = guarantee.intervals((means[:, :1], sds[:, :1]), level=0.9)
>>> bool(upper[0] == np.sort(np.abs(y))[89])  # k = 90
True
"""

from bnn.conformal.calibrating import calibrate
from bnn.conformal.class_scores import Aps, Lac, Raps
from bnn.conformal.guarantee import Guarantee
from bnn.conformal.ranks import rows_needed
from bnn.conformal.real_scores import Normalized, Quantile

__all__ = ["Aps", "Guarantee", "Lac", "Normalized", "Quantile", "Raps", "calibrate", "rows_needed"]
