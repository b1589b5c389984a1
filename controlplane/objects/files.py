"""Files by key in a folder or a bucket, through obstore: what the object store keeps its packs in.

`mark` says whose they are, and `clock` was written when the time was asked for.

A folder gets each file under `incoming/` first, flushed, and then under its name: a name never leads to half a
file, and what was acknowledged survives a power cut. Object services promise both for a plain put.

A folder can vanish while it is used, as when it is unmounted, and what is then at its place is not it.
So nothing is made anew on the way to a file, and the mark that was there at the start is looked at
before every put, and where it matters that a file is not found. Bytes that are found need no look.
The same holds for a bucket that is emptied, or replaced by another one of its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import itertools
import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast
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

from controlplane.objects.buckets import open_bucket
from controlplane.objects.denials import NO_BUCKET, NOT_UNDERSTOOD, denial, reason
from controlplane.objects.errors import ObjectsDenied, ObjectsFull, ObjectsUnavailable
from nsml.common.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

    from obstore.store import ObjectStore as Backend
    from obstore.store import S3Store

    from controlplane.objects.service import Advice, BucketService
    from nsml.common.clock import Offload

_CLOCK = "clock"
_INCOMING = "incoming"
_MARK = "mark"
_PACKS = "packs"
_ABANDONED_S = 86_400
_AT_ONCE = 32
_FULL = (errno.ENOSPC, errno.EDQUOT)


class FoundFile(NamedTuple):
    """A file as a listing has it; when it was written, by the clock of whoever keeps it (Unix s)."""

    key: str
    size: int
    written_at: float


class Files:
    """Made by `open_folder` and `open_shared`. Any method may raise ObjectsUnavailable.

    Keys are ours, never what somebody sent: folders and a name, with a `/` between.
    """

    def __init__(
        self,
        backend: Backend,
        folder: Path | None,
        run: Offload,
        *,
        incoming: str = _INCOMING,
        advice: Advice | None = None,
    ) -> None:
        self.run = run
        self._backend = backend
        self._folder = folder
        self._incoming = incoming
        self._advice = advice
        self._marked = ""
        self._numbers = itertools.count()
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    @property
    def is_folder(self) -> bool:
        """Whether they lie in a folder: listing is cheap, and what was listed is all."""
        return self._folder is not None

    async def put(self, key: str, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a new file of these pieces; it survives a power cut once this returns."""
        async with self._at_once:
            if self._folder is None:
                await self.check_there()
            with _translated(self._advice):
                if self._folder is None:
                    await obstore.put_async(self._backend, key, b"".join(pieces))
                else:
                    # A file that is being written cannot be taken back.
                    await to_its_end(self._put_in_folder(self._folder, key, pieces))

    async def _put_in_folder(
        self, folder: Path, key: str, pieces: Sequence[bytes | memoryview]
    ) -> None:
        """Put it, or leave nothing under `incoming/`: a full disk must not stay full of those."""
        incoming, marked = folder / self._incoming, self._marked
        begun = incoming / f"{next(self._numbers)}-{key.rpartition('/')[2]}"

        def write() -> None:
            _check_folder(folder, marked, incoming)
            _write_flushed(begun, pieces)

        def name() -> None:
            path = folder / key
            is_new = not path.parent.exists()
            path.parent.mkdir(exist_ok=True, mode=0o700)
            begun.rename(path)
            _flush_all([path.parent, path.parent.parent] if is_new else [path.parent])

        try:
            await self.run(write)
            await self.run(name)
        except BaseException:
            await self.run(lambda: _remove(begun))
            raise

    async def read(self, key: str) -> bytes | None:
        """The whole file; None when it is not there."""
        with _translated(self._advice):
            try:
                async with self._at_once:
                    found = await obstore.get_async(self._backend, key)
                    return bytes(await found.bytes_async())
            except (FileNotFoundError, NotFoundError) as error:
                _raise_no_bucket(error)
        await self.check_there()
        return None

    async def ranges(self, key: str, wanted: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Of a file, so many bytes from each of the starts, fewer where it ends before; None when it is not there."""
        with _translated(self._advice):
            try:
                async with self._at_once:
                    if self._folder is not None:
                        path = self._folder / key
                        return await self.run(lambda: _read_ranges(path, wanted))
                    found = await obstore.get_ranges_async(
                        self._backend,
                        key,
                        starts=[start for start, _ in wanted],
                        lengths=[length for _, length in wanted],
                    )
                    return [bytes(one) for one in found]
            except (FileNotFoundError, NotFoundError) as error:
                _raise_no_bucket(error)
        await self.check_there()
        return None

    async def sign(self, key: str, life_s: float) -> str:
        """A URL by which anybody can read a file of a bucket for so long."""
        with _translated(self._advice):
            bucket = cast("S3Store", self._backend)
            return await obstore.sign_async(bucket, "GET", key, dt.timedelta(seconds=life_s))

    async def has(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys that have a file."""
        folder = self._folder
        with _translated(self._advice):
            if folder is None:
                there = await asyncio.gather(*[self._has(key) for key in keys])
                found = {key for key, is_there in zip(keys, there, strict=True) if is_there}
            else:
                found = await self.run(lambda: _present(folder, keys))
        if len(found) < len(keys):
            await self.check_there()
        return found

    async def _has(self, key: str) -> bool:
        async with self._at_once:
            try:
                await obstore.head_async(self._backend, key)
            except (FileNotFoundError, NotFoundError) as error:
                _raise_no_bucket(error)
                return False
            return True

    async def remove(self, key: str) -> None:
        """Remove a file, if it is there."""
        await self.check_there()
        with _translated(self._advice), contextlib.suppress(FileNotFoundError, NotFoundError):
            await obstore.delete_async(self._backend, key)

    async def list(self, under: str) -> AsyncIterator[FoundFile]:
        """The files in a folder of keys; those put or removed meanwhile may or may not be among them."""
        with _translated(self._advice):
            async for page in obstore.list(self._backend, prefix=f"{under}/"):
                for item in page:
                    yield FoundFile(item["path"], item["size"], item["last_modified"].timestamp())
        await self.check_there()  # a folder that is gone lists nothing, and that ends well

    async def now(self) -> float:
        """The time of whoever keeps the files (Unix s)."""
        await self.check_there()
        with _translated(self._advice):
            await obstore.put_async(self._backend, _CLOCK, b"")
            found = await obstore.head_async(self._backend, _CLOCK)
        return found["last_modified"].timestamp()

    async def mark(self, fresh: str = "") -> str:
        """See ObjectStore. A folder has to have the mark that was told here for as long as it is used."""
        found = await self._mark(fresh)
        self._marked = found or self._marked
        return found

    async def _mark(self, fresh: str) -> str:
        with _translated(self._advice):
            known = await self._read_mark()
            if known or not fresh:
                return known
            with contextlib.suppress(AlreadyExistsError, PreconditionError):
                await obstore.put_async(self._backend, _MARK, fresh.encode(), mode="create")
            if self._folder is not None:
                folder = self._folder
                await self.run(lambda: _flush_all([folder / _MARK, folder]))
            return await self._read_mark()

    async def _read_mark(self) -> str:
        try:
            found = await obstore.get_async(self._backend, _MARK)
            return bytes(await found.bytes_async()).decode(errors="replace").strip()
        except (FileNotFoundError, NotFoundError) as error:
            _raise_no_bucket(error)
            return ""

    async def unfit(self) -> str:
        """Why this service cannot be used, in words: it ignores what a claim, or a read of a part, rests on. "": it can."""
        if self._folder is not None:
            return ""
        key, body = f"probe/{secrets.token_hex(8)}", b"0123456789"
        is_fit = False
        with _translated(self._advice):
            try:
                fault = await self._fault(key, body)
                is_fit = not fault
            finally:
                # One that is not fit may not delete, either: its first fault is the one to know.
                with contextlib.suppress(*(() if is_fit else (OSError, BaseError))):
                    await obstore.delete_async(self._backend, key)
        return fault

    async def _fault(self, key: str, body: bytes) -> str:
        try:
            await obstore.put_async(self._backend, key, body, mode="create")
        except BaseError as error:
            if not NOT_UNDERSTOOD.search(str(error)) or denial(str(error), self._advice):
                raise
            return f"it does not take an object ({reason(str(error))})"
        try:
            await obstore.put_async(self._backend, key, b"another", mode="create")
        except (AlreadyExistsError, PreconditionError):
            pass
        else:
            return (
                "it overwrites an object that should only be made where there is none (If-None-Match: *; of"
                " Google: x-goog-if-generation-match: 0), so two platforms could take the same bucket"
            )
        part = b""
        try:
            part = bytes(await obstore.get_range_async(self._backend, key, start=2, length=3))
        except BaseError:
            # Where the whole cannot be read either it is away, which is no fault of the service; and it may be back.
            await obstore.get_async(self._backend, key)
            with contextlib.suppress(BaseError):
                part = bytes(await obstore.get_range_async(self._backend, key, start=2, length=3))
        return "" if part == body[2:5] else "it does not give a part of an object (Range)"

    async def check_there(self) -> None:
        """Raise ObjectsUnavailable where the folder or bucket is not the one of the start any more."""
        folder, marked = self._folder, self._marked
        if folder is not None:
            await self.run(lambda: _check_folder(folder, marked))
            return
        with _translated(self._advice):
            found = await self._read_mark()
        if marked and found != marked:
            raise ObjectsUnavailable(
                "the object store is gone",
                why="the bucket is not the one that it was at the start: its mark is another, or gone",
            )


class Bucket(NamedTuple):
    """Files that others may read by URLs, and the PEM of a private authority of their service; empty for none."""

    files: Files
    authority: bytes


def open_folder(folder: Path, run: Offload) -> Files:
    """Files in a local folder, made if need be. Blocking.

    What an earlier process left half done is removed: one process at a time writes to a folder.
    """
    (folder / _PACKS).mkdir(parents=True, exist_ok=True, mode=0o700)
    incoming = folder / _INCOMING
    incoming.mkdir(exist_ok=True, mode=0o700)
    for left in incoming.iterdir():
        left.unlink()
    _flush_all([folder])
    return Files(LocalStore(prefix=folder), folder, run)


def open_shared(
    url: str, run: Offload, *, service: BucketService, environment: Mapping[str, str]
) -> Files:
    """Files that several processes share: s3://BUCKET/PREFIX, or file:///FOLDER that all mount.

    Raises:
        ValueError: it is no such URL, or cannot be used as it stands; the message says why.
    """
    folder = shared_folder(url)
    if folder is not None:
        return _open_shared_folder(folder, url, run)
    bucket = open_bucket(url, service, environment)
    return Files(bucket.backend, None, run, advice=bucket.advice)


def shared_folder(url: str) -> Path | None:
    """The folder of file:///FOLDER; None of another URL."""
    return Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None


def _open_shared_folder(folder: Path, url: str, run: Offload) -> Files:
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
        (folder / _PACKS).mkdir(exist_ok=True, mode=0o700)
        (folder / _INCOMING).mkdir(exist_ok=True, mode=0o700)
        own = Path(tempfile.mkdtemp(prefix="from-", dir=folder / _INCOMING))
        _remove_abandoned(own)
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from error
    _flush_all([folder])
    incoming = f"{_INCOMING}/{own.name}"
    return Files(LocalStore(prefix=folder), folder, run, incoming=incoming)


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


def _raise_no_bucket(error: Exception) -> None:
    """Raise the error again where it says that there is no bucket, and not that a file is not in it."""
    if NO_BUCKET.search(str(error)):
        raise error


@contextlib.contextmanager
def _translated(advice: Advice | None) -> Iterator[None]:
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


def _check_folder(folder: Path, marked: str, incoming: Path | None = None) -> None:
    """Return when the folder is the one that it was at the start, and `incoming` is in it.

    Others remove our place under `incoming/` when nothing was put for a day; it is made again, but
    nothing above it is.
    """
    try:
        if marked:
            is_there = (folder / _MARK).read_text(errors="replace").strip() == marked
        else:
            is_there = (folder / _PACKS).is_dir()
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


def _write_flushed(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """A new file in a folder that is there; nothing above it is made."""
    with path.open("xb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def _read_ranges(path: Path, wanted: Iterable[tuple[int, int]]) -> list[bytes]:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return [os.pread(opened, length, start) for start, length in wanted]
    finally:
        os.close(opened)


def _present(folder: Path, keys: Iterable[str]) -> set[str]:
    """Those that have a file. Raises OSError: it is not known."""
    found = set()
    for key in keys:
        with contextlib.suppress(FileNotFoundError):
            os.stat(f"{folder}/{key}")  # noqa: PTH116 - paths are made for thousands
            found.add(key)
    return found


def _remove(path: Path) -> None:
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
