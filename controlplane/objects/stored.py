"""Objects in a folder, S3, MinIO, GCS or Azure, through obstore; its only door.

Layout: `blobs/ab/cdef...`, the digest cut after two characters. Each object is one frame (see
nsml.content.framing): compressed where that pays, and then read whole even for a range.

A folder gets each object under `incoming/` first, flushed, and then under its name: a name never
leads to half an object, and what was acknowledged survives a power cut. Object services promise
both for a plain put.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, from_url

from controlplane.domain.names import check_digest
from controlplane.objects.checking import check_blobs, check_range
from controlplane.objects.errors import BlobDamaged, BlobNotFound, ObjectsUnavailable
from controlplane.objects.interface import MAX_BLOB_BYTES, StoredBlob
from nsml.concurrency import to_its_end
from nsml.content.digests import verify
from nsml.content.errors import BlobCorrupt
from nsml.content.framing import RAW, frame, unframe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping

    from obstore.store import ObjectStore as Backend

    from nsml.clock import Offload

_BLOBS = "blobs"
_INCOMING = "incoming"
_AT_ONCE = 32


class StoredObjects:
    """See interface.ObjectStore; made by `open_folder` and `open_url`."""

    def __init__(self, backend: Backend, folder: Path | None, run: Offload) -> None:
        self._backend = backend
        self._folder = folder
        self._run = run
        self._numbers = itertools.count()
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._damaged: set[str] = set()

    async def has_missing(self, digests: Collection[str]) -> set[str]:
        """See ObjectStore."""
        wanted = sorted({check_digest(digest) for digest in digests})
        with _translated():
            there = await asyncio.gather(*[self._has(digest) for digest in wanted])
        absent = {digest for digest, found in zip(wanted, there, strict=True) if not found}
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
        body = await self._body(digest)
        try:
            return await self._run(lambda: _content(digest, body))
        except BlobDamaged:
            self._damaged.add(digest)
            raise

    async def get_range(self, digest: str, start: int, end: int) -> bytes:
        """See ObjectStore."""
        check_range(digest, start, end)
        key = _key(digest)
        with _translated(digest):
            found = await obstore.get_async(self._backend, key, options={"range": (0, 1)})
            flag = bytes(await found.bytes_async())
            if flag == bytes((RAW,)):
                end = min(end + 1, found.meta["size"])
                if start + 1 >= end:
                    return b""
                return bytes(
                    await obstore.get_range_async(self._backend, key, start=start + 1, end=end)
                )
        return (await self.get(digest))[start:end]

    async def delete(self, digest: str) -> bool:
        """See ObjectStore."""
        check_digest(digest)
        with _translated():
            if not await self._has(digest):
                return False
            try:
                await obstore.delete_async(self._backend, _key(digest))
            except FileNotFoundError:
                return False
        return True

    async def list(self) -> AsyncIterator[StoredBlob]:
        """See ObjectStore."""
        with _translated():
            async for page in obstore.list(self._backend, prefix=f"{_BLOBS}/"):
                for item in page:
                    digest = "".join(item["path"].split("/")[1:])
                    yield StoredBlob(digest, item["size"], item["last_modified"].timestamp())

    async def _has(self, digest: str) -> bool:
        async with self._at_once:
            try:
                await obstore.head_async(self._backend, _key(digest))
            except (FileNotFoundError, NotFoundError):
                return False
            return True

    async def _body(self, digest: str) -> bytes:
        with _translated(digest):
            found = await obstore.get_async(self._backend, _key(digest))
            return bytes(await found.bytes_async())

    async def _put(self, key: str, body: bytes) -> None:
        async with self._at_once:
            await obstore.put_async(self._backend, key, body)

    async def _put_in_folder(self, folder: Path, framed: Mapping[str, bytes]) -> None:
        """Put all, or leave nothing under `incoming/`: a full disk must not stay full of those."""
        names = {digest: f"{_INCOMING}/{next(self._numbers)}-{digest}" for digest in framed}
        try:
            puts = [
                asyncio.ensure_future(self._put(names[digest], body))
                for digest, body in framed.items()
            ]
            # Wait for all though one failed: what is still written could not be removed.
            await asyncio.gather(*puts, return_exceptions=True)
            for put in puts:
                put.result()
            await self._run(lambda: _flush_files(folder / name for name in names.values()))
            for digest, name in names.items():
                await obstore.rename_async(self._backend, name, _key(digest))
        except BaseException:
            await self._run(lambda: _remove_files(folder / name for name in names.values()))
            raise
        parents = {folder / _BLOBS / digest[:2] for digest in framed}
        await self._run(lambda: _flush_folders([*parents, folder / _BLOBS]))


def open_folder(folder: Path, run: Offload) -> StoredObjects:
    """Objects in a local folder, made if need be. Blocking.

    What an earlier process left half done is removed: one process at a time writes to a folder.
    """
    (folder / _BLOBS).mkdir(parents=True, exist_ok=True, mode=0o700)
    incoming = folder / _INCOMING
    incoming.mkdir(exist_ok=True, mode=0o700)
    for left in incoming.iterdir():
        left.unlink()
    _flush_folders([folder])
    return StoredObjects(LocalStore(prefix=folder), folder, run)


def open_url(url: str, run: Offload) -> StoredObjects:
    """Objects at a URL that obstore knows: s3://bucket/prefix, gs://..., az://..., file:///...

    Credentials come from the environment, as each service's own tools read them.
    """
    if url.startswith("file://"):
        return open_folder(Path(url.removeprefix("file://")), run)
    return StoredObjects(from_url(url), None, run)


def _key(digest: str) -> str:
    return f"{_BLOBS}/{digest[:2]}/{digest[2:]}"


def _framed(blobs: Mapping[str, bytes]) -> dict[str, bytes]:
    check_blobs(blobs)
    return {digest: frame(data) for digest, data in blobs.items()}


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
        if digest:
            raise BlobNotFound(f"there is no blob {digest}") from error
        raise ObjectsUnavailable("the object store is gone", why=str(error)) from error
    except (OSError, BaseError) as error:
        why = str(error).partition("\n")[0]
        raise ObjectsUnavailable("the object store cannot be used now", why=why) from error


def _remove_files(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _flush_files(paths: Iterable[Path]) -> None:
    for path in paths:
        _flush(path)


def _flush_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        _flush(folder)


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
