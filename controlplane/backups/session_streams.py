"""Read the streams of a session for a backup: records and log bytes, in pieces that fit into a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.history.values import Channel, Recorded, StreamKey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import Gap, LetGo
    from controlplane.records.logs import Logs


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """The next positions of a stream: recorded, or lost."""

    stream: StreamKey
    content: Recorded | Gap | LetGo


async def read_streams(
    history: History, logs: Logs, session: Session
) -> AsyncGenerator[StreamPiece, None]:
    """Yield all streams of an ended session, one by one. Raises as `Logs`."""
    for attempt in range(1, session.attempt + 1):
        cursors = await history.streams.cursors(session.id, attempt)
        for stream, wanted in sorted(cursors.items()):
            if stream.channel is Channel.STATE:
                continue
            at = stream.channel.first_position
            while at < wanted:
                if stream.channel is Channel.LOG:
                    parts = await logs.parts(stream, at)
                else:
                    parts = await history.streams.read(stream, at)
                if not parts:
                    break
                for part in parts:
                    yield StreamPiece(stream, part)
                at = parts[-1].last + 1
