"""Round trips through `bnn.save` and `bnn.load_`, and every file that must be refused."""

from __future__ import annotations

import json
import os
import pickle
import stat
import struct

import pytest
import safetensors.torch
import torch
from helpers import SIZES, bitwise
from torch import nn

import bnn
from bnn._conversion.file_format import checksum
from bnn._conversion.record import skeleton
from bnn._engine.temperature import set_temperature_, temperature_of
from bnn.nn.base import BayesianLayer

INDUCING = {"inducing_rows": 3, "inducing_cols": 4}
CONVERSIONS = [
    {"inference": "ffg", "max_sd": 0.1, "prior_weight_sd": "neal"},
    {"inference": "fcg", "init_sd": 0.01},
    {"inference": "inducingdeterministic", **INDUCING},
    {"inference": "inducing", "max_sd_u": 0, "max_lamda": 0, **INDUCING},
    {"inference": "inducing", "learn_lamda": False, "sqrt_width_scaling": True, **SIZES},
    *(
        {"inference": "inducing", "q_inducing": q, "whitened_u": whitened, "init": init, "ensemble_size": 3, **INDUCING}
        for q in ("diagonal", "matrix", "full", "ensemble")
        for whitened in (True, False)
        for init in ("weights", "paper")
    ),
]


def plain() -> nn.Module:
    """Nested, with BatchNorm buffers, a grouped conv and a layer without a bias."""
    block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), block, nn.Flatten(), nn.Linear(16, 3))


INPUT = torch.linspace(-1, 1, 2 * 5 * 5).reshape(1, 2, 5, 5)


def trained(net: nn.Module) -> nn.Module:
    """Every tensor moved off its start, buffers of BatchNorm included."""
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
        for b in net.buffers():
            b.add_(1)
    return net


def assert_same(loaded: nn.Module, saved: nn.Module, x: torch.Tensor) -> None:
    """Types, options, state dicts and one frozen draw agree, bit by bit."""
    for (name, a), (other, b) in zip(loaded.named_modules(), saved.named_modules(), strict=True):
        assert (name, type(a)) == (other, type(b))
        if isinstance(b, BayesianLayer):
            assert a.options == b.options
    ours, theirs = loaded.state_dict(), saved.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[k], theirs[k]) and ours[k].dtype == theirs[k].dtype for k in theirs)
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in saved.parameters()]
    outputs = []
    for net in (loaded.eval(), saved.eval()):
        with bnn.frozen_draw(net, seed=3), torch.no_grad():
            outputs.append(net(x))
    assert torch.equal(*outputs)


def round_trip(net: nn.Module, fresh: nn.Module, path: os.PathLike[str], x: torch.Tensor) -> None:
    bnn.save(net, path)
    assert bnn.load_(fresh, path) is None
    assert_same(fresh, net, x)


@pytest.mark.parametrize("conversion", CONVERSIONS, ids=lambda c: "-".join(map(str, c.values())))
def test_round_trip_of_every_family(conversion, tmp_path):
    net = plain()
    bnn.bayesianize_(net, **conversion)
    fresh = plain()
    round_trip(trained(net), fresh, tmp_path / "net.safetensors", INPUT)
    with torch.no_grad():
        assert fresh(INPUT).isfinite().all()
    assert torch.equal(bnn.kl_divergence(fresh), bnn.kl_divergence(net))


def test_the_same_network_is_the_same_file(tmp_path):
    """safetensors alone orders the metadata anew each time: 6 names that fall alike 8 times have a chance of 1e-20."""
    net = plain()
    bnn.bayesianize_(net, "ffg-u")
    written = set()
    for i in range(8):
        bnn.save(net, tmp_path / f"{i}.safetensors")
        written.add((tmp_path / f"{i}.safetensors").read_bytes())
    assert len(written) == 1
    with safetensors.safe_open(tmp_path / "0.safetensors", "pt") as file:  # and safetensors can read it
        assert list(json.loads(file.metadata()["conversion"]))
        assert set(file.keys()) == set(net.state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("conversion", [CONVERSIONS[0], CONVERSIONS[5]], ids=["ffg", "inducing"])
def test_round_trip_in_other_dtypes(conversion, dtype, tmp_path):
    net = plain().to(dtype)
    bnn.bayesianize_(net, **conversion)
    round_trip(trained(net), plain().to(dtype), tmp_path / "net", INPUT.to(dtype))


def test_file_is_cast_to_the_dtype_of_the_network(tmp_path):
    net, fresh = plain().double(), plain()
    bnn.bayesianize_(net, "inducing", **SIZES)
    bnn.save(net, tmp_path / "net")
    bnn.load_(fresh, tmp_path / "net")
    assert {v.dtype for v in fresh.state_dict().values()} == {torch.float32, torch.int64}
    assert torch.equal(fresh[3].z_row, net[3].z_row.float())


def test_partly_converted_root_plain_and_root_layer(tmp_path):
    net = plain()
    bnn.bayesianize_(net, {"3": "fcg", "1.0": {"inference": "inducing", "inducing_rows": 2}})
    assert [type(m).__name__ for m in (net[0], net[1][0], net[3])] == ["Conv2d", "InducingConv2d", "FCGLinear"]
    round_trip(trained(net), plain(), tmp_path / "partly", INPUT)

    round_trip(trained(plain()), plain(), tmp_path / "plain", INPUT)

    root = nn.Linear(5, 2)
    bnn.bayesianize_(root, "inducing", **SIZES)
    round_trip(trained(root), nn.Linear(5, 2), tmp_path / "root", torch.ones(1, 5))


def tied() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), nn.ModuleDict({"again": layer})["again"], nn.Linear(4, 2))


