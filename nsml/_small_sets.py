"""The dataset of a dry run: its small test set, `test_submit`, is `test` in it, where programs and data loaders look for it."""

from __future__ import annotations

import os
from contextlib import suppress

from nsml._stages import PREDICT_TEST, stage

_TEST = "test"
_VARIABLE = "NSML_DATASET_PATH"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, MutableMapping

made: List[str] = []
"""Folders that this process has made, to be removed at its end."""


def with_test(dataset: str, folder: str) -> str:
    """Return a folder like `dataset` in which `folder` is `test`; the dataset itself is read-only.

    It is the dataset if that has a `test`, or no such folder. Raises OSError.
    """
    if folder == _TEST or os.path.lexists(os.path.join(dataset, _TEST)):
        return dataset
    if not os.path.isdir(os.path.join(dataset, folder)):
        return dataset
    import tempfile  # costs programs that are no dry runs some milliseconds

    made.append(tempfile.mkdtemp(prefix="nsml-"))
    view = os.path.join(made[-1], os.path.basename(dataset))
    os.mkdir(view, 0o700)
    for name in os.listdir(dataset):
        os.symlink(os.path.join(dataset, name), os.path.join(view, name))
    os.symlink(os.path.join(dataset, folder), os.path.join(view, _TEST))
    return view


def enter(environment: MutableMapping[str, str]) -> None:
    """In a dry run, let the variable with the datasets' paths name such a folder, for this process and those it starts.

    Programs copy the path when they are imported, so this comes before. Where it fails, predicting says why.
    """
    if stage(environment.get("NSML_RUN_DIR", "")) != PREDICT_TEST:
        return
    first, *others = environment.get(_VARIABLE, "").split(os.pathsep)
    with suppress(OSError):
        view = with_test(first, environment.get("NSML_TEST_FOLDER") or _TEST)
        environment[_VARIABLE] = os.pathsep.join([view, *others])
