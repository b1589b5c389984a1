"""What the object store keeps for each user and project: the count is a model's, and a limit holds within what is stated."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.content import object_gc as collecting
from controlplane.content.admitted_objects import AdmittedObjects
from controlplane.content.content import Content
from controlplane.content.object_gc import Collector
from controlplane.content.observed_clock import ObservedClock
from controlplane.content.user_storage_loop import FAILED_REST_S, LEAST_REST_S, CountingKept
from controlplane.datasets.datasets import Datasets
from controlplane.datasets.references import parse_dataset
from controlplane.domain.errors import LimitReached, MissingBlobs
from controlplane.domain.identity import NodeCaller, User, UserCaller
from controlplane.domain.limits import NO_LIMITS
from controlplane.domain.values import Project, SessionStage, Visibility
from controlplane.history.errors import HistoryFenced
from controlplane.history.sqlite import open_history, tally
from controlplane.history.sqlite.tally import Tally, TallyFailed
from controlplane.history.values import Checkpoint, CheckpointState, SessionRecord
from controlplane.limits.admission import Admission
from controlplane.limits.user_storage import (
    UNKNOWN_BYTES,
    WAITS_S,
    Kept,
    KeptUsages,
    ProjectKept,
    ProjectUsages,
)
from controlplane.state.live_usage import LiveUsage
from controlplane.stored import etcd_codec
from nsml.common.clock import inline
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from tests.support.examples import examples
from tests.support.memory_objects import MemoryObjects
from tests.unit.controlplane import builders
from tests.unit.controlplane.workbench import HandClock

GRACE = 86_400.0
BLOB = 8 << 10
LIMIT = 40 * BLOB
NODE = "node-1"
PROJECT_LIMIT = 60 * BLOB
CALLERS = {name: UserCaller(user=User(name=name)) for name in ("eve", "kim", "lee")}


def blob(name: str) -> bytes:
    return name.encode().ljust(BLOB, b".")


def tree(*names: str) -> tuple[str, dict[str, bytes]]:
    """Digest of a manifest of these files, and all blobs."""
    contents = [blob(name) for name in sorted(set(names))]
    entries = [
        Entry(path=f"f{at}", mode=0o644, size=BLOB, chunks=(ChunkRef(digest_of(one), BLOB),))
        for at, one in enumerate(contents)
    ]
    manifest = build(entries).encode()
    root = digest_of(manifest)
    return root, {root: manifest, **{digest_of(one): one for one in contents}}


def size_of(blobs: dict[str, bytes]) -> int:
    return sum(max(len(one), 4096) for one in blobs.values())


class Plane:
    """One control plane's part of it, over shared stores."""

    def __init__(self, world: World, *, space: Any = None, **limits: Any) -> None:
        self._world = world
        self.kept = Kept(replace(NO_LIMITS, **limits), world.history, world.clock)
        self.project_kept = ProjectKept(
            world.history, world.clock, find=world.projects.get, every=world.projects.values
        )
        self.admission = Admission(
            NO_LIMITS,
            usage=LiveUsage(),
            clock=world.clock,
            kept=self.kept,
            project_kept=self.project_kept,
            space=space,
        )
        self.admitted = AdmittedObjects(world.objects, self.admission, world.state)
        self.content = Content(
            objects=self.admitted,  # type: ignore[arg-type]
            history=world.history,
            state=world.state,
            clock=world.clock,
            admission=self.admission,
        )
        self.datasets = Datasets(history=world.history, content=self.content, clock=world.clock)

    async def send(self, user: str, blobs: dict[str, bytes], *, asks: bool = True) -> None:
        """What clients send: all that is missing, or without asking."""
        caller = CALLERS[user]
        missing = await self.content.missing(caller, list(blobs)) if asks else list(blobs)
        self.admitted.count_for(caller, "")

        async def parts() -> AsyncIterator[tuple[str, bytes, bool]]:
            for digest in missing:
                yield digest, blobs[digest], True

        await self.content.put(caller, parts())

    async def save(self, session_id: str, blobs: dict[str, bytes]) -> None:
        """What the agent of a session's node sends."""
        agent = NodeCaller(node=NODE)
        missing = await self.content.missing(agent, list(blobs), session_id=session_id)
        self.admitted.count_for(agent, session_id)

        async def parts() -> AsyncIterator[tuple[str, bytes, bool]]:
            for digest in missing:
                yield digest, blobs[digest], True

        await self.content.put(agent, parts(), session_id=session_id)

    async def push(self, user: str, name: str, *files: str, to_all: bool = False) -> None:
        root, blobs = tree(*files)
        await self.send(user, blobs)
        await self.datasets.pushes.create_version(
            CALLERS[user],
            name=name,
            digest=root,
            visibility=Visibility.PUBLIC if to_all else None,
            message="",
        )


