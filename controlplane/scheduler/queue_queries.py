"""Queries on queued sessions: reason, place, holders of the short resource, start time, what-if."""

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
"""Places may be 1 s old for each so many queued sessions, since sorting takes the leader's time."""


class Start(NamedTuple):
    """When a queued session may start; fields as in `Deferral`."""

    at: float = 0.0
    renews_at: float = 0.0
    is_held: bool = False


class Places(NamedTuple):
    """Places of the queued sessions at an instant, cached for `lasts_s` seconds."""

    at: float
    lasts_s: float
    by_id: dict[str, int]


Found: TypeAlias = "dict[tuple[str, str, tuple[str, ...], Request] | Request, Start]"
"""Cached start times of requests, and of quotas for them, at one instant."""


class QueueQueries:
    """Read-only queries on an index."""

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
        """Number of queued sessions."""
        return len(self._queue)

    def explanation(self, session_id: str, now: float) -> Explanation | None:
        """Return why a session waits now; None if it does not."""
        session = self._queue.get(session_id)
        return None if session is None else self._why(session, now)

    def deferral(self, session_id: str, now: float, *, is_exact: bool = False) -> Deferral | None:
        """Return the same with its place in the queue, cached for a long queue unless `is_exact`."""
        session = self._queue.get(session_id)
        if session is None:
            return None
        self._index.look_at(now)
        why, place = self._why(session, now), self._place(session, now, is_exact=is_exact)
        return Deferral(session_id=session_id, place=place, explanation=why)

    def counted(self, session: Session) -> Session:
        """Return a queued session in its effective class: its project's limit may be lower by now."""
        return self._queue.get(session.id) or session

    def fair_share(self, session: Session) -> FairShare:
        """Return the fair share of a session's account."""
        return self._entitlements.share_of(session.project or session.owner)

    def deferrals(self, now: float) -> tuple[Deferral, ...]:
        """Return the deferrals of all queued sessions, in order."""
        return tuple(
            Deferral(session_id=session.id, place=place, explanation=self._why(session, now))
            for place, session in enumerate(self.in_order(now), 1)
        )

    def in_order(self, now: float) -> list[Session]:
        """List queued sessions in the order of service at this instant (queue_listing.py)."""
        self._index.look_at(now)
        return self._index.in_order()

    def _place(self, session: Session, now: float, *, is_exact: bool) -> int:
        """Return a session's place in that order; cached for a long queue, unless `is_exact`."""
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
            is_never = self._entitlements.can_never_start(session, claim_of(request))
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
        """Return a session's deferral with the holders of the short resource, and when it may start.

        Cost: a pass over the suitable nodes.
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
        """Return when enough is free for a session at the latest, including its quota and budget.

        `found` caches results by request, and by quota for it, for other sessions at the same instant.
        """
        session = self._queue.get(session_id)
        if session is None:
            return Start()
        request = self._request_of(session)
        entitled = Start()
        if self._entitlements.refusal(session, claim_of(request)):
            asked = (session.project, session.owner, session.competition_teams, request)
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
        """Return when all victims have left the kept nodes at the latest; 0: unbounded."""
        # Victims of another preemption may make room here, too.
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
            # A victim without a request yet gets it at once.
            ends_by(one, now) if one.stop is not None else now + notice_s + one.spec.grace_s
            for one in going.values()
        ]
        return max(ends, default=now) if all(ends) else 0.0

    def _entitled(self, session: Session, request: Request, now: float) -> Start:
        """Return when quota and budget let a barred session start."""
        claim = claim_of(request)
        opens = self._entitlements.opens_at(session, claim, lambda one: ends_by(one, now))
        return Start(opens, self._entitlements.renews_at(session, claim))

    def _opening(self, request: Request, now: float, *, own: bool = False) -> Start:
        """Return when enough is free, also on withdrawn nodes.

        `own`: nodes may be withdrawn for this session itself.
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
        """Return the outcome of a queued session if it requested `spec`; None if it does not wait.

        The real plan is made and rolled back: no state changes.
        """
        session = self._queue.get(session_id)
        if session is None:
            return None
        with self._index.trial(replace(session, spec=spec), now) as placement:
            if placement is not None:
                return Supposed(placement=placement)
            return Supposed(deferral=self.outlook(session_id, now, is_exact=True))

    def would_start(self, session: Session, now: float) -> Supposed:
        """Return the outcome of a session if it were submitted now; as `what_if`."""
        with self._index.trial(session, now) as placement:
            if placement is not None:
                return Supposed(placement=placement)
            return Supposed(deferral=self.deferral(session.id, now, is_exact=True))

    def free(self) -> Free:
        """Return the free devices on nodes that accept sessions."""
        return free_in(self._rooms.known())


def _with(why: Explanation, *words: str) -> Explanation:
    """Append words to a reason."""
    more = [one for one in words if one]
    return replace(why, reason="; ".join((why.reason, *more))) if more else why
