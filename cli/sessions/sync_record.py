"""The synced state of a session's folder between calls of `nsml dev --sync`: files put there from here.

A file of lines for each session, in the configuration's folder: appended on each action, and rewritten
when it is opened. Without it nothing would be lost: differing files would be kept, and reported.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsml._path_text import bytes_of, text_of
from nsml.client import contexts
from nsml.copying.sync_messages import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.app import App

_FOLDER: Final = "sync"
_ENDING: Final = ".jsonl"
_OLD_S: Final = 60 * 86_400


class Origin(NamedTuple):
    """The synced folder and session."""

    folder: str
    context: str
    session_id: str
    flags: list[str]
    """The words of the command line that started it."""
    attempt: int
    """Its folder is laid out anew for each attempt."""


class Record:
    """One record. `files` and `folders` were put there; `begun` possibly: their outcome is unknown."""

    def __init__(self, path: Path, origin: Origin) -> None:
        self._path = path
        self._lock: int | None = None
        self._pending: list[str] = []
        self.origin = origin
        self.files: dict[bytes, File] = {}
        self.begun: dict[bytes, File] = {}
        self.folders: set[bytes] = set()

    def try_lock(self) -> bool:
        """Return whether this process has the lock, needed to write it. It is read in any case."""
        if self._lock is not None:
            return True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(
            self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            self._take_over()
            return False
        self._lock = lock
        self._take_over()
        self._write_anew()
        return True

    def _take_over(self) -> None:
        """Load the state written by earlier processes."""
        found = _read(self._path)
        if found is not None:
            self.origin = self.origin._replace(flags=found.origin.flags)
            if found.origin.attempt == self.origin.attempt:
                self.files, self.folders = found.files, found.folders
                self.begun = found.begun

    def start_attempt(self, attempt: int) -> None:
        """Discard the state of another attempt's folder."""
        if attempt != self.origin.attempt:
            self.origin = self.origin._replace(attempt=attempt)
            self.files, self.begun, self.folders = {}, {}, set()
            if self._lock is not None:
                self._write_anew()

    def know(self, path: bytes, file: File | None) -> None:
        """Record a file put there; None: the file there is not from here."""
        self.begun.pop(path, None)
        if self.files.get(path) == file:
            return
        if file is None:
            del self.files[path]
        else:
            self.files[path] = file
        self._pending.append(_line(path=text_of(path), file=file and [*file]))

    def begin(self, path: bytes, file: File) -> None:
        """Record a pending put."""
        self.begun[path] = file
        self._pending.append(_line(path=text_of(path), begun=[*file]))

    def refused(self, path: bytes) -> None:
        """Record that a pending put was refused."""
        self.begun.pop(path, None)

    def know_folder(self, path: bytes, *, is_made: bool) -> None:
        """Record a folder created for puts, or removed."""
        if is_made != (path in self.folders):
            (self.folders.add if is_made else self.folders.discard)(path)
            self._pending.append(_line(folder=text_of(path), is_made=is_made))

    def save(self) -> None:
        """Write new entries. Raises OSError."""
        if self._pending and self._lock is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(self._pending))
            self._pending = []

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Remove the record of an ended session."""
        for path in (self._path, self._path.with_suffix(".lock")):
            path.unlink(missing_ok=True)

    def _write_anew(self) -> None:
        draft = self._path.with_suffix(".new")
        with draft.open("w", encoding="utf-8") as file:
            file.write(_line(origin=self.origin._asdict()))
            for path, known in self.files.items():
                file.write(_line(path=text_of(path), file=[*known]))
            for path, begun in self.begun.items():
                file.write(_line(path=text_of(path), begun=[*begun]))
            for path in self.folders:
                file.write(_line(folder=text_of(path), is_made=True))
        draft.replace(self._path)
        self._pending = []


def record_of(app: App, origin: Origin) -> Record:
    """Return the record of a session."""
    return Record(_place(app) / f"{origin.session_id}{_ENDING}", origin)


def records_of_folder(app: App, folder: str) -> Iterator[Record]:
    """Return the records of sessions synced with this folder, in this context, the latest first."""
    with suppress(OSError):
        paths = sorted(_place(app).glob(f"*{_ENDING}"), key=_time, reverse=True)
        for path in paths:
            found = _read(path)
            if found is not None and (found.origin.folder, found.origin.context) == (
                folder,
                app.context.name,
            ):
                yield found


def forget_old(app: App) -> None:
    """Remove old records, of sessions that most likely ended long ago."""
    with suppress(OSError):
        for path in _place(app).iterdir():
            if time.time() - path.stat().st_mtime > _OLD_S:
                path.unlink(missing_ok=True)


def _place(app: App) -> Path:
    return Path(contexts.config_folder(app.environ)).absolute() / _FOLDER


def _time(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _read(path: Path) -> Record | None:
    """Read a record; None if unreadable. Incomplete lines are skipped."""
    try:
        first, *rest = path.read_text("utf-8").splitlines()
        record = Record(path, Origin(**json.loads(first)["origin"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    for line in rest:
        with suppress(ValueError, LookupError, TypeError):
            _apply(record, json.loads(line))
    return record


def _apply(record: Record, change: Any) -> None:
    if "folder" in change:
        known = record.folders
        (known.add if change["is_made"] else known.discard)(bytes_of(change["folder"]))
        return
    path = bytes_of(change["path"])
    if "begun" in change:
        record.begun[path] = _file(change["begun"])
    elif change["file"] is None:
        record.files.pop(path, None)
        record.begun.pop(path, None)
    else:
        record.files[path] = _file(change["file"])
        record.begun.pop(path, None)


def _file(row: Any) -> File:
    digest, is_executable = row
    return File(str(digest), bool(is_executable))


def _line(**values: Any) -> str:
    return json.dumps(values) + "\n"
