"""Objects that nothing refers to are removed, and no other, whoever refers to one at that very moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from controlplane.content import object_gc as collecting
from controlplane.content.content import FOUND_FOR_S, PERIOD_S, Content
from controlplane.content.object_gc import Collected, Collector, Marks, ReferencesUnread
from controlplane.content.object_gc_loop import FIRST_AFTER_S, LOOK_EVERY_S, Collecting
from controlplane.content.observed_clock import ObservedClock
from controlplane.domain.identity import User, UserCaller, identity_of
from controlplane.domain.values import ImportedFrom, InitialCheckpoint, Session
from controlplane.history.board_values import SubmissionRow
from controlplane.history.sql import object_references as referring
from controlplane.history.sql.history import History
from controlplane.history.sqlite import open_history
from controlplane.history.values import (
    Channel,
    Checkpoint,
    CheckpointState,
    Chunk,
    Dataset,
    Holder,
    KeptKind,
    MediaContent,
    Reference,
    SessionRecord,
    StreamKey,
)
from controlplane.objects.errors import BlobNotFound, ObjectsUnavailable
from controlplane.records.logs import Logs
from controlplane.stored import etcd_codec
from nsml.common.clock import inline
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.content.pages import Page
from tests.support.examples import examples
from tests.support.failing import Failing
from tests.support.memory_objects import MemoryObjects
from tests.support.trees import paged_tree
from tests.unit.controlplane import builders
from tests.unit.controlplane.workbench import HandClock

GRACE = 86_400.0
KIM = UserCaller(user=User(name="kim"))


@dataclass(frozen=True)
class Tree:
    """A manifest with what it lists."""

    root: str
    blobs: dict[str, bytes]


def tree(*files: str) -> Tree:
    contents = [name.encode() for name in files]
    entries = [
        Entry(
            path=f"f{at}", mode=0o644, size=len(one), chunks=(ChunkRef(digest_of(one), len(one)),)
        )
        for at, one in enumerate(contents)
    ]
    manifest = build(entries).encode()
    root = digest_of(manifest)
    return Tree(root, {root: manifest, **{digest_of(one): one for one in contents}})


class Turning(MemoryObjects):
    """Lets others go first, wherever an object store may take its time."""

    turn: Callable[[], Any] | None = None

    async def _others(self) -> None:
        if self.turn is not None:
            await self.turn()

    async def has_missing(self, digests: Any) -> set[str]:
        await self._others()
        found = await super().has_missing(digests)
        await self._others()
        return found

    async def put_many(self, blobs: Any) -> None:
        await self._others()
        await super().put_many(blobs)

    async def get(self, digest: str) -> bytes:
        await self._others()
        return await super().get(digest)

    async def put_aside(self, digests: Any, may: Callable[[], bool]) -> set[str]:
        await self._others()
        return await super().put_aside(digests, may)

    async def take_back(self, digests: Any) -> None:
        for digest in digests:
            await self._others()
            await super().take_back([digest])

    async def delete(self, digests: Any) -> set[str]:
        await self._others()
        return await super().delete(digests)


@dataclass
class World:
    clock: HandClock
    objects: Turning
    history: History
    live: dict[str, Any] = field(default_factory=dict)
    leads: bool = True

    def __post_init__(self) -> None:
        self.state: Any = SimpleNamespace(sessions=self.live, allocations={})
        self.content = self.new_content()
        self.start()

    def start(self) -> None:
        """Begin anew as a process that has not seen the clock."""
        self.observed = ObservedClock(
            objects=self.objects, history=self.history, clock=self.clock, grace_s=GRACE
        )

    def new_content(self) -> Content:
        return Content(
            objects=self.objects, history=self.history, state=self.state, clock=self.clock
        )

    def collector(self) -> Collector:
        return Collector(
            objects=self.objects,
            history=self.history,
            state=self.state,
            observed=self.observed,
            may=lambda: self.leads,
            term=lambda: 1,
        )

    @property
    def period(self) -> int:
        return int(self.clock.time() // PERIOD_S)

    async def look(self) -> Collected:
        return await self.collector().look()

    async def collect(self) -> None:
        """Two looks, each when the grace is over: what nothing refers to is gone."""
        for _ in range(2):
            self.clock.now += GRACE + 1
            await self.look()

    async def send(self, one: Tree) -> None:
        absent = await self.objects.has_missing(one.blobs)
        await self.objects.put_many({digest: one.blobs[digest] for digest in absent})

    async def end(self, session_id: str, bundle: str, whole: Session | None = None) -> None:
        session = whole or builders.session(id=session_id, spec={"bundle_digest": bundle})
        await self.history.catalogue.put_session(
            SessionRecord(
                id=session_id,
                name=f"kim/None/{session_id}",
                owner="kim",
                state="SUCCEEDED",
                created_at=1.0,
                ended_at=2.0,
                record=etcd_codec.encode_session(session),
                request_id=session_id,
            ),
            term=1,
        )

    async def save(self, name: str, root: str) -> None:
        await self.history.catalogue.put_checkpoint(
            Checkpoint(
                session_id="s",
                name=name,
                saved_at=self.clock.now,
                size_bytes=1,
                file_count=1,
                state=CheckpointState.DURABLE,
                digest=root,
            )
        )

    async def is_whole(self, one: Tree) -> bool:
        try:
            return all([await self.objects.get(d) == data for d, data in one.blobs.items()])
        except BlobNotFound:
            return False

    async def everything(self) -> set[str]:
        found = {blob.digest async for blob in self.objects.list()}
        return found | {blob.digest async for blob in self.objects.list_aside()}


@pytest.fixture(autouse=True)
def few_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making room for many takes longer than everything else here."""
    monkeypatch.setattr(collecting, "MARK_BITS", 20)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