@pytest.mark.parametrize("family", ["ffg", "fcg"])
def test_tied_layers_are_stored_once_and_stay_tied(tmp_path, family):
    net, fresh = tied(), tied()
    bnn.bayesianize_(net, family)
    round_trip(trained(net), fresh, tmp_path / "net", torch.ones(1, 4))
    assert fresh[0] is fresh[2]
    stored = safetensors.torch.load_file(tmp_path / "net")
    assert {name for name in stored if name[0] == "0"} == {f"0.{name}" for name in net[0].state_dict()}
    assert not [name for name in stored if name[0] == "2"]


def test_a_tied_layer_does_not_load_into_two_layers_nor_two_into_a_tied_one(tmp_path):
    def untied():
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))

    for saved, target in ((tied(), untied()), (untied(), tied())):
        bnn.bayesianize_(saved, "ffg")
        bnn.save(saved, tmp_path / "net")
        with pytest.raises(ValueError, match="'0': expected one module with the names"):
            bnn.load_(target, tmp_path / "net")
        assert type(target[0]) is nn.Linear


class SharedTensors(nn.Module):
    """A tied embedding, two overlapping views of one storage, an expanded and an empty buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head, self.last = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False), nn.Linear(6, 2)
        self.head.weight = self.embedding.weight
        storage = torch.randn(10)
        self.register_buffer("left", storage[:6])
        self.register_buffer("right", storage[4:])
        self.register_buffer("wide", torch.ones(1).expand(5))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("none_left", torch.zeros(0, 3))

    def forward(self, x):
        return self.last(self.head(self.embedding(x)))


def test_shared_overlapping_expanded_and_empty_tensors(tmp_path):
    net, fresh = SharedTensors(), SharedTensors()
    fresh.wide = torch.zeros(5)  # an expanded buffer cannot be written to
    bnn.bayesianize_(net, {"last": "ffg"})
    round_trip(net, fresh, tmp_path / "net", torch.tensor([1, 2]))
    assert fresh.head.weight is fresh.embedding.weight
    assert "head.weight" not in safetensors.torch.load_file(tmp_path / "net")


def test_channels_last(tmp_path):
    net = plain().to(memory_format=torch.channels_last)
    bnn.bayesianize_(net, "ffg")
    assert not net[0].weight_mean.is_contiguous()
    round_trip(trained(net), plain(), tmp_path / "net", INPUT)


@pytest.mark.parametrize("cat_dim", [0, 1])
@pytest.mark.parametrize("q", ["diagonal", "ensemble"])
def test_global_inducing_weights(cat_dim, q, tmp_path):
    net, fresh = nn.ModuleDict({"body": plain()})["body"], plain()
    bnn.bayesianize_(net, "inducing", **INDUCING)
    options = {"q_inducing": q, "max_lamda": 0.3, "ensemble_size": 3}
    bnn.register_global_inducing_weights_(net, 5, 2, cat_dim=cat_dim, **options)
    round_trip(trained(net), fresh, tmp_path / "net", INPUT)
    assert fresh._global_inducing_module.cat_dim == cat_dim
    assert torch.equal(bnn.kl_divergence(fresh), bnn.kl_divergence(net))


def test_global_inducing_weights_of_a_part_of_the_network(tmp_path):
    def nested():
        return nn.ModuleDict({"body": plain(), "head": nn.Linear(3, 2)})

    net, fresh = nested(), nested()
    bnn.bayesianize_(net, {"body": {"inference": "inducing", **INDUCING}, "head": "ffg"})
    bnn.register_global_inducing_weights_(net["body"], 5, 2)
    bnn.save(trained(net), tmp_path / "net")
    bnn.load_(fresh, tmp_path / "net")
    assert_same(fresh["body"], net["body"], INPUT)
    assert torch.equal(fresh["head"].weight, net["head"].weight)


def test_global_slices_need_the_order_of_the_layers(tmp_path):
    def net_of(names):
        return nn.ModuleDict({name: nn.Linear(4, 4) for name in names})

    net, other = net_of("ab"), net_of("ba")
    bnn.bayesianize_(net, "inducing", inducing_rows=2, inducing_cols=2)
    bnn.register_global_inducing_weights_(net, 2, 2)
    bnn.save(net, tmp_path / "net")
    with pytest.raises(ValueError, match=r"in the order \['a', 'b'\], here it is \['b', 'a'\]"):
        bnn.load_(other, tmp_path / "net")


def test_frozen_weights_freeze_their_posterior(tmp_path):
    net, fresh = plain(), plain()
    bnn.bayesianize_(net, "inducing", **SIZES)
    bnn.save(net, tmp_path / "net")
    fresh[0].requires_grad_(False)
    bnn.load_(fresh, tmp_path / "net")
    assert not any(p.requires_grad for p in fresh[0].parameters())
    assert all(p.requires_grad for p in fresh[3].parameters())


def test_no_svd_on_the_way(tmp_path, monkeypatch):
    net = plain()
    bnn.bayesianize_(net, "inducing", init="weights", **SIZES)
    bnn.save(net, tmp_path / "net")
    monkeypatch.setattr(torch.linalg, "svd", lambda *_, **__: pytest.fail("load_ projected weights it overwrites"))
    bnn.load_(fresh := plain(), tmp_path / "net")
    assert fresh[0].options.init == "weights"


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_save_replaces_an_older_file_and_leaves_nothing_else(tmp_path):
    net = plain()
    bnn.save(net, tmp_path / "net")
    bnn.bayesianize_(net, "ffg")
    round_trip(net, plain(), tmp_path / "net", INPUT)
    assert os.listdir(tmp_path) == ["net"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(os.stat(tmp_path / "net").st_mode) == 0o666 & ~umask


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    bnn.save(nn.Linear(2, 2), tmp_path / "net")
    before = (tmp_path / "net").read_bytes()

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        bnn.save(nn.Linear(3, 3), tmp_path / "net")
    assert os.listdir(tmp_path) == ["net"]
    assert (tmp_path / "net").read_bytes() == before


def test_a_link_stays_a_link(tmp_path):
    bnn.save(nn.Linear(2, 2), tmp_path / "net")
    (tmp_path / "latest").symlink_to(tmp_path / "net")
    bnn.save(nn.Linear(3, 3), tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert safetensors.torch.load_file(tmp_path / "net")["weight"].shape == (3, 3)


def test_save_refuses_a_pipe_and_keeps_permissions(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="expected a regular file to replace, found a pipe"):
        bnn.save(nn.Linear(2, 2), tmp_path / "pipe")
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    with pytest.raises(bnn.FileFormatError, match="expected a regular file"):  # which would wait for a writer
        bnn.load_(nn.Linear(2, 2), tmp_path / "pipe")
    bnn.save(nn.Linear(2, 2), tmp_path / "net")
    os.chmod(tmp_path / "net", 0o600)
    bnn.save(nn.Linear(2, 2), tmp_path / "net")
    assert stat.S_IMODE(os.stat(tmp_path / "net").st_mode) == 0o600


def test_save_names_a_missing_folder_and_a_folder_as_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere; create it first"):
        bnn.save(nn.Linear(2, 2), tmp_path / "nowhere" / "net")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        bnn.save(nn.Linear(2, 2), tmp_path)
    assert os.listdir(tmp_path) == []


class WithExtraState(nn.Linear):
    def get_extra_state(self):
        return {"step": 3}

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (WithExtraState(2, 2), "cannot save '_extra_state': .* it is a dict"),
        (nn.Linear(2, 2, device="meta"), "cannot save 'weight': .* on the meta device"),
        (nn.Linear(2, 2, dtype=torch.complex128), "safetensors has no type torch.complex128"),
    ],
)
def test_save_refuses_what_it_cannot_store(net, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        bnn.save(net, tmp_path / "net")
    assert os.listdir(tmp_path) == []


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_networks_are_refused_both_ways(tmp_path):
    with pytest.raises(ValueError, match="not initialised yet: run a forward pass"):
        bnn.save(nn.LazyLinear(2), tmp_path / "net")
    bnn.save(nn.Linear(2, 2), tmp_path / "net")
    with pytest.raises(ValueError, match="not initialised yet: run a forward pass"):
        bnn.load_(nn.LazyLinear(2), tmp_path / "net")


# ---- files that are refused, with the network left alone -------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    net = plain()
    bnn.bayesianize_(net, "inducing", **SIZES)
    bnn.save(net, tmp_path / "net")
    return tmp_path / "net"


def refused(net: nn.Module, path, error: type[Exception], match: str | None = None) -> None:
    """`load_` raises, and `net` keeps its classes, attributes, tensors, hooks and modes; the error names the file."""
    before = bitwise(net)
    with pytest.raises(error, match=match) as caught:
        bnn.load_(net, path)
    assert bitwise(net) == before
    if isinstance(caught.value, bnn.FileFormatError):
        assert caught.value.path == os.fspath(path)
    if error is not RuntimeError:
        assert os.fspath(path) in str(caught.value)


@pytest.mark.parametrize("kept", [0.0, 4, 8, 100, 0.5, 0.99, -1])
def test_truncated_file(saved, kept):
    data = saved.read_bytes()
    length = int(kept * len(data)) if isinstance(kept, float) else kept
    saved.write_bytes(data[:length])
    refused(plain(), saved, bnn.FileFormatError, "not a safetensors file, or was cut short")


@pytest.mark.parametrize("position", [0, 7, 8, 9, 30])
def test_damaged_header(saved, position):
    data = bytearray(saved.read_bytes())
    data[position] ^= 0xFF
    saved.write_bytes(data)
    refused(plain(), saved, bnn.FileFormatError, "not a safetensors file")


def test_random_bytes_folder_and_missing_file(tmp_path):
    (tmp_path / "noise").write_bytes(torch.randint(0, 256, (4096,), dtype=torch.uint8).numpy().tobytes())
    refused(plain(), tmp_path / "noise", bnn.FileFormatError, "not a safetensors file")
    refused(plain(), tmp_path, IsADirectoryError, "it is a folder")
    refused(plain(), tmp_path / "none", FileNotFoundError, "none: there is no such file")


def test_foreign_files_are_named(tmp_path):
    torch.save(plain().state_dict(), tmp_path / "pickle")
    refused(plain(), tmp_path / "pickle", bnn.FileFormatError, "looks like a file of torch.save")
    safetensors.torch.save_file(plain().state_dict(), tmp_path / "weights")
    refused(plain(), tmp_path / "weights", bnn.FileFormatError, r"plain weights \(.*load_state_dict")


def rewrite(path, **metadata) -> None:
    """Changes the metadata of a file; None takes an entry out."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = {k: v for k, v in (header["__metadata__"] | metadata).items() if v is not None}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_newer_and_nonsense_versions(saved):
    rewrite(saved, format_version="3", bnn_version="9.1")
    refused(plain(), saved, bnn.FileFormatError, r"written by a newer version of bayesianize \(9.1, format 3.*upgrade")
    rewrite(saved, format_version="one")
    refused(plain(), saved, bnn.FileFormatError, "no valid format version, found 'one'")


