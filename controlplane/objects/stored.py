"""Objects in a folder or a bucket, through obstore.

Layout: `blobs/ab/cdef...`, the digest cut after two characters, and `aside/` with the same below it for what was put
aside; `mark` says whose they are, and `clock` was written when the time was asked for. Each object is one frame (see
nsml.content.framing): compressed where that pays, and then read whole even for a range.

A folder gets each object under `incoming/` first, flushed, and then under its name: a name never
leads to half an object, and what was acknowledged survives a power cut. Object services promise
both for a plain put.

A folder can vanish while it is used, as when it is unmounted, and what is then at its place is not it.
So nothing is made anew on the way to an object, and the mark that was there at the start is looked at
before every put, and where it matters that an object is not found. Bytes that are found need no look.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import LocalStore

from controlplane.domain.names import check_digest, is_digest
from controlplane.objects.checking import check_blobs
from controlplane.objects.denials import denial, reason
from controlplane.objects.errors import (
    BlobDamaged,
    BlobNotFound,
    ObjectsDenied,
    ObjectsFull,
    ObjectsUnavailable,
)
from controlplane.objects.interface import MAX_BLOB_BYTES, StoredBlob
from controlplane.objects.s3 import open_bucket
from nsml.common.concurrency import to_its_end
from nsml.content.digests import verify
from nsml.content.errors import BlobCorrupt
from nsml.content.framing import frame, unframe

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from obstore.store import ObjectStore as Backend

    from controlplane.objects.s3 import S3Service
    from nsml.common.clock import Offload

T = TypeVar("T")

_BLOBS = "blobs"
_ASIDE = "aside"
_CLOCK = "clock"
_INCOMING = "incoming"
_MARK = "mark"
_ABANDONED_S = 86_400
_NO_BUCKET = "NoSuchBucket"
_AT_ONCE = 32
_PARTS = 8
"""Threads that write the files of one put: a disk flushes several in hardly more time than one."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class StoredObjects:
    """See interface.ObjectStore; made by `open_folder` and `open_shared`."""

    def __init__(
        self, backend: Backend, folder: Path | None, run: Offload, *, incoming: str = _INCOMING
    ) -> None:
        self._backend = backend
        self._folder = folder
        self._run = run
        self._incoming = incoming
        self._marked = ""
        self._numbers = itertools.count()
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._damaged: set[str] = set()

    async def has_missing(self, digests: Collection[str]) -> set[str]:
        """See ObjectStore."""
        wanted = sorted({check_digest(digest) for digest in digests})
        folder = self._folder
        with _translated():
            if folder is None:
                there = await asyncio.gather(*[self._has(digest) for digest in wanted])
                absent = {digest for digest, found in zip(wanted, there, strict=True) if not found}
            else:
                absent = await self._run(lambda: _absent_in_folder(folder, wanted))
        await self._check_there()
        return absent | self._damaged.intersection(wanted)

    async def put(self, digest: str, data: bytes) -> None:
        """See ObjectStore."""
        await self.put_many({digest: data})

    async def put_many(self, blobs: Mapping[str, bytes]) -> None:
        """See ObjectStore."""
        framed = await self._run(lambda: _framed(blobs))
        with _translated():
            if self._folder is None:
                await asyncio.gather(
                    *[self._put(_key(digest), body) for digest, body in framed.items()]
                )
            else:
                # A file that is being written cannot be taken back.
                await to_its_end(self._put_in_folder(self._folder, framed))
        self._damaged.difference_update(framed)

    async def get(self, digest: str) -> bytes:
        """See ObjectStore."""
        check_digest(digest)
        async with self._explained():
            body = await self._somewhere(digest, self._body)
        try:
            return await self._run(lambda: _content(digest, body))
        except BlobDamaged:
            self._damaged.add(digest)
            raise

    async def get_first(self, digests: Sequence[str], most_bytes: int) -> list[bytes]:
        """See ObjectStore. Of a bucket it is one: each is a request of its own there."""
        folder = self._folder
        for digest in digests:
            check_digest(digest)
        some: list[bytes] = []
        if folder is not None and len(digests) > 1:
            some = await self._run(lambda: _first_in_folder(folder, digests, most_bytes))
        return some or [await self.get(digests[0])]

    async def _somewhere(self, digest: str, read: Callable[[str], Awaitable[T]]) -> T:
        """What `read` makes of the object's key: under its name, aside, or taken back in between."""
        with _translated(digest):
            for key in (_key(digest), _key(digest, _ASIDE)):
                with contextlib.suppress(FileNotFoundError, NotFoundError):
                    return await read(key)
            return await read(_key(digest))

    async def delete(self, digest: str) -> bool:
        """See ObjectStore."""
        check_digest(digest)
        with _translated():
            if not await self._has(digest, _ASIDE):
                await self._check_there()
                return False
            try:
                await obstore.delete_async(self._backend, _key(digest, _ASIDE))
            except FileNotFoundError:
                return False
        return True

    async def put_aside(self, digest: str, may: Callable[[], bool]) -> bool:
        """See ObjectStore."""
        key, aside = _key(check_digest(digest)), _key(digest, _ASIDE)
        await self._check_there()
        with _translated():
            if self._folder is not None:
                folder = self._folder
                return await self._run(lambda: may() and _move_aside(folder, key, aside))
            try:
                await obstore.copy_async(self._backend, key, aside)
            except (FileNotFoundError, NotFoundError) as error:
                if _NO_BUCKET in str(error):
                    raise
                return False
            if not may():
                return False
            await obstore.delete_async(self._backend, key)
            return True

    async def take_back(self, digests: Collection[str]) -> None:
        """See ObjectStore."""
        wanted = sorted({check_digest(digest) for digest in digests})
        await self._check_there()
        with _translated():
            await asyncio.gather(*[self._take_back(digest) for digest in wanted])

    async def _take_back(self, digest: str) -> None:
        if await self._has(digest) or not await self._has(digest, _ASIDE):
            return
        key, aside = _key(digest), _key(digest, _ASIDE)
        async with self._at_once:
            if self._folder is not None:
                folder = self._folder
                await self._run(lambda: _move_back(folder, aside, key))
                return
            with contextlib.suppress(FileNotFoundError, NotFoundError):
                await obstore.copy_async(self._backend, aside, key)

    def list(self) -> AsyncIterator[StoredBlob]:
        """See ObjectStore."""
        return self._list(_BLOBS)

    def list_aside(self) -> AsyncIterator[StoredBlob]:
        """See ObjectStore."""
        return self._list(_ASIDE)

    async def _list(self, under: str) -> AsyncIterator[StoredBlob]:
        with _translated():
            async for page in obstore.list(self._backend, prefix=f"{under}/"):
                for item in page:
                    digest = "".join(item["path"].split("/")[1:])
                    if is_digest(digest):  # what others left there is not ours
                        yield StoredBlob(digest, item["size"], item["last_modified"].timestamp())
        await self._check_there()  # a folder that is gone lists nothing, and that ends well

    async def now(self) -> float:
        """See ObjectStore."""
        await self._check_there()
        with _translated():
            await obstore.put_async(self._backend, _CLOCK, b"")
            found = await obstore.head_async(self._backend, _CLOCK)
        return found["last_modified"].timestamp()

    async def mark(self, fresh: str = "") -> str:
        """See ObjectStore. A folder has to have the mark that was told here for as long as it is used."""
        found = await self._mark(fresh)
        self._marked = found or self._marked
        return found

    async def _mark(self, fresh: str) -> str:
        with _translated():
            known = await self._read_mark()
            if known or not fresh:
                return known
            with contextlib.suppress(AlreadyExistsError, PreconditionError):
                await obstore.put_async(self._backend, _MARK, fresh.encode(), mode="create")
            if self._folder is not None:
                folder = self._folder
                await self._run(lambda: _flush_all([folder / _MARK, folder]))
            return await self._read_mark()

    async def _read_mark(self) -> str:
        try:
            found = await obstore.get_async(self._backend, _MARK)
            return bytes(await found.bytes_async()).decode(errors="replace").strip()
        except (FileNotFoundError, NotFoundError) as error:
            if _NO_BUCKET in str(error):
                raise
            return ""

    async def _check_there(self) -> None:
        """Raise ObjectsUnavailable where the folder is not the one of the start any more."""
        folder, marked = self._folder, self._marked
        if folder is not None:
            await self._run(lambda: _check_folder(folder, marked))

    @contextlib.asynccontextmanager
    async def _explained(self) -> AsyncIterator[None]:
        """That a blob is not there is said of a folder only that is there itself."""
        try:
            yield
        except BlobNotFound:
            await self._check_there()
            raise

    async def _has(self, digest: str, under: str = _BLOBS) -> bool:
        async with self._at_once:
            try:
                await obstore.head_async(self._backend, _key(digest, under))
            except (FileNotFoundError, NotFoundError):
                return False
            return True

    async def _body(self, key: str) -> bytes:
        found = await obstore.get_async(self._backend, key)
        return bytes(await found.bytes_async())

    async def _put(self, key: str, body: bytes) -> None:
        async with self._at_once:
            await obstore.put_async(self._backend, key, body)

    async def _put_in_folder(self, folder: Path, framed: Mapping[str, bytes]) -> None:
        """Put all, or leave nothing under `incoming/`: a full disk must not stay full of those."""
        incoming = folder / self._incoming
        marked = self._marked
        begun = {digest: incoming / f"{next(self._numbers)}-{digest}" for digest in framed}
        try:
            await self._run(lambda: _check_folder(folder, marked, incoming))
            bodies = [(begun[digest], body) for digest, body in framed.items()]
            await self._in_parts(_write_flushed, bodies)
            parents = await self._run(lambda: _name_files(folder, begun))
            await self._in_parts(_flush_all, parents)
        except BaseException:
            await self._run(lambda: _remove_files(begun.values()))
            raise

    async def _in_parts(self, work: Callable[[Sequence[T]], object], items: Sequence[T]) -> None:
        """Do it in a few threads at once, which wait for the disk together."""

        async def one(part: Sequence[T]) -> None:
            async with self._at_once:
                await self._run(lambda: work(part))

        parts = [part for first in range(_PARTS) if (part := items[first::_PARTS])]
        doing = [asyncio.ensure_future(one(part)) for part in parts]
        # Wait for all though one failed: what is still written could not be removed.
        await asyncio.gather(*doing, return_exceptions=True)
        for each in doing:
            each.result()