class World:
    def __init__(self, history: Any, clock: HandClock) -> None:
        self.history = history
        self.clock = clock
        self.objects = MemoryObjects(clock)
        self.live: dict[str, Any] = {}
        self.term = 1
        self.projects: dict[str, Project] = {}
        self.observed = self.new_observed()

        self.state: Any = SimpleNamespace(
            sessions=self.live,
            allocations={},
            session=self._session,
            project=self.projects.get,
        )

    def _session(self, session_id: str) -> Any:
        found = self.live.get(session_id)
        return found and found.value

    def new_observed(self) -> ObservedClock:
        return ObservedClock(
            objects=self.objects, history=self.history, clock=self.clock, grace_s=GRACE
        )

    def collector(self) -> Collector:
        return Collector(
            objects=self.objects,
            history=self.history,
            state=self.state,
            observed=self.observed,
            may=lambda: True,
            term=lambda: self.term,
            users=lambda: {name: name for name in CALLERS},
            projects=self.projects.keys,
        )

    async def counted_for(self, project: str) -> dict[str, int]:
        known = (await self.history.kept.projects.all()).get(project)
        return dict(known.counted) if known else {}

    async def counted(self, user: str) -> dict[str, int]:
        known = (await self.history.kept.all()).get(user)
        return dict(known.counted) if known else {}

    async def save(self, session_id: str, name: str, root: str) -> None:
        self.clock.now += 1
        await self.history.catalogue.put_checkpoint(
            Checkpoint(
                session_id=session_id,
                name=name,
                saved_at=self.clock.now,
                size_bytes=1,
                file_count=1,
                state=CheckpointState.DURABLE,
                digest=root,
            )
        )

    async def end(
        self,
        session_id: str,
        owner: str,
        bundle: str = "",
        project: str = "",
        stage: SessionStage | None = None,
    ) -> None:
        session = builders.session(
            id=session_id,
            owner=owner,
            project=project,
            spec={"bundle_digest": bundle, "datasets": (), "stage": stage},
        )
        self.live.pop(session_id, None)
        await self.history.catalogue.put_session(
            SessionRecord(
                id=session_id,
                name=f"{owner}/None/{session_id}",
                owner=owner,
                project=project,
                state="SUCCEEDED",
                created_at=1.0,
                ended_at=2.0,
                record=etcd_codec.encode_session(session),
                request_id=session_id,
            ),
            term=self.term,
        )

    def run(
        self,
        session_id: str,
        owner: str,
        *datasets: str,
        project: str = "",
        is_sealed: bool = False,
    ) -> None:
        session = builders.session(id=session_id, owner=owner)
        spec = SimpleNamespace(
            bundle_digest="",
            datasets=[SimpleNamespace(digest=one) for one in datasets],
            initial_checkpoint=None,
            is_sealed=is_sealed,
        )
        self.live[session_id] = SimpleNamespace(
            value=SimpleNamespace(
                id=session_id,
                owner=owner,
                project=project,
                name=session.name,
                spec=spec,
                attempt=1,
                attempts=(),
                replicas=(SimpleNamespace(rank=0, node=NODE),),
                visibility=Visibility.PRIVATE,
                team="",
                imported=None,
            )
        )


@pytest.fixture(autouse=True)
def few_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MARK_BITS", 16)


