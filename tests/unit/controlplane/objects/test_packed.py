"""Packs and their index: what a crash, a restored backup or damage leaves of them, and how they are kept in order."""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.history.errors import HistoryUnavailable
from controlplane.history.sql.packs import SqlPacks
from controlplane.history.values import PackEntry
from controlplane.objects import maintenance, pack
from controlplane.objects.errors import BlobDamaged, BlobNotFound, ObjectsUnavailable
from controlplane.objects.folder_files import open_folder
from controlplane.objects.loose import ASIDE, NAMED
from controlplane.objects.packed import PackedObjects
from nsml.common.clock import inline
from nsml.content.digests import digest_of
from nsml.content.framing import frame
from tests.support.packed_objects import pack_index
from tests.unit.controlplane.workbench import HandClock

NOW = 1_000_000_000.0


def always() -> bool:
    return True


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def named(*blobs: bytes) -> dict[str, bytes]:
    return {digest_of(data): data for data in blobs}


@dataclass
class World:
    """A folder of objects, and an index that can be lost."""

    folder: Path
    clock: HandClock = field(default_factory=lambda: HandClock(NOW))
    index: SqlPacks = field(init=False)
    objects: PackedObjects = field(init=False)

    def __post_init__(self) -> None:
        self.lose_index()

    def lose_index(self) -> None:
        self.index = pack_index(self.clock)
        self.open()

    def open(self) -> None:
        self.objects = PackedObjects(open_folder(self.folder, inline), self.index)

    def packs(self) -> list[Path]:
        return sorted((self.folder / "packs").glob("??/*"))

    def loose(self, data: bytes, under: str = NAMED) -> Path:
        digest = digest_of(data)
        path = self.folder / under / digest[:2] / digest[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(frame(data))
        return path

    async def listed(self) -> set[str]:
        return {blob.digest async for blob in self.objects.list()}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    return World(tmp_path / "objects")


async def test_a_put_is_one_pack_and_what_is_here_already_takes_no_room(world: World) -> None:
    blobs = named(*[noise(1_000, seed) for seed in range(100)])
    await world.objects.put_many(blobs)
    [first] = world.packs()
    await world.objects.put_many(blobs)
    assert world.packs() == [first]
    await world.objects.put_many({**blobs, **named(b"one more")})
    assert len(world.packs()) == 2
    assert await world.listed() == {*blobs, digest_of(b"one more")}


async def test_a_pack_that_is_full_takes_no_further_blob(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.objects.packed.PACK_BYTES", 10_000)
    blobs = named(*[noise(3_000, seed) for seed in range(8)], noise(50_000), noise(100))
    await world.objects.put_many(blobs)
    sizes = sorted(path.stat().st_size // 1_000 for path in world.packs())
    assert sizes == [0, 12, 12, 50]
    for digest, data in blobs.items():
        assert await world.objects.get(digest) == data


async def test_an_index_that_is_lost_is_made_again(world: World) -> None:
    """As after a restore: no backup has it."""
    await world.objects.mark("c1/x")
    blobs = named(b"", b"text " * 1_000, *[noise(size, size) for size in (1, 100, 100_000)])
    for digest, data in blobs.items():
        await world.objects.put(digest, data)
    world.lose_index()
    with pytest.raises(BlobNotFound):
        await world.objects.get(digest_of(b""))
    await world.objects.prepare()
    assert await world.objects.has_missing(blobs) == set()
    assert await world.objects.get_first(list(blobs), 1 << 30) == list(blobs.values())


async def test_what_was_written_and_not_noted_is_taken_in_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.objects.mark("c1/x")
    await world.objects.prepare()

    async def away(*_: object) -> bool:
        raise HistoryUnavailable("the history is away")

    with monkeypatch.context() as patch:
        patch.setattr(world.index, "put", away)
        with pytest.raises(ObjectsUnavailable, match="index"):
            await world.objects.put(digest_of(b"data"), b"data")
    await world.objects.maintain(always)
    assert await world.listed() == set(), "it may be on its way still"
    monkeypatch.setattr(maintenance, "ADOPT_AFTER_S", -1.0)
    await world.objects.maintain(always)
    assert await world.objects.get(digest_of(b"data")) == b"data"


async def test_blobs_of_packs_that_are_gone_are_missing_and_can_be_sent_again(world: World) -> None:
    """As after a store was put back from an older copy, under an index that is newer."""
    await world.objects.mark("c1/x")
    await world.objects.put(digest_of(b"old"), b"old")
    shutil.copytree(world.folder, world.folder.with_name("copy"))
    await world.objects.put(digest_of(b"new"), b"new")
    shutil.rmtree(world.folder)
    world.folder.with_name("copy").rename(world.folder)
    world.open()
    await world.objects.prepare()
    assert await world.objects.has_missing(named(b"old", b"new")) == {digest_of(b"new")}
    await world.objects.put(digest_of(b"new"), b"new")
    assert await world.objects.get(digest_of(b"new")) == b"new"


async def test_a_pack_that_vanishes_while_it_is_used_is_noticed_by_who_reads(world: World) -> None:
    await world.objects.put(digest_of(b"data"), b"data")
    world.packs()[0].unlink()
    with pytest.raises(BlobNotFound):
        await world.objects.get(digest_of(b"data"))
    assert await world.objects.has_missing([digest_of(b"data")]) == {digest_of(b"data")}
    await world.objects.put(digest_of(b"data"), b"data")
    assert await world.objects.get(digest_of(b"data")) == b"data"


async def test_damage_within_a_pack_is_that_of_one_blob_and_is_known_to_all(world: World) -> None:
    good, bad = noise(1_000, 1), noise(1_000, 2)
    await world.objects.put_many(named(good, bad))
    [path] = world.packs()
    body = bytearray(path.read_bytes())
    body[body.index(bad) + 500] ^= 1
    path.write_bytes(body)
    with pytest.raises(BlobDamaged):
        await world.objects.get(digest_of(bad))
    assert await world.objects.get(digest_of(good)) == good
    world.open()  # another control plane
    assert await world.objects.has_missing(named(good, bad)) == {digest_of(bad)}
    await world.objects.put_many(named(good, bad))
    assert await world.objects.get(digest_of(bad)) == bad


def damage(path: Path, data: bytes) -> None:
    body = bytearray(path.read_bytes())
    body[body.index(data) + 500] ^= 1
    path.write_bytes(body)


async def test_what_is_damaged_is_taken_from_any_other_pack_that_has_it(world: World) -> None:
    twice, once, lost = (noise(1_000, seed) for seed in range(3))
    await world.objects.put_many(named(twice, lost))
    [first] = world.packs()
    await world.objects.put_many(named(twice, once))
    [second] = set(world.packs()) - {first}
    for data in (twice, lost):
        damage(first, data)
    first.with_name("0" * 32).write_bytes(b"no pack at all")
    assert [one.damaged async for one in world.objects.verify() if one.damaged]
    wanted = named(twice, lost)
    assert await world.objects.has_missing(wanted) == set(wanted)
    assert await world.objects.recover(wanted) == {
        digest_of(twice): f"pack {second.parent.name}{second.name}"
    }
    assert await world.objects.get(digest_of(twice)) == twice
    assert await world.objects.has_missing(wanted) == {digest_of(lost)}
    damage(second, twice)
    for path in set(world.packs()) - {first, second}:
        if path.stat().st_size > 500:
            damage(path, twice)
    with pytest.raises(BlobDamaged):
        await world.objects.get(digest_of(twice))
    assert await world.objects.recover(named(twice)) == {}


async def test_what_a_pack_had_that_is_gone_is_taken_from_another(world: World) -> None:
    data, other = noise(1_000, 1), noise(1_000, 2)
    await world.objects.put_many(named(data))
    [first] = world.packs()
    await world.objects.put_many(named(data, other))
    first.unlink()
    await world.objects.prepare()
    assert await world.objects.has_missing(named(data)) == set(named(data))
    assert set(await world.objects.recover(named(data))) == set(named(data))
    assert await world.objects.get(digest_of(data)) == data


async def test_blobs_of_earlier_versions_are_read_and_moved_into_packs(world: World) -> None:
    some = [noise(1_000, seed) for seed in range(5)]
    for data in some[:3]:
        world.loose(data)
    for data in some[3:]:
        world.loose(data, ASIDE)
    world.open()
    await world.objects.prepare()

    async def check() -> None:
        assert await world.objects.has_missing(named(*some)) == set(named(*some[3:]))
        for digest, data in named(*some).items():
            assert await world.objects.get(digest) == data
        assert await world.listed() == set(named(*some[:3]))
        aside = {blob.digest async for blob in world.objects.list_aside()}
        assert aside == set(named(*some[3:]))

    await check()
    await world.objects.maintain(always)
    assert not [
        path
        for path in world.folder.rglob("*")
        if path.is_file() and "packs" not in str(path.parent) and path.name != "clock"
    ]
    assert len(world.packs()) == 1
    await check()
    await world.objects.take_back(named(*some))
    assert await world.objects.has_missing(named(*some)) == set()


async def test_what_an_earlier_version_put_aside_is_taken_back(world: World) -> None:
    world.loose(b"wanted", ASIDE)
    world.open()
    await world.objects.prepare()
    await world.objects.take_back(named(b"wanted"))
    assert await world.objects.has_missing(named(b"wanted")) == set()
    assert await world.objects.get(digest_of(b"wanted")) == b"wanted"


async def test_a_loose_blob_that_is_damaged_stays_and_is_replaced_by_a_put(world: World) -> None:
    path = world.loose(b"data")
    path.write_bytes(b"\0dat")
    world.open()
    await world.objects.prepare()
    await world.objects.maintain(always)
    with pytest.raises(BlobDamaged):
        await world.objects.get(digest_of(b"data"))
    await world.objects.put(digest_of(b"data"), b"data")
    await world.objects.maintain(always)
    assert await world.objects.get(digest_of(b"data")) == b"data"
    assert not path.exists()


async def test_a_pack_without_blobs_goes_and_one_with_few_is_copied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SMALL_BYTES", 0)
    await world.objects.prepare()
    all_of_one = [noise(1_000, seed) for seed in range(10)]
    most_of_another = [noise(1_000, seed) for seed in range(10, 20)]
    await world.objects.put_many(named(*all_of_one))
    await world.objects.put_many(named(*most_of_another))
    gone = named(*all_of_one, *most_of_another[:8])
    await world.objects.put_aside(gone, always)
    assert await world.objects.delete(gone) == set(gone)
    before = sum(path.stat().st_size for path in world.packs())
    for _ in range(3):
        world.clock.now += maintenance.EMPTY_S + 1
        await world.objects.maintain(always)
    left = named(*most_of_another[8:])
    assert await world.listed() == set(left)
    for digest, data in left.items():
        assert await world.objects.get(digest) == data
    assert sum(path.stat().st_size for path in world.packs()) < before // 5
    assert len(world.packs()) == 1


async def test_many_small_packs_become_few(world: World) -> None:
    blobs = named(*[noise(1_000, seed) for seed in range(maintenance.MANY_SMALL)])
    for digest, data in blobs.items():
        await world.objects.put(digest, data)
    await world.objects.put_aside(list(blobs)[:1], always)
    for _ in range(3):
        world.clock.now += maintenance.EMPTY_S + 1
        await world.objects.maintain(always)
    assert len(world.packs()) == 1
    assert await world.objects.has_missing(blobs) == set(list(blobs)[:1])
    for digest, data in blobs.items():
        assert await world.objects.get(digest) == data


async def test_who_does_not_lead_any_more_changes_nothing(world: World) -> None:
    await world.objects.put(digest_of(b"data"), b"data")
    await world.objects.put_aside([digest_of(b"data")], always)
    await world.objects.delete([digest_of(b"data")])
    await world.objects.maintain(always)
    world.clock.now += maintenance.EMPTY_S + 1
    await world.objects.maintain(lambda: False)
    assert len(world.packs()) == 1
    await world.objects.maintain(always)
    assert world.packs() == []


@pytest.mark.parametrize("step", ["remove", "forget"])
async def test_what_was_in_a_pack_does_not_come_back_if_its_removal_is_broken_off(
    world: World, step: str
) -> None:
    """A file of which the index knows nothing would be taken in as a pack."""
    await world.objects.mark("c1/x")
    await world.objects.put(digest_of(b"data"), b"data")
    await world.objects.put_aside(named(b"data"), always)
    await world.objects.delete(named(b"data"))
    await world.objects.maintain(always)
    world.clock.now += maintenance.EMPTY_S + 1

    async def killed(*_: object) -> None:
        raise Killed

    keeping = world.objects._maintenance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeping._files if step == "remove" else keeping._index, step, killed)
        with pytest.raises(Killed):
            await world.objects.maintain(always)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "ADOPT_AFTER_S", -1.0)
        await world.objects.maintain(always)
        await world.objects.maintain(always)
    assert await world.listed() == set()
    assert world.packs() == []


ENTRY = PackEntry("ab" * 32, 0, 10, 9)


@pytest.mark.parametrize(
    "end",
    [
        b"",
        b"short",
        bytes(pack.END_BYTES),
        struct.pack("<Q32s8s", 1 << 63, bytes(32), pack.MAGIC),
        struct.pack("<Q32s8s", 55, bytes(32), pack.MAGIC),
        struct.pack("<Q32s8s", 56, bytes(32), b"nsmlpk99"),
    ],
)
def test_an_end_that_nobody_wrote_is_refused(end: bytes) -> None:
    with pytest.raises(pack.PackDamaged):
        pack.footer_length(end)


@pytest.mark.parametrize("blob_bytes", [0, 9])
def test_a_footer_that_names_bytes_which_are_not_there_is_refused(blob_bytes: int) -> None:
    whole = pack.footer_of([ENTRY])
    end = whole[-pack.END_BYTES :]
    with pytest.raises(pack.PackDamaged, match="does not have"):
        pack.entries_of(whole[: -pack.END_BYTES], end, blob_bytes)


def _read(footer: bytes, end: bytes) -> list[PackEntry]:
    pack.footer_length(end)
    return pack.entries_of(footer, end, 1_000)


@given(st.data())
@settings(max_examples=200)
def test_no_flipped_bit_in_a_footer_is_believed(data: Any) -> None:
    entries = [
        PackEntry(digest_of(bytes([n])), n * 10, 10, data.draw(st.integers(0, 1 << 40)))
        for n in range(data.draw(st.integers(1, 5)))
    ]
    whole = bytearray(pack.footer_of(entries))
    at = data.draw(st.integers(0, len(whole) * 8 - 1))
    good = bytes(whole)
    footer, end = good[: -pack.END_BYTES], good[-pack.END_BYTES :]
    assert pack.footer_length(end) == len(footer)
    assert pack.entries_of(footer, end, 1_000) == entries
    whole[at // 8] ^= 1 << (at % 8)
    footer, end = bytes(whole[: -pack.END_BYTES]), bytes(whole[-pack.END_BYTES :])
    with pytest.raises(pack.PackDamaged):
        _read(footer, end)


async def test_a_pack_with_a_damaged_end_is_left_and_others_are_taken_in(world: World) -> None:
    await world.objects.mark("c1/x")
    await world.objects.put(digest_of(b"bad"), b"bad")
    [bad] = world.packs()
    await world.objects.put(digest_of(b"good"), b"good")
    bad.write_bytes(bad.read_bytes()[:-1])
    (world.folder / "packs" / "ab").mkdir(exist_ok=True)
    (world.folder / "packs" / "ab" / ".nfs0001").write_bytes(b"x")
    world.lose_index()
    await world.objects.prepare()
    assert await world.listed() == {digest_of(b"good")}
    assert bad.exists()


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("seed", range(40))
async def test_killed_anywhere_nothing_that_was_acknowledged_is_lost_and_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Every step that lasts may be the last: a file that is put or removed, a transaction of the index."""
    chance = random.Random(seed)
    world = World(tmp_path / "objects")
    await world.objects.mark("c1/x")
    monkeypatch.setattr(maintenance, "ADOPT_AFTER_S", -1.0)
    monkeypatch.setattr(maintenance, "MANY_SMALL", 3)
    monkeypatch.setattr(maintenance, "SMALL_BYTES", 3_000)
    pool = [noise(chance.randrange(2_000), n) for n in range(30)]
    kept: set[bytes] = set()
    for data in pool[:5]:
        under = chance.choice([NAMED, ASIDE])
        world.loose(data, under)
        kept |= {data} if under == NAMED else set()

    def deadly(part: Any, names: tuple[str, ...]) -> None:
        for name in names:
            step = getattr(part, name)

            async def killed(*args: Any, _step: Any = step, **kept: Any) -> Any:
                if chance.random() < 0.08:
                    raise Killed
                done = await _step(*args, **kept)
                if chance.random() < 0.08:
                    raise Killed
                return done

            setattr(part, name, killed)

    def begin() -> PackedObjects:
        files = open_folder(world.folder, inline)
        index = SqlPacks(world.index._database, world.clock)  # the same rows
        deadly(files, ("put", "remove"))
        deadly(index, ("put", "adopt", "move", "forget", "emptied", "put_aside", "delete"))
        return PackedObjects(files, index)

    for _ in range(25):
        objects = begin()
        some = chance.sample(pool, chance.randrange(1, 6))
        try:
            await objects.prepare()
            for _ in range(chance.randrange(1, 5)):
                match chance.randrange(4):
                    case 0 | 1:
                        await objects.put_many(named(*some))
                        kept |= set(some)
                    case 2:
                        kept -= set(some)
                        await objects.put_aside(named(*some), always)
                        await objects.delete(named(*some))
                    case 3:
                        world.clock.now += maintenance.EMPTY_S + 1
                        await objects.maintain(always)
                there = await world_reader(world)
                assert await there.has_missing(named(*kept)) == set()
                for digest, data in named(*kept).items():
                    assert await there.get(digest) == data
        except Killed:
            pass
    there = await world_reader(world)
    gone = named(*(set(pool) - kept))
    for _ in range(5):
        await there.put_aside(gone, always)
        await there.delete(gone)
        world.clock.now += maintenance.EMPTY_S + 1
        await there.maintain(always)
    assert {blob.digest async for blob in there.list()} == set(named(*kept))
    for digest, data in named(*kept).items():
        assert await there.get(digest) == data
    room = sum(path.stat().st_size for path in world.packs())
    few = maintenance.MANY_SMALL * maintenance.SMALL_BYTES
    assert room <= 2 * sum(len(data) + 100 for data in kept) + few, "no room is lost"
    assert not list((world.folder / "incoming").iterdir())


async def world_reader(world: World) -> PackedObjects:
    """What starts on the same files and rows, and is not killed."""
    objects = PackedObjects(open_folder(world.folder, inline), world.index)
    await objects.prepare()
    return objects


async def test_reading_goes_on_while_blobs_move(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MANY_SMALL", 2)
    blobs = named(*[noise(500, seed) for seed in range(20)])
    for digest, data in blobs.items():
        await world.objects.put(digest, data)
    for _ in range(5):
        world.clock.now += maintenance.EMPTY_S + 1
        _, *read = await asyncio.gather(
            world.objects.maintain(always), *[world.objects.get(digest) for digest in blobs]
        )
        assert read == list(blobs.values())


async def test_everything_is_verified_and_what_is_damaged_is_missing(world: World) -> None:
    blobs = named(*[noise(1_000, seed) for seed in range(10)])
    await world.objects.put_many(blobs)
    loose = world.loose(b"loose, and damaged later")
    world.open()
    await world.objects.prepare()
    found = [one async for one in world.objects.verify()]
    assert sum(one.count for one in found) == 11
    assert not any(one.damaged for one in found)
    [path] = world.packs()
    body = bytearray(path.read_bytes())
    victim = noise(1_000, 7)
    body[body.index(victim)] ^= 0xFF
    path.write_bytes(body)
    loose.write_bytes(b"\0loose")
    damaged = {digest async for one in world.objects.verify() for digest in one.damaged}
    assert damaged == {digest_of(victim), digest_of(b"loose, and damaged later")}
    assert digest_of(victim) in await world.objects.has_missing(blobs)
    path.unlink()
    damaged = {digest async for one in world.objects.verify() for digest in one.damaged}
    assert damaged >= set(blobs)


async def test_whoever_knew_something_to_be_whole_is_told_of_losses(world: World) -> None:
    await world.objects.mark("c1/x")
    await world.objects.put(digest_of(b"one"), b"one")
    await world.objects.put(digest_of(b"two"), b"two")
    told = [await world.objects.losses()]
    for path in world.packs():
        path.write_bytes(b"\0XX" + path.read_bytes()[3:])
    for data in (b"one", b"two"):
        for _ in range(2):
            with pytest.raises(BlobDamaged):
                await world.objects.get(digest_of(data))
        told.append(await world.objects.losses())
    world.packs()[0].unlink()
    await world.objects.maintain(always)
    told.append(await world.objects.losses())
    assert len(set(told)) == len(told)
