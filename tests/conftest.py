"""Every test starts from the same seed, on one thread: pytest-xdist gives each core its own process.

`BNN_DEVICE=cuda make test` makes tensors and networks on another device than the CPU.
"""

import os
import signal
import sys

import pytest
import torch

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
if "BNN_DEVICE" in os.environ:
    torch.set_default_device(os.environ["BNN_DEVICE"])


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    torch.manual_seed(0)
    if "torch._dynamo" in sys.modules:  # what other tests compiled counts towards its limit of variants
        torch._dynamo.reset()
    torch.distributions.Distribution.set_default_validate_args(True)  # torch.compile turns it off for good
