"""Every test starts from the same seed, on one thread: pytest-xdist gives each core its own process."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    torch.manual_seed(0)
