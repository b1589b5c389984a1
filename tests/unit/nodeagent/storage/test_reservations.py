"""What goes for a fetch, and which fetches do not fit: for any trees, fetches and disks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nodeagent.shim.disk_usage import FILE_BYTES
from nodeagent.storage import reservations as rooms
from nodeagent.storage.eviction import NoRoom
from nodeagent.storage.reservations import Claim, Disk, Kept, Room, Size, plan
from nsml.common.clock import in_thread
from nsml.spec.request_limits import LEAST_FILE_BYTES

USERS = ["kim", "lee", "ann"]
_SIZES = st.builds(Size, st.integers(0, 100), st.integers(0, 20))
_KEPT = st.lists(
    st.builds(
        Kept,
        kind=st.just("dataset"),
        key=st.text("abcdef", min_size=4, max_size=4),
        size=_SIZES,
        users=st.frozensets(st.sampled_from(USERS)),
        used_at=st.floats(0, 1e9),
        is_used=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda one: one.key,
)


def test_files_count_for_as_much_wherever_they_are_counted() -> None:
    """The shim imports nothing of ours, and has a number of its own."""
    assert FILE_BYTES == LEAST_FILE_BYTES


@st.composite
def _claims(draw: st.DrawFn) -> Claim:
    whole = draw(_SIZES)
    left = Size(draw(st.integers(0, whole.bytes)), draw(st.integers(0, whole.files)))
    return Claim(user=draw(st.sampled_from(USERS)), whole=whole, left=left)


_DISKS = st.builds(
    Disk,
    free=st.builds(Size, st.integers(0, 400), st.integers(0, 80)),
    keep=st.builds(Size, st.integers(0, 40), st.integers(0, 8)),
)


def total(sizes: list[Size]) -> Size:
    return sum(sizes, start=Size())


@given(
    need=_SIZES,
    user=st.sampled_from(USERS),
    disk=_DISKS,
    kept=_KEPT,
    claims=st.lists(_claims(), max_size=4),
    share=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_a_fetch_begins_only_when_all_of_it_fits(
    need: Size, user: str, disk: Disk, kept: list[Kept], claims: list[Claim], share: float
) -> None:
    unused = [one for one in kept if not one.is_used]
    free = disk.free - disk.keep - total([one.left for one in claims])
    caches = disk.free - disk.keep + total([one.size for one in kept])
    most = (caches + total([one.whole - one.left for one in claims])).times(share)
    if not any(one.is_used and one.users - {user} for one in kept) and not any(
        one.user != user for one in claims
    ):
        share = 0.0  # who is alone has all of it
    used = total([one.size for one in kept if user in one.users])
    used += total([one.whole for one in claims if one.user == user])
    try:
        gone = plan(need, user, disk=disk, kept=kept, claims=claims, share=share)
    except NoRoom as error:
        fits = need <= free + total([one.size for one in unused])
        theirs = [one.size for one in unused if user in one.users]
        is_within = not share or used - total(theirs) + need <= most
        assert not (fits and is_within)
        assert error.is_of_user == (not is_within)  # noqa: PT017 - some fit
        return
    # what replicas use stays, and what is left afterwards is enough for all that was promised
    assert not any(one.is_used for one in gone)
    assert len({one.key for one in gone}) == len(gone)
    assert need <= free + total([one.size for one in gone])
    left = used - total([one.size for one in gone if user in one.users])
    assert not share or left + need <= most
    # nothing goes for nothing
    if need <= free and (not share or used + need <= most):
        assert gone == []
    # of what nobody uses, no tree goes while an older one stays; one's own go first for one's own share
    for one in gone:
        older = [other for other in unused if other.used_at < one.used_at and other not in gone]
        assert user in one.users or not older
        assert not [other for other in older if user in other.users]


@given(st.lists(st.tuples(st.sampled_from(USERS), _SIZES), max_size=12), _DISKS)
def test_one_user_never_takes_what_others_are_due(
    wishes: list[tuple[str, Size]], disk: Disk
) -> None:
    """Whatever one fetches and uses for ever beside others, these find half of the room."""
    assume(disk.keep <= disk.free)
    ann = frozenset({"ann"})
    kept = [Kept(kind="bundle", key="a", size=Size(), users=ann, used_at=0, is_used=True)]
    free = disk.free
    for number, (_, size) in enumerate(wishes):
        now = replace(disk, free=free)
        try:
            gone = plan(size, "kim", disk=now, kept=kept, claims=(), share=0.5)
        except NoRoom:
            continue
        assert gone == []
        users = frozenset({"kim"})
        kept.append(
            Kept(kind="dataset", key=str(number), size=size, users=users, used_at=0, is_used=True)
        )
        free -= size
    half = (disk.free - disk.keep).times(0.5)
    assert plan(half, "lee", disk=replace(disk, free=free), kept=kept, claims=(), share=0.5) == []


@pytest.mark.parametrize("is_used", [True, False])
@pytest.mark.parametrize("users", [frozenset({"lee"}), frozenset({"kim", "lee"}), frozenset()])
def test_who_is_alone_on_a_node_has_all_of_its_room(users: frozenset[str], is_used: bool) -> None:
    """Others are on it as long as their sessions use trees, or fetch some; unused trees go for what comes."""
    disk = Disk(free=Size(100, 100), keep=Size(10, 0))
    here = Kept(kind="dataset", key="a", size=Size(20, 1), users=users, used_at=0, is_used=is_used)

    def planned(need: int, claims: tuple[Claim, ...] = ()) -> list[Kept]:
        return plan(Size(need, 1), "kim", disk=disk, kept=[here], claims=claims, share=0.5)

    if is_used and users - {"kim"}:
        with pytest.raises(NoRoom) as error:
            planned(90)
        assert error.value.is_of_user
    else:
        assert planned(90) == []
        assert planned(110 if not is_used else 90) == ([] if is_used else [here])
    nothing = Size()
    with pytest.raises(NoRoom) as error:
        planned(90, (Claim(user="lee", whole=nothing, left=nothing),))
    assert error.value.is_of_user


def test_it_says_what_there_is_too_little_of() -> None:
    disk = Disk(free=Size(1_000_000, 10), keep=Size(0, 4))

    other = Claim(user="lee", whole=Size(), left=Size())

    def refused(need: Size, share: float = 0.0) -> str:
        with pytest.raises(NoRoom) as error:
            plan(need, "kim", disk=disk, kept=(), claims=(other,), share=share)
        return str(error.value.strerror)

    kept = "the rest of the disk is reserved for running sessions"
    assert refused(Size(2_000_000, 1)) == f"no room for 2.0 MB: {kept}"
    assert refused(Size(1, 7)) == f"no room for 7 files: {kept}"
    assert refused(Size(600_000, 1), 0.5) == (
        "no room for 600.0 kB: the data of one user's sessions may take 500.0 kB of this node"
        " (user_cache_share), and 0 Bytes are in use"
    )


async def test_fetches_at_the_same_time_see_what_the_others_have_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(free=Size(100, 100), keep=Size(10, 0))
    monkeypatch.setattr(rooms, "disk_of", lambda *_: disk)
    room = Room(tmp_path, run=in_thread)
    begun, release = [0], asyncio.Event()

    async def fetch() -> None:
        async with room.reserved(Size(40, 1), "kim"):
            begun[0] += 1
            await release.wait()

    fetches = [asyncio.ensure_future(fetch()) for _ in range(5)]
    while sum(one.done() for one in fetches) + begun[0] < 5:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    assert begun == [2]
    release.set()
    ended = await asyncio.gather(*fetches, return_exceptions=True)
    assert [type(one) for one in ended if one is not None] == [NoRoom] * 3
    async with room.reserved(Size(80, 1), "lee") as reservation:
        reservation.spend(40)
        with pytest.raises(NoRoom, match="larger than"):
            reservation.spend(41)
        monkeypatch.setattr(rooms, "disk_of", lambda *_: Disk(free=Size(9, 9), keep=Size(10, 0)))
        with pytest.raises(NoRoom, match="ran full"):
            reservation.spend(1)
