"""Ranks sessions by a metric that they reported: live and ended ones, kept up to date by the history's commits.

Sessions with the metric are read once, and again after each of their commits. The order of all of them is shared; each
viewer's view is made of the sessions that the viewer may see, and shared by viewers who see the same ones.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from controlplane.boards.metric_values import AT_ONCE, STANDARD_ERROR, MetricValues
from controlplane.core.shared_call import SharedCall
from controlplane.domain.boards.ranking import MOST_TREND
from controlplane.domain.errors import InvalidRequest
from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.history.values import SessionQuery
from controlplane.state.lru import LruDict
from controlplane.stored import etcd_codec
from nsml.common.concurrency import to_its_end
from nsml.common.shell import shell_line
from nsml.view.filter_fields import Filtered
from nsml.view.filtering import Filter, FilterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from controlplane.domain.values import Session, Visibility
    from controlplane.history.sql.history import History
    from controlplane.history.subscriptions import Touched
    from controlplane.history.values import Extreme, SeriesExtent
    from controlplane.sessions.session_views import Presenter
    from controlplane.state.live_state import LiveState
    from controlplane.usage.usage import Usages
    from nsml.common.clock import Clock, Offload

MOST_SESSIONS: Final = 50_000
"""Newest ended sessions among which a board looks."""
MOST_ARGS: Final = 512
MOST_MEMO: Final = 256
"""Characters of an entry's texts: a thousand entries are one message."""
_KEPT: Final = 256
"""Cached sets of sessions,"""
_KEPT_SESSIONS: Final = 500_000
"""and sessions in all of them."""
_KEPT_ROWS: Final = 500_000
"""Rows of cached views, some hundred bytes each."""
_PAGE: Final = 1_000
_DAY_S: Final = 86_400.0
_HOUR_S: Final = 3_600.0
_AGE: Final = "age"
_AGES_FOR_S: Final = 60.0
"""Ended sessions are filtered by age again after this time."""
_EVERY_SESSION: Final = User(name="", role=Role.ADMIN)
_STRANGER: Final = UserCaller(user=User(name=""))
"""Filters see of a session what everybody sees who may see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOrder:
    """What a board ranks by; see BoardSettings of the contract."""

    metric: str
    filter: str = ""
    owner: str = ""
    """The board's: `user:@me` of its filter."""
    least_first: bool = False
    uses_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Candidate:
    """A session with the metric. `session` is set while it is live."""

    id: str
    name: str
    owner: str
    team: str
    visibility: Visibility
    created_at: float
    args: str
    memo: str
    gpu_seconds: float
    """Of ended attempts."""
    extent: SeriesExtent
    session: Session | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSession:
    """A session with the value that counts; `score` None: it reported no finite one.

    `reported_at`: as its program wrote it. `at`: the same, but not before the session was created.
    """

    of: Candidate
    score: float | None
    reported_at: float

    @property
    def at(self) -> float:
        """When the value was reported."""
        return max(self.reported_at, self.of.created_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedSession:
    """A row of a view; rank 0 without a score."""

    rank: int
    row: ScoredSession
    rank_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsView:
    """What a viewer sees.

    Attributes:
        count: visible sessions with the metric.
        entries: best first, those without a score last; the best of each user or team.
        by_participant: all visible rows with a score, by user or team.
    """

    count: int
    entries: Sequence[RankedSession]
    by_participant: dict[str, list[ScoredSession]]

    def trend(self, participant: str, *, least_first: bool) -> Sequence[float]:
        """Return a participant's best score so far after each of its sessions, oldest first."""
        best: list[float] = []
        rows = self.by_participant.get(participant, ())
        for row in sorted(rows, key=lambda one: (one.at, one.of.id)):
            if row.score is not None:
                is_best = not best or (
                    row.score < best[-1] if least_first else row.score > best[-1]
                )
                best.append(row.score if is_best else best[-1])
        return _thinned(best)


@dataclass(slots=True)
class Ranking:
    """All sessions of a board in order, for every viewer."""

    of: MetricOrder
    number: tuple[int, int]
    rows: Sequence[ScoredSession]
    before: dict[str, tuple[float, float]]
    """Order a day ago of those that had a value then, by id."""
    owners: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()

    def viewer_key(self, viewer: UserCaller) -> tuple[object, ...]:
        """Viewers with equal keys see the same."""
        user = viewer.user
        return (
            user.role,
            user.name if user.name in self.owners else "",
            user.team if user.team in self.teams else "",
        )

    def view(self, viewer: UserCaller, best_per: BestOf) -> SessionsView:
        """Return the view of a viewer, ranked among what the viewer may see."""
        rows = [one for one in self.rows if may(viewer, SEE, one.of) is ALLOW]
        by_participant: dict[str, list[ScoredSession]] = {}
        entries: list[RankedSession] = []
        seen: set[str] = set()
        rank = 0
        before = self._ranks_before(rows, best_per)
        for row in rows:
            whose = best_per.participant(row.of)
            by_participant.setdefault(whose, []).append(row)
            if best_per.is_single:
                if whose in seen:
                    continue
                seen.add(whose)
            rank += row.score is not None
            key = whose if best_per.is_single else row.of.id
            entries.append(
                RankedSession(
                    rank=0 if row.score is None else rank,
                    row=row,
                    rank_before=before.get(key, 0),
                )
            )
        return SessionsView(count=len(rows), entries=entries, by_participant=by_participant)

    def _ranks_before(self, rows: Sequence[ScoredSession], best_per: BestOf) -> dict[str, int]:
        """Ranks a day ago, by participant or session."""
        known = [(self.before[one.of.id], one) for one in rows if one.of.id in self.before]
        ranks: dict[str, int] = {}
        for _, row in sorted(known, key=lambda one: (one[0], one[1].of.id)):
            key = best_per.participant(row.of) if best_per.is_single else row.of.id
            ranks.setdefault(key, len(ranks) + 1)
        return ranks


@dataclass(frozen=True, slots=True)
class BestOf:
    """Which rows are listed: the best of each user, of each team, or all."""

    is_single: bool
    by_team: bool = False

    def participant(self, one: Candidate) -> str:
        """The user, or the team: names of both may be equal."""
        return f"team {one.team}" if self.by_team and one.team else f"user {one.owner}"


def checked_filter(text: str, owner: str) -> Filter:
    """Parse a board's filter; raises InvalidRequest."""
    try:
        return Filter(text, me=owner)
    except FilterError as error:
        raise InvalidRequest(
            f"the filter is not valid: {error.message}",
            why=f"at {text[error.begins : error.ends][:80]!r}",
            attempt=" or ".join(error.advice)
            or "the same in nsml ps --filter, which shows its result",
        ) from error


class _Sessions:
    """The sessions that match one filter and have one metric."""

    def __init__(self, order: MetricOrder) -> None:
        self.key = order.metric, order.filter, order.owner
        self.metric = order.metric
        self.filter = checked_filter(order.filter, order.owner)
        self.has_filter = bool(order.filter.strip())
        self.names = tuple(self.filter.compared())
        self.ended: dict[str, Candidate] = {}
        self.live: dict[str, tuple[Session, Candidate | None]] = {}
        self.stale: set[str] = set()
        self.loaded_at: float | None = None
        self.number = 0
        self.turn = asyncio.Lock()
        self.calls: dict[tuple[bool, bool], SharedCall[Ranking]] = {}
        self.rankings: dict[tuple[bool, bool], Ranking] = {}

    def note(self, touched: set[str] | None) -> None:
        """Note sessions with commits; None: any."""
        if touched is None:
            self.loaded_at = None
        else:
            self.stale |= touched


class SessionBoards:
    """Ranks the sessions of boards.

    Args:
        run: runs the decoding of ended sessions beside the event loop.
    """

    def __init__(
        self,
        *,
        state: LiveState,
        history: History,
        presenter: Presenter,
        usages: Usages,
        clock: Clock,
        run: Offload,
    ) -> None:
        self.values = MetricValues(history)
        self._state = state
        self._history = history
        self._presenter = presenter
        self._usages = usages
        self._clock = clock
        self._run = run
        self._following = ExitStack()
        self._touched: Touched | None = None
        self._known: LruDict[tuple[str, str, str], _Sessions] = LruDict(_KEPT)
        self._views: LruDict[tuple[object, ...], tuple[Ranking, SessionsView]] = LruDict(
            _KEPT_ROWS, weigh=lambda kept: len(kept[0].rows) + 1
        )
        # Boards of one metric share what they know of a session.
        self._candidates: WeakValueDictionary[tuple[str, str], Candidate] = WeakValueDictionary()

    def view(self, ranking: Ranking, viewer: UserCaller, best_per: BestOf) -> SessionsView:
        """Return the view of a viewer; viewers who see the same share it."""
        key = ranking.of, ranking.viewer_key(viewer), best_per
        kept = self._views.get(key)
        if kept is None or kept[0] is not ranking:
            kept = ranking, ranking.view(viewer, best_per)
            self._views.keep(key, kept)
        return kept[1]

    async def ranking(self, order: MetricOrder) -> Ranking:
        """Return the present order of all sessions, the same object while nothing changed.

        Raises:
            InvalidRequest: the filter is not valid any more.
            HistoryUnavailable: the history does not answer.
        """
        sessions = self._sessions(order)
        kind = order.least_first, order.uses_last
        call = sessions.calls.get(kind)
        if call is None:
            call = SharedCall(lambda: self._ranked(sessions, order))
            sessions.calls[kind] = call
        return await call()

    def _sessions(self, order: MetricOrder) -> _Sessions:
        found = self._known.get((order.metric, order.filter, order.owner))
        if found is None:
            found = _Sessions(order)
            self._known.keep(found.key, found)
        return found

    async def _ranked(self, sessions: _Sessions, order: MetricOrder) -> Ranking:
        kind = order.least_first, order.uses_last
        async with sessions.turn:
            await self._refresh(sessions)
            self._trim(sessions)
            known = sessions.rankings.get(kind)
            hour = math.floor(self._clock.time() / _HOUR_S)
            if known is None or known.number != (sessions.number, hour):
                known = await self._ordered(sessions, order, (sessions.number, hour))
                sessions.rankings[kind] = known
            return known

    # What matches

    def _note(self) -> None:
        """Pass on commits since the last call."""
        if self._touched is None:
            self._touched = self._following.enter_context(self._history.streams.touched())
            return
        touched = self._touched.take()
        if touched is None:
            self.values.forget_all()
        else:
            self.values.forget(touched)
        if touched is None or touched:
            for one in self._known.values():
                one.note(touched)

    async def _refresh(self, sessions: _Sessions) -> None:
        self._note()
        now = self._clock.monotonic()
        is_old = _AGE in sessions.names and (
            sessions.loaded_at is not None and now - sessions.loaded_at >= _AGES_FOR_S
        )
        stale, sessions.stale = sessions.stale, set()
        before = dict(sessions.ended), {one: made for one, (_, made) in sessions.live.items()}
        try:
            if sessions.loaded_at is None or is_old:
                sessions.loaded_at = now
                sessions.live.clear()
                await self._load_live(sessions, stale)
                # The live ones first: a session that ends meanwhile is seen twice, not never.
                await self._load_ended(sessions)
            else:
                stale |= sessions.live.keys() - self._state.sessions.keys()
                await self._load_live(sessions, stale)
                await self._reload_ended(sessions, stale)
        except BaseException:
            sessions.loaded_at = None
            raise
        for session_id in sessions.live.keys() & sessions.ended.keys():
            del sessions.ended[session_id]
        if before != (sessions.ended, {one: made for one, (_, made) in sessions.live.items()}):
            sessions.number += 1

    async def _load_live(self, sessions: _Sessions, stale: set[str]) -> None:
        live = {
            stored.value.id: stored.value
            for stored in self._state.sessions.values()
            if stored.value.attempt and counts(stored.value)
        }
        for gone in sessions.live.keys() - live.keys():
            del sessions.live[gone]
        changed = [
            one
            for one in live.values()
            if one.id in stale
            or (known := sessions.live.get(one.id)) is None
            or known[0] is not one
        ]
        found = await self._matching(sessions, changed)
        for one in changed:
            sessions.live[one.id] = one, found.get(one.id)

    async def _load_ended(self, sessions: _Sessions) -> None:
        owners = sessions.filter.required("user")
        is_plain = not any(set("*?[") & set(owner) for owner in owners)
        query = SessionQuery(
            viewer=_EVERY_SESSION, owners=tuple(map(str.casefold, owners)) if is_plain else ()
        )
        found: dict[str, Candidate] = {}
        after, seen = None, 0
        while True:
            page = await self._history.catalogue.sessions(query, after=after, limit=_PAGE)
            extents = await self.values.of([row.id for row in page.sessions], sessions.metric)
            records = [row.record for row in page.sessions if row.id in extents]
            found |= await self._matching(sessions, await self._decoded(records))
            after, seen = page.next, seen + len(page.sessions)
            if after is None or seen >= MOST_SESSIONS:
                break
        sessions.ended = found

    async def _reload_ended(self, sessions: _Sessions, stale: set[str]) -> None:
        changed = sorted(stale - sessions.live.keys())
        for start in range(0, len(changed), AT_ONCE):
            some = changed[start : start + AT_ONCE]
            rows = await self._history.catalogue.sessions_among(some)
            decoded = await self._decoded([row.record for row in rows])
            found = await self._matching(sessions, decoded)
            for session_id in some:
                if session_id in found:
                    sessions.ended[session_id] = found[session_id]
                else:
                    sessions.ended.pop(session_id, None)

    async def _decoded(self, records: Sequence[bytes]) -> list[Session]:
        if not records:
            return []
        return await to_its_end(
            self._run(lambda: [etcd_codec.decode_session(record) for record in records])
        )

    async def _matching(self, sessions: _Sessions, some: Iterable[Session]) -> dict[str, Candidate]:
        counted = [one for one in some if counts(one)]
        extents = await self.values.of([one.id for one in counted], sessions.metric)
        reported = [one for one in counted if one.id in extents]
        if sessions.has_filter and reported:
            now = self._clock.time()
            presented = self._presenter.sessions(reported, _STRANGER, sessions.names)
            taken = {
                message.id
                async for message in presented
                if sessions.filter.takes(Filtered(message), now)
            }
            reported = [one for one in reported if one.id in taken]
        return {one.id: self._candidate(sessions, one, extents[one.id]) for one in reported}

    def _candidate(self, sessions: _Sessions, one: Session, extent: SeriesExtent) -> Candidate:
        made, key = _candidate(one, extent), (one.id, sessions.metric)
        known = self._candidates.get(key)
        if known is not None and known == made:
            return known
        self._candidates[key] = made
        return made

    def _trim(self, used: _Sessions) -> None:
        """Drop the sets of sessions that were not asked for the longest, if there are too many sessions in all."""
        total = sum(len(one.ended) for one in self._known.values())
        for one in self._known.values():
            if total <= _KEPT_SESSIONS:
                break
            if one is not used:
                total -= len(one.ended)
                self._known.forget(one.key)

    # Their order

    async def _ordered(
        self, sessions: _Sessions, order: MetricOrder, number: tuple[int, int]
    ) -> Ranking:
        live = [made for _, made in sessions.live.values() if made is not None]
        rows = [_scored(one, order) for one in (*sessions.ended.values(), *live)]
        rows.sort(key=lambda one: _place(one, order))
        await self._settle_ties(rows, order)
        return Ranking(
            of=order,
            number=number,
            rows=rows,
            before=await self._before(rows, order, number[1] * _HOUR_S - _DAY_S),
            owners=frozenset(one.of.owner for one in rows),
            teams=frozenset(one.of.team for one in rows if one.of.team),
        )

    async def _settle_ties(self, rows: list[ScoredSession], order: MetricOrder) -> None:
        """Order equal scores by the instants of their reports, read more exactly where they are not certain."""
        start = 0
        for end in range(1, len(rows) + 1):
            if end < len(rows) and rows[end].score == rows[start].score:
                continue
            if end - start > 1 and rows[start].score is not None and not order.uses_last:
                await self._settle(rows, start, end, order)
            start = end

    async def _settle(
        self, rows: list[ScoredSession], start: int, end: int, order: MetricOrder
    ) -> None:
        """Order the rows from `start` to `end`, of one score and in the order of the latest possible instants."""
        later = math.inf
        for at in range(end - 1, start - 1, -1):
            extreme = _extreme(rows[at].of.extent, order)
            before = rows[at - 1].reported_at if at > start else -math.inf
            if later <= extreme.until or extreme.since <= before:
                rows[at] = await self.exact(rows[at], order)
            later = min(later, extreme.since)
        rows[start:end] = sorted(rows[start:end], key=lambda one: _place(one, order))

    async def exact(self, row: ScoredSession, order: MetricOrder) -> ScoredSession:
        """Return a row with the instant of its report, which is approximate before."""
        if row.score is None or order.uses_last:
            return row
        extreme = _extreme(row.of.extent, order)
        found = await self.values.first_report(row.of.id, order.metric, extreme)
        return ScoredSession(of=row.of, score=row.score, reported_at=found.until)

    async def standard_errors(
        self, rows: Iterable[ScoredSession], order: MetricOrder
    ) -> dict[str, float]:
        """Return the reported standard errors of exact rows, by session."""
        scored = [one for one in rows if one.score is not None]
        with_errors = await self.values.of(
            [one.of.id for one in scored], order.metric + STANDARD_ERROR
        )
        found = {}
        for row in scored:
            if row.of.id in with_errors:
                error = await self.values.standard_error(row.of.id, order.metric, row.reported_at)
                if error is not None:
                    found[row.of.id] = error
        return found

    async def _before(
        self, rows: Iterable[ScoredSession], order: MetricOrder, then: float
    ) -> dict[str, tuple[float, float]]:
        """The order at an earlier instant."""
        found = {}
        for row in rows:
            if row.score is None or row.of.created_at > then:
                continue
            extent = row.of.extent
            if max(extent.last.until, row.at) > then:
                earlier = await self.values.until(row.of.id, order.metric, then)
                if earlier is None:
                    continue
                extent = earlier
            value = _extreme(extent, order)
            if math.isfinite(value.value):
                found[row.of.id] = _signed(value.value, order), value.until
        return found

    def gpu_seconds(self, one: Candidate) -> float:
        """Return the GPU seconds of a session until now, or until it ended."""
        if one.session is None:
            return one.gpu_seconds
        holding = self._usages.holding(one.session)
        now = sum(held.device.thousandths * (held.until - held.since) for held in holding)
        return one.gpu_seconds + now / 1000


def counts(session: Session) -> bool:
    """Whether boards of sessions count it: not the steps of submissions."""
    return session.spec.stage is None


def _candidate(session: Session, extent: SeriesExtent) -> Candidate:
    spec = session.spec
    return Candidate(
        id=session.id,
        name=session.name,
        owner=session.owner,
        team=session.team,
        visibility=session.visibility,
        created_at=session.created_at,
        args=shell_line(spec.args or spec.argv)[:MOST_ARGS],
        memo=session.memo[:MOST_MEMO],
        gpu_seconds=sum(one.gpu_thousandths * one.held_s for one in session.attempts) / 1000,
        extent=extent,
        session=None if session.state.is_ended else session,
    )


def _extreme(extent: SeriesExtent, order: MetricOrder) -> Extreme:
    if order.uses_last:
        return extent.last
    return extent.low if order.least_first else extent.high


def _scored(one: Candidate, order: MetricOrder) -> ScoredSession:
    value = _extreme(one.extent, order)
    is_finite = math.isfinite(value.value)
    return ScoredSession(
        of=one,
        score=value.value if is_finite else None,
        reported_at=value.until if is_finite else 0.0,
    )


def _signed(score: float, order: MetricOrder) -> float:
    return score if order.least_first else -score


def _place(row: ScoredSession, order: MetricOrder) -> tuple[bool, float, float, str]:
    """Best first; equal ones by their reports; those without a score last."""
    score = 0.0 if row.score is None else _signed(row.score, order)
    return row.score is None, score, row.at, row.of.id


def _thinned(scores: Sequence[float]) -> Sequence[float]:
    last = len(scores) - 1
    if last < MOST_TREND:
        return scores
    return [scores[at * last // (MOST_TREND - 1)] for at in range(MOST_TREND)]