@contextlib.asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    clock = HandClock()
    history = await open_history(":memory:", clock=clock, run=inline)
    try:
        made = World(clock, Turning(clock), history)
        await made.observed.cutoff()
        yield made
    finally:
        await history.close()


async def test_what_nothing_refers_to_is_kept_for_two_graces_and_then_gone(world: World) -> None:
    one = tree("a", "b")
    await world.send(one)
    world.clock.now += GRACE - 1
    assert (await world.look()).put_aside == 0
    world.clock.now += 1
    done = await world.look()
    assert (done.objects, done.put_aside, done.removed) == (3, 3, 0)
    assert done.put_aside_bytes == sum(map(len, one.blobs.values()))
    assert await world.objects.has_missing(one.blobs) == set(one.blobs)
    assert await world.is_whole(one)
    world.clock.now += GRACE - 1
    assert (await world.look()).aside == 3
    world.clock.now += 1
    done = await world.look()
    assert (done.objects, done.aside, done.removed) == (0, 0, 3)
    assert done.removed_bytes == sum(map(len, one.blobs.values()))
    assert await world.everything() == set()


async def test_whatever_refers_to_an_object_keeps_it(world: World) -> None:
    """Each kind of reference, beside garbage of the same age that shares a file with it."""
    kinds = ("bundle", "live bundle", "live data", "version", "old version", "checkpoint", "media")
    trees = {kind: tree("shared", kind) for kind in kinds}
    garbage = tree("shared", "garbage")
    for one in (*trees.values(), garbage):
        await world.send(one)
    roots = {kind: one.root for kind, one in trees.items()}
    await world.end("s1", roots["bundle"])
    live = builders.session(id="s2", spec={"bundle_digest": roots["live bundle"]})
    data = builders.session(
        id="s3",
        spec={"datasets": (SimpleNamespace(digest=roots["live data"]),)},
    )
    world.live |= {one.id: SimpleNamespace(value=one) for one in (live, data)}
    dataset = Dataset(owner="kim", name="mnist", created_at=1.0)
    for kind in ("old version", "version"):
        await world.history.catalogue.put_dataset_version(
            dataset, digest=roots[kind], size_bytes=1, file_count=1
        )
    await world.save("best", roots["checkpoint"])
    content = MediaContent(file=f"{'0' * 32}.png", root=roots["media"], size_bytes=1)
    await world.history.media.settle("s1", 1, 0, [content])
    await world.collect()
    await world.collect()
    for kind, one in trees.items():
        assert await world.objects.has_missing(one.blobs) == set(), kind
    left = {digest for one in trees.values() for digest in one.blobs}
    assert await world.everything() == left
    # And with what refers to it, it goes.
    await world.history.catalogue.delete_session("s1")
    await world.history.catalogue.delete_checkpoint("s", "best")
    world.live.clear()
    await world.collect()
    kept = {digest for kind in ("version", "old version") for digest in trees[kind].blobs}
    assert await world.everything() == kept


