"""Files by key, through obstore: the storage under the object store's packs.

Implemented for folders (`folder_files.py`) and buckets (`bucket_files.py`). The file `mark` identifies the owner;
the file `clock` is rewritten to read the storage's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from controlplane.objects.denials import NO_BUCKET, denial, reason
from controlplane.objects.errors import ObjectsDenied, ObjectsFull, ObjectsUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from obstore.store import ObjectStore as Backend

    from controlplane.objects.service import Advice
    from nsml.common.clock import Offload

_CLOCK = "clock"
MARK = "mark"
_AT_ONCE = 32
_FULL = (errno.ENOSPC, errno.EDQUOT)


class FoundFile(NamedTuple):
    """A listed file; `written_at` is by the storage's clock (Unix s)."""

    key: str
    size: int
    written_at: float


class Files(ABC):
    """Any method may raise ObjectsUnavailable.

    Keys are our own, never user input: folders and a name, separated by `/`.

    Attributes:
        is_folder: whether they are in a folder: listing is cheap and complete.
    """

    is_folder: ClassVar[bool]

    def __init__(self, backend: Backend, run: Offload, advice: Advice | None = None) -> None:
        self.run = run
        self._backend = backend
        self._advice = advice
        self._marked = ""
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    @abstractmethod
    async def put(self, key: str, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a new file of these pieces; durable once this returns."""

    async def read(self, key: str) -> bytes | None:
        """Return the whole file; None if it does not exist."""
        with translated(self._advice):
            try:
                async with self._at_once:
                    found = await obstore.get_async(self._backend, key)
                    return bytes(await found.bytes_async())
            except (FileNotFoundError, NotFoundError) as error:
                raise_no_bucket(error)
        await self.check_there()
        return None

    async def ranges(self, key: str, wanted: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Read (start, length) ranges of a file, shorter at its end; None if it does not exist."""
        with translated(self._advice):
            try:
                async with self._at_once:
                    return await self._read_ranges(key, wanted)
            except (FileNotFoundError, NotFoundError) as error:
                raise_no_bucket(error)
        await self.check_there()
        return None

    @abstractmethod
    async def _read_ranges(self, key: str, wanted: Sequence[tuple[int, int]]) -> list[bytes]: ...

    async def has(self, keys: Sequence[str]) -> set[str]:
        """Return the keys that have a file."""
        with translated(self._advice):
            found = await self._present(keys)
        if len(found) < len(keys):
            await self.check_there()
        return found

    @abstractmethod
    async def _present(self, keys: Sequence[str]) -> set[str]: ...

    async def remove(self, key: str) -> None:
        """Remove a file, if it is there."""
        await self.check_there()
        with translated(self._advice), contextlib.suppress(FileNotFoundError, NotFoundError):
            await obstore.delete_async(self._backend, key)

    async def list(self, under: str) -> AsyncIterator[FoundFile]:
        """List the files in a folder of keys; files put or removed meanwhile may or may not be included."""
        with translated(self._advice):
            async for page in obstore.list(self._backend, prefix=f"{under}/"):
                for item in page:
                    yield FoundFile(item["path"], item["size"], item["last_modified"].timestamp())
        await self.check_there()  # a missing folder lists nothing, without an error

    async def now(self) -> float:
        """The time by the storage's clock (Unix s)."""
        await self.check_there()
        with translated(self._advice):
            await obstore.put_async(self._backend, _CLOCK, b"")
            found = await obstore.head_async(self._backend, _CLOCK)
        return found["last_modified"].timestamp()

    async def mark(self, fresh: str = "") -> str:
        """See ObjectStore. The files must keep the mark returned here for as long as they are used."""
        found = await self._mark(fresh)
        self._marked = found or self._marked
        return found

    async def _mark(self, fresh: str) -> str:
        with translated(self._advice):
            known = await self._read_mark()
            if known or not fresh:
                return known
            with contextlib.suppress(AlreadyExistsError, PreconditionError):
                await obstore.put_async(self._backend, MARK, fresh.encode(), mode="create")
            await self._flush_mark()
            return await self._read_mark()

    @abstractmethod
    async def _flush_mark(self) -> None:
        """Return once a new mark is durable."""

    async def _read_mark(self) -> str:
        try:
            found = await obstore.get_async(self._backend, MARK)
            return bytes(await found.bytes_async()).decode(errors="replace").strip()
        except (FileNotFoundError, NotFoundError) as error:
            raise_no_bucket(error)
            return ""

    async def unfit(self) -> str:
        """Return why these cannot be used: no exclusive create or no range reads; "" if they can."""
        return ""

    @abstractmethod
    async def check_there(self) -> None:
        """Raise ObjectsUnavailable if the folder or bucket is no longer the one at start-up."""


def raise_no_bucket(error: Exception) -> None:
    """Reraise the error if the bucket is missing, not only a file in it."""
    if NO_BUCKET.search(str(error)):
        raise error


@contextlib.contextmanager
def translated(advice: Advice | None) -> Iterator[None]:
    """Translate obstore's errors to ours; obstore raises Python's own for common ones."""
    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        if NO_BUCKET.search(str(error)):
            why = "there is no such bucket"
            raise ObjectsDenied(
                "the object store is gone", why=why, attempt=denial(str(error), advice)
            ) from error
        raise ObjectsUnavailable("the object store is gone", why=reason(str(error))) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise ObjectsDenied(
            "the object store refuses our credentials",
            why=reason(str(error)),
            attempt=denial(str(error), advice),
        ) from error
    except (OSError, BaseError) as error:
        raise _kind(error, advice)(
            "the object store cannot be used now",
            why=reason(str(error)),
            attempt=denial(str(error), advice),
        ) from error


def _kind(error: Exception, advice: Advice | None) -> type[ObjectsUnavailable]:
    if _is_full(error):
        return ObjectsFull
    return ObjectsDenied if denial(str(error), advice) else ObjectsUnavailable


def _is_full(error: Exception) -> bool:
    """Whether the storage is full; obstore has no error of its own for it, only the system's message."""
    return getattr(error, "errno", None) in _FULL or any(
        os.strerror(number) in str(error) for number in _FULL
    )
