"""What the tests of contexts share."""

from collections.abc import Iterator

import pytest
from engine_nets import Known


@pytest.fixture
def known() -> Iterator[Known]:
    """A network that must be random again after the test."""
    made = Known()
    yield made
    assert made.varies(), "still frozen after the test"
