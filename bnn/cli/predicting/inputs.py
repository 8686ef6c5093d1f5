"""New inputs of a finished run, from files of whatever kind it was trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bnn.cli.mistakes import Mistake
from bnn.cli.predicting.array_inputs import read_arrays
from bnn.cli.predicting.image_inputs import ImageReader
from bnn.cli.predicting.named_inputs import Inputs
from bnn.cli.predicting.table_inputs import read_tables
from bnn.data.array_sets.array_preparation import ArrayImages, ScaledInputs
from bnn.data.image_folders.folder_preparation import FolderPreparation
from bnn.data.scaling import ImageScaling
from bnn.data.tables.preparation import TablePreparation
from bnn.train.outcome import Outcome

__all__ = ["Inputs", "read_inputs"]


def read_inputs(run: Outcome, paths: Sequence[str], keep: Iterable[str] = ()) -> Inputs:
    """The inputs in `paths`, one after the other, read and prepared as those the run was trained on.

    Args:
        paths: images and folders of images, CSV files, or .npy and .npz files, whatever fits the run.
        keep: columns of CSV files to carry along.

    Raises:
        Mistake, ValueError, OSError: a file is missing, damaged, or of a kind that does not fit; it is named.
    """
    if not paths:
        raise Mistake("there is nothing to predict: name at least one file or folder")
    preparation = ScaledInputs.none(run.in_shape) if run.preparation is None else run.preparation
    keep = list(keep)
    if isinstance(preparation, TablePreparation):
        return read_tables(preparation, paths, keep)
    if keep:
        raise Mistake(f"--keep {keep[0]} names a column of a CSV file, and this run was not trained on a table")
    if isinstance(preparation, ScaledInputs):
        return read_arrays(preparation, paths)
    return image_reader(preparation, run.in_shape).read(paths)


def image_reader(preparation: object, shape: tuple[int, ...]) -> ImageReader:
    """What reads images (C, H, W) for a network that was trained with this preparation."""
    if isinstance(preparation, FolderPreparation):
        return ImageReader(preparation.scaling, (preparation.channels, *preparation.size), preparation.resized)
    if isinstance(preparation, ArrayImages):
        return ImageReader(preparation.scaling, preparation.shape, layout=preparation.layout)
    if isinstance(preparation, ImageScaling):
        return ImageReader(preparation, shape)
    raise TypeError(f"no reader of inputs for the preparation {type(preparation).__name__}")
