"""One leader at a time, fenced, on every engine of the store."""

import asyncio
from contextlib import aclosing

import pytest

from controlplane.store.election import (
    Candidate,
    Leader,
    Leadership,
    LeadershipLost,
    depose,
    watch_leader,
)
from controlplane.store.interface import (
    Compacted,
    Delete,
    Get,
    KeyValueStore,
    Lease,
    Put,
    StoreUnavailable,
    Transaction,
    absent,
    holds,
)
from tests.contract.store_engines import CLOCK, Engine, put, until
from tests.support.leaders import current_leader

LONG_S = 30.0
"""A lease that does not end during a test: what happens then does not come from its end."""


def stand(store: KeyValueStore, member: str, ttl_s: float = LONG_S) -> Leadership:
    return Leadership(
        store, Candidate(member=member, address=f"{member}:1"), clock=CLOCK, ttl_s=ttl_s
    )


def write(key: str, value: bytes = b"") -> Transaction:
    return Transaction(success=(Put(key=key, value=value),))


async def test_others_see_who_leads_and_which_term(engine: Engine) -> None:
    async with engine.open() as store:
        assert await current_leader(store, CLOCK) is None
        async with stand(store, "one") as leadership:
            leader = await current_leader(store, CLOCK)
            assert leader == Leader(member="one", address="one:1", term=leadership.term)
            assert leadership.is_valid
        assert await current_leader(store, CLOCK) is None
        assert not leadership.is_valid


async def test_only_one_leads_at_a_time_and_terms_grow(engine: Engine) -> None:
    terms: list[int] = []
    leading = 0

    async def lead(store: KeyValueStore, member: str) -> None:
        nonlocal leading
        async with stand(store, member) as leadership:
            leading += 1
            assert leading == 1
            terms.append(leadership.term)
            for n in range(5):
                await leadership.commit(write(f"by/{member}/{n}"))
            assert leading == 1
            leading -= 1

    async with engine.open() as store, asyncio.TaskGroup() as group:
        tasks = [group.create_task(lead(store, f"m{n}")) for n in range(6)]
        await asyncio.wait(tasks)
        assert len((await store.list("by/")).items) == 30
    assert len(terms) == 6
    assert terms == sorted(set(terms))


async def test_an_orderly_exit_hands_over_at_once(engine: Engine) -> None:
    # The lease is far longer than the time-out: only revoking it can let the second one in.
    async with engine.open() as store, asyncio.timeout(LONG_S / 3):
        first = stand(store, "first")
        async with first:
            second = stand(store, "second")
            entering = asyncio.create_task(second.__aenter__())
            await asyncio.sleep(0.05)
            assert not entering.done()
        await entering
        assert second.term > first.term
        await second.__aexit__(None, None, None)


async def test_the_commit_of_a_former_leader_changes_nothing(engine: Engine) -> None:
    async with engine.open() as store:
        async with stand(store, "old") as old:
            pass
        async with stand(store, "new") as new:
            with pytest.raises(LeadershipLost):
                await old.commit(write("a", b"by old"))
            plain = await store.commit(
                Transaction(compares=(old.fence,), success=(Put(key="a", value=b"by old"),))
            )
            assert not plain.succeeded
            assert await store.get("a") is None
            await new.commit(write("a", b"by new"))
        item = await store.get("a")
        assert item is not None
        assert item.value == b"by new"


async def test_a_leader_that_was_deposed_is_cancelled_and_fenced(engine: Engine) -> None:
    async with engine.open() as store:
        old = stand(store, "old")
        leads = asyncio.Event()
        was_cancelled = False

        async def lead() -> None:
            nonlocal was_cancelled
            async with old:
                leads.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    was_cancelled = True
                    raise

        leading = asyncio.create_task(lead())
        async with asyncio.timeout(LONG_S / 3):
            await leads.wait()
            leader = await current_leader(store, CLOCK)
            assert leader is not None
            assert await depose(store, leader)
            assert not await depose(store, leader)
            with pytest.raises(LeadershipLost):
                await leading
        assert was_cancelled
        assert leading.cancelling() == 0
        with pytest.raises(LeadershipLost):
            await old.commit(write("a"))


