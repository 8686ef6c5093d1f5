"""How numbers are written, for people: everywhere the same."""

from __future__ import annotations

from collections.abc import Callable

from bnn.metrics.registry import find

TINY = 1e-6  # below it numbers have an exponent


def percent(share: float, places: int = 1, bare: bool = False) -> str:
    """A share as text.

    >>> percent(0.9722), percent(0.9722, bare=True), percent(0.233, 0)
    ('97.2 %', '97.2', '23 %')
    """
    return f"{100 * share:.{places}f}{'' if bare else ' %'}"


def probability(p: float) -> str:
    """A probability as text, one that is not 1 never as 100 %.

    >>> probability(0.935), probability(0.99999), probability(1.0)
    ('93.5 %', '> 99.9 %', '100.0 %')
    """
    return "> 99.9 %" if 0.9995 <= p < 1 else percent(p)


def decimals(value: float, places: int = 3, bare: bool = False) -> str:
    """A number with so many places behind the point.

    >>> decimals(0.98765)
    '0.988'
    """
    return f"{value:.{places}f}"


def figures(value: float, digits: int = 3, bare: bool = False) -> str:
    """A number to so many significant digits, without an exponent where it can be read without one.

    >>> figures(123.4), figures(1234.5), figures(999.7), figures(0.012345), figures(3.2e-7, 2), figures(2.0), figures(0)
    ('123', '1,234', '1,000', '0.0123', '3.2e-07', '2.00', '0')
    >>> figures(0.00007181), figures(0.0000012)
    ('0.0000718', '0.00000120')
    """
    if value == 0:
        return "0"
    value = float(f"{value:.{digits}g}") if abs(value) < 10**digits else value  # 999.7 is 1,000
    if abs(value) >= 10**digits:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.{digits - 1}e}"
    return _plain(value, digits) if TINY <= abs(value) < 1e-4 else f"{value:#.{digits}g}".rstrip(".")


def seconds(value: float) -> str:
    """A time as text.

    >>> seconds(0.0123), seconds(1.5), seconds(0.1234)
    ('12 ms', '1.5 s', '120 ms')
    """
    if value >= 1:
        return f"{figures(value, 2)} s"
    thousandths = 1000 * value
    rounded = float(f"{thousandths:.2g}")
    return f"{rounded:.0f} ms" if rounded >= 10 else f"{figures(thousandths, 2)} ms"


def real(value: float, digits: int = 4) -> str:
    """A real number in its own units: whole where it is that large, else so many digits, without trailing zeros.

    >>> real(63410.2), real(151.34), real(0.0529), real(-0.5), real(2.0), real(3.2e-7), real(0.0)
    ('63,410', '151.3', '0.0529', '-0.5', '2', '3.2e-07', '0')
    >>> real(0.0000718), real(-0.00001), real(9.999e-7)
    ('0.0000718', '-0.00001', '9.999e-07')
    """
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.{digits - 1}e}"
    return _plain(value, digits).rstrip("0") if TINY <= abs(value) < 1e-4 else f"{value:.{digits}g}"


def _plain(value: float, digits: int) -> str:
    """A small number without an exponent, to so many significant digits."""
    places = digits - 1 - int(f"{value:e}".partition("e")[2])
    return f"{value:.{places}f}"


FORMATS: dict[str, Callable[..., str]] = {"percent": percent, "decimals": decimals, "figures": figures}


def metric_text(task: str, name: str, value: float) -> str:
    """The value of a metric as its registration says, but for shares three significant digits.

    >>> metric_text("classification", "accuracy", 0.5), metric_text("regression", "nll", 1.2345)
    ('50.0 %', '1.23')
    """
    return percent(value) if is_share(task, name) else figures(value)


def is_share(task: str, name: str) -> bool:
    """Whether a metric is between 0 and 1 and written in per cent."""
    one = find(task, name)
    return one is not None and one.format == "percent"


def in_own_units(task: str, name: str) -> bool:
    """Whether a metric is in the target's own units, so that a mean over several targets means little."""
    one = find(task, name)
    return one is not None and one.own_units


def metric_title(task: str, name: str) -> str:
    """What a metric is called."""
    one = find(task, name)
    return name if one is None else one.title
