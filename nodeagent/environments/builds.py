"""Builds shared by waiting sessions: each runs once on the node, and all see its whole output.

```
<folder>/<key>.lock   exclusive during a build, shared while others start to use its result
<folder>/<key>.log    output of the running build: a JSON object a line; removed when it has ended
```

Agents of one node (a new one beside a dying one) share the folder: the lock is the kernel's, and a
killed builder leaves a log without an end, so the next one builds.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from collections import deque
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING

from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nodeagent.environments.build_queue import Ticket

    Say = Callable[[bytes], object]

_LOOK_EVERY_S = 0.1
_LONGEST_TOLD = 300
"""Maximum bytes of a line in a failure's reason; the log has it whole."""
_MOST_SAID_BYTES = 8 << 20
_LAST_LINES = 3
_LONGEST_LINE = 64 << 10
_PLACES = (b"Looking in ", b"Location ")
"""Prefixes of pip's lines about the machine's package sources, which do not concern users."""
_TELLING = re.compile(rb"(?:ERROR|E|error|cause|nsml): ?(.+)")
"""Prefixes of error lines of pip, uv, apt, compilers and our own steps."""


class Builds:
    """The builds below `folder`. Blocking; safe for concurrent threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turns: dict[str, threading.Lock] = {}

    def provide(
        self,
        key: str,
        *,
        is_there: Callable[[], bool],
        build: Callable[[Say], None],
        say: Say,
        use: Callable[[], object] = lambda: None,
        cancelled: threading.Event | None = None,
        ticket: Ticket | None = None,
    ) -> None:
        """Return once `is_there()`: at once, after `build`, or after another caller's build.

        `use` marks the key as needed, before `is_there` is called: removal checks that later,
        within `unused`. `say` gets the build's whole output, also of another caller's build.
        `build` starts when `ticket` grants it; of callers with the same key the first granted one builds.
        Raises EnvironmentFailed, also if another caller's build failed meanwhile,
        EnvironmentCancelled soon after `cancelled` is set (the next waiting caller then builds), and
        errors of `ticket`.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(_Followed(self._folder / f"{key}.log", say)) as followed:
            if self._has(key, use, is_there):
                return followed.read()
            # One at a time: many pollers would keep each other from the lock forever.
            turn = self._turns.setdefault(key, threading.Lock())
            while True:
                with ExitStack() as held:
                    with turn:
                        if self._has(key, use, is_there):
                            return followed.read()
                        is_held = held.enter_context(self._locked(key, fcntl.LOCK_EX))
                    # Another's build: pass on its output, or raise its failure.
                    followed.read(begins=not is_held)
                    if ticket is not None and followed.is_following:
                        ticket.stand_by()
                    if is_held and not is_there() and (ticket is None or ticket.begin()):
                        return self._build(key, build, say, cancelled)
                if cancelled is not None and cancelled.is_set():
                    raise EnvironmentCancelled
                time.sleep(_LOOK_EVERY_S)

    @contextmanager
    def unused(self, key: str) -> Iterator[bool]:
        """Whether nobody builds it or starts to use it, for as long as the context lasts."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked(key, fcntl.LOCK_EX) as is_held:
            yield is_held

    @contextmanager
    def idle(self, key: str) -> Iterator[bool]:
        """Whether nobody builds it, for as long as the context lasts; others may use it meanwhile."""
        with self._locked(key, fcntl.LOCK_SH) as is_held:
            yield is_held

    def forget(self, key: str) -> None:
        """Remove log and lock of a removed key; within `unused`."""
        for suffix in ("log", "lock"):
            (self._folder / f"{key}.{suffix}").unlink(missing_ok=True)
        self._turns.pop(key, None)

    def _has(self, key: str, use: Callable[[], object], is_there: Callable[[], bool]) -> bool:
        """Whether it is there, and marked as used, so it stays; False also during a build."""
        with self.idle(key) as is_idle:
            if not is_idle:
                return False
            use()
            return is_there()

    def _build(
        self,
        key: str,
        build: Callable[[Say], None],
        say: Say,
        cancelled: threading.Event | None,
    ) -> None:
        if cancelled is not None and cancelled.is_set():
            raise EnvironmentCancelled
        path = self._folder / f"{key}.log"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb", buffering=0) as log:  # noqa: PTH123 - a descriptor, not a path

            def tell(piece: bytes) -> None:
                _write(log.fileno(), {"said": _text(piece)})
                say(piece)

            try:
                build(_Bounded(tell))
            except EnvironmentFailed as error:
                _write(log.fileno(), {"failed": str(error)})
                raise
            finally:
                path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, key: str, how: int) -> Iterator[bool]:
        """Hold the lock file for the context, if it is free at once."""
        path = self._folder / f"{key}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_held = True
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            except BlockingIOError:
                is_held = False
            # A lock file that was removed meanwhile locks nothing: the next try makes a new one.
            yield is_held and _is_at(descriptor, path)
        finally:
            os.close(descriptor)


class LastWords:
    """Passes output on, and keeps its most telling lines as a failure's reason."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._telling: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._rest = b""

    def __call__(self, piece: bytes) -> None:
        """Take a piece of output."""
        self._say(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._take(_short(line))
        self._rest = self._rest[:1000]

    def reason(self, otherwise: str) -> str:
        """On one line: the lines that say what is wrong, else the last ones, else `otherwise`."""
        self._take(_short(self._rest))
        lines = self._telling or self._last
        return "; ".join(line.decode(errors="replace") for line in lines) or otherwise

    def _take(self, line: bytes) -> None:
        if not line:
            return
        self._last.append(line)
        telling = _TELLING.match(line)
        if telling and telling[1] not in self._telling:
            self._telling.append(telling[1])


class WithoutPlaces:
    """Passes output on in whole lines, without pip's lines about this machine's package sources."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._rest = b""

    def __call__(self, piece: bytes) -> None:
        """Take a piece of output."""
        whole, newline, self._rest = (self._rest + piece).rpartition(b"\n")
        lines = [
            line for line in (whole + newline).splitlines(keepends=True) if not _is_place(line)
        ]
        if lines:
            self._say(b"".join(lines))
        if len(self._rest) > _LONGEST_LINE:
            self.end()

    def end(self) -> None:
        """Flush the last line."""
        if self._rest and not _is_place(self._rest):
            self._say(self._rest)
        self._rest = b""


def _is_place(line: bytes) -> bool:
    return line.removeprefix(b"WARNING: ").startswith(_PLACES)


def _short(line: bytes) -> bytes:
    line = line.strip()
    return line if len(line) <= _LONGEST_TOLD else line[:_LONGEST_TOLD] + b"..."


class _Bounded:
    """Passes on a bounded number of bytes, and says so when there are more."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._room = _MOST_SAID_BYTES

    def __call__(self, piece: bytes) -> None:
        if self._room <= 0:
            return
        self._say(piece[: self._room])
        self._room -= len(piece)
        if self._room <= 0:
            self._say(b"\nnsml: the build says more than a log takes: the rest is left out\n")


class _Followed:
    """The log of another caller's build, read as it grows."""

    def __init__(self, path: Path, say: Say) -> None:
        self._path = path
        self._say = say
        self._log: int | None = None
        self._rest = b""

    @property
    def is_following(self) -> bool:
        """Whether another builds: its log is open."""
        return self._log is not None

    def read(self, *, begins: bool = False) -> None:
        """Pass on new output; raises EnvironmentFailed if the build has failed.

        `begins`: a build is running; open its log unless one is open.
        """
        if self._log is None and begins:
            with suppress(FileNotFoundError):
                self._log = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        if self._log is None:
            return
        has_ended = not _is_at(self._log, self._path)
        while piece := os.read(self._log, 1 << 16):
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        if has_ended:
            self.close()

    def close(self) -> None:
        """Close the log; the next build has another."""
        if self._log is not None:
            os.close(self._log)
        self._log, self._rest = None, b""

    def _take(self, record: dict[str, str]) -> None:
        if "failed" in record:
            raise EnvironmentFailed(record["failed"])
        self._say(record["said"].encode("latin-1"))


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether `path` still names the open file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _text(piece: bytes) -> str:
    """Any bytes as text, one character per byte."""
    return piece.decode("latin-1")


def _write(descriptor: int, record: dict[str, str]) -> None:
    content = memoryview(json.dumps(record).encode() + b"\n")
    while content:
        content = content[os.write(descriptor, content) :]
