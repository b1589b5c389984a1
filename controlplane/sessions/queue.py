"""The queue for viewers: sessions, wait reasons, expected starts, what-if answers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from controlplane.core.infeasible import Alternatives, refusal_of
from controlplane.core.paging import page_size
from controlplane.domain.errors import InvalidRequest, NotLeader, NotWaiting
from controlplane.domain.identity import User
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.limits import NO_TIME_LIMITS, TimeLimits
from controlplane.domain.policy import ALLOW, CHANGE, SEE, may
from controlplane.domain.values import Cause
from controlplane.projects.projects import check_entitled, there_for
from controlplane.scheduler import MaxCapacity, request_of
from controlplane.sessions.competition_teams import check_team_quotas, within_quotas
from controlplane.sessions.convert_queue import queued_message, to_supposed, waiting_message
from controlplane.sessions.validation import check_supposed
from nsml.spec.held_causes import held_words
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from controlplane.domain.identity import UserCaller
    from controlplane.domain.plan import Deferral
    from controlplane.domain.values import Session
    from controlplane.projects.projects import Projects, Users
    from controlplane.scheduler import Found, QueueQueries
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

AT_ONCE: Final = 20
"""Rows built before other tasks run: on a large cluster each checks many nodes."""
ORDER_SHARE: Final = 0.1
"""Largest share of the leader's time for sorting a long queue, whatever the number of viewers."""
LONG: Final = 5_000
"""Up to this length sorting is cheap."""
_MOST_DIGITS: Final = 9
_DOING: Final = {
    SessionState.PREPARING: "is placed, and being prepared",
    SessionState.RUNNING: "runs",
    SessionState.PAUSED: "is paused, and keeps what it holds",
    SessionState.UNKNOWN: "may run: its node is silent",
    SessionState.STOPPING: "is being stopped",
    SessionState.FINALIZING: "has ended, and its checkpoints are being stored",
}


