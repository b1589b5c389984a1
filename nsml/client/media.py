"""The content of media: files of manifests that a listing has shown."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from nsml.client.content import read_blobs, read_manifest
from nsml.client.errors import PlatformFault
from nsml.content.digests import verify
from nsml.content.media import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from nsml.client.calls import Client
    from nsml.v1.media_pb2 import ListMediaRequest, Media


class Page(NamedTuple):
    """Some of what a session showed; `shown_by` has the platform show it again."""

    session: str
    media: Sequence[Media]
    shown_by: Callable[[], Awaitable[object]]


async def pages(client: Client, request: ListMediaRequest) -> AsyncGenerator[Page, None]:
    """What a session showed, in the order of time; `request` says which."""
    from nsml.v1.media_pb2 import ListMediaRequest

    asked = ListMediaRequest()
    asked.CopyFrom(request)
    while True:
        answer = await client.media.page(asked)
        again = ListMediaRequest()
        again.CopyFrom(asked)
        yield Page(answer.session, answer.media, partial(client.media.page, again))
        asked.cursor = answer.next_cursor
        if not asked.cursor:
            return


async def contents(
    client: Client, media: Sequence[Media], *, shown_by: Callable[[], Awaitable[object]]
) -> AsyncGenerator[tuple[Media, bytes], None]:
    """Those of a page that are durable with their bytes, each held against its digests.

    `shown_by` is the page's. Raises ClientError and ContentError.
    """
    by_root: dict[str, list[Media]] = {}
    for one in media:
        if one.root:
            by_root.setdefault(one.root, []).append(one)
    for root, wanted in by_root.items():
        manifest = await read_manifest(client, root, shown_by=shown_by)
        chunks = {entry.path: entry.chunks for entry in manifest.entries}
        for one in wanted:
            if one.file not in chunks:
                raise PlatformFault(f"{one.name!r} is not in the content that was named for it")
            digests = [ref.digest for ref in chunks[one.file]]
            yield one, await _whole(client, root, digests, shown_by)


async def _whole(
    client: Client, root: str, digests: Sequence[str], shown_by: Callable[[], Awaitable[object]]
) -> bytes:
    """The bytes of one file; nothing is asked for an empty one."""
    if not digests:
        return b""
    held = bytearray()
    asked = iter(digests)
    async with aclosing(read_blobs(client, root, digests, shown_by=shown_by)) as blobs:
        async for digest, data in blobs:
            if digest != next(asked, None):
                raise PlatformFault("the content came back in another order")
            verify(digest, data)
            held += data
            if len(held) > MOST_BYTES:
                raise PlatformFault(f"a file of media has more than {MOST_BYTES} bytes")
    if next(asked, None) is not None:
        raise PlatformFault("the content ended before its file did")
    return bytes(held)
