"""What every engine of the store promises (controlplane/store/interface.py)."""

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.store.interface import (
    MAX_OPERATIONS,
    MAX_TRANSACTION_BYTES,
    CommitUnknown,
    Compacted,
    Compare,
    Delete,
    DeletePrefix,
    Get,
    InvalidTransaction,
    KeyValueStore,
    LeaseLost,
    Operation,
    Put,
    StoreReplaced,
    StoreUnavailable,
    Transaction,
    absent,
    created_at,
    holds,
    present,
    unchanged,
)
from tests.contract.store_engines import Engine, freezing_engine, put, take, told, until
from tests.support.examples import examples


async def keys(store: KeyValueStore, prefix: str = "", revision: int = 0) -> list[str]:
    return [item.key for item in (await store.list(prefix, revision=revision)).items]


# Reads


async def test_a_key_carries_the_revisions_that_created_and_last_wrote_it(engine: Engine) -> None:
    async with engine.open() as store:
        assert await store.get("a") is None
        first = await put(store, "a", b"1")
        second = await put(store, "a", b"2")
        item = await store.get("a")
        assert item is not None
        assert (item.key, item.value, item.lease) == ("a", b"2", None)
        assert (item.create_revision, item.mod_revision) == (first, second)
        assert second == first + 1


async def test_a_key_that_was_deleted_and_made_anew_is_another_one(engine: Engine) -> None:
    async with engine.open() as store:
        first = await put(store, "a")
        await store.commit(Transaction(success=(Delete(key="a"),)))
        again = await put(store, "a")
        item = await store.get("a")
        assert item is not None
        assert item.create_revision == again == first + 2


async def test_a_listing_has_exactly_the_prefix_sorted_by_bytes(engine: Engine) -> None:
    names = ["a/1", "a/10", "a/2", "a/é", "a/z", "a/\U0001f600", "a0", "b/1", "a"]
    async with engine.open() as store:
        for name in names:
            await put(store, name)
        under = sorted((n for n in names if n.startswith("a/")), key=str.encode)
        assert await keys(store, "a/") == under
        assert await keys(store) == sorted(names, key=str.encode)
        assert await keys(store, "c") == []


async def test_a_listing_longer_than_a_page_is_of_one_revision(engine: Engine) -> None:
    async with engine.open() as store:
        for start in range(0, 2500, 100):
            puts = tuple(Put(key=f"k/{n:05}", value=b"x") for n in range(start, start + 100))
            await store.commit(Transaction(success=puts))
        listing = await store.list("k/")
        assert [item.key for item in listing.items] == [f"k/{n:05}" for n in range(2500)]
        assert max(item.mod_revision for item in listing.items) <= listing.revision


async def test_keys_are_listed_without_values(engine: Engine) -> None:
    async with engine.open() as store:
        for number in range(20):
            await put(store, f"k/{number:02}", b"x" * 300_000)
        then = await put(store, "k/00", b"another")
        await put(store, "k/00", b"a third")
        for revision in (0, then):
            bare = await store.list("k/", revision=revision, keys_only=True)
            full = await store.list("k/", revision=revision)
            assert bare.items == tuple(replace(item, value=b"") for item in full.items)
            assert bare.revision == full.revision
        assert full.items[0].value == b"another"


async def test_an_earlier_revision_can_be_listed(engine: Engine) -> None:
    async with engine.open() as store:
        await put(store, "a", b"1")
        then = await put(store, "b", b"1")
        await put(store, "a", b"2")
        await store.commit(Transaction(success=(Delete(key="b"), Put(key="c", value=b""))))
        listing = await store.list("", revision=then)
        assert [(i.key, i.value) for i in listing.items] == [("a", b"1"), ("b", b"1")]
        assert listing.revision == then
        assert await keys(store) == ["a", "c"]


async def test_a_revision_that_has_not_happened_is_refused(engine: Engine) -> None:
    async with engine.open() as store:
        now = await put(store, "a")
        with pytest.raises(StoreReplaced):
            await store.list("", revision=now + 1000)


# Transactions


