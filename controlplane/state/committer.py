"""The one writer of placements, reports, ends and releases: it decides in turn and writes in bulk.

A decision is a function over a `Draft`. Decisions waiting together become few transactions, each
comparing the leader's key (the fence) and the revision of every key that it writes. If a compare
fails, the keys are reread and the same decisions are made again; likewise if the response is
lost: a decision already applied has no further effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import structlog

from controlplane.domain.errors import NotLeader
from controlplane.state.draft import Draft
from controlplane.store.interface import (
    MAX_OPERATIONS,
    CommitUnknown,
    Compare,
    InvalidTransaction,
    StoreUnavailable,
)
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from controlplane.state.live_state import LiveState
    from controlplane.store.interface import KeyValueStore, Transaction, TransactionResult
    from nsml.common.clock import Clock

T = TypeVar("T")

LARGEST_DRAFT: Final = MAX_OPERATIONS - 1
"""Operations in one transaction, beside the fence."""

MOST_DECISIONS: Final = 100
"""Decisions in one transaction."""

SOFT_DELAY_S: Final = 0.03
"""How long a soft decision may wait to be batched."""

RETRY_S: Final = 0.1
"""Pause after the store did not answer."""


class Deposed(Exception):
    """The fence failed: another control plane leads."""


@dataclass(slots=True)
class _Pending(Generic[T]):
    """A pending decision."""

    decide: Callable[[Draft], T]
    done: asyncio.Future[T]
    soft_until: float


class Committer:
    """Serialises decisions while this control plane leads; refuses them with NotLeader otherwise.

    Args:
        state: the live state; updated with every commit at once.
        leader: returns the leader's address, for errors.

    Attributes:
        commits, decisions: transactions written since the start, and the decisions in them.
    """

    def __init__(
        self, *, store: KeyValueStore, state: LiveState, clock: Clock, leader: Callable[[], str]
    ) -> None:
        self._store = store
        self._state = state
        self._clock = clock
        self._leader = leader
        self._log = structlog.get_logger()
        self._queue: deque[_Pending[Any]] = deque()
        self._wake = asyncio.Event()
        self._leading = False
        self.commits = 0
        self.decisions = 0

    @property
    def is_leading(self) -> bool:
        """Whether decisions are accepted now."""
        return self._leading

    async def decide(self, decision: Callable[[Draft], T], *, soft: bool = False) -> T:
        """Make a decision and return its result once its writes are durable.

        Args:
            decision: writes to the draft passed to it; may be called several times.
            soft: not urgent: it may wait a little to be batched.

        Raises:
            NotLeader: another control plane decides.
        """
        return await self._queued(decision, soft=soft)

    async def decide_all(self, decisions: Iterable[Callable[[Draft], T]]) -> list[T]:
        """Make many decisions, in their order, in as few transactions as hold them.

        Raises:
            NotLeader: another control plane decides.
        """
        return await asyncio.gather(*[self._queued(decision) for decision in decisions])

    def _queued(self, decision: Callable[[Draft], T], *, soft: bool = False) -> asyncio.Future[T]:
        if not self._leading:
            raise NotLeader(self._leader())
        soft_until = self._clock.monotonic() + SOFT_DELAY_S if soft else 0.0
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_Pending(decision, done, soft_until))
        self._wake.set()
        return done

    async def run(self, fence: Compare) -> None:
        """Lead: decide until cancelled, or until the fence fails (Deposed)."""
        self._leading = True
        try:
            while True:
                await self._ready()
                count = min(len(self._queue), MOST_DECISIONS)
                await self._commit([self._queue.popleft() for _ in range(count)], fence)
        finally:
            self._leading = False
            self._refuse(self._queue)
            self._queue.clear()

    async def _ready(self) -> None:
        """Wait for decisions; soft ones wait a moment for others."""
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        # Batch decisions that woke together (the frames of one message, the placements of one
        # plan).
        await asyncio.sleep(0)
        while all(pending.soft_until for pending in self._queue):
            left = self._queue[0].soft_until - self._clock.monotonic()
            if left <= 0 or len(self._queue) >= MOST_DECISIONS:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(left):
                    await self._wake.wait()
            except TimeoutError:
                return

    def _refuse(self, pending: Sequence[_Pending[Any]] | deque[_Pending[Any]]) -> None:
        for one in pending:
            if not one.done.done():
                one.done.set_exception(NotLeader(self._leader()))

    async def _commit(self, batch: list[_Pending[Any]], fence: Compare) -> None:
        left = batch
        try:
            while left:
                left = await self._commit_some(left, fence)
        finally:
            self._refuse(left)

    async def _commit_some(self, batch: list[_Pending[Any]], fence: Compare) -> list[_Pending[Any]]:
        """Write as many as fit into one transaction; return the rest, or all if it failed."""
        draft, results = self._decide(batch)
        if not draft.is_empty:
            try:
                result = await self._write(draft, fence)
            except InvalidTransaction as error:
                # Together they are too large; one alone never should be.
                half = len(results) // 2
                if not half:
                    self._log.error("plan.too_large", reason=str(error))
                    _resolve(batch[0], _Failed(error))
                    return batch[1:]
                return await self._commit_some(batch[:half], fence) + batch[half:]
            if result is None:
                return batch
            draft.applied(result.revision)
            self.commits += 1
            self.decisions += len(results)
            self._log.debug("plan.committed", revision=result.revision, decisions=len(results))
        for pending, outcome in zip(batch, results, strict=False):
            _resolve(pending, outcome)
        return batch[len(results) :]

    def _decide(self, batch: list[_Pending[Any]]) -> tuple[Draft, list[Any]]:
        draft = Draft(self._state)
        results: list[Any] = []
        for pending in batch:
            trial = Draft(self._state, draft)
            try:
                outcome = pending.decide(trial)
            except Exception as error:  # noqa: BLE001 - it is its caller's, whoever that is
                results.append(_Failed(error))
                continue
            if draft.operations_with(trial) > LARGEST_DRAFT and not draft.is_empty:
                break
            draft.merge(trial)
            results.append(outcome)
        return draft, results

    async def _write(self, draft: Draft, fence: Compare) -> TransactionResult | None:
        """Commit; None if the decisions must be made again on the current state."""
        transaction = draft.transaction(fence)
        try:
            with self._state.expecting(draft.written):
                result = await self._store.commit(transaction)
        except CommitUnknown as error:
            self._log.warning("plan.unknown", error=str(error))
            await self._clock.sleep(RETRY_S)
            await self._refresh()
            return None
        except StoreUnavailable as error:
            self._log.warning("plan.unavailable", error=str(error))
            await self._clock.sleep(RETRY_S)
            return None
        if result.succeeded:
            return result
        self._reread(transaction, result, fence)
        return None

    def _reread(self, transaction: Transaction, result: TransactionResult, fence: Compare) -> None:
        keys = [compare.key for compare in transaction.compares]
        for key, response in zip(keys, result.responses, strict=True):
            item = response.item
            if key == fence.key:
                if item is None or item.create_revision != fence.operand:
                    raise Deposed
            elif item is None:
                self._state.delete(key, result.revision)
            else:
                self._state.put(key, item.value, item.mod_revision)
        self._log.info("plan.conflicted", keys=len(keys) - 1)

    async def _refresh(self) -> None:
        """Catch up with the store after a lost response. The fence shows whether we still lead."""
        while True:
            try:
                revision = (await self._store.list(etcd_codec.CLUSTER)).revision
                break
            except StoreUnavailable:
                await self._clock.sleep(RETRY_S)
        await self._state.reached(revision)


@dataclass(frozen=True, slots=True)
class _Failed:
    """A decision that raised, or is too large for a transaction."""

    error: Exception


def _resolve(pending: _Pending[Any], outcome: Any) -> None:
    if pending.done.done():
        return
    if isinstance(outcome, _Failed):
        pending.done.set_exception(outcome.error)
    else:
        pending.done.set_result(outcome)
