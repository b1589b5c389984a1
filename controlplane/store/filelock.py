"""A lock for one process at a time, for its lifetime."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Self

from controlplane.store.interface import StoreLocked

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class FileLock:
    """Holds an advisory lock on `path` inside a `with`; the kernel releases it when the process dies.

    The file remains and has the last holder's process id, for people.

    Raises:
        StoreLocked: (on entering) another process holds it.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = os.fspath(path)
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        import fcntl  # noqa: PLC0415 - only where a file is locked: the module is POSIX only

        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise StoreLocked(
                f"{self._path} is held by process {holder}: one process has the store at a time"
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
