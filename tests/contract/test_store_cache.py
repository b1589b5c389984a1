"""Tables and the watch-fed cache, on every engine of the store."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from controlplane.store.cache import Changes, Subscription, TableCache
from controlplane.store.interface import (
    Compacted,
    Delete,
    DeletePrefix,
    KeyValueStore,
    Put,
    Transaction,
    WatchBatch,
)
from controlplane.store.tables import Stored, Table, UndecodableRecord
from tests.contract.store_engines import CLOCK, Engine, put, until

NUMBERS: Table[int] = Table("n/numbers/", encode=lambda n: b"%d" % n, decode=int)
WORDS: Table[str] = Table("n/words/", encode=str.encode, decode=bytes.decode)


@asynccontextmanager
async def running(store: KeyValueStore, **settings: float) -> AsyncIterator[TableCache]:
    cache = TableCache(store, [NUMBERS, WORDS], clock=CLOCK, **settings)
    task = asyncio.create_task(cache.run())
    try:
        async with asyncio.timeout(60):
            await cache.wait_for(1)
            yield cache
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def contents(cache: TableCache) -> dict[str, tuple[object, int]]:
    return {
        table.path(key): (record.value, record.revision)
        for table in (NUMBERS, WORDS)
        for key, record in cache.records(table).items()
    }


async def stored(store: KeyValueStore) -> dict[str, tuple[object, int]]:
    numbers, words = await NUMBERS.list(store), await WORDS.list(store)
    return {
        table.path(record.key): (record.value, record.revision)
        for table, listing in ((NUMBERS, numbers), (WORDS, words))
        for record in listing.items
    }


def folded(steps: list[Changes]) -> dict[str, tuple[object, int]]:
    """What a subscriber that trusts nothing but the steps believes."""
    believed: dict[str, Stored[object]] = {}
    for step in steps:
        for change in step.changes:
            path = change.table.path(change.key)
            assert believed.get(path) == change.old
            assert change.old != change.new
            if change.new is None:
                del believed[path]
            else:
                believed[path] = change.new
    return {path: (record.value, record.revision) for path, record in believed.items()}


def waiting(subscription: Subscription) -> list[Changes]:
    return list(subscription._waiting)


# Tables


async def test_a_record_is_read_and_written_by_its_revision(engine: Engine) -> None:
    async with engine.open() as store:
        assert await NUMBERS.get(store, "a") is None
        new = Transaction(compares=(NUMBERS.absent("a"),), success=(NUMBERS.put("a", 1),))
        made = await store.commit(new)
        assert made.succeeded
        assert not (await store.commit(new)).succeeded
        record = await NUMBERS.get(store, "a")
        assert record == Stored(
            key="a", value=1, revision=made.revision, create_revision=made.revision
        )
        change = Transaction(
            compares=(NUMBERS.unchanged(record),),
            success=(NUMBERS.put("a", 2),),
            failure=(NUMBERS.read("a"),),
        )
        assert (await store.commit(change)).succeeded
        late = await store.commit(change)
        assert not late.succeeded
        found = late.responses[0].item
        assert found is not None
        assert NUMBERS.stored(found).value == 2
        await store.commit(Transaction(success=(NUMBERS.delete("a"),)))
        assert await NUMBERS.get(store, "a") is None


async def test_a_table_lists_its_own_records(engine: Engine) -> None:
    async with engine.open() as store:
        await store.commit(
            Transaction(
                success=(NUMBERS.put("u1/a", 1), NUMBERS.put("u2/b", 2), WORDS.put("u1/a", "w"))
            )
        )
        listing = await NUMBERS.list(store, under="u1/")
        assert [(r.key, r.value) for r in listing.items] == [("u1/a", 1)]
        assert [r.value for r in (await NUMBERS.list(store)).items] == [1, 2]


async def test_a_damaged_record_is_named(engine: Engine) -> None:
    async with engine.open() as store:
        await put(store, NUMBERS.path("a"), b"not a number")
        with pytest.raises(UndecodableRecord, match="n/numbers/a"):
            await NUMBERS.get(store, "a")


# The cache


async def test_the_cache_follows_random_transactions_whole(engine: Engine) -> None:
    rng = random.Random(11)
    async with engine.open() as store:
        await store.commit(Transaction(success=(NUMBERS.put("first", 0), WORDS.put("w", "w"))))
        # Its patience would end on a busy machine, and a listing make one step of many.
        async with running(store, patience_s=60) as cache:
            from_start = cache.changes(initial=True)
            first = waiting(from_start)
            assert folded(first) == contents(cache) == await stored(store)
            revision = cache.revision
            revisions: list[int] = []
            for _ in range(60):
                keys = rng.sample("abcdefgh", 3)
                operations = (
                    NUMBERS.put(keys[0], rng.randrange(9)),
                    WORDS.put(keys[1], str(rng.randrange(9))),
                    NUMBERS.delete(keys[2]),
                    Put(key="n/elsewhere", value=b""),
                )
                revision = (await store.commit(Transaction(success=operations))).revision
                revisions.append(revision)
            await cache.wait_for(revision)
            assert contents(cache) == await stored(store)
            steps = waiting(from_start)
            assert folded(steps) == contents(cache)
            assert [step.revision for step in steps[1:]] == revisions
            assert cache.drift == 0


async def test_a_subscriber_gets_steps_as_they_come_until_it_closes(engine: Engine) -> None:
    async with engine.open() as store, running(store) as cache:
        subscription = cache.changes()
        await store.commit(Transaction(success=(NUMBERS.put("a", 1),)))
        step = await anext(subscription)
        assert [(c.table, c.key, c.old, c.new and c.new.value) for c in step.changes] == [
            (NUMBERS, "a", None, 1)
        ]
        subscription.close()
        assert [step async for step in subscription] == []
        await cache.wait_for(
            (await store.commit(Transaction(success=(NUMBERS.delete("a"),)))).revision
        )
        assert waiting(subscription) == []


async def test_a_revision_outside_the_tables_can_be_waited_for(engine: Engine) -> None:
    async with engine.open() as store, running(store, patience_s=0.01) as cache:
        await store.commit(Transaction(success=(NUMBERS.put("a", 1),)))
        revision = await put(store, "outside")
        await cache.wait_for(revision)
        assert cache.revision >= revision
        assert contents(cache) == await stored(store)
        assert cache.drift == 0


class LossyStore:
    """Drops what the test names from watches, as a faulty server does; counts what it dropped."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.losing: set[str] = set()
        self.lost = 0
        self.is_compacted = asyncio.Event()
        self.compactions = 0

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async for batch in self._store.watch(prefix, from_revision):
            if self.is_compacted.is_set():
                self.is_compacted.clear()
                self.compactions += 1
                raise Compacted(batch.revision)
            kept = tuple(e for e in batch.events if e.key not in self.losing)
            self.lost += len(batch.events) - len(kept)
            yield WatchBatch(revision=batch.revision, events=kept)


