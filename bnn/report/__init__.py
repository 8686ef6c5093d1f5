"""Report: runs side by side, as a table, as pictures, and as one HTML file that needs nothing else."""

from bnn.report.comparison import Cell, Column, Comparison, comparison
from bnn.report.entry import Entry, grouped, read_entry
from bnn.report.figures import pictures, save_pictures
from bnn.report.gain import gain
from bnn.report.page import html, write
from bnn.report.sections.picture import Picture
from bnn.report.summary import summary

__all__ = [
    "Cell",
    "Column",
    "Comparison",
    "Entry",
    "Picture",
    "comparison",
    "gain",
    "grouped",
    "html",
    "pictures",
    "read_entry",
    "save_pictures",
    "summary",
    "write",
]
