"""References to dataset versions: NAME for the newest, NAME@NUMBER, or NAME@TAG."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MOST_VERSION: Final = 2**31 - 1
TAG_RULE: Final = "1 to 64 of A-Z a-z 0-9 _ - ., beginning with a letter; not `v3`, which reads as a version, and not `latest`"

_TAG: Final = re.compile(r"(?!latest\Z|[vV][0-9]+\Z)[A-Za-z][A-Za-z0-9_.-]{0,63}")
_NAME: Final = re.compile(r"(?!None\Z|.*\.\.)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Sessions without a dataset have "None" as the middle part of their name."""
_NUMBER: Final = re.compile("[0-9]{1,10}")


class DatasetName(NamedTuple):
    """A dataset version by number or tag; 0 and "": the newest."""

    name: str
    version: int = 0
    tag: str = ""


def is_tag(text: str) -> bool:
    """Return whether a text is a valid tag."""
    return _TAG.fullmatch(text) is not None


class MountedDataset(NamedTuple):
    """A dataset version, and its folder in /data in a session; "": the dataset's name."""

    dataset: DatasetName
    folder: str = ""


def mounted_dataset(text: str) -> MountedDataset:
    """Parse NAME, NAME@VERSION or NAME@TAG, each optionally with =FOLDER; raises ValueError."""
    name, equals, folder = text.partition("=")
    if equals and not is_dataset_name(folder):
        raise ValueError(text)
    return MountedDataset(dataset_name(name), folder)


def is_dataset_name(text: str) -> bool:
    """Return whether a text is a valid name of a dataset, or of its folder in /data."""
    return _NAME.fullmatch(text) is not None


def dataset_name(text: str) -> DatasetName:
    """Parse NAME, NAME@VERSION or NAME@TAG. Raises ValueError for an invalid version or tag."""
    name, at, version = text.partition("@")
    if not at:
        return DatasetName(name)
    if is_tag(version):
        return DatasetName(name, tag=version)
    if _NUMBER.fullmatch(version) and 0 < int(version) <= MOST_VERSION:
        return DatasetName(name, int(version))
    raise ValueError(text)
