"""What a control plane stands on belongs together, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.access.authority import open_authority
from controlplane.access.files import write_private
from controlplane.access.platform_keys import KEY_FILE
from controlplane.access.vault import Vault, open_vault
from controlplane.core.dependencies import Backends
from controlplane.startup import ownership as claims
from controlplane.startup.config import SettingsError, read_settings
from controlplane.startup.ownership import (
    BackendSettings,
    Claimed,
    Coordination,
    StartRefused,
    choose_coordination,
)
from controlplane.store.interface import StoreUnavailable
from controlplane.stored import etcd_codec
from nsml.common.clock import SystemClock
from tests.support.platforms import cluster_in
from tests.unit.controlplane.rig import surroundings

CLUSTER = BackendSettings(coordination=Coordination("http://127.0.0.1:2379"))
INSIDE = BackendSettings(coordination=Coordination("embedded"))
SHARED = replace(CLUSTER, history="postgresql://nsml@db/nsml", objects="s3://bucket/nsml")


@pytest.fixture
async def on():
    async with surroundings() as on:
        yield on


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


async def claim(on: Backends, data: Path, standing: BackendSettings) -> str:
    return (await claimed(on, data, standing)).cluster.id


async def claimed(on: Backends, data: Path, standing: BackendSettings) -> Claimed:
    return await claims.claim(on, data, standing, data / KEY_FILE)


async def test_the_first_folder_has_the_store_for_good(on: Backends, tmp_path: Path) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    cluster_id = await claim(on, first, CLUSTER)
    assert await cluster_in(on.store) == cluster_id
    for _ in range(2):
        with pytest.raises(StartRefused, match="belongs to another data folder") as refused:
            await claim(on, second, CLUSTER)
        assert cluster_id in str(refused.value)
    assert list(second.iterdir()) == []
    assert await claim(on, first, CLUSTER) == cluster_id
    assert sorted(file.name for file in first.iterdir()) == ["cluster", "coordination"]


async def test_a_folder_keeps_to_its_store(on: Backends, tmp_path: Path) -> None:
    data = folder(tmp_path, "data")
    cluster_id = await claim(on, data, CLUSTER)
    async with surroundings() as empty:
        with pytest.raises(StartRefused, match="its store holds none"):
            await claim(empty, data, CLUSTER)
        other = await claim(empty, folder(tmp_path, "other"), CLUSTER)
        with pytest.raises(StartRefused, match=f"its store holds another one, {other}"):
            await claim(empty, data, CLUSTER)
    assert await claim(on, data, CLUSTER) == cluster_id


class Breaking:
    """Stands before everything that a start changes, and breaks off at one of its steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, on: Backends, survived: int) -> None:
        self.left = survived
        monkeypatch.setattr(claims, "write_private", self.before(claims.write_private))
        monkeypatch.setattr(on.store, "commit", self.before(on.store.commit))
        for place in (on.history, on.objects):
            monkeypatch.setattr(place, "mark", self.before(place.mark, reading=True))

    def before(self, real, *, reading: bool = False):
        def step(*arguments):
            if not reading or any(arguments):
                if not self.left:
                    raise StoreUnavailable("gone")
                self.left -= 1
            return real(*arguments)

        return step


@pytest.mark.parametrize("standing", [CLUSTER, SHARED], ids=["alone", "shared"])
async def test_a_start_that_broke_off_is_taken_up(
    on: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standing: BackendSettings
) -> None:
    """Broken off before each step that another one follows."""
    data, broken = folder(tmp_path, "data"), 0
    while True:
        with monkeypatch.context() as patched:
            Breaking(patched, on, broken)
            try:
                await claim(on, data, standing)
                break
            except StoreUnavailable:
                broken += 1
    assert broken >= 3
    assert await claim(on, data, standing) == await cluster_in(on.store)
    other = folder(tmp_path, "other")
    with pytest.raises(StartRefused):
        await claim(on, other, standing)
    assert list(other.iterdir()) == []


async def test_a_store_inside_the_folder_is_the_folders_own(on: Backends, tmp_path: Path) -> None:
    cluster_id = await claim(on, folder(tmp_path, "before"), INSIDE)
    assert await claim(on, folder(tmp_path, "after"), INSIDE) == cluster_id