@contextlib.asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    clock = HandClock()
    history = await open_history(":memory:", clock=clock, run=inline)
    try:
        made = World(history, clock)
        await made.observed.cutoff()
        yield made
    finally:
        await history.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def test_distinct_bytes_are_counted_by_owner_and_kind(world: World) -> None:
    plane = Plane(world)
    await plane.push("kim", "data", "a", "b")
    await plane.push("kim", "data", "a", "b", "c")
    await plane.push("lee", "data", "a")
    root, blobs = tree("a", "x")
    await plane.send("kim", blobs)
    world.run("s1", "kim")
    await world.save("s1", "best", root)
    bundle, code = tree("code")
    await plane.send("kim", code)
    await world.end("s2", "kim", bundle)
    _, unused = tree("later")
    await plane.send("lee", unused)
    await world.collector().count()
    # `a` is data and in a checkpoint: it counts once.
    assert await world.counted("kim") == {
        "DATASETS": 3 * BLOB + 2 * 4096,
        "CHECKPOINTS": BLOB + 4096,
        "CODE": BLOB + 4096,
    }
    assert sum((await world.counted("lee")).values()) == 2 * BLOB + 2 * 4096
    assert (await world.counted("lee"))["UNUSED"] == BLOB + 4096
    known = (await world.history.kept.all())["kim"]
    assert (known.sent, known.counted_at) == (0, world.clock.time())


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_what_a_sealed_session_sends_counts_for_nobody(world: World, is_sealed: bool) -> None:
    """Its user would read hidden inputs from the bytes; neither while it runs, nor later, nor unused."""
    plane = Plane(world)
    bundle, code = tree("code")
    await plane.send("kim", code)
    world.run("s1", "kim", is_sealed=is_sealed)
    root, saved = tree("a", "b")
    _, unused = tree("c")
    await plane.save("s1", saved)
    await plane.save("s1", unused)
    assert plane.kept.use("kim").used == BLOB + 4096 + (0 if is_sealed else 3 * BLOB + 2 * 4096)
    await world.save("s1", "best", root)
    await world.collector().count()
    for is_over in (False, True):
        if is_over:
            stage = SessionStage.PREDICT if is_sealed else SessionStage.EVALUATE
            await world.end("s1", "kim", bundle, stage=stage)
            await world.collector().count()
        counted = await world.counted("kim")
        assert counted.get("CHECKPOINTS", 0) == (0 if is_sealed else 2 * BLOB + 4096)
        assert sum(counted.values()) == BLOB + 4096 + (0 if is_sealed else 3 * BLOB + 2 * 4096)


async def test_what_was_sent_counts_until_it_is_counted_also_for_a_new_control_plane(
    world: World,
) -> None:
    plane = Plane(world, kept_bytes=LIMIT)
    await plane.push("kim", "data", *"abcdefgh")
    assert plane.kept.use("kim").used == 8 * BLOB + 4096
    other = Plane(world, kept_bytes=LIMIT)
    await other.kept.look()
    assert other.kept.use("kim").used == 8 * BLOB + 4096
    assert other.kept.is_count_wanted, "there was none"
    await world.collector().count()
    await other.kept.look()
    assert not other.kept.is_count_wanted
    assert other.kept.use("kim").kept.sent == 0
    assert other.kept.use("kim").used == 8 * BLOB + 4096


async def test_over_the_limit_nothing_more_is_taken_of_this_user_alone(world: World) -> None:
    plane = Plane(world, kept_bytes=LIMIT)
    await plane.push("eve", "data", *(f"e{number}" for number in range(39)))
    with pytest.raises(LimitReached) as caught:
        await plane.push("eve", "more", "x", "y")
    assert "nsml storage" in (caught.value.attempt or "")
    assert "user_kept_bytes" in caught.value.why
    assert plane.admission.refused["kept_bytes"] == 1
    assert "nsml storage" in plane.kept.words("eve", is_own=True)
    assert not re.search("[0-9]", plane.kept.words("eve", is_own=False))
    assert not plane.kept.words("kim", is_own=True)
    await plane.push("kim", "data", *(f"k{number}" for number in range(39)))
    assert plane.kept.use("eve").used <= LIMIT


async def test_of_many_uploads_at_once_no_more_is_let_in_than_the_limit(world: World) -> None:
    class Slow:
        """A disk that is looked at before each batch."""

        @contextlib.asynccontextmanager
        async def taking(self, *_: Any) -> AsyncIterator[None]:
            await asyncio.sleep(0)
            yield

        def room_bytes(self, _: str) -> None:
            return None

        def is_low(self, _: str) -> bool:
            return False

        def spend(self, *_: Any) -> None:
            pass

    plane = Plane(world, kept_bytes=LIMIT, space=Slow())
    ended = await asyncio.gather(
        *[plane.send("eve", {digest_of(blob(f"{one}")): blob(f"{one}")}) for one in range(60)],
        return_exceptions=True,
    )
    assert sum(isinstance(one, LimitReached) for one in ended) == 20
    assert len([one async for one in world.objects.list()]) == 40
    # What was refused at the last moment may count until the next count, never less than what is stored.
    assert plane.kept.use("eve").used >= LIMIT
    await world.collector().count()
    await plane.kept.look()
    assert plane.kept.use("eve").used == LIMIT


