"""Outputs of an ended program in its working folder: folders that become dataset versions, and files to keep.

They are moved to the artifacts, and sent as such; the working folder is removed afterwards. The program has
ended, so nobody writes there any more. Blocking; may be repeated after a kill.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

from nodeagent.folders import ReplicaFolder
from nodeagent.safe_paths import allow, open_file, open_folder, open_with_rights, path_of, walk
from nodeagent.storage.checkpoints import LEFT_OUT, SavedCheckpoint
from nodeagent.storage.file_lists import MOST_NAME_CHARS, count_files
from nsml._path_text import path_text
from nsml.common.units import counted, size_text
from nsml.content.errors import PathRefused
from nsml.content.paths import MAX_DEPTH, split_path
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
"""Files of a working folder that are examined."""
_NAMED = 3
"""Names shown of each list."""
_REASONS = 5
"""Reasons shown why files cannot be kept."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def take_outputs(
    folder: ReplicaFolder, outputs: Sequence[OutputDataset], *, at: float
) -> list[SavedCheckpoint]:
    """Move the outputs; `lost` says why one cannot be sent. Links and special files are left out.

    `at`: when they were saved, Unix seconds.
    """
    return [_take(folder, number, one, at) for number, one in enumerate(outputs)]


def has_new_files(folder: ReplicaFolder) -> bool:
    """Return whether `keep_files` would keep any, or report why it cannot."""
    try:
        owner = folder.run.stat().st_uid
        refused: list[tuple[str, str]] = []
        with _working_folder(folder) as app:
            has_any = any(_new_files(app, _since_ns(folder), owner, _telling(refused)))
        return has_any or bool(refused)
    except OSError:
        return True


def keep_files(
    folder: ReplicaFolder, *, at: float, most_bytes: int = 1 << 30, is_asked: bool = True
) -> SavedCheckpoint | None:
    """Move files that the program created or changed to the artifacts, within the limits; None: there are none.

    Links, special files, files of other users, and names with a leading dot, such as tokens and caches, are not kept. Files
    are taken in the order of their paths, those of a folder before its subfolders. Files that do not fit any more, and
    files that cannot be read, moved or sent, are skipped and named. `is_asked`: if not, files are dropped when their owner has no room for them, and
    limited to the free space of the disk: the platform may need it to store them.
    """
    owner = folder.run.stat().st_uid
    lost, left_out = "", ""
    count = 0
    entry = KEPT_ENTRY if is_asked else KEPT_BY_DEFAULT_ENTRY
    refused: list[tuple[str, str]] = []
    try:
        _regain(folder, folder.run.name)
        with open_folder(folder.run, ["checkpoints", entry, _MODEL], create=True) as target:
            if not is_asked:
                most_bytes = min(most_bytes, _free_bytes(target))
            over = _move_new(folder, target, owner, most_bytes, _telling(refused))
            count = count_files(target)
            left_out = _left_out(over, refused, most_bytes)
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
    """Return when the program's inputs were complete. Not from shim.json: its shim rewrites it while the program runs."""
    return folder.spec.stat().st_ctime_ns


_Refused = Callable[[Sequence[str], Exception], None]


def _telling(refused: list[tuple[str, str]]) -> _Refused:
    """Return a callback that records the path of a left-out file or folder, and why."""

    def note(parts: Sequence[str], error: Exception) -> None:
        refused.append((path_text("/".join(parts)), _why(error)))

    return note


def _why(error: Exception) -> str:
    match error:
        case PathRefused():
            return error.reason
        case OSError():
            return error.strerror or str(error)
    return str(error)


def _regain(folder: ReplicaFolder, name: str) -> None:
    """Restore all rights to a folder of the replica, whatever its program changed. Raises OSError."""
    with open_folder(folder.path, [name], regain=True):
        pass


@contextmanager
def _working_folder(folder: ReplicaFolder) -> Iterator[int]:
    """Open it, with all rights. Raises OSError."""
    with open_folder(folder.path, [folder.app.name], regain=True) as app:
        yield app


def _move_new(
    folder: ReplicaFolder, target: int, owner: int, most_bytes: int, refused: _Refused
) -> list[tuple[str, int]]:
    """Move files to keep to `target`; return paths and sizes of those over the limits. `refused` receives files that cannot be kept."""
    since_ns = _since_ns(folder)
    there = _sizes(target)
    bytes_left, files_left = most_bytes - sum(there), _KEPT_FILES - len(there)
    chosen: list[list[str]] = []
    over: list[tuple[str, int]] = []
    if not os.path.lexists(folder.app):  # moved by an earlier agent
        return []
    with _working_folder(folder) as app:
        for parts, facts in _new_files(app, since_ns, owner, refused):
            if facts.st_size > bytes_left or files_left <= 0:
                over.append((path_text("/".join(parts)), facts.st_size))
                continue
            try:
                _check_readable(app, parts)
            except (OSError, PathRefused) as error:
                refused(parts, error)
                continue
            bytes_left, files_left = bytes_left - facts.st_size, files_left - 1
            chosen.append(parts)
        for parts in chosen:
            try:
                _move_file(app, parts, target)
            except OSError as error:
                refused(parts, error)
    return over


