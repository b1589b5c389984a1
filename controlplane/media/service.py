"""MediaService."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec

from controlplane.access.current import require_agent, require_user
from controlplane.codec import encoder
from controlplane.domain.errors import InvalidRequest
from controlplane.history.values import Media, MediaContent, MediaKey, MediaQuery
from controlplane.wire.chunking import beside
from controlplane.wire.errors import Context, answering
from controlplane.wire.reported import struct
from nsml.v1 import media_pb2 as pb
from nsml.v1 import media_pb2_grpc

if TYPE_CHECKING:
    from controlplane.content.content import Content
    from controlplane.limits.concurrency_limits import Turns
    from controlplane.media.media import Shown
    from controlplane.state.references import References


class MediaServicer(media_pb2_grpc.MediaServiceServicer):
    """Media, for users and nodes."""

    def __init__(
        self, shown: Shown, references: References, content: Content, reading: Turns
    ) -> None:
        self._reading = reading
        self._shown = shown
        self._references = references
        self._content = content

    @answering
    async def ListMedia(  # noqa: N802 - named by the contract
        self, request: pb.ListMediaRequest, _: Context
    ) -> pb.ListMediaResponse:
        """Return a page, ordered by time, and allow reading the content."""
        who = require_user()
        session = await self._references.find_output(who, request.session)
        query = MediaQuery(
            session_id=session.id,
            globs=tuple(request.names),
            kind=request.kind,
            first_step=request.first_step if request.HasField("first_step") else None,
            last_step=request.last_step if request.HasField("last_step") else None,
        )
        after = _key(request.cursor)
        async with self._reading.turn(who.user.name):
            page = await self._shown.list(query, after=after, limit=request.page_size)
            media = await beside(lambda: [_message(one) for one in page.media], of=len(page.media))
        answer = pb.ListMediaResponse(
            media=media,
            next_cursor="" if page.next is None else json.dumps(page.next),
            session=session.name,
            is_full=page.is_full,
        )
        for root in dict.fromkeys(one.root for one in page.media if one.root):
            self._content.show(who, root)
        return answer

    @answering
    async def CommitMedia(  # noqa: N802
        self, request: pb.CommitMediaRequest, _: Context
    ) -> pb.CommitMediaResponse:
        """Record files as durable or lost."""
        files = [MediaContent(file=one.file, why_lost=one.why_lost) for one in request.files]
        await self._shown.settle(
            require_agent(),
            request.session_id,
            request.attempt,
            request.rank,
            root=request.root,
            files=files,
        )
        return pb.CommitMediaResponse()


_message: Final = encoder(
    Media,
    pb.Media,
    convert={"facts": lambda facts: struct(json.loads(facts))},
    omit=("session_id",),
).to_message


_KEY = msgspec.json.Decoder(tuple[float, int, int, str])


def _key(cursor: str) -> MediaKey | None:
    if not cursor:
        return None
    try:
        time, attempt, rank, file = _KEY.decode(cursor)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidRequest("the cursor is not one of this platform's") from error
    if not 0 <= attempt < 1 << 32 or not 0 <= rank < 1 << 32 or "\0" in file:
        raise InvalidRequest("the cursor is not one of this platform's")
    return MediaKey(time, attempt, rank, file)