@pytest.mark.parametrize(
    "record",
    [
        None,
        "{",
        "[]",
        "{}",
        '{"layers": [{"names": ["0"]}], "globals": []}',
        '{"layers": 3, "globals": []}',
    ],
)
def test_damaged_record(saved, record):
    rewrite(saved, conversion=record)
    refused(plain(), saved, bnn.FileFormatError, "its record of the conversion cannot be read")


@pytest.mark.parametrize("aliases", [None, "[]", '{"a": "b"}'])
def test_damaged_aliases(saved, aliases):
    rewrite(saved, aliases=aliases)
    refused(plain(), saved, bnn.FileFormatError, "cannot be read")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "mine"}, "unknown inference 'mine'.*must be defined"),
        ({"type": "Conv9d"}, "on Conv9d is not known here"),
        ({"options": {"inducing_rowz": 3}}, "did you mean 'inducing_rows'"),
        ({"options": {"prior_sd": -1}}, "prior_sd must be"),
    ],
)
def test_family_or_option_unknown_here(saved, change, message):
    with safetensors.safe_open(saved, "pt") as file:
        record = json.loads(file.metadata()["conversion"])
    record["layers"][0] |= change
    rewrite(saved, conversion=json.dumps(record))
    refused(plain(), saved, bnn.FileFormatError, message)