@pytest.mark.parametrize(
    ("make", "holds_now"),
    [
        (lambda made, wrote: absent("a"), False),
        (lambda made, wrote: absent("none"), True),
        (lambda made, wrote: present("a"), True),
        (lambda made, wrote: present("none"), False),
        (lambda made, wrote: created_at("a", made), True),
        (lambda made, wrote: created_at("a", wrote), False),
        (lambda made, wrote: unchanged("a", wrote), True),
        (lambda made, wrote: unchanged("a", made), False),
        (lambda made, wrote: unchanged("none", 0), True),
        (lambda made, wrote: holds("a", b"2"), True),
        (lambda made, wrote: holds("a", b"1"), False),
        (lambda made, wrote: holds("none", b""), False),
        (lambda made, wrote: Compare(key="a", field="value", operand=b"1", equal=False), True),
        (lambda made, wrote: Compare(key="none", field="value", operand=b"", equal=False), False),
    ],
)
async def test_compares(engine: Engine, make, holds_now: bool) -> None:
    async with engine.open() as store:
        made = await put(store, "a", b"1")
        wrote = await put(store, "a", b"2")
        result = await store.commit(Transaction(compares=(make(made, wrote),)))
        assert result.succeeded is holds_now
        assert result.revision == wrote


async def test_one_false_compare_is_enough_and_the_other_list_is_applied(engine: Engine) -> None:
    async with engine.open() as store:
        before = await put(store, "a", b"1")
        result = await store.commit(
            Transaction(
                compares=(present("a"), absent("a")),
                success=(Put(key="a", value=b"yes"),),
                failure=(Get(key="a"), Get(key="none"), Put(key="b", value=b"no")),
            )
        )
        assert not result.succeeded
        assert result.revision == before + 1
        found, nothing, _ = result.responses
        assert found.item is not None
        assert found.item.value == b"1"
        assert nothing.item is None
        assert await keys(store) == ["a", "b"]


async def test_a_transaction_is_one_revision_and_reads_its_own_writes(engine: Engine) -> None:
    async with engine.open() as store:
        before = await put(store, "d/1")
        await put(store, "d/2")
        result = await store.commit(
            Transaction(
                success=(
                    Put(key="a", value=b"1"),
                    Get(key="a"),
                    DeletePrefix(prefix="d/"),
                    Delete(key="none"),
                    Get(key="d/1"),
                    Put(key="b", value=b"2"),
                )
            )
        )
        assert result.revision == before + 2
        wrote, read, removed, missed, gone, _ = result.responses
        assert (wrote.item, wrote.deleted) == (None, 0)
        assert read.item is not None
        assert (read.item.value, read.item.mod_revision) == (b"1", result.revision)
        assert (removed.deleted, missed.deleted, gone.item) == (2, 0, None)
        revisions = {i.mod_revision for i in (await store.list("")).items}
        assert revisions == {result.revision}


async def test_what_changes_nothing_makes_no_revision(engine: Engine) -> None:
    async with engine.open() as store:
        before = await put(store, "a")
        empty = await store.commit(Transaction())
        missed = await store.commit(Transaction(success=(Delete(key="none"), Get(key="a"))))
        assert (empty.succeeded, empty.revision, missed.revision) == (True, before, before)


async def test_the_bounds_of_a_transaction(engine: Engine) -> None:
    async with engine.open() as store:
        many = tuple(Put(key=f"k{n}", value=b"") for n in range(MAX_OPERATIONS))
        compares = tuple(absent(f"k{n}") for n in range(MAX_OPERATIONS))
        result = await store.commit(Transaction(compares=compares, success=many, failure=many))
        assert result.succeeded
        large = b"x" * (MAX_TRANSACTION_BYTES - 10)
        await put(store, "large", large)
        item = await store.get("large")
        assert item is not None
        assert item.value == large
        for refused in (
            Transaction(success=(*many, Put(key="one more", value=b""))),
            Transaction(success=(Put(key="large", value=large + b"x" * 20),)),
            Transaction(success=(Put(key="a", value=b""), Put(key="a", value=b""))),
            Transaction(success=(Put(key="a", value=b""), Delete(key="a"))),
            Transaction(failure=(Put(key="a/1", value=b""), DeletePrefix(prefix="a/"))),
            Transaction(success=(Put(key="", value=b""),)),
            # A key counts with its bytes, and has some.
            Transaction(
                success=tuple(Put(key="키" * 4000 + str(n), value=b"") for n in range(128))
            ),
            Transaction(success=(Put(key="a", value=b""), Put(key="\ud800", value=b""))),
            Transaction(compares=(absent("\ud800"),)),
        ):
            with pytest.raises(InvalidTransaction):
                await store.commit(refused)
        assert await store.get("a") is None
        assert await put(store, "키")


