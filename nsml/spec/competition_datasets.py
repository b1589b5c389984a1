"""The names of files and folders in a dataset for submissions, as NSML has them: what clients check, and platforms keep apart."""

from __future__ import annotations

from typing import Final

TEST: Final = "test"
TEST_SUBMIT: Final = "test_submit"
"""The small open test set of dry runs."""
LABELS: Final = "test_label"
"""Names of labels begin like this."""
EVALUATION: Final = "evaluation.py"
LOADER: Final = "data_loader.py"
"""Hands the test inputs to the program; every prediction fails without it."""


def may_have_labels(path: str) -> bool:
    """Whether a restricted part may have the labels of the test set: not inputs, not those of dry runs, not code."""
    folder = path.partition("/")[0]
    return path not in {TEST, EVALUATION} and folder != TEST_SUBMIT
