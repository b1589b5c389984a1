"""Checkpoints: what sessions saved, and when it became durable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import InvalidRequest, MissingBlobs, NotFound, StateConflict
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.names import MOST_CHECKPOINT_NAME, check_digest, fits_glob
from controlplane.history.values import Checkpoint, CheckpointState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.domain.identity import NodeCaller
    from controlplane.domain.values import Session
    from controlplane.history.interface import History
    from controlplane.operations.content import Content
    from controlplane.operations.ingest import Rights


MOST_GLOBS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """What a node says: the content of a checkpoint is in the object store."""

    session_id: str
    attempt: int
    name: str
    digest: str
    size_bytes: int
    file_count: int
    saved_at: float


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
        """That from which another attempt goes on: the last durable one of the latest attempt that has any.

        Of attempts first, since the clocks of their nodes may differ.

        Raises:
            NotFound: it has none.
        """
        durable = [one for one in await self.list(session) if one.digest]
        if not durable:
            raise NotFound(f"{session.name} has no checkpoint that is safe")
        return max(durable, key=_place)

    async def remove(self, session: Session, globs: Sequence[str]) -> tuple[str, ...]:
        """Remove those whose names fit; their names, oldest first.

        Raises:
            InvalidRequest: too many globs, or none.
            NotFound: nothing fits one of them.
            StateConflict: the session is live, and goes on from one of them.
        """
        if not 0 < len(globs) <= MOST_GLOBS:
            raise InvalidRequest(f"1 to {MOST_GLOBS:,} names of checkpoints at a time")
        there = await self.list(session)
        found = {
            glob: [one for one in there if one.name == glob or fits_glob(one.name, glob)]
            for glob in dict.fromkeys(globs)
        }
        for glob, fitting in found.items():
            if not fitting:
                await self.get(session, glob)  # says which there are
        names = {one.name for fitting in found.values() for one in fitting}
        gone = [one for one in there if one.name in names]
        if not session.state.is_ended and session.state is not SessionState.FINALIZING:
            self._check_resumable(session, gone, there)
        for one in gone:
            await self._history.catalogue.delete_checkpoint(
                session.id, one.name, owner=session.owner
            )
        return tuple(one.name for one in gone)

    @staticmethod
    def _check_resumable(
        session: Session, gone: Sequence[Checkpoint], there: Sequence[Checkpoint]
    ) -> None:
        durable = [one for one in there if one.digest]
        newest = max(durable, key=_place, default=None)
        if newest is not None and newest in gone:
            raise StateConflict(
                f"{newest.name!r} is the newest durable checkpoint of {session.name}",
                why=f"the session is {session.state.value}, and goes on from it when it is moved",
                attempt="the others; this one when the session has ended",
            )

    async def commit(self, caller: NodeCaller, saved: SavedCheckpoint) -> None:
        """Record that a checkpoint is durable; repeating it is harmless.

        Raises:
            NotFound: the session neither runs nor ran on the calling node.
            MissingBlobs: its content has not been sent completely by this node.
        """
        await self._rights.check(
            caller.node, saved.session_id, saved.attempt, joined_at=caller.joined_at
        )
        if not saved.name or len(saved.name.encode()) > MOST_CHECKPOINT_NAME:
            raise InvalidRequest(f"a checkpoint's name has 1 to {MOST_CHECKPOINT_NAME} bytes")
        if not await self._content.may_use(
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
                state=CheckpointState.DURABLE,
                digest=saved.digest,
                attempt=saved.attempt,
                node=caller.node,
            )
        )


def _place(one: Checkpoint) -> tuple[int, float]:
    return one.attempt, one.saved_at
