"""Sessions of backups through real gRPC: nothing in a backup is believed, and one that breaks off leaves nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from controlplane.backups import session_service
from controlplane.backups.session_restore import LEFT_AFTER_S, MOST_RESTORING_EACH, Restorer
from controlplane.content import content
from controlplane.history.values import Channel, Chunk, StreamKey
from nsml.v1 import (
    artifacts_pb2,
    checkpoints_pb2,
    datasets_pb2,
    media_pb2,
    resources_pb2,
    sessions_pb2,
)
from nsml.v1 import session_backups_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_content import push, read, send, tree
from tests.unit.controlplane.services.test_sessions import refused

CODE, CODE_BLOBS = tree(**{"main.py": b"print(1)"})
MODEL, MODEL_BLOBS = tree(weights=b"1 2 3")
SECRET, SECRET_BLOBS = tree(labels=b"kim's alone")
ELSEWHERE = "c1"


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def session(**given: Any) -> sessions_pb2.Session:
    """As a platform gave it."""
    made = sessions_pb2.Session(
        id="sold",
        name="lee/mnist/7",
        owner="lee",
        state=sessions_pb2.SESSION_STATE_FAILED,
        attempt=1,
        memo="the old one",
        end=sessions_pb2.SessionEnd(cause=sessions_pb2.CAUSE_PROGRAM_FAILED, exit_code=3),
        replicas=[
            sessions_pb2.Replica(
                node="gpu-1",
                devices=[resources_pb2.Device(uuid="G", driver_version="535", cuda_version="12.2")],
                python_version="3.11.9",
            )
        ],
        attempts=[
            sessions_pb2.EndedAttempt(
                number=1,
                cause=sessions_pb2.CAUSE_PROGRAM_FAILED,
                nodes=["gpu-1"],
                python_versions=["3.11.9"],
            )
        ],
    )
    made.spec.CopyFrom(
        sessions_pb2.SessionSpec(
            entry="main.py",
            args=["--lr", "1"],
            bundle_digest=CODE.digest,
            resources=resources_pb2.Resources(gpu_thousandths=1000),
            replica_count=1,
        )
    )
    made.created_at.FromSeconds(1_000_000_000)
    made.ended_at.FromSeconds(1_000_000_100)
    made.MergeFrom(sessions_pb2.Session(**given))
    return made


def first(whole: sessions_pb2.Session, **given: Any) -> pb.RestoreSessionRequest:
    given.setdefault("platform", ELSEWHERE)
    return pb.RestoreSessionRequest(session=pb.RestoredSession(session=whole, **given))


def part(**given: Any) -> pb.RestoreSessionRequest:
    given.setdefault("attempt", 1)
    return pb.RestoreSessionRequest(part=pb.StreamPart(**given))


def checkpoint(**given: Any) -> pb.RestoreSessionRequest:
    made = checkpoints_pb2.Checkpoint(name="best", digest=MODEL.digest, attempt=1)
    made.MergeFrom(checkpoints_pb2.Checkpoint(**given))
    return pb.RestoreSessionRequest(checkpoint=made)


WHOLE = pb.RestoreSessionRequest(is_whole=True)


async def restore(who: Stubs, *requests: pb.RestoreSessionRequest) -> pb.RestoreSessionResponse:
    async def sent() -> AsyncIterator[pb.RestoreSessionRequest]:
        for one in (*requests, WHOLE):
            yield one

    return await who.session_backups.RestoreSession(sent())


async def rows(rig: Rig) -> dict[str, int]:
    """What the history has of sessions, table by table."""
    tables = (
        "streams",
        "checkpoints",
        "artifacts",
        "media",
        "session_locks",
        "session_restores",
        "reported_config",
    )

    def work(connection: Any) -> dict[str, int]:
        counts = {name: f"SELECT count(*) FROM {name}" for name in tables}
        return {name: connection.execute(text).fetchone()[0] for name, text in counts.items()}

    found = await rig.on.history._database.read(work)
    return {name: count for name, count in found.items() if count}


async def test_one_is_restored_with_all_that_belongs_to_it(rig: Rig) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS | MODEL_BLOBS)
    artifact = artifacts_pb2.Artifact(name="report", version=3, digest=MODEL.digest, attempt=1)
    report = b'{"kind":"metric","time":5,"step":1,"values":{"loss":0.5},"summary":true}'
    log = pb.StreamPart(attempt=1, is_log=True, first=0, last=4, data=b"hello")
    log.received_at.FromSeconds(1_000_000_050)
    answer = await restore(
        kim,
        first(session()),
        checkpoint(tags=["gold"]),
        pb.RestoreSessionRequest(checkpoint=checkpoints_pb2.Checkpoint(name="gone", attempt=1)),
        pb.RestoreSessionRequest(artifact=artifact),
        part(first=1, last=1, records=[report]),
        part(first=2, last=9, is_lost=True),
        pb.RestoreSessionRequest(part=log),
    )
    made = answer.session
    assert (made.name, made.owner, answer.was_there) == ("kim/mnist/1", "kim", False)
    assert (made.imported.platform, made.imported.name, made.imported.owner) == (
        ELSEWHERE,
        "lee/mnist/7",
        "lee",
    )
    assert (made.state, made.end.exit_code) == (sessions_pb2.SESSION_STATE_FAILED, 3)
    assert (made.memo, made.summary["loss"]) == ("the old one", 0.5)
    assert made.created_at.seconds == 1_000_000_000
    # It leaves the store for the catalogue as others do, and is there twice never.
    state = rig.plane.core.state

    async def has_left() -> bool:
        return state.session(made.id) is None

    await until(has_left, "it is in the catalogue")
    again = await restore(kim, first(session()))
    assert (again.was_there, again.session.id) == (True, made.id)
    assert (await kim.get(made.id)).imported.name == "lee/mnist/7"
    listing = checkpoints_pb2.ListCheckpointsRequest(session=made.id)
    found = (await kim.checkpoints.ListCheckpoints(listing)).checkpoints
    assert {(one.name, one.state, tuple(one.tags)) for one in found} == {
        ("best", checkpoints_pb2.CHECKPOINT_STATE_DURABLE, ("gold",)),
        ("gone", checkpoints_pb2.CHECKPOINT_STATE_LOST, ()),
    }
    artifacts = artifacts_pb2.ListArtifactsRequest(session=made.id)
    [kept] = (await kim.artifacts.ListArtifacts(artifacts)).artifacts
    assert (kept.version, kept.size_bytes) == (3, 5)
    request = pb.ReadSessionStreamsRequest(session=made.id)
    parts = [one.part async for one in kim.session_backups.ReadSessionStreams(request)]
    assert [(one.is_log, one.first, one.last, one.is_lost) for one in parts] == [
        (False, 1, 1, False),
        (False, 2, 9, True),
        (True, 0, 4, False),
    ]
    assert parts[0].records == [report]
    assert parts[2].received_at.seconds == 1_000_000_050
    assert (await rows(rig)).get("session_restores", 0) == 0


async def test_its_number_stays_where_it_was_never_given(rig: Rig) -> None:
    lee = await rig.user("lee")
    await send(lee, CODE_BLOBS)
    names = []
    for number, name in ((7, "lee/mnist/7"), (5, "lee/mnist/5"), (9, "lee/mnist/9")):
        answer = await restore(lee, first(session(id=f"s{number}", name=name)))
        names.append(answer.session.name)
    assert names == ["lee/mnist/7", "lee/mnist/8", "lee/mnist/9"]


async def test_content_that_was_not_sent_cannot_be_had_by_its_digest(rig: Rig) -> None:
    kim, eve = await rig.user("kim"), await rig.user("eve")
    await send(kim, SECRET_BLOBS)
    dataset = await push(kim, "labels", SECRET)
    await send(eve, CODE_BLOBS)
    stolen = session()
    stolen.spec.bundle_digest = SECRET.digest
    media = media_pb2.Media(name="a", kind="text", file=f"{'0' * 64}-1-1-0", root=SECRET.digest)
    artifact = artifacts_pb2.Artifact(name="a", version=1, digest=SECRET.digest)
    for requests in (
        [first(stolen)],
        [first(session()), checkpoint(digest=SECRET.digest)],
        [first(session()), pb.RestoreSessionRequest(artifact=artifact)],
        [first(session()), pb.RestoreSessionRequest(media=media)],
    ):
        code, reason, _ = await refused(restore(eve, *requests))
        assert (code, reason) == ("FAILED_PRECONDITION", "MISSING_BLOBS")
        assert await rows(rig) == {}
    claims = session()
    claims.spec.datasets.add(name="kim/labels", version=dataset.version, digest=SECRET.digest)
    made = (await restore(eve, first(claims))).session
    assert [(one.name, one.digest) for one in made.spec.datasets] == [("kim/labels", "")]
    await eve.get(made.id)
    with pytest.raises(grpc.aio.AioRpcError):
        await read(eve, SECRET.digest)
    # Who may read it has the very version.
    await send(kim, CODE_BLOBS)
    made = (await restore(kim, first(claims))).session
    assert [(one.name, one.digest) for one in made.spec.datasets] == [("labels", SECRET.digest)]


async def test_what_it_began_with_is_restored_and_a_fork_begins_with_it_again(rig: Rig) -> None:
    kim, eve = await rig.user("kim"), await rig.user("eve")
    await send(kim, CODE_BLOBS | MODEL_BLOBS)
    began = sessions_pb2.InitialCheckpoint(
        session="s0", name="best", digest=MODEL.digest, session_name="lee/mnist/6"
    )
    forked = session(id="sforked")
    forked.spec.initial_checkpoint.CopyFrom(began)
    made = (await restore(kim, first(forked))).session
    initial = made.spec.initial_checkpoint
    assert (initial.session, initial.session_name) == (made.id, "lee/mnist/6")
    assert (initial.name, initial.digest) == ("best", MODEL.digest)
    request = sessions_pb2.CreateSessionRequest(request_id="fork-1", spec=made.spec)
    request.spec.bundle_digest = CODE.digest
    request.origin.CopyFrom(
        sessions_pb2.Origin(kind=sessions_pb2.ORIGIN_KIND_FORK, session=made.id)
    )
    fork = (await kim.sessions.CreateSession(request)).session
    assert fork.spec.initial_checkpoint == initial
    listing = checkpoints_pb2.ListCheckpointsRequest(session=fork.id)
    found = (await kim.checkpoints.ListCheckpoints(listing)).checkpoints
    assert [(one.name, one.digest) for one in found] == [("best", MODEL.digest)]
    # A digest gives no right to content: who has not sent it has its name, and is told so.
    await send(eve, CODE_BLOBS)
    made = (await restore(eve, first(forked))).session
    assert (made.spec.initial_checkpoint.name, made.spec.initial_checkpoint.digest) == ("best", "")
    request.spec.initial_checkpoint.CopyFrom(made.spec.initial_checkpoint)
    request.origin.session = made.id
    _, reason, told = await refused(eve.sessions.CreateSession(request))
    assert (reason, told["why"]) == ("STATE_CONFLICT", "it is 'best' of lee/mnist/6")
    # What it saved under that name itself is meant, if that was restored.
    own, blobs = tree(weights=b"of its own")
    await send(eve, blobs)
    forked.id, forked.name = "sother", "kim/mnist/8"
    made = (await restore(eve, first(forked), checkpoint(digest=own.digest))).session
    assert made.spec.initial_checkpoint.digest == ""
    request.request_id = "fork-2"
    request.spec.initial_checkpoint.CopyFrom(
        sessions_pb2.InitialCheckpoint(session=made.id, name="best")
    )
    request.origin.session = made.id
    fork = (await eve.sessions.CreateSession(request)).session
    assert fork.spec.initial_checkpoint.digest == own.digest


async def test_nodes_and_clocks_of_elsewhere_mean_nothing_here(rig: Rig) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS)
    late = session()
    for field in (late.created_at, late.ended_at, late.attempts[0].ended_at):
        field.FromSeconds(8_000_000_000)
    made = (await restore(kim, first(late))).session
    assert made.ended_at.seconds <= time.time()
    stored = rig.plane.core.state.session(made.id)
    if stored is None:
        stored = await rig.plane.core.references.by_id(made.id)
    assert stored is not None
    assert [one.node for one in stored.replicas] == ["gpu-1 (elsewhere)"]
    assert [(one.nodes, one.gpu_thousandths) for one in stored.attempts] == [((), 0)]
    [replica], [attempt] = stored.replicas, stored.attempts
    assert (replica.devices[0].driver_version, replica.devices[0].cuda_version) == ("535", "12.2")
    assert (replica.python_version, attempt.python_versions) == ("3.11.9", ("3.11.9",))


@pytest.mark.parametrize(
    "wrong",
    [
        [part(first=1, last=1, records=[b"{}"])],
        [first(session(state=sessions_pb2.SESSION_STATE_RUNNING))],
        [first(session(spec=sessions_pb2.SessionSpec(entry="../x")))],
        [first(session(memo="\0"))],
        [first(session()), first(session())],
        [first(session()), part(first=0, last=0, records=[b"{}"])],
        [first(session()), part(first=1, last=1 << 54, is_lost=True)],
        [first(session()), part(first=1, last=1, attempt=1, is_log=True, data=b"ab")],
        [first(session()), checkpoint(name="x" * 5_000)],
        [first(session(), environment_lock="no lock")],
    ],
    ids=lambda one: "",
)
async def test_what_cannot_be_a_session_leaves_nothing(
    rig: Rig, wrong: list[pb.RestoreSessionRequest]
) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS | MODEL_BLOBS)
    code, _, _ = await refused(restore(kim, *wrong))
    assert code in {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
    assert await rows(rig) == {}
    assert rig.plane.core.state.sessions == {}


async def test_one_that_breaks_off_leaves_nothing(rig: Rig) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS | MODEL_BLOBS)
    going_on = asyncio.Event()

    async def sent() -> AsyncIterator[pb.RestoreSessionRequest]:
        yield first(session())
        yield checkpoint()
        await going_on.wait()

    call = kim.session_backups.RestoreSession(sent())

    async def has_begun() -> bool:
        return "checkpoints" in await rows(rig)

    await until(has_begun, "a part of it is written")
    call.cancel()

    async def is_gone() -> bool:
        return await rows(rig) == {}

    await until(is_gone, "nothing of it is left")


async def test_what_a_killed_control_plane_left_is_removed_later(rig: Rig) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS)
    made = (await restore(kim, first(session()))).session
    history = rig.on.history
    long_ago = rig.plane.core.clock.time() - LEFT_AFTER_S - 1
    for one in (made.id, "sbroken"):
        await history.restores.begin(one, long_ago)
        log = StreamKey(one, 1, 0, Channel.LOG)
        await history.streams.append_as_of(
            [(Chunk(stream=log, first=0, last=0, data=b"x"), long_ago)]
        )
    loops = [loop for feature in rig.plane.features for loop in feature.leader_loops]
    [restorer] = [one.__self__ for one in loops if isinstance(one.__self__, Restorer)]
    assert await restorer.sweep() == 2
    assert (await rows(rig))["streams"] == 1
    assert await history.restores.begun_before(rig.plane.core.clock.time()) == ()
    assert (await kim.get(made.id)).id == made.id


async def test_only_who_sees_a_session_reads_its_streams(rig: Rig) -> None:
    kim, eve = await rig.user("kim"), await rig.user("eve")
    await send(kim, CODE_BLOBS)
    made = (await restore(kim, first(session()))).session
    request = pb.ReadSessionStreamsRequest(session=made.id)

    async def read_all(who: Stubs) -> list[pb.ReadSessionStreamsResponse]:
        return [one async for one in who.session_backups.ReadSessionStreams(request)]

    assert await read_all(kim) == []
    assert (await refused(read_all(eve)))[0] == "NOT_FOUND"
    live = await kim.submit()
    request.session = live.id
    assert (await refused(read_all(kim)))[0] == "FAILED_PRECONDITION"


class Slow:
    """A restore of which the rest is sent once `goes_on` is set."""

    def __init__(self, who: Stubs, whole: sessions_pb2.Session) -> None:
        self.goes_on = asyncio.Event()
        self._first = first(whole)
        self.call = who.session_backups.RestoreSession(self._sent())

    async def _sent(self) -> AsyncIterator[pb.RestoreSessionRequest]:
        yield self._first
        yield checkpoint()
        await self.goes_on.wait()
        yield WHOLE


async def begun(rig: Rig, count: int = 1) -> None:
    async def is_so() -> bool:
        return (await rows(rig)).get("checkpoints") == count

    await until(is_so, "a checkpoint of so many is written")


async def test_what_is_collected_while_the_rest_is_sent_is_missing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "FOUND_FOR_S", 0.0)
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS | MODEL_BLOBS)
    slow = Slow(kim, session())
    await begun(rig)
    objects = rig.on.objects
    assert await objects.delete(await objects.put_aside(list(CODE_BLOBS), lambda: True))
    slow.goes_on.set()
    code, reason, _ = await refused(slow.call)
    assert (code, reason) == ("FAILED_PRECONDITION", "MISSING_BLOBS")
    assert await rows(rig) == {}
    assert rig.plane.core.state.sessions == {}


async def test_a_dataset_that_is_removed_while_the_rest_is_sent_is_not_referred_to(
    rig: Rig,
) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS | MODEL_BLOBS | SECRET_BLOBS)
    dataset = await push(kim, "labels", SECRET)
    whole = session()
    whole.spec.datasets.add(name="kim/labels", version=dataset.version, digest=SECRET.digest)
    slow = Slow(kim, whole)
    await begun(rig)
    await kim.datasets.RemoveDataset(datasets_pb2.RemoveDatasetRequest(name="labels"))
    slow.goes_on.set()
    made = (await slow.call).session
    assert [(one.name, one.digest) for one in made.spec.datasets] == [("labels", "")]


async def test_a_slow_one_breaks_off_and_others_wait_for_their_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS | MODEL_BLOBS)
    several = [Slow(kim, session(id=f"s{one}")) for one in range(MOST_RESTORING_EACH)]
    await begun(rig, len(several))
    monkeypatch.setattr(session_service, "MOST_S", 0.0)
    waiting = Slow(kim, session(id="slow"))
    for one in several:
        one.goes_on.set()
        await one.call
    code, reason, _ = await refused(waiting.call)
    assert (code, reason) == ("RESOURCE_EXHAUSTED", "TOO_LARGE")
    assert (await rows(rig)).get("session_restores", 0) == 0


async def test_one_that_sends_nothing_for_long_breaks_off(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS | MODEL_BLOBS)
    monkeypatch.setattr(session_service, "IDLE_S", 0.5)
    with pytest.raises(grpc.aio.AioRpcError, match="nothing of the restore came for "):
        await Slow(kim, session()).call
    assert await rows(rig) == {}


async def test_a_time_out_within_is_not_taken_for_the_end_of_the_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object) -> None:
        raise TimeoutError

    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS | MODEL_BLOBS)
    monkeypatch.setattr(rig.on.history.catalogue, "put_checkpoint", late)
    code, reason, _ = await refused(restore(kim, first(session()), checkpoint()))
    assert (code, reason) == ("UNAVAILABLE", "UNAVAILABLE")
    assert await rows(rig) == {}


async def test_whether_files_were_kept_by_default_stays_known(rig: Rig) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS)
    kept = session()
    kept.spec.keep_files_by_default = True
    assert (await restore(kim, first(kept))).session.spec.keep_files_by_default
