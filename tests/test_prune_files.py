"""Files of pruned networks: smaller, complete, and refused where they contradict themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

import bnn
from bnn._conversion.file_format import checksum


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def pruned(inference: str = "inducing", keep: float = 0.5) -> nn.Sequential:
    net = plain()
    bnn.bayesianize_(net, inference, **({"inducing_rows": 5} if inference == "inducing" else {}))
    bnn.prune_(net, keep)
    return net


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def stored(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with safetensors.safe_open(path, framework="pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("inference", ["ffg", "inducing"])
@pytest.mark.parametrize("keep", [0.5, 0.01, 0.0])
def test_a_pruned_network_comes_back(inference: str, keep: float, tmp_path: Path) -> None:
    net, path = pruned(inference, keep), tmp_path / "net.safetensors"
    with torch.no_grad():
        next(net.parameters()).add_(1.0)  # what an optimiser left in the place of pruned entries is not stored
    bnn.save(net, path)
    fresh = plain()
    bnn.load_(fresh, path)
    assert same(fresh, net)
    assert bnn.parameter_count(fresh) == bnn.parameter_count(net)
    metadata, tensors = stored(path)
    assert metadata["format_version"] == "2"
    kept = sum(int(mask.sum()) for name, mask in net.named_buffers() if "_mask_" in name)
    names = json.loads(metadata["pruned"])
    assert sum(tensors[name].numel() for name in names) == kept
    assert sum(one.numel() for one in tensors.values() if one.is_floating_point()) == bnn.parameter_count(net)
    assert all(tensors[one["mask"]].dtype == torch.uint8 for one in names.values())


def test_files_of_whole_networks_are_as_they_were(tmp_path: Path) -> None:
    net, path = plain(), tmp_path / "net.safetensors"
    bnn.bayesianize_(net, "inducing", inducing_rows=3)
    bnn.save(net, path)
    metadata, _ = stored(path)
    assert metadata["format_version"] == "1"
    assert "pruned" not in metadata


def test_tied_layers_are_stored_once(tmp_path: Path) -> None:
    def tied() -> nn.Sequential:
        shared = nn.Linear(6, 6)
        return nn.Sequential(shared, nn.ReLU(), shared)

    net, path = tied(), tmp_path / "net.safetensors"
    bnn.bayesianize_(net, "ffg")
    bnn.prune_(net, 0.25)
    bnn.save(net, path)
    metadata, tensors = stored(path)
    assert set(json.loads(metadata["pruned"])) == {"0.weight_mean", "0._weight_sd"}
    assert not any(name.startswith("2.") for name in tensors)
    fresh = tied()
    bnn.load_(fresh, path)
    assert same(fresh, net)
    assert fresh[0] is fresh[2]


def test_other_types(tmp_path: Path) -> None:
    net, path = pruned().to(torch.bfloat16), tmp_path / "net.safetensors"
    bnn.save(net, path)
    fresh = plain().double()
    bnn.load_(fresh, path)
    assert same(fresh, net.double())


def test_resnet50_takes_less_than_six_tenths(tmp_path: Path) -> None:
    """The paper's table to the unit, in fact and not only as a forecast, and bytes on disk."""
    net = bnn.nn.nets.make_network("resnet50", out_features=10, kernel_size=3, remove_maxpool=True)
    bnn.bayesianize_(net, "inducing", inducing_rows=64, inducing_cols=64, init="paper")
    sizes = []
    for keep, count in ((1.0, 5_710_902), (0.75, 4_408_790), (0.5, 3_106_678), (0.25, 1_804_566)):
        bnn.prune_(net, keep)
        assert bnn.parameter_count(net) == count
        bnn.save(net, tmp_path / "net.safetensors")
        sizes.append((tmp_path / "net.safetensors").stat().st_size)
    assert sizes[2] <= 0.6 * sizes[0]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.slow