def changed(name: str, module: nn.Module | None) -> nn.Module:
    """The plain network with one module replaced, or taken out."""
    net = plain()
    parent, _, child = name.rpartition(".")
    if module is None:
        del net.get_submodule(parent)._modules[child]
    else:
        setattr(net.get_submodule(parent), child, module)
    return net


class MyLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (changed("3", None), r"'3': expected Linear with weight \(3, 16\) and a bias, found no such module"),
        (changed("3", nn.Linear(16, 5)), r"'3': expected .* found Linear with weight \(5, 16\) and a bias"),
        (
            changed("3", nn.Linear(16, 3, bias=False)),
            r"'3': expected .* found Linear with weight \(3, 16\) and no bias",
        ),
        (changed("3", MyLinear(16, 3)), "'3': expected Linear .* found MyLinear"),
        (changed("1.0", nn.ReLU()), "'1.0': expected Conv2d .* found ReLU without a weight"),
        (changed("1.1", nn.BatchNorm2d(5)), r"'1.1.weight': expected \(5,\), found \(4,\)"),
        (changed("1.2", nn.PReLU()), "'1.2.weight' is missing"),
        (changed("1.1", nn.Identity()), "'1.1.bias' is unexpected"),
        (nn.Sequential(nn.Tanh()), "'0': .*; '1.0': .*; '3': "),
    ],
)
def test_network_of_other_layers(net, message, saved):
    refused(net, saved, ValueError, message)


