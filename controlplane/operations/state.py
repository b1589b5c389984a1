"""What lives, as this control plane knows it: fed by one watch, ahead of it by its own writes.

Every key carries the revision that last wrote it, and only a newer one replaces it. So a member's
own transactions are visible to it at once, the watch's later copy of them is skipped without being
decoded, and a decision that was made on an old value fails its compare.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog

from controlplane.domain.snapshot import (
    AllocationChanged,
    Change,
    ClusterSnapshot,
    ContactChanged,
    NodeChanged,
    NodeRemoved,
    SessionChanged,
    SessionRemoved,
)
from controlplane.domain.values import Allocation, Node, Session
from controlplane.operations import records
from controlplane.store.interface import Compacted, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.store.interface import KeyValueStore
    from nsml.clock import Clock

T = TypeVar("T")

RELIST_EVERY_S: Final = 60.0
"""How often the whole store is listed, against events that a watch lost."""

RETRY_S: Final = 0.5
"""Pause after the store did not answer a listing."""

VIEWED: Final = "viewed"
"""Subscribes to what is announced: no key is named so."""

REMEMBERED_REMOVALS: Final = 10_000
"""Sessions that left and can still be told to watchers that come back."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A value with the revision that last wrote it: what a compare is made of."""

    value: T
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A session that left the store, as it was last."""

    session: Session
    revision: int


class Subscription:
    """Changes since the last `take`, the newest of each key: a slow reader costs no memory."""

    def __init__(self) -> None:
        self._pending: dict[str, Change] = {}
        self._wake = asyncio.Event()

    def add(self, key: str, change: Change) -> None:
        """Note a change."""
        # Removed first, so that changes come in the order of their last occurrence.
        self._pending.pop(key, None)
        self._pending[key] = change
        self._wake.set()

    def poke(self) -> None:
        """Let a waiting `take` return, with or without changes."""
        self._wake.set()

    def drain(self) -> list[Change]:
        """Everything noted since the last call; never waits."""
        changes = list(self._pending.values())
        self._pending.clear()
        self._wake.clear()
        return changes

    async def take(self) -> list[Change]:
        """Wait for something to do and give the changes."""
        await self._wake.wait()
        return self.drain()


class LiveState:
    """Live sessions, nodes, allocations and counters.

    Attributes:
        sessions, nodes, allocations, counters: by id, name, node name and key.
        revision: everything up to here has been seen; single keys may be ahead of it.
        silent: nodes whose agents are not connected here.
        first_revision: where this control plane began to follow.
        removals: the last sessions that left, oldest first.
        repaired: values that a listing had to correct because the watch had not told.
    """

    def __init__(self, store: KeyValueStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._log = structlog.get_logger("operations.state")
        self.sessions: dict[str, Stored[Session]] = {}
        self.nodes: dict[str, Stored[Node]] = {}
        self.allocations: dict[str, Stored[Allocation]] = {}
        self.counters: dict[str, Stored[int]] = {}
        self.silent: frozenset[str] = frozenset()
        self.revision = 0
        self.first_revision = 0
        self.removals: deque[Removal] = deque(maxlen=REMEMBERED_REMOVALS)
        self.repaired = 0
        self._expected: dict[bytes, Session | Allocation] = {}
        self._names: dict[str, str] = {}
        self._requests: dict[tuple[str, str], str] = {}
        self._deleted: dict[str, int] = {}
        # Dictionaries for sets: who is told first must not depend on where things lie in memory.
        self._subscriptions: dict[str, dict[Subscription, None]] = {}
        self._advanced = asyncio.Event()

    # Reading

    def session(self, session_id: str) -> Session | None:
        """A live session."""
        stored = self.sessions.get(session_id)
        return stored.value if stored else None

    async def renewed(self, session_id: str) -> Session | None:
        """The live session as the store has it now, which may be ahead of what the watch has told.

        Raises:
            StoreError: the store does not answer.
        """
        item = await self._store.get(records.session_key(session_id))
        if item is None:
            return None
        self.put(item.key, item.value, item.mod_revision)
        return self.session(session_id)

    async def renewed_by_name(self, name: str) -> Session | None:
        """Like `renewed`, by full name."""
        item = await self._store.get(records.name_key(name))
        return None if item is None else await self.renewed(records.decode_pointer(item.value))

    def by_name(self, name: str) -> Session | None:
        """A live session by its full name."""
        return self.session(self._names.get(name, ""))

    def by_request(self, owner: str, request_id: str) -> Session | None:
        """The live session that this request made."""
        return self.session(self._requests.get((owner, request_id), ""))

    def snapshot(self) -> ClusterSnapshot:
        """A fresh snapshot; loops keep theirs up by changes instead."""
        return ClusterSnapshot().apply(self._everything(), revision=self.revision)

    def _everything(self) -> Iterator[Change]:
        for node in self.nodes.values():
            yield NodeChanged(node=node.value)
        for allocation in self.allocations.values():
            yield AllocationChanged(allocation=allocation.value)
        for session in self.sessions.values():
            yield SessionChanged(session=session.value)
        for name in self.silent:
            yield ContactChanged(name=name, is_silent=True)

    @contextlib.contextmanager
    def subscribed(self, *keys: str) -> Iterator[Subscription]:
        """Changes from now on: of everything, or of these keys; VIEWED adds what is announced."""
        subscription = Subscription()
        for key in keys or ("",):
            self._subscriptions.setdefault(key, {})[subscription] = None
        try:
            yield subscription
        finally:
            for key in keys or ("",):
                group = self._subscriptions[key]
                group.pop(subscription, None)
                if not group:
                    del self._subscriptions[key]

    @property
    def has_viewers(self) -> bool:
        """Whether anybody wants to know what is announced."""
        return VIEWED in self._subscriptions

    def announce(self, session_id: str) -> None:
        """Something that viewers see beside a session's record changed."""
        session = self.session(session_id)
        if session is not None:
            for subscription in self._subscriptions.get(VIEWED, ()):
                subscription.add(records.session_key(session_id), SessionChanged(session=session))

    async def reached(self, revision: int) -> None:
        """Wait until everything up to a revision has been seen."""
        while self.revision < revision:
            self._advanced.clear()
            await self._advanced.wait()

    async def catch_up(self, revision: int) -> bool:
        """Wait until everything up to a revision has been seen; False when it never happened.

        It never happened where the store went back in time, or is another one.

        Raises:
            StoreError: the store does not answer.
        """
        if revision > self.revision:
            if revision > (await self._store.list(records.CLUSTER)).revision:
                return False
            await self.reached(revision)
        return True

    # Following

    async def follow(self) -> None:
        """List, then watch, for ever; a listing now and then repairs what a watch lost."""
        while True:
            try:
                await self._relist()
                await self._watch()
            except Compacted:
                self._log.info("state.compacted", revision=self.revision)
            except StoreUnavailable as error:
                self._log.warning("state.unavailable", error=str(error))
                await self._clock.sleep(RETRY_S)

    async def _relist(self) -> None:
        known = self.revision
        listing = await self._store.list("")
        for item in listing.items:
            if self.put(item.key, item.value, item.mod_revision) and item.mod_revision <= known:
                self._repair(item.key)
        present = {item.key for item in listing.items}
        for key, revision in list(self._known()):
            if key not in present and revision <= listing.revision:
                self.delete(key, listing.revision)
                if revision <= known:
                    self._repair(key)
        self._reach(listing.revision)

    def _repair(self, key: str) -> None:
        self.repaired += 1
        self._log.warning("state.repaired", key=key)

    def _known(self) -> Iterator[tuple[str, int]]:
        for session_id, session in self.sessions.items():
            yield records.session_key(session_id), session.revision
        for name, node in self.nodes.items():
            yield records.node_key(name), node.revision
        for name, allocation in self.allocations.items():
            yield records.allocation_key(name), allocation.revision
        for key, counter in self.counters.items():
            yield key, counter.revision

    async def _watch(self) -> None:
        until = self._clock.monotonic() + RELIST_EVERY_S
        async with contextlib.aclosing(self._store.watch("", self.revision + 1)) as batches:
            async for batch in batches:
                for event in batch.events:
                    if event.item is None:
                        self.delete(event.key, batch.revision)
                    else:
                        self.put(event.key, event.item.value, event.item.mod_revision)
                self._reach(batch.revision)
                if self._clock.monotonic() > until:
                    return

    def _reach(self, revision: int) -> None:
        if revision <= self.revision:
            return
        self.revision = revision
        self.first_revision = self.first_revision or revision
        if self._deleted:
            self._deleted = {key: at for key, at in self._deleted.items() if at > revision}
        self._advanced.set()

    # Writing: the watch, and whoever has committed something

    def put(self, key: str, value: bytes, revision: int) -> bool:
        """Take a key's value if it is news."""
        if self._deleted.get(key, 0) >= revision:
            return False
        prefix, _, rest = key.partition("/")
        match prefix:
            case "session":
                if self._is_news(self.sessions.get(rest), revision):
                    return self.put_session(self._session_of(value), revision)
            case "alloc":
                if self._is_news(self.allocations.get(rest), revision):
                    return self.put_allocation(self._allocation_of(value), revision)
            case "node":
                if self._is_news(self.nodes.get(rest), revision):
                    return self.put_node(records.decode_node(value), revision)
            case "counter":
                if self._is_news(self.counters.get(key), revision):
                    return self.put_counter(key, records.decode_counter(value), revision)
        return False

    @contextlib.contextmanager
    def expecting(self, values: dict[bytes, Session | Allocation]) -> Iterator[None]:
        """These records are being written by us: the watch may bring them before the answer."""
        self._expected |= values
        try:
            yield
        finally:
            for value in values:
                self._expected.pop(value, None)

    def _session_of(self, value: bytes) -> Session:
        known = self._expected.get(value)
        return known if isinstance(known, Session) else records.decode_session(value)

    def _allocation_of(self, value: bytes) -> Allocation:
        known = self._expected.get(value)
        return known if isinstance(known, Allocation) else records.decode_allocation(value)

    def put_counter(self, key: str, number: int, revision: int) -> bool:
        """Take a counter that was written at `revision`."""
        if not self._is_news(self.counters.get(key), revision):
            return False
        self.counters[key] = Stored(number, revision)
        return True

    def put_session(self, session: Session, revision: int) -> bool:
        """Take a session that was written at `revision`."""
        if not self._is_news(self.sessions.get(session.id), revision):
            return False
        self.sessions[session.id] = Stored(session, revision)
        self._names[session.name] = session.id
        self._requests[session.owner, session.request_id] = session.id
        self._tell(records.session_key(session.id), SessionChanged(session=session))
        return True

    def put_allocation(self, allocation: Allocation, revision: int) -> bool:
        """Take an allocation that was written at `revision`."""
        if not self._is_news(self.allocations.get(allocation.node), revision):
            return False
        self.allocations[allocation.node] = Stored(allocation, revision)
        change = AllocationChanged(allocation=allocation)
        self._tell(records.allocation_key(allocation.node), change)
        return True

    def put_node(self, node: Node, revision: int) -> bool:
        """Take a node that was written at `revision`."""
        if not self._is_news(self.nodes.get(node.name), revision):
            return False
        self.nodes[node.name] = Stored(node, revision)
        self._tell(records.node_key(node.name), NodeChanged(node=node))
        return True

    def set_contact(self, node: str, *, is_silent: bool) -> None:
        """Take the word whether an agent is connected: nothing is placed where none is."""
        if is_silent == (node in self.silent):
            return
        self.silent = self.silent - {node} if not is_silent else self.silent | {node}
        self._tell(f"contact/{node}", ContactChanged(name=node, is_silent=is_silent))

    def delete(self, key: str, revision: int) -> None:
        """Take the word that a key was deleted at `revision`."""
        if revision > self.revision:
            self._deleted[key] = revision
        prefix, _, rest = key.partition("/")
        match prefix:
            case "session" if self._is_news(self.sessions.get(rest), revision):
                self._remove_session(rest, revision)
            case "alloc" if self._is_news(self.allocations.get(rest), revision):
                if self.allocations.pop(rest, None):
                    change = AllocationChanged(allocation=Allocation(node=rest))
                    self._tell(key, change)
            case "node" if self._is_news(self.nodes.get(rest), revision):
                if self.nodes.pop(rest, None):
                    self._tell(key, NodeRemoved(name=rest))
            case "counter" if self._is_news(self.counters.get(key), revision):
                self.counters.pop(key, None)

    def _remove_session(self, session_id: str, revision: int) -> None:
        stored = self.sessions.pop(session_id, None)
        if stored is None:
            return
        session = stored.value
        self._names.pop(session.name, None)
        self._requests.pop((session.owner, session.request_id), None)
        self.removals.append(Removal(session=session, revision=revision))
        self._tell(records.session_key(session_id), SessionRemoved(session_id=session_id))

    @staticmethod
    def _is_news(known: Stored[T] | None, revision: int) -> bool:
        return known is None or known.revision < revision

    def _tell(self, key: str, change: Change) -> None:
        for subscription in self._subscriptions.get("", ()):
            subscription.add(key, change)
        for subscription in self._subscriptions.get(key, ()):
            subscription.add(key, change)
