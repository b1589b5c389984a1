"""Checkpoints that a session does not keep go; what anybody still needs stays. Through real gRPC."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from controlplane.checkpoints import retention_loop
from controlplane.checkpoints.feature import retention
from nsml.v1 import agents_pb2, checkpoints_pb2, projects_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Role, platform, until
from tests.unit.controlplane.services.test_content import send, tree
from tests.unit.controlplane.services.test_forks import fork
from tests.unit.controlplane.services.test_sessions import Ingest, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.unit.controlplane.rig import Agent, Rig, Stubs

KEEP = "best:1:val/acc:max last:1"


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(retention_loop, "LOOK_EVERY_S", 0.01)
    async with platform(character={"keep_checkpoints": "last:3"}) as rig:
        yield rig


async def running(rig: Rig, kim: Stubs, keep: str = KEEP) -> tuple[Agent, pb.Session]:
    agent = await (await rig.agent()).connect()
    session = await kim.submit(keep_checkpoints=keep)
    await agent.assignments(1)
    return agent, session


class Saving:
    """Saves the checkpoints of one session: the record first, or the content."""

    def __init__(self, agent: Agent, session: pb.Session) -> None:
        self._agent, self._session = agent, session
        self._saved = 0

    async def save(self, name: str, acc: float | None, *, record_last: bool = False) -> None:
        self._saved += 1
        steps = [self._record, self._commit]
        for step in reversed(steps) if record_last else steps:
            await step(name, acc)

    async def _record(self, name: str, acc: float | None) -> None:
        record = {
            "kind": "checkpoint",
            "time": float(self._saved),
            "name": name,
            "folder": f"{self._saved}-{name}",
            "files": [["weights", 1]],
            "size": 1,
            "summary": {} if acc is None else {"val/acc": acc},
            "step": float(self._saved),
        }
        payload = json.dumps(record).encode()
        chunk = agents_pb2.Chunk(first=self._saved, last=self._saved, records=[payload])
        chunk.stream.replica.session_id = self._session.id
        chunk.stream.replica.attempt = 1
        chunk.stream.channel = agents_pb2.CHANNEL_METRIC
        await Ingest(self._agent.stubs).send(chunk)

    async def asked(self, name: str, *held: str) -> list[str]:
        """What an agent is told to be removed of its copies as it commits another one."""
        self._saved += 1
        return await self._commit(name, None, held)

    async def _commit(self, name: str, _: float | None, held: Sequence[str] = ()) -> list[str]:
        manifest, blobs = tree(weights=f"{name} of {self._session.id}".encode())
        await send(self._agent.stubs, blobs)
        saved = checkpoints_pb2.CommitCheckpointRequest(
            session_id=self._session.id,
            attempt=1,
            name=name,
            digest=manifest.digest,
            size_bytes=1,
            file_count=1,
            held=held,
        )
        saved.saved_at.FromSeconds(self._saved)
        answer = await self._agent.stubs.checkpoints.CommitCheckpoint(saved)
        return list(answer.removed)


async def listing(who: Stubs, session: pb.Session) -> checkpoints_pb2.ListCheckpointsResponse:
    request = checkpoints_pb2.ListCheckpointsRequest(session=session.id)
    return await who.checkpoints.ListCheckpoints(request)


async def names(who: Stubs, session: pb.Session) -> list[str]:
    return [one.name for one in (await listing(who, session)).checkpoints]


async def keeps(rig: Rig, who: Stubs, session: pb.Session, *expected: str) -> None:
    """Soon there are these, and looking once more changes nothing."""

    async def are_left() -> bool:
        return await names(who, session) == list(expected)

    await until(are_left, f"{expected} are left")
    assert await rig.plane.core.shared(retention).apply(session.id) == ()


async def tag(who: Stubs, session: pb.Session, name: str, text: str) -> str:
    request = checkpoints_pb2.TagCheckpointRequest(session=session.id, name=name, tag=text)
    answer = await who.checkpoints.TagCheckpoint(request)
    assert text in answer.checkpoint.tags
    return str(answer.moved_from)


async def remove(who: Stubs, session: pb.Session, name: str, *, tagged: bool = False) -> None:
    request = checkpoints_pb2.RemoveCheckpointsRequest(
        session=session.id, names=[name], including_tagged=tagged
    )
    await who.checkpoints.RemoveCheckpoints(request)


async def get(
    who: Stubs, session: pb.Session, name: str, for_session: str = ""
) -> checkpoints_pb2.Checkpoint:
    request = checkpoints_pb2.GetCheckpointRequest(
        session=session.id, name=name, for_session=for_session
    )
    return (await who.checkpoints.GetCheckpoint(request)).checkpoint


@pytest.mark.parametrize("record_last", [False, True])
async def test_the_best_and_the_last_stay_whichever_way_is_faster(
    rig: Rig, record_last: bool
) -> None:
    kim = await rig.user("kim")
    agent, session = await running(rig, kim)
    saving = Saving(agent, session)
    for name, acc in [("1", 0.1), ("2", 0.9), ("3", 0.5), ("4", None), ("5", 0.2)]:
        await saving.save(name, acc, record_last=record_last)
    await keeps(rig, kim, session, "2", "5")
    told = await listing(kim, session)
    assert (told.keep, told.removed_count, told.removed_bytes) == (KEEP, 3, 3)
    assert (await refused(get(kim, session, "1")))[0] == "NOT_FOUND"


async def test_one_whose_record_has_not_come_may_be_the_best(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session = await running(rig, kim)
    saving = Saving(agent, session)
    await saving.save("1", 0.1)
    saving._saved += 1
    await saving._commit("2", None)
    await saving.save("3", 0.3)
    await saving.save("4", 0.2)
    await keeps(rig, kim, session, "2", "3", "4")


async def test_what_is_tagged_or_loaded_by_anybody_stays(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session = await running(rig, kim, keep="last:1")
    saving = Saving(agent, session)
    await saving.save("1", None)
    assert await tag(kim, session, "1", "paper") == ""
    await saving.save("2", None)
    made = await fork(kim, session.id, "fork-1", name="2")
    await saving.save("3", None)
    await agent.assignments(2)
    assert (await get(agent.stubs, session, "paper", made.id)).name == "1"
    await get(agent.stubs, session, "3", made.id)
    await saving.save("4", None)
    await get(agent.stubs, session, "4")  # its own program loads it
    await saving.save("5", None)
    await saving.save("6", None)
    await keeps(rig, kim, session, "1", "2", "3", "4", "6")
    shown = await get(kim, session, "2")
    assert [one.session for one in shown.users] == [made.name]
    assert (shown.hidden_users, shown.node) == (0, "a")
    assert [one.session for one in (await get(kim, session, "3")).users] == [made.name]
    assert not (await get(kim, session, "4")).users
    # A tag moves; without it the checkpoint is one of many.
    assert await tag(kim, session, "6", "paper") == "1"
    code, _, told = await refused(tag(kim, session, "6", "a b"))
    assert (code, told["why"]) == (
        "INVALID_ARGUMENT",
        "a tag has 1 to 63 of A-Z a-z 0-9 and, between these, . _ - /",
    )
    untag = checkpoints_pb2.UntagCheckpointRequest(session=session.id, tag="paper")
    assert (await kim.checkpoints.UntagCheckpoint(untag)).name == "6"
    assert (await refused(kim.checkpoints.UntagCheckpoint(untag)))[0] == "NOT_FOUND"


async def test_a_fork_takes_over_what_was_reported_before_the_save(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    source = await kim.submit()
    [order] = await agent.assignments(1)
    await agent.report(order.replica, "RUNNING")
    await Saving(agent, source).save("best", 0.25)
    made = await fork(kim, source.id, "fork-1", name="best")
    its, own = [await get(kim, one, "best") for one in (source, made)]
    assert (its.summary["val/acc"], its.step) == (0.25, 1.0)
    assert (own.summary, own.step) == (its.summary, its.step)


async def test_that_from_which_an_attempt_goes_on_stays_while_late_ones_come(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit(keep_checkpoints="last:1", retry_count=1)
    [first] = await agent.assignments(1)
    await agent.report(first.replica, "RUNNING")
    saving = Saving(agent, session)
    await saving.save("1", None)
    await agent.report(first.replica, "FINALIZED", cause="LOST_AFTER")

    async def second() -> agents_pb2.ReplicaId | None:
        replicas = [one.replica for one in agent.orders.assignments]
        return next((one for one in replicas if one.attempt == 2), None)

    replica = await until(second, "the second attempt is ordered")
    asking = checkpoints_pb2.GetCheckpointRequest(session=session.id, for_session=session.id)
    assert (await agent.stubs.checkpoints.GetCheckpoint(asking)).checkpoint.name == "1"
    # What the first attempt saved comes late.
    await saving.save("2", None)
    await saving.save("3", None)
    await keeps(rig, kim, session, "1", "3")
    assert (await agent.stubs.checkpoints.GetCheckpoint(asking)).checkpoint.name == "1"
    # Once the session has ended nothing goes on from it.
    await agent.report(replica, "FINALIZED", cause="COMPLETED")
    await kim.reaches(session.id, "SUCCEEDED")
    await keeps(rig, kim, session, "3")


async def test_tagged_ones_are_removed_only_where_that_is_meant(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent, session = await running(rig, kim, keep="all")
    saving = Saving(agent, session)
    for name in ("1", "2"):
        await saving.save(name, None)
    await tag(kim, session, "1", "paper")
    for bad in ("", "a b", "x" * 64, "\x1b[2J", "../x\n"):
        assert (await refused(tag(kim, session, "1", bad)))[0] == "INVALID_ARGUMENT"
    assert (await refused(tag(kim, session, "1", "2")))[0] == "FAILED_PRECONDITION"
    assert (await refused(tag(kim, session, "9", "more")))[0] == "NOT_FOUND"
    assert (await refused(tag(lee, session, "1", "more")))[0] == "NOT_FOUND"
    for name in ("1", "paper"):
        assert (await refused(remove(kim, session, name)))[0] == "FAILED_PRECONDITION"
    await remove(kim, session, "paper", tagged=True)
    assert await names(kim, session) == ["2"]
    assert (await refused(get(kim, session, "paper")))[0] == "NOT_FOUND"


async def test_its_own_word_goes_before_its_projects_and_the_platforms(rig: Rig) -> None:
    root, kim = await rig.user("root", role=Role.ADMIN), await rig.user("kim")
    settings = projects_pb2.ProjectSettings(keep_checkpoints=" last:2 ")
    request = projects_pb2.CreateProjectRequest(name="vision", settings=settings, members=["kim"])
    made = (await root.projects.CreateProject(request)).project
    assert made.settings.keep_checkpoints == "last:2"

    async def kept(**asked: str) -> str:
        return (await kim.submit(**asked)).spec.keep_checkpoints

    assert await kept() == "last:3"
    assert await kept(project="vision") == "last:2"
    assert await kept(project="vision", keep_checkpoints="last:1  best:2:a:min") == (
        "best:2:a:min last:1"
    )
    assert await kept(project="vision", keep_checkpoints="all") == "all"
    for text, word in (("best:1:val/acc:max", "best:3:val/acc:max last:2"), ("last:2", "")):
        settings = projects_pb2.ProjectSettings(keep_checkpoints=text)
        update = projects_pb2.UpdateProjectRequest(name="vision", settings=settings)
        await root.projects.UpdateProject(update)
        asked = kept(project="vision", keep_checkpoints="best:3 last:2")
        if word:
            assert await asked == word, "the metric is the project's"
        else:
            assert (await refused(asked))[0] == "INVALID_ARGUMENT"
    settings = projects_pb2.ProjectSettings(keep_checkpoints="")
    await root.projects.UpdateProject(
        projects_pb2.UpdateProjectRequest(name="vision", settings=settings)
    )
    assert await kept(project="vision") == "last:3"
    for bad in ("best:3", "last:0", "x" * 2_000):
        assert (await refused(kept(keep_checkpoints=bad)))[0] == "INVALID_ARGUMENT"
        settings = projects_pb2.ProjectSettings(keep_checkpoints=bad)
        change = projects_pb2.UpdateProjectRequest(name="vision", settings=settings)
        assert (await refused(root.projects.UpdateProject(change)))[0] == "INVALID_ARGUMENT"


async def test_an_agent_hears_which_of_its_copies_nobody_can_load_any_more(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session = await running(rig, kim, keep="last:2")
    saving = Saving(agent, session)
    for name in "abc":
        await saving.save(name, None)
    await keeps(rig, kim, session, "b", "c")
    assert await saving.asked("d", "a", "b", "c", "never\0there") == ["a"]
    # Another one has its name by now: that is kept.
    assert await saving.asked("a", "c") == []
    assert await saving.asked("e", *(["a"] * 2_000)) == []