def test_parametrized_and_weight_sharing_layers(saved):
    refused(changed("3", nn.utils.parametrizations.weight_norm(nn.Linear(16, 3))), saved, ValueError, "'3': expected")
    net = plain()
    net.add_module("reader", nn.Linear(16, 3, bias=False))
    net.reader.weight = net[3].weight
    other = plain()
    other.add_module("reader", nn.Linear(16, 3, bias=False))
    bnn.bayesianize_(other, {other[0]: "ffg", other[3]: "ffg"})
    bnn.save(other, saved)
    refused(net, saved, ValueError, "another module uses the same weight")


def test_only_some_listed_when_many_are_wrong(tmp_path):
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(10)))
    bnn.bayesianize_(net, "ffg")
    bnn.save(net, tmp_path / "net")
    refused(nn.Sequential(), tmp_path / "net", ValueError, "'0': .*'2': .*and 7 more")


def test_bayesian_network_is_refused(saved):
    net = plain()
    bnn.bayesianize_(net, {"3": "ffg"})
    refused(net, saved, ValueError, "expected a plain network, but it is Bayesian already: '3'")


def test_memory_error_of_fcg_leaves_the_network_alone(tmp_path, monkeypatch):
    net = plain()
    bnn.bayesianize_(net, {"0": "ffg", "3": "fcg"})
    bnn.save(net, tmp_path / "net")
    monkeypatch.setattr("bnn.nn.memory.total_memory", lambda device: None if device.type == "meta" else 1000)
    refused(plain(), tmp_path / "net", ValueError, "needs a 51 x 51 covariance")


# ---- every malformed file --------------------------------------------------------------------------------------------

DEEP = "[" * 100_000 + "]" * 100_000
LAYER = {"names": ["3"], "type": "Linear", "weight": [3, 16], "bias": True, "family": "inducing", "options": {}}
GLOBAL = {"network": "", "cat_dim": 0, "options": {"inducing_rows": 2, "inducing_cols": 2}}


def conversions() -> dict[str, str]:
    """Records of a conversion that make no sense, by what is wrong with them."""
    layers = {
        "no names": {"names": []},
        "null names": {"names": None},
        "nested names": {"names": [["3"]]},
        "number as name": {"names": [3]},
        "null weight": {"weight": None},
        "no weight": {"weight": []},
        "float weight": {"weight": [3.0, 16.0]},
        "text weight": {"weight": "316"},
        "bias as number": {"bias": 1},
        "null family": {"family": None},
        "list as family": {"family": ["ffg"]},
        "null type": {"type": None},
        "null options": {"options": None},
        "list of options": {"options": []},
        "rows beyond bounds": {"options": {"inducing_rows": 10**30}},
        "rows of 64 bits": {"options": {"inducing_rows": 2**62}},
        "huge full": {"options": {"inducing_rows": 10**9, "inducing_cols": 10**9, "q_inducing": "full"}},
        "huge ensemble": {"options": {"ensemble_size": 10**18, "q_inducing": "ensemble"}},
        "huge sd": {"options": {"prior_sd": 10**400}},
        "text as size": {"options": {"inducing_rows": "3"}},
        "infinite": {"options": {"prior_sd": float("inf")}},
        "nan": {"options": {"prior_sd": float("nan")}},
        "unknown q": {"options": {"q_inducing": "other"}},
        "one field more": {"extra": 1},
    }
    records = {what: {"layers": [LAYER | change], "globals": []} for what, change in layers.items()}
    globals_ = {
        "text as global": "global",
        "null global": None,
        "empty global": {},
        "null network": GLOBAL | {"network": None},
        "text as cat_dim": GLOBAL | {"cat_dim": "0"},
        "true as cat_dim": GLOBAL | {"cat_dim": True},
        "cat_dim 7": GLOBAL | {"cat_dim": 7},
        "null global options": GLOBAL | {"options": None},
        "no sizes": GLOBAL | {"options": {}},
        "global option unknown": GLOBAL | {"options": {"inducing_rowz": 2}},
        "global sizes beyond bounds": GLOBAL | {"options": {"inducing_rows": 10**30, "inducing_cols": 2}},
    }
    two = [LAYER | {"names": [name], "weight": [4, 4], "options": {"inducing_cols": 2}} for name in "ab"]
    records |= {what: {"layers": two, "globals": [one]} for what, one in globals_.items()}
    records |= {"layers as dict": {"layers": {}, "globals": []}, "no globals": {"layers": []}}
    texts = {what: json.dumps(record) for what, record in records.items()}
    return texts | {
        "deep": DEEP,
        "deep options": json.dumps({"layers": [LAYER], "globals": []}).replace("{}", DEEP),
        "digits": '{"layers": ' + "9" * 5000 + ', "globals": []}',
        "null": "null",
        "not JSON": "layers",
        "empty": "",
    }


