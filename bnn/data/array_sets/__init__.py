"""NumPy arrays and tensors as data sets."""
