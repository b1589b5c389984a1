"""GPUs of a competition's teams through real gRPC: who waits, what is refused, and that records follow competitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controlplane.competitions.feature import team_quotas
from controlplane.domain.values import TeamQuota
from controlplane.scheduler import ClusterIndex, QueueQueries
from controlplane.store.interface import Delete, Transaction
from controlplane.stored import etcd_codec
from nsml.v1 import boards_pb2, resources_pb2, sessions_pb2
from nsml.v1 import competitions_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.competitions import DAY_S, NAME, Contest
from tests.unit.controlplane.services.submissions import trained
from tests.unit.controlplane.services.test_sessions import refused

DIGITS = [sessions_pb2.DatasetReference(name="kim/digits")]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with platform() as rig:
        yield rig


def gpus(count: float) -> resources_pb2.Resources:
    return resources_pb2.Resources(
        gpu_thousandths=round(count * 1000), cpu_thousandths=100, memory_bytes=10**8
    )


async def trains(who: Stubs, count: float = 1, **asked: Any) -> sessions_pb2.Session:
    """A session on the dataset, in the queue."""
    asked.setdefault("datasets", DIGITS)
    return await who.submit("python", "main.py", resources=gpus(count), **asked)


async def lions(rig: Rig, limit: float = 2) -> Contest:
    """lee and sam are the team lions, park is one alone."""
    cup = await Contest.of(rig, "park", gpu_thousandths=round(limit * 1000))
    for name in ("lee", "sam"):
        await cup.user(name)
        if name != "lee":
            invited = pb.InviteUsersRequest(competition=NAME, users=[name])
            await cup.users["lee"].competitions.InviteUsers(invited)
        await cup.join(name, "lions")
    return cup


async def waits(who: Stubs, session: str, why: str) -> None:
    async def is_said() -> bool:
        return why in (await who.get(session)).waiting

    await until(is_said, f"{session} waits since {why}")


async def set_limit(cup: Contest, limit: float) -> None:
    settings = pb.CompetitionSettings(phases=[cup.phase()], gpu_thousandths=round(limit * 1000))
    request = pb.UpdateCompetitionRequest(competition="cup", settings=settings)
    await cup.kim.competitions.UpdateCompetition(request)


async def record(rig: Rig) -> TeamQuota | None:
    """As the store has it."""
    items = (await rig.plane.core.store.list(etcd_codec.TEAM_QUOTAS)).items
    assert len(items) <= 1
    return etcd_codec.decode_team_quota(items[0].value) if items else None


def teams_of(rig: Rig, session: str) -> tuple[str, ...]:
    found = rig.plane.core.state.by_name(session)
    assert found is not None
    return tuple(one.partition("/")[2] for one in found.competition_teams)


async def test_a_team_holds_so_many_gpus_and_further_sessions_say_why_they_wait(rig: Rig) -> None:
    cup = await lions(rig, 2.5)
    lee, sam, park = (cup.users[name] for name in ("lee", "sam", "park"))
    first = await trained(lee, cup.node, resources=gpus(2))
    await trained(sam, cup.node, resources=gpus(0.5))
    more = await trains(sam)
    text = "team lions holds 2.5 of 2.5 GPUs of competition cup; lee holds 2 of them"
    await waits(sam, more.name, text)
    for who in (park, cup.kim):
        await trained(who, cup.node, resources=gpus(1))
    other = await sam.submit("python", "main.py", resources=gpus(1))
    await sam.reaches(other.name, "PREPARING")
    asked = sessions_pb2.ListQueueRequest()
    [row] = (await sam.sessions.ListQueue(asked)).sessions
    assert row.reason == text
    asked = sessions_pb2.ExplainSessionRequest(session=more.name)
    told = (await sam.sessions.ExplainSession(asked)).waiting
    assert [one.owner for one in told.holders] == ["lee", "sam"]
    await lee.sessions.StopSession(sessions_pb2.StopSessionRequest(session=first.name))
    found = cup.node.orders
    assert found is not None
    [its] = [one for one in found.assignments if one.replica.session_id == first.id]
    await cup.node.report(its.replica, "FINALIZED", cause="STOP_REQUESTED", code=143)
    await sam.reaches(more.name, "PREPARING")


async def test_what_is_larger_than_the_limit_is_refused_with_what_is_not(rig: Rig) -> None:
    cup = await lions(rig)
    lee = cup.users["lee"]
    code, _, told = await refused(trains(lee, 3))
    assert (code, told["try"]) == ("FAILED_PRECONDITION", "nsml run -g 2 ...")
    assert told["why"] == "asks for 3 GPUs; a team of competition cup may hold 2 GPUs at once"
    assert (await refused(trains(lee, replica_count=3)))[2]["try"].startswith("nsml run --nodes 2")
    await lee.submit("python", "main.py", resources=gpus(3))
    await trains(cup.kim, 3)
    await trained(lee, cup.node, resources=gpus(2))
    one = await trains(lee)
    what_if = sessions_pb2.WhatIf(gpu_thousandths=4000)
    request = sessions_pb2.ExplainSessionRequest(session=one.name, what_if=what_if)
    code, _, told = await refused(lee.sessions.ExplainSession(request))
    assert (code, "may hold 2 GPUs at once" in told["why"]) == ("FAILED_PRECONDITION", True)
    await set_limit(cup, 0.5)
    await waits(lee, one.name, "asks for 1 GPU; a team of competition cup may hold 0.5 GPUs")


async def test_another_limit_acts_at_once_and_the_end_lifts_it(rig: Rig) -> None:
    cup = await lions(rig)
    lee = cup.users["lee"]
    running = await trained(lee, cup.node, resources=gpus(2))
    one, two = await trains(lee), await trains(lee)
    await waits(lee, one.name, "team lions holds 2 of 2 GPUs of competition cup")
    await set_limit(cup, 3)
    await lee.reaches(one.name, "PREPARING")
    await waits(lee, two.name, "team lions holds 3 of 3 GPUs of competition cup")
    await set_limit(cup, 1)
    await waits(lee, two.name, "team lions holds 3 of 1 GPU of competition cup")
    assert await lee.state(running.name) == "RUNNING"
    await cup.close()
    await lee.reaches(two.name, "PREPARING")
    assert await record(rig) is None
    assert teams_of(rig, (await trains(lee)).name) == ()


async def test_teams_that_merge_count_together(rig: Rig) -> None:
    cup = await lions(rig)
    lee, park = cup.users["lee"], cup.users["park"]
    for who in (lee, park):
        await trained(who, cup.node, resources=gpus(2))
    for who, other in ((lee, "park"), (park, "lions")):
        request = pb.MergeTeamsRequest(competition=NAME, team=other, name="both")
        await who.competitions.MergeTeams(request)
    stored = await record(rig)
    assert stored is not None
    assert dict(stored.merged) == {"lions": "both", "park": "both"}
    one = await trains(park)
    assert teams_of(rig, one.name) == ("both",)
    await waits(park, one.name, "team both holds 4 of 2 GPUs of competition cup")


async def test_a_session_counts_for_the_team_at_its_submission_and_for_one_joined_later(
    rig: Rig,
) -> None:
    cup = await lions(rig)
    sam = cup.users["sam"]
    mine = await trains(sam)
    await sam.competitions.LeaveCompetition(pb.LeaveCompetitionRequest(competition=NAME))
    between = await trains(sam)
    other = await sam.submit("python", "main.py", resources=gpus(1))
    assert teams_of(rig, between.name) == ()
    await cup.join("sam", "tigers")
    for session, team in ((mine, ("lions",)), (between, ("tigers",)), (other, ())):
        assert teams_of(rig, session.name) == team
    assert teams_of(rig, cup.sessions["park"].name) == ("park",)
    assert teams_of(rig, (await trains(sam)).name) == ("tigers",)


async def test_steps_of_submissions_do_not_count(rig: Rig) -> None:
    cup = await lions(rig)
    lee = cup.users["lee"]
    await trained(lee, cup.node, resources=gpus(2))
    await cup.submit("lee")
    core = rig.plane.core

    async def step() -> str:
        found = (one.value for one in core.state.sessions.values())
        return next((one.name for one in found if one.spec.submission_id), "")

    name = await until(step, "there is a step")
    assert teams_of(rig, name) == ()
    assert boards_pb2.SubmissionState.Name(
        (await lee.submissions.ListSubmissions(boards_pb2.ListSubmissionsRequest())).submissions[0].state
    ) != "SUBMISSION_STATE_FAILED"  # fmt: skip


async def test_records_follow_competitions_whatever_was_missed(rig: Rig) -> None:
    cup = await lions(rig)
    core = rig.plane.core
    records = core.shared(team_quotas)
    there = await record(rig)
    assert there is not None
    assert (there.competition, there.datasets) == ("cup", ("kim/digits",))
    key = etcd_codec.team_quota_key(there.competition_id)
    await core.store.commit(Transaction(success=(Delete(key=key),)))
    await core.state.reached((await core.store.list(key)).revision)
    await records._compare()
    assert await record(rig) == there
    before = (await core.store.list(key)).items[0].mod_revision
    await records._compare()
    assert (await core.store.list(key)).items[0].mod_revision == before
    cup.clock.ahead = 2 * DAY_S
    records._clock = cup.clock
    await records._compare()
    assert await record(rig) is None
    assert not core.state.team_quotas


async def test_a_slow_write_of_an_older_state_does_not_stay(rig: Rig) -> None:
    cup = await lions(rig)
    records = rig.plane.core.shared(team_quotas)
    there = await record(rig)
    assert there is not None
    wanted, is_read, go_on = records._wanted, asyncio.Event(), asyncio.Event()

    async def slowly(competition: Any) -> TeamQuota | None:
        found = await wanted(competition)
        is_read.set()
        await go_on.wait()
        return found

    records._wanted = slowly  # type: ignore[method-assign]
    slow = asyncio.create_task(records.changed(there.competition_id))
    await is_read.wait()
    records._wanted = wanted  # type: ignore[method-assign]
    await set_limit(cup, 5)
    go_on.set()
    await slow
    stored = await record(rig)
    assert stored is not None
    assert stored.gpu_thousandths == 5000


async def test_who_leads_next_knows_what_teams_hold(rig: Rig) -> None:
    cup = await lions(rig)
    lee = cup.users["lee"]
    await trained(lee, cup.node, resources=gpus(2))
    one = await trains(lee)
    await waits(lee, one.name, "team lions holds 2 of 2 GPUs")
    now = rig.plane.core.clock.time()
    index = ClusterIndex.of(rig.plane.core.state.everything())
    assert not index.plan(now).placements
    why = QueueQueries(index).explanation(one.id, now)
    assert why is not None
    assert why.reason.startswith("team lions holds 2 of 2 GPUs of competition cup")