@pytest.mark.parametrize("what", list(conversions()))
def test_every_malformed_record_is_a_format_error(what, saved):
    rewrite(saved, conversion=conversions()[what])
    refused(nn.ModuleDict({"a": nn.Linear(3, 4), "b": nn.Linear(3, 4), "3": nn.Linear(15, 3)}), saved, ValueError)
    plain_net = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "3": nn.Linear(16, 3)})
    refused(plain_net, saved, bnn.FileFormatError)


@pytest.mark.parametrize(
    "aliases",
    [DEEP, '{"a": ' + DEEP + "}", '{"a": null}', '{"a": ["3._lamda"]}', '{"3._lamda": "3.z_row"}', "9" * 5000, "null"],
    ids=["deep", "deep-inside", "null", "list", "taken", "digits", "null-all"],
)
def test_every_malformed_alias_is_a_format_error(aliases, saved):
    rewrite(saved, aliases=aliases)
    refused(plain(), saved, bnn.FileFormatError, "cannot be read")


@pytest.mark.parametrize("version", ["9" * 5000, "", "-1", "1.0", "\u0661\u0661", "0x1", " 1"])
def test_every_malformed_version_is_a_format_error(version, saved):
    rewrite(saved, format_version=version)
    refused(plain(), saved, bnn.FileFormatError, "no valid format version|newer version")


