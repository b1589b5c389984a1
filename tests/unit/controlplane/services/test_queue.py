"""ExplainSession and ListQueue: what is told, to whom, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.values import Session
from controlplane.scheduler.wait_estimate import Free
from controlplane.sessions import queue as queueing
from controlplane.sessions.queue import QueueView
from nsml.v1 import projects_pb2, resources_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_sessions import refused
from tests.unit.controlplane.workbench import HandClock


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def gpus(count: float) -> resources_pb2.Resources:
    return resources_pb2.Resources(gpu_thousandths=int(count * 1000))


async def explained(user: Stubs, session: str, **change) -> pb.ExplainSessionResponse:
    what_if = pb.WhatIf(**change) if change else None
    return await user.sessions.ExplainSession(
        pb.ExplainSessionRequest(session=session, what_if=what_if)
    )


async def told(user: Stubs, session: str) -> pb.Waiting:
    async def waits() -> bool:
        return (await explained(user, session)).HasField("waiting")

    await until(waits, "it waits")
    return (await explained(user, session)).waiting


async def test_who_holds_it_is_named_to_those_who_may_see_it(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    root = await rig.user("root", role=Role.ADMIN)
    await (await rig.agent(gpus=2)).connect()
    running = await kim.submit(resources=gpus(2))
    wanted = await lee.submit(resources=gpus(1), visibility=resources_pb2.VISIBILITY_PUBLIC)
    why = await told(lee, wanted.id)
    assert (why.place, why.queued, why.short) == (1, 1, "GPUs")
    assert why.reason == "needs 1 GPU on one node; no whole GPU is free"
    assert [(one.what, one.nodes) for one in why.shortages] == [("GPUs", 1)]
    [holder] = why.holders
    assert (holder.session, holder.owner, holder.held, holder.nodes) == ("", "kim", 2000, 1)
    assert not holder.HasField("until")
    assert not why.HasField("expected_start")
    for sees in (kim, root):
        [holder] = (await told(sees, wanted.id)).holders
        assert holder.session == running.name


async def test_when_what_runs_has_a_time_limit_the_start_is_expected(rig: Rig) -> None:
    kim = await rig.user("kim")
    await (await rig.agent(gpus=1)).connect()
    limited = await kim.submit(resources=gpus(1), time_limit={"seconds": 3600})
    wanted = await kim.submit(resources=gpus(1))
    why = await told(kim, wanted.id)
    [holder] = why.holders
    assert holder.session == limited.name
    assert holder.until == why.expected_start


async def test_what_would_be_is_said_and_nothing_is_changed(rig: Rig) -> None:
    kim = await rig.user("kim")
    await (await rig.agent(gpus=2)).connect()
    await kim.submit(resources=gpus(1))
    wanted = await kim.submit(resources=gpus(2))
    before = await told(kim, wanted.id)
    smaller = (await explained(kim, wanted.id, gpu_thousandths=1000)).what_if
    assert (smaller.starts, list(smaller.nodes)) == (True, ["a"])
    share = (await explained(kim, wanted.id, gpu_thousandths=500, replica_count=2)).what_if
    assert (share.starts, list(share.nodes)) == (True, ["a", "a"])
    longer = (await explained(kim, wanted.id, time_limit={"seconds": 60})).what_if
    assert not longer.starts
    assert longer.waiting.reason == before.reason
    assert await told(kim, wanted.id) == before
    assert (await kim.get(wanted.id)).spec.resources.gpu_thousandths == 2000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu_thousandths": 1500}, "INVALID_REQUEST"),
        ({"gpu_thousandths": 9000}, "CANNOT_EVER_FIT"),
        ({"replica_count": 0}, "INVALID_REQUEST"),
        ({"replica_count": 10_000}, "INVALID_REQUEST"),
        ({"priority": 9}, "INVALID_REQUEST"),
        ({"time_limit": {"seconds": -1}}, "INVALID_REQUEST"),
        ({"memory_bytes": 1}, "INVALID_REQUEST"),
        ({"gpu_model": "nonesuch"}, "CANNOT_EVER_FIT"),
        ({"pod": "nonesuch"}, "CANNOT_EVER_FIT"),
    ],
)
async def test_what_could_not_be_submitted_is_refused(rig: Rig, change, reason) -> None:
    kim = await rig.user("kim")
    await (await rig.agent(gpus=1)).connect()
    await kim.submit(resources=gpus(1))
    wanted = await kim.submit(resources=gpus(1))
    await told(kim, wanted.id)
    assert (await refused(explained(kim, wanted.id, **change)))[1] == reason


async def test_one_that_does_not_wait_says_what_it_does(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await rig.agent(gpus=1)
    await agent.connect()
    running = await kim.submit(resources=gpus(1))
    await kim.reaches(running.id, "PREPARING", "RUNNING")
    answer = await explained(kim, running.id)
    assert answer.session.id == running.id
    assert not answer.HasField("waiting")
    code, reason, _ = await refused(explained(kim, running.id, gpu_thousandths=1000))
    assert (code, reason) == ("FAILED_PRECONDITION", "NOT_WAITING")
    assert (await refused(explained(lee, running.id)))[0] == "NOT_FOUND"
    assert (await refused(explained(kim, "kim/None/99")))[0] == "NOT_FOUND"


async def test_the_queue_shows_of_others_private_sessions_no_more_than_their_size(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await (await rig.agent(gpus=4)).connect()
    await kim.submit(resources=gpus(3))
    for user in (kim, lee, kim):
        await user.submit(resources=gpus(2), gpu_model="", priority=pb.PRIORITY_NORMAL)

    async def three() -> bool:
        return (await lee.sessions.ListQueue(pb.ListQueueRequest())).queued == 3

    await until(three, "all wait")
    page = await lee.sessions.ListQueue(pb.ListQueueRequest())
    assert [row.place for row in page.sessions] == [1, 2, 3]
    assert (page.chosen, page.asked_gpu_thousandths, page.free_gpu_thousandths) == (3, 6000, 1000)
    assert (page.largest_hole, page.largest_hole_node) == (1, "a")
    [mine] = [row for row in page.sessions if row.session]
    assert mine.owner == "lee"
    assert mine.reason == "needs 2 GPUs on one node; most free on one node: 1 (node a)"
    for row in page.sessions:
        if row.owner == "kim":
            known = {field.name for field, _ in row.ListFields()}
            assert known == {"place", "owner", "resources", "replica_count", "created_at"}
    own = await lee.sessions.ListQueue(pb.ListQueueRequest(owners=["@me"]))
    assert [row.session for row in own.sessions] == [mine.session]
    assert (own.queued, own.chosen) == (3, 1)
    # Which project a hidden session is of is not told by asking for it either.
    hidden = await refused(lee.sessions.ListQueue(pb.ListQueueRequest(project="kim")))
    assert hidden == await refused(lee.sessions.ListQueue(pb.ListQueueRequest(project="nothere")))


async def test_who_owns_a_project_is_told_how_many_of_others_wait_in_it(rig: Rig) -> None:
    kim, lee, eve = [await rig.user(name) for name in ("kim", "lee", "eve")]
    root = await rig.user("root", role=Role.ADMIN)
    await (await rig.agent(gpus=1)).connect()
    settings = projects_pb2.ProjectSettings(owner="kim")
    await root.projects.CreateProject(
        projects_pb2.CreateProjectRequest(name="vision", members=["lee", "eve"], settings=settings)
    )
    await lee.submit(resources=gpus(1))
    for _ in range(2):
        await lee.submit(resources=gpus(1), project="vision")
    public = resources_pb2.VISIBILITY_PUBLIC
    await lee.submit(resources=gpus(1), project="vision", visibility=public)
    await lee.submit(resources=gpus(1))

    async def counted(user: Stubs, **filters) -> tuple[int, int]:
        page = await user.sessions.ListQueue(pb.ListQueueRequest(**filters))
        return page.chosen, page.hidden

    async def four() -> bool:
        return await counted(root) == (4, 0)

    await until(four, "all but the first wait")
    assert await counted(kim, project="vision") == (1, 2)
    for user, seen in ((eve, 1), (lee, 3), (root, 3)):
        assert await counted(user, project="vision") == (seen, 0)
    # Whose they are is not told by asking for owners as well.
    assert await counted(kim, project="vision", owners=["lee"]) == (1, 0)
    assert await counted(kim) == (4, 0)


async def test_who_asks_for_an_unknown_user_or_project_is_told(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    root = await rig.user("root", role=Role.ADMIN)
    await (await rig.agent(gpus=1)).connect()
    await root.projects.CreateProject(
        projects_pb2.CreateProjectRequest(name="vision", members=["kim"])
    )

    async def asked(user: Stubs, **filters) -> int:
        return (await user.sessions.ListQueue(pb.ListQueueRequest(**filters))).chosen

    for user in (kim, lee, root):
        assert await asked(user, owners=["@me", "kim", "lee"]) == 0
        assert (await refused(asked(user, owners=["kim", "nobody"])))[0] == "NOT_FOUND"
    for user, project in ((kim, "kim"), (kim, "vision"), (root, "vision"), (root, "kim")):
        assert await asked(user, project=project) == 0
    for user, project in ((lee, "vision"), (lee, "kim"), (root, "nothere")):
        assert (await refused(asked(user, project=project)))[0] == "NOT_FOUND"


async def test_pages_of_the_queue(rig: Rig) -> None:
    kim = await rig.user("kim")
    await (await rig.agent(gpus=1)).connect()
    for _ in range(6):
        await kim.submit(resources=gpus(1))

    async def five() -> bool:
        return (await kim.sessions.ListQueue(pb.ListQueueRequest())).queued == 5

    await until(five, "five wait")
    request, places = pb.ListQueueRequest(page_size=2), []
    while True:
        page = await kim.sessions.ListQueue(request)
        places += [row.place for row in page.sessions]
        if not page.next_cursor:
            break
        request.cursor = page.next_cursor
    assert places == [1, 2, 3, 4, 5]
    for cursor in ("x", "-1", "9" * 20):
        request.cursor = cursor
        assert (await refused(kim.sessions.ListQueue(request)))[0] == "INVALID_ARGUMENT"


async def test_a_class_that_a_project_may_not_have_any_more_is_told(rig: Rig) -> None:
    root, kim = await rig.user("root", role=Role.ADMIN), await rig.user("kim")
    await (await rig.agent(gpus=1)).connect()
    settings = projects_pb2.ProjectSettings(owner="kim")
    make = projects_pb2.CreateProjectRequest(name="vision", settings=settings)
    await root.projects.CreateProject(make)
    await kim.submit(resources=gpus(1))
    high = await kim.submit(resources=gpus(1), project="vision", priority=pb.PRIORITY_HIGH)
    normal = await kim.submit(resources=gpus(1))

    async def bound(priority: pb.Priority) -> None:
        settings = projects_pb2.ProjectSettings(most_priority=priority)
        change = projects_pb2.UpdateProjectRequest(name="vision", settings=settings)
        await root.projects.UpdateProject(change)

    async def order() -> list[tuple[str, pb.Priority]]:
        found = await kim.sessions.ListQueue(pb.ListQueueRequest())
        return [(one.session, one.priority) for one in found.sessions]

    words = "it counts as low, the highest of project vision"
    assert await order() == [(high.name, pb.PRIORITY_HIGH), (normal.name, pb.PRIORITY_NORMAL)]
    assert words not in (await told(kim, high.id)).reason
    await bound(pb.PRIORITY_LOW)
    assert await order() == [(normal.name, pb.PRIORITY_NORMAL), (high.name, pb.PRIORITY_LOW)]
    assert (await told(kim, high.id)).reason.endswith(words)
    what = (await explained(kim, high.id, gpu_thousandths=500)).what_if
    assert what.waiting.reason.endswith(words)
    what = (await explained(kim, high.id, priority=pb.PRIORITY_IDLE)).what_if
    assert words not in what.waiting.reason
    asked = explained(kim, high.id, priority=pb.PRIORITY_NORMAL)
    assert (await refused(asked))[1] == "OVER_QUOTA"
    await bound(pb.PRIORITY_HIGH)
    assert await order() == [(high.name, pb.PRIORITY_HIGH), (normal.name, pb.PRIORITY_NORMAL)]
    assert words not in (await told(kim, high.id)).reason


async def test_whoever_looks_at_a_long_queue_costs_no_more_than_a_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order is that of a moment ago as long as sorting it anew would cost more."""
    monkeypatch.setattr(queueing, "LONG", -1)
    clock, sorts = HandClock(), []

    class LongQueue:
        queue_length = 0

        def in_order(self, now: float) -> list[Session]:
            sorts.append(clock.now)
            clock.now += 0.2
            return []

        def free(self) -> Free:
            return Free(0, 0, "")

    first, second = LongQueue(), LongQueue()
    leading: list[Any] = [first]
    view = QueueView(
        state=None,  # type: ignore[arg-type]
        clock=clock,
        answers=lambda: leading[-1],
        projects=None,  # type: ignore[arg-type]
        users=None,  # type: ignore[arg-type]
    )
    who = UserCaller(user=User(name="kim"))
    began = clock.now
    while clock.now < began + 20:
        await view.page(pb.ListQueueRequest(), who)
        clock.now += 0.01
    assert len(sorts) * 0.2 <= 0.1 * (clock.now - began) + 0.2
    looks = len(sorts)
    leading.append(second)
    await view.page(pb.ListQueueRequest(), who)
    assert len(sorts) == looks + 1
