"""What one user takes of the shared stores is bounded, and changes nothing for another."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.content.admitted_objects import AdmittedObjects
from controlplane.domain.conditions import ConditionName
from controlplane.domain.errors import LimitReached, LowOnRoom, Unavailable
from controlplane.domain.identity import Caller, NodeCaller, User, UserCaller
from controlplane.domain.limits import NO_LIMITS, UserLimits
from controlplane.domain.values import DatasetVersion, SecretUse
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, StreamKey
from controlplane.limits.admission import NOTE_BYTES, Admission
from controlplane.limits.free_space import Database, FreeSpace, floor_of
from controlplane.records.report_limits import Rationing
from controlplane.state.conditions import Conditions
from controlplane.state.live_state import LiveState
from controlplane.state.live_usage import LiveUsage, record_size
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import Space
from controlplane.stored.etcd_codec import encode_session
from nsml.common.clock import in_thread, inline
from nsml.content.digests import digest_of
from tests.support import disks
from tests.support.packed_objects import folder_objects
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.workbench import HandClock

KIM, EVE = UserCaller(user=User(name="kim")), UserCaller(user=User(name="eve"))
MIB = 1 << 20


def limits(**changed: float) -> UserLimits:
    return replace(NO_LIMITS, **changed)  # type: ignore[arg-type]


async def blobs(count: int, size: int, seed: int = 0) -> AsyncIterator[tuple[str, bytes, bool]]:
    for number in range(count):
        data = (b"%d-%d-" % (seed, number)) + os.urandom(size)
        yield digest_of(data), data, True


class StoreOf:
    """A store that says how full it is."""

    def __init__(self, used: int = 0, quota: int = 0) -> None:
        self.found = Space(used_bytes=used, quota_bytes=quota)

    async def space(self) -> Space:
        return self.found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MiB, of which a tenth is the floor."""
    with disks.small_disk(tmp_path / "small", "size=32m,nr_inodes=4096") as folder:
        yield folder


class World:
    """An object store on a small disk, behind what admits users."""

    def __init__(self, folder: Path, **changed: float) -> None:
        self.clock = HandClock()
        self.conditions = Conditions(self.clock)
        self.space = FreeSpace(
            folders={"objects": folder, "history": folder},
            store=StoreOf(),  # type: ignore[arg-type]
            conditions=self.conditions,
            clock=self.clock,
        )
        self.admission = Admission(
            limits(**changed), usage=LiveUsage(), clock=self.clock, space=self.space
        )
        state = LiveState(None, self.clock)  # type: ignore[arg-type]
        objects = folder_objects(folder / "objects", in_thread)
        self._admitted = AdmittedObjects(objects, self.admission, state)
        self.folder = folder

    async def put(self, caller: Caller, sent: AsyncIterator[tuple[str, bytes, bool]]) -> int:
        """Put what is sent in batches of 4 MiB, as what comes with PutBlobs is put in larger ones; how many blobs."""
        self._admitted.count_for(caller, "")
        count, batch = 0, dict[str, bytes]()
        async for digest, data, _ in sent:
            batch[digest] = data
            if sum(map(len, batch.values())) >= 4 * MIB:
                await self._admitted.put_many(batch)
                count, batch = count + len(batch), {}
        await self._admitted.put_many(batch)
        return count + len(batch)

    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize


async def test_no_user_fills_the_object_store_below_its_floor(small_disk: Path) -> None:
    """And the refusal says so; what the platform itself writes still finds room."""
    world = World(small_disk)
    with pytest.raises(LowOnRoom) as refused:
        await world.put(EVE, blobs(40, MIB))
    assert refused.value.reason == "LOW_ON_ROOM"
    assert "nsml status" in refused.value.attempt
    floor = floor_of(32 * MIB)
    assert world.free() >= floor - MIB, "the floor is kept"
    await world.space.look()
    assert world.conditions.stands(ConditionName.LOW_ON_ROOM, "objects")
    with pytest.raises(Unavailable):  # agents keep what they have, and send it again
        await world.put(NodeCaller(node="a"), blobs(1, 6 * MIB))
    (small_disk / "ends").write_bytes(bytes(3 * MIB))
    for file in (small_disk / "objects" / "packs").rglob("*"):
        if file.is_file():
            file.unlink()
    await world.space.look()
    assert not world.conditions.standing(), "it ends by itself"
    assert await world.put(KIM, blobs(1, MIB)) == 1


