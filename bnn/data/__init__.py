"""Data: named sets, tables, folders of images and arrays, corruptions and augmentation."""

from bnn.data.arrays import arrays
from bnn.data.augment import Augment
from bnn.data.corruptions import CORRUPTIONS, corrupt
from bnn.data.csv_file import csv
from bnn.data.dataset import Data, Part, Preparation, TargetScale
from bnn.data.folder import folder
from bnn.data.named import load, load_part, names, ood
from bnn.data.preparation import preparation

__all__ = [
    "CORRUPTIONS",
    "Augment",
    "Data",
    "Part",
    "Preparation",
    "TargetScale",
    "arrays",
    "corrupt",
    "csv",
    "folder",
    "load",
    "load_part",
    "names",
    "ood",
    "preparation",
]
