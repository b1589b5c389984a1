"""Listings: live and ended sessions in one order, newest first, with one cursor."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.core.paging import page_size
from controlplane.domain.errors import InvalidRequest, TooLarge
from controlplane.domain.names import fits_glob, parse_reference
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.values import PageKey, SessionQuery
from controlplane.stored import etcd_codec
from nsml.common.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.domain.identity import UserCaller
    from controlplane.domain.lifecycle import SessionState
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import SessionRecord
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Offload

_log = structlog.get_logger()

_READ_AGAIN: Final = 1000
"""Ended sessions in each further read of a page, after one with steps of submissions, which are removed within days."""
MOST_FILTER_CHARS: Final = 512
MOST_OWNERS: Final = 100
LONGEST_CURSOR: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A session filter; all set fields must match. "@me" among the owners is the caller."""

    owners: tuple[str, ...] = ()
    states: tuple[SessionState, ...] = ()
    dataset: str = ""
    project: str = ""
    name_glob: str = ""
    text: str = ""
    include_ended: bool = False
    without_submission_steps: bool = False

    @property
    def wants_ended(self) -> bool:
        """Whether ended sessions can match: requested, or named by state."""
        return self.include_ended or any(state.is_ended for state in self.states)

    def leaves_out(self, session: Session) -> bool:
        """Whether it is a step of a submission, and these are left out."""
        return self.without_submission_steps and session.spec.is_submission_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Sessions, newest first. A watch continues from `revision`.

    Attributes:
        lacks_ended: ended ones were requested, and the history does not respond.
    """

    sessions: tuple[Session, ...]
    next_cursor: str
    revision: int
    lacks_ended: bool = False


class Matcher:
    """A filter prepared for one caller."""

    def __init__(self, caller: UserCaller, wanted: Filter) -> None:
        _check(wanted)
        self._caller = caller
        self._filter = wanted
        self._owners = owners_of(caller, wanted)
        self._text = wanted.text.casefold()
        self._wants_ended = wanted.wants_ended

    def fits(self, session: Session, *, ended_too: bool | None = None) -> bool:
        """Whether it matches and the caller may see it, by the same rules as the catalogue's query."""
        wanted = self._filter
        ended_too = self._wants_ended if ended_too is None else ended_too
        return (
            (ended_too or not session.state.is_ended)
            and (not self._owners or session.owner in self._owners)
            and (not wanted.states or session.state in wanted.states)
            and not wanted.leaves_out(session)
            and (not wanted.dataset or session.dataset == wanted.dataset)
            and (not wanted.project or (session.project or session.owner) == wanted.project)
            and (not wanted.name_glob or fits_glob(session.name, wanted.name_glob))
            and (not self._text or self._text in searched_text(session))
            and may(self._caller, SEE, session) is ALLOW
        )


def _check(wanted: Filter) -> None:
    """Raise TooLarge for filters that are too expensive."""
    texts = (wanted.dataset, wanted.project, wanted.name_glob, wanted.text, *wanted.owners)
    if len(wanted.owners) > MOST_OWNERS or any(len(one) > MOST_FILTER_CHARS for one in texts):
        raise TooLarge(
            f"a filter has texts of {MOST_FILTER_CHARS} characters, {MOST_OWNERS} owners"
        )


def owners_of(caller: UserCaller, wanted: Filter) -> tuple[str, ...]:
    """Return the filter's owners, with the caller's name for "@me"."""
    return tuple(caller.user.name if one == "@me" else one for one in wanted.owners)


def searched_text(session: Session) -> str:
    """Return the text searched by a text filter, case-folded: name, memo and command line."""
    spec = session.spec
    command = " ".join(spec.argv or (spec.entry, *spec.args))
    return f"{session.name}\n{session.memo}\n{command}".casefold()


class Listings:
    """Pages over live and ended sessions."""

    def __init__(self, *, state: LiveState, history: History, run: Offload) -> None:
        self._state = state
        self._history = history
        self._run = run

    async def page(
        self, caller: UserCaller, wanted: Filter, *, size: int = 0, cursor: str = ""
    ) -> Page:
        """Return one page.

        Raises:
            InvalidRequest: the cursor is invalid.
            TooLarge: the filter is too large.
        """
        size = page_size(size)
        after = decode_cursor(cursor) if cursor else None
        # The live state first, the history second: a session moving between them is seen
        # twice, not never.
        revision = self._state.revision
        matcher = Matcher(caller, wanted)
        found = {
            stored.value.id: stored.value
            for stored in self._state.sessions.values()
            if _is_behind(stored.value, after) and matcher.fits(stored.value)
        }
        lacks_ended = False
        if wanted.wants_ended:
            try:
                ended = await self._ended(caller, wanted, after, size + 1)
            except HistoryUnavailable as error:
                # A list of live sessions must not fail because of ended ones.
                _log.warning("listing.without_history", reason=error.why or error.message)
                ended, lacks_ended = [], True
            for session in ended:
                found.setdefault(session.id, session)
        ordered = sorted(found.values(), key=_age, reverse=True)
        page = tuple(ordered[:size])
        more = len(ordered) > size
        next_cursor = cursor_behind(page[-1]) if more else ""
        return Page(
            sessions=page, next_cursor=next_cursor, revision=revision, lacks_ended=lacks_ended
        )

    async def _ended(
        self, caller: UserCaller, wanted: Filter, after: PageKey | None, size: int
    ) -> list[Session]:
        query = SessionQuery(
            viewer=caller.user,
            owners=owners_of(caller, wanted),
            states=tuple(state.value for state in wanted.states),
            dataset=wanted.dataset,
            project=wanted.project,
            name_glob=wanted.name_glob,
            text=wanted.text.casefold(),
        )
        found: list[Session] = []
        limit = size
        while True:
            page = await self._history.catalogue.sessions(query, after=after, limit=limit)
            decoded = await self._decoded(page.sessions)
            found += [one for one in decoded if not wanted.leaves_out(one)]
            if page.next is None or len(found) >= size:
                return found
            after, limit = page.next, _READ_AGAIN

    async def _decoded(self, records: Sequence[SessionRecord]) -> list[Session]:
        # Some are large, and a page has up to a thousand: others must not wait for that.
        return await to_its_end(
            self._run(lambda: [etcd_codec.decode_session(one.record) for one in records])
        )


def _age(session: Session) -> tuple[float, str]:
    return (session.created_at, session.id)


def _is_behind(session: Session, after: PageKey | None) -> bool:
    return after is None or _age(session) < tuple(after)


def cursor_behind(session: Session) -> str:
    """Return the cursor of a page that ended with this session."""
    return encode_cursor(PageKey(*_age(session)))


def encode_cursor(key: PageKey) -> str:
    """Encode a page key as opaque text."""
    return base64.urlsafe_b64encode(json.dumps([key.created_at, key.id]).encode()).decode()


def decode_cursor(cursor: str) -> PageKey:
    """Decode a cursor; InvalidRequest."""
    try:
        if len(cursor) <= LONGEST_CURSOR:
            created_at, session_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
            return PageKey(float(created_at), parse_reference(session_id).id)
    except (ValueError, TypeError, OverflowError, InvalidRequest):
        pass
    raise InvalidRequest("the cursor is not one of this platform's")