async def test_many_uploads_at_once_do_not_go_below_the_floor(small_disk: Path) -> None:
    """Each was let in while the others were still being written."""
    world = World(small_disk)
    sending = [world.put(EVE, blobs(12, MIB, seed)) for seed in range(8)]
    ends = await asyncio.gather(*sending, return_exceptions=True)
    assert any(isinstance(one, LowOnRoom) for one in ends)
    assert world.free() >= floor_of(32 * MIB) - MIB


async def test_one_user_takes_half_of_the_room_and_another_still_sends(small_disk: Path) -> None:
    world = World(small_disk, store_share=0.5)
    with pytest.raises(LimitReached) as refused:
        await world.put(EVE, blobs(40, MIB))
    assert "50% of the room" in refused.value.why
    assert await world.put(KIM, blobs(5, MIB)) == 5
    with pytest.raises(LimitReached):
        await world.put(EVE, blobs(3, MIB))


class Room:
    """Bytes that are left above the floor of every store."""

    def __init__(self, left: int) -> None:
        self.left = left

    def room_bytes(self, part: str) -> int:
        return self.left

    def is_low(self, part: str) -> bool:
        return self.left <= 0

    @contextlib.asynccontextmanager
    async def taking(self, part: str, size: int) -> AsyncIterator[None]:
        if size > self.left:
            raise LowOnRoom("full")
        self.left -= size
        yield


PARTS = st.sampled_from([0.05, 0.2, 0.45, 0.6, 1.0])
"""Of the room that there is at first."""
UPLOADS = st.lists(st.tuples(st.sampled_from(["kim", "kim", "eve", "lee"]), PARTS), max_size=20)


@given(
    uploads=UPLOADS,
    room=st.integers(1 << 20, 1 << 24),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    accounts=st.sampled_from([("kim",), ("kim", "eve"), ("kim", "eve", "lee")]),
    joins_at=st.integers(0, 20),
)
def test_a_share_is_of_who_has_others_and_no_user_has_more(
    uploads: list[tuple[str, float]],
    room: int,
    share: float,
    accounts: tuple[str, ...],
    joins_at: int,
) -> None:
    """Whatever is sent, in whatever order; `lee` may come later, and finds what the others had to leave."""

    async def run() -> None:
        space, known = Room(room), set(accounts)
        admission = Admission(
            limits(store_share=share),
            usage=LiveUsage(),
            clock=HandClock(),
            space=space,  # type: ignore[arg-type]
            has_others=lambda user: bool(known - {user}),
        )
        used = Counter[str]()
        for at, (user, part) in enumerate(uploads):
            size = int(part * room)
            if at == joins_at:
                known.add("lee")
            if user not in known:
                continue
            left, most = space.left, share * (space.left + used[user])
            is_alone = known == {user}
            fits = size <= left and (is_alone or used[user] + size <= most)
            try:
                async with admission.uploading(user, [size]):
                    pass
            except (LimitReached, LowOnRoom):
                assert not fits, "who has others has the share, who has none all of it"
            else:
                assert fits
                used[user] += size
            assert space.left == room - used.total() >= 0, "never below the floor"
        if len(accounts) > 1 and len(used) == 1:
            assert space.left >= (1 - share) * room - 1, "for those who have stored nothing yet"

    asyncio.run(run())


async def test_the_only_user_of_a_platform_fills_it_to_the_floor(small_disk: Path) -> None:
    world = World(small_disk, store_share=0.5)
    world.admission._has_others = lambda _: False
    assert await world.put(EVE, blobs(24, MIB)) == 24
    with pytest.raises(LowOnRoom):
        await world.put(EVE, blobs(12, MIB))


async def test_many_empty_blobs_count_for_the_files_that_they_take(small_disk: Path) -> None:
    world = World(small_disk, upload_bytes=MIB)
    with pytest.raises(LimitReached):
        await world.put(EVE, blobs(1_000, 1))
    assert sum(1 for one in (small_disk / "objects").rglob("*") if one.is_file()) <= 256


async def test_a_disk_without_free_files_is_low_on_room(small_disk: Path) -> None:
    world = World(small_disk)
    for number in range(5_000):
        try:
            (small_disk / f"f{number}").touch()
        except OSError:
            break
    await world.space.look()
    assert world.conditions.stands(ConditionName.LOW_ON_ROOM, "objects")
    with pytest.raises(LowOnRoom):
        await world.put(EVE, blobs(1, 1))


async def test_what_was_sent_is_given_back_with_time(tmp_path: Path) -> None:
    world = World(tmp_path, upload_bytes=10 * MIB)
    await world.put(EVE, blobs(9, MIB))
    with pytest.raises(LimitReached):
        await world.put(EVE, blobs(2, MIB))
    world.clock.now += 43_200
    assert await world.put(EVE, blobs(4, MIB)) == 4


