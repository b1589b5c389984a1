"""Opens folders writable for user code, without following its links.

For one folder at a time; `nsml.content.safe_paths` is for whole trees, also on systems without descriptors.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_folder(
    root: Path, parts: Sequence[str], *, create: bool = False, regain: bool = False
) -> Iterator[int]:
    """Yield a descriptor of the folder `parts` below `root`, reached without a link.

    Created folders belong to the owner of their parent. `regain`: restore all rights of the owner in each of
    `parts`, also those not needed to open it.

    Raises OSError if a component is missing (unless `create`), a link, or no folder, and
    ValueError for a component that is not a plain name.
    """
    here = _opened(root, None, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, stat.S_IRWXU)
    try:
        for part in parts:
            check_name(part)
            if create:
                _make(part, here)
            below = open_with_rights(part, here) if regain else open_below(part, here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def check_name(name: str) -> None:
    """Raise ValueError if it is not the name of one entry of a folder."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ValueError(f"not a plain name: {name[:80]!r}")


def allow(name: str | os.PathLike[str], parent: int | None, rights: int) -> bool:
    """Restore the agent's rights that a program of the same user removed; return whether it has them now.

    Raises OSError. Links, and files with several hard links, are unchanged.
    """
    entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        facts = os.fstat(entry)
        is_single = stat.S_ISDIR(facts.st_mode) or facts.st_nlink == 1
        if facts.st_uid != os.geteuid() or not is_single or stat.S_ISLNK(facts.st_mode):
            return False
        path_of(entry).chmod(stat.S_IMODE(facts.st_mode) | rights)
    finally:
        os.close(entry)
    return True


def open_file(name: str | os.PathLike[str], parent: int | None, flags: int) -> int:
    """Open a program's file for reading, whatever its mode. Raises OSError."""
    return _opened(name, parent, flags, stat.S_IRUSR)


def _opened(name: str | os.PathLike[str], parent: int | None, flags: int, rights: int) -> int:
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        if not allow(name, parent, rights):
            raise
        return os.open(name, flags, dir_fd=parent)


def path_of(descriptor: int) -> Path:
    """Return a path of the open folder, even if it is moved or its name reused."""
    return Path(f"/proc/self/fd/{descriptor}")


def _make(name: str, parent: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
    around = os.fstat(parent)
    _give_one(name, parent, around.st_uid, around.st_gid)


def give(name: str, parent: int, uid: int, gid: int) -> None:
    """Change the owner of `name` in the open folder `parent`, and all below it.

    The folder itself comes last, so that nobody can enter it meanwhile. Only the agent's own files
    change: links, other users' files, and files with several hard links are unchanged.
    """
    entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        facts = os.fstat(entry)
        if stat.S_ISDIR(facts.st_mode):
            walk = os.fwalk(".", topdown=False, dir_fd=entry)
            for _, folders, files, here in walk:
                for inner in (*folders, *files):
                    _give_one(inner, here, uid, gid)
    finally:
        os.close(entry)
    _give_one(name, parent, uid, gid)


def _give_one(name: str, parent: int, uid: int, gid: int) -> None:
    entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        facts = os.fstat(entry)
        is_single = stat.S_ISDIR(facts.st_mode) or facts.st_nlink == 1
        is_ours = facts.st_uid == os.geteuid() != uid
        if is_ours and is_single and not stat.S_ISLNK(facts.st_mode):
            os.chown(path_of(entry), uid, gid)
    finally:
        os.close(entry)


def remove_tree(place: Path) -> None:
    """Remove `place`, if it exists; of a link only the link. Raises OSError, see `remove_folder`."""
    if place.is_symlink() or not place.is_dir():
        place.unlink(missing_ok=True)
        return
    with open_folder(place.parent, []) as parent:
        remove_folder(place.name, parent)


def remove_folder(name: str, parent: int) -> None:
    """Remove the folder `name` of the open folder `parent` with its contents.

    Follows no link, restores removed rights, and needs neither stack nor
    descriptors for depth: folders are moved up before they are emptied, since a program can nest
    them deeper than any path or recursion allows. Raises OSError, as for concurrent changes,
    and ValueError if it is not a plain name.
    """
    check_name(name)
    top = open_with_rights(name, parent)
    try:
        # unique names: moved folders must not collide with existing entries
        mark, moved = secrets.token_hex(8), 0
        pending = _remove_files(top)
        while pending:
            below = pending.pop()
            here = open_with_rights(below, top)
            try:
                for inner in _remove_files(here):
                    os.close(open_with_rights(inner, here))
                    fresh, moved = f"{mark}-{moved}", moved + 1
                    os.rename(inner, fresh, src_dir_fd=here, dst_dir_fd=top)
                    pending.append(fresh)
            finally:
                os.close(here)
            os.rmdir(below, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _remove_files(folder: int) -> list[str]:
    """Remove all entries except folders from an open folder; return the names of its folders."""
    folders = []
    with os.scandir(folder) as found:
        for item in found:
            if item.is_dir(follow_symlinks=False):
                folders.append(item.name)
            else:
                os.unlink(item.name, dir_fd=folder)
    return folders


def open_with_rights(name: str, parent: int) -> int:
    """Open the folder `name` of the open folder `parent`, with all rights of its owner. Raises OSError; follows no link."""
    here = _opened(name, parent, _FLAGS, stat.S_IRWXU)
    try:
        if os.fstat(here).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(here, stat.S_IRWXU)
    except BaseException:
        os.close(here)
        raise
    return here


def open_below(name: str, parent: int) -> int:
    """Open the folder `name` of the open folder `parent`, whatever its mode. Raises OSError; follows no link."""
    return _opened(name, parent, _FLAGS, stat.S_IRWXU)


Walked = tuple[list[str], list[str], list[str], int]


def walk(
    folder: int,
    *,
    opens: Callable[[str, int], int] = open_below,
    refused: Callable[[Sequence[str], OSError], object] | None = None,
) -> Iterator[Walked]:
    """As `os.fwalk` from an open folder, but without following links, not even by stat.

    Yields the names that lead to a folder, those of its folders, of which the caller may remove some, and of all else, and
    its descriptor, which is open until the next step. A folder that `opens` cannot open, or that cannot be listed, is
    passed to `refused`; without that OSError is raised, as for `folder` itself. Uses one descriptor for each level.
    """
    yield from _walk(folder, _listed(folder), [], opens, refused)


def _walk(
    folder: int,
    listed: tuple[list[str], list[str]],
    parts: list[str],
    opens: Callable[[str, int], int],
    refused: Callable[[Sequence[str], OSError], object] | None,
) -> Iterator[Walked]:
    folders, names = listed
    yield parts, folders, names, folder
    for name in folders:
        below = None
        try:
            below = opens(name, folder)
            inside = _listed(below)
        except OSError as error:
            if below is not None:
                os.close(below)
            if refused is None:
                raise
            refused([*parts, name], error)
            continue
        try:
            yield from _walk(below, inside, [*parts, name], opens, refused)
        finally:
            os.close(below)


def _listed(folder: int) -> tuple[list[str], list[str]]:
    """Return the names of folders in it, and of all else."""
    folders: list[str] = []
    names: list[str] = []
    with os.scandir(folder) as found:
        for item in found:
            (folders if item.is_dir(follow_symlinks=False) else names).append(item.name)
    return folders, names