async def test_what_a_delete_finds_gone_already_is_not_deleted_again(engine: Engine) -> None:
    async with engine.open() as store:
        await put(store, "p/1")
        before = await put(store, "p/2")
        operations = (Delete(key="p/1"), Delete(key="p/1"), DeletePrefix(prefix="p/"))
        result = await store.commit(Transaction(success=operations))
        assert [response.deleted for response in result.responses] == [1, 0, 1]
        assert result.revision == before + 1
        (batch,) = await take(store, "p/", result.revision, 1)
        assert told(batch.events) == [("p/1", None), ("p/2", None)]


async def test_a_lost_lease_matters_only_where_it_is_used_and_then_nothing_is_done(
    engine: Engine,
) -> None:
    async with engine.open() as store:
        lease = await store.grant(5)
        await store.revoke(lease)
        await put(store, "kept")
        under_it = Put(key="a", value=b"", lease=lease.id)
        fine = Transaction(success=(Put(key="a", value=b""),), failure=(under_it,))
        assert (await store.commit(fine)).succeeded
        with pytest.raises(LeaseLost):
            await store.commit(Transaction(success=(Delete(key="kept"), under_it)))
        assert await store.get("kept") is not None


async def test_concurrent_compare_and_put_loses_no_increment(engine: Engine) -> None:
    workers, rounds = 8, 12
    async with engine.open() as store:
        await put(store, "n", b"0")

        async def count_up() -> None:
            for _ in range(rounds):
                while True:
                    item = await store.get("n")
                    assert item is not None
                    swap = Transaction(
                        compares=(unchanged("n", item.mod_revision),),
                        success=(Put(key="n", value=b"%d" % (int(item.value) + 1)),),
                    )
                    if (await store.commit(swap)).succeeded:
                        break
                    await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(count_up())
        item = await store.get("n")
        assert item is not None
        assert int(item.value) == workers * rounds


# Watch


async def test_a_watch_tells_history_then_what_happens(engine: Engine) -> None:
    async with engine.open() as store:
        start = await put(store, "w/a", b"1")
        await put(store, "other", b"not seen")
        await store.commit(Transaction(success=(Put(key="w/b", value=b"2"), Delete(key="w/a"))))
        taking = asyncio.create_task(take(store, "w/", start, 4))
        await asyncio.sleep(0.05)
        await put(store, "w/c", b"3")
        await store.commit(Transaction(success=(DeletePrefix(prefix="w/"),)))
        batches = await taking
        assert [told(batch.events) for batch in batches] == [
            [("w/a", b"1")],
            [("w/b", b"2"), ("w/a", None)],
            [("w/c", b"3")],
            [("w/b", None), ("w/c", None)],
        ]
        assert [batch.revision for batch in batches] == [start, start + 2, start + 3, start + 4]
        item = batches[2].events[0].item
        assert item is not None
        assert item.mod_revision == batches[2].revision


async def test_a_watch_begins_in_the_middle(engine: Engine) -> None:
    async with engine.open() as store:
        await put(store, "a", b"1")
        second = await put(store, "a", b"2")
        (batch,) = await take(store, "a", second, 1)
        assert (batch.revision, told(batch.events)) == (second, [("a", b"2")])


async def test_a_watch_from_the_future_waits_for_it(engine: Engine) -> None:
    async with engine.open() as store:
        now = await put(store, "a", b"1")
        taking = asyncio.create_task(take(store, "a", now + 2, 1))
        await asyncio.sleep(0.05)
        await put(store, "a", b"2")
        await put(store, "a", b"3")
        (batch,) = await taking
        assert told(batch.events) == [("a", b"3")]


