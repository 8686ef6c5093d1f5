"""The data sets of experiments, found through BNN_DATA: inputs to train, to validate and to test on never overlap."""

from __future__ import annotations

import os
import pathlib

import bnn
from bnn.data import Data
from bnn.data.images import ImageScaling

VALIDATION = 2000  # the last so many images of the training file; nothing trains on them


def data_file(name: str) -> pathlib.Path:
    """A file in the folders of BNN_DATA."""
    for folder in os.environ.get("BNN_DATA", "").split(os.pathsep):
        if folder and (path := pathlib.Path(folder) / name).exists():
            return path
    raise FileNotFoundError(f"{name} is in no folder of BNN_DATA ({os.environ.get('BNN_DATA') or 'not set'})")


def images(name: str, train: int | None = None, scaling: ImageScaling | None = None) -> Data:
    """An image set, its last 2,000 training images as validation, of the others the first `train`."""
    data = bnn.data.load(name)
    scaling = scaling or data.preparation
    last = len(data.train) - VALIDATION
    parts = {
        "train": data.train.subset(slice(0, last if train is None else train)),
        "validation": data.train.subset(slice(last, None)),
        "test": data.test,
    }
    parts = {part: bnn.data.Part(stored.x, stored.y, scaling) for part, stored in parts.items()}
    return Data(name, "classification", **parts, classes=data.classes, preparation=scaling, augment=data.augment)


def imagenet_scaled() -> Data:
    """CIFAR-10 scaled as the weights of ResNet-20 and ResNet-56 expect it."""
    return images("cifar10", scaling=ImageScaling((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