async def test_what_was_tried_in_vain_binds_nobody(on: Backends, tmp_path: Path) -> None:
    data = folder(tmp_path, "data")
    assert choose_coordination("http://127.0.0.1:1", data).kind == "http://127.0.0.1:1"
    assert choose_coordination("embedded", data) == INSIDE.coordination
    await claim(on, data, INSIDE)
    assert choose_coordination("auto", data) == INSIDE.coordination
    with pytest.raises(StartRefused, match="was made with"):
        choose_coordination("http://127.0.0.1:1", data)


async def test_a_cluster_may_be_reached_under_other_urls(on: Backends, tmp_path: Path) -> None:
    data = folder(tmp_path, "data")
    cluster_id = await claim(on, data, CLUSTER)
    moved = choose_coordination("https://10.0.0.1:2379,https://10.0.0.2:2379", data)
    assert await claim(on, data, replace(CLUSTER, coordination=moved)) == cluster_id
    assert choose_coordination("auto", data) == moved


# A shared platform


async def test_control_planes_share_a_platform_with_a_copy_of_its_key(
    on: Backends, tmp_path: Path
) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    made = await claimed(on, first, SHARED)
    with pytest.raises(StartRefused, match=r"copy platform\.key from another control plane"):
        await claim(on, second, SHARED)
    assert list(second.iterdir()) == []
    write_private(second / KEY_FILE, (first / KEY_FILE).read_bytes())
    joined = await claimed(on, second, SHARED)
    assert (joined.cluster, joined.keys) == (made.cluster, made.keys)
    for data in (first, second):
        found = {file.name for file in data.iterdir()}
        assert found == {"ca.pem", "cluster", "coordination", KEY_FILE}
        assert (data / KEY_FILE).stat().st_mode & 0o777 == 0o600


async def test_the_store_alone_says_nothing_of_the_keys(on: Backends, tmp_path: Path) -> None:
    made = await claimed(on, folder(tmp_path, "first"), SHARED)
    item = await on.store.get(etcd_codec.PLATFORM_KEYS)
    assert made.keys.authority[1] not in item.value
    assert not any(key in item.value for key in made.keys.vault)
    assert "PRIVATE" not in repr(made)


@pytest.mark.parametrize("has_key", [True, False], ids=["one key", "a key each"])
async def test_of_several_that_begin_at_once_one_makes_the_platform(
    on: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    commit = on.store.commit

    async def slow(transaction):  # so that all of them find the store empty
        await asyncio.sleep(0.01)
        return await commit(transaction)

    monkeypatch.setattr(on.store, "commit", slow)
    folders = [folder(tmp_path, f"{number}") for number in range(3)]
    if has_key:
        for data in folders:
            write_private(data / KEY_FILE, b"ab" * 32 + b"\n")
    said = await asyncio.gather(
        *[claimed(on, data, SHARED) for data in folders], return_exceptions=True
    )
    made = [one for one in said if isinstance(one, Claimed)]
    assert len(made) == (3 if has_key else 1)
    assert len({one.cluster.id for one in made}) == len({one.keys.authority for one in made}) == 1
    for data, one in zip(folders, said, strict=True):
        if isinstance(one, Exception):
            assert "copy platform.key" in str(one)
            assert "--platform-key FILE" in str(one)
            assert list(data.iterdir()) == [], "a key that is nobody's is not left to be copied"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"cd" * 32 + b"\n", "is not the key of the platform"),
        (b"no key\n", "64 hexadecimal digits"),
        (b"", "64 hexadecimal digits"),
    ],
)
async def test_a_wrong_key_is_refused_by_name(
    on: Backends, tmp_path: Path, key: bytes, words: str
) -> None:
    await claim(on, folder(tmp_path, "first"), SHARED)
    second = folder(tmp_path, "second")
    write_private(second / KEY_FILE, key)
    with pytest.raises(StartRefused, match=words) as refused:
        await claim(on, second, SHARED)
    assert str(second / KEY_FILE) in str(refused.value)
    assert [file.name for file in second.iterdir()] == [KEY_FILE]
    (second / KEY_FILE).chmod(0o644)
    with pytest.raises(StartRefused, match="may be read by others"):
        await claim(on, second, SHARED)


