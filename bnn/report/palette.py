"""The colours of runs as variables of the page, for both themes and for paper."""

from __future__ import annotations

from bnn import plots

LIGHTER = 0.2  # how far colours move towards white in the dark theme

# selectors as in report.css, where the other colours are
STYLE = """:root {{ {light} }}
@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}
:root[data-theme="dark"] {{ {dark} }}
@media print {{ :root, :root[data-theme], :root:not([data-theme="light"]) {{ {light} }} }}"""


def variable(place: int) -> str:
    """The name of the colour of the run in this place."""
    return f"--series-{place}"


def style() -> str:
    """CSS that defines `--series-0`, `--series-1`, ...: the palette of `bnn.plots`, lighter on dark ground."""
    light = " ".join(f"{variable(i)}: {color};" for i, color in enumerate(plots.PALETTE))
    dark = " ".join(f"{variable(i)}: {lighter(color)};" for i, color in enumerate(plots.PALETTE))
    return STYLE.format(light=light, dark=dark)


def lighter(color: str) -> str:
    """A colour moved towards white.

    >>> lighter("#000000"), lighter("#ffffff"), lighter("#3264c8")
    ('#333333', '#ffffff', '#5b83d3')
    """
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + LIGHTER * (255 - part)):02x}" for part in parts)
