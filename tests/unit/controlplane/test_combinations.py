"""The tables of docs/control-planes.md, row by row."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.access.files import write_private
from controlplane.access.platform_keys import KEY_FILE
from controlplane.core.dependencies import Backends
from controlplane.startup import ownership as claims
from controlplane.startup.ownership import (
    BackendSettings,
    Coordination,
    StartRefused,
    choose_coordination,
)
from controlplane.store.filelock import FileLock
from controlplane.store.interface import StoreLocked
from nsml.common.clock import SystemClock
from tests.support.memory_objects import MemoryObjects
from tests.unit.controlplane.rig import surroundings

PAGE = Path(__file__).parents[3] / "docs" / "control-planes.md"
COORDINATIONS = {
    "embedded": "embedded",
    "etcd of its own": "etcd",
    "etcd by URLs": "https://a:2379,https://b:2379",
}
HISTORIES = {"SQLite": "", "PostgreSQL": "postgresql://nsml@db/nsml"}
OBJECTS = {"data folder": "", "shared": "s3://bucket/nsml"}
SHARED = BackendSettings(
    coordination=Coordination(COORDINATIONS["etcd by URLs"]),
    history=HISTORIES["PostgreSQL"],
    objects=OBJECTS["shared"],
)
ALONE = replace(SHARED, history="", objects="")


def rows(heading: str) -> list[tuple[str, ...]]:
    """The rows of the table whose first line begins with `heading`."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(heading))
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[begin + 2 :])
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in body]


COMBINATIONS = rows("| coordination | history | objects | control planes |")
REFUSALS = dict(rows("| attempt | message |"))


class Scene:
    """One store, history and object store, and data folders that come to them."""

    def __init__(self, on: Backends, folder: Path) -> None:
        self.on = on
        self._folder = folder

    def data(self, name: str, key: bytes = b"") -> Path:
        made = self._folder / name
        made.mkdir(exist_ok=True)
        if key:
            write_private(made / KEY_FILE, key)
        return made

    async def start(
        self, name: str, standing: BackendSettings, *, key: bytes = b"", **other: object
    ) -> str:
        """Claim what is there, or `other` parts of it, for a data folder; the platform's id."""
        data = self.data(name, key)
        on = replace(self.on, **other)
        return (await claims.claim(on, data, standing, data / KEY_FILE)).cluster.id

    def key_of(self, name: str) -> bytes:
        return (self._folder / name / KEY_FILE).read_bytes()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with surroundings() as on:
        yield Scene(on, tmp_path)


@pytest.mark.parametrize("row", COMBINATIONS, ids=lambda row: ", ".join(row[:3]))
async def test_how_many_control_planes_there_may_be(scene: Scene, row: tuple[str, ...]) -> None:
    coordination, history, objects, count = row
    standing = BackendSettings(
        coordination=Coordination(COORDINATIONS[coordination]),
        history=HISTORIES[history],
        objects=OBJECTS[objects],
    )
    cluster_id = await scene.start("first", standing)
    assert await scene.start("first", standing) == cluster_id
    if count == "any number":
        key = scene.key_of("first")
        for name in ("second", "third"):
            assert await scene.start(name, standing, key=key) == cluster_id
    else:
        assert count == "one"
        assert not (scene.data("first") / KEY_FILE).exists()
        own_store = standing.coordination.is_inside  # which no other folder reaches
        async with surroundings() as elsewhere:
            other = {"store": elsewhere.store} if own_store else {}
            other |= {} if history == "PostgreSQL" else {"history": elsewhere.history}
            other |= {} if objects == "shared" else {"objects": elsewhere.objects}
            if own_store and not standing.history and not standing.objects:
                assert await scene.start("second", standing, **other) != cluster_id
                return
            with pytest.raises(StartRefused, match="belongs to"):
                await scene.start("second", standing, **other)
    assert len(COMBINATIONS) == len(COORDINATIONS) * len(HISTORIES) * len(OBJECTS)


async def one_folder(scene: Scene) -> None:
    await scene.start("first", ALONE)
    lock = str(scene.data("first") / "lock")
    with FileLock(lock):
        try:
            with FileLock(lock):
                raise AssertionError("two had it")
        except StoreLocked as error:  # the program's words for it are in test_server.py
            raise StartRefused("another control plane runs in") from error


async def second_folder(scene: Scene) -> None:
    await scene.start("first", ALONE)
    async with surroundings() as own:
        await scene.start("second", ALONE, history=own.history, objects=own.objects)


async def no_key(scene: Scene) -> None:
    await scene.start("first", SHARED)
    await scene.start("second", SHARED)


async def another_key(scene: Scene) -> None:
    await scene.start("first", SHARED)
    await scene.start("second", SHARED, key=b"ab" * 32)