async def test_every_watcher_sees_every_revision_once_and_in_order(engine: Engine) -> None:
    count = 150
    async with engine.open() as store:
        start = await put(store, "s/start") + 1
        watchers = [asyncio.create_task(take(store, "s/", start, count)) for _ in range(3)]
        rng = random.Random(7)
        for n in range(count):
            size = rng.randrange(1, 6)
            puts = tuple(Put(key=f"s/{n}/{i}", value=b"%d" % n) for i in range(size))
            await store.commit(Transaction(success=puts))
        seen = [await watcher for watcher in watchers]
        assert [b.revision for b in seen[0]] == list(range(start, start + count))
        assert seen[0] == seen[1] == seen[2]
        for n, batch in enumerate(seen[0]):
            assert [e.key for e in batch.events] == [f"s/{n}/{i}" for i in range(len(batch.events))]


async def test_a_quiet_watch_shows_that_it_lives(engine: Engine) -> None:
    async with engine.open(progress_every_s=0.1) as store:
        now = await put(store, "a")
        async with asyncio.timeout(60), aclosing(store.watch("a", now)) as batches:
            first = await anext(batches)
            assert first.events
            quiet = await anext(batches)
            assert (quiet.events, quiet.revision) == ((), now)


async def test_a_watch_can_be_closed_and_the_store_goes_on(engine: Engine) -> None:
    async with engine.open() as store:
        watch = store.watch("a", (await store.list("")).revision)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await watch.aclose()
        assert await put(store, "a") > 1


# Compaction


async def test_compacted_history_is_answered_by_a_new_listing(engine: Engine) -> None:
    async with engine.open() as store:
        start = await put(store, "a", b"1")
        await put(store, "gone")
        await store.commit(Transaction(success=(Delete(key="gone"),)))
        last = await put(store, "a", b"2")
        await store.compact(last)
        await store.compact(last)  # again is harmless
        with pytest.raises(Compacted):
            await take(store, "", start, 1)
        with pytest.raises(Compacted):
            await store.list("", revision=start)
        listing = await store.list("")
        assert [(i.key, i.value, i.create_revision) for i in listing.items] == [("a", b"2", start)]
        after = await put(store, "a", b"3")
        (batch,) = await take(store, "", listing.revision + 1, 1)
        assert batch.revision == after


async def test_the_revision_of_a_compaction_can_still_be_read(engine: Engine) -> None:
    async with engine.open() as store:
        await put(store, "a")
        await put(store, "gone")
        removed = await store.commit(Transaction(success=(Delete(key="gone"),)))
        await put(store, "later")
        await store.compact(removed.revision)
        assert await keys(store, revision=removed.revision) == ["a"]
        if engine.name == "etcd":  # whose servers may have forgotten the deletion: it is said
            with pytest.raises(Compacted):
                await take(store, "", removed.revision, 1)
        else:
            (batch,) = await take(store, "", removed.revision, 1)
            assert (batch.revision, told(batch.events)) == (removed.revision, [("gone", None)])
        (batch,) = await take(store, "", removed.revision + 1, 1)
        assert told(batch.events) == [("later", b"")]


async def test_a_watch_that_has_caught_up_survives_a_compaction(engine: Engine) -> None:
    async with engine.open() as store, asyncio.timeout(60):
        start = await put(store, "a", b"1")
        async with aclosing(store.watch("a", start)) as batches:
            assert told((await anext(batches)).events) == [("a", b"1")]
            second = await put(store, "a", b"2")
            assert told((await anext(batches)).events) == [("a", b"2")]
            await store.compact(second)
            await put(store, "a", b"3")
            assert told((await anext(batches)).events) == [("a", b"3")]


async def test_reclaim_keeps_every_key(engine: Engine) -> None:
    async with engine.open() as store:
        for n in range(20):
            await put(store, f"k{n % 4}", b"%d" % n)
        before = await store.list("")
        await store.reclaim()
        assert (await store.list("")).items == before.items


