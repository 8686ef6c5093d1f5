"""The plain networks: names, shapes and counts of torchvision, and the child names that checkpoints carry."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnn.nn.nets import CNN, FCN, ResNet, make_network

Shapes = dict[str, tuple[int, ...]]

# depth: convolutions per block, blocks per layer, parameters with 1000 classes as torchvision documents them
RESNETS = {
    18: (2, (2, 2, 2, 2), 11_689_512),
    34: (2, (3, 4, 6, 3), 21_797_672),
    50: (3, (3, 4, 6, 3), 25_557_032),
    101: (3, (3, 4, 23, 3), 44_549_160),
    152: (3, (3, 8, 36, 3), 60_192_808),
}
NAMES = ["fcn", "cnn", *(f"resnet{depth}" for depth in RESNETS)]


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def children(net: nn.Module) -> list[str]:
    return [name for name, _ in net.named_children()]


def bn_shapes(name: str, width: int) -> Shapes:
    vectors = ["weight", "bias", "running_mean", "running_var"]
    return {**{f"{name}.{v}": (width,) for v in vectors}, f"{name}.num_batches_tracked": ()}


def resnet_shapes(depth: int) -> Shapes:
    """The state dict of the standard network with 1000 classes, from the naming rule, in order."""
    convs, repeats, _ = RESNETS[depth]
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7), **bn_shapes("bn1", 64)}
    d_in = 64
    for layer, repeat in enumerate(repeats):
        width = 64 * 2**layer
        plan = [(width, 3), (width, 3)] if convs == 2 else [(width, 1), (width, 3), (4 * width, 1)]
        for b in range(repeat):
            block, d_block = f"layer{layer + 1}.{b}", d_in
            for i, (d_out, k) in enumerate(plan, start=1):
                shapes[f"{block}.conv{i}.weight"] = (d_out, d_in, k, k)
                shapes.update(bn_shapes(f"{block}.bn{i}", d_out))
                d_in = d_out
            if b == 0 and d_block != d_in:  # every layer that halves the image also changes the channels
                shapes[f"{block}.downsample.0.weight"] = (d_in, d_block, 1, 1)
                shapes.update(bn_shapes(f"{block}.downsample.1", d_in))
    return {**shapes, "fc.weight": (1000, d_in), "fc.bias": (1000,)}


def random_state(shapes: Shapes) -> dict[str, Tensor]:
    """A state that tells every entry apart: random statistics, shifts and scales, weights of a tame size."""
    state = {}
    for key, shape in shapes.items():
        if key.endswith("num_batches_tracked"):
            state[key] = torch.tensor(7)
        elif len(shape) == 1:
            state[key] = 0.5 + torch.rand(shape)
        else:
            state[key] = torch.randn(shape) / math.sqrt(math.prod(shape[1:]))
    return state


def resnet_forward(state: dict[str, Tensor], depth: int, x: Tensor) -> Tensor:
    """The network in evaluation mode, from its state dict and torch.nn.functional."""
    convs, repeats, _ = RESNETS[depth]

    def conv_bn(x: Tensor, conv: str, bn: str, stride: int, padding: int) -> Tensor:
        x = F.conv2d(x, state[f"{conv}.weight"], stride=stride, padding=padding)
        mean, var, scale, shift = (state[f"{bn}.{s}"] for s in ["running_mean", "running_var", "weight", "bias"])
        return F.batch_norm(x, mean, var, scale, shift)

    x = F.max_pool2d(conv_bn(x, "conv1", "bn1", 2, 3).relu(), 3, 2, 1)
    for layer, repeat in enumerate(repeats, start=1):
        for b in range(repeat):
            block, shortcut = f"layer{layer}.{b}", x
            stride = 2 if layer > 1 and b == 0 else 1
            if f"{block}.downsample.0.weight" in state:
                shortcut = conv_bn(x, f"{block}.downsample.0", f"{block}.downsample.1", stride, 0)
            for i in range(1, convs + 1):
                padding = 0 if convs == 3 and i != 2 else 1
                x = conv_bn(x, f"{block}.conv{i}", f"{block}.bn{i}", stride if i == convs - 1 else 1, padding)
                x = (x if i < convs else x + shortcut).relu()
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("depth", RESNETS)
def test_resnet_parameter_count(depth: int) -> None:
    with torch.device("meta"):
        assert count(make_network(f"resnet{depth}")) == RESNETS[depth][2]


def test_resnet50_for_small_images_parameter_count() -> None:
    with torch.device("meta"):
        net = make_network("resnet50", out_features=10, kernel_size=3, remove_maxpool=True)
    assert count(net) == 23_520_842


@pytest.mark.parametrize("depth", [18, 50])
def test_resnet_state_dict_names_and_shapes(depth: int) -> None:
    with torch.device("meta"):
        state = make_network(f"resnet{depth}").state_dict()
    found = {key: tuple(value.shape) for key, value in state.items()}
    assert list(found.items()) == list(resnet_shapes(depth).items())  # the order too


@pytest.mark.parametrize(
    ("depth", "block"),
    [
        (18, ["conv1", "bn1", "relu", "conv2", "bn2", "downsample"]),
        (50, ["conv1", "bn1", "conv2", "bn2", "conv3", "bn3", "relu", "downsample"]),
    ],
)
def test_resnet_module_names(depth: int, block: list[str]) -> None:
    with torch.device("meta"):
        net = ResNet(depth)
    stem, layers = ["conv1", "bn1", "relu", "maxpool"], ["layer1", "layer2", "layer3", "layer4"]
    assert children(net) == [*stem, *layers, "avgpool", "fc"]
    assert children(net.layer2[0]) == block
    assert children(net.layer2[1]) == block[:-1]


@pytest.mark.parametrize("depth", [18, 50])
def test_resnet_loads_a_state_and_computes_its_function(depth: int) -> None:
    state = random_state(resnet_shapes(depth))
    net = make_network(f"resnet{depth}").eval()
    net.load_state_dict(state, strict=True)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = resnet_forward(state, depth, x)
        torch.testing.assert_close(net(x), expected, rtol=1e-3, atol=1e-4 * expected.std().item())


def test_resnet_initialisation() -> None:
    net = make_network("resnet18", out_features=10)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            out, _, *kernel = module.weight.shape
            sd = math.sqrt(2 / (out * math.prod(kernel)))
            # the sd of n normal draws is off by sd / sqrt(2 n); five of these
            assert module.weight.std().item() == pytest.approx(sd, rel=5 / math.sqrt(2 * module.weight.numel()))
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


@pytest.mark.parametrize(
    ("options", "stem"),
    [
        ({}, (3, 7, 2, 3)),
        ({"kernel_size": 3}, (3, 3, 1, 1)),
        ({"kernel_size": 7}, (3, 7, 1, 3)),
        ({"kernel_size": 5, "in_channels": 1, "stride": 3, "padding": 0}, (1, 5, 3, 0)),
        ({"stride": 1}, (3, 7, 1, 3)),
    ],
)
def test_resnet_stem(options: dict[str, int], stem: tuple[int, int, int, int]) -> None:
    with torch.device("meta"):
        net = ResNet(18, **options)
    conv = net.conv1
    assert (conv.in_channels, conv.kernel_size[0], conv.stride[0], conv.padding[0]) == stem
    assert conv.bias is None
    assert isinstance(net.maxpool, nn.MaxPool2d)


def test_resnet_remove_maxpool() -> None:
    with torch.device("meta"):
        assert type(ResNet(18, remove_maxpool=True).maxpool) is nn.Identity


@pytest.mark.parametrize("depth", RESNETS)
def test_resnet_output_shape(depth: int) -> None:
    with torch.device("meta"):
        net = make_network(f"resnet{depth}", out_features=7, in_channels=2)
        assert net(torch.empty(4, 2, 40, 48)).shape == (4, 7)


@pytest.mark.parametrize("depth", [18, 50])
def test_resnet_for_small_images_halves_them_three_times(depth: int) -> None:
    with torch.device("meta"):
        net = ResNet(depth, kernel_size=3, remove_maxpool=True)
        x = net.maxpool(net.conv1(torch.empty(2, 3, 32, 32)))
        sides = []
        for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
            x = layer(x)
            sides.append(x.shape[-1])
    assert sides == [32, 16, 8, 4]


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("fcn", {"sizes": [5, 4, 3], "bn": True}, (6, 5)),
        (
            "cnn",
            {"channels": [2, 4, 4], "lin_sizes": [16, 8, 3], "padding": 1, "conv_bn": True, "linear_bn": True},
            (6, 2, 8, 8),
        ),
        ("resnet18", {"out_features": 3, "kernel_size": 3}, (6, 3, 16, 16)),
        ("resnet50", {"out_features": 3, "kernel_size": 3}, (6, 3, 16, 16)),
    ],
)
def test_gradients_reach_the_input_and_every_parameter(name: str, options: dict, shape: tuple[int, ...]) -> None:
    net = make_network(name, **options)
    x = torch.randn(shape, requires_grad=True)
    y = net(x)
    assert y.shape == (6, 3)
    (y * torch.randn_like(y)).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    for key, p in net.named_parameters():
        assert p.grad is not None, key
        assert p.grad.abs().sum() > 0, key


def test_fcn_children() -> None:
    assert children(FCN([3, 4, 5, 6])) == ["Linear0", "Nonlinarity0", "Linear1", "Nonlinarity1", "Linear2"]
    assert children(FCN([3, 4, 5], bn=True)) == ["Linear0", "BN0", "Nonlinarity0", "Linear1", "BN1"]
    assert children(FCN([3, 4])) == ["Linear0"]


@pytest.mark.parametrize(
    ("options", "bias"),
    [({}, True), ({"bn": True}, False), ({"bias": False}, False), ({"bn": True, "bias": True}, True)],
)
def test_fcn_bias(options: dict[str, bool], bias: bool) -> None:
    net = FCN([3, 4, 5], **options)
    assert [(net.Linear0.bias is not None), (net.Linear1.bias is not None)] == [bias, bias]


def test_fcn_computes_its_function() -> None:
    net = FCN([3, 4, 2], "Tanh")
    x = torch.randn(6, 3)
    torch.testing.assert_close(net(x), net.Linear1(torch.tanh(net.Linear0(x))))


@pytest.mark.parametrize("nonlinearity", ["Softplus", nn.Softplus])
def test_nonlinearity_is_a_name_or_a_class(nonlinearity: str | type[nn.Module]) -> None:
    assert type(FCN([3, 4, 2], nonlinearity).Nonlinarity0) is nn.Softplus
    net = CNN([1, 2], [2, 3, 4], nonlinearity)
    assert type(net.ConvNonlinearity0) is nn.Softplus
    assert type(net.fc.Nonlinarity0) is nn.Softplus


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ({}, "Conv0 ConvNonlinearity0 Maxpool0 Conv1 ConvNonlinearity1 Maxpool1 Conv2 ConvNonlinearity2 Maxpool2"),
        ({"maxpool_freq": 2}, "Conv0 ConvNonlinearity0 Conv1 ConvNonlinearity1 Maxpool0 Conv2 ConvNonlinearity2"),
        ({"maxpool_freq": 3}, "Conv0 ConvNonlinearity0 Conv1 ConvNonlinearity1 Conv2 ConvNonlinearity2 Maxpool0"),
        ({"maxpool_freq": 0}, "Conv0 ConvNonlinearity0 Conv1 ConvNonlinearity1 Conv2 ConvNonlinearity2"),
        (
            {"maxpool_freq": None, "conv_bn": True},
            "Conv0 ConvBN0 ConvNonlinearity0 Conv1 ConvBN1 ConvNonlinearity1 Conv2 ConvBN2 ConvNonlinearity2",
        ),
    ],
)
def test_cnn_children(options: dict, body: str) -> None:
    net = CNN([3, 4, 5, 6], [6, 2], **options)
    assert children(net) == [*body.split(), "Flatten", "fc"]


def test_cnn_layers() -> None:
    net = CNN([3, 4, 5], [20, 6, 2], maxpool_freq=2, conv_bn=True, linear_bn=True, kernel_size=5, padding=2, stride=2)
    for conv, shape in [(net.Conv0, (4, 3, 5, 5)), (net.Conv1, (5, 4, 5, 5))]:
        assert (conv.weight.shape, conv.padding, conv.stride, conv.bias) == (shape, (2, 2), (2, 2), None)
    assert net.Maxpool0.kernel_size == 2
    assert type(net.fc) is FCN
    assert children(net.fc) == ["Linear0", "BN0", "Nonlinarity0", "Linear1", "BN1"]
    assert net(torch.randn(7, 3, 16, 16)).shape == (7, 2)
    assert CNN([3, 4], [4, 2]).Conv0.bias is not None
    assert CNN([3, 4], [4, 2], conv_bn=True, bias=True).Conv0.bias is not None


def test_every_layer_has_the_dtype_asked_for() -> None:
    options = {"channels": [1, 2], "lin_sizes": [8, 3], "conv_bn": True, "linear_bn": True, "dtype": torch.float64}
    net = make_network("cnn", **options)
    assert {p.dtype for p in net.parameters()} == {torch.float64}


def test_a_slice_is_a_sequential_with_the_same_layers() -> None:
    net = CNN([1, 2], [8, 3])
    features = net[:-1]
    assert type(features) is nn.Sequential
    assert children(features) == children(net)[:-1]
    assert net[-1] is net.fc
    x = torch.randn(2, 1, 6, 6)
    torch.testing.assert_close(net.fc(features(x)), net(x))


def test_deepcopy() -> None:
    net = FCN([3, 4, 2], bn=True).eval()
    x = torch.randn(5, 3)
    torch.testing.assert_close(copy.deepcopy(net)(x), net(x))


def test_names_in_any_case() -> None:
    with torch.device("meta"):
        assert type(make_network("FCN", sizes=[3, 2])) is FCN
        assert type(make_network("Cnn", channels=[1, 2], lin_sizes=[2, 2])) is CNN
        assert type(make_network("ResNet18")) is ResNet


def test_unknown_network_lists_the_known() -> None:
    with pytest.raises(ValueError, match="unknown network 'resnet19'; expected one of .*" + ".*".join(NAMES)):
        make_network("resnet19")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("fcn", ["sizes", "nonlinearity", "bn", "bias"]),
        ("cnn", ["channels", "lin_sizes", "maxpool_freq", "conv_bn", "linear_bn", "kernel_size", "stride", "padding"]),
        ("resnet34", ["out_features", "in_channels", "kernel_size", "stride", "padding", "remove_maxpool"]),
    ],
)
def test_unknown_option_lists_the_known(name: str, known: list[str]) -> None:
    pattern = rf"unknown options \['num_classes'\] for network '{name}'; expected some of .*" + ".*".join(known)
    with pytest.raises(TypeError, match=pattern):
        make_network(name, num_classes=10)


def test_depth_belongs_to_the_name() -> None:
    with pytest.raises(TypeError, match=r"unknown options \['depth'\]"):
        make_network("resnet18", depth=50)


def test_unknown_depth() -> None:
    with pytest.raises(ValueError, match=r"unknown depth 20; expected one of \[18, 34, 50, 101, 152\]"):
        ResNet(20)


@pytest.mark.parametrize("sizes", [[], [3]])
def test_too_few_sizes(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"sizes needs at least two entries.*got"):
        FCN(sizes)
    with pytest.raises(ValueError, match=r"channels needs at least two entries.*got"):
        CNN(sizes, [4, 2])
    with pytest.raises(ValueError, match=r"lin_sizes needs at least two entries.*got"):
        CNN([3, 4], sizes)


@pytest.mark.parametrize(("name", "hint"), [("Relu", "did you mean .*'ReLU'"), ("functional", "torch.nn")])
def test_unknown_nonlinearity(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"unknown nonlinearity '{name}'; expected .*{hint}"):
        FCN([3, 2], name)


def test_a_nonlinearity_that_is_a_module() -> None:
    with pytest.raises(TypeError, match=r"must be a class or its name.*got ReLU\(\)"):
        FCN([3, 2], nn.ReLU())


def test_negative_maxpool_freq() -> None:
    with pytest.raises(ValueError, match=r"maxpool_freq must be positive.*got -1"):
        CNN([3, 4], [4, 2], maxpool_freq=-1)
