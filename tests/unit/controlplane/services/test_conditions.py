"""What is wrong has a name, is shown while it lasts, and ends by itself; reads go on meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from controlplane.domain.identity import Role
from controlplane.health import probing_loop as probing
from controlplane.history.errors import HistoryFull, HistoryUnavailable
from controlplane.history.sqlite import open_history
from controlplane.objects.errors import ObjectsUnavailable
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import DiskFull, NoSpace, StoreUnavailable
from nsml.client.errors import Unavailable, translate
from nsml.common.clock import SystemClock, inline
from nsml.v1 import agents_pb2, sessions_pb2
from nsml.v1 import nodes_pb2 as pb
from tests.support.failing import Failing, failing_history
from tests.support.memory_objects import MemoryObjects
from tests.unit.controlplane.rig import Rig, Stubs, one_leads, platform, until
from tests.unit.controlplane.services.test_sessions import refused

SHORT_SILENCE = [{"silent_after_s": 1.0}]
SHORT_LEASE = [{"lease_s": 2.0}]
"""Where its leader is lost: nobody leads again before its lease has ended."""

CLOCK = SystemClock()


class Broken:
    """A platform whose parts can be broken."""

    def __init__(self, rig: Rig, store: Failing, history: Failing, objects: Failing) -> None:
        self.rig = rig
        self.store, self.history, self.objects = store, history, objects
        self.root: Stubs

    async def cluster(self, user: Stubs | None = None) -> pb.GetClusterResponse:
        return await (user or self.root).nodes.GetCluster(pb.GetClusterRequest())

    async def names(self) -> list[str]:
        found = (await self.cluster()).conditions
        return [
            pb.ConditionName.Name(one.name).removeprefix("CONDITION_NAME_")
            + (f" {one.subject}" if one.subject else "")
            for one in found
        ]

    async def shows(self, *names: str) -> None:
        async def it_does() -> bool:
            return await self.names() == list(names)

        await until(it_does, f"conditions {names}", timeout_s=60)


@pytest.fixture
async def broken(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Broken]:
    monkeypatch.setattr(probing, "QUIET_S", 0.25)
    monkeypatch.setattr(probing, "AGAIN_S", 0.1)
    async with contextlib.AsyncExitStack() as stack:
        embedded = EmbeddedStore(":memory:", clock=CLOCK, run=inline)
        store = Failing(await stack.enter_async_context(embedded))
        sqlite = await open_history(":memory:", clock=CLOCK, run=inline)
        stack.push_async_callback(sqlite.close)
        history = failing_history(sqlite)
        objects = Failing(MemoryObjects(CLOCK))
        made: Any = {"store": store, "history": history, "objects": objects}
        rig = await stack.enter_async_context(
            platform(character=getattr(request, "param", {}), **made)
        )
        broken = Broken(rig, store, history, objects)
        broken.root = await rig.user("root1", role=Role.ADMIN)
        yield broken


def always(error: Exception) -> Any:
    return lambda _: error


def writes_fail(error: Exception, *names: str) -> Any:
    return lambda name: error if name in names else None


async def test_nothing_is_wrong_with_what_works(broken: Broken) -> None:
    assert await broken.names() == []


@pytest.mark.parametrize("broken", SHORT_LEASE, indirect=True)
async def test_a_store_that_is_gone_is_shown_and_ends(broken: Broken) -> None:
    agent = await (await broken.rig.agent("b")).connect()
    session = await broken.root.submit()
    await agent.assignments(1)
    broken.store.error = always(StoreUnavailable("etcd does not answer"))
    await broken.shows("COORDINATION_GONE")
    shown = await broken.cluster()
    [condition] = shown.conditions
    assert condition.evidence == "etcd does not answer"
    assert condition.meaning
    assert condition.healing
    assert shown.known_at.ToNanoseconds() <= shown.now.ToNanoseconds()
    # Who asks is known, and so is what there was.
    assert (await broken.root.get(session.id)).name == session.name
    nodes = await broken.root.nodes.ListNodes(pb.ListNodesRequest())
    assert [node.name for node in nodes.nodes] == ["b"]
    assert (await refused(broken.root.submit()))[0] == "UNAVAILABLE"
    broken.store.error = None
    await broken.shows()
    await until(lambda: one_leads(broken.rig), "somebody leads again")
    await broken.root.submit()


async def test_what_the_failing_part_said_is_for_administrators(broken: Broken) -> None:
    kim = await broken.rig.user("kim")
    broken.history.error = always(HistoryUnavailable("no", why="/secret/place"))
    await broken.shows("HISTORY_GONE")
    assert (await broken.cluster()).conditions[0].evidence == "/secret/place"
    assert not (await broken.cluster(kim)).conditions[0].evidence


async def test_a_history_that_is_gone_is_shown_and_ends(broken: Broken) -> None:
    session = await broken.root.submit()
    broken.history.error = always(HistoryUnavailable("no"))
    await broken.shows("HISTORY_GONE")
    assert "submissions wait" in (await broken.cluster()).conditions[0].meaning
    assert (await refused(broken.root.submit()))[1] == "HISTORY_UNAVAILABLE"
    # What was taken before is placed, and can be stopped.
    agent = await (await broken.rig.agent("n1")).connect()
    [given] = await agent.assignments(1)
    assert given.replica.session_id == session.id
    await broken.root.sessions.StopSession(sessions_pb2.StopSessionRequest(session=session.id))
    assert await broken.root.state(session.id) == "STOPPING"
    broken.history.error = None
    await broken.shows()


@pytest.mark.parametrize(("part", "write"), [("ledger", "audit"), ("artifacts", "settle")])
async def test_a_read_does_not_end_what_a_write_has_begun(
    broken: Broken, part: str, write: str
) -> None:
    broken.history.error = writes_fail(
        HistoryFull("full"), "put_dataset_version", "audit", "put_session", "probe", "append", write
    )
    gauge = broken.rig.plane.core.health._history_gauge
    with pytest.raises(HistoryFull):
        await getattr(getattr(broken.rig.plane.core.health.history, part), write)([])
    assert await broken.names() == ["DISK_FULL history"]
    await broken.rig.plane.core.health.history.catalogue.session("nobody")
    assert gauge.fails_writing
    assert await broken.names() == ["DISK_FULL history"]
    broken.history.error = None
    await broken.shows()


async def test_objects_that_are_gone_are_shown_and_end(broken: Broken) -> None:
    broken.objects.error = always(ObjectsUnavailable("no"))
    await broken.shows("OBJECTS_GONE")
    broken.objects.error = None
    await broken.shows()


@pytest.mark.parametrize(
    ("error", "name"),
    [(NoSpace("quota"), "COORDINATION_FULL"), (DiskFull("disk"), "DISK_FULL store")],
)
async def test_a_store_that_is_full_is_shown_and_ends(
    broken: Broken, error: Exception, name: str
) -> None:
    broken.store.error = writes_fail(error, "commit", "grant")
    assert (await refused(broken.root.submit()))[0] == "UNAVAILABLE"
    await broken.shows(name)
    broken.store.error = None
    await broken.shows()


async def test_without_the_history_what_lives_is_listed_and_the_rest_refused_by_name(
    broken: Broken,
) -> None:
    agent = await (await broken.rig.agent("n1")).connect()
    ended, live = await broken.root.submit(), await broken.root.submit()
    [first, _] = await agent.assignments(2)
    await agent.report(first.replica, "RUNNING")
    await agent.report(first.replica, "FINALIZED", cause="COMPLETED")
    ended_id = first.replica.session_id

    async def is_exported() -> bool:
        return ended_id not in broken.rig.plane.core.state.sessions

    await until(is_exported, "what ended has left the store")
    broken.history.error = always(HistoryUnavailable("no", why="a secret place"))
    everything = sessions_pb2.ListSessionsRequest(
        filter=sessions_pb2.SessionFilter(include_ended=True)
    )
    page = await broken.root.sessions.ListSessions(everything)
    assert page.ended_missing
    assert [one.id for one in page.sessions] == [{ended.id, live.id}.difference({ended_id}).pop()]
    assert (await broken.root.get(page.sessions[0].id)).name == page.sessions[0].name
    code, reason, details = await refused(broken.root.get(ended_id))
    assert (code, reason) == ("UNAVAILABLE", "HISTORY_UNAVAILABLE")
    assert "secret" not in str(details)
    broken.history.error = None
    assert not (await broken.root.sessions.ListSessions(everything)).ended_missing
    assert (await broken.root.get(ended_id)).id == ended_id


@pytest.mark.parametrize(
    ("part", "error", "words"),
    [
        ("store", StoreUnavailable("x"), "the platform's store does not answer"),
        ("history", HistoryUnavailable("x"), "the platform's history does not answer"),
    ],
)
async def test_a_submission_that_cannot_be_taken_says_when_to_come_again(
    broken: Broken, part: str, error: Exception, words: str
) -> None:
    getattr(broken, part).error = always(error)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await broken.root.submit()
    told = translate(caught.value)
    assert isinstance(told, Unavailable)
    assert (told.message, told.retry_after_s) == (words, 2.0)


@pytest.mark.parametrize("broken", SHORT_SILENCE, indirect=True)
async def test_silent_nodes_are_named(broken: Broken) -> None:
    agent = await (await broken.rig.agent("n1")).connect()
    await agent.close()
    await broken.shows("NODES_SILENT n1")

    agent = await (await broken.rig.agent("n1")).connect()

    async def heard() -> bool:
        nonlocal agent
        if agent.error is not None:  # silent again before it was looked at
            agent = await (await broken.rig.agent("n1")).connect()
        return await broken.names() == []

    await until(heard, "the node is heard")


async def test_the_disk_of_a_node_is_shown_as_its_agent_tells_it(broken: Broken) -> None:
    agent = await (await broken.rig.agent("n1")).connect()
    stream = agent.stubs.agents._stub.Ingest(metadata=agent.stubs.metadata)
    for number, note in enumerate(["1.0 GiB of 100.0 GiB are free", ""], start=1):
        sample = agents_pb2.NodeSample(sequence=number, boot_id="boot1", disk_note=note)
        sample.at.GetCurrentTime()
        await stream.write(agents_pb2.IngestRequest(sample=sample))
        await broken.shows(*(["DISK_FULL node n1"] if note else []))
        nodes = (await broken.root.nodes.ListNodes(pb.ListNodesRequest())).nodes
        assert [node.disk_note for node in nodes] == [note]
    stream.cancel()


async def test_sessions_state_is_known_without_the_store(broken: Broken) -> None:
    session = await broken.root.submit()
    broken.store.error = always(StoreUnavailable("gone"))
    await broken.shows("COORDINATION_GONE")
    found = await broken.root.sessions.ListSessions(sessions_pb2.ListSessionsRequest())
    assert [one.id for one in found.sessions] == [session.id]
