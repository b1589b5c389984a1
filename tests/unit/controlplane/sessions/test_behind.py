"""A control plane that has not heard yet what another one has written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from controlplane.core.compare_and_swap import SessionWriter
from controlplane.domain.errors import NotFound, Unavailable
from controlplane.domain.identity import NodeCaller, User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    Cause,
    EndedAttempt,
    Replica,
    Session,
    SessionSpec,
    Visibility,
)
from controlplane.history.sqlite import SqliteHistory, open_history
from controlplane.history.values import Channel, Chunk, LogPage, SessionRecord, StreamKey
from controlplane.records.ingest import Ingestor
from controlplane.records.logs import Logs
from controlplane.sessions import readers as following
from controlplane.sessions.export import row_of
from controlplane.sessions.readers import LogPosition, Readers, SessionWatch
from controlplane.sessions.remove import Remover
from controlplane.sessions.session_listing import Filter
from controlplane.sessions.update import Updater
from controlplane.state.live_state import LiveState
from controlplane.state.references import References
from controlplane.state.replica_rights import Rights
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import Put, Transaction
from controlplane.stored import etcd_codec
from nsml.common.clock import SystemClock, inline
from tests.support.memory_objects import MemoryObjects

KIM = UserCaller(user=User(name="kim"))
SESSION = Session(
    id="s" + "a" * 16,
    name="kim/None/1",
    owner="kim",
    spec=SessionSpec(argv=("true",)),
    created_at=1.0,
    request_id="r1",
    state=SessionState.RUNNING,
    attempt=1,
    replicas=(Replica(rank=0, node="n1"),),
)
ENDED = replace(SESSION, state=SessionState.SUCCEEDED)
LOG = StreamKey(SESSION.id, 1, 0, Channel.LOG, 0)


@dataclass
class Behind:
    """Parts of a control plane whose watch has told it nothing."""

    store: EmbeddedStore
    history: SqliteHistory
    state: LiveState

    async def write(self, session: Session) -> int:
        """As another control plane does."""
        puts = (
            Put(key=etcd_codec.session_key(session.id), value=etcd_codec.encode_session(session)),
            Put(key=etcd_codec.name_key(session.name), value=etcd_codec.encode_pointer(session.id)),
        )
        return (await self.store.commit(Transaction(success=puts))).revision

    @property
    def references(self) -> References:
        return References(state=self.state, history=self.history)

    async def ingest(self, chunk: Chunk) -> None:
        rights = Rights(references=self.references, state=self.state)
        ingestor = Ingestor(history=self.history, rights=rights)
        await ingestor.ingest(NodeCaller(node="n1"), [chunk], None)

    @property
    def updater(self) -> Updater:
        writer = SessionWriter(store=self.store, state=self.state)
        return Updater(writer=writer, references=self.references, history=self.history)

    def watch(self) -> SessionWatch:
        return SessionWatch(state=self.state, clock=SystemClock(), caller=KIM, wanted=Filter())


@contextlib.asynccontextmanager
async def behind() -> AsyncIterator[Behind]:
    clock = SystemClock()
    async with EmbeddedStore(":memory:", clock=clock, run=inline) as store:
        history = await open_history(":memory:", clock=clock, run=inline)
        yield Behind(store, history, LiveState(store, clock))
        await history.close()


def followers_of(plane: Behind) -> Readers:
    objects = MemoryObjects(SystemClock())
    logs = Logs(history=plane.history, objects=objects, run=inline)
    return Readers(state=plane.state, history=plane.history, logs=logs)


CHUNK = Chunk(stream=LOG, first=0, last=4, data=b"hello")


async def test_records_of_an_attempt_that_is_not_known_yet_are_kept() -> None:
    async with behind() as plane:
        await plane.write(SESSION)
        await plane.ingest(CHUNK)
        assert (await plane.history.streams.read_log(SESSION.id)).data == b"hello"


async def test_records_are_kept_when_an_older_state_of_the_session_is_known() -> None:
    async with behind() as plane:
        queued = replace(SESSION, state=SessionState.QUEUED, attempt=0, replicas=())
        plane.state.put_session(queued, await plane.write(queued))
        await plane.write(SESSION)
        await plane.ingest(CHUNK)
        assert (await plane.history.streams.read_log(SESSION.id)).data == b"hello"


async def test_records_are_kept_when_the_session_was_exported_meanwhile() -> None:
    async with behind() as plane:
        queued = replace(SESSION, state=SessionState.QUEUED, attempt=0, replicas=())
        plane.state.put_session(queued, 2)
        ended = EndedAttempt(
            number=1,
            cause=Cause.COMPLETED,
            placed_at=1.0,
            ended_at=2.0,
            gpu_thousandths=0,
            held_s=1.0,
            nodes=("n1",),
        )
        done = replace(SESSION, state=SessionState.SUCCEEDED, ended_at=2.0, attempts=(ended,))
        await plane.history.catalogue.put_session(row_of(done), term=1)
        await plane.ingest(CHUNK)
        assert (await plane.history.streams.read_log(SESSION.id)).data == b"hello"


async def test_records_of_another_nodes_replica_are_still_dropped() -> None:
    async with behind() as plane:
        await plane.write(replace(SESSION, replicas=(Replica(rank=0, node="n2"),)))
        await plane.ingest(CHUNK)
        assert (await plane.history.streams.read_log(SESSION.id)).data == b""


@pytest.mark.parametrize("reference", [SESSION.id, SESSION.name])
async def test_what_another_one_has_answered_is_found(reference: str) -> None:
    async with behind() as plane:
        await plane.write(SESSION)
        assert await plane.references.find(KIM, reference) == SESSION
        with pytest.raises(NotFound):
            await plane.references.find(KIM, "kim/None/2")


async def test_a_watcher_who_knows_more_is_told_nothing_older(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "CATCH_UP_S", 0.05)
    async with behind() as plane:
        known = await plane.write(SESSION)
        with pytest.raises(Unavailable):
            await anext(plane.watch().steps(known))


async def test_a_watcher_who_knows_more_waits_until_we_know_it_too() -> None:
    async with behind() as plane:
        known = await plane.write(SESSION)
        first = asyncio.ensure_future(anext(plane.watch().steps(known - 1)))
        follow = asyncio.create_task(plane.state.follow())
        assert (await first).revision >= known - 1
        follow.cancel()


async def test_a_watcher_from_a_store_that_was_replaced_begins_anew() -> None:
    async with behind() as plane:
        plane.state.put_session(SESSION, await plane.write(SESSION))
        step = await anext(plane.watch().steps(1_000_000))
        assert step.is_reset
        assert step.changed == (SESSION,)


async def test_a_watcher_from_before_we_began_is_told_everything() -> None:
    async with behind() as plane:
        old = await plane.write(SESSION)
        await plane.write(replace(SESSION, id="s" + "b" * 16, name="kim/None/2"))
        follow = asyncio.create_task(plane.state.follow())
        await plane.state.reached(old + 1)
        step = await anext(plane.watch().steps(old))
        follow.cancel()
        # What left before we began is known to nobody here: only a reset can tell of it.
        assert step.is_reset
        assert len(step.changed) == 2


async def test_what_is_stored_while_a_session_ends_is_followed_to_its_end() -> None:
    async with behind() as plane:
        plane.state.put_session(SESSION, await plane.write(SESSION))
        await plane.history.streams.append([CHUNK])
        read = plane.history.streams.read_log
        last = [Chunk(stream=LOG, first=5, last=9, data=b" last")]

        async def read_and_end(*given: Any, **named: Any) -> LogPage:
            page = await read(*given, **named)
            if last and page.next == page.end:
                await plane.history.streams.append([last.pop()])
                plane.state.put_session(ENDED, await plane.write(ENDED))
            return page

        plane.history.streams.read_log = read_and_end  # type: ignore[method-assign]
        followers = followers_of(plane)
        async with asyncio.timeout(60):
            pages = [
                page async for page in followers.log("kim", SESSION.id, LogPosition(), follow=True)
            ]
        assert b"".join(page.data for page in pages) == b"hello last"


async def test_a_session_that_ended_just_now_is_removed_once_it_is_recorded() -> None:
    async with behind() as plane:
        plane.state.put_session(ENDED, 5)
        remover = Remover(state=plane.state, history=plane.history)
        removing = asyncio.create_task(remover.remove(ENDED))
        await asyncio.sleep(0)
        assert plane.state.subscriptions.has(etcd_codec.session_key(ENDED.id)), (
            "of no other is it told"
        )
        await plane.history.catalogue.put_session(row_of(ENDED), term=1)
        plane.state.put_session(replace(ENDED, memo="of the last moment"), 6)
        plane.state.delete(etcd_codec.session_key(ENDED.id), 7)
        await asyncio.wait_for(removing, 60)
        assert await plane.history.catalogue.session(ENDED.id) is None


def after_reading(plane: Behind, change: Callable[[], Awaitable[object]]) -> None:
    """Let the first reader of an ended session be overtaken by a change of it."""
    read, changes = plane.history.catalogue.session, [change]

    async def overtaken(session_id: str) -> SessionRecord | None:
        row = await read(session_id)
        if row is not None and changes:
            await changes.pop()()
        return row

    plane.history.catalogue.session = overtaken  # type: ignore[method-assign]


async def test_two_changes_of_an_ended_session_at_once_are_both_made() -> None:
    async with behind() as plane:
        await plane.history.catalogue.put_session(row_of(ENDED), term=1)
        public = partial(plane.updater.update, ENDED, memo=None, visibility=Visibility.PUBLIC)
        after_reading(plane, public)
        updated = await plane.updater.update(ENDED, memo="best", visibility=None)
        assert updated == replace(ENDED, memo="best", visibility=Visibility.PUBLIC)
        row = await plane.history.catalogue.session(ENDED.id)
        assert row == row_of(updated)


async def test_a_change_does_not_bring_back_what_was_removed_meanwhile() -> None:
    async with behind() as plane:
        catalogue = plane.history.catalogue
        await catalogue.put_session(row_of(ENDED), term=1)
        after_reading(plane, partial(catalogue.delete_session, ENDED.id))
        with pytest.raises(NotFound):
            await plane.updater.update(ENDED, memo="best", visibility=None)
        assert await catalogue.session(ENDED.id) is None


async def test_a_live_session_that_is_not_known_here_yet_is_changed_where_it_lives() -> None:
    async with behind() as plane:
        await plane.write(SESSION)
        updated = await plane.updater.update(SESSION, memo="best", visibility=None)
        assert await plane.state.renewed(SESSION.id) == updated == replace(SESSION, memo="best")
        assert await plane.history.catalogue.session(SESSION.id) is None


async def test_a_slow_reader_of_a_log_is_shown_every_attempt() -> None:
    async with behind() as plane:
        plane.state.put_session(SESSION, await plane.write(SESSION))
        await plane.history.streams.append([log_chunk(1, b"one")])
        followers = followers_of(plane)
        pages = followers.log("kim", SESSION.id, LogPosition(), follow=True)
        read = [(await anext(pages)).data]
        await plane.history.streams.append([log_chunk(2, b"two"), log_chunk(3, b"three")])
        ended = replace(SESSION, attempt=3, state=SessionState.SUCCEEDED)
        plane.state.put_session(ended, await plane.write(ended))
        async with asyncio.timeout(60):
            read += [page.data async for page in pages]
        assert read == [b"one", b"two", b"three"]


def log_chunk(attempt: int, data: bytes) -> Chunk:
    return Chunk(stream=LOG._replace(attempt=attempt), first=0, last=len(data) - 1, data=data)


@pytest.mark.parametrize("what", ["read_log", "read_metrics"])
async def test_what_comes_with_the_end_behind_a_look_reaches_followers(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session may end right after its streams were read: what it left then is read too."""
    channel = Channel.LOG if what == "read_log" else Channel.METRIC
    stream = LOG._replace(channel=channel)
    last = (
        Chunk(stream=stream, first=0, last=4, data=b"hello")
        if channel is Channel.LOG
        else Chunk(stream=stream, first=1, last=1, records=(b'{"kind":"metric","values":{"a":1}}',))
    )
    async with behind() as plane:
        plane.state.put_session(SESSION, await plane.write(SESSION))
        sound = getattr(plane.history.streams, what)
        looks = 0

        async def read(*arguments: Any, **named: Any) -> Any:
            nonlocal looks
            looks += 1
            page = await sound(*arguments, **named)
            if looks == 1:
                await plane.history.streams.append([last])
                plane.state.put_session(ENDED, await plane.write(ENDED))
            return page

        monkeypatch.setattr(plane.history.streams, what, read)
        followers = followers_of(plane)
        if channel is Channel.LOG:
            pages: Any = followers.log("kim", SESSION.id, LogPosition(), follow=True)
        else:
            pages = followers.metrics("kim", SESSION.id, names=(), after=0, follow=True)
        async with asyncio.timeout(60):
            assert len([page async for page in pages]) == 1


@pytest.mark.parametrize("read", ["log", "metrics"])
async def test_who_reads_what_is_being_removed_is_not_told_that_this_was_all(read: str) -> None:
    """A follower that comes back may find the session, and then nothing of what it left."""
    async with behind() as plane:
        await plane.history.streams.append([CHUNK])
        await plane.history.catalogue.put_session(row_of(ENDED), term=1)
        await plane.history.catalogue.delete_session(ENDED.id)
        plane.state.put_session(ENDED, 5)
        followers = followers_of(plane)
        if read == "log":
            pages: Any = followers.log("kim", ENDED.id, LogPosition(attempt=1), follow=True)
        else:
            pages = followers.metrics("kim", ENDED.id, names=(), after=0, follow=True)
        with pytest.raises(NotFound, match="was removed"):
            await anext(pages)


async def test_what_an_ended_session_left_is_read_before_it_is_recorded() -> None:
    async with behind() as plane:
        await plane.history.streams.append([CHUNK])
        plane.state.put_session(ENDED, await plane.write(ENDED))
        followers = followers_of(plane)
        pages = [page async for page in followers.log("kim", ENDED.id, LogPosition(), follow=True)]
        assert [page.data for page in pages] == [b"hello"]