@pytest.mark.parametrize("is_live", [True, False])
async def test_what_a_restored_session_began_with_is_kept_with_it(
    world: World, is_live: bool
) -> None:
    """Of no other session: the checkpoint that it began with may be gone, and then nothing would be collected."""
    start = tree("start")
    await world.send(start)
    initial = InitialCheckpoint(session_id="s1", name="best", digest=start.root)
    backup = ImportedFrom(platform="c", session_id="s", name="n", owner="lee", restored_at=1.0)
    for imported in (backup, None):
        session = builders.session(id="s1", spec={"initial_checkpoint": initial}, imported=imported)
        if is_live:
            world.live["s1"] = SimpleNamespace(value=session)
        else:
            await world.end("s1", "", session)
        await world.collect()
        assert await world.everything() == (set(start.blobs) if imported else set())


async def test_a_prediction_outlives_its_session_until_the_dataset_is_purged(world: World) -> None:
    predicted, history = tree("prediction"), world.history
    await world.send(predicted)
    data = tree("mnist")
    await world.send(data)
    await history.catalogue.put_dataset_version(
        Dataset(owner="lee", name="mnist", created_at=1.0),
        digest=data.root,
        size_bytes=1,
        file_count=1,
    )
    row = SubmissionRow(
        id="u1",
        owner="kim",
        dataset_owner="lee",
        dataset="mnist",
        dataset_version=1,
        session_id="s1",
        session="kim/mnist/1",
        checkpoint="best",
        submitted_at=1.0,
        prediction_digest=predicted.root,
    )
    await history.submissions.add(row, since=0.0, check=lambda _: None)
    await world.end("s1", "")
    await history.catalogue.delete_session("s1")
    await world.collect()
    assert await world.is_whole(predicted)
    counted = await history.kept.all()
    assert KeptKind.ARTIFACTS.name in counted["lee"].counted, "the dataset's owner needs it"
    assert "kim" not in counted or not counted["kim"].counted
    await history.catalogue.remove_dataset("lee", "mnist", at=2.0)
    await history.catalogue.purge_datasets(3.0)
    await world.collect()
    assert await world.everything() == set()


async def test_pages_and_what_they_list_live_as_long_as_a_root_that_lists_them(
    world: World,
) -> None:
    """A digest that is cut by the end of a page is one of them, and pages that two versions share stay for one."""
    manifest, blobs = paged_tree(files=9_000, chunks=9_000)
    other, more = paged_tree("zzz", files=9_000, chunks=9_000)
    old, new = Tree(manifest.digest, blobs), Tree(other.digest, more)
    pages = [blobs[page.digest] for page in manifest.root.pages]
    assert any(page.rpartition(b'["')[2].find(b'"') < 0 for page in pages[:-1])
    assert set(blobs) & {page.digest for page in other.root.pages}
    for one in (old, new):
        await world.send(one)
        await world.save(one.root, one.root)
    await world.collect()
    assert await world.objects.has_missing([*blobs, *more]) == set()
    await world.history.catalogue.delete_checkpoint("s", old.root)
    await world.collect()
    assert await world.everything() == set(more)
    assert set(blobs) - set(more)
    await world.history.catalogue.delete_checkpoint("s", new.root)
    await world.collect()
    assert await world.everything() == set()


