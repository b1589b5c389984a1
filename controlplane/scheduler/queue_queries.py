"""What those are told who wait: why, in which place, who holds what is short, when, and what if."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from controlplane.domain.plan import Deferral, Explanation, FairShare, Holder, Supposed
from controlplane.scheduler.entitlement import claim_of
from controlplane.scheduler.explain import (
    UNREADY_WORDS,
    class_words,
    explain,
    moved_words,
    patience_words,
)
from controlplane.scheduler.fit import asked_by
from controlplane.scheduler.release_times import ends_by
from controlplane.scheduler.wait_estimate import (
    QUOTA_WORDS,
    Free,
    earliest,
    free_in,
    holders,
    most_of,
    short_of,
)

if TYPE_CHECKING:
    from controlplane.domain.values import Session, SessionSpec
    from controlplane.scheduler.cluster import Kept
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.index import ClusterIndex


LONG: Final = 5_000
"""The place of one session is that of up to a second ago for each so many that wait: sorting takes the leader's time."""


class Start(NamedTuple):
    """When one that waits may start; fields as those of `Deferral`."""

    at: float = 0.0
    renews_at: float = 0.0
    is_held: bool = False


class Places(NamedTuple):
    """The places of the queued sessions at an instant, and for how many seconds they may be shown."""

    at: float
    lasts_s: float
    by_id: dict[str, int]


Found: TypeAlias = "dict[tuple[str, str, Request] | Request, Start]"
"""What was found of requests, and of quotas for them, at one instant."""