def _new_files(
    app: int, since_ns: int, owner: int, refused: _Refused
) -> Iterator[tuple[list[str], os.stat_result]]:
    """Yield each new or changed file, with its stat; `refused` receives folders and files that cannot be examined."""
    seen = 0
    for above, folders, names, here in walk(app, opens=open_with_rights, refused=refused):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        if len(above) >= MAX_DEPTH - 1:
            for name in folders:
                refused([*above, name], ValueError(f"deeper than {MAX_DEPTH} folders"))
            folders.clear()
        for name in sorted(names):
            seen += 1
            if seen > _LOOKED_AT:
                refused([*above, name], ValueError(f"behind the first {_LOOKED_AT:,} files"))
                return
            try:
                facts = os.lstat(name, dir_fd=here)
            except OSError as error:
                refused([*above, name], error)
                continue
            is_own = stat.S_ISREG(facts.st_mode) and facts.st_uid == owner and name[0] != "."
            # A program can set the mtime of a file, but not its ctime.
            if is_own and facts.st_ctime_ns > since_ns:
                yield [*above, name], facts


def _sizes(folder: int) -> list[int]:
    return [
        os.lstat(name, dir_fd=here).st_size
        for _, _, names, here in os.fwalk(".", dir_fd=folder)
        for name in names
    ]


def _check_readable(app: int, parts: Sequence[str]) -> None:
    """Raise OSError if the agent cannot read a file, PathRefused if no manifest takes its path."""
    split_path(path_text("/".join(parts)))
    *above, name = parts
    with open_folder(path_of(app), above) as source:
        os.close(open_file(name, source, _READ))


def _move_file(app: int, parts: Sequence[str], target: int) -> None:
    *above, name = parts
    with (
        open_folder(path_of(app), above) as source,
        open_folder(path_of(target), above, create=True) as place,
    ):
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=place)


def _left_out(
    over: Sequence[tuple[str, int]], refused: Sequence[tuple[str, str]], most_bytes: int
) -> str:
    """Describe what is not kept, for people: size, reasons, and the first names; "" for nothing."""
    found = []
    if over:
        size = size_text(sum(size for _, size in over))
        limits = f"{size_text(most_bytes)} and {_KEPT_FILES:,} files"
        found.append(f"{size} over the limits of {limits}: {_named([path for path, _ in over])}")
    if refused:
        which = counted(len(refused), "file or folder", "files or folders")
        found.append(f"{which} that cannot be kept: {_by_reason(refused)}")
    return f"{LEFT_OUT}{'; '.join(found)}" if found else ""


def _by_reason(refused: Sequence[tuple[str, str]]) -> str:
    """Return their first names by reason, as in `a, b (Permission denied); c (deeper than 64 folders)`."""
    paths: dict[str, list[str]] = {}
    for path, why in refused:
        paths.setdefault(why[:MOST_NAME_CHARS], []).append(path)
    groups = [f"{_named(of_one)} ({why})" for why, of_one in islice(paths.items(), _REASONS)]
    rest = sum(map(len, islice(paths.values(), _REASONS, None)))
    return "; ".join([*groups, f"{rest:,} more"] if rest else groups)


def _named(paths: Sequence[str]) -> str:
    names = ", ".join(path[:MOST_NAME_CHARS] for path in paths[:_NAMED])
    return f"{names} and {len(paths) - _NAMED:,} more" if paths[_NAMED:] else names


def _take(folder: ReplicaFolder, number: int, output: OutputDataset, at: float) -> SavedCheckpoint:
    path = artifact_folder(number)
    entry = path.split("/", maxsplit=1)[0]
    lost = ""
    try:
        _regain(folder, folder.run.name)
        _move(folder, entry, output)
        with open_folder(folder.run, ["checkpoints", entry, _MODEL]) as descriptor:
            _make_readable(descriptor)
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
    """Move an output; harmless when repeated. Raises OSError; nothing outside of the working folder is moved."""
    *above, name = output.folder.split("/")
    with open_folder(folder.run, ["checkpoints", entry], create=True) as target:
        with suppress(FileNotFoundError):
            os.lstat(_MODEL, dir_fd=target)
            return
        with open_folder(folder.path, [folder.app.name, *above], regain=True) as source:
            with suppress(OSError):  # a file, or a folder that cannot be moved, fails later
                os.close(open_with_rights(name, source))
            # A link is moved itself, and is no folder then.
            os.rename(name, _MODEL, src_dir_fd=source, dst_dir_fd=target)


def _make_readable(folder: int) -> None:
    """Restore the agent's rights to read everything below the open folder, where it may. Raises OSError."""
    for parts, folders, names, here in walk(folder, opens=open_with_rights):
        if len(parts) >= MAX_DEPTH:
            folders.clear()
        for name in names:
            facts = os.lstat(name, dir_fd=here)
            if stat.S_ISREG(facts.st_mode) and not facts.st_mode & stat.S_IRUSR:
                allow(name, here, stat.S_IRUSR)
