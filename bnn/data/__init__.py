"""Data: named sets, tables, folders of images and arrays, corruptions and augmentation."""

from bnn.data.array_sets.arrays import arrays
from bnn.data.augment import Augment
from bnn.data.corruptions import CORRUPTIONS, GROUPS, corrupt
from bnn.data.dataset import Data, Part, Preparation, TargetScale
from bnn.data.image_folders.folder import folder
from bnn.data.named_sets.named import load, load_part, names, ood
from bnn.data.preparation import preparation
from bnn.data.strangers import strange
from bnn.data.tables.csv_file import csv

__all__ = [
    "CORRUPTIONS",
    "GROUPS",
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
    "strange",
]