def open_folder(folder: Path, run: Offload) -> StoredObjects:
    """Objects in a local folder, made if need be. Blocking.

    What an earlier process left half done is removed: one process at a time writes to a folder.
    """
    (folder / _BLOBS).mkdir(parents=True, exist_ok=True, mode=0o700)
    incoming = folder / _INCOMING
    incoming.mkdir(exist_ok=True, mode=0o700)
    for left in incoming.iterdir():
        left.unlink()
    _flush_all([folder])
    return StoredObjects(LocalStore(prefix=folder), folder, run)


def open_shared(
    url: str, run: Offload, *, service: S3Service, environment: Mapping[str, str]
) -> StoredObjects:
    """Objects that several processes share: s3://BUCKET/PREFIX, or file:///FOLDER that all mount.

    Raises:
        ValueError: it is no such URL, or cannot be used as it stands; the message says why.
    """
    folder = shared_folder(url)
    if folder is not None:
        return _open_shared_folder(folder, url, run)
    return StoredObjects(open_bucket(url, service, environment), None, run)


def shared_folder(url: str) -> Path | None:
    """The folder of file:///FOLDER; None of another URL."""
    return Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None


def _open_shared_folder(folder: Path, url: str, run: Offload) -> StoredObjects:
    """A folder that others write to as well: each process has a place of its own for what it begins.

    The folder itself is never made: where it is not there, it is probably not mounted.
    """
    if urlsplit(url).netloc or not folder.is_absolute():
        raise ValueError(f"{url} is no folder: write file:///FOLDER, with three slashes")
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder} here: is it mounted? (mkdir makes a new one)"
        )
    try:
        (folder / _BLOBS).mkdir(exist_ok=True, mode=0o700)
        (folder / _INCOMING).mkdir(exist_ok=True, mode=0o700)
        own = Path(tempfile.mkdtemp(prefix="from-", dir=folder / _INCOMING))
        _remove_abandoned(own)
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from error
    _flush_all([folder])
    incoming = f"{_INCOMING}/{own.name}"
    return StoredObjects(LocalStore(prefix=folder), folder, run, incoming=incoming)