async def test_a_page_of_several_versions_is_read_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a digest is cut between pages, of which one is another one: what each version has is marked."""
    versions = [
        paged_tree(*(f"{at:05}new" for at in range(0, 9_000, 4_500)[:number]), files=9_000)
        for number in range(3)
    ] + [paged_tree(files=9_000, chunks=9_000)]
    read: Counter[str] = Counter()
    sound = MemoryObjects.get_first

    async def get_first(self: MemoryObjects, digests: Any, most: int) -> list[bytes]:
        found = await sound(self, digests, most)
        read.update(digests[: len(found)])
        return found

    monkeypatch.setattr(MemoryObjects, "get_first", get_first)
    for manifest, blobs in versions:
        await world.send(Tree(manifest.digest, blobs))
        await world.save(manifest.digest, manifest.digest)
    done = await world.look()
    pages = [page.digest for manifest, _ in versions for page in manifest.root.pages]
    assert len(pages) > len(set(pages)), "versions share some"
    assert read == Counter(set(pages))
    counted = sum(len({*manifest.blobs()}) for manifest, _ in versions)
    assert done.referred >= counted + len(pages)
    everything = {digest for _, blobs in versions for digest in blobs}
    await world.collect()
    assert await world.everything() == everything


async def test_a_digest_that_is_cut_is_marked_whichever_pages_are_beside_the_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are known by then, each beside another one; real ones are larger."""
    monkeypatch.setattr(
        collecting, "pages_in", lambda data: [Page(*one) for one in json.loads(data)["pages"]]
    )
    halves = [digest_of(b"%d" % number) for number in range(6)]
    first, other, between, last, further = (
        b'["%s", "%s' % (halves[4].encode(), halves[0][:30].encode()),
        b'["%s", "%s' % (halves[5].encode(), halves[1][:30].encode()),
        b'%s"], ["%s' % (halves[0][30:].encode(), halves[2][:9].encode()),
        b'%s"]' % halves[2][9:].encode(),
        b'%s"]' % halves[3][9:].encode(),
    )
    alone = b'%s"]' % halves[3][30:].encode()
    trees = [(first, between, last), (first, between, further), (other, between, last)]
    trees.append((first, alone, b"]"))
    referred: dict[str, set[str]] = {"kim": set(), "lee": set()}

    async def refer(holders: Collection[Holder], _: object, digests: list[str]) -> None:
        for one in holders:
            referred[one.user].update(digests)

    counted: Any = SimpleNamespace(holders_of=lambda one: (Holder(one.owner),), refer=refer)
    marks, done = Marks(20), Collected()
    walk = collecting._Walk(world.objects, marks, done, counted, inline)
    wanted = set[str]()
    for owner in referred:
        for pages in trees:
            listing = [[digest_of(page), len(page)] for page in pages]
            root = json.dumps({"pages": listing, "version": 2}, separators=(",", ":")).encode()
            await world.objects.put_many({digest_of(one): one for one in (root, *pages)})
            wanted |= {digest_of(root), *(digest for digest, _ in listing)}
            wanted |= {match.decode() for match in re.findall(rb"[0-9a-f]{64}", b"".join(pages))}
            await walk.roots([Reference(digest_of(root), KeptKind.DATASETS, owner)])
    assert referred == {"kim": wanted, "lee": wanted}
    assert all(one in marks for one in wanted)