# Leases


async def test_a_lease_that_is_not_kept_takes_its_keys_along(engine: Engine) -> None:
    async with engine.open() as store:
        lease = await store.grant(engine.ttl_s)
        assert lease.ttl_s >= engine.ttl_s
        await put(store, "kept")
        puts = (
            Put(key="l/1", value=b"", lease=lease.id),
            Put(key="l/2", value=b"", lease=lease.id),
        )
        made = (await store.commit(Transaction(success=puts))).revision
        item = await store.get("l/1")
        assert item is not None
        assert item.lease == lease.id
        _, ended = await take(store, "l/", made, 2)
        assert told(ended.events) == [("l/1", None), ("l/2", None)]
        assert await keys(store) == ["kept"]
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)
        with pytest.raises(LeaseLost):
            await put(store, "late", b"", lease.id)
        assert await store.get("late") is None
        await store.revoke(lease)  # harmless


async def test_a_lease_that_is_kept_lives_on(engine: Engine) -> None:
    async with engine.open() as store:
        lease = await store.grant(engine.ttl_s)
        await put(store, "l", b"", lease.id)
        ends_at = lease.valid_until
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 1.5 * lease.ttl_s
        while loop.time() < until_s:
            await asyncio.sleep(lease.ttl_s / 6)
            renewed = await store.keep_alive(lease)
            assert renewed.valid_until > ends_at
            ends_at = renewed.valid_until
        assert await store.get("l") is not None


async def test_a_key_that_is_put_without_its_lease_outlives_it(engine: Engine) -> None:
    async with engine.open() as store:
        lease = await store.grant(5)
        await put(store, "stays", b"1", lease.id)
        await put(store, "goes", b"1", lease.id)
        await put(store, "stays", b"2")
        await store.revoke(lease)
        assert await keys(store) == ["stays"]


async def test_revoking_deletes_the_keys_in_one_revision(engine: Engine) -> None:
    async with engine.open() as store:
        lease = await store.grant(60)
        await put(store, "r/1", b"", lease.id)
        last = await put(store, "r/2", b"", lease.id)
        await store.revoke(lease)
        (batch,) = await take(store, "r/", last + 1, 1)
        assert told(batch.events) == [("r/1", None), ("r/2", None)]


async def test_a_store_says_how_full_it_is(engine: Engine) -> None:
    """So that users' writes can be refused before the quota is reached."""
    async with engine.open() as store:
        before = await store.space()
        assert 0 < before.used_bytes < before.quota_bytes
        for number in range(40):
            await put(store, f"large/{number}", bytes(100_000))

        async def is_counted() -> bool:
            return (await store.space()).used_bytes >= before.used_bytes + 2_000_000

        await until(is_counted)


# Durability, deadlines, ambiguity


@pytest.mark.parametrize("engine", ["file", "etcd"], indirect=True)
async def test_what_was_acknowledged_is_there_after_reopening(engine: Engine) -> None:
    async with engine.open() as store:
        await put(store, "a", b"1")
        last = await put(store, "b", b"2")
    async with engine.open() as store:
        listing = await store.list("")
        assert [(i.key, i.value) for i in listing.items] == [("a", b"1"), ("b", b"2")]
        assert listing.revision == last
        assert [b.revision for b in await take(store, "", last - 1, 2)] == [last - 1, last]


@pytest.mark.parametrize("name", ["file", "etcd"])
async def test_a_write_without_an_answer_is_unknown_and_happens_at_most_once(
    name: str, tmp_path: Path
) -> None:
    async with freezing_engine(name, tmp_path) as engine, engine.open(deadline_s=2.0) as store:
        before = await put(store, "a", b"1")
        engine.freeze()
        try:
            with pytest.raises(CommitUnknown):
                await put(store, "a", b"2")
        finally:
            engine.thaw()

        async def answers() -> bool:
            try:
                return await put(store, "b") > before
            except (StoreUnavailable, CommitUnknown):
                return False

        await until(answers)
        item = await store.get("a")
        assert item is not None
        assert (item.value, item.mod_revision) in ((b"1", before), (b"2", before + 1))


