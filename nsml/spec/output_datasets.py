"""Output folders of a session that become dataset versions when it succeeds: [OWNER/]NAME, or [OWNER/]NAME=FOLDER."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from nsml._checkpoints import ARTIFACT
from nsml.spec.dataset_names import is_dataset_name

KEPT_FILES: Final = "/app"
"""Artifact with the working folder's files of a session with `keep_files`."""
KEPT_ENTRY: Final = f"09-{ARTIFACT}"
"""The entry of that artifact in the checkpoints of its replica: see `artifact_folder`."""
KEPT_FOLDER: Final = f"{KEPT_ENTRY}/model"
KEPT_BY_DEFAULT_ENTRY: Final = f"08-{ARTIFACT}"
"""The same without an explicit `keep_files`: with a lower size limit, and a shorter retention."""
KEPT_BY_DEFAULT_FOLDER: Final = f"{KEPT_BY_DEFAULT_ENTRY}/model"
NO_VERSION: Final = "no version of the dataset: "
"""Prefix of the note of such an artifact that could not become a version."""
MOST: Final = 8
"""Most output datasets of a session."""
_MOST_FOLDER_CHARS: Final = 1_024
_MOST_DEPTH: Final = 32
_OWNER: Final = re.compile(r"[a-z0-9_.-]{1,32}")


class OutputDataset(NamedTuple):
    """A folder, relative to the session's working folder, that becomes a version of the dataset `name`.

    `owner`: as written; only the session's owner is allowed. "": that one.
    """

    name: str
    folder: str
    owner: str = ""

    def __str__(self) -> str:
        full = f"{self.owner}/{self.name}" if self.owner else self.name
        return full if self.folder == self.name else f"{full}={self.folder}"


def artifact_folder(number: int) -> str:
    """Return the folder of the files of output dataset `number`, from 0, in the checkpoints of its replica.

    Programs number theirs from 1, without a leading zero.
    """
    return f"0{number}-{ARTIFACT}/model"


def output_dataset(text: str) -> OutputDataset:
    """Parse NAME, whose folder has that name, or NAME=FOLDER. The ValueError says what is wrong."""
    full, equals, folder = text.partition("=")
    owner, slash, name = full.rpartition("/")
    if not is_dataset_name(name) or (slash and not _OWNER.fullmatch(owner)):
        raise ValueError(f"{full[:80]!r} cannot be the name of a dataset of yours")
    folder = folder.removesuffix("/") if equals else name
    parts = folder.split("/")
    if len(folder) > _MOST_FOLDER_CHARS or len(parts) > _MOST_DEPTH or not folder.isprintable():
        raise ValueError(f"{folder[:80]!r} is too long, or cannot be shown")
    if any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{folder[:80]!r} is not a folder below the session's working folder")
    return OutputDataset(name, folder, owner)