class Unrenewable:
    """A store that is reachable for all but keep-alives, which hang once `is_cut_off`: a partition, one way."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.is_cut_off = False

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    async def keep_alive(self, lease: Lease) -> Lease:
        # A candidate renews, too, where its election took most of a short lease.
        if self.is_cut_off:
            await asyncio.Event().wait()
        return await self._store.keep_alive(lease)


async def test_a_leader_that_cannot_renew_stops_before_its_lease_ends(engine: Engine) -> None:
    async with engine.open() as store:
        unrenewable = Unrenewable(store)
        leadership = stand(unrenewable, "cut off", ttl_s=4.0)
        leader = None

        async def lead() -> None:
            nonlocal leader
            async with leadership:
                unrenewable.is_cut_off = True
                try:
                    await asyncio.Event().wait()
                finally:
                    assert not leadership.is_valid
                    leader = await current_leader(store, CLOCK)

        with pytest.raises(LeadershipLost):
            await lead()
        # When the body was told to stop, nobody else could have been elected.
        assert leader is not None
        assert leader.term == leadership.term


async def test_a_leader_that_was_cut_off_is_refused_when_it_comes_back(engine: Engine) -> None:
    async with engine.open() as store:
        unrenewable = Unrenewable(store)
        lost = stand(unrenewable, "cut off", ttl_s=engine.ttl_s)

        async def lead() -> None:
            async with lost:
                unrenewable.is_cut_off = True
                await asyncio.Event().wait()

        with pytest.raises(LeadershipLost):
            await lead()
        # Its revocation is part of the exit; a new leader of the same lease length gets in.
        async with stand(store, "next") as following:
            assert following.term > lost.term
            with pytest.raises(LeadershipLost):
                await lost.commit(write("a"))


async def test_other_conditions_fail_without_ending_the_leadership(engine: Engine) -> None:
    async with engine.open() as store:
        await put(store, "a", b"1")
        async with stand(store, "one") as leadership:
            result = await leadership.commit(
                Transaction(
                    compares=(holds("a", b"2"),),
                    success=(Delete(key="a"),),
                    failure=(Get(key="a"),),
                )
            )
            assert not result.succeeded
            (answer,) = result.responses
            assert answer.item is not None
            assert answer.item.value == b"1"
            result = await leadership.commit(
                Transaction(compares=(absent("b"),), success=(Put(key="b", value=b""),))
            )
            assert result.succeeded


async def test_an_error_of_the_body_passes_through_and_the_key_is_given_back(
    engine: Engine,
) -> None:
    async with engine.open() as store:
        with pytest.raises(ZeroDivisionError):
            async with stand(store, "one"):
                raise ZeroDivisionError
        assert await current_leader(store, CLOCK) is None


async def test_a_cancelled_candidate_and_a_cancelled_leader_leave_nothing(engine: Engine) -> None:
    async with engine.open() as store:
        async with stand(store, "one") as one:
            waiting = asyncio.create_task(stand(store, "two").__aenter__())
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            leader = await current_leader(store, CLOCK)
            assert leader is not None
            assert leader.term == one.term

        async def lead() -> None:
            async with stand(store, "three"):
                await asyncio.Event().wait()

        leading = asyncio.create_task(lead())

        async def is_led() -> bool:
            return await current_leader(store, CLOCK) is not None

        await until(is_led)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
        assert await current_leader(store, CLOCK) is None


class Granting:
    """Counts the leases that candidates ask for: each is a write."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.grants = 0

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    async def grant(self, ttl_s: float) -> Lease:
        self.grants += 1
        return await self._store.grant(ttl_s)


async def test_a_candidate_waits_quietly_behind_a_leader_of_long_ago(engine: Engine) -> None:
    # The leader's key is written once, and history is compacted: nobody can watch from there.
    async with engine.open() as store, asyncio.timeout(LONG_S / 3):
        first = stand(store, "first")
        async with first:
            await put(store, "a", b"1")
            await store.compact(await put(store, "a", b"2"))
            counting = Granting(store)
            second = stand(counting, "second")
            entering = asyncio.create_task(second.__aenter__())
            await asyncio.sleep(0.3)
            assert counting.grants == 1
        await entering
        assert counting.grants == 1
        await second.__aexit__(None, None, None)