def _remove_abandoned(own: Path) -> None:
    """Remove what other processes began that cannot be at it any more: no put takes a day.

    Compared with what was made just now: the clock of whoever keeps the folder may not be ours.
    """
    before = own.stat().st_mtime - _ABANDONED_S
    for other in own.parent.iterdir():
        with contextlib.suppress(OSError):  # it has come to life, or is gone
            for begun in other.iterdir():
                if begun.stat().st_mtime < before:
                    begun.unlink()
            if other.stat().st_mtime < before:
                other.rmdir()


def _key(digest: str, under: str = _BLOBS) -> str:
    return f"{under}/{digest[:2]}/{digest[2:]}"


def _framed(blobs: Mapping[str, bytes]) -> dict[str, bytes]:
    check_blobs(blobs)
    return {digest: frame(data) for digest, data in blobs.items()}


def _absent_in_folder(folder: Path, digests: Iterable[str]) -> set[str]:
    """Those that have no file. Raises OSError: it is not known."""
    absent = set()
    for digest in digests:
        try:
            os.stat(f"{folder}/{_key(digest)}")  # noqa: PTH116 - paths are made for thousands
        except FileNotFoundError:
            absent.add(digest)
    return absent


def _first_in_folder(folder: Path, digests: Sequence[str], most_bytes: int) -> list[bytes]:
    """Those that can be read, up to so many bytes together or the first that cannot be: `get` says why."""
    found, size = [], 0
    with contextlib.suppress(OSError, BlobDamaged):
        for digest in digests:
            data = _content(digest, (folder / _key(digest)).read_bytes())
            found.append(data)
            size += len(data)
            if size >= most_bytes:
                break
    return found


