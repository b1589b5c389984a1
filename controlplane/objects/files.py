"""Files by key, through obstore: what the object store keeps its packs in.

Folders (`folder_files.py`) and buckets (`bucket_files.py`) have them. `mark` says whose they are, and `clock` was
written when the time was asked for.
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
    """A file as a listing has it; when it was written, by the clock of whoever keeps it (Unix s)."""

    key: str
    size: int
    written_at: float


class Files(ABC):
    """Any method may raise ObjectsUnavailable.

    Keys are ours, never what somebody sent: folders and a name, with a `/` between.

    Attributes:
        is_folder: whether they lie in a folder: listing is cheap, and what was listed is all.
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
        """Write a new file of these pieces; it survives a power cut once this returns."""

    async def read(self, key: str) -> bytes | None:
        """The whole file; None when it is not there."""
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
        """Of a file, so many bytes from each of the starts, fewer where it ends before; None when it is not there."""
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
        """Those of the keys that have a file."""
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
        """The files in a folder of keys; those put or removed meanwhile may or may not be among them."""
        with translated(self._advice):
            async for page in obstore.list(self._backend, prefix=f"{under}/"):
                for item in page:
                    yield FoundFile(item["path"], item["size"], item["last_modified"].timestamp())
        await self.check_there()  # a folder that is gone lists nothing, and that ends well

    async def now(self) -> float:
        """The time of whoever keeps the files (Unix s)."""
        await self.check_there()
        with translated(self._advice):
            await obstore.put_async(self._backend, _CLOCK, b"")
            found = await obstore.head_async(self._backend, _CLOCK)
        return found["last_modified"].timestamp()

    async def mark(self, fresh: str = "") -> str:
        """See ObjectStore. They have to have the mark that was told here for as long as they are used."""
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
        """Return once a new mark survives a power cut."""

    async def _read_mark(self) -> str:
        try:
            found = await obstore.get_async(self._backend, MARK)
            return bytes(await found.bytes_async()).decode(errors="replace").strip()
        except (FileNotFoundError, NotFoundError) as error:
            raise_no_bucket(error)
            return ""

    async def unfit(self) -> str:
        """Why these cannot be used, in words: what keeps them ignores what a claim, or a read of a part, rests on. "": they can."""
        return ""

    @abstractmethod
    async def check_there(self) -> None:
        """Raise ObjectsUnavailable where the folder or bucket is not the one of the start any more."""


def raise_no_bucket(error: Exception) -> None:
    """Raise the error again where it says that there is no bucket, and not that a file is not in it."""
    if NO_BUCKET.search(str(error)):
        raise error


@contextlib.contextmanager
def translated(advice: Advice | None) -> Iterator[None]:
    """Obstore's errors by our names; it raises Python's own for the common ones."""
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
    """Whether there is no room; obstore has no name of its own for that, and tells the system's."""
    return getattr(error, "errno", None) in _FULL or any(
        os.strerror(number) in str(error) for number in _FULL
    )
