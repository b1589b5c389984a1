"""How a version of a dataset is named: NAME for the newest, NAME@NUMBER, or NAME@TAG."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MOST_VERSION: Final = 2**31 - 1
TAG_RULE: Final = "1 to 64 of A-Z a-z 0-9 _ - ., beginning with a letter; not `v3`, which reads as a version, and not `latest`"

_TAG: Final = re.compile(r"(?!latest\Z|[vV][0-9]+\Z)[A-Za-z][A-Za-z0-9_.-]{0,63}")
_NAME: Final = re.compile(r"(?!None\Z|.*\.\.)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""None is the middle part of the name of a session without a dataset."""
_NUMBER: Final = re.compile("[0-9]{1,10}")


class DatasetName(NamedTuple):
    """A version of a dataset by its number or a tag; 0 and "": the newest."""

    name: str
    version: int = 0
    tag: str = ""


def is_tag(text: str) -> bool:
    """Whether a text may be a tag."""
    return _TAG.fullmatch(text) is not None


class MountedDataset(NamedTuple):
    """A version of a dataset, and the folder of /data that a session has it at; "": the dataset's name."""

    dataset: DatasetName
    folder: str = ""


def mounted_dataset(text: str) -> MountedDataset:
    """NAME, NAME@VERSION or NAME@TAG, each perhaps with =FOLDER; ValueError for what is none."""
    name, equals, folder = text.partition("=")
    if equals and not is_dataset_name(folder):
        raise ValueError(text)
    return MountedDataset(dataset_name(name), folder)


def is_dataset_name(text: str) -> bool:
    """Whether a text may be the name of a dataset, or of the folder of /data that one is mounted at."""
    return _NAME.fullmatch(text) is not None


def dataset_name(text: str) -> DatasetName:
    """Split at the @; ValueError for what is neither a version nor a tag behind it."""
    name, at, version = text.partition("@")
    if not at:
        return DatasetName(name)
    if is_tag(version):
        return DatasetName(name, tag=version)
    if _NUMBER.fullmatch(version) and 0 < int(version) <= MOST_VERSION:
        return DatasetName(name, int(version))
    raise ValueError(text)