async def test_nothing_is_put_aside_while_a_page_cannot_be_read(world: World) -> None:
    manifest, blobs = paged_tree()
    await world.send(Tree(manifest.digest, blobs))
    await world.save("best", manifest.digest)
    page = manifest.root.pages[-1].digest
    await world.objects.put_aside([page], lambda: True)
    await world.objects.delete([page])
    garbage = tree("garbage")
    await world.send(garbage)
    world.clock.now += GRACE + 1
    with pytest.raises(ReferencesUnread, match=manifest.digest):
        await world.look()
    assert await world.objects.has_missing(garbage.blobs) == set()


async def test_blocks_of_logs_go_with_their_session(world: World) -> None:
    await world.end("s1", "")
    await world.end("s2", "")
    logs = Logs(history=world.history, objects=world.objects, run=inline)
    for session in ("s1", "s2"):
        key = StreamKey(session, 1, 0, Channel.LOG)
        data = session.encode() * 1000
        chunk = Chunk(stream=key, first=0, last=len(data) - 1, data=data)
        await world.history.streams.append([chunk])
        while await logs.archive(key):
            pass
    assert len(await world.everything()) == 2
    await world.collect()
    for session in ("s1", "s2"):
        assert (await logs.read(session, limit_bytes=4)).data.startswith(session.encode())
    await world.history.catalogue.delete_session("s1")
    await world.collect()
    assert len(await world.everything()) == 1
    logs = Logs(history=world.history, objects=world.objects, run=inline)
    assert (await logs.read("s2", limit_bytes=4)).data.startswith(b"s2")


async def test_a_reference_that_comes_between_the_look_and_the_removal(world: World) -> None:
    """The classic race: it is found present, put aside, and referred to. It comes back by itself."""
    one = tree("a")
    await world.send(one)
    world.clock.now += GRACE
    assert not await world.content.is_incomplete(KIM, one.root)
    assert (await world.look()).put_aside == 2
    await world.save("best", one.root)
    assert await world.is_whole(one)
    world.clock.now += 10 * GRACE  # longer than it may be aside, and only now the next look
    done = await world.look()
    assert (done.taken_back, done.removed) == (2, 0)
    assert await world.objects.has_missing(one.blobs) == set()
    await world.collect()
    assert await world.is_whole(one)


async def test_who_was_told_that_it_is_here_need_not_send_it(world: World) -> None:
    one = tree("a", "b")
    await world.send(one)
    await world.history.sent.remember(identity_of(KIM), list(one.blobs), period=world.period)
    assert await world.content.missing(KIM, list(one.blobs)) == []
    world.clock.now += GRACE
    await world.look()
    assert await world.content.missing(KIM, list(one.blobs)) == list(one.blobs)
    assert not await world.content.is_incomplete(KIM, one.root), "it is taken back"
    await world.save("best", one.root)
    await world.collect()
    assert await world.is_whole(one)


@pytest.mark.parametrize("gone", ["root", "file"])
async def test_what_was_found_complete_once_is_looked_at_again(world: World, gone: str) -> None:
    """Whatever is remembered of a manifest, a reference is refused when a part of it is removed."""
    one = tree("a")
    await world.send(one)
    assert not await world.content.is_incomplete(KIM, one.root)
    world.clock.now += FOUND_FOR_S
    lost = one.root if gone == "root" else digest_of(b"a")
    await world.objects.put_aside([lost], lambda: True)
    await world.objects.delete([lost])
    assert await world.content.is_incomplete(KIM, one.root)


async def test_what_is_aside_and_was_sent_again_stays(world: World) -> None:
    one = tree("a")
    await world.send(one)
    world.clock.now += GRACE
    await world.look()
    await world.send(one)
    await world.save("best", one.root)
    await world.collect()
    assert await world.objects.has_missing(one.blobs) == set()
    assert [blob async for blob in world.objects.list_aside()] == []


