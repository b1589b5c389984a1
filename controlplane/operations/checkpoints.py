"""Checkpoints: what sessions saved, and when it became durable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.errors import InvalidRequest, MissingBlobs, NotFound
from controlplane.domain.names import MOST_CHECKPOINT_NAME, check_digest
from controlplane.history.values import Checkpoint, CheckpointState
from controlplane.operations.overdue import MOST_WORDS, plain

if TYPE_CHECKING:
    from controlplane.domain.identity import NodeCaller
    from controlplane.domain.values import Session
    from controlplane.history.interface import History
    from controlplane.operations.content import Content
    from controlplane.operations.ingest import Rights

_SHOWN: Final = 200

_log = structlog.get_logger("operations.checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """What a node reports: the content of a checkpoint is in the object store, or `why_lost`."""

    session_id: str
    attempt: int
    name: str
    digest: str
    size_bytes: int
    file_count: int
    saved_at: float
    why_lost: str = ""


class Checkpoints:
    """Listing and making durable."""

    def __init__(self, *, history: History, content: Content, rights: Rights) -> None:
        self._history = history
        self._content = content
        self._rights = rights

    async def list(self, session: Session) -> tuple[Checkpoint, ...]:
        """Of one session, oldest first."""
        return await self._history.catalogue.checkpoints(session.id)

    async def get(self, session: Session, name: str) -> Checkpoint:
        """By name; NotFound names those that there are."""
        found = await self._history.catalogue.checkpoint(session.id, name)
        if found is None:
            names = [one.name for one in await self.list(session)]
            raise NotFound(
                f"{session.name} has no checkpoint {name[:80]!r}",
                why="" if names else "it has none at all",
                attempt=", ".join(names[-10:]),
            )
        return found

    async def newest(self, session: Session) -> Checkpoint:
        """That from which another attempt goes on: of those that can be read the one saved last, of the latest attempt that has any.

        Of attempts first, since the clocks of their nodes may differ.

        Raises:
            NotFound: it has none.
        """
        readable = [one for one in await self.list(session) if one.digest]
        if not readable:
            raise NotFound(f"{session.name} has no checkpoint that is safe")
        return max(readable, key=lambda one: one.content_of)

    async def commit(self, caller: NodeCaller, saved: SavedCheckpoint) -> None:
        """Record that a checkpoint is durable or lost; repeating it is harmless.

        Raises:
            NotFound: the session neither runs nor ran on the calling node.
            MissingBlobs: its content has not been sent completely by this node.
        """
        await self._rights.check(
            caller.node, saved.session_id, saved.attempt, joined_at=caller.joined_at
        )
        if not saved.name or len(saved.name.encode()) > MOST_CHECKPOINT_NAME:
            raise InvalidRequest(f"a checkpoint's name has 1 to {MOST_CHECKPOINT_NAME} bytes")
        if saved.why_lost:
            _log.warning(
                "checkpoint.lost",
                session=saved.session_id,
                node=caller.node,
                checkpoint=saved.name[:_SHOWN],
                reason=saved.why_lost[:_SHOWN],
            )
        elif not await self._content.may_use(
            caller, check_digest(saved.digest), session_id=saved.session_id
        ) or await self._content.is_incomplete(caller, saved.digest):
            raise MissingBlobs(f"checkpoint {saved.name!r} has not been sent completely")
        await self._history.catalogue.put_checkpoint(
            Checkpoint(
                session_id=saved.session_id,
                name=saved.name,
                saved_at=saved.saved_at,
                size_bytes=saved.size_bytes,
                file_count=saved.file_count,
                state=CheckpointState.LOST if saved.why_lost else CheckpointState.DURABLE,
                why_lost=plain(saved.why_lost)[:MOST_WORDS],
                digest=None if saved.why_lost else saved.digest,
                attempt=saved.attempt,
                node=caller.node,
            )
        )