async def test_changes_of_leadership_can_be_watched(engine: Engine) -> None:
    async with (
        engine.open() as store,
        asyncio.timeout(60),
        aclosing(watch_leader(store, clock=CLOCK)) as leaders,
    ):
        assert await anext(leaders) is None
        async with stand(store, "one") as one:
            assert await anext(leaders) == Leader(member="one", address="one:1", term=one.term)
        assert await anext(leaders) is None


class Forgetful:
    """A store whose history of the leader's key is gone at first, and that then does not answer."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.faults = ["compacted", "silent"]

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def watch(self, prefix: str, from_revision: int):
        if prefix == "leader" and "compacted" in self.faults:
            self.faults.remove("compacted")
            raise Compacted(from_revision)
        return self._store.watch(prefix, from_revision)

    async def list(self, prefix: str, *, revision: int = 0):
        if prefix == "leader" and "silent" in self.faults:
            self.faults.remove("silent")
            raise StoreUnavailable("no answer")
        return await self._store.list(prefix, revision=revision)


async def test_history_that_is_gone_ends_no_term_and_hides_no_end(engine: Engine) -> None:
    async with engine.open() as store:
        forgetful = Forgetful(store)

        async def has_looked() -> bool:
            return not forgetful.faults

        async def lead(leads: asyncio.Event) -> None:
            async with stand(forgetful, "one"):
                leads.set()
                await asyncio.Event().wait()

        leads = asyncio.Event()
        leading = asyncio.create_task(lead(leads))
        async with asyncio.timeout(LONG_S / 3):
            await leads.wait()
            await until(has_looked)
            leader = await current_leader(store, CLOCK)
            assert leader is not None
            assert not leading.done()
            assert await depose(store, leader)
            with pytest.raises(LeadershipLost):
                await leading


async def test_who_leaves_tells_the_next_leader_and_no_later_one(engine: Engine) -> None:
    async with engine.open() as store, asyncio.timeout(LONG_S / 3):
        first, second, third = (stand(store, name) for name in ("first", "second", "third"))
        with pytest.raises(LeadershipLost):
            await _lead_and_leave(first, b"of the first")
        async with second:
            assert second.inherited == b"of the first"
        async with third:
            assert third.inherited is None
        kept = [item for item in (await store.list("leader")).items if item.lease is None]
        assert kept == []


async def _lead_and_leave(leadership: Leadership, word: bytes) -> None:
    """As loops do that go on for a moment: what they commit is refused."""
    async with leadership:
        assert leadership.inherited is None
        leadership.leave(word)
        assert not leadership.is_valid
        while True:
            await leadership.commit(write("late"))
            await asyncio.sleep(0)  # engines in memory never make one wait


async def test_one_that_leaves_and_ends_at_once_is_followed_at_once(engine: Engine) -> None:
    async with engine.open() as store, asyncio.timeout(LONG_S / 3):
        second = stand(store, "second")
        async with stand(store, "first") as first:
            entering = asyncio.create_task(second.__aenter__())
            first.leave(b"word")
        await entering
        assert second.inherited == b"word"
        await second.__aexit__(None, None, None)


async def test_a_word_that_nobody_takes_ends_with_the_lease_of_who_left_it(engine: Engine) -> None:
    async with engine.open() as store:
        async with stand(store, "first", ttl_s=1.0) as first:
            first.leave(b"word")

        async def is_gone() -> bool:
            return not (await store.list("leader")).items

        await until(is_gone)
        async with stand(store, "second") as second:
            assert second.inherited is None


async def test_who_waits_is_elected_with_the_lease_it_has_kept_alive(engine: Engine) -> None:
    # Longer than the lease lasts by itself: it is of use only when somebody renews it.
    async with engine.open() as store, asyncio.timeout(LONG_S):
        counting = Granting(store)
        second = stand(counting, "second", ttl_s=2.0)
        async with stand(store, "first"):
            entering = asyncio.create_task(second.__aenter__())
            await asyncio.sleep(3.5)
        await entering
        assert counting.grants == 1
        await second.__aexit__(None, None, None)
