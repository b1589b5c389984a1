"""Sessions that begin with a checkpoint of another one, and what is recorded of their code, through real gRPC."""

from __future__ import annotations

from typing import Any

import pytest

from nsml.v1 import agents_pb2, checkpoints_pb2, resources_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_rights import save
from tests.unit.controlplane.services.test_sessions import refused

INITIAL_CHECKPOINTS = agents_pb2.AGENT_ABILITY_INITIAL_CHECKPOINTS
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def fork(who: Stubs, of: str, request_id: str, **initial: str) -> pb.Session:
    """Submit one that begins with a checkpoint of `of`, or with what `initial` names."""
    named = {"session": of, **initial}
    spec = pb.SessionSpec(argv=["true"], initial_checkpoint=pb.InitialCheckpoint(**named))
    origin = pb.Origin(kind=pb.ORIGIN_KIND_FORK, session=of)
    request = pb.CreateSessionRequest(request_id=request_id, spec=spec, origin=origin)
    return (await who.sessions.CreateSession(request)).session


async def checkpoints(who: Stubs, session: str) -> list[checkpoints_pb2.Checkpoint]:
    request = checkpoints_pb2.ListCheckpointsRequest(session=session)
    return list((await who.checkpoints.ListCheckpoints(request)).checkpoints)


async def begins_with(agent: Agent, session: str) -> checkpoints_pb2.Checkpoint:
    """What its node is answered that asks from what the attempt goes on."""
    request = checkpoints_pb2.GetCheckpointRequest(session=session, for_session=session)
    return (await agent.stubs.checkpoints.GetCheckpoint(request)).checkpoint


async def saved(rig: Rig, kim: Stubs, **fields: Any) -> tuple[Agent, pb.Session, str]:
    agent = await (await rig.agent()).connect()
    session = await kim.submit(**fields)
    await agent.assignments(1)
    return agent, session, await save(agent, session.id)


async def test_the_first_attempt_begins_with_the_checkpoint_which_is_the_forks_own(
    rig: Rig,
) -> None:
    kim = await rig.user("kim")
    agent, source, digest = await saved(rig, kim)
    made = await fork(kim, source.name, "fork-1")
    initial = made.spec.initial_checkpoint
    assert (initial.session, initial.session_name) == (source.id, "kim/None/1")
    assert (initial.name, initial.digest) == ("best", digest)
    assert made.origin.kind == pb.ORIGIN_KIND_FORK
    [own] = await checkpoints(kim, made.id)
    assert (own.name, own.digest, own.attempt) == ("best", digest, 0)
    assert own.state == checkpoints_pb2.CHECKPOINT_STATE_DURABLE
    orders = await agent.assignments(2)
    assert digest in {one.spec.initial_checkpoint.digest for one in orders}
    assert (await begins_with(agent, made.id)).digest == digest
    # What the session saves under that name is newer, whatever the clock of its node says.
    newer = await save(agent, made.id)
    [own] = await checkpoints(kim, made.id)
    assert (own.digest, own.attempt) == (newer, 1)
    # All replicas of the attempt begin with the same.
    assert (await begins_with(agent, made.id)).digest == digest


