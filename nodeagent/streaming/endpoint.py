"""The S3 endpoint of one session as an ASGI application: authenticates, answers, and sends files piece by piece."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import structlog

from nodeagent.storage.eviction import NoRoom
from nodeagent.storage.transfer import uninterrupted
from nodeagent.streaming.chunk_source import AHEAD_BYTES, ChunkSource
from nodeagent.streaming.errors import S3Error, invalid
from nodeagent.streaming.index import Chunk
from nodeagent.streaming.requests import Bucket, ByteRange, Reply, answer, check_method, error_reply
from nodeagent.streaming.signatures import Keys, SignedRequest, check_signature
from nsml.client.errors import ClientError, ContentDamaged
from nsml.common.clock import Clock, Offload
from nsml.content.errors import ContentError

_PIECE_BYTES: Final = 256 << 10
_CHUNKS_AT_ONCE: Final = 64 << 20
"""Bytes of a file whose chunks are looked up together."""
_FOLLOWED: Final = 64
"""Files for which the end of the last request is remembered."""
DAMAGED: Final = 410
"""The status for content that is damaged in the object store."""
_OF_DATA: Final = (ClientError, ContentError, OSError)

log = structlog.get_logger()


class Endpoint:
    """Serves datasets to clients that sign with `keys`.

    Args:
        buckets: the datasets by name.
        source: of the chunks.
        run: runs disk work in a thread.
        clock: for the age of signatures.
    """

    def __init__(
        self,
        keys: Keys,
        buckets: Mapping[str, Bucket],
        source: ChunkSource,
        *,
        run: Offload,
        clock: Clock,
    ) -> None:
        self._keys = keys
        self._buckets = buckets
        self._source = source
        self._run = run
        self._clock = clock
        self._ends: dict[tuple[str, int], int] = {}

    async def __call__(
        self, scope: Mapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        """See ASGI."""
        del receive
        try:
            reply = await self._reply(scope)
            if reply.part is not None and scope["method"] != "HEAD":
                await self._send_part(scope, reply, reply.part, send)
                return
        except S3Error as error:
            reply = error_reply(error)
        except NoRoom as error:
            reply = error_reply(S3Error(503, "SlowDown", str(error)))
        except ContentDamaged as error:
            # Clients do not retry it, unlike a server error.
            log.warning("stream.damaged", error=str(error))
            reply = error_reply(S3Error(DAMAGED, "InvalidObjectState", str(error)))
        except _OF_DATA as error:
            log.warning("stream.failed", error=str(error))
            reply = error_reply(S3Error(500, "InternalError", "the dataset cannot be read now"))
        await send(_start_of(scope, reply))
        await send({"type": "http.response.body", "body": reply.body})

    async def _reply(self, scope: Mapping[str, Any]) -> Reply:
        request = SignedRequest(
            method=scope["method"],
            path=scope["raw_path"].decode("ascii", "replace"),
            query=scope["query_string"].decode("ascii", "replace"),
            headers=[
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in scope["headers"]
            ],
        )
        check_method(request.method)
        check_signature(request, self._keys, self._clock.time())
        if _has_body(scope):
            raise invalid("requests with a body are not served")
        return await uninterrupted(self._run, partial(answer, request, self._buckets))

    async def _send_part(
        self, scope: Mapping[str, Any], reply: Reply, part: ByteRange, send: Callable[..., Any]
    ) -> None:
        """Raise as `ChunkSource.open` until something is sent. Later errors truncate the response: its length was sent before."""
        async with aclosing(self._pieces(part)) as pieces:
            data = await anext(pieces, b"")
            await send(_start_of(scope, reply))
            left = part.end - part.start
            try:
                while left > len(data):
                    left -= len(data)
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                    data = await anext(pieces)
            except _OF_DATA as error:
                log.warning("stream.cut", error=str(error))
                return
            await send({"type": "http.response.body", "body": data})

    async def _pieces(self, part: ByteRange) -> AsyncGenerator[bytes, None]:
        """Yield exactly the bytes of a part, in order."""
        at, size = part.start, part.file.size
        is_in_order = self._ends.get((part.bucket.root, part.file.number)) == at
        last = size if is_in_order else part.end
        chunks: list[Chunk] = []
        try:
            while at < part.end:
                if not chunks or _end_of(chunks[-1]) < min(at + AHEAD_BYTES, last):
                    found = partial(
                        part.bucket.index.chunks, part.file, at, min(at + _CHUNKS_AT_ONCE, last)
                    )
                    chunks = list(await uninterrupted(self._run, found))
                if not chunks:
                    raise OSError("the index of the dataset is damaged")
                chunk = chunks.pop(0)
                ahead = [one for one in chunks if one.start < at + AHEAD_BYTES]
                path = part.file.path.decode()
                with await self._source.open(part.bucket.root, path, chunk, ahead) as file:
                    end = min(_end_of(chunk), part.end)
                    while at < end:
                        count = min(_PIECE_BYTES, end - at)
                        read = partial(os.pread, file.fileno(), count, at - chunk.start)
                        data = await uninterrupted(self._run, read)
                        if not data:
                            raise OSError("a chunk is shorter than it is said to be")
                        at += len(data)
                        yield data
        finally:
            self._note_end(part, at)

    def _note_end(self, part: ByteRange, at: int) -> None:
        key = (part.bucket.root, part.file.number)
        self._ends.pop(key, None)
        self._ends[key] = at
        if len(self._ends) > _FOLLOWED:
            del self._ends[next(iter(self._ends))]


def _end_of(chunk: Chunk) -> int:
    return chunk.start + chunk.size


def _start_of(scope: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    headers = list(reply.headers)
    if reply.part is None and reply.status != HTTPStatus.NOT_MODIFIED:
        headers.append(("content-length", str(len(reply.body))))
    if _has_body(scope):
        headers.append(("connection", "close"))
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers]
    return {"type": "http.response.start", "status": reply.status, "headers": encoded}


def _has_body(scope: Mapping[str, Any]) -> bool:
    sent = dict(scope["headers"])
    return b"transfer-encoding" in sent or sent.get(b"content-length", b"0").strip() != b"0"
