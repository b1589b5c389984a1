"""Who used more lately comes later, is told so, and a control plane that starts finds it out."""

from __future__ import annotations

import time

import pytest

from controlplane.domain.identity import Role
from controlplane.domain.values import DAY_S
from controlplane.history.values import AttemptCharge
from controlplane.usage import charge_totals_loop as accounting
from nsml.v1 import projects_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import (
    Rig,
    Stubs,
    one_leads,
    platform,
    serving,
    surroundings,
    until,
)
from tests.unit.controlplane.services.test_queue import explained, gpus, told


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(accounting, "TOLD_EVERY_S", 0.1)


def charge(number: int, project: str, days_ago: float) -> AttemptCharge:
    """Four GPUs for a day."""
    return AttemptCharge(
        session_id=f"s{number}",
        attempt=1,
        owner="kim",
        project=project,
        gpu_thousandths=4000,
        seconds=DAY_S,
        ended_at=time.time() - days_ago * DAY_S,
    )


async def share_of(user: Stubs, session: str) -> pb.FairShare:
    """Once all of it is counted."""

    async def is_counted() -> bool:
        share = (await told(user, session)).share
        return not share.is_partial and share.lately_gpus > 0

    await until(is_counted, "what was used is counted")
    return (await told(user, session)).share


async def end_all(rig: Rig, agent) -> None:
    for one in await agent.assignments(1):
        await agent.report(one.replica, "FINALIZED", cause="COMPLETED")


async def test_who_used_more_lately_is_served_later() -> None:
    async with surroundings() as on:
        rows = [charge(n, "kim", 7.0) for n in range(7)] + [charge(90, "lee", 65.0)]
        await on.history.ledger.charge(rows, term=1)
        async with serving(on) as rig:
            await until(lambda: one_leads(rig), "it leads")
            kim, lee, park = [await rig.user(name) for name in ("kim", "lee", "park")]
            agent = await (await rig.agent(gpus=1)).connect()
            first = await park.submit(resources=gpus(1))
            await agent.assignments(1)
            kims = await kim.submit(resources=gpus(1))
            lees = await lee.submit(resources=gpus(1))
            share = await share_of(kim, kims.id)
            # 28 GPU-days, half of them counted after a week, over a week / ln 2.
            assert share.lately_gpus == pytest.approx(1.33, rel=0.05)
            assert (share.account, share.held_gpus, share.weight) == ("kim", 0.0, 1.0)
            assert share.value == share.lately_gpus
            assert share.half_life.seconds == 7 * DAY_S
            assert 0 < (await share_of(lee, lees.id)).value < 0.01
            queue = (await kim.sessions.ListQueue(pb.ListQueueRequest())).sessions
            assert [(one.session, one.HasField("share")) for one in queue] == [
                ("", False),
                (kims.name, True),
            ]
            assert queue[1].share == pytest.approx(share.value, rel=1e-3)
            await end_all(rig, agent)
            await lee.reaches(lees.id, "PREPARING")
            assert await park.state(first.id) != "QUEUED"
            assert await kim.state(kims.id) == "QUEUED"


async def test_what_ran_here_counts_and_its_project_shows_it() -> None:
    async with platform(character={"half_life_s": 20.0}) as rig:
        root = await rig.user("root", role=Role.ADMIN)
        settings = projects_pb2.ProjectSettings(owner="root", weight=2.0)
        await root.projects.CreateProject(
            projects_pb2.CreateProjectRequest(name="vision", settings=settings)
        )
        agent = await (await rig.agent(gpus=2)).connect()
        await root.submit(resources=gpus(2), project="vision")

        async def share() -> pb.FairShare:
            answer = await root.projects.GetProject(projects_pb2.GetProjectRequest(name="vision"))
            return answer.project.usage.share

        async def grows() -> bool:
            found = await share()
            return found.held_gpus == 2 and found.lately_gpus > 0.01 and not found.is_partial

        await until(grows, "what runs counts")
        at_least = (await share()).lately_gpus / 2
        await end_all(rig, agent)

        async def is_over() -> bool:
            return (await share()).held_gpus == 0

        await until(is_over, "it holds nothing")
        found = await share()
        assert found.lately_gpus > at_least
        assert found.value == found.lately_gpus / 2.0
        waits = await root.submit(resources=gpus(2), project="vision")
        await agent.assignments(1)
        later = await root.submit(resources=gpus(2), project="vision")
        assert (await told(root, later.id)).share.held_gpus == 2.0
        assert not (await explained(root, waits.id)).HasField("waiting")


async def test_without_a_half_life_only_what_is_held_counts() -> None:
    async with platform(character={"half_life_s": 0.0}) as rig:
        kim = await rig.user("kim")
        await (await rig.agent(gpus=1)).connect()
        await kim.submit(resources=gpus(1))
        share = (await told(kim, (await kim.submit(resources=gpus(1))).id)).share
        assert (share.held_gpus, share.lately_gpus, share.value) == (1.0, 0.0, 1.0)
        assert not share.HasField("half_life")
        assert not share.is_partial