async def test_a_manifest_that_cannot_be_read_stops_it_all(world: World) -> None:
    one, other = tree("a"), tree("b")
    await world.send(one)
    await world.send(other)
    await world.save("best", other.root)
    await world.objects.put_aside([other.root], lambda: True)
    await world.objects.delete([other.root])
    world.clock.now += 10 * GRACE
    with pytest.raises(ReferencesUnread, match=other.root):
        await world.look()
    assert await world.objects.has_missing(one.blobs) == set()


async def test_a_record_that_cannot_be_read_stops_it_all(world: World) -> None:
    one = tree("a")
    await world.send(one)
    await world.end("s1", "")
    recorded = await world.history.catalogue.session("s1")
    assert recorded is not None
    broken = replace(recorded, record=b"\xff\xff")
    assert await world.history.catalogue.replace_session(broken, known=recorded.record)
    world.clock.now += 10 * GRACE
    with pytest.raises(ReferencesUnread):
        await world.look()
    assert await world.objects.has_missing(one.blobs) == set()


async def test_a_leader_looks_again_and_again_whatever_fails(world: World) -> None:
    one = tree("a")
    await world.send(one)
    failing = Failing(world.objects)
    collector = Collector(
        objects=cast("Any", failing),
        history=world.history,
        state=world.state,
        observed=world.observed,
        may=lambda: True,
        term=lambda: 1,
    )
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        failing.error = lambda _: ObjectsUnavailable("away") if len(slept) == 2 else None
        world.clock.now += GRACE
        if len(slept) == 5:
            raise asyncio.CancelledError

    world.clock.sleep = sleep  # type: ignore[method-assign]
    with capture_logs() as told, contextlib.suppress(asyncio.CancelledError):
        await Collecting(collector=collector, clock=world.clock).run()
    assert slept == [FIRST_AFTER_S, *[LOOK_EVERY_S] * 4]
    assert (collector.removed, collector.removed_bytes) == (2, told[2]["removed_bytes"])
    assert collector.last == Collected()
    events = [line["event"] for line in told]
    assert events == ["content.collected", "content.not_collected", *["content.collected"] * 2]
    assert told[2]["removed"] == 2
    assert told[2]["removed_bytes"] == sum(map(len, one.blobs.values()))
    assert await world.everything() == set()


async def test_without_the_lead_nothing_is_moved(world: World) -> None:
    one = tree("a")
    await world.send(one)
    world.leads = False
    await world.collect()
    assert await world.objects.has_missing(one.blobs) == set()
    world.leads = True
    world.clock.now += GRACE
    await world.look()
    world.leads = False
    world.clock.now += GRACE
    assert (await world.look()).removed == 0
    assert await world.is_whole(one)


async def test_a_session_that_is_exported_during_the_look_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tree("a")
    await world.send(one)
    session = builders.session(id="s1", spec={"bundle_digest": one.root})
    world.live["s1"] = SimpleNamespace(value=session)
    real = world.history.catalogue.referred

    async def referred(after: Any = ()) -> Any:
        page = await real(after)
        if world.live:  # behind the page on which it would have been
            await world.end("s1", one.root)
            world.live.clear()
        return page

    monkeypatch.setattr(world.history.catalogue, "referred", referred)
    world.clock.now += GRACE
    assert (await world.look()).put_aside == 0


async def test_references_are_read_to_the_last_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PAGE_ROWS", "_PAGE_RECORDS", "_PAGE_LOGS"):
        monkeypatch.setattr(referring, name, 2)
    trees = [tree(str(number)) for number in range(20)]
    for number, one in enumerate(trees):
        await world.send(one)
        if number < 10:
            await world.end(f"s{number}", one.root)
        else:
            await world.save(f"c{number}", one.root)
    await world.collect()
    assert all([await world.is_whole(one) for one in trees])


def test_marks_forget_nothing_and_take_the_same_room() -> None:
    marked = [digest_of(b"%d" % number) for number in range(20_000)]
    marks = Marks(bits=20)
    assert marks.add(marked) == len(marked)
    assert all(one in marks for one in marked)
    others = (digest_of(b"no %d" % number) for number in range(20_000))
    assert sum(one in marks for one in others) < 10