async def test_a_refusal_is_not_counted_however_often_it_is_repeated(world: World) -> None:
    plane = Plane(world, kept_bytes=LIMIT)
    await plane.push("eve", "data", *(f"e{number}" for number in range(39)))
    before = plane.kept.use("eve").used
    for _ in range(20):
        with pytest.raises(LimitReached):
            await plane.send("eve", tree("x", "y")[1], asks=False)
    await plane.kept.look()
    assert plane.kept.use("eve").used == before


async def test_removals_give_room_back_with_the_next_count(world: World) -> None:
    plane = Plane(world, kept_bytes=LIMIT)
    await plane.push("kim", "data", *"abcd")
    await plane.push("kim", "data", *"efgh")
    for number, names in enumerate(("ij", "kl", "mn")):
        root, blobs = tree(*names)
        await plane.send("kim", blobs)
        await world.save("s1" if number < 2 else "s2", f"c{number}", root)
    world.run("s2", "kim")
    await world.end("s1", "kim")
    await world.collector().count()
    await plane.kept.look()
    full = plane.kept.use("kim").used
    assert not plane.kept.is_count_wanted
    await plane.datasets.remove(CALLERS["kim"], parse_dataset("data", 1))
    await plane.kept.look()
    assert plane.kept.is_count_wanted
    await world.collector().count()
    await plane.kept.look()
    assert plane.kept.use("kim").used == full - 4 * BLOB - 4096
    assert await world.history.catalogue.delete_session("s1")
    assert await world.history.catalogue.delete_checkpoint("s2", "c2", owner="kim")
    await world.collector().count()
    await plane.kept.look()
    assert plane.kept.use("kim").used == 4 * BLOB + 4096
    # What was removed and is sent again counts again: it is not taken for sent.
    root, blobs = tree("a", "b", "c", "d")
    assert set(await plane.content.missing(CALLERS["kim"], list(blobs))) == set(blobs)


async def test_a_checkpoint_that_another_one_replaces_gives_its_room_back(world: World) -> None:
    plane = Plane(world)
    world.run("s1", "kim")
    for names in ("ab", "cd", "ef"):
        root, blobs = tree(*names)
        await plane.send("kim", blobs)
        await world.save("s1", "last", root)
    assert plane.kept.use("kim").used == 6 * BLOB + 3 * 4096
    await world.collector().count()
    assert await world.counted("kim") == {"CHECKPOINTS": 2 * BLOB + 4096}


async def test_a_removed_dataset_counts_for_live_sessions_that_use_it(world: World) -> None:
    plane = Plane(world)
    await plane.push("kim", "data", "a", "b", to_all=True)
    world.run("s1", "lee", tree("a", "b")[0])
    await world.collector().count()
    assert await world.counted("lee") == {}, "it is kim's"
    await plane.datasets.remove(CALLERS["kim"], parse_dataset("data"))
    await world.collector().count()
    assert await world.counted("kim") == {}
    assert await world.counted("lee") == {"DATASETS": 2 * BLOB + 4096}
    world.clock.now += 3 * GRACE
    await world.collector().look()
    assert await world.objects.has_missing(tree("a", "b")[1]) == set(), "it is used"
    await world.end("s1", "lee")
    await world.collector().look()
    assert await world.objects.has_missing(tree("a", "b")[1]) == set(), "it can be restored"
    assert await world.counted("kim") == await world.counted("lee") == {}
    assert await plane.datasets.purge(world.clock.now) == 1
    for _ in range(2):
        world.clock.now += GRACE + 1
        await world.collector().look()
    assert [one async for one in world.objects.list()] == []


async def test_what_others_have_sent_counts_before_it_is_referred_to(world: World) -> None:
    plane = Plane(world, kept_bytes=LIMIT)
    await plane.push("eve", "big", *(f"e{number}" for number in range(30)), to_all=True)
    root, _ = tree(*(f"e{number}" for number in range(30)))
    await plane.push("kim", "own", *(f"k{number}" for number in range(15)))
    await plane.datasets.lookup.find(CALLERS["kim"], parse_dataset("eve/big"))
    plane.content.show(CALLERS["kim"], root)
    with pytest.raises(LimitReached):
        await plane.datasets.pushes.create_version(
            CALLERS["kim"], name="copy", digest=root, visibility=None, message=""
        )
    # Nor by way of a manifest of one's own that lists it.
    with pytest.raises(LimitReached):
        await plane.content.missing(CALLERS["kim"], [root], bases=[root])


