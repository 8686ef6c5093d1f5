"""Factors are those of the parameters as they are, also where a change escapes torch: `.data`, NumPy, processes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_nets import mlp
from helpers import FAMILIES, Family, ids
from torch import Tensor, nn

import bnn

WITH_FACTORS = [family for family in FAMILIES if "z_row" in family.tensors]
every_family = pytest.mark.parametrize("family", WITH_FACTORS, ids=ids(WITH_FACTORS))
X = torch.linspace(-1, 1, 18).reshape(3, 6)


def make(family: Family) -> Any:
    return mlp(family, inducing_rows=2, inducing_cols=3)


def with_global(family: Family) -> Any:
    net = make(family)
    bnn.register_global_inducing_weights_(net, 2, 2)
    return net


def seen(net: Any) -> dict[str, Tensor]:
    """Everything that a network shows of its factors, without gradients."""
    seeded = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    with torch.no_grad():
        found = {"0": net[0].weight, "2": net[2].weight, "kl": bnn.kl_divergence(net)}
        found |= {"draws": bnn.draws(net, X, 4, generator=seeded()), "mean": bnn.draws(net, X, 0)}
        with bnn.frozen_draw(net, 1):
            found["forward"] = net(X)
    found["probs"] = bnn.predict(net, X, 4, generator=seeded()).probs
    found["bias"] = net[0].bias.detach()
    return {name: value.clone() for name, value in found.items()}


def check(net: Any, fresh: Any, change: Callable[[Any], None]) -> None:
    """After predictions and `change`, `net` shows what a fresh network with its state dict shows, exactly."""
    before = seen(net)
    for name, value in seen(net).items():
        assert torch.equal(value, before[name]), name
    change(net)
    fresh.load_state_dict({name: value.clone() for name, value in net.state_dict().items()})
    want = seen(fresh)
    for name, value in seen(net).items():
        assert torch.equal(value, want[name]), name
    assert not all(torch.equal(value, before[name]) for name, value in want.items())


# ---- changes that torch does not see ---------------------------------------------------------------------------------


def array(tensor: Tensor) -> Any:
    return tensor.detach().numpy()


def data(net: Any) -> None:
    net[0].z_row.data.add_(torch.randn_like(net[0].z_row))


def data_of_one_entry(net: Any) -> None:
    net[2].z_col.data[0, 0] += 0.5


def data_of_d(net: Any) -> None:
    net[0]._d_col.data.fill_(0.7)


def numpy_noise(net: Any) -> None:
    array(net[0].z_row)[:] += np.random.default_rng(0).normal(size=net[0].z_row.shape)


def numpy_of_d(net: Any) -> None:
    array(net[0]._d_row)[1] *= 3


def permuted_rows(net: Any) -> None:
    z = array(net[0].z_col)
    z[:] = z[::-1].copy()


def permuted_columns(net: Any) -> None:
    z = array(net[0].z_row)
    z[:] = np.roll(z, 1, axis=1)


def swapped_entries(net: Any) -> None:
    z = array(net[2].z_row)
    z[0, 0], z[1, 2] = z[1, 2], z[0, 0]


def flipped_sign(net: Any) -> None:
    array(net[0].z_row)[:] *= -1


def flipped_sign_of_two(net: Any) -> None:
    array(net[0].z_col)[0, :2] *= -1


def traded(net: Any) -> None:
    """What one entry loses, another gains: a power of two, so that sums stay as they are to the last bit."""
    z = array(net[0].z_col)
    z[:2, 0] = [1.5, 0.5] if z[0, 0] != 1.5 else [0.5, 1.5]


def last_bit(net: Any) -> None:
    z = array(net[0].z_row)
    z[0, 0] = np.nextafter(z[0, 0], np.float32(9))


def there_and_back(net: Any) -> None:
    """Changed, seen, and changed back with another layer's parameters changed."""
    kept = array(net[0].z_row).copy()
    array(net[0].z_row)[:] += 1
    seen(net)
    array(net[0].z_row)[:] = kept
    array(net[2].z_row)[:] += 1


CHANGES = [data, data_of_one_entry, data_of_d, numpy_noise, numpy_of_d, permuted_rows, permuted_columns]
CHANGES += [swapped_entries, flipped_sign, flipped_sign_of_two, traded, last_bit, there_and_back]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("trains", [True, False], ids=["", "frozen"])
def test_a_change_behind_torchs_back_is_seen(change: Callable[[Any], None], trains: bool) -> None:
    net, fresh = make(WITH_FACTORS[0]), make(WITH_FACTORS[0])
    net.requires_grad_(trains)
    if change is traded:
        traded(net)
    check(net, fresh, change)


@every_family
@pytest.mark.parametrize("change", [data, permuted_rows])
def test_every_family_sees_it(family: Family, change: Callable[[Any], None]) -> None:
    check(make(family), make(family), change)


@pytest.mark.parametrize("change", [data, flipped_sign])
def test_global_inducing_weights_see_it(change: Callable[[Any], None]) -> None:
    def of_both(net: Any) -> None:
        change(net)
        array(net._global_inducing_module.z_row)[:] += 0.3

    net, fresh = with_global(WITH_FACTORS[0]), with_global(WITH_FACTORS[0])
    check(net, fresh, of_both)


def test_a_change_between_batches_and_inside_inference_mode() -> None:
    net, fresh = make(WITH_FACTORS[0]), make(WITH_FACTORS[0])

    def change(net: Any) -> None:
        with torch.inference_mode():
            bnn.predict(net, X, 3, batch_size=1)
            array(net[0].z_row)[:] *= -1.3
            bnn.predict(net, X, 3, batch_size=1)
            array(net[0].z_row)[:] *= -1.3

    check(net, fresh, change)


# ---- other processes -------------------------------------------------------------------------------------------------

WRITES = """
import mmap, struct, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
    numbers = struct.unpack(f"{len(memory) // 4}f", memory[:])
    memory[:] = struct.pack(f"{len(numbers)}f", *reversed(numbers))
"""


def test_another_process_writes_into_mapped_parameters(tmp_path: pathlib.Path) -> None:
    net, fresh, path = make(WITH_FACTORS[0]), make(WITH_FACTORS[0]), tmp_path / "z_row"
    z = net[0].z_row.detach().clone()
    path.write_bytes(array(z).tobytes())
    mapped = torch.from_file(str(path), shared=True, size=z.numel()).reshape(z.shape)
    net[0].z_row = nn.Parameter(mapped)
    check(net, fresh, lambda net: subprocess.run([sys.executable, "-SEc", WRITES, str(path)], check=True, timeout=60))
    assert torch.equal(net[0].z_row.detach(), z.flatten().flip(0).reshape(z.shape))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_another_process_trains_shared_parameters() -> None:
    """As in Hogwild training; the child only writes numbers, so that forking is safe."""

    def train(net: Any) -> None:
        child = os.fork()
        if not child:
            array(net[0].z_col)[:] += 0.5
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    net, fresh = make(WITH_FACTORS[0]), make(WITH_FACTORS[0])
    check(net.share_memory(), fresh, train)