def test_resnet50_with_means_and_sds() -> None:
    """The rows of FFG-W, the odd one among them."""
    net = bnn.nn.nets.make_network("resnet50", out_features=10, kernel_size=3, remove_maxpool=True)
    bnn.bayesianize_(net, "ffg")
    for keep, count in ((0.5, 23_520_852), (0.1, 4_746_682), (0.01, 522_494), (0.001, 100_075)):
        bnn.prune_(net, keep)
        assert bnn.parameter_count(net) == count


# ---- damaged ---------------------------------------------------------------------------------------------------------


def rewritten(path: Path, change: Any) -> None:
    """The file with other metadata or tensors, and a checksum that fits them."""
    metadata, tensors = stored(path)
    record = json.loads(metadata["pruned"])
    change(record, tensors)
    metadata["pruned"] = json.dumps(record)
    metadata["checksum"] = checksum(metadata, tensors)
    safetensors.torch.save_file(tensors, path, metadata)


def one_less(record: Any, tensors: dict[str, Tensor]) -> None:
    tensors["3.z_col"] = tensors["3.z_col"][:-1].clone()


def one_byte_less(record: Any, tensors: dict[str, Tensor]) -> None:
    tensors["3._mask_z_col"] = tensors["3._mask_z_col"][:-1].clone()


def no_mask(record: Any, tensors: dict[str, Tensor]) -> None:
    del tensors["3._mask_z_col"]


def another_shape(record: Any, tensors: dict[str, Tensor]) -> None:
    record["3.z_col"]["shape"].reverse()


def no_shape(record: Any, tensors: dict[str, Tensor]) -> None:
    record["3.z_col"] = {"mask": "3._mask_z_col"}


def negative(record: Any, tensors: dict[str, Tensor]) -> None:
    record["3.z_col"]["shape"] = [-5, -65]


def not_listed(record: Any, tensors: dict[str, Tensor]) -> None:
    del record["3.z_col"]


def spare_bits(record: Any, tensors: dict[str, Tensor]) -> None:
    tensors["3._mask_z_col"][-1] |= 128


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (one_less, "should hold the .* values that '3._mask_z_col' keeps"),
        (one_byte_less, "should be 41 bytes for 325 entries"),
        (no_mask, "is missing"),
        (another_shape, r"record of the conversion says.*'3.z_col': expected \(5, 65\), found \(65, 5\)"),
        (no_shape, "expected a mask and a shape"),
        (negative, "expected a mask and a shape"),
        (not_listed, "does not hold what its record of the conversion says"),
        (spare_bits, "more bits than the 325 entries"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_contradictions_are_format_errors(change: Any, said: str, tmp_path: Path) -> None:
    path, fresh = tmp_path / "net.safetensors", plain()
    bnn.save(pruned(), path)
    rewritten(path, change)
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    with pytest.raises(bnn.FileFormatError, match=said):
        bnn.load_(fresh, path)
    assert type(fresh[3]) is nn.Linear
    assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items())


def test_damage_and_cuts_are_found(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    bnn.save(pruned(), path)
    data = path.read_bytes()
    for cut in (4, 200, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(bnn.FileFormatError, match=r"cut short|cannot load"):
            bnn.load_(plain(), path)
    metadata, tensors = stored_bytes(data, tmp_path)
    tensors["3._mask_z_col"] ^= 1
    safetensors.torch.save_file(tensors, path, metadata)
    with pytest.raises(bnn.FileFormatError, match="its checksum does not fit"):
        bnn.load_(plain(), path)
    for wrong in ("[]", "3", "[" * 100_000):
        metadata, tensors = stored_bytes(data, tmp_path)
        metadata["pruned"] = wrong
        metadata["checksum"] = checksum(metadata, tensors)
        safetensors.torch.save_file(tensors, path, metadata)
        with pytest.raises(bnn.FileFormatError, match="record of pruning says"):
            bnn.load_(plain(), path)


def stored_bytes(data: bytes, folder: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    (folder / "copy.safetensors").write_bytes(data)
    return stored(folder / "copy.safetensors")


def test_another_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    bnn.save(pruned(), path)
    with pytest.raises(ValueError, match="other layers"):
        bnn.load_(nn.Sequential(nn.Linear(3, 2)), path)
