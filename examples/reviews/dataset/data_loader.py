"""The owner's loader: what `infer` of a submission gets."""

import os


def test_data_loader(root_path):
    """Return the reviews of the test set."""
    with open(os.path.join(root_path, "test", "test_data")) as file:
        return file.read().splitlines()
