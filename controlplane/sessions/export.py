"""Move ended sessions to the catalogue, then out of the store, adding a notice if the owner wants one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from controlplane.domain.errors import NsmlError
from controlplane.domain.values import Cause
from controlplane.history.errors import HistoryFenced
from controlplane.history.values import Artifact, ArtifactState, DatasetUse, SessionRecord
from controlplane.sessions.charges import charges_of
from controlplane.sessions.session_listing import searched_text
from controlplane.state.committer import Deposed
from controlplane.store.interface import StoreError
from controlplane.stored import etcd_codec
from nsml.spec.output_datasets import KEPT_BY_DEFAULT_FOLDER, KEPT_FILES, KEPT_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controlplane.domain.notices import Notice
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.notices.notices import Outbox
    from controlplane.state.committer import Committer
    from controlplane.state.draft import Draft
    from controlplane.usage.usage import Usages

_log = structlog.get_logger()


class Exporter:
    """Moves ended sessions; each step may be repeated.

    Args:
        term: our leadership term, used for all writes.
        ended: called with the id of each moved session that does not keep all checkpoints.
    """

    def __init__(
        self,
        *,
        history: History,
        committer: Committer,
        usages: Usages,
        outbox: Outbox,
        term: Callable[[], int],
        ended: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._ended = ended
        self._history = history
        self._outbox = outbox
        self._usages = usages
        self._committer = committer
        self._term = term

    async def export(self, sessions: Sequence[Session]) -> set[str]:
        """Put them into the catalogue, then delete their keys; return the ids of moved sessions.

        Raises:
            Deposed: a later leader has written to the catalogue.
        """
        term = self._term()
        notices, put = await asyncio.gather(
            self._notices(sessions),
            asyncio.gather(*[self._put(session, term) for session in sessions]),
        )
        if notices is None:
            return set()
        done = [session for session, is_put in zip(sessions, put, strict=True) if is_put]
        await asyncio.gather(*[self._remove(session, notices.get(session.id)) for session in done])
        return {session.id for session in done}

    async def _notices(self, sessions: Sequence[Session]) -> dict[str, Notice] | None:
        """Return the notices of their ends, by id; None: the store does not respond."""
        try:
            return await self._outbox.of_ends(one for one in sessions if one.imported is None)
        except StoreError as error:
            _log.warning("export.failed", reason=str(error))
            return None

    async def _remove(self, session: Session, notice: Notice | None) -> None:
        await self._committer.decide(_removal(session, notice), soft=True)
        if session.spec.keep_checkpoints:
            self._ended(session.id)
        if notice is not None:
            self._outbox.recorded(notice)

    async def _put(self, session: Session, term: int) -> bool:
        try:
            usage = session.usage or await self._usages.whole(session)
            await self._history.catalogue.put_session(
                row_of(replace(session, usage=usage)),
                charges_of(session),
                uses_of(session),
                term=term,
            )
            if lost := lost_files(session):
                await self._history.artifacts.tell(lost)
        except HistoryFenced as error:
            _log.warning("export.fenced", session=session.name, reason=str(error))
            raise Deposed from error
        except NsmlError as error:
            _log.warning("export.failed", session=session.name, reason=error.message)
            return False
        return True


def _removal(session: Session, notice: Notice | None) -> Callable[[Draft], None]:
    def decide(draft: Draft) -> None:
        # A memo may have changed since: then it is exported again first.
        if draft.session(session.id) == session:
            draft.remove_session(session, notice)

    return decide


def uses_of(session: Session) -> tuple[DatasetUse, ...]:
    """Return the dataset versions used by a session."""
    return tuple(
        DatasetUse(one.owner, one.name, one.version)
        for one in session.spec.datasets
        if one.digest  # of a restored session: a dataset of another platform has none here
    )


def lost_files(session: Session) -> list[Artifact]:
    """Return the files lost with the nodes of its attempts, since nobody else reports them.

    A node that returns with some of them still makes them durable.
    """
    if not session.spec.keeps_files or session.imported is not None:
        return []
    return [
        Artifact(
            session_id=session.id,
            attempt=one.number,
            rank=0,
            folder=KEPT_FOLDER if session.spec.keep_files else KEPT_BY_DEFAULT_FOLDER,
            name=KEPT_FILES,
            saved_at=one.ended_at,
            node=one.nodes[0] if one.nodes else "",
            state=ArtifactState.LOST,
            why_lost=f"the attempt was lost with its node {one.nodes[0] if one.nodes else ''}".rstrip(),
        )
        for one in session.attempts
        if one.cause in {Cause.NODE_LOST, Cause.LOST_AFTER}
    ]


def row_of(session: Session) -> SessionRecord:
    """Convert an ended session to its catalogue row."""
    return SessionRecord(
        id=session.id,
        name=session.name,
        owner=session.owner,
        state=session.state.value,
        created_at=session.created_at,
        ended_at=session.ended_at,
        record=etcd_codec.encode_session(session),
        project=session.project,
        team=session.team,
        visibility=session.visibility,
        dataset=session.dataset,
        searched=searched_text(session),
        request_id=session.request_id,
    )
