"""Leader election: one leader at a time, and a number that fences writes of earlier leaders.

The leader key exists under a lease. Its create_revision is the *term*: it grows with every leader,
and a transaction that compares it is refused once there is another leader. The lease and the
clock only let a leader stop early; the comparison makes it safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import structlog

from controlplane.store.background_task import Companion
from controlplane.store.interface import (
    CommitUnknown,
    Compacted,
    Compare,
    Delete,
    Get,
    KeyValue,
    Lease,
    LeaseLost,
    Put,
    StoreError,
    StoreUnavailable,
    Transaction,
    absent,
    created_at,
    unchanged,
)
from controlplane.store.watched_key import follow_key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

    from controlplane.store.interface import KeyValueStore, TransactionResult
    from nsml.common.clock import Clock

LEADER_KEY: Final = "leader"
DEPOSED_KEY: Final = "leader.deposed"
"""Written by each deposing, by any member, to keep them apart in time."""
WORD_KEY: Final = "leader.word"
"""A resigning leader's message to the next one, which deletes it; it ends with the resigning leader's lease."""
DEFAULT_TTL_S: Final = 3.0
"""Default; a control plane uses its setting `lease_s`."""
VALID_SHARE: Final = 0.6
"""Share of the lease after which an unrenewed leader stops: well before another can be elected."""
RENEWALS_PER_TTL: Final = 6
CAMPAIGN_RETRY_S: Final = 0.2
WATCH_RETRY_S: Final = 0.1


class LeadershipLost(StoreError):
    """Another leader has been elected, may have been, or the lease cannot be renewed in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A candidate of an election.

    Attributes:
        member: the id of this control plane, unique among all.
        address: its address for forwarded calls.
        is_tls: whether that address needs mutual TLS.
        process: id of this process: a restarted one under the same name has another.
    """

    member: str
    address: str
    is_tls: bool = False
    process: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The leader and its fencing number; the rest as in `Candidate`."""

    member: str
    address: str
    term: int
    is_tls: bool = False
    process: str = ""


async def watch_leader(
    store: KeyValueStore, *, clock: Clock, key: str = LEADER_KEY
) -> AsyncGenerator[Leader | None, None]:
    """Yield the current leader, then each change; None while there is none."""
    async with contextlib.aclosing(follow_key(store, key, clock=clock)) as items:
        async for item in items:
            yield None if item is None else _leader(item)


async def last_deposed(store: KeyValueStore) -> int:
    """The revision of the last deposing; 0 if there was none."""
    item = await store.get(DEPOSED_KEY)
    return 0 if item is None else item.mod_revision


async def depose(
    store: KeyValueStore, leader: Leader, *, last: int | None = None, key: str = LEADER_KEY
) -> bool:
    """Remove a leader that is known to be dead before its lease ends.

    Safe even if it is alive: its later writes are fenced. False if it leads no longer, or if
    a leader was deposed after `last` (None: not checked).
    """
    word = json.dumps({"member": leader.member, "term": leader.term}).encode()
    compares = [created_at(key, leader.term)]
    if last is not None:
        compares.append(unchanged(DEPOSED_KEY, last))
    result = await store.commit(
        Transaction(
            compares=tuple(compares),
            success=(Delete(key=key), Put(key=DEPOSED_KEY, value=word)),
        )
    )
    return result.succeeded


