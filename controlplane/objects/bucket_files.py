"""Files by key in a bucket; the object service itself makes puts atomic and durable.

A bucket can be emptied, or replaced by another one of its name, while in use: its mark is compared with the one
at start-up before every put, and whenever a missing file matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import secrets
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PreconditionError,
)

from controlplane.objects.denials import NOT_UNDERSTOOD, denial, reason
from controlplane.objects.errors import ObjectsUnavailable
from controlplane.objects.files import Files, raise_no_bucket, translated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore.store import S3Store


class BucketFiles(Files):
    """Files of a bucket; denials carry the `advice` of its service."""

    is_folder: ClassVar = False

    async def put(self, key: str, pieces: Sequence[bytes | memoryview]) -> None:
        """See Files."""
        async with self._at_once:
            await self.check_there()
            with translated(self._advice):
                await obstore.put_async(self._backend, key, b"".join(pieces))

    async def _read_ranges(self, key: str, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        found = await obstore.get_ranges_async(
            self._backend,
            key,
            starts=[start for start, _ in wanted],
            lengths=[length for _, length in wanted],
        )
        return [bytes(one) for one in found]

    async def sign(self, key: str, life_s: float) -> str:
        """Return a URL that lets anybody read the file for `life_s` seconds."""
        with translated(self._advice):
            bucket = cast("S3Store", self._backend)
            return await obstore.sign_async(bucket, "GET", key, dt.timedelta(seconds=life_s))

    async def _present(self, keys: Sequence[str]) -> set[str]:
        there = await asyncio.gather(*[self._has(key) for key in keys])
        return {key for key, is_there in zip(keys, there, strict=True) if is_there}

    async def _has(self, key: str) -> bool:
        async with self._at_once:
            try:
                await obstore.head_async(self._backend, key)
            except (FileNotFoundError, NotFoundError) as error:
                raise_no_bucket(error)
                return False
            return True

    async def _flush_mark(self) -> None:
        pass  # puts are durable

    async def unfit(self) -> str:
        """See Files."""
        key, body = f"probe/{secrets.token_hex(8)}", b"0123456789"
        is_fit = False
        with translated(self._advice):
            try:
                fault = await self._fault(key, body)
                is_fit = not fault
            finally:
                # An unfit service may fail to delete, too: report its first fault.
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
            # If the whole object cannot be read either, the service is away, not unfit; it may be back by now.
            await obstore.get_async(self._backend, key)
            with contextlib.suppress(BaseError):
                part = bytes(await obstore.get_range_async(self._backend, key, start=2, length=3))
        return "" if part == body[2:5] else "it does not give a part of an object (Range)"

    async def check_there(self) -> None:
        """See Files."""
        with translated(self._advice):
            found = await self._read_mark()
        if self._marked and found != self._marked:
            raise ObjectsUnavailable(
                "the object store is gone",
                why="the bucket is not the one that it was at the start: its mark is another, or gone",
            )


class Bucket(NamedTuple):
    """Files that can be shared by signed URLs, and the PEM of their service's private CA (empty: none)."""

    files: BucketFiles
    authority: bytes