async def test_lost_events_are_repaired_told_and_counted(engine: Engine) -> None:
    async with engine.open() as real:
        await real.commit(Transaction(success=(NUMBERS.put("dies", 1), NUMBERS.put("changes", 1))))
        store = LossyStore(real)
        async with running(store, relist_every_s=0.2) as cache:
            subscription = cache.changes(initial=True)
            store.losing = {NUMBERS.path(key) for key in ("dies", "changes", "comes")}
            await real.commit(
                Transaction(
                    success=(
                        NUMBERS.delete("dies"),
                        NUMBERS.put("changes", 2),
                        NUMBERS.put("comes", 3),
                        NUMBERS.put("seen", 4),
                    )
                )
            )

            async def is_repaired() -> bool:
                return contents(cache) == await stored(real)

            await until(is_repaired)
            assert store.lost == 3
            assert cache.drift == 3
            assert folded(waiting(subscription)) == contents(cache)


async def test_lost_history_is_answered_by_the_difference_once(engine: Engine) -> None:
    async with engine.open() as real:
        await real.commit(Transaction(success=(NUMBERS.put("a", 1), NUMBERS.put("b", 1))))
        store = LossyStore(real)
        # Its patience would end on a busy machine, and a listing come before what is lost.
        async with running(store, patience_s=60) as cache:
            subscription = cache.changes(initial=True)
            store.is_compacted.set()
            await real.commit(
                Transaction(success=(Delete(key=NUMBERS.path("a")), WORDS.put("w", "new")))
            )
            last = await real.commit(Transaction(success=(NUMBERS.put("b", 2),)))
            await cache.wait_for(last.revision)
            assert store.compactions == 1
            assert contents(cache) == await stored(real)
            assert folded(waiting(subscription)) == contents(cache)


async def test_a_record_that_cannot_be_read_is_left_out_until_it_can(engine: Engine) -> None:
    async with engine.open() as store:
        await put(store, NUMBERS.path("a"), b"damaged")
        async with running(store) as cache:
            assert cache.get(NUMBERS, "a") is None
            result = await store.commit(Transaction(success=(NUMBERS.put("a", 5),)))
            await cache.wait_for(result.revision)
            record = cache.get(NUMBERS, "a")
            assert record is not None
            assert record.value == 5


async def test_deleting_a_whole_table_is_one_step(engine: Engine) -> None:
    async with engine.open() as store:
        puts = tuple(NUMBERS.put(f"{n}", n) for n in range(50))
        await store.commit(Transaction(success=puts))
        async with running(store) as cache:
            subscription = cache.changes()
            await store.commit(Transaction(success=(DeletePrefix(prefix=NUMBERS.prefix),)))
            step = await anext(subscription)
            assert len(step.changes) == 50
            assert contents(cache) == {}