class Leadership:
    """The time during which this process leads, as an async context manager.

    Entering waits until elected, with a lease prepared in advance: between two leaders every write
    counts. Leadership can be lost at any moment: then the body is cancelled and the block raises
    LeadershipLost. On exit the leader key is deleted, after the body has ended or, with
    `leave`, before, so that the next leader begins at once.

    Every write of a leader uses `commit`, or has `fence` among its compares.

    Args:
        ttl_s: lease of the leader key. The body is cancelled 0.6 of it after the last renewal
            was sent, at the latest.
    """

    def __init__(
        self,
        store: KeyValueStore,
        candidate: Candidate,
        *,
        clock: Clock,
        ttl_s: float = DEFAULT_TTL_S,
        key: str = LEADER_KEY,
    ) -> None:
        self._store = store
        self._candidate = candidate
        self._clock = clock
        self._ttl_s = ttl_s
        self._key = key
        self._log = structlog.get_logger().bind(member=candidate.member)
        self._lease: Lease | None = None
        self._valid_until = 0.0
        self._term = 0
        self._leaving: asyncio.Task[bool] | None = None
        self._inherited: bytes | None = None
        self._stack = contextlib.AsyncExitStack()

    @property
    def inherited(self) -> bytes | None:
        """The message of a predecessor that has just resigned; None if there was none."""
        return self._inherited

    def leave(self, word: bytes) -> None:
        """End this term at once, with a message for the next leader; end the body now.

        Later commits of the body are fenced.
        """
        if self._lease is not None and self._leaving is None:
            leaving = self._leave_word(word, self._lease)
            self._leaving = asyncio.create_task(leaving, name="leader.leave")

    @property
    def term(self) -> int:
        """The fencing number: the leader key's create_revision."""
        return self._term

    @property
    def fence(self) -> Compare:
        """True only during this term: put it into every transaction of the leader."""
        return created_at(self._key, self._term)

    @property
    def is_valid(self) -> bool:
        """Whether the lease is surely alive: check it before acting outside the store."""
        return self._leaving is None and self._clock.monotonic() < self._valid_until

    async def commit(self, transaction: Transaction) -> TransactionResult:
        """Commit with the fence.

        Raises:
            LeadershipLost: this term is over; nothing was changed.
            StoreError: as `KeyValueStore.commit`.
        """
        fenced = replace(
            transaction,
            compares=(self.fence, *transaction.compares),
            failure=(*transaction.failure, Get(key=self._key)),
        )
        result = await self._store.commit(fenced)
        if result.succeeded:
            return result
        leader = result.responses[-1].item
        if leader is None or leader.create_revision != self._term:
            raise LeadershipLost(f"term {self._term} is over")
        return replace(result, responses=result.responses[:-1])

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._step_down)
            await self._campaign()
            self._log.info("leader.elected", term=self._term)
            await stack.enter_async_context(Companion(self._renew(), name="leader.renew"))
            await stack.enter_async_context(Companion(self._observe(), name="leader.observe"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _campaign(self) -> None:
        """Wait until there is no leader and claim the key; outages are retried."""
        while not self._term:
            try:
                self._renewed(lease := await self._store.grant(self._ttl_s))
                async with Companion(self._hold(lease), name="leader.hold"):
                    while not self._term:
                        await self._take_when_vacant(lease)
            except (StoreUnavailable, CommitUnknown, LeaseLost) as error:
                self._log.warning("leader.campaign_failed", reason=str(error))
                await self._clock.sleep(CAMPAIGN_RETRY_S)

    async def _hold(self, lease: Lease) -> None:
        """Renew a lease that has no keys yet.

        Raises:
            LeaseLost: it has ended.
        """
        while True:
            await self._clock.sleep(lease.ttl_s / RENEWALS_PER_TTL)
            with contextlib.suppress(StoreUnavailable):
                self._renewed(lease := await self._store.keep_alive(lease))

    async def _take_when_vacant(self, lease: Lease) -> None:
        """Try to claim the key once it is vacant; look again now and then."""
        listing = await self._store.list(self._key)
        if all(item.key != self._key for item in listing.items):
            return await self._take(lease)
        # The timeout covers a deletion that the watch has lost.
        with contextlib.suppress(TimeoutError, Compacted):
            async with asyncio.timeout(2 * self._ttl_s) as patience:
                # From now on: the history since the holder's election may be gone.
                changes = self._store.watch(self._key, listing.revision + 1)
                async with contextlib.aclosing(changes) as batches:
                    async for batch in batches:
                        if any(e.key == self._key and e.item is None for e in batch.events):
                            if not patience.expired():
                                patience.reschedule(None)
                            return await self._take(lease)
        return None

    async def _take(self, lease: Lease) -> None:
        """Put the leader key if there is none: this starts a term."""
        try:
            if self._clock.monotonic() >= self._valid_until:
                self._renewed(await self._store.keep_alive(lease))
            await self._put_key(lease)
        except BaseException:
            # The key may have been written: it must not stay, nor may the lease be used again.
            await self._give_back(lease)
            raise

    async def _put_key(self, lease: Lease) -> None:
        record = json.dumps(asdict(self._candidate)).encode()
        put = Put(key=self._key, value=record, lease=lease.id)
        take = Transaction(
            compares=(absent(self._key),),
            success=(put, Get(key=WORD_KEY), Delete(key=WORD_KEY)),
        )
        try:
            result = await self._store.commit(take)
        except CommitUnknown:
            # The lease is ours alone, so the key tells whether the write was applied.
            item = await self._store.get(self._key)
            if item is None or item.lease != lease.id:
                raise
            self._term = item.create_revision
            return
        if result.succeeded:
            word = result.responses[1].item
            self._inherited = None if word is None else word.value
            self._term = result.revision

    def _renewed(self, lease: Lease) -> None:
        self._lease = lease
        sent_at = lease.valid_until - lease.ttl_s
        self._valid_until = sent_at + VALID_SHARE * lease.ttl_s

    async def _renew(self) -> None:
        """Keep the lease alive; raise LeadershipLost as soon as it may not be."""
        # Renew at once: part of the lease has passed during the election.
        lease, pause_s = self._lease, 0.0
        while lease is not None:
            left_s = self._valid_until - self._clock.monotonic()
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._clock.sleep(pause_s)
                    pause_s = lease.ttl_s / RENEWALS_PER_TTL
                    lease = await self._store.keep_alive(lease)
                    self._renewed(lease)
            except TimeoutError:
                raise LeadershipLost(f"the lease of term {self._term} was not renewed") from None
            except LeaseLost as error:
                raise LeadershipLost(f"the lease of term {self._term} is gone") from error
            except StoreUnavailable as error:
                self._log.warning("leader.renewal_failed", term=self._term, reason=str(error))

    async def _observe(self) -> None:
        """Raise LeadershipLost when the leader key is deleted: deposed, or expired unnoticed."""
        position = self._term + 1
        while True:
            try:
                await self._watch_for_the_end(position)
            except Compacted:
                position = await self._position_after_a_look(position)
            except StoreUnavailable:
                await self._clock.sleep(WATCH_RETRY_S)

    async def _watch_for_the_end(self, position: int) -> None:
        async with contextlib.aclosing(self._store.watch(self._key, position)) as batches:
            async for batch in batches:
                if any(event.key == self._key for event in batch.events):
                    raise LeadershipLost(f"term {self._term} was ended by somebody else")

    async def _position_after_a_look(self, position: int) -> int:
        """The revision to watch from after a compaction; unchanged while the store does not answer."""
        try:
            listing = await self._store.list(self._key)
        except StoreUnavailable:
            await self._clock.sleep(WATCH_RETRY_S)
            return position
        terms = {item.create_revision for item in listing.items if item.key == self._key}
        if self._term not in terms:
            raise LeadershipLost(f"term {self._term} is over")
        return listing.revision + 1

    async def _step_down(self) -> None:
        lease = self._lease
        if not self._term or lease is None:
            return
        self._valid_until = 0.0
        self._log.info("leader.stepped_down", term=self._term)
        if self._leaving is None or not await self._leaving:
            await self._give_back(lease)

    async def _leave_word(self, word: bytes, lease: Lease) -> bool:
        """Delete the leader key, leaving a message for the next leader; return whether that is certain."""
        put = Put(key=WORD_KEY, value=word, lease=lease.id)
        leave = Transaction(compares=(self.fence,), success=(Delete(key=self._key), put))
        try:
            return (await self._store.commit(leave)).succeeded
        except StoreError as error:
            self._log.warning("leader.word_not_left", term=self._term, reason=str(error))
            return False

    async def _give_back(self, lease: Lease) -> None:
        """Revoke a lease; if that fails, it expires."""
        try:
            await self._store.revoke(lease)
        except StoreError as error:
            self._log.warning("leader.revoke_failed", term=self._term, reason=str(error))


def _leader(item: KeyValue) -> Leader:
    record = json.loads(item.value)
    return Leader(
        member=record["member"],
        address=record["address"],
        term=item.create_revision,
        is_tls=record.get("is_tls", False),
        process=record.get("process", ""),
    )
