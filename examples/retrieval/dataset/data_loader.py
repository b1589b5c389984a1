"""The owner's loader: two lists, so `infer` takes two."""

import os


def _vectors(path):
    with open(path) as file:
        return [[float(cell) for cell in line.split()] for line in file]


def test_data_loader(root_path):
    """Return queries and references."""
    folder = os.path.join(root_path, "test", "test_data")
    return _vectors(os.path.join(folder, "query")), _vectors(os.path.join(folder, "reference"))