class QueueView:
    """Answers from the scheduler's own index; only the leader has it.

    Args:
        answers: returns None if another control plane leads.
        projects: checks the requested project.
        users: checks the requested owners.
    """

    def __init__(
        self,
        *,
        state: LiveState,
        clock: Clock,
        answers: Callable[[], QueueQueries | None],
        projects: Projects,
        users: Users,
        time_limits: TimeLimits = NO_TIME_LIMITS,
    ) -> None:
        self._state = state
        self._clock = clock
        self._answers = answers
        self._projects = projects
        self._users = users
        self._time_limits = time_limits
        self._order: tuple[Session, ...] = ()
        self._order_of: QueueQueries | None = None
        self._order_until = 0.0

    def check_leads(self) -> QueueQueries:
        """Return the queries on the index.

        Raises:
            NotLeader: another control plane has the index, or none has yet.
        """
        answers = self._answers()
        if answers is None:
            raise NotLeader("")
        return answers

    def waiting(self, session_id: str, viewer: UserCaller) -> pb.Waiting | None:
        """Return why a session waits, as far as the viewer may see; None if it does not wait."""
        answers = self.check_leads()
        deferral = answers.outlook(session_id, self._clock.time())
        if deferral is None:
            return None
        return self._message(deferral, answers, viewer)

    def what_if(self, session: Session, change: pb.WhatIf, viewer: UserCaller) -> pb.WhatIfAnswer:
        """Return what would happen to a queued session with a changed request.

        Raises:
            InvalidRequest, CannotEverFit, OverQuota: such a submission would be refused.
            NotWaiting: it is not in the queue.
        """
        answers = self.check_leads()
        if session.state is not SessionState.QUEUED:
            doing = _DOING.get(session.state, "has ended")
            if session.state is SessionState.HELD:
                doing = f"is held: {held_words(session.held_cause or '').why}"
            if session.stop is not None and session.stop.cause is Cause.PREEMPTED:
                doing = "is leaving, and will be queued again"
            raise NotWaiting(f"session {session.name} does not wait: it {doing}")
        spec = check_supposed(to_supposed(change, answers.counted(session).spec), self._time_limits)
        extent = MaxCapacity(stored.value for stored in self._state.nodes.values())
        name, teams = session.project or session.owner, session.competition_teams
        nearest = Alternatives(
            extent,
            partial(within_quotas, self._state, name, teams),
            session=session.name,
            own=request_of(session.owner, session.spec),
        )
        request = request_of(session.owner, spec)
        if refusal := refusal_of(nearest, request, spec.image):
            raise refusal
        owner = User(name=session.owner, team=session.team)
        check_entitled(self._state, owner, session.project, spec, nearest)
        check_team_quotas(self._state, teams, request, nearest)
        supposed = answers.what_if(session.id, spec, self._clock.time())
        if supposed is None:
            raise NotWaiting(f"session {session.name} does not wait: it is being placed")
        if supposed.placement is not None:
            nodes = [replica.node for replica in supposed.placement.replicas]
            return pb.WhatIfAnswer(starts=True, nodes=nodes)
        if supposed.deferral is None:
            raise NotWaiting(f"session {session.name} does not wait any more")
        return pb.WhatIfAnswer(waiting=self._message(supposed.deferral, answers, viewer))

    def _message(self, deferral: Deferral, answers: QueueQueries, viewer: UserCaller) -> pb.Waiting:
        return waiting_message(
            deferral, queued=answers.queue_length, viewer=viewer, accounts=self._state.accounts
        )

    async def page(self, request: pb.ListQueueRequest, viewer: UserCaller) -> pb.ListQueueResponse:
        """Return a page of the queue in order, with the free capacity.

        Raises:
            NotFound: no such user, or no such project visible to the viewer.
        """
        answers, now, after = self.check_leads(), self._clock.time(), _after(request.cursor)
        owners = {viewer.user.name if one == "@me" else one for one in request.owners}
        size = page_size(request.page_size)
        order, chosen, free = self._in_order(answers), 0, answers.free()
        rows: list[tuple[int, Session]] = []
        has_more, hidden = False, 0
        project = request.project
        counts_hidden = bool(project) and not owners and self._may_manage(project, viewer)
        for place, session in enumerate(order, 1):
            if not _is_chosen(session, owners, project, viewer):
                hidden += counts_hidden and _project_of(session) == project
                continue
            chosen += 1
            if place > after:
                has_more = len(rows) == size
                if not has_more:
                    rows.append((place, session))
        for owner in _unseen(owners - {viewer.user.name}, order):
            await there_for(viewer, self._users, owner)
        if project and not chosen:
            await self._projects.check_known(project, viewer)
        answer = pb.ListQueueResponse(
            next_cursor=str(rows[-1][0]) if has_more else "",
            queued=len(order),
            chosen=chosen,
            asked_gpu_thousandths=sum(_asked(session) for session in order),
            free_gpu_thousandths=free.gpu_thousandths,
            largest_hole=free.largest_hole,
            largest_hole_node=free.node,
            hidden=hidden,
        )
        starts: Found = {}
        for count, (place, session) in enumerate(rows, 1):
            why = answers.explanation(session.id, now)
            if why is not None:  # still queued
                message = queued_message(
                    session,
                    place=place,
                    viewer=viewer,
                    reason=why.reason,
                    start=answers.start(session.id, now, starts),
                    share=answers.fair_share(session).value,
                )
                answer.sessions.append(message)
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
        return answer

    def _may_manage(self, project: str, viewer: UserCaller) -> bool:
        """Whether the viewer manages the members of a project."""
        known = self._state.project(project)
        return known is not None and may(viewer, CHANGE, known) is ALLOW

    def _in_order(self, answers: QueueQueries) -> tuple[Session, ...]:
        """Return all queued sessions in order; cached briefly for a long queue, since sorting blocks the leader."""
        began = self._clock.monotonic()
        if answers is not self._order_of or began >= self._order_until:
            self._order, self._order_of = tuple(answers.in_order(self._clock.time())), answers
            ended = self._clock.monotonic()
            is_long = len(self._order) > LONG
            self._order_until = ended + (ended - began) / ORDER_SHARE if is_long else ended
        return self._order


def _unseen(owners: set[str], order: Iterable[Session]) -> list[str]:
    """Return the owners without queued sessions."""
    return sorted(owners - {session.owner for session in order}) if owners else []


def _asked(session: Session) -> int:
    return session.spec.resources.gpu_thousandths * session.spec.replica_count


def _is_chosen(session: Session, owners: set[str], project: str, viewer: UserCaller) -> bool:
    """Whether the filter matches. Filtering by project needs the right to see the session."""
    if owners and session.owner not in owners:
        return False
    if not project:
        return True
    return _project_of(session) == project and may(viewer, SEE, session) is ALLOW


def _project_of(session: Session) -> str:
    """Return the project it counts for."""
    return session.project or session.owner


def _after(cursor: str) -> int:
    """Parse a cursor: the place before the page."""
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _MOST_DIGITS):
        raise InvalidRequest("the cursor is not one of this platform's")
    return int(cursor)