async def test_it_is_among_its_own_though_the_submission_could_not_write_that(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim = await rig.user("kim")
    agent, source, digest = await saved(rig, kim)
    made = await fork(kim, source.id, "fork-1", name="best")
    catalogue = rig.plane.core.history.catalogue
    await catalogue.delete_checkpoint(made.id, "best", owner="kim")
    await agent.assignments(2)
    assert (await begins_with(agent, made.id)).digest == digest
    assert len(await checkpoints(kim, made.id)) == 1


async def test_only_who_sees_the_session_or_a_fork_of_it_may_begin_with_its_checkpoint(
    rig: Rig,
) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    _, source, digest = await saved(rig, kim)
    assert (await refused(fork(lee, source.id, "fork-1", name="best")))[0] == "NOT_FOUND"
    public = resources_pb2.VISIBILITY_PUBLIC
    mine = await kim.submit(visibility=public)
    # The session that it comes from gives no right to the checkpoint of another one.
    stolen = {"session": source.id, "name": "best", "digest": digest}
    assert (await refused(fork(lee, mine.id, "fork-2", **stolen)))[0] == "NOT_FOUND"
    spec = pb.SessionSpec(argv=["true"], initial_checkpoint=pb.InitialCheckpoint(**stolen))
    request = pb.CreateSessionRequest(request_id="fork-3", spec=spec, visibility=public)
    shown = (await kim.sessions.CreateSession(request)).session
    again = await fork(lee, shown.id, "fork-4", **stolen)
    assert again.spec.initial_checkpoint == shown.spec.initial_checkpoint
    assert [one.digest for one in await checkpoints(lee, again.id)] == [digest]


async def test_what_cannot_be_begun_with_is_refused(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, source, digest = await saved(rig, kim)
    empty = await kim.submit()
    assert (await refused(fork(kim, empty.id, "fork-1")))[0] == "NOT_FOUND"
    code, _, told = await refused(fork(kim, source.id, "fork-2", name="other"))
    assert (code, told["why"]) == ("NOT_FOUND", "the newest are best")
    assert (await refused(fork(kim, source.id, "fork-3", name="best", digest="x")))[0] == (
        "INVALID_ARGUMENT"
    )
    assert (await refused(fork(kim, source.id, "fork-4", name="a" * 600)))[0] == "INVALID_ARGUMENT"
    loss = checkpoints_pb2.CommitCheckpointRequest(
        session_id=source.id, attempt=1, name="gone", why_lost="its disk is broken"
    )
    await agent.stubs.checkpoints.CommitCheckpoint(loss)
    code, reason, _ = await refused(fork(kim, source.id, "fork-5", name="gone"))
    assert (code, reason) == ("FAILED_PRECONDITION", "STATE_CONFLICT")
    made = await fork(kim, source.id, "fork-6", name="best", digest=digest)
    await save(agent, empty.id)
    code, _, told = await refused(fork(kim, empty.id, "fork-7", name="best", digest=digest))
    assert (code, told["why"]) == ("NOT_FOUND", "its name was saved again")

    async def is_there() -> bool:
        return len(await checkpoints(kim, made.id)) == 1

    await until(is_there, "the refusals left the fork alone")


async def git(kim: Stubs, request_id: str, **facts: Any) -> pb.Session:
    request = pb.CreateSessionRequest(
        request_id=request_id, spec=pb.SessionSpec(argv=["true"]), git=pb.GitFacts(**facts)
    )
    return (await kim.sessions.CreateSession(request)).session


async def test_the_commit_is_kept_without_what_is_secret_in_its_remote(rig: Rig) -> None:
    kim = await rig.user("kim")
    made = await git(
        kim,
        "fork-1",
        commit=COMMIT,
        branch="main",
        remote="https://kim:KEY@h/r?token=KEY",
        dirty=False,
    )
    expected = pb.GitFacts(commit=COMMIT, branch="main", remote="https://h/r", dirty=False)
    assert made.git == expected
    assert (await kim.get(made.id)).git == expected
    unknown = await git(kim, "fork-2", commit=COMMIT)
    assert not unknown.git.HasField("dirty")
    assert not (await kim.submit()).HasField("git")
    assert (await refused(git(kim, "fork-3", commit="HEAD")))[0] == "INVALID_ARGUMENT"
    odd = {"commit": COMMIT, "branch": "a\x1b[2Jb"}
    assert (await refused(git(kim, "fork-4", **odd)))[0] == "INVALID_ARGUMENT"


async def test_an_agent_that_would_begin_anew_is_told_not_to_start_the_first_attempt(
    rig: Rig,
) -> None:
    kim = await rig.user("kim")
    knows = [one for one in agents_pb2.AgentAbility.values()[1:] if one != INITIAL_CHECKPOINTS]
    old = await (await rig.agent("old", abilities=knows)).connect()
    source = await kim.submit()
    await old.assignments(1)
    digest = await save(old, source.id)
    made = await fork(kim, source.id, "fork-1")
    orders = {one.replica.session_id: one for one in await old.assignments(2)}
    stop = orders[made.id].stop
    assert stop.cause == pb.CAUSE_NODE_REFUSED
    assert "too old to begin with a checkpoint" in stop.reason
    assert not orders[source.id].HasField("stop")
    await old.report(orders[made.id].replica, "FINALIZED", cause="NODE_REFUSED")

    async def ordered_again() -> agents_pb2.Assignment | None:
        again = [one for one in await old.assignments(2) if one.replica.attempt == 2]
        return again[0] if again else None

    # As an attempt after the first it goes on from what is there, wherever it is placed.
    order = await until(ordered_again, "the next attempt is ordered")
    assert order.replica.session_id == made.id
    assert not order.HasField("stop")
    assert (await begins_with(old, made.id)).digest == digest
