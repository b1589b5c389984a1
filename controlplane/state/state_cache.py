"""A cache of the store: each key's value with the revision that last wrote it.

Only a newer revision replaces a value. So a member's own writes are visible to it at once, the
watch's later copy of them is skipped without decoding, and a decision based on an old value
fails its compare.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from controlplane.domain.changes import (
    AllocationChanged,
    Change,
    ContactChanged,
    NodeChanged,
    NodeRemoved,
    PastChanged,
    ProjectChanged,
    ProjectRemoved,
    SessionChanged,
    SessionRemoved,
    StockChanged,
    TeamQuotaChanged,
    TeamQuotaRemoved,
    UsedChanged,
)
from controlplane.domain.values import Allocation, Node, Project, Session, Stock, TeamQuota
from controlplane.scheduler.fair_share import HALF_LIFE_S
from controlplane.state.charge_totals import Accounts
from controlplane.state.hold_times import HoldTimes
from controlplane.state.live_usage import LiveUsage
from controlplane.state.lru import LruDict
from controlplane.state.program_words import ProgramWords
from controlplane.state.subscriptions import VIEWED, Subscriptions
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from controlplane.domain.values import AllocatedReplica, Replica

T = TypeVar("T")

REMEMBERED_REMOVALS: Final = 10_000
"""Removed sessions that can still be sent to watchers that reconnect, or are slow."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A value with the revision that last wrote it, for compares."""

    value: T
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A session that left the store, in its last state."""

    session: Session
    revision: int


class StateCache:
    """Live sessions, nodes, allocations, projects, team quotas and counters; nothing here blocks.

    Attributes:
        sessions, nodes, allocations, projects, counters: by id, name, node name, name and key.
        team_quotas: of the teams of open competitions, by competition id.
        revision: everything up to here has been seen; single keys may be ahead of it.
        node_changes: number of nodes added, removed or changed so far.
        newest: the highest revision of any key.
        first_revision: start of the gapless history of this control plane.
        silent: nodes whose agents are not connected here.
        stocks: stock of data for sessions, by connected node, as reported.
        removals: the last removed sessions, oldest first.
        removed: total number of removed sessions.
        subscriptions: the subscribers to changes.
        held: how long attempts have held their devices.
        words: running programs' reports on changes made to them.
        accounts: current and past usage of projects and users, for budgets and fair shares.
        usage: number of sessions of users and projects, and the size of their records.
        lately: the accounts' recent usage, in GPUs, as of one recent time.

    Args:
        monotonic: seconds of a clock that is never set.
        half_life_s: of past usage, as in `Accounts`.
    """

    def __init__(self, monotonic: Callable[[], float], *, half_life_s: float = HALF_LIFE_S) -> None:
        self.sessions: dict[str, Stored[Session]] = {}
        self.nodes: dict[str, Stored[Node]] = {}
        self.allocations: dict[str, Stored[Allocation]] = {}
        self.projects: dict[str, Stored[Project]] = {}
        self.team_quotas: dict[str, Stored[TeamQuota]] = {}
        self.counters: dict[str, Stored[int]] = {}
        self.silent: frozenset[str] = frozenset()
        self.stocks: dict[str, Stock] = {}
        self.revision = 0
        self.newest = 0
        self.node_changes = 0
        self.first_revision = 0
        self.removals: deque[Removal] = deque(maxlen=REMEMBERED_REMOVALS)
        self.removed = 0
        self.subscriptions = Subscriptions()
        self.held = HoldTimes(monotonic)
        self.words = ProgramWords()
        self.accounts = Accounts(self._held_s, half_life_s)
        self.usage = LiveUsage()
        self.lately: Mapping[str, float] = {}
        self._expected: dict[bytes, Session | Allocation] = {}
        self._names: dict[str, str] = {}
        self._on_node: dict[str, set[str]] = {}
        self._requests: dict[tuple[str, str], str] = {}
        self._deleted: dict[str, int] = {}
        self._gone: LruDict[str, int] = LruDict(REMEMBERED_REMOVALS)
        self._left: LruDict[tuple[str, str], int] = LruDict(REMEMBERED_REMOVALS)

    def session(self, session_id: str) -> Session | None:
        """Return a live session."""
        stored = self.sessions.get(session_id)
        return stored.value if stored else None

    def placed(self, session: Session) -> Iterator[tuple[str, AllocatedReplica]]:
        """Yield the placed replicas of its current attempt, each with its node, sorted by node."""
        for name in sorted({one.node for one in session.replicas}):
            stored = self.allocations.get(name)
            for replica in stored.value.replicas if stored else ():
                if (replica.session_id, replica.attempt) == (session.id, session.attempt):
                    yield name, replica

    def project(self, name: str) -> Project | None:
        """Return a project with a record."""
        stored = self.projects.get(name)
        return stored.value if stored else None

    def used(self, now: float) -> list[UsedChanged]:
        """Return each project's known usage of its budget by `now` (Unix seconds)."""
        return [UsedChanged(used=used) for used in self.accounts.used(now)]

    def set_lately(self, lately: Mapping[str, float]) -> None:
        """Publish the recent usage of accounts, all as of one time."""
        if lately != self.lately:
            self.lately = lately
            self.subscriptions.tell("lately", PastChanged(lately=lately))

    def _held_s(self, session: Session, now: float) -> float:
        """Return seconds that the current attempt of a session has held its devices."""
        stored = self.allocations.get(session.replicas[0].node)
        key = (session.id, session.attempt)
        placed_at = next(
            (
                one.placed_at
                for one in (stored.value.replicas if stored else ())
                if (one.session_id, one.attempt) == key
            ),
            now,
        )
        return self.held.held_s(*key, by_wall_s=now - placed_at)

    def by_name(self, name: str) -> Session | None:
        """Return a live session by its full name."""
        return self.session(self._names.get(name, ""))

    def sessions_on(self, node: str) -> list[Session]:
        """Return live sessions with a replica of the current attempt on the node, sorted by id."""
        # Indexed, not searched: a thousand agents that reconnect at once ask a thousand times.
        return [self.sessions[one].value for one in sorted(self._on_node.get(node, ()))]

    def by_request(self, owner: str, request_id: str) -> Session | None:
        """Return the live session created by this request."""
        return self.session(self._requests.get((owner, request_id), ""))

    def removed_after(self, count: int) -> list[Session] | None:
        """Return sessions removed after the first `count`, oldest first; None if some are forgotten."""
        newer = self.removed - count
        if newer > len(self.removals):
            return None
        return [one.session for one in islice(reversed(self.removals), newer)][::-1]

    def has_left_since(self, owner: str, request_id: str, revision: int) -> bool:
        """Whether the session created by this request left the store after `revision`."""
        return (self._left.get((owner, request_id)) or 0) > revision

    def newest_instant(self) -> float:
        """Return the latest time written by a control plane, in Unix seconds; 0: there is none.

        Times reported by nodes are left out: they use their own clocks.
        """
        found = [0.0]
        for session in (one.value for one in self.sessions.values()):
            found += session.created_at, session.progress.saved_at
            found += (one.ended_at for one in session.attempts[-1:])
        for allocation in (one.value for one in self.allocations.values()):
            found += (one.placed_at for one in allocation.replicas)
        return max(found)

    def everything(self) -> Iterator[Change]:
        """Yield the whole state as changes from nothing; sessions in the order of submission.

        For one pass: contacts and allocations come before their nodes, projects and team quotas before sessions.
        """
        for name in self.silent:
            yield ContactChanged(name=name, is_silent=True)
        for allocation in self.allocations.values():
            yield AllocationChanged(allocation=allocation.value)
        for node in self.nodes.values():
            yield NodeChanged(node=node.value)
        for name, stock in self.stocks.items():
            yield StockChanged(name=name, stock=stock)
        for project in self.projects.values():
            yield ProjectChanged(project=project.value)
        for quota in self.team_quotas.values():
            yield TeamQuotaChanged(quota=quota.value)
        yield PastChanged(lately=self.lately)
        sessions = [one.value for one in self.sessions.values()]
        sessions.sort(key=lambda one: (not one.state.holds_devices, one.created_at, one.id))
        for session in sessions:
            yield SessionChanged(session=session)

    def keys(self) -> Iterator[tuple[str, int]]:
        """Yield every known key with its revision."""
        for session_id, session in self.sessions.items():
            yield etcd_codec.session_key(session_id), session.revision
        for name, node in self.nodes.items():
            yield etcd_codec.node_key(name), node.revision
        for name, allocation in self.allocations.items():
            yield etcd_codec.allocation_key(name), allocation.revision
        for name, project in self.projects.items():
            yield etcd_codec.project_key(name), project.revision
        for competition_id, quota in self.team_quotas.items():
            yield etcd_codec.team_quota_key(competition_id), quota.revision
        for key, counter in self.counters.items():
            yield key, counter.revision

    def reach(self, revision: int) -> None:
        """Record that everything up to a revision has been seen."""
        if revision <= self.revision:
            return
        self.revision = revision
        self.newest = max(self.newest, revision)
        self.first_revision = self.first_revision or revision
        if self._deleted:
            self._deleted = {key: at for key, at in self._deleted.items() if at > revision}

    def begin_anew(self, revision: int) -> None:
        """Record a gap before a revision: every watcher must start over."""
        self.first_revision = revision
        self.subscriptions.poke(VIEWED)

    def put(self, key: str, value: bytes, revision: int) -> bool:
        """Set a key's value if it is newer; return whether it was."""
        if self._deleted.get(key, 0) >= revision:
            return False
        prefix, _, rest = key.partition("/")
        is_taken = False
        match prefix:
            case "session" if self._is_news(self.sessions.get(rest), revision):
                is_taken = self.put_session(self._session_of(value), revision)
            case "alloc" if self._is_news(self.allocations.get(rest), revision):
                is_taken = self.put_allocation(self._allocation_of(value), revision)
            case "node" if self._is_news(self.nodes.get(rest), revision):
                is_taken = self.put_node(etcd_codec.decode_node(value), revision)
            case "project" if self._is_news(self.projects.get(rest), revision):
                is_taken = self.put_project(etcd_codec.decode_project(value), revision)
            case "team-quota" if self._is_news(self.team_quotas.get(rest), revision):
                is_taken = self.put_team_quota(etcd_codec.decode_team_quota(value), revision)
            case "counter" if self._is_news(self.counters.get(key), revision):
                is_taken = self.put_counter(key, etcd_codec.decode_counter(value), revision)
        return is_taken

    @contextlib.contextmanager
    def expecting(self, values: dict[bytes, Session | Allocation]) -> Iterator[None]:
        """Expect our own writes of these records: the watch may deliver them before the response."""
        self._expected |= values
        try:
            yield
        finally:
            for value in values:
                self._expected.pop(value, None)

    def _session_of(self, value: bytes) -> Session:
        known = self._expected.get(value)
        return known if isinstance(known, Session) else etcd_codec.decode_session(value)

    def _allocation_of(self, value: bytes) -> Allocation:
        known = self._expected.get(value)
        return known if isinstance(known, Allocation) else etcd_codec.decode_allocation(value)

    def put_counter(self, key: str, number: int, revision: int) -> bool:
        """Set a counter written at `revision`, if newer."""
        if not self._is_news(self.counters.get(key), revision):
            return False
        self.counters[key] = Stored(number, revision)
        self.newest = max(self.newest, revision)
        return True

    def put_session(self, session: Session, revision: int) -> bool:
        """Set a session written at `revision`, if newer."""
        if not self._is_news(self.sessions.get(session.id), revision):
            return False
        if (self._gone.get(session.id) or 0) >= revision:
            # Our own write: its response came after the watch reported the removal.
            return False
        known = self.session(session.id)
        if known is not None and session.attempt > known.attempt:
            self.held.placed(session.id, session.attempt)
        self._move(session.id, known.replicas if known else (), session.replicas)
        self.accounts.put_session(session)
        self.usage.put(session)
        self.sessions[session.id] = Stored(session, revision)
        self.newest = max(self.newest, revision)
        self._names[session.name] = session.id
        self._requests[session.owner, session.request_id] = session.id
        self.subscriptions.tell(etcd_codec.session_key(session.id), SessionChanged(session=session))
        return True

    def put_allocation(self, allocation: Allocation, revision: int) -> bool:
        """Set an allocation written at `revision`, if newer."""
        if not self._is_news(self.allocations.get(allocation.node), revision):
            return False
        self.allocations[allocation.node] = Stored(allocation, revision)
        self.newest = max(self.newest, revision)
        change = AllocationChanged(allocation=allocation)
        self.subscriptions.tell(etcd_codec.allocation_key(allocation.node), change)
        return True

    def put_node(self, node: Node, revision: int) -> bool:
        """Set a node written at `revision`, if newer."""
        if not self._is_news(self.nodes.get(node.name), revision):
            return False
        self.nodes[node.name] = Stored(node, revision)
        self.node_changes += 1
        self.newest = max(self.newest, revision)
        self.subscriptions.tell(etcd_codec.node_key(node.name), NodeChanged(node=node))
        return True

    def put_project(self, project: Project, revision: int) -> bool:
        """Set a project written at `revision`, if newer."""
        if not self._is_news(self.projects.get(project.name), revision):
            return False
        self.projects[project.name] = Stored(project, revision)
        self.newest = max(self.newest, revision)
        self.accounts.put_project(project)
        self.retell_project(project.name)
        return True

    def put_team_quota(self, quota: TeamQuota, revision: int) -> bool:
        """Set the quota of a competition's teams written at `revision`, if newer."""
        if not self._is_news(self.team_quotas.get(quota.competition_id), revision):
            return False
        self.team_quotas[quota.competition_id] = Stored(quota, revision)
        self.newest = max(self.newest, revision)
        key = etcd_codec.team_quota_key(quota.competition_id)
        self.subscriptions.tell(key, TeamQuotaChanged(quota=quota))
        return True

    def retell_project(self, name: str) -> None:
        """Publish a project again: it changed, or data about it did."""
        if project := self.project(name):
            self.subscriptions.tell(etcd_codec.project_key(name), ProjectChanged(project=project))

    def set_contact(self, node: str, *, is_silent: bool) -> None:
        """Set whether an agent is connected: nothing is placed on a node without one."""
        if is_silent == (node in self.silent):
            return
        self.silent = self.silent - {node} if not is_silent else self.silent | {node}
        self.subscriptions.tell(f"contact/{node}", ContactChanged(name=node, is_silent=is_silent))

    def stock(self, node: str) -> Stock:
        """Return a node's stock of data for sessions; empty while its agent is not connected."""
        return self.stocks.get(node, Stock())

    def set_stock(self, node: str, stock: Stock) -> None:
        """Set a node's stock of data for sessions."""
        stock = stock if stock.things else Stock()
        if stock == self.stocks.get(node, Stock()):
            return
        self.stocks.pop(node, None)
        if stock.things:
            self.stocks[node] = stock
        self.subscriptions.tell(f"stock/{node}", StockChanged(name=node, stock=stock))

    def delete(self, key: str, revision: int) -> None:
        """Delete a key that was deleted at `revision`."""
        if revision > self.revision:
            self._deleted[key] = revision
            self.newest = max(self.newest, revision)
        prefix, _, rest = key.partition("/")
        match prefix:
            case "session" if self._is_news(self.sessions.get(rest), revision):
                self._remove_session(rest, revision)
            case "alloc" if self._is_news(self.allocations.get(rest), revision):
                if self.allocations.pop(rest, None):
                    change = AllocationChanged(allocation=Allocation(node=rest))
                    self.subscriptions.tell(key, change)
            case "node" if self._is_news(self.nodes.get(rest), revision):
                if self.nodes.pop(rest, None):
                    self.node_changes += 1
                    self.subscriptions.tell(key, NodeRemoved(name=rest))
            case "project" if self._is_news(self.projects.get(rest), revision):
                self._remove_project(rest)
            case "team-quota" if self._is_news(self.team_quotas.get(rest), revision):
                self._remove_team_quota(rest)
            case "counter" if self._is_news(self.counters.get(key), revision):
                self.counters.pop(key, None)

    def _remove_project(self, name: str) -> None:
        if self.projects.pop(name, None):
            self.accounts.remove_project(name)
            self.subscriptions.tell(etcd_codec.project_key(name), ProjectRemoved(name=name))

    def _remove_team_quota(self, competition_id: str) -> None:
        if self.team_quotas.pop(competition_id, None):
            change = TeamQuotaRemoved(competition_id=competition_id)
            self.subscriptions.tell(etcd_codec.team_quota_key(competition_id), change)

    def _remove_session(self, session_id: str, revision: int) -> None:
        stored = self.sessions.pop(session_id, None)
        if stored is None:
            return
        session = stored.value
        self.held.forget(session_id)
        self.words.forget(session_id)
        self.accounts.remove_session(session)
        self.usage.remove(session)
        self._move(session_id, session.replicas, ())
        self._names.pop(session.name, None)
        self._requests.pop((session.owner, session.request_id), None)
        self.removals.append(Removal(session=session, revision=revision))
        self.removed += 1
        if not session.state.is_ended:
            self.begin_anew(revision)  # we missed its end
        self._gone.keep(session_id, revision)
        self._left.keep((session.owner, session.request_id), revision)
        self.subscriptions.tell(
            etcd_codec.session_key(session_id), SessionRemoved(session_id=session_id)
        )

    def _move(self, session_id: str, before: Iterable[Replica], after: Iterable[Replica]) -> None:
        """Update the index of sessions by node."""
        left, come = {one.node for one in before}, {one.node for one in after}
        for node in left - come:
            self._on_node[node].discard(session_id)
            if not self._on_node[node]:
                del self._on_node[node]
        for node in come - left:
            self._on_node.setdefault(node, set()).add(session_id)

    @staticmethod
    def _is_news(known: Stored[T] | None, revision: int) -> bool:
        return known is None or known.revision < revision
