"""Plain networks to start from: fully connected, convolutional, residual."""

from .cnn import CNN
from .factory import make_network
from .fcn import FCN
from .resnet import ResNet

__all__ = ["CNN", "FCN", "ResNet", "make_network"]
