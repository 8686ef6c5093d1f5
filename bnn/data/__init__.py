"""Data: named sets, tables, folders of images and arrays, corruptions and augmentation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bnn.data.array_sets import arrays
    from bnn.data.corruptions.kinds import CORRUPTIONS, GROUPS, corrupt
    from bnn.data.dataset import Data, Part, Preparation, TargetScale
    from bnn.data.image_folders import folder
    from bnn.data.images import Augment
    from bnn.data.named_sets.load import load, load_part, names
    from bnn.data.ood_sets import ood, strange, synthetic_ood
    from bnn.data.sources import preparation, source
    from bnn.data.tables.csv_file import csv

# Where each name lives; imported when it is first asked for, so that declarations can be read without torch.
_LATER = {
    "CORRUPTIONS": "corruptions.kinds",
    "GROUPS": "corruptions.kinds",
    "Augment": "images",
    "Data": "dataset",
    "Part": "dataset",
    "Preparation": "dataset",
    "TargetScale": "dataset",
    "arrays": "array_sets",
    "corrupt": "corruptions.kinds",
    "csv": "tables.csv_file",
    "folder": "image_folders",
    "load": "named_sets.load",
    "load_part": "named_sets.load",
    "names": "named_sets.load",
    "ood": "ood_sets",
    "preparation": "sources",
    "source": "sources",
    "strange": "ood_sets",
    "synthetic_ood": "ood_sets",
}

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
    "source",
    "strange",
    "synthetic_ood",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"bnn.data.{_LATER[name]}"), name)
    sources = import_module("bnn.data.sources")
    if name in sources.SOURCES and sources.SOURCES[name].path:  # of a source that joined later
        return sources.found(sources.SOURCES[name].reader)
    raise AttributeError(f"module 'bnn.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
