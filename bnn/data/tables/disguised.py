"""Numbers that are written as text, with signs of a currency, of per cent or of thousands, are no categories."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bnn._common.errors import ArgumentError
from bnn.data.tables.rows import Rows, number

_UNIT = r"(?:US\$|[$€£¥₹₽₩₺%‰]|EUR|USD|GBP|CHF)"
_DRESSED = re.compile(rf"([+-]?)\s*{_UNIT}?\s*([+-]?)([0-9.,].*?)\s*{_UNIT}?", re.IGNORECASE)
_GROUPS = {  # of three digits, the decimal sign not among what separates them; {decimal sign: pattern}
    ".": re.compile(r"[0-9]{1,3}(?:[,'\u2019 _\u00a0\u202f][0-9]{2,3})*[,'\u2019 _\u00a0\u202f][0-9]{3}(?:[.][0-9]*)?"),
    ",": re.compile(r"[0-9]{1,3}(?:[.'\u2019 _\u00a0\u202f][0-9]{2,3})*[.'\u2019 _\u00a0\u202f][0-9]{3}(?:,[0-9]*)?"),
}
_OTHER = {".": ",", ",": "."}


def undressed(text: str, decimal: str = ".") -> str | None:
    """A text as the number it is without the signs around and inside it; None if it is none even then.

    >>> [undressed(text) for text in ("$1,000.50", "12 %", "1 000", "-€5", "1,5", "A4")]
    ['1000.50', '12', '1000', '-5', '1.5', None]
    """
    match = _DRESSED.fullmatch(text)
    if match is None:
        return None
    outer, inner, digits = match.groups()
    if outer and inner:
        return None
    if _GROUPS[decimal].fullmatch(digits):
        digits = re.sub(rf"[^0-9{decimal}]", "", digits)
    elif number(digits, _OTHER[decimal]) is not None:
        digits = digits.replace(_OTHER[decimal], decimal)
    return outer + inner + digits if number(digits, decimal) is not None else None


def refuse_disguised(
    rows: Rows, name: str, texts: Sequence[tuple[int, str]], count: int, otherwise: str, argument: str
) -> None:
    """An error if most values of a column would be numbers without such signs.

    Args:
        rows: the table.
        name: of the column.
        texts: (row, text) of its values that are no numbers.
        count: how many values it has, numbers among them.
        otherwise: what to say if they are meant as they are, and
        argument: which argument that is.
    """
    plain = [(row, text, undressed(text, rows.decimal)) for row, text in texts]
    found = [(row, text, bare) for row, text, bare in plain if bare is not None]
    if not found or 2 * (count - len(texts) + len(found)) <= count:
        return
    row, text, bare = found[0]
    other = _OTHER[rows.decimal]
    signs = any(number(one, other) is not None and not _GROUPS[rows.decimal].fullmatch(one) for _, one, _ in found)
    hint = f", or say decimal={other!r} if {other!r} is the decimal sign of all numbers" if signs else ""
    raise ArgumentError(
        f"{rows.place(row)}: a number that is written as text, {text!r} in {name!r} ({len(found)} of {count} values "
        f"are such); write {bare} in its place (numbers have no signs of currency, per cent or thousands){hint}, "
        f"or say {otherwise}",
        *(("decimal", argument) if hint else (argument,)),
    )