def _content(digest: str, body: bytes) -> bytes:
    try:
        data = unframe(body, max_bytes=MAX_BLOB_BYTES)
        verify(digest, data)
    except BlobCorrupt as error:
        raise BlobDamaged(
            f"blob {digest} is damaged in the object store",
            why=str(error),
            attempt="send it again: push the dataset once more",
        ) from error
    return data


@contextlib.contextmanager
def _translated(digest: str = "") -> Iterator[None]:
    """Obstore's errors by our names; it raises Python's own for the common ones."""
    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        has_no_bucket = _NO_BUCKET in str(error)
        if digest and not has_no_bucket:
            raise BlobNotFound(f"there is no blob {digest}") from error
        if has_no_bucket:
            why = "there is no such bucket"
            raise ObjectsDenied(
                "the object store is gone", why=why, attempt=denial(str(error))
            ) from error
        raise ObjectsUnavailable("the object store is gone", why=reason(str(error))) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise ObjectsDenied(
            "the object store refuses our credentials",
            why=reason(str(error)),
            attempt=denial(str(error)),
        ) from error
    except (OSError, BaseError) as error:
        raise _kind(error)(
            "the object store cannot be used now",
            why=reason(str(error)),
            attempt=denial(str(error)),
        ) from error


def _kind(error: Exception) -> type[ObjectsUnavailable]:
    if _is_full(error):
        return ObjectsFull
    return ObjectsDenied if denial(str(error)) else ObjectsUnavailable


def _is_full(error: Exception) -> bool:
    """Whether there is no room; obstore has no name of its own for that, and tells the system's."""
    return getattr(error, "errno", None) in _FULL or any(
        os.strerror(number) in str(error) for number in _FULL
    )


def _check_folder(folder: Path, marked: str, incoming: Path | None = None) -> None:
    """Return when the folder is the one that it was at the start, and `incoming` is in it.

    Others remove our place under `incoming/` when nothing was put for a day; it is made again, but
    nothing above it is.
    """
    try:
        if marked:
            is_there = (folder / _MARK).read_text(errors="replace").strip() == marked
        else:
            is_there = (folder / _BLOBS).is_dir()
    except (FileNotFoundError, NotADirectoryError):
        is_there = False
    except OSError as error:
        raise ObjectsUnavailable(
            "the object store cannot be used now", why=f"{folder}: {error.strerror}"
        ) from error
    if not is_there:
        raise ObjectsUnavailable(
            "the object store is gone",
            why=f"{folder} is not the folder that it was at the start: is it mounted?",
        )
    if incoming is not None and not incoming.exists():
        incoming.mkdir(mode=0o700, exist_ok=True)


def _write_flushed(files: Iterable[tuple[Path, bytes]]) -> None:
    """New files in a folder that is there; nothing above them is made."""
    for path, body in files:
        with path.open("xb", buffering=0) as file:
            left = memoryview(body)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())


def _name_files(folder: Path, begun: Mapping[str, Path]) -> list[Path]:
    """Give what was flushed its names, and say which folders are to be flushed; no file of ours, no name."""
    blobs = folder / _BLOBS
    parents = sorted({blobs / digest[:2] for digest in begun})
    for parent in parents:
        parent.mkdir(exist_ok=True)
    for digest, path in begun.items():
        path.rename(folder / _key(digest))
    return [*parents, blobs]


def _move_aside(folder: Path, key: str, aside: str) -> bool:
    """Dated before it is moved: what is aside has never been there for longer than it says."""
    to = folder / aside
    to.parent.parent.mkdir(exist_ok=True, mode=0o700)
    to.parent.mkdir(exist_ok=True)
    try:
        os.utime(folder / key)
        (folder / key).rename(to)
    except FileNotFoundError:
        return False
    return True


def _move_back(folder: Path, aside: str, key: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder / aside).rename(folder / key)


def _remove_files(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _flush_all(paths: Iterable[Path]) -> None:
    for path in paths:
        _flush(path)


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
