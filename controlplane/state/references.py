"""Resolve references to sessions visible to the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import AmbiguousReference, Denied, NotFound
from controlplane.domain.identity import NodeCaller, User, UserCaller
from controlplane.domain.names import SessionReference, parse_reference
from controlplane.domain.policy import ALLOW, CHANGE, SEE, may
from controlplane.domain.sealing import check_readable
from controlplane.domain.values import SessionStage
from controlplane.history.values import SessionQuery, SessionRecord
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.domain.policy import Shared
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.state.live_state import LiveState

_PAGE_ROWS: Final = 100


class References:
    """Finds sessions, live and ended."""

    def __init__(self, *, state: LiveState, history: History) -> None:
        self._state = state
        self._history = history

    async def find(self, caller: UserCaller, text: str) -> Session:
        """Return the referenced session.

        Raises:
            InvalidRequest: it is not a reference.
            AmbiguousReference: it matches several of the caller's sessions.
            NotFound: it matches no session visible to the caller.
        """
        return _decoded(await self._found(caller, text))

    async def find_id(self, caller: UserCaller, text: str) -> str:
        """Like `find`, but only the id: decoding a session takes as long as finding it."""
        return (await self._found(caller, text)).id

    async def _found(self, caller: UserCaller, text: str) -> Session | SessionRecord:
        found = await self._find(caller, parse_reference(text))
        if found is None:
            raise _not_found(text)
        return found

    async def find_output(self, caller: UserCaller, text: str) -> Session:
        """Like `find`, to read what the session wrote: all that answers with that finds it here.

        Raises:
            Sealed: that is hidden from everybody.
        """
        session = await self.find(caller, text)
        check_readable(session)
        return session

    async def find_output_id(self, caller: UserCaller, text: str) -> str:
        """Like `find_output`, but only the id."""
        found = await self._found(caller, text)
        if not isinstance(found, SessionRecord):
            check_readable(found)
        elif SessionStage.PREDICT.encode() in found.record:  # else decoding is saved
            check_readable(_decoded(found))
        return found.id

    async def find_own(self, caller: UserCaller, text: str) -> Session:
        """Like `find`, for a change.

        Raises:
            Denied: the caller may see it, but not change it.
        """
        session = await self.find(caller, text)
        if may(caller, CHANGE, session) is not ALLOW:
            raise Denied(
                f"session {session.name} is {session.owner}'s",
                why="only its owner and administrators change it",
            )
        return session

    async def find_for_node(self, caller: NodeCaller, text: str, for_session: str) -> Session:
        """Find by id or full name, with the rights of session `for_session`, placed on the node.

        Without `for_session`, the session asks for itself; what a sealed one saved is for itself alone. A node runs programs of many users: no
        program must get access through the node to sessions visible only to another user.
        """
        found = await self._by_key(parse_reference(text))
        session = None if found is None else _decoded(found)
        asking = self._state.session(for_session) if for_session else session
        stored = self._state.allocations.get(caller.node)
        held = {one.session_id for one in stored.value.replicas} if stored else set()
        if session is None or asking is None or asking.id not in held:
            raise _not_found(text)
        if not self._sees(asking, session):
            raise _not_found(text)
        if asking.id != session.id:
            check_readable(session)
        return session

    @staticmethod
    def _sees(running: Session, other: Session) -> bool:
        as_user = UserCaller(user=User(name=running.owner, team=running.team))
        return may(as_user, SEE, other) is ALLOW

    async def by_id(self, session_id: str) -> Session | None:
        """Return a live or ended session, visible or not."""
        found = await self._by_key(SessionReference(id=session_id))
        return None if found is None else _decoded(found)

    async def newest(self, session_id: str) -> Session | None:
        """Like `by_id`, but read from the store: another control plane may have written it."""
        live = await self._state.renewed(session_id)
        if live is not None:
            return live
        row = await self._recorded(SessionReference(id=session_id))
        return None if row is None else _decoded(row)

    async def _find(
        self, caller: UserCaller, reference: SessionReference
    ) -> Session | SessionRecord | None:
        owner = caller.user.name

        def sees(one: Shared) -> bool:
            return may(caller, SEE, one) is ALLOW

        if reference.id or reference.name:
            return await self._by_key(reference, sees)
        if reference.recent:
            return await self._recent(caller, reference.recent)
        if reference.dataset:
            name = f"{owner}/{reference.dataset}/{reference.number}"
            return await self._by_key(SessionReference(name=name), sees)
        return await self._by_number(caller, reference.number)

    async def _by_key(
        self, reference: SessionReference, sees: Callable[[Shared], bool] = lambda _: True
    ) -> Session | SessionRecord | None:
        """Find a session by id or full name.

        An invisible one is searched for everywhere, like a missing one: otherwise the response time would distinguish
        them.
        """
        known = self._known(reference)
        if known is not None and sees(known):
            return known
        recorded = await self._recorded(reference, sees)
        if recorded is not None:
            return recorded
        # Another control plane may just have created it, or meanwhile recorded its end.
        if reference.id:
            live = await self._state.renewed(reference.id)
        else:
            live = await self._state.renewed_by_name(reference.name)
        seen = live is not None and sees(live)
        return live if seen else await self._recorded(reference, sees)

    def _known(self, reference: SessionReference) -> Session | None:
        if reference.id:
            return self._state.session(reference.id)
        return self._state.by_name(reference.name)

    async def _recorded(
        self, reference: SessionReference, sees: Callable[[Shared], bool] = lambda _: True
    ) -> SessionRecord | None:
        catalogue = self._history.catalogue
        if reference.id:
            row = await catalogue.session(reference.id)
        else:
            row = await catalogue.session_by_name(reference.name)
        return row if row and sees(row) else None

    async def _recent(self, caller: UserCaller, count: int) -> Session | SessionRecord | None:
        """Return the caller's `count`-th newest session, without the steps of submissions: nobody started these.

        An evaluation belongs to the dataset's owner, who would otherwise stop or remove what another user submitted.
        """
        live = self._live(lambda session: session.owner == caller.user.name)
        own: list[Session | SessionRecord] = [
            one for one in live.values() if not one.spec.submission_id
        ]
        query = SessionQuery(viewer=caller.user, owners=(caller.user.name,))
        ended = 0
        after = None
        while ended < count:
            page = await self._history.catalogue.sessions(
                query, after=after, limit=min(count, _PAGE_ROWS)
            )
            rows = [row for row in page.sessions if row.id not in live and not _is_step(row)]
            own.extend(rows)
            ended += len(rows)
            after = page.next
            if after is None:
                break
        own.sort(key=_age, reverse=True)
        return own[count - 1] if len(own) >= count else None

    async def _by_number(self, caller: UserCaller, number: int) -> Session | SessionRecord | None:
        owner, end = caller.user.name, f"/{number}"
        live = self._live(lambda one: one.owner == owner and one.name.endswith(end))
        page = await self._history.catalogue.sessions(
            SessionQuery(viewer=caller.user, owners=(owner,), name_glob=f"{owner}/*{end}")
        )
        ended = [row for row in page.sessions if row.id not in live]
        found: list[Session | SessionRecord] = [*live.values(), *ended]
        if len(found) > 1:
            names = tuple(sorted(one.name for one in found))
            raise AmbiguousReference(str(number), names)
        return found[0] if found else None

    def _live(self, fits: Callable[[Session], bool]) -> dict[str, Session]:
        sessions = (stored.value for stored in self._state.sessions.values())
        return {session.id: session for session in sessions if fits(session)}


def _age(one: Session | SessionRecord) -> tuple[float, str]:
    return (one.created_at, one.id)


def _decoded(found: Session | SessionRecord) -> Session:
    """Decode the resolved row only: decoding a thousand would block all others."""
    return etcd_codec.decode_session(found.record) if isinstance(found, SessionRecord) else found


def _is_step(row: SessionRecord) -> bool:
    """Return whether an ended session was a step of a submission."""
    return bool(etcd_codec.submission_of_session(row.record))


def _not_found(text: str) -> NotFound:
    return NotFound(f"there is no session {text[:80]!r}", attempt="nsml ps -a")
