"""The owner's loader: the data of `infer`; each prediction is JSON, one a line."""

import json
import os


def test_data_loader(root_path):
    """Return (name, picture) of each test picture."""
    folder = os.path.join(root_path, "test", "test_data")
    found = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as file:
            found.append((name, json.load(file)))
    return found
