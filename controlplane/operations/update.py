"""Change a session's memo or visibility, live or ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.domain.errors import NotFound
from controlplane.operations.export import row_of
from controlplane.operations.validation import check_memo, check_visibility

if TYPE_CHECKING:
    from controlplane.domain.values import Session, Visibility
    from controlplane.history.interface import History
    from controlplane.operations.changing import SessionWriter
    from controlplane.operations.references import References


class Updater:
    """Changes what users may change after submission."""

    def __init__(self, *, writer: SessionWriter, references: References, history: History) -> None:
        self._writer = writer
        self._references = references
        self._history = history

    async def update(
        self, session: Session, *, memo: str | None, visibility: Visibility | None
    ) -> Session:
        """The session as it is then; what is None stays. InvalidRequest for what it cannot be."""
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

        written = await self._writer.change(session.id, changed)
        if written is not None:
            return written
        ended = await self._references.by_id(session.id)
        if ended is None:
            raise NotFound(f"there is no session {session.name}")
        ended = changed(ended)
        await self._history.catalogue.put_session(row_of(ended))
        return ended
