"""Data sets known by name: where they are found, how their files are read."""
