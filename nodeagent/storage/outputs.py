"""What an ended program left in its working folder: folders that become versions of datasets, and files that are kept.

They are moved out of the working folder, which is removed then, to where artifacts are, and sent as such. The program is
gone, so nobody writes there any more. Blocking; repeating it after a kill finds what was moved.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from nodeagent.folders import ReplicaFolder
from nodeagent.safe_paths import open_folder, path_of
from nodeagent.storage.checkpoints import SavedCheckpoint
from nodeagent.storage.file_lists import count_files
from nsml._path_text import path_text
from nsml.common.units import size_text
from nsml.content.paths import MAX_DEPTH
from nsml.spec.output_datasets import (
    KEPT_BY_DEFAULT_ENTRY,
    KEPT_ENTRY,
    KEPT_FILES,
    OutputDataset,
    artifact_folder,
)

_MODEL = "model"
_KEPT_FILES = 10_000
_LOOKED_AT = 1_000_000
"""Files of a working folder that are looked at."""
_NAMED = 3
_MOST_NAME_CHARS = 100


def take_outputs(
    folder: ReplicaFolder, outputs: Sequence[OutputDataset], *, at: float
) -> list[SavedCheckpoint]:
    """Move them; one that cannot be sent says why. Links and special files are left out.

    `at`: when they were saved, Unix seconds.
    """
    return [_take(folder, number, one, at) for number, one in enumerate(outputs)]


def has_new_files(folder: ReplicaFolder) -> bool:
    """Whether `keep_files` would find any, or say why it cannot."""
    try:
        owner = folder.run.stat().st_uid
        with open_folder(folder.app, []) as app:
            return any(_new_files(app, _since_ns(folder), owner))
    except (OSError, ValueError):
        return True


def keep_files(
    folder: ReplicaFolder, *, at: float, most_bytes: int = 1 << 30, is_asked: bool = True
) -> SavedCheckpoint | None:
    """Move what the program has made or changed since all was there for it, as far as the limits go; None: nothing.

    Links, special files, what belongs to others, and what begins with a dot, as tokens and caches do, are not kept. Files
    are taken in the order of their paths, those of a folder before its subfolders, and one that does not fit any more is
    passed by. `is_asked`: else nobody asked for them, and they are given up where its owner has no room for them, and never are
    more than what the disk has free: it may be what the platform needs to take them.
    """
    owner = folder.run.stat().st_uid
    lost, left_out = "", ""
    count = 0
    entry = KEPT_ENTRY if is_asked else KEPT_BY_DEFAULT_ENTRY
    try:
        with open_folder(folder.run, ["checkpoints", entry, _MODEL], create=True) as target:
            if not is_asked:
                most_bytes = min(most_bytes, _free_bytes(target))
            chosen, over = _chosen(folder, target, _since_ns(folder), owner, most_bytes)
            for parts in chosen:
                _move_file(folder, parts, target)
            count = count_files(target)
            left_out = _left_out(over, most_bytes)
    except OSError as error:
        lost = f"its working folder cannot be read: {error.strerror or error}"
    except ValueError as error:
        lost = f"its working folder: {error}"
    if not (count or lost or left_out):
        return None
    return SavedCheckpoint(
        name=KEPT_FILES,
        folder=f"{entry}/{_MODEL}",
        saved_at=at,
        is_whole=True,
        is_artifact=True,
        lost=lost,
        left_out=left_out,
        is_optional=not is_asked,
    )


def _free_bytes(folder: int) -> int:
    space = os.fstatvfs(folder)
    return space.f_bavail * space.f_frsize


def _since_ns(folder: ReplicaFolder) -> int:
    """When all was there for the program. Not by shim.json: its shim writes that again, while the program runs already."""
    return folder.spec.stat().st_ctime_ns


def _chosen(
    folder: ReplicaFolder, target: int, since_ns: int, owner: int, most_bytes: int
) -> tuple[list[list[str]], list[tuple[str, int]]]:
    """The parts of the paths of what is kept, and paths and sizes of what is over the limits."""
    there = _sizes(target)
    bytes_left, files_left = most_bytes - sum(there), _KEPT_FILES - len(there)
    chosen: list[list[str]] = []
    over: list[tuple[str, int]] = []
    if not folder.app.exists():  # an earlier agent took what was there, and removed the rest
        return [], []
    with open_folder(folder.app, []) as app:
        for parts, facts in _new_files(app, since_ns, owner):
            if facts.st_size <= bytes_left and files_left > 0:
                bytes_left, files_left = bytes_left - facts.st_size, files_left - 1
                chosen.append(parts)
            else:
                over.append((path_text("/".join(parts)), facts.st_size))
    return chosen, over


def _new_files(app: int, since_ns: int, owner: int) -> Iterator[tuple[list[str], os.stat_result]]:
    seen = 0
    for base, folders, names, here in os.fwalk(".", dir_fd=app):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        above = [part for part in base.split("/") if part != "."]
        if len(above) >= MAX_DEPTH - 1:
            folders.clear()
        for name in sorted(names):
            seen += 1
            if seen > _LOOKED_AT:
                raise ValueError(f"more than {_LOOKED_AT:,} files")
            facts = os.lstat(name, dir_fd=here)
            is_own = stat.S_ISREG(facts.st_mode) and facts.st_uid == owner and name[0] != "."
            # A program can set when a file was modified, not when it was changed in any way.
            if is_own and facts.st_ctime_ns > since_ns:
                yield [*above, name], facts


def _sizes(folder: int) -> list[int]:
    return [
        os.lstat(name, dir_fd=here).st_size
        for _, _, names, here in os.fwalk(".", dir_fd=folder)
        for name in names
    ]


def _move_file(folder: ReplicaFolder, parts: Sequence[str], target: int) -> None:
    *above, name = parts
    with (
        open_folder(folder.app, above) as source,
        open_folder(path_of(target), above, create=True) as place,
    ):
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=place)


def _left_out(over: Sequence[tuple[str, int]], most_bytes: int) -> str:
    if not over:
        return ""
    size = size_text(sum(size for _, size in over))
    names = ", ".join(path[:_MOST_NAME_CHARS] for path, _ in over[:_NAMED])
    more = f" and {len(over) - _NAMED} more" if over[_NAMED:] else ""
    return (
        f"left out: {size} over the limits of {size_text(most_bytes)} and {_KEPT_FILES:,} files:"
        f" {names}{more}"
    )


def _take(folder: ReplicaFolder, number: int, output: OutputDataset, at: float) -> SavedCheckpoint:
    path = artifact_folder(number)
    entry = path.split("/", maxsplit=1)[0]
    lost = ""
    try:
        _move(folder, entry, output)
        with open_folder(folder.run, ["checkpoints", entry, _MODEL]) as descriptor:
            is_empty = not count_files(descriptor)
        if is_empty:
            lost = f"there are no files in its folder {output.folder}"
    except (FileNotFoundError, NotADirectoryError):
        lost = f"there is no folder {output.folder} in its working folder"
    except OSError as error:
        lost = f"its folder {output.folder} cannot be read: {error.strerror or error}"
    except ValueError as error:
        lost = f"its folder {output.folder}: {error}"
    return SavedCheckpoint(
        name=output.name,
        folder=path,
        saved_at=at,
        is_whole=True,
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