async def test_reads_of_a_silent_server_end_at_the_deadline(tmp_path: Path) -> None:
    async with freezing_engine("etcd", tmp_path) as engine, engine.open(deadline_s=2.0) as store:
        await put(store, "a")
        engine.freeze()
        try:
            calls = (store.get("a"), store.list(""), store.grant(1))
            async with asyncio.timeout(60):
                answers = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(answer) for answer in answers] == [StoreUnavailable] * len(calls)
        finally:
            engine.thaw()
        await until(lambda: _answers(store))


async def _answers(store: KeyValueStore) -> bool:
    try:
        return await store.get("a") is not None
    except StoreUnavailable:
        return False


# One model for all


NAMES = st.sampled_from(["a", "a/b", "a/c", "b", "é"])
VALUES = st.binary(max_size=3)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(lambda k, v: Put(key=k, value=v), NAMES, VALUES),
    st.builds(lambda k: Delete(key=k), NAMES),
    st.builds(lambda k: DeletePrefix(prefix=k), NAMES),
    st.builds(lambda k: Get(key=k), NAMES),
)
COMPARES = st.one_of(
    st.builds(absent, NAMES),
    st.builds(present, NAMES),
    st.builds(holds, NAMES, VALUES),
    st.builds(lambda k, back: ("back", k, back), NAMES, st.integers(0, 3)),
)
STEPS = st.lists(
    st.tuples(
        st.lists(COMPARES, max_size=2),
        st.lists(OPERATIONS, max_size=4),
        st.lists(OPERATIONS, max_size=2),
    ),
    min_size=1,
    max_size=12,
)


class Model:
    """The store as a dictionary: what it must answer."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.items: dict[str, tuple[bytes, int, int]] = {}
        self.events: dict[int, list[tuple[str, bytes | None]]] = {}

    def holds(self, compare: Compare) -> bool:
        value, made, wrote = self.items.get(compare.key, (None, 0, 0))
        if compare.field == "value":
            return value is not None and (value == compare.operand) is compare.equal
        number = made if compare.field == "create_revision" else wrote
        return (number == compare.operand) is compare.equal

    def commit(self, transaction: Transaction) -> bool:
        succeeded = all(map(self.holds, transaction.compares))
        events: list[tuple[str, bytes | None]] = []
        for operation in transaction.success if succeeded else transaction.failure:
            if isinstance(operation, Put):
                made = self.items.get(operation.key, (b"", self.revision + 1, 0))[1]
                self.items[operation.key] = (operation.value, made, self.revision + 1)
                events.append((operation.key, operation.value))
            elif isinstance(operation, Delete | DeletePrefix):
                for key in sorted(self.items, key=str.encode):
                    if key == getattr(operation, "key", None) or (
                        isinstance(operation, DeletePrefix) and key.startswith(operation.prefix)
                    ):
                        del self.items[key]
                        events.append((key, None))
        if events:
            self.revision += 1
            self.events[self.revision] = events
        return succeeded


@given(steps=STEPS)
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_random_transactions_do_what_the_model_says(engine: Engine, steps) -> None:
    async with engine.open() as store:
        await store.commit(
            Transaction(success=tuple(DeletePrefix(prefix=k) for k in ("a", "b", "é")))
        )
        model = Model((await store.list("")).revision)
        start = model.revision + 1
        for raw_compares, success, failure in steps:
            compares = tuple(
                unchanged(c[1], max(0, model.revision - c[2])) if isinstance(c, tuple) else c
                for c in raw_compares
            )
            transaction = Transaction(
                compares=compares, success=tuple(success), failure=tuple(failure)
            )
            try:
                result = await store.commit(transaction)
            except InvalidTransaction:
                continue
            assert result.succeeded == model.commit(transaction)
            assert result.revision == model.revision
        listing = await store.list("")
        assert {
            i.key: (i.value, i.create_revision, i.mod_revision) for i in listing.items
        } == model.items
        batches = await take(store, "", start, len(model.events)) if model.events else []
        assert {b.revision: told(b.events) for b in batches} == model.events