async def test_keys_of_before_are_taken_in(on: Backends, tmp_path: Path) -> None:
    data = folder(tmp_path, "data")
    authority = open_authority(data, SystemClock())
    sealed = open_vault(data, on.random_bytes).seal(b"value", owner="kim", name="A")
    made = await claimed(on, data, SHARED)
    assert made.keys.open_authority(SystemClock()).digest == authority.digest
    vault = Vault(made.keys.vault, on.random_bytes)
    assert vault.open(sealed, owner="kim", name="A") == b"value"
    assert not (data / "ca.key").exists()
    assert not (data / "secrets.key").exists()
    other = folder(tmp_path, "other")
    open_authority(other, SystemClock())
    write_private(other / KEY_FILE, (data / KEY_FILE).read_bytes())
    await claim(on, other, SHARED)
    assert (other / "ca.key").exists(), "what was not taken in is not removed"


# An empty part in place of one that is lost


PARTS = ("history", "objects")


@asynccontextmanager
async def without(on: Backends, part: str) -> AsyncIterator[Backends]:
    """The same platform with an empty one in place of this part."""
    async with surroundings() as fresh:
        yield replace(on, **{part: getattr(fresh, part)})


@pytest.mark.parametrize("standing", [INSIDE, SHARED], ids=["alone", "shared"])
@pytest.mark.parametrize("part", PARTS)
async def test_an_empty_part_is_refused_by_name_and_taken_once_its_loss_is_accepted(
    on: Backends, tmp_path: Path, part: str, standing: BackendSettings
) -> None:
    data = folder(tmp_path, "data")
    before = (await claimed(on, data, standing)).cluster
    (other,) = set(PARTS) - {part}
    async with without(on, part) as emptied:
        for accepted in ("", other):
            with pytest.raises(StartRefused, match=f"ACCEPT_EMPTY={part}") as refused:
                await claim(emptied, data, replace(standing, accept_empty=accepted))
            assert before.id in str(refused.value)
            assert await getattr(emptied, part).mark() == "", "nothing was changed"
        now = (await claimed(emptied, data, replace(standing, accept_empty=part))).cluster
        assert now.id == before.id
        mark = await getattr(emptied, part).mark()
        assert getattr(now, f"{part}_mark") == mark != getattr(before, f"{part}_mark")
        assert getattr(now, f"{other}_mark") == getattr(before, f"{other}_mark")
        assert (await claimed(emptied, data, standing)).cluster == now, "one start was enough"
        with pytest.raises(StartRefused, match="a copy, or one that only this machine sees"):
            await claim(on, data, standing)


@pytest.mark.parametrize("part", PARTS)
async def test_a_part_of_another_platform_is_not_accepted_for_a_lost_one(
    on: Backends, tmp_path: Path, part: str
) -> None:
    data = folder(tmp_path, "data")
    cluster_id = await claim(on, data, INSIDE)
    async with surroundings() as theirs:
        other = await claim(theirs, folder(tmp_path, "theirs"), INSIDE)
        mixed = replace(on, **{part: getattr(theirs, part)})
        with pytest.raises(StartRefused, match=f"belongs to another platform, {other}"):
            await claim(mixed, data, replace(INSIDE, accept_empty=part))
    assert await claim(on, data, INSIDE) == cluster_id


async def test_what_is_refused_for_one_part_is_not_marked_in_the_other(
    on: Backends, tmp_path: Path
) -> None:
    """Else the right start after it would find a mark that the platform does not know."""
    data = folder(tmp_path, "data")
    await claim(on, data, INSIDE)
    async with without(on, "history") as emptied, without(emptied, "objects") as both:
        with pytest.raises(StartRefused, match="ACCEPT_EMPTY=objects"):
            await claim(both, data, replace(INSIDE, accept_empty="history"))
        assert await both.history.mark() == ""


@pytest.mark.parametrize("value", PARTS)
def test_what_is_accepted_is_said_in_the_environment(tmp_path: Path, value: str) -> None:
    file = tmp_path / "controlplane.toml"
    file.write_text('data = "data"\n')
    assert read_settings(file, {}).accept_empty == ""
    assert read_settings(file, {"NSML_CONTROLPLANE_ACCEPT_EMPTY": value}).accept_empty == value
    for wrong in ("everything", "1", value.upper()):
        with pytest.raises(SettingsError, match="accept_empty"):
            read_settings(file, {"NSML_CONTROLPLANE_ACCEPT_EMPTY": wrong})