async def exposed_key(scene: Scene) -> None:
    await scene.start("first", SHARED)
    (scene.data("first") / KEY_FILE).chmod(0o640)
    await scene.start("first", SHARED)


async def changed_settings(scene: Scene) -> None:
    await scene.start("first", ALONE)
    for standing in (replace(ALONE, history=SHARED.history), SHARED):
        with pytest.raises(StartRefused, match="was made with SQLite and objects in its data"):
            await scene.start("first", standing)
    await scene.start("first", replace(ALONE, objects=SHARED.objects))


async def not_shared_any_more(scene: Scene) -> None:
    await scene.start("first", SHARED)
    with pytest.raises(StartRefused, match="was made with PostgreSQL and shared objects"):
        await scene.start("second", ALONE, key=scene.key_of("first"))
    await scene.start("first", replace(SHARED, history=""))


@contextlib.asynccontextmanager
async def marked(standing: BackendSettings, folder: Path) -> AsyncIterator[Backends]:
    """Parts of another platform."""
    async with surroundings() as on:
        await Scene(on, folder).start("elsewhere", standing)
        yield on


async def foreign_history(scene: Scene) -> None:
    await scene.start("first", SHARED)
    async with marked(SHARED, scene.data("x")) as other:
        await scene.start("first", SHARED, history=other.history)


async def foreign_objects(scene: Scene) -> None:
    await scene.start("first", SHARED)
    async with marked(SHARED, scene.data("x")) as other:
        await scene.start("second", SHARED, key=scene.key_of("first"), objects=other.objects)


async def empty_history(scene: Scene) -> None:
    await scene.start("first", SHARED)
    async with surroundings() as fresh:
        await scene.start("first", SHARED, history=fresh.history)


async def empty_objects(scene: Scene) -> None:
    await scene.start("first", SHARED)
    fresh = MemoryObjects(SystemClock())
    try:
        await scene.start("second", SHARED, key=scene.key_of("first"), objects=fresh)
    finally:
        assert await fresh.mark() == "", "nothing is changed by what is refused"


async def folder_of_one_machine(scene: Scene) -> None:
    """It was marked by whoever began it at the same moment, before the record said with what."""
    cluster_id = await scene.start("first", SHARED)
    local = MemoryObjects(SystemClock())
    await local.mark(f"{cluster_id}/0123456789abcdef")
    await scene.start("second", SHARED, key=scene.key_of("first"), objects=local)


async def emptied_etcd(scene: Scene) -> None:
    await scene.start("first", SHARED)
    async with surroundings() as fresh:
        await scene.start("first", SHARED, store=fresh.store)


async def emptied_etcd_and_fresh_folder(scene: Scene) -> None:
    await scene.start("first", SHARED)
    async with surroundings() as fresh:
        for part in ("history", "objects"):
            mixed = {"store": fresh.store, part: getattr(fresh, part)}
            with pytest.raises(StartRefused, match="it was emptied"):
                await scene.start("second", SHARED, key=scene.key_of("first"), **mixed)
        try:
            await scene.start("second", SHARED, store=fresh.store)
        finally:
            assert not (await fresh.store.list("")).items


async def another_etcd(scene: Scene) -> None:
    await scene.start("first", SHARED)
    async with marked(SHARED, scene.data("x")) as other:
        await scene.start("first", SHARED, store=other.store)


async def etcd_for_embedded(scene: Scene) -> None:
    await scene.start("first", replace(ALONE, coordination=Coordination("embedded")))
    choose_coordination(ALONE.coordination.kind, scene.data("first"))


TRIED: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "a second process in one data folder": one_folder,
    "a second data folder on the etcd of a platform that belongs to one folder": second_folder,
    "a second control plane of a shared platform without its key": no_key,
    "a second control plane of a shared platform with another key": another_key,
    "a key that other users can read": exposed_key,
    "another history or other objects than the platform was made with": changed_settings,
    "SQLite or the data folder for a shared platform": not_shared_any_more,
    "a history of another platform": foreign_history,
    "an object store of another platform": foreign_objects,
    "an empty history": empty_history,
    "an object store that is empty, or a folder that is not mounted": empty_objects,
    "a folder that only this machine sees": folder_of_one_machine,
    "an etcd that was emptied, with the data folder that used it": emptied_etcd,
    "an etcd that was emptied, with a fresh data folder": emptied_etcd_and_fresh_folder,
    "an etcd of another platform": another_etcd,
    "etcd in place of the embedded store": etcd_for_embedded,
}


@pytest.mark.parametrize("tried", REFUSALS)
async def test_what_is_refused(scene: Scene, tried: str) -> None:
    with pytest.raises(StartRefused) as refused:
        await TRIED[tried](scene)
    assert REFUSALS[tried] in str(refused.value)


def test_the_page_has_all_that_is_tried() -> None:
    assert set(TRIED) == set(REFUSALS)
