"""Media that sessions log beside metrics, and the state of their files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from controlplane.checkpoints.lost_uploads import MOST_WORDS, plain
from controlplane.domain.errors import InvalidRequest, MissingBlobs, TooLarge
from controlplane.domain.names import check_digest
from controlplane.history.records import (
    LATEST_TIME,
    MAX_NAME_CHARS,
    finite,
    is_deep,
    records_of_kind,
)
from controlplane.history.values import Media, MediaContent
from nsml._path_text import recorded_name
from nsml.content.media import FILE_NAME, MOST_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from controlplane.content.content import Content
    from controlplane.domain.identity import NodeCaller
    from controlplane.history.sql.history import History
    from controlplane.history.values import Chunk, MediaKey, MediaPage, MediaQuery, StreamKey
    from controlplane.state.replica_rights import Rights

MOST_CAPTION_CHARS: Final = 2_000
MOST_FACTS_BYTES: Final = 4 << 10
"""Max metadata of one, as JSON; a page of them has to fit into a message."""
MOST_GLOBS: Final = 32
MOST_A_PAGE: Final = 100
"""Each may take 28 KiB as a message: JSON of `MOST_FACTS_BYTES` grows up to four times."""


class Shown:
    """Lists media, and records the state of files."""

    def __init__(self, *, history: History, content: Content, rights: Rights) -> None:
        self._history = history
        self._content = content
        self._rights = rights

    async def list(self, query: MediaQuery, *, after: MediaKey | None, limit: int) -> MediaPage:
        """Return a page, ordered by time.

        Raises:
            TooLarge: too many globs, or too long ones.
        """
        if len(query.globs) > MOST_GLOBS or any(len(g) > MAX_NAME_CHARS for g in query.globs):
            raise TooLarge(f"at most {MOST_GLOBS} names of {MAX_NAME_CHARS} characters at a time")
        return await self._history.media.list(
            query, after=after, limit=min(limit or MOST_A_PAGE, MOST_A_PAGE)
        )

    async def settle(
        self,
        caller: NodeCaller,
        session_id: str,
        attempt: int,
        rank: int,
        *,
        root: str,
        files: Sequence[MediaContent],
    ) -> None:
        """Record files as durable or lost. Idempotent.

        Raises:
            NotFound: the replica neither runs nor ran on the calling node.
            MissingBlobs: this node has not sent all of the content.
            InvalidRequest: a file is not in the manifest, or its name is invalid.
        """
        await self._rights.check(caller.node, session_id, attempt, rank, joined_at=caller.joined_at)
        if len(files) > MOST_AT_ONCE:
            raise TooLarge(f"at most {MOST_AT_ONCE} files at a time")
        sizes: Mapping[str, int] = {}
        if root:
            if not await self._content.may_use(
                caller, check_digest(root), session_id=session_id
            ) or await self._content.is_incomplete(caller, root):
                raise MissingBlobs(f"media {root[:12]} have not been sent completely")
            sizes = (await self._content.listing(caller, root, is_with_sizes=True)).sizes or {}
        await self._history.media.settle(
            session_id, attempt, rank, [_checked(one, root, sizes) for one in files]
        )


def _checked(told: MediaContent, root: str, sizes: Mapping[str, int]) -> MediaContent:
    if not FILE_NAME.fullmatch(told.file):
        raise InvalidRequest(f"{told.file[:100]!r} is not a media file")
    if told.why_lost:
        return MediaContent(file=told.file, why_lost=plain(told.why_lost)[:MOST_WORDS])
    if told.file not in sizes:
        raise InvalidRequest(f"{told.file[:12]} is not in {root[:12] or 'any manifest'}")
    return MediaContent(file=told.file, root=root, size_bytes=sizes[told.file])


class _Told(msgspec.Struct):
    """A record of media, written by a user's program: no field is trusted."""

    kind: Literal["media"]
    time: Annotated[float, msgspec.Meta(ge=0, lt=LATEST_TIME)]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
    type: Annotated[str, msgspec.Meta(pattern="^[a-z_]{1,32}$")]
    file: str
    content_type: Annotated[str, msgspec.Meta(max_length=100)] = ""
    caption: Annotated[str, msgspec.Meta(max_length=MOST_CAPTION_CHARS)] = ""
    size: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    step: float | str | None = None
    facts: dict[str, Any] = {}


_DECODER = msgspec.json.Decoder(_Told)


def media_in(chunk: Chunk) -> Iterator[Media]:
    """Yield the media in a chunk's records."""
    for told in records_of_kind(chunk, "media", _DECODER):
        if FILE_NAME.fullmatch(told.file):
            yield _media(chunk.stream, told)


def _media(stream: StreamKey, told: _Told) -> Media:
    facts = "{}" if is_deep(told.facts) else json.dumps(told.facts)
    return Media(
        session_id=stream.session_id,
        attempt=stream.attempt,
        rank=stream.rank,
        file=told.file,
        name=recorded_name(told.name),
        kind=told.type,
        time=told.time,
        step=finite(told.step),
        content_type=plain(told.content_type),
        caption=plain(told.caption),
        facts=facts if len(facts) <= MOST_FACTS_BYTES else "{}",
        size_bytes=told.size,
    )
