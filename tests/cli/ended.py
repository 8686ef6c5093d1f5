"""How a command ended, for the tests of several commands."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """Exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)
