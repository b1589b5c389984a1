"""Change a session's memo or visibility, live or ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.core.compare_and_swap import TRIES
from controlplane.domain.errors import NotFound, Unavailable
from controlplane.domain.policy import check_visibility
from controlplane.sessions.export import row_of
from controlplane.sessions.validation import check_memo
from controlplane.stored.etcd_codec import decode_session

if TYPE_CHECKING:
    from controlplane.core.compare_and_swap import SessionWriter
    from controlplane.domain.values import Session, Visibility
    from controlplane.history.sql.history import History
    from controlplane.state.references import References


class Updater:
    """Changes what users may change after submission."""

    def __init__(self, *, writer: SessionWriter, references: References, history: History) -> None:
        self._writer = writer
        self._references = references
        self._history = history

    async def update(
        self, session: Session, *, memo: str | None, visibility: Visibility | None
    ) -> Session:
        """Return the updated session; None leaves a field unchanged.

        Raises:
            InvalidRequest, TooLarge: the memo or visibility is invalid.
            NotFound: it was removed meanwhile.
            Unavailable: the store does not respond, or the session keeps changing.
        """
        if memo is not None:
            check_memo(memo)
        if visibility is not None:
            check_visibility(visibility, session.team)

        def changed(now: Session) -> Session:
            return replace(
                now,
                memo=now.memo if memo is None else memo,
                visibility=now.visibility if visibility is None else visibility,
            )

        catalogue = self._history.catalogue
        for _ in range(TRIES):
            written = await self._writer.change(session.id, changed)
            if written is not None:
                return written
            row = await catalogue.session(session.id)
            if row is not None:
                ended = changed(decode_session(row.record))
                if await catalogue.replace_session(row_of(ended), known=row.record):
                    return ended
            elif await self._references.newest(session.id) is None:
                raise NotFound(f"there is no session {session.name}")
        raise Unavailable("the session changes all the time", attempt="the same again")
