"""Residual networks (He et al., 2016) under the module names of torchvision, so that its checkpoints load.

The order in which modules are assigned is part of that: layers may be named by their index among `named_modules()`.
"""

from __future__ import annotations

from torch import Tensor, nn


def _conv(d_in: int, d_out: int, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps height and width but for the stride; batch normalisation follows, hence no bias."""
    return nn.Conv2d(d_in, d_out, kernel_size, stride, padding=kernel_size // 2, bias=False)


def _shortcut(d_in: int, d_out: int, stride: int) -> nn.Sequential | None:
    """What brings the input of a block to the shape of its output; None if it has that shape already."""
    if stride == 1 and d_in == d_out:
        return None
    return nn.Sequential(_conv(d_in, d_out, 1, stride), nn.BatchNorm2d(d_out))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (batch, d_in, h, w) to (batch, width, h / stride, w / stride)."""

    expansion = 1

    def __init__(self, d_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(d_in, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(d_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        shortcut = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(residual + shortcut)
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride), 1x1: (batch, d_in, h, w) to (batch, 4 width, h / stride, w / stride)."""

    expansion = 4

    def __init__(self, d_in: int, width: int, stride: int) -> None:
        super().__init__()
        d_out = width * self.expansion
        self.conv1 = _conv(d_in, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, d_out, 1)
        self.bn3 = nn.BatchNorm2d(d_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(d_in, d_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.relu(self.bn1(self.conv1(x)))
        residual = self.relu(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        shortcut = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(residual + shortcut)
        return out


# depth: kind of block, blocks in layer1 .. layer4
DEPTHS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}


class ResNet(nn.Module):
    """The residual network of the given depth: (batch, in_channels, height, width) to (batch, out_features).

    Args:
        depth: 18, 34, 50, 101 or 152.
        out_features: width of the last layer.
        in_channels: channels of the images.
        kernel_size: of the first convolution; None for the 7 of ImageNet, 3 is usual for small images.
        stride: of the first convolution; None for 1 if `kernel_size` is given, else 2.
        padding: of the first convolution; None for half its kernel size.
        remove_maxpool: leave out the pooling after the first convolution, usual for small images.

    >>> import torch
    >>> ResNet(18, out_features=10, kernel_size=3, remove_maxpool=True)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int,
        out_features: int = 1000,
        in_channels: int = 3,
        kernel_size: int | None = None,
        stride: int | None = None,
        padding: int | None = None,
        remove_maxpool: bool = False,
    ) -> None:
        if depth not in DEPTHS:
            raise ValueError(f"unknown depth {depth!r}; expected one of {list(DEPTHS)}")
        block, repeats = DEPTHS[depth]
        size = 7 if kernel_size is None else kernel_size
        if stride is None:
            stride = 2 if kernel_size is None else 1
        if padding is None:
            padding = size // 2

        def stage(d_in: int, width: int, repeat: int, stride: int) -> nn.Sequential:
            first = block(d_in, width, stride)
            return nn.Sequential(first, *(block(width * block.expansion, width, 1) for _ in range(repeat - 1)))

        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, size, stride, padding, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool: nn.Module = nn.Identity() if remove_maxpool else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = stage(64, 64, repeats[0], stride=1)
        self.layer2 = stage(64 * block.expansion, 128, repeats[1], stride=2)
        self.layer3 = stage(128 * block.expansion, 256, repeats[2], stride=2)
        self.layer4 = stage(256 * block.expansion, 512, repeats[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, out_features)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Starts all convolutions anew, in place; batch normalisation starts at scale 1 and shift 0 on its own."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits
