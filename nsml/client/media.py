"""Read media: their listing, and their files in listed manifests."""

from __future__ import annotations

from asyncio import gather
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from nsml.client.content import checked_blobs, read_manifest
from nsml.client.errors import PlatformFault
from nsml.content.media import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence

    from nsml.client.calls import Client
    from nsml.v1.media_pb2 import ListMediaRequest, Media

_ROOTS_AT_ONCE = 16


class Page(NamedTuple):
    """A page of a session's media; `shown_by` lists it again.

    `is_full`: the session has logged as many as are kept. Known on the last page.
    """

    session: str
    media: Sequence[Media]
    shown_by: Callable[[], Awaitable[object]]
    is_full: bool


async def pages(client: Client, request: ListMediaRequest) -> AsyncGenerator[Page, None]:
    """Yield the media selected by `request`, in order of time."""
    from nsml.v1.media_pb2 import ListMediaRequest

    asked = ListMediaRequest()
    asked.CopyFrom(request)
    while True:
        answer = await client.media.page(asked)
        again = ListMediaRequest()
        again.CopyFrom(asked)
        yield Page(answer.session, answer.media, partial(client.media.page, again), answer.is_full)
        asked.cursor = answer.next_cursor
        if not asked.cursor:
            return


async def contents(
    client: Client, media: Sequence[Media], *, shown_by: Callable[[], Awaitable[object]]
) -> AsyncGenerator[tuple[Media, bytes], None]:
    """Yield the durable media of a page with their bytes, checked by digest.

    One call per manifest, several at a time: programs that log single files leave many manifests.
    `shown_by` is the page's. Raises ClientError and ContentError.
    """
    by_root: dict[str, list[Media]] = {}
    for one in media:
        if one.root:
            by_root.setdefault(one.root, []).append(one)
    for roots in _batches(by_root):
        fetched = await gather(*[_files(client, root, by_root[root], shown_by) for root in roots])
        for files in fetched:
            for file in files:
                yield file


class Followed:
    """The growing media of a session: of the pages already read, only those that may change are read again.

    Args:
        client: for the calls.
        session: its reference.
        most: keep only this many, the last.
    """

    def __init__(self, client: Client, session: str, *, most: int) -> None:
        self._client = client
        self._session = session
        self._most = most
        self._pages: list[_Read] = []

    async def again(self) -> tuple[list[Media], int]:
        """Return the kept media in order of time, and the number before them. Raises ClientError."""
        from nsml.v1.media_pb2 import ListMediaRequest

        begin = next((at for at, page in enumerate(self._pages) if page.may_change), 0)
        before, cursor = self._pages[:begin], self._pages[begin].cursor if self._pages else ""
        fresh: list[_Read] = []
        while cursor or not fresh:
            asked = ListMediaRequest(session=self._session, cursor=cursor)
            answer = await self._client.media.page(asked)
            fresh.append(_Read(cursor, list(answer.media), not answer.next_cursor))
            cursor = answer.next_cursor
        self._pages = [*before, *fresh]
        found = [one for page in self._pages for one in page.media]
        return found[-self._most :], max(len(found) - self._most, 0)


class _Read(NamedTuple):
    cursor: str
    media: list[Media]
    is_last: bool

    @property
    def may_change(self) -> bool:
        """Whether media may be added, or are not durable yet."""
        from nsml.v1.media_pb2 import MEDIA_STATE_SAVED

        return self.is_last or any(one.state == MEDIA_STATE_SAVED for one in self.media)


async def content(client: Client, session: str, one: Media) -> bytes:
    """Read the file of a durable, already listed medium. Raises ClientError and ContentError."""
    from nsml.v1.media_pb2 import ListMediaRequest

    request = ListMediaRequest(session=session, names=[literally(one.name)])
    if one.HasField("step"):
        request.first_step = request.last_step = one.step

    async def shown() -> None:
        async with aclosing(pages(client, request)) as every:
            async for page in every:
                if any(other.file == one.file for other in page.media):
                    return

    [(_, data)] = await _files(client, one.root, [one], shown)
    return data


def literally(name: str) -> str:
    """Return a glob that matches only this name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _batches(by_root: Mapping[str, Sequence[Media]]) -> Iterator[list[str]]:
    """Group manifests to fetch together, in little more memory than one large file."""
    batch: list[str] = []
    size = 0
    for root, wanted in by_root.items():
        more = sum(one.size_bytes for one in wanted)
        if batch and (len(batch) == _ROOTS_AT_ONCE or size + more > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(root)
        size += more
    if batch:
        yield batch


async def _files(
    client: Client,
    root: str,
    wanted: Sequence[Media],
    shown_by: Callable[[], Awaitable[object]],
) -> list[tuple[Media, bytes]]:
    """Read files of one manifest, with one call for all bytes."""
    manifest = await read_manifest(client, root, shown_by=shown_by)
    chunks = {entry.path: entry.chunks for entry in manifest.entries}
    if lacks := next((one for one in wanted if one.file not in chunks), None):
        raise PlatformFault(f"{lacks.name!r} is not in the content that was named for it")
    for one in wanted:
        if sum(ref.size for ref in chunks[one.file]) > MOST_BYTES:
            raise PlatformFault(f"a file of media has more than {MOST_BYTES} bytes")
    refs = [ref for one in wanted for ref in chunks[one.file]]
    async with aclosing(checked_blobs(client, root, refs, shown_by=shown_by)) as blobs:
        return [(one, b"".join([await anext(blobs) for _ in chunks[one.file]])) for one in wanted]