async def test_without_temporary_files_nothing_is_counted_and_garbage_is_collected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = Plane(world)
    await plane.push("kim", "data", "a")
    _, garbage = tree("x")
    await plane.send("kim", garbage)

    def full(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Tally, "refer", tally._named()(full))
    with pytest.raises(TallyFailed, match="temporary files"):
        await world.collector().count()
    world.clock.now += GRACE + 1
    assert (await world.collector().look()).put_aside == len(garbage)
    assert (await world.history.kept.all())["kim"].counted_at == 0


async def test_two_looks_at_once_forget_nothing(world: World) -> None:
    """What was noted is taken off once, by the look that has read it."""
    plane = Plane(world, kept_bytes=LIMIT)
    real, gate = world.history.kept.all, asyncio.Event()

    async def slow() -> Any:
        found = await real()
        await gate.wait()
        return found

    await plane.push("kim", "data", "a", "b")
    world.history.kept.all = slow
    looks = [asyncio.create_task(plane.kept.look()) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    await plane.push("kim", "data", "c", "d")
    world.history.kept.all = real
    gate.set()
    await asyncio.gather(*looks)
    assert plane.kept.use("kim").used >= 4 * BLOB + 2 * 4096


async def test_a_count_of_a_former_leader_changes_nothing(world: World) -> None:
    plane = Plane(world)
    await plane.push("kim", "data", "a")
    world.term = 2
    await world.collector().count()
    world.term = 1
    with pytest.raises(HistoryFenced):
        await world.collector().count()


async def test_without_a_set_limit_others_decide_and_the_disk(world: World) -> None:
    def kept(others: bool, size: int | None, own: int | None = None) -> Kept:
        limits = replace(NO_LIMITS, kept_bytes=None, kept_share=0.5)
        return Kept(
            limits,
            world.history,
            world.clock,
            capacity=lambda: size,
            has_others=lambda _: others,
            own_limit=lambda _: own,
        )

    assert kept(others=False, size=100).use("kim").most == 0
    assert kept(others=True, size=100).use("kim").most == 50
    assert kept(others=True, size=None).use("kim").most == UNKNOWN_BYTES
    assert kept(others=True, size=100, own=7).use("kim").most == 7
    with pytest.raises(LimitReached, match="8 Bytes more cannot be stored for kim: 7 Bytes") as own:
        kept(others=True, size=100, own=7).check("kim", 8)
    assert own.value.why == "an administrator has set the limit of kim to 7 Bytes; stored: nothing"
    with pytest.raises(LimitReached) as shared:
        kept(others=True, size=100).check("kim", 51)
    assert shared.value.why.startswith("one user may keep 50 Bytes (user_kept_share); stored")
    assert kept(others=True, size=100, own=0).use("kim").most == 0


async def test_users_are_shown_what_takes_most(world: World) -> None:
    plane = Plane(world)
    await plane.push("kim", "small", "a")
    await plane.push("kim", "large", *"bcdef")
    world.run("s1", "kim")
    await world.save("s1", "best", "ab" * 32)
    await world.end("s2", "kim")
    await world.save("s2", "best", "cd" * 32)
    usages = KeptUsages(
        kept=plane.kept,
        history=world.history,
        state=world.state,
        users=SimpleNamespace(),  # type: ignore[arg-type]
    )
    use, largest = await usages.of("kim")
    assert use.used == 6 * BLOB + 2 * 4096
    assert [one.name for one in largest[:2]] == ["large", "small"]
    assert len(largest) == 4
    assert [one.name for one in await usages.all()] == ["kim"]


async def test_a_leader_counts_when_it_is_asked_to_and_rests_between(world: World) -> None:
    plane = Plane(world, kept_bytes=LIMIT)
    await plane.push("kim", "data", *"abcd")
    loop = CountingKept(collector=world.collector(), kept=plane.kept, clock=world.clock)
    await plane.kept.look()
    assert loop.is_due(), "nothing was counted yet"
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.clock.now += seconds
        if len(slept) == 2:
            await plane.datasets.remove(CALLERS["kim"], parse_dataset("data"))
            await plane.kept.look()
        if len(slept) == 4:
            raise RuntimeError

    world.clock.sleep = sleep  # type: ignore[method-assign]
    with contextlib.suppress(RuntimeError):
        await loop.run()
    assert slept[0] == LEAST_REST_S
    assert slept[1] < LEAST_REST_S, "nobody asked for another one"
    assert slept[2] == LEAST_REST_S
    assert plane.kept.use("kim").used == 0


async def test_a_leader_goes_on_when_a_count_fails(world: World) -> None:
    plane = Plane(world, kept_bytes=LIMIT)
    await plane.push("kim", "data", "a")
    root = tree("a")[0]
    await plane.kept.look()
    await world.objects.put_aside([root], lambda: True)
    await world.objects.delete([root])
    loop = CountingKept(collector=world.collector(), kept=plane.kept, clock=world.clock)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise RuntimeError
        await world.objects.put_many(tree("a")[1])

    world.clock.sleep = sleep  # type: ignore[method-assign]
    with contextlib.suppress(RuntimeError):
        await loop.run()
    assert slept == [FAILED_REST_S, LEAST_REST_S]
    assert await world.counted("kim") == {"DATASETS": BLOB + 4096}


class Life:
    """Users who push, save, remove and share at two control planes, beside counts and collections, by a seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        for project in ("vision", "kim"):
            world.projects[project] = Project(name=project, kept_bytes=PROJECT_LIMIT)
        self.planes = [Plane(world, kept_bytes=LIMIT) for _ in range(2)]
        self.roots: dict[tuple[str, str, str], tuple[str, dict[str, bytes]]] = {}
        self.refused = 0

    async def step(self, user: str) -> None:
        plane = self.random.choice(self.planes)
        await self.random.choice((self.push, self.push, self.save, self.remove, self.count))(
            plane, user
        )
        for one in self.planes:
            await one.kept.look()
            await one.project_kept.look()
        self.world.clock.now += self.random.choice((1, 60, 3600))

    def _files(self) -> list[str]:
        return [f"{self.random.randint(0, 60)}" for _ in range(self.random.randint(1, 12))]

    async def push(self, plane: Plane, user: str) -> None:
        name, files = self.random.choice("pq"), self._files()
        before = await self.world.history.catalogue.dataset(user, name)
        try:
            await plane.push(user, name, *files)
        except (LimitReached, MissingBlobs):
            self.refused += 1
            return
        after = await self.world.history.catalogue.dataset(user, name)
        assert after is not None
        if before is None or before.version.number != after.version.number:
            self.roots[user, "dataset", f"{name}@{after.version.number}"] = tree(*files)

    async def save(self, plane: Plane, user: str) -> None:
        root, blobs = tree(*self._files())
        number, name = self.random.choice("12"), self.random.choice("ab")
        session, project = f"{user}{number}", "vision" if number == "1" else ""
        self.world.run(session, user, project=project)
        try:
            await plane.save(session, blobs)
        except LimitReached:
            self.refused += 1
            return
        if await plane.content.is_incomplete(NodeCaller(node=NODE), root):
            return
        await self.world.save(session, name, root)
        self.roots[user, session, name] = root, blobs

    async def remove(self, plane: Plane, user: str) -> None:
        own = [key for key in self.roots if key[0] == user]
        if not own:
            return
        key = self.random.choice(own)
        del self.roots[key]
        if key[1] == "dataset":
            name, _, number = key[2].partition("@")
            await plane.datasets.remove(CALLERS[user], parse_dataset(name, int(number)))
        else:
            await self.world.history.catalogue.delete_checkpoint(key[1], key[2], owner=user)

    async def count(self, _: Plane, __: str) -> None:
        collector = self.world.collector()
        await (collector.look() if self.random.random() < 0.3 else collector.count())

    def model(self, user: str) -> int:
        """Distinct bytes of everything that a user refers to."""
        blobs: dict[str, bytes] = {}
        for (owner, _, _), (_, some) in self.roots.items():
            if owner == user:
                blobs |= some
        return size_of(blobs)

    def model_of(self, project: str) -> int:
        """Of everything of a project: the sessions numbered 1 are vision's, all else is its owner's own."""
        blobs: dict[str, bytes] = {}
        for (owner, session, _), (_, some) in self.roots.items():
            if project == ("vision" if session.endswith("1") else owner):
                blobs |= some
        return size_of(blobs)


@pytest.mark.parametrize("seed", range(examples(30)))
async def test_the_count_is_a_models_and_the_limit_holds(seed: int) -> None:
    async with a_world() as world:
        life = Life(world, seed)
        for _ in range(40):
            user = life.random.choice(list(CALLERS))
            await life.step(user)
            for one in CALLERS:
                # At all times at least what is kept, and no more than the limit and one batch on its way.
                used = life.planes[0].kept.use(one).used
                assert life.model(one) <= used, one
                assert used <= LIMIT, one
            for project in world.projects:
                used = life.planes[0].project_kept.use(project).used
                assert life.model_of(project) <= used <= PROJECT_LIMIT, project
        await world.collector().count()
        for project in world.projects:
            kinds = await world.counted_for(project)
            assert kinds.pop("UNUSED", 0) >= 0
            assert sum(kinds.values()) == life.model_of(project), project
        for one in CALLERS:
            kinds = await world.counted(one)
            unused = kinds.pop("UNUSED", 0)
            assert sum(kinds.values()) == life.model(one), one
            assert unused >= 0
        # When what nobody refers to is gone nothing else is counted.
        for _ in range(3):
            world.clock.now += GRACE + 1
            await world.history.sent.forget(before=int(world.clock.time() // GRACE) - 1)
            await world.collector().look()
        for one in CALLERS:
            assert sum((await world.counted(one)).values()) == life.model(one)
        for project in world.projects:
            assert sum((await world.counted_for(project)).values()) == life.model_of(project)


async def test_a_quota_is_of_one_project_alone_and_says_what_to_do(world: World) -> None:
    world.projects["vision"] = Project(name="vision", kept_bytes=4 * BLOB)
    plane = Plane(world)
    world.run("s1", "kim", project="vision")
    world.run("s2", "lee", project="vision")
    world.run("s3", "kim")
    root, blobs = tree("a", "b", "c")
    await plane.save("s1", blobs)
    await world.save("s1", "best", root)
    _, more = tree("d", "e")
    with pytest.raises(LimitReached, match="cannot be stored for project vision") as caught:
        await plane.save("s2", more)
    assert "the quota of project vision is 32.8 kB of stored data" in caught.value.why
    assert caught.value.attempt.startswith("nsml storage --project vision ")
    # It is far from full, but what does not fit waits on its node.
    assert not plane.project_kept.use("vision").is_full
    assert plane.project_kept.words("vision", is_own=True).startswith("new checkpoints are not")
    assert plane.kept.words("lee", is_own=True) == ""
    world.clock.now += WAITS_S
    assert plane.project_kept.words("vision", is_own=True) == ""
    await plane.save("s3", more)  # the same user, another project
    world.projects["vision"] = Project(name="vision", kept_bytes=8 * BLOB)
    await plane.save("s2", more)


async def test_a_full_project_takes_no_run_and_no_push_and_tells_its_sessions(world: World) -> None:
    world.projects["kim"] = Project(name="kim", kept_bytes=4 * BLOB - 8)
    plane = Plane(world)
    with pytest.raises(LimitReached, match="for project kim"):
        await plane.push("kim", "data", *"abcde")
    assert await world.history.catalogue.dataset("kim", "data") is None
    await plane.push("kim", "data", "a", "b", "c")
    await plane.push("lee", "data", *"abcde")  # without a quota
    with pytest.raises(LimitReached):
        plane.content.check_project_full("kim")
    with pytest.raises(LimitReached):
        plane.datasets.pushes.check(CALLERS["kim"], "other", None, "")
    assert plane.project_kept.words("kim", is_own=False).endswith(
        "its project is at its storage quota"
    )
    assert "for project kim (nsml storage --project kim)" in plane.project_kept.words(
        "kim", is_own=True
    )


async def test_whoever_says_how_much_is_coming_is_told_before_it_is_sent(world: World) -> None:
    world.projects["vision"] = Project(
        name="vision", kept_bytes=4 * BLOB, members=frozenset({"kim"})
    )
    plane = Plane(world, kept_bytes=8 * BLOB)
    kim, lee, agent = CALLERS["kim"], CALLERS["lee"], NodeCaller(node=NODE)
    _, blobs = tree("a", "b")
    await plane.send("kim", blobs)
    used = size_of(blobs)
    assert plane.content.room(kim) == plane.content.room(kim, project="nothing") == 8 * BLOB - used
    assert plane.content.room(kim, 4 * BLOB, project="vision") == 4 * BLOB
    with pytest.raises(LimitReached, match="cannot be stored for kim"):
        plane.content.room(kim, 8 * BLOB - used + 1)
    with pytest.raises(LimitReached, match="cannot be stored for project vision"):
        plane.content.room(kim, 4 * BLOB + 1, project="vision")
    assert plane.content.room(lee, 8 * BLOB, project="vision") == 8 * BLOB, "it is not of lee"
    world.run("s1", "kim", project="vision")
    assert plane.content.room(agent, session_id="s1") == 4 * BLOB
    with pytest.raises(LimitReached, match="cannot be stored for project vision"):
        plane.content.room(agent, 4 * BLOB + 1, session_id="s1")
    assert plane.project_kept.words("vision", is_own=True).startswith("new checkpoints are not")
    assert Plane(world).content.room(kim) is None


async def test_restoring_a_dataset_counts_for_its_project_again(world: World) -> None:
    world.projects["kim"] = Project(name="kim", kept_bytes=7 * BLOB)
    plane = Plane(world)
    await plane.push("kim", "data", *"abc")
    await plane.datasets.remove(CALLERS["kim"], parse_dataset("data"))
    await world.collector().count()
    assert await world.counted_for("kim") == {}
    await plane.project_kept.look()
    await plane.push("kim", "other", *"defg")
    with pytest.raises(LimitReached, match="project kim"):
        await plane.datasets.restore(CALLERS["kim"], parse_dataset("data"))
    world.projects["kim"] = Project(name="kim", kept_bytes=20 * BLOB)
    await plane.datasets.restore(CALLERS["kim"], parse_dataset("data"))
    await world.collector().count()
    found = await world.counted_for("kim")
    assert found == {"DATASETS": 7 * BLOB + 2 * 4096}


async def test_a_new_project_is_counted_at_once_and_an_old_figure_of_its_name_is_not_its(
    world: World,
) -> None:
    plane = Plane(world)
    await plane.push("kim", "data", "a")
    assert not plane.project_kept.is_count_wanted
    for _ in range(2):
        world.clock.now += 10
        world.projects["kim"] = Project(name="kim", created_at=await world.objects.now())
        assert plane.project_kept.is_count_wanted
        world.clock.now += 1
        await world.collector().count()
        await plane.project_kept.look()
        assert not plane.project_kept.is_count_wanted
        assert plane.project_kept.use("kim").used == BLOB + 4096
        del world.projects["kim"]


async def test_only_projects_that_are_there_have_figures(world: World) -> None:
    plane = Plane(world)
    world.projects["vision"] = Project(name="vision")
    for session, project in (("s1", "vision"), ("s2", "gone"), ("s3", "")):
        world.run(session, "kim", project=project)
        await plane.save(session, tree(session)[1])
    assert (await world.history.kept.projects.all()).keys() == {"vision"}
    del world.projects["vision"]
    await world.collector().count()
    assert not await world.history.kept.projects.all()


async def test_who_sees_a_project_sees_sizes_of_all_and_names_of_what_they_may_see(
    world: World,
) -> None:
    world.projects["vision"] = Project(name="vision")
    plane = Plane(world)
    for session, owner in (("k", "kim"), ("l", "lee")):
        root, blobs = tree(session)
        world.run(session, owner, project="vision")
        await plane.save(session, blobs)
        await world.save(session, "best", root)
    await world.end("k", "kim", project="vision")
    await plane.push("kim", "data", "z")
    await world.collector().count()
    usages = ProjectUsages(kept=plane.project_kept, history=world.history, state=world.state)
    for user, names in (("kim", {"kim/None/k"}), ("lee", {world.live["l"].value.name})):
        use, users, largest = await usages.of(world.projects["vision"], User(name=user))
        assert use.kept.counted == {"CHECKPOINTS": 2 * BLOB + 2 * 4096}
        assert users == (("kim", 1), ("lee", 1))
        assert {one.name for one in largest} == names
    # The datasets of a user's own project are named to that user alone, among its members.
    world.projects["kim"] = Project(name="kim", members=frozenset({"kim", "lee"}))
    for user, names in (("kim", {"data"}), ("lee", set())):
        _, users, largest = await usages.of(world.projects["kim"], User(name=user))
        assert users == (("kim", BLOB),)
        assert {one.name for one in largest} == names