class Life:
    """People who push, refer and remove, leaders who look, and a clock: all at the same time, by a seed.

    A reference is written half a grace after its content was found present, at most.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = random.Random(seed)
        self._referred: dict[str, Tree] = {}
        self._since: dict[int, float] = {}
        self.is_over = False
        self.refused = 0

    async def turn(self) -> None:
        for _ in range(self._random.choice((0, 0, 1, 2, 5))):
            await asyncio.sleep(0)

    async def person(self, number: int) -> None:
        mine: list[tuple[str, str]] = []
        for at in range(12):
            names = self._random.sample("abcdef", self._random.randint(1, 3))
            one = tree(*names)
            await self._world.send(one)
            await self.turn()
            if self._random.random() < 0.3:  # who sent it refers to it days later
                await self._wait()
            if self._random.random() < 0.3:
                self._world.content = self._world.new_content()  # another control plane
            self._since[number] = self._world.clock.now
            if await self._world.content.is_incomplete(KIM, one.root):
                self.refused += 1
            else:
                await self.turn()
                mine.append(await self._refer(f"{number}-{at}", one))
            del self._since[number]
            await self._wait()
            while len(mine) > 2:
                await self._drop(*mine.pop(0))
        for kind, name in mine:
            await self._drop(kind, name)

    async def _refer(self, name: str, one: Tree) -> tuple[str, str]:
        kind = self._random.choice(("live", "checkpoint"))
        if kind == "live":
            session = builders.session(id=name, spec={"bundle_digest": one.root})
            self._world.live[name] = SimpleNamespace(value=session)
        else:
            await self._world.save(name, one.root)
        self._referred[name] = one
        return kind, name

    async def _drop(self, kind: str, name: str) -> None:
        assert await self._world.is_whole(self._referred[name]), name
        if kind == "live" and self._random.random() < 0.5:
            await self._world.end(name, self._world.live[name].value.spec.bundle_digest)
            await self.turn()
            del self._world.live[name]
            await self._wait()
            assert await self._world.is_whole(self._referred.pop(name)), name
            await self._world.history.catalogue.delete_session(name)
            return
        del self._referred[name]
        if kind == "live":
            del self._world.live[name]
        else:
            await self._world.history.catalogue.delete_checkpoint("s", name)

    async def _wait(self) -> None:
        for _ in range(self._random.choice((1, 10, 100))):
            await asyncio.sleep(0)

    async def leader(self) -> None:
        while not self.is_over:
            await self._world.look()
            await self.turn()
            for name, one in tuple(self._referred.items()):
                assert await self._world.is_whole(one) or name not in self._referred, name

    async def time(self) -> None:
        clock = self._world.clock
        while not self.is_over:
            step = self._random.choice((1.0, 60.0, GRACE / 7, GRACE))
            latest = min(self._since.values(), default=clock.now) + GRACE / 2
            if not self._since:
                latest = clock.now + step
            clock.now = max(clock.now, min(clock.now + step, latest))
            await self.turn()
            await asyncio.sleep(0)


async def lived(seed: int) -> None:
    """Lives of some people; an exception group with an AssertionError where something is lost, or stays for ever."""
    async with a_world() as world:
        life = Life(world, seed)
        world.objects.turn = life.turn
        async with asyncio.TaskGroup() as group:
            for one in (
                life.leader,
                life.leader,
                life.time,
            ):  # one does not know that it was deposed
                group.create_task(one())
            people = [group.create_task(life.person(number)) for number in range(4)]
            await asyncio.wait(people)
            life.is_over = True
        world.objects.turn = None
        await world.collect()
        assert await world.everything() == set()


@pytest.mark.parametrize("seed", range(examples(24)))
async def test_nothing_that_is_referred_to_is_ever_lost(seed: int) -> None:
    await lived(seed)