def tensor_header(path, name: str, **entries) -> None:
    """Changes the entry of one tensor in the header of a file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header[name] |= entries
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


HEADERS = [
    {"dtype": "I32"},
    {"dtype": "U32"},
    {"dtype": "F77"},
    {"dtype": None},
    {"dtype": "F8_E8M0"},
    {"shape": [10**30]},
    {"shape": [-1]},
    {"shape": None},
    {"data_offsets": [0, 2**63]},
    {"data_offsets": []},
    {"shape": [1] * 5000},
]


@pytest.mark.parametrize("entries", HEADERS, ids=lambda entries: f"{entries}"[:30])
@pytest.mark.parametrize("with_checksum", [True, False])
def test_every_malformed_tensor_header_is_a_format_error(entries, with_checksum, saved):
    if not with_checksum:
        rewrite(saved, checksum=None)
    tensor_header(saved, "3.z_row", **entries)
    refused(plain(), saved, bnn.FileFormatError)


def test_every_truncation_and_flipped_byte_of_small_files_is_a_format_error(tmp_path):
    net = nn.Linear(2, 1)
    bnn.bayesianize_(net, "inducing", inducing_rows=1, inducing_cols=1)
    bnn.save(net, tmp_path / "net")
    data = (tmp_path / "net").read_bytes()
    generator = torch.Generator().manual_seed(0)
    target = nn.Linear(2, 1)
    (length,) = struct.unpack("<Q", data[:8])
    for stop in range(0, len(data), 17):
        (tmp_path / "net").write_bytes(data[:stop])
        refused(target, tmp_path / "net", bnn.FileFormatError)
    harmless = [data.index(b"bnn_version"), data.index(b"format_version")]
    for position in range(0, len(data), 3):
        if harmless[0] <= position < harmless[0] + 30 or position in range(8 + length - 8, 8 + length):
            continue  # who wrote it, and the spaces behind the header
        flipped = bytearray(data)
        flipped[position] ^= int(torch.randint(1, 256, (), generator=generator))
        (tmp_path / "net").write_bytes(flipped)
        message, fresh = "", nn.Linear(2, 1)
        try:
            bnn.load_(fresh, tmp_path / "net")
            assert_same(fresh, net, torch.ones(1, 2))  # JSON of the same meaning
        except ValueError as error:
            message = str(error)
        assert isinstance(fresh, BayesianLayer) or str(tmp_path / "net") in message


@pytest.mark.parametrize("position", [1, 5, 99, 400, -1])
def test_a_flipped_byte_of_the_data_is_found(position, saved):
    data = bytearray(saved.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    data[8 + length + position if position >= 0 else position] ^= 1
    saved.write_bytes(data)
    refused(plain(), saved, bnn.FileFormatError, "damaged: its checksum does not fit")


def test_an_option_changed_in_the_file_is_found(saved):
    with safetensors.safe_open(saved, "pt") as file:
        record = file.metadata()["conversion"]
    rewrite(saved, conversion=record.replace('"prior_sd": 1.0', '"prior_sd": 3.0'))
    refused(plain(), saved, bnn.FileFormatError, "its checksum does not fit")


def test_a_temperature_is_under_the_checksum_and_files_without_one_are_as_they_were(tmp_path):
    net, path = plain(), tmp_path / "net"
    bnn.bayesianize_(net, "ffg")
    bnn.save(net, path)
    before = safetensors.safe_open(path, "pt").metadata()
    assert "temperature" not in before
    set_temperature_(net, 1.25)
    bnn.save(net, path)
    stored = safetensors.safe_open(path, "pt").metadata()
    assert stored["temperature"] == "1.25"
    assert {k: v for k, v in stored.items() if k not in ("temperature", "checksum")}.items() <= before.items()
    bnn.load_(fresh := plain(), path)
    assert temperature_of(fresh) == 1.25
    for changed in ("1.5", None):
        bnn.save(net, path)
        rewrite(path, temperature=changed)
        refused(plain(), path, bnn.FileFormatError, "its checksum does not fit")
    for nonsense in ("hot", "0", "-1.0", "NaN", "true", "[1.5]"):
        rewrite(path, temperature=nonsense, checksum=None)
        refused(plain(), path, bnn.FileFormatError, "cannot be read")
    rewrite(path, **before, temperature=None)  # what was written before there were temperatures
    bnn.load_(fresh := plain(), path)
    assert temperature_of(fresh) == 1


def test_files_of_earlier_versions_have_no_checksum_and_load(saved):
    rewrite(saved, checksum=None)
    bnn.load_(fresh := plain(), saved)
    assert isinstance(fresh[3], BayesianLayer)


def stored_as(path, name: str, dtype: torch.dtype) -> None:
    """Rewrites a file with one tensor of another type, and a checksum that fits."""
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = safetensors.torch.load_file(path)
    tensors[name] = tensors[name].to(dtype)
    metadata["checksum"] = checksum(metadata, tensors)
    safetensors.torch.save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16], ids=str
)
@pytest.mark.parametrize(("name", "error"), [("3.z_row", bnn.FileFormatError), ("1.1.running_mean", ValueError)])
def test_tensors_of_another_kind_are_refused(name, error, dtype, saved):
    stored_as(saved, name, dtype)
    refused(plain(), saved, error, rf"'{name}': expected torch.float32 .* found {dtype}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_no_floats_where_integers_are_counted(dtype, saved):
    stored_as(saved, "1.1.num_batches_tracked", dtype)
    refused(plain(), saved, ValueError, "'1.1.num_batches_tracked': expected torch.int64 or what casts to it")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_of_the_same_kind_are_cast(dtype, saved):
    stored_as(saved, "3.z_row", dtype)
    bnn.load_(fresh := plain(), saved)
    assert fresh[3].z_row.dtype == torch.float32


def test_nan_and_infinity_come_back_as_they_were_saved(tmp_path):
    net = plain()
    bnn.bayesianize_(net, "ffg")
    with torch.no_grad():
        net[3].weight_mean[0, :2] = torch.tensor([float("nan"), float("-inf")])
    bnn.save(net, tmp_path / "net")
    bnn.load_(fresh := plain(), tmp_path / "net")
    assert fresh[3].weight_mean[0].isnan()[0]
    assert fresh[3].weight_mean[0, 1] == float("-inf")


def test_weights_at_hand_do_not_matter(saved):
    fresh = plain()
    with torch.no_grad():
        fresh[3].weight.fill_(float("nan"))  # as torch.nn.utils.skip_init may leave it
    bnn.load_(fresh, saved)
    assert fresh[3].weight.isfinite().all()


# ---- whatever raises, the network stays as it was --------------------------------------------------------------------


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("error", [RuntimeError, KeyError, Interrupted])
@pytest.mark.parametrize("when", ["pre", "post", "extra"])
@pytest.mark.parametrize("place", ["", "0", "1.1", "3"])
def test_a_hook_that_raises_leaves_the_network_as_it_was(place, when, error, tmp_path):
    net = trained(plain())
    bnn.bayesianize_(
        net, {"0": "ffg", "1.0": {"inference": "inducing", **INDUCING}, "3": {"inference": "inducing", **INDUCING}}
    )
    bnn.save(net, tmp_path / "net")
    fresh = plain().eval()
    fresh[1].train()
    fresh[0].weight.requires_grad_(False)
    calls = []
    handle = fresh.register_forward_hook(lambda *_: calls.append(1))

    def fail(*_):
        raise error("hook")

    module = fresh.get_submodule(place)
    if when == "pre":
        module.register_load_state_dict_pre_hook(fail)
    elif when == "post":
        module.register_load_state_dict_post_hook(fail)
    else:
        fresh.load_state_dict = fail
    before = bitwise(fresh)
    with pytest.raises(error, match="hook"):
        bnn.load_(fresh, tmp_path / "net")
    assert bitwise(fresh) == before
    fresh.eval()(INPUT)
    handle.remove()  # its handle still finds it
    fresh(INPUT)
    assert calls == [1]


def test_a_failed_load_of_global_weights_leaves_the_network_as_it_was(tmp_path):
    net = plain()
    bnn.bayesianize_(net, "inducing", **INDUCING)
    bnn.register_global_inducing_weights_(net, 5, 2)
    bnn.save(net, tmp_path / "net")
    fresh = plain()
    fresh[3].register_load_state_dict_post_hook(lambda *_: {}["hook"])
    before = bitwise(fresh)
    with pytest.raises(KeyError, match="hook"):
        bnn.load_(fresh, tmp_path / "net")
    assert bitwise(fresh) == before


def test_a_failed_load_legacy_leaves_the_network_as_it_was():
    net = plain()
    bnn.bayesianize_(net, "inducing", **SIZES)
    net[3].register_load_state_dict_post_hook(lambda *_: {}["hook"])
    before = bitwise(net)
    with pytest.raises(KeyError, match="hook"):
        bnn.load_legacy_(net, {name: value + 1 for name, value in net.state_dict().items()})
    assert bitwise(net) == before


@pytest.mark.parametrize("given", [[], None, "net.pt", {"0.weight": 3}, {3: torch.ones(2)}])
def test_load_legacy_says_what_it_expects(given):
    net = plain()
    bnn.bayesianize_(net, "inducing", **SIZES)
    with pytest.raises(TypeError, match="expected a state dict"):
        bnn.load_legacy_(net, given)
    with pytest.raises(TypeError, match='checkpoint\\["state_dict"\\]'):
        bnn.load_legacy_(net, {"epoch": 3, "state_dict": net.state_dict()})


@pytest.mark.parametrize("name", ["z_row", "_d_col"])
def test_load_legacy_refuses_nan(name):
    net = plain()
    bnn.bayesianize_(net, "inducing", **SIZES)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    state[f"3.{name}"].view(-1)[0] = float("nan")
    before = bitwise(net)
    with pytest.raises(ValueError, match=rf"'3\.{name}' holds NaN or inf"):
        bnn.load_legacy_(net, state)
    assert bitwise(net) == before


def test_the_error_keeps_its_field_in_another_process(saved):
    rewrite(saved, format_version="9")
    with pytest.raises(bnn.FileFormatError) as caught:
        bnn.load_(plain(), saved)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert copied.path == str(saved)
    assert str(copied) == str(caught.value)


# ---- the skeleton ----------------------------------------------------------------------------------------------------


def test_skeleton_has_the_shapes_and_ties_without_the_memory():
    net = tied().double()
    net.register_buffer("scratch", torch.zeros(3), persistent=False)
    net[3].requires_grad_(False)
    net.not_copyable = (x for x in ())  # a generator: deepcopy would fail
    twin = skeleton(net)
    assert {k: (v.shape, v.dtype) for k, v in twin.state_dict().items()} == {
        k: (v.shape, v.dtype) for k, v in net.state_dict().items()
    }
    assert all(t.is_meta for t in [*twin.parameters(), *twin.buffers()])
    assert [p.requires_grad for p in twin.parameters()] == [p.requires_grad for p in net.parameters()]
    assert twin[0] is twin[2]
    assert twin[0] is not net[0]


def test_networks_that_cannot_be_copied_load(tmp_path):
    net, fresh = plain(), plain()
    bnn.bayesianize_(net, "ffg")
    fresh.stream = (x for x in ())
    fresh[2].last_output = torch.ones(2, requires_grad=True) * 2  # not a leaf
    bnn.save(net, tmp_path / "net")
    bnn.load_(fresh, tmp_path / "net")
    assert_same(fresh, net, INPUT)
