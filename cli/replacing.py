"""Replaces a folder by a fetched one: at each moment the name belongs to the old or the new one."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_EXCHANGE = 2
_HERE = -100
"""RENAME_EXCHANGE and AT_FDCWD of renameat2(2)."""
_NO_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})

_Identity = tuple[int, int]


class _Change(NamedTuple):
    """A fetched path, its target, and the spare path for the old one if names cannot be exchanged.

    `before`: the device and inode of the target at first; None: it did not exist.
    """

    new: Path
    target: Path
    spare: Path
    before: _Identity | None


def _identity(place: Path) -> _Identity | None:
    try:
        facts = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return facts.st_dev, facts.st_ino


@contextmanager
def replacing(path: Path, target: Path, only: Sequence[str] = ()) -> Iterator[Path]:
    """Yield the folder to fetch into, in place of `path`; when the body succeeds, the folder `target`, below `path`, is replaced.

    It is beside the target, on the same file system. `only`: replace only these files and folders in it, as path texts.
    On any exception, at any time, the old state is restored; a second interrupt during the restore leaves
    the rest of it in a folder beside the target. Raises CommandError for a target that is no folder, and for a path that
    cannot be replaced in it, and OSError.
    """
    _refuse_unless_folder(target)
    staging = Path(tempfile.mkdtemp(prefix=".nsml-", dir=target.parent))
    changes: list[_Change] = []
    is_done = False
    try:
        (staging / "new").mkdir()
        yield staging / "new"
        fetched = staging / "new" / target.relative_to(path)
        _refuse_unless_folder(target)
        changes += (
            _parts(staging, fetched, target, only)
            if only
            else [_Change(fetched, target, staging / "old", _identity(target))]
        )
        _carry_out(changes)
        is_done = True
    finally:
        _clear(staging, changes, is_done=is_done)


def _refuse_unless_folder(target: Path) -> None:
    if target.is_symlink() or not target.is_dir():
        kind = "a link" if target.is_symlink() else "no folder"
        raise _refused(target, kind, "-f replaces folders alone")


def _refused(place: Path, kind: str, why: str) -> CommandError:
    return CommandError(
        f"{place} is there and is {kind}",
        code=ExitCode.CONFLICT,
        reason="TARGET_EXISTS",
        why=why,
        advice="remove it, or give another PATH",
    )


def _parts(staging: Path, fetched: Path, target: Path, only: Sequence[str]) -> list[_Change]:
    """Return the changes of `target`, without changing it. Raises CommandError."""
    from nsml.content.errors import PathRefused
    from nsml.content.paths import native_parts

    wanted = set()
    for one in only:
        with suppress(PathRefused):  # no such file: the caller reports it
            wanted.add(native_parts(one))
    tops = sorted(one for one in wanted if not any(one[:n] in wanted for n in range(1, len(one))))
    changes = []
    for number, parts in enumerate(tops):
        new, old = fetched.joinpath(*parts), target.joinpath(*parts)
        if not os.path.lexists(new):  # as above
            continue
        for above in [target.joinpath(*parts[:n]) for n in range(1, len(parts))]:
            if os.path.lexists(above):
                _refuse_other_kind(above, is_folder=True)
        if os.path.lexists(old):
            _refuse_other_kind(old, is_folder=new.is_dir())
        changes.append(_Change(new, old, staging / f"old-{number}", _identity(old)))
    return changes


def _refuse_other_kind(place: Path, *, is_folder: bool) -> None:
    is_same = place.is_dir() if is_folder else place.is_file()
    if place.is_symlink() or not is_same:
        kind = "no folder" if is_folder else "no file"
        raise _refused(place, kind, "what was asked for is one")


def _carry_out(changes: Sequence[_Change]) -> None:
    """Make all changes or none: on failure the changes so far are undone."""
    begun: list[_Change] = []
    try:
        for one in changes:
            begun.append(one)
            if one.before is not None:
                _swap(one)
            else:
                one.target.parent.mkdir(parents=True, exist_ok=True)
                one.new.rename(one.target)
    except BaseException:
        for one in reversed(begun):
            with suppress(OSError):
                _undo(one)
        raise


def _undo(one: _Change) -> None:
    """Restore the old target under its name, unless it is there. Raises OSError."""
    if _identity(one.target) == one.before:
        return
    if one.before is None:
        one.target.rename(one.new)
        return
    old = next(place for place in (one.new, one.spare) if _identity(place) == one.before)
    spare = one.spare.with_name(f"{one.spare.name}-new")
    _swap(_Change(old, one.target, spare, _identity(one.target)))


def _swap(one: _Change) -> None:
    """Replace the old by the new. Raises OSError, with the old in its place."""
    if _exchanged(one.new, one.target):
        return
    try:
        one.target.rename(one.spare)
        one.new.rename(one.target)
    except BaseException:
        _give_back(one)
        raise


def _give_back(one: _Change) -> None:
    if os.path.lexists(one.spare) and not os.path.lexists(one.target):
        one.spare.rename(one.target)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False if this system or file system cannot. Raises OSError."""
    import ctypes

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    if not renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _clear(staging: Path, changes: Sequence[_Change], *, is_done: bool) -> None:
    """Remove the staging folder; keep it all if an old file in it did not get its name back."""
    from nsml._rights import remove_tree

    for one in changes:
        try:
            _give_back(one)
        except OSError as error:
            raise CommandError(
                f"{one.target} could not be put back: it is {one.spare} now",
                why=error.strerror or str(error),
                advice="move it back",
            ) from error
    if not is_done and any(one.before not in (None, _identity(one.target)) for one in changes):
        return
    with suppress(OSError):
        remove_tree(str(staging))
