"""Convolutional networks with a fully connected head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from .chain import Chain, Nonlinearity, check_sizes, nonlinearity_class, placement
from .fcn import FCN


class CNN(Chain):
    """Convolutions, then a fully connected head: (batch, channels[0], height, width) to (batch, lin_sizes[-1]).

    The children are `Conv{i}`, `ConvBN{i}` if `conv_bn`, `ConvNonlinearity{i}`, after every `maxpool_freq`-th of these
    a `Maxpool{i // maxpool_freq}` that halves height and width, then `Flatten` and the head `fc`.

    Args:
        channels: channels from the input to the last convolution, at least two entries.
        lin_sizes: widths of the head; the first is channels * height * width where the convolutions end.
        nonlinearity: name of a class in `torch.nn`, or a class; used by the head too.
        maxpool_freq: convolutions per max-pooling; 0 or None for no pooling.
        conv_bn: batch normalisation after every convolution.
        linear_bn: batch normalisation after every layer of the head.
        kernel_size: of every convolution.
        **conv: further arguments of `nn.Conv2d`; `bias` defaults to `not conv_bn`, which has a shift of its own.

    >>> [name for name, _ in CNN([1, 8, 16], [16 * 7 * 7, 10], padding=1).named_children()]
    ['Conv0', 'ConvNonlinearity0', 'Maxpool0', 'Conv1', 'ConvNonlinearity1', 'Maxpool1', 'Flatten', 'fc']
    """

    def __init__(
        self,
        channels: Sequence[int],
        lin_sizes: Sequence[int],
        nonlinearity: Nonlinearity = "ReLU",
        maxpool_freq: int | None = 1,
        conv_bn: bool = False,
        linear_bn: bool = False,
        kernel_size: int | tuple[int, int] = 3,
        **conv: Any,
    ) -> None:
        check_sizes("channels", channels, len(channels))
        check_sizes("lin_sizes", lin_sizes, len(lin_sizes))
        if maxpool_freq is not None and maxpool_freq < 0:
            raise ValueError(f"maxpool_freq must be positive, or 0 or None for no pooling; got {maxpool_freq}")
        activation = nonlinearity_class(nonlinearity)
        conv = {"bias": not conv_bn, **conv}
        super().__init__()
        for i in range(len(channels) - 1):
            self.add_module(f"Conv{i}", nn.Conv2d(channels[i], channels[i + 1], kernel_size, **conv))
            if conv_bn:
                self.add_module(f"ConvBN{i}", nn.BatchNorm2d(channels[i + 1], **placement(conv)))
            self.add_module(f"ConvNonlinearity{i}", activation())
            if maxpool_freq and (i + 1) % maxpool_freq == 0:
                self.add_module(f"Maxpool{i // maxpool_freq}", nn.MaxPool2d(2))
        self.add_module("Flatten", nn.Flatten())
        self.add_module("fc", FCN(lin_sizes, nonlinearity, linear_bn, **placement(conv)))
