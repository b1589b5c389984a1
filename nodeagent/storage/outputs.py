"""Folders of an ended program that become versions of datasets.

Each is moved out of the working folder, which is removed then, to where artifacts are, and sent as one. The program is
gone, so nobody writes there any more. Blocking; repeating it after a kill finds what was moved.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from nodeagent.folders import ReplicaFolder
from nodeagent.safe_paths import open_folder
from nodeagent.storage.checkpoints import SavedCheckpoint
from nsml._checkpoints import ARTIFACT
from nsml._path_text import path_text
from nsml.content.listing import MAX_FILES
from nsml.content.paths import MAX_DEPTH
from nsml.spec.output_datasets import OutputDataset

_MODEL = "model"


def take_outputs(
    folder: ReplicaFolder, outputs: Sequence[OutputDataset], *, at: float
) -> list[SavedCheckpoint]:
    """Move them, and list their files; one that cannot be sent says why. Links and special files are left out.

    `at`: when they were saved, Unix seconds.
    """
    return [_take(folder, number, one, at) for number, one in enumerate(outputs)]


def _take(folder: ReplicaFolder, number: int, output: OutputDataset, at: float) -> SavedCheckpoint:
    # Programs number theirs from 1, without a zero before it.
    entry = f"0{number}-{ARTIFACT}"
    files: tuple[str, ...] = ()
    lost = ""
    try:
        _move(folder, entry, output)
        with open_folder(folder.run, ["checkpoints", entry, _MODEL]) as descriptor:
            files = tuple(sorted(_files(descriptor)))
        if not files:
            lost = f"there are no files in its folder {output.folder}"
    except (FileNotFoundError, NotADirectoryError):
        lost = f"there is no folder {output.folder} in its working folder"
    except OSError as error:
        lost = f"its folder {output.folder} cannot be read: {error.strerror or error}"
    except ValueError as error:
        lost = f"its folder {output.folder}: {error}"
    return SavedCheckpoint(
        name=output.name,
        folder=f"{entry}/{_MODEL}",
        saved_at=at,
        files=files,
        is_artifact=True,
        lost=lost,
    )


def _move(folder: ReplicaFolder, entry: str, output: OutputDataset) -> None:
    """Harmless when that is done already. Raises OSError; nothing outside of the working folder is moved."""
    *above, name = output.folder.split("/")
    with open_folder(folder.run, ["checkpoints", entry], create=True) as target:
        with suppress(FileNotFoundError):
            os.lstat(_MODEL, dir_fd=target)
            return
        with open_folder(folder.app, above) as source:
            # Of a link the link itself, which is no folder then.
            os.rename(name, _MODEL, src_dir_fd=source, dst_dir_fd=target)


def _files(folder: int) -> list[str]:
    """Regular files below the open folder, as text. Raises ValueError: too many, or too deep; OSError."""
    found: list[str] = []
    for base, folders, names, here in os.fwalk(".", dir_fd=folder, onerror=_raise):
        parts = [part for part in base.split("/") if part != "."]
        if len(parts) >= MAX_DEPTH and folders:
            raise ValueError(f"folders are nested more than {MAX_DEPTH} deep")
        found += [
            path_text("/".join([*parts, name]))
            for name in names
            if stat.S_ISREG(os.lstat(name, dir_fd=here).st_mode)
        ]
        if len(found) > MAX_FILES:
            raise ValueError(f"more than {MAX_FILES:,} files")
    return found


def _raise(error: OSError) -> None:
    raise error
