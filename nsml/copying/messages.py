"""The protocol of a copy: frames (`nsml.spec.frames`), each a letter and its content.

```
sender                          receiver
B  whether it is a folder, bytes
                                G  go on; or R, why not
E  entries, a part of them
                                W  for each file among them, the first wanted byte; -1: it is there
N  its size and time, if it was written since it was listed
C  a piece of the first wanted file
X  its end, and why it is incomplete, if it is
...                             the next file, the next part
D  the end
                                F  the report
```

One side sends at a time. All but C is JSON; names are bytes, decoded for JSON by Python's `surrogateescape`.
Entries are in depth-first order: a folder before its contents, and all its contents before anything else.
"""

from __future__ import annotations

import errno
import json
import os
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.spec.frames import MOST_BYTES, Frames, NotFrames, framed

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

BEGIN: Final = b"B"
GO: Final = b"G"
REFUSED: Final = b"R"
ENTRIES: Final = b"E"
WANTED: Final = b"W"
CONTENT: Final = b"C"
NOW: Final = b"N"
CONTENT_END: Final = b"X"
DONE: Final = b"D"
FINISHED: Final = b"F"

PIECE_BYTES: Final = 128 << 10
"""Largest piece of a file in one message."""
MOST_ENTRIES: Final = 512
MOST_NAME_BYTES: Final = 24 << 10
"""Most bytes of paths in one message; JSON may escape them to six times as many."""
MOST_PATH_BYTES: Final = 4096
_MOST_REASON: Final = 500
MOST_NAMED: Final = 20
"""Most failures listed in a report; it counts all."""
HAS_ALL: Final = -1
LATEST_NS: Final = (1 << 63) - 1
"""Latest time, before or after 1970: in the year 2262."""

FILE: Final = "file"
FOLDER: Final = "folder"
SYMLINK: Final = "symlink"
HARD_LINK: Final = "link"
LEFT_OUT: Final = "left"
KINDS: Final = frozenset({FILE, FOLDER, SYMLINK, HARD_LINK, LEFT_OUT})

TEMPORARY: Final = b".nsml-cp-"
"""Prefix of incomplete files; files with this prefix are not copied."""


class NotUnderstood(ValueError):
    """The other side violates the protocol."""


class Refused(Exception):
    """The other side aborts; the message says why, for people, and `name` is the error's symbol."""

    def __init__(self, why: str, name: str = "") -> None:
        super().__init__(why)
        self.name = name


class Entry(NamedTuple):
    """An entry of a tree.

    `path` is relative to the copied item, empty for the item itself. `target`: of a symbolic link its target, of a hard link
    the path of an earlier file, of a skipped entry the reason; of a file an identifier of its version.
    """

    path: bytes
    kind: str
    mode: int = 0
    mtime_ns: int = 0
    size: int = 0
    target: bytes = b""


class Report(NamedTuple):
    """The result: files and bytes received, and files that existed already.

    `failures` are the first entries that are missing or wrong, with reasons. `resumed_bytes`: the size of the
    parts left by an earlier copy. Each side counts it; it is not sent.
    """

    files: int
    file_bytes: int
    skipped: int
    failed: int
    failures: list[tuple[bytes, str]]
    resumed_bytes: int = 0


def message(kind: bytes, value: Any = None) -> bytes:
    """Encode a message: JSON, or the bytes of a piece."""
    body = value if kind == CONTENT else json.dumps(value).encode()
    whole: bytes = kind + body
    if len(whole) > MOST_BYTES:
        raise ValueError("a message is too long")
    return framed(whole)


def entries_message(entries: list[Entry]) -> bytes:
    """Encode a part of the entries."""
    rows = [[_text(one.path), *one[1:5], _text(one.target)] for one in entries]
    return message(ENTRIES, rows)


def entries_of(value: Any) -> list[Entry]:
    """Decode such a message. Raises NotUnderstood."""
    try:
        return [_entry(*row) for row in value]
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise NotUnderstood("entries") from error


def report_message(report: Report) -> bytes:
    """Encode a report."""
    failures = [[_text(path), why] for path, why in report.failures]
    return message(FINISHED, [*report[:4], failures])


def report_of(value: Any) -> Report:
    """Decode such a message. Raises NotUnderstood."""
    try:
        files, file_bytes, skipped, failed, failures = value
        named = [(_bytes(path), str(why)[:_MOST_REASON]) for path, why in failures[:MOST_NAMED]]
        for count in (files, file_bytes, skipped, failed):
            if _whole(count) >= 1 << 63:
                raise ValueError  # noqa: TRY301
        return Report(files, file_bytes, skipped, failed, named)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise NotUnderstood("a report") from error


class Incoming:
    """Decoder of the other side's messages."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._came: deque[bytes] = deque()

    def next(self) -> Generator[bytes, bytes, tuple[bytes, Any]]:
        """Return the next message: its letter, and its content. Raises NotUnderstood, Refused."""
        while not self._came:
            data = yield b""
            try:
                self._came += self._frames.feed(data)
            except NotFrames as error:
                raise NotUnderstood("no messages") from error
        whole = self._came.popleft()
        kind, body = whole[:1], whole[1:]
        if kind == CONTENT:
            return kind, body
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise NotUnderstood("no JSON") from error
        if kind == REFUSED:
            raise _refusal(value)
        return kind, value

    def expect(self, wanted: bytes) -> Generator[bytes, bytes, Any]:
        """Return the content of the next message, which must be of this kind. Raises NotUnderstood, Refused."""
        kind, value = yield from self.next()
        if kind != wanted:
            raise NotUnderstood(f"{kind!r} instead of {wanted!r}")
        return value


def _entry(  # noqa: PLR0917 - a row
    path: str, kind: str, mode: int, mtime_ns: int, size: int, target: str
) -> Entry:
    made = Entry(_bytes(path), kind, _whole(mode), int(mtime_ns), _whole(size), _bytes(target))
    if kind not in KINDS or abs(made.mtime_ns) > LATEST_NS or max(made.size, made.mode) >= 1 << 63:
        raise ValueError
    if b"\0" in made.target:
        raise ValueError
    check_path(made.path)
    return made


def nearest_time(mtime_ns: int) -> int:
    """Return the time, or the nearest representable one: file systems have later ones."""
    return max(min(mtime_ns, LATEST_NS), -LATEST_NS)


def flags_of(*names: str) -> int:
    """Return flags of `os.open`, as far as supported by this system."""
    flags = 0
    for name in (*names, "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    return flags


def refused_message(error: OSError) -> bytes:
    """Encode why this side aborts."""
    return message(REFUSED, [reason_of(error), errno.errorcode.get(error.errno or 0, "")])


def reason_of(error: OSError) -> str:
    """Return the system's text for an error, without the path."""
    return error.strerror or str(error)


def _refusal(value: Any) -> Exception:
    match value:
        case [str(why), str(name)]:
            return Refused(why[:_MOST_REASON], name)
    return NotUnderstood("a refusal")


def check_path(path: bytes) -> None:
    """Raise NotUnderstood for a path that may lead out of its folder."""
    parts = path.split(b"/") if path else []
    if len(path) > MOST_PATH_BYTES or any(
        part in {b"", b".", b".."} or b"\0" in part or part.startswith(TEMPORARY) for part in parts
    ):
        raise NotUnderstood("a path")


def _whole(number: int) -> int:
    if not isinstance(number, int) or number < 0:
        raise ValueError
    return number


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