async def test_the_store_keeps_a_quarter_of_its_quota_for_the_platform() -> None:
    clock, store = HandClock(), StoreOf(used=100, quota=1_000)
    conditions = Conditions(clock)
    space = FreeSpace(folders={}, store=store, conditions=conditions, clock=clock)  # type: ignore[arg-type]
    admission = Admission(NO_LIMITS, usage=LiveUsage(), clock=clock, space=space)
    await space.look()
    admission.check_session("eve", "eve", 10)
    store.found = Space(used_bytes=751, quota_bytes=1_000)
    await space.look()
    with pytest.raises(LowOnRoom):
        admission.check_session("eve", "eve", 10)
    (standing,) = conditions.standing()
    assert (standing.name, standing.subject) == (ConditionName.LOW_ON_ROOM, "store")
    assert "submissions" in standing.meaning
    assert admission.refused["store_room"] == 1


async def test_a_database_has_a_floor_below_what_the_operator_lets_it_become() -> None:
    clock, size = HandClock(), [50 * MIB]
    conditions = Conditions(clock)

    async def size_now() -> int:
        return size[0]

    def space_of(most: int, **folders: Path) -> FreeSpace:
        return FreeSpace(
            folders=folders,
            store=StoreOf(),  # type: ignore[arg-type]
            conditions=conditions,
            clock=clock,
            database=Database(size_now, most),
        )

    space = space_of(100 * MIB)
    admission = Admission(limits(store_share=0.5), usage=LiveUsage(), clock=clock, space=space)
    await space.look()
    assert admission.room()["history"] == 40 * MIB, "a tenth is the platform's own"
    admission.check_history()
    with pytest.raises(LimitReached):
        admission.note_blobs("eve", 21 * MIB // NOTE_BYTES)
    size[0] = 90 * MIB
    await space.look()
    with pytest.raises(LowOnRoom):
        admission.check_history()
    (standing,) = conditions.standing()
    assert (standing.name, standing.subject) == (ConditionName.LOW_ON_ROOM, "history")
    assert "history_bytes" in standing.evidence
    for other in (space_of(0), space_of(1, history=Path("/"))):
        await other.look()
        assert not other.is_low("history"), "nobody says, or its disk is known"


async def test_the_embedded_store_says_how_full_it_is() -> None:
    async with EmbeddedStore(":memory:", clock=HandClock(), run=inline) as store:
        before = await store.space()
        assert 0 < before.used_bytes < before.quota_bytes


def test_usage_is_kept_up_as_sessions_come_change_and_go() -> None:
    usage = LiveUsage()
    one = session(id="s1", owner="eve")
    usage.put(one)
    usage.put(one)
    assert usage.user("eve").sessions == usage.project("eve").sessions == 1
    assert usage.user("eve").stored_bytes == record_size(one)
    usage.remove(one)
    assert usage.user("eve").sessions == usage.user("eve").stored_bytes == 0


def test_many_small_arguments_count_for_what_they_take() -> None:
    one = session(id="s1", owner="eve")
    spec = replace(one.spec, args=("",) * 32_000)
    assert record_size(replace(one, spec=spec)) > 64 << 10
    labelled = replace(
        one, spec=replace(one.spec, labels={f"{i:063}": "x" * 63 for i in range(32)})
    )
    assert record_size(labelled) >= record_size(one) + 32 * 2 * 63


@pytest.mark.parametrize(
    "changed",
    [
        {"entry": "é" * 500},
        {"args": ("x" * 10,) * 100},
        {"gpu_model": "m" * 1000},
        {"environment": {"A": "x" * 500, "B" * 500: ""}},
        {"labels": {"a": "x" * 1000}},
        {"secrets": tuple(SecretUse(name=f"{i:0100}", variable="V") for i in range(10))},
        {"datasets": (DatasetVersion(owner="eve", name="n" * 1000, version=1, digest="d"),)},
    ],
)
def test_the_size_of_a_record_is_about_that_of_its_bytes(changed: dict[str, Any]) -> None:
    small = session(id="s1", owner="eve")
    large = replace(small, spec=replace(small.spec, **changed))
    grows = len(encode_session(large)) - len(encode_session(small))
    assert 1000 <= grows <= record_size(large) - record_size(small) + 20 <= grows * 2


def test_what_stays_in_the_history_counts_for_a_day() -> None:
    """However slowly it is written: sessions that ended, versions of datasets."""
    clock = HandClock()
    admission = Admission(limits(reported_bytes=10_000), usage=LiveUsage(), clock=clock)
    admission.write("eve", 9_000)
    with pytest.raises(LimitReached):
        admission.write("eve", 2_000)
    admission.write("kim", 9_000)
    clock.now += 43_200
    admission.write("eve", 2_000)


def test_streams_of_one_user_are_bounded_and_given_back() -> None:
    admission = Admission(limits(streams=2), usage=LiveUsage(), clock=HandClock())
    admission.open_stream("eve")
    admission.open_stream("eve")
    with pytest.raises(LimitReached):
        admission.open_stream("eve")
    admission.open_stream("kim")
    admission.close_stream("eve")
    admission.open_stream("eve")


def text(session_id: str, first: int, size: int) -> Chunk:
    stream = StreamKey(session_id, 1, 0, Channel.LOG)
    return Chunk(stream=stream, first=first, last=first + size - 1, data=b"x" * size)


async def test_a_log_over_its_limit_is_cut_visibly_and_goes_on_when_there_is_room_again() -> None:
    clock = HandClock()
    admission = Admission(limits(session_log_bytes=3_000), usage=LiveUsage(), clock=clock)
    rationing = Rationing(admission)
    eve, kim = session(id="s1", owner="eve"), session(id="s2", owner="kim")
    kept = rationing.rationed([(text("s1", at, 1_000), eve) for at in range(0, 6_000, 1_000)])
    assert [one.is_gap for one in kept] == [False, False, False, False, True, True, True]
    notice, gap = kept[3], kept[4]
    assert b"[nsml: " in notice.data
    assert (notice.first, notice.last + 1, gap.last) == (3_000, gap.first, 3_999)
    assert rationing.rationed([(text("s2", 0, 1_000), kim)])[0].data, "nobody else's is cut"
    clock.now += 86_400
    assert rationing.rationed([(text("s1", 6_000, 1_000), eve)])[0].data
    history = await open_history(":memory:", clock=clock, run=inline)
    assert await history.streams.append(kept) == {kept[0].stream: 6_000}
    page = await history.streams.read_log("s1")
    assert b"is left out" in page.data
    await history.close()


@pytest.mark.parametrize("has_others", [True, False])
async def test_reports_of_one_user_have_a_share_where_others_have_accounts(
    small_disk: Path, has_others: bool
) -> None:
    """As uploads have: whether others have reported yet or not, they find room."""
    world = World(small_disk, store_share=0.5)
    world.admission._has_others = lambda _: has_others
    await world.space.look()
    report = partial(world.admission.report, size=4 << 20, is_log=True)
    refused = [report("eve", "s1") for _ in range(5)][-1]  # with 20 of 32 MiB
    assert refused == ("reported_bytes" if has_others else "")
    assert report("kim", "s2") == ""


async def test_reports_stay_on_their_nodes_while_the_history_is_at_its_floor() -> None:
    clock = HandClock()
    space = FreeSpace(
        folders={"history": Path("/")},
        store=StoreOf(),  # type: ignore[arg-type]
        conditions=Conditions(clock),
        clock=clock,
        floor_bytes=1 << 62,
    )
    await space.look()
    rationing = Rationing(Admission(NO_LIMITS, usage=LiveUsage(), clock=clock, space=space))
    with pytest.raises(Unavailable):
        rationing.check_room()


def test_records_of_the_platform_itself_are_never_left_out() -> None:
    admission = Admission(limits(session_metric_bytes=1), usage=LiveUsage(), clock=HandClock())
    stream = StreamKey("s1", 1, 0, Channel.STATE)
    chunk = Chunk(stream=stream, first=1, last=1, records=(b"{}" * 100,))
    assert Rationing(admission).rationed([(chunk, session(id="s1", owner="eve"))]) == [chunk]
    metric = Chunk(
        stream=StreamKey("s1", 1, 0, Channel.METRIC), first=1, last=1, records=(b"{}" * 100,)
    )
    assert Rationing(admission).rationed([(metric, session(id="s1", owner="eve"))])[0].is_gap


def test_gaps_and_tiny_chunks_count_for_the_rows_that_they_are() -> None:
    admission = Admission(limits(session_metric_bytes=1_000), usage=LiveUsage(), clock=HandClock())
    stream, eve = StreamKey("s1", 1, 0, Channel.METRIC), session(id="s1", owner="eve")
    gaps = [Chunk(stream=stream, first=at, last=at, is_gap=True) for at in range(1, 101)]
    rationing = Rationing(admission)
    assert rationing.rationed([(gap, eve) for gap in gaps]) == gaps, "each is told all the same"
    assert admission.refused["session_metric_bytes"] > 90
    tiny = Chunk(stream=stream, first=101, last=101, records=(b"{}",))
    assert rationing.rationed([(tiny, eve)])[0].is_gap, "the gaps have used the session's room"