class QueueQueries:
    """What an index knows, for those who ask: nothing is decided or changed by it."""

    def __init__(self, index: ClusterIndex) -> None:
        cluster = index.cluster
        self._index = index
        self._cluster = cluster
        self._rooms, self._queue, self._holding = cluster.rooms, cluster.queue, cluster.holding
        self._entitlements = cluster.entitlements
        self._explained: dict[Request, Explanation] = {}
        self._explained_at = -1
        self._places: Places | None = None

    @property
    def queue_length(self) -> int:
        """How many wait."""
        return len(self._queue)

    def explanation(self, session_id: str, now: float) -> Explanation | None:
        """Why a session waits as things are now; None when it does not."""
        session = self._queue.get(session_id)
        return None if session is None else self._why(session, now)

    def deferral(self, session_id: str, now: float, *, is_exact: bool = False) -> Deferral | None:
        """The same with its place in the queue, in a long one as of a moment ago unless `is_exact`."""
        session = self._queue.get(session_id)
        if session is None:
            return None
        self._index.look_at(now)
        why, place = self._why(session, now), self._place(session, now, is_exact=is_exact)
        return Deferral(session_id=session_id, place=place, explanation=why)

    def counted(self, session: Session) -> Session:
        """A session that waits, of the class that it has: its project may have a lower highest one by now."""
        return self._queue.get(session.id) or session

    def fair_share(self, session: Session) -> FairShare:
        """What the account of a session is ordered by."""
        return self._entitlements.share_of(session.project or session.owner)

    def deferrals(self, now: float) -> tuple[Deferral, ...]:
        """Of all that wait, in their order."""
        return tuple(
            Deferral(session_id=session.id, place=place, explanation=self._why(session, now))
            for place, session in enumerate(self.in_order(now), 1)
        )

    def in_order(self, now: float) -> list[Session]:
        """All that wait, in the order in which they would be served at this instant (queue_listing.py)."""
        self._index.look_at(now)
        return self._index.in_order()

    def _place(self, session: Session, now: float, *, is_exact: bool) -> int:
        """The place of a session in that order; of a long queue as of a moment ago, where it may be."""
        stands = self._places
        is_known = stands is not None and session.id in stands.by_id
        if is_exact or stands is None or not is_known or not 0 <= now - stands.at < stands.lasts_s:
            by_id = {one.id: place for place, one in enumerate(self.in_order(now), 1)}
            stands = Places(now, len(by_id) // LONG, by_id)
            if not is_exact:
                self._places = stands
        return stands.by_id[session.id]

    def _why(self, session: Session, now: float) -> Explanation:
        is_lowered = self._cluster.is_lowered(session)
        return _with(self._reason(session, now), class_words(session) if is_lowered else "")

    def _reason(self, session: Session, now: float) -> Explanation:
        place = self._cluster.moves.get(session.id)
        if self._is_put_off(session, now):
            is_unready = session.id in self._cluster.unready
            why = Explanation(reason=UNREADY_WORDS if is_unready else patience_words(session, now))
            return why if place is None else _with(why, place.words)
        if place is not None:
            return Explanation(reason=place.words)
        if (kept := self._cluster.kept.get(session.id)) is not None:
            return Explanation(reason=kept.words)
        request = self._request_of(session)
        if barred := self._entitlements.refusal(session, claim_of(request)):
            is_never = self._entitlements.can_never_start(session.project, claim_of(request))
            return Explanation(reason=barred, can_ever_fit=not is_never)
        shape, promise = self._rooms.shape_of(request), self._holding.get(session.id)
        if promise is not None:
            found = explain(self._rooms, shape, promise.parts.keys())
            words = promise.words if self._holding.is_felt else ""
            return _with(found, words, moved_words(session))
        if self._explained_at != self._rooms.edits:
            self._explained.clear()
            self._explained_at = self._rooms.edits
        known = self._explained.get(shape)
        if known is None:
            known = self._explained[shape] = explain(self._rooms, shape)
        return _with(known, moved_words(session))

    def _is_put_off(self, session: Session, now: float) -> bool:
        return self._queue.line_of(session.id) is None and session.not_before > now

    def _request_of(self, session: Session) -> Request:
        line = self._queue.line_of(session.id)
        if line is not None:
            return line.key.request
        return asked_by(session)

    def outlook(self, session_id: str, now: float, *, is_exact: bool = False) -> Deferral | None:
        """The deferral of a session with who holds what is short, and when it may start.

        Costs a look at the nodes that would do.
        """
        deferral = self.deferral(session_id, now, is_exact=is_exact)
        session = self._queue.get(session_id)
        if deferral is None or session is None:
            return None
        deferral = replace(deferral, share=self.fair_share(session))
        request = self._request_of(session)
        if not deferral.explanation.can_ever_fit:
            return deferral
        start = self.start(session_id, now, {})
        deferral = replace(
            deferral,
            expected_start=start.at,
            renews_at=start.renews_at,
            is_held=start.is_held,
        )
        if self._entitlements.refusal(session, claim_of(request)):
            short, held = self._entitlements.short(session, claim_of(request))
            found = [
                Holder(session=one, held=count, until=ends_by(one, now)) for one, count in held
            ]
            return replace(deferral, short=QUOTA_WORDS.get(short, ""), holders=most_of(found))
        short = short_of(deferral.explanation, request)
        if not short:
            return deferral
        rooms, known = self._rooms.known(), self._entitlements.holder
        return replace(deferral, short=short, holders=holders(rooms, request, short, known, now))

    def start(self, session_id: str, now: float, found: Found) -> Start:
        """When enough is free for a session at the latest, also of its quota and its budget.

        `found` keeps what was found of a request, and of a quota for it, for others of the same instant.
        """
        session = self._queue.get(session_id)
        if session is None:
            return Start()
        request = self._request_of(session)
        entitled = Start()
        if self._entitlements.refusal(session, claim_of(request)):
            asked = (session.project, session.owner, request)
            if asked not in found:
                found[asked] = self._entitled(session, request, now)
            entitled = found[asked]
            if not entitled.at:
                return entitled
        if (kept := self._cluster.kept.get(session_id)) is not None:
            left_by = self._left_by(kept, now)
            return entitled._replace(at=left_by and max(left_by, entitled.at, session.not_before))
        promise = self._holding.get(session_id)
        if promise is not None and promise.is_bounded and promise.at >= now:
            return entitled._replace(at=max(promise.at, entitled.at, session.not_before))
        if promise is not None or self._cluster.moves.get(session_id) is not None:
            room = self._opening(request, now, own=True)
        else:
            if request not in found:
                found[request] = self._opening(request, now)
            room = found[request]
        at = room.at and max(room.at, entitled.at, session.not_before)
        return Start(at, entitled.renews_at, room.is_held)

    def _left_by(self, kept: Kept, now: float) -> float:
        """When all have left at the latest that make room on nodes that are kept; 0: nothing bounds it."""
        # Those that go for somebody else may make room here, too.
        asked = {victim for one in self._cluster.kept.values() for victim in one.victims}
        going = {
            one.session.id: one.session
            for node in kept.nodes
            if (room := self._rooms.get(node)) is not None
            for one in self._cluster.yielders.on(room)
            if one.is_leaving or one.session.id in asked
        }
        notice_s = self._cluster.rules.notice_s
        ends = [
            # One that was not told yet is told at once.
            ends_by(one, now) if one.stop is not None else now + notice_s + one.spec.grace_s
            for one in going.values()
        ]
        return max(ends, default=now) if all(ends) else 0.0

    def _entitled(self, session: Session, request: Request, now: float) -> Start:
        """When quota and budget let one start that they do not let start now."""
        claim = claim_of(request)
        opens = self._entitlements.opens_at(session, claim, lambda one: ends_by(one, now))
        return Start(opens, self._entitlements.renews_at(session, claim))

    def _opening(self, request: Request, now: float, *, own: bool = False) -> Start:
        """When enough is free, also on nodes that are held for somebody, if more than what is held ends there.

        `own`: what is held may be for this one.
        """
        ends = self._cluster.ends
        ends.keep_up(now)
        held = [room for room in self._rooms.known() if room.is_open and not room.is_offered]
        opening = earliest(self._rooms, request, ends, beside=held)
        if opening is None:
            return Start()
        if own or opening.at > now:
            return Start(opening.at)
        offered = earliest(self._rooms, request, ends) if held else opening
        if offered is None:
            return Start(is_held=True)
        return Start(offered.at, is_held=offered.at > now)

    def what_if(self, session_id: str, spec: SessionSpec, now: float) -> Supposed | None:
        """What would come of a queued session if it asked for this; None when it does not wait.

        The very plan that would be made is made, and given back whole: nothing is another one after.
        """
        session = self._queue.get(session_id)
        if session is None:
            return None
        with self._index.trial(replace(session, spec=spec), now) as placement:
            if placement is not None:
                return Supposed(placement=placement)
            return Supposed(deferral=self.outlook(session_id, now, is_exact=True))

    def would_start(self, session: Session, now: float) -> Supposed:
        """What would come of a session if it were submitted now; asked for as `what_if` is."""
        with self._index.trial(session, now) as placement:
            if placement is not None:
                return Supposed(placement=placement)
            return Supposed(deferral=self.deferral(session.id, now, is_exact=True))

    def free(self) -> Free:
        """What is free of devices on the nodes that take sessions."""
        return free_in(self._rooms.known())


def _with(why: Explanation, *words: str) -> Explanation:
    """A reason, and what else there is to say."""
    more = [one for one in words if one]
    return replace(why, reason="; ".join((why.reason, *more))) if more else why
