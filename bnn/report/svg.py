"""A figure of matplotlib as SVG inside a page: it takes the page's colours and font, and shares no id."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any

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


# colour as drawn -> the page's variable; both themes define it
COLORS = {plots.INK: "--ink", plots.FAINT: "--faint", plots.SURFACE: "--surface"} | {
    color: variable(i) for i, color in enumerate(plots.PALETTE)
}
METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def inline_svg(figure: Any, prefix: str, label: str) -> str:
    """The figure as an <svg> element.

    Args:
        figure: of matplotlib, drawn under `bnn.plots.theme`.
        prefix: starts every id in it; unique in the page.
        label: its content in words, HTML-escaped already.
    """
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the page's font is another one
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")  # once is enough: saving would lay it out, and draw it, again
        figure.savefig(buffer, format="svg", metadata=METADATA)
    return _themed(_own_ids(_element(buffer.getvalue(), label), prefix))


def _element(text: str, label: str) -> str:
    """Without prolog, comments, metadata and fixed size; as one image with a description."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    start = text.index(">")
    box = re.search(r'viewBox="[^"]*"', text[:start])
    assert box is not None
    opening = f'<svg {box.group()} role="img" aria-label="{label}" preserveAspectRatio="xMidYMid meet"'
    text = opening + text[start:]
    text = text.replace("xlink:href", "href")
    text = re.sub(r"font: (?:[a-z0-9]+ )*?([\d.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r"(\d\.\d\d)\d{2,}", r"\1", text)  # hundredths of a point are enough
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def _own_ids(text: str, prefix: str) -> str:
    """Every id, and every reference to one, gets the prefix; ids that nothing refers to go."""
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", text)


def _themed(text: str) -> str:
    for color, name in COLORS.items():
        text = re.sub(re.escape(color), f"var({name})", text, flags=re.IGNORECASE)
    return text


def palette_style() -> str:
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
