"""Decisions to sync a folder in a session with a local one: pure.

The direction is from here to there, and the local edits are the truth. Programs of the session work in
the same folder: their changes and new files stay, and are reported if they conflict with a local file.

| here | known of there | there now      | then                     |
|------|----------------|----------------|--------------------------|
| a    | any            | a              | nothing                  |
| a    | any            | nothing        | put a                    |
| a    | b              | b              | put a in place of b      |
| a    | b, or nothing  | something else | keep that, and name it   |
| -    | b              | b              | remove it                |
| -    | b              | something else | keep that, and name it   |
| -    | nothing        | anything       | nothing: it is theirs    |

*Known* is what was put there from here, by this or when the session started.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from nsml.copying.sync_messages import File, NoFile, Order, Put, Remove, RemoveFolder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nsml.copying.sync_messages import State


class Here(NamedTuple):
    """A local file."""

    file: File
    size: int
    mtime_ns: int


class Conflict(Enum):
    """Why a file of the session is kept."""

    CHANGED_THERE = "was changed there"
    CHANGED_TOO = "was changed there too; yours is not sent"
    MADE_THERE = "was made there too; yours is not sent"
    REMOVED_HERE = "was changed there; it is removed here"


class Kept(NamedTuple):
    """A conflicting path in the session; `why`: what it is, if it is no file."""

    path: bytes
    conflict: Conflict
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Planned actions; orders are in the order of execution."""

    orders: list[Order] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    same: list[bytes] = field(default_factory=list)
    """Files equal on both sides."""
    forgotten: list[bytes] = field(default_factory=list)
    """Files no longer synced: removed on both sides, or left to the session."""


def plan(
    paths: Iterable[bytes],
    here: Mapping[bytes, Here],
    known: Mapping[bytes, File],
    there: Mapping[bytes, State],
    folders: Collection[bytes] = (),
) -> Plan:
    """Plan actions for these paths; `here` has all files of the local folder.

    `folders` were created by the sync: they are removed with the last file in them.
    """
    made = Plan()
    puts: list[Order] = []
    removed: list[bytes] = []
    for path in sorted(paths):
        file, base, state = here.get(path), known.get(path), there.get(path)
        if file is None:
            if base is not None and state == base:
                made.orders.append(Remove(path, base))
                removed.append(path)
            elif base is not None:
                made.forgotten.append(path)
                if state is not None:
                    made.kept.append(Kept(path, Conflict.REMOVED_HERE, _why(state)))
        elif state == file.file:
            made.same.append(path)
        elif _may_put(base, state):
            there_now = state if isinstance(state, File) else None
            puts.append(Put(path, file.file, file.size, file.mtime_ns, there_now))
        else:
            made.kept.append(Kept(path, _conflict(file.file, base), _why(state)))
    made.orders.extend(RemoveFolder(path) for path in _emptied(removed, here, folders))
    made.orders.extend(puts)
    return made


def _may_put(base: File | None, state: State) -> bool:
    """Return whether nothing of the session's would be lost.

    A folder is replaced by a file only once it is empty and removed, which the session's side checks.
    """
    return state is None or (base is not None and state == base) or _is_folder(state)


def _is_folder(state: State) -> bool:
    return isinstance(state, NoFile) and state.why == A_FOLDER


A_FOLDER = "a folder"


def _conflict(file: File, base: File | None) -> Conflict:
    if base is None:
        return Conflict.MADE_THERE
    return Conflict.CHANGED_THERE if file == base else Conflict.CHANGED_TOO


def _why(state: State) -> str:
    return state.why if isinstance(state, NoFile) else ""


def _emptied(
    removed: Iterable[bytes], here: Mapping[bytes, Here], folders: Collection[bytes]
) -> list[bytes]:
    """Return folders created from here without local files, the deepest first."""
    candidates = {above for path in removed for above in folders_above(path)} & set(folders)
    if not candidates:
        return []
    used = {above for path in here for above in folders_above(path)}
    return sorted(candidates - used, key=lambda path: (-path.count(b"/"), path))


def folders_above(path: bytes) -> list[bytes]:
    """Return the parent folders, the deepest first."""
    found = []
    while (cut := path.rfind(b"/")) >= 0:
        path = path[:cut]
        found.append(path)
    return found
