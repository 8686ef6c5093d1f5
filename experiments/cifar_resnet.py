"""The ResNets of 6 n + 2 layers for CIFAR-10 (He et al., 2016)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions and a skip; where it halves the image, the skip is strided and padded with zero channels."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.stride, self.more = stride, c_out - c_in

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        skip = x[:, :, :: self.stride, :: self.stride]
        return F.relu(h + F.pad(skip, (0, 0, 0, 0, self.more // 2, self.more // 2)))


class CifarResNet(nn.Module):
    """16, 32 and 64 channels in stages of n blocks: images (N, 3, 32, 32) to logits (N, 10)."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = _stage(16, 16, 1, n), _stage(16, 32, 2, n), _stage(32, 64, 2, n)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def _stage(c_in: int, c_out: int, stride: int, n: int) -> nn.Sequential:
    return nn.Sequential(*(Block(c_out if i else c_in, c_out, 1 if i else stride) for i in range(n)))
