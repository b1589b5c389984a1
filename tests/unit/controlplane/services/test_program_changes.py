"""Knobs, pauses and other changes of running programs, by the contract: users ask, agents say what programs say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from controlplane.domain.identity import Role
from controlplane.sessions import program_changes
from nsml.v1 import agents_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until

SET, PAUSE, CONTINUE = (
    pb.PROGRAM_CHANGE_KIND_SET,
    pb.PROGRAM_CHANGE_KIND_PAUSE,
    pb.PROGRAM_CHANGE_KIND_CONTINUE,
)


class Gang:
    """A running session of two replicas on one node, whose processes say what the test has them say."""

    def __init__(self, user: Stubs, agent: Agent, session: pb.Session) -> None:
        self.user = user
        self.agent = agent
        self.session = session

    async def wanted(self, fits: Callable[[pb.ProgramChange | None], bool]) -> pb.ProgramChange:
        """What the agent is told to change, once that fits."""
        found: list[pb.ProgramChange | None] = []

        async def is_there() -> bool:
            assignments = self.agent.orders.assignments if self.agent.orders else []
            if len(assignments) != 2:
                return False
            changes = [one.change if one.HasField("change") else None for one in assignments]
            found[:] = changes
            return all(map(fits, changes))

        await until(is_there, "the agent is told of the change")
        return found[0] or pb.ProgramChange()

    async def say(self, rank: int, **said: Any) -> None:
        """What the process of a rank says."""
        counters = said.pop("counters", {"step": 100 + rank})
        member = agents_pb2.MemberReport(process=f"p{rank}", world=1, counters=counters, **said)
        assert self.agent.orders is not None
        replica = next(
            one.replica for one in self.agent.orders.assignments if one.replica.rank == rank
        )
        report = agents_pb2.ChangeReport(replica=replica, members=[member])
        await self.agent.say(agents_pb2.ControlRequest(change=report))

    async def both(self, **said: Any) -> None:
        for rank in range(2):
            await self.say(rank, **said)

    async def last(self, phase: str) -> pb.ProgramChange:
        """The last change, once it is so far."""
        found: list[pb.ProgramChange] = []

        async def is_there() -> bool:
            request = pb.GetSessionRequest(session=self.session.id)
            session = (await self.user.sessions.GetSession(request)).session
            found[:] = session.changes[-1:]
            return bool(found) and pb.ProgramChangePhase.Name(found[0].phase).endswith(phase)

        await until(is_there, f"the change is {phase}")
        return found[0]

    async def set(self, **values: str) -> pb.ProgramChange:
        request = pb.ChangeProgramRequest(session=self.session.id, kind=SET, values=values)
        return (await self.user.sessions.ChangeProgram(request)).session.changes[-1]


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


@pytest.fixture
async def gang(rig: Rig) -> Gang:
    kim = await rig.user("kim")
    agent = await (await rig.agent(gpus=2)).connect()
    session = await kim.submit(replica_count=2)
    for one in await agent.assignments(2):
        await agent.report(one.replica, "RUNNING")
    await kim.reaches(session.id, "RUNNING")
    return Gang(kim, agent, session)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), raised.value.details() or ""


async def applied(gang: Gang, value: str = "0.5") -> pb.ProgramChange:
    """A knob that is set, from the question to the end."""
    change = await gang.set(lr=value)
    await gang.wanted(lambda one: one is not None and one.number == change.number)
    await gang.both(number=change.number, state=pb.MEMBER_STATE_ASKED, step_s={"step": 0.1})
    wanted = await gang.wanted(
        lambda one: one is not None and one.phase == pb.PROGRAM_CHANGE_PHASE_PREPARE
    )
    assert (wanted.counter, wanted.at) == ("step", 104), "0.3 s ahead of the foremost"
    point = {"number": change.number, "counter": "step", "at": wanted.at}
    await gang.both(state=pb.MEMBER_STATE_PREPARED, **point)
    await gang.wanted(lambda one: one is not None and one.phase == pb.PROGRAM_CHANGE_PHASE_COMMIT)
    knob = pb.KnobChange(name="lr", before="0.1", after=value, in_force=value)
    await gang.both(state=pb.MEMBER_STATE_DONE, position=104, knobs=[knob], **point)
    return await gang.last("APPLIED")


async def test_a_knob_is_set_once_every_process_has_said_so(gang: Gang) -> None:
    change = await applied(gang)
    assert [one.position for one in change.members] == [104], "all alike: one stands for both"
    assert change.asked_by == "kim"
    assert change.HasField("ended_at")
    await gang.wanted(lambda one: one is None)
    assert (await applied(gang, "0.25")).number == 2


async def test_another_one_is_refused_until_it_is_over(gang: Gang) -> None:
    await gang.set(lr="0.5")
    code, words = await refusal(gang.set(lr="0.7"))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "is being changed" in words
    request = pb.ChangeProgramRequest(session=gang.session.id, withdraw=True)
    await gang.user.sessions.ChangeProgram(request)
    assert (await gang.last("WITHDRAWN")).reason == "withdrawn by kim"
    code, words = await refusal(gang.user.sessions.ChangeProgram(request))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "nothing to withdraw" in words


async def test_what_one_process_refuses_no_process_makes(gang: Gang) -> None:
    change = await gang.set(lr="7")
    await gang.wanted(lambda one: one is not None and one.number == change.number)
    await gang.say(0, number=1, state=pb.MEMBER_STATE_ASKED)
    await gang.say(1, number=1, state=pb.MEMBER_STATE_REFUSED, reason="lr: 7 is more than 1")
    assert (await gang.last("WITHDRAWN")).reason == "lr: 7 is more than 1"
    await gang.wanted(lambda one: one is None)


async def test_who_missed_it_is_named(gang: Gang) -> None:
    change = await gang.set(lr="0.5")
    await gang.wanted(lambda one: one is not None)
    await gang.both(number=1, state=pb.MEMBER_STATE_ASKED, step_s={"step": 0.1})
    wanted = await gang.wanted(lambda one: one is not None and one.HasField("at"))
    point = {"number": change.number, "counter": "step", "at": wanted.at}
    await gang.both(state=pb.MEMBER_STATE_PREPARED, **point)
    await gang.wanted(lambda one: one is not None and one.phase == pb.PROGRAM_CHANGE_PHASE_COMMIT)
    await gang.say(0, state=pb.MEMBER_STATE_DONE, position=104, **point)
    await gang.say(1, state=pb.MEMBER_STATE_MISSED, reason="nobody decided", **point)
    found = await gang.last("DIVIDED")
    assert [(one.rank, one.state) for one in found.members] == [
        (0, pb.MEMBER_STATE_DONE),
        (1, pb.MEMBER_STATE_MISSED),
    ]


async def test_a_pause_ends_by_word(gang: Gang) -> None:
    sessions = gang.user.sessions
    go_on = pb.ChangeProgramRequest(session=gang.session.id, kind=CONTINUE)
    code, words = await refusal(sessions.ChangeProgram(go_on))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "not paused" in words
    await sessions.ChangeProgram(pb.ChangeProgramRequest(session=gang.session.id, kind=PAUSE))
    first = await gang.wanted(lambda one: one is not None and one.kind == PAUSE)
    assert first.limit.seconds == 3600
    # before it is reached: it is none any more
    await sessions.ChangeProgram(go_on)
    await gang.wanted(lambda one: one is not None and one.kind == CONTINUE)
    await gang.both(number=2, state=pb.MEMBER_STATE_DONE)
    await gang.last("APPLIED")


async def test_the_next_attempt_begins_with_what_was_set(gang: Gang, rig: Rig) -> None:
    await applied(gang)
    await gang.set(lr="0.75")  # and is not made before the attempt ends
    await gang.wanted(lambda one: one is not None and one.number == 2)
    root = await rig.user("root", role=Role.ADMIN)
    await root.sessions.RequeueSession(
        pb.RequeueSessionRequest(session=gang.session.id, force=True)
    )
    for one in await gang.agent.assignments(2):
        await gang.agent.report(one.replica, "FINALIZED", cause="PREEMPTED")

    async def is_placed() -> bool:
        orders = gang.agent.orders
        return orders is not None and [one.replica.attempt for one in orders.assignments] == [2, 2]

    await until(is_placed, "the next attempt is placed")
    assert gang.agent.orders is not None
    for one in gang.agent.orders.assignments:
        assert [(knob.name, knob.value, knob.at) for knob in one.knobs] == [("lr", "0.5", 104)]
        assert not one.HasField("change")
    assert (await gang.last("WITHDRAWN")).reason == "the attempt ended before"


INVALID: list[tuple[dict[str, Any], grpc.StatusCode]] = [
    ({"kind": SET}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"kind": SET, "values": {"l r": "1"}}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"kind": SET, "values": {"lr": "NaN"}}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"kind": SET, "values": {"lr": "[1]"}}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"kind": SET, "values": {"lr": '"' + 257 * "x" + '"'}}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"kind": SET, "values": {"lr": "[" * 9999}}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"kind": SET, "values": {"lr": "1"}, "at": 1 << 63}, grpc.StatusCode.INVALID_ARGUMENT),
    (
        {"kind": SET, "values": {f"k{n}": "1" for n in range(17)}},
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ),
    ({"kind": pb.PROGRAM_CHANGE_KIND_LOAD}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"kind": 99}, grpc.StatusCode.INVALID_ARGUMENT),
    ({}, grpc.StatusCode.INVALID_ARGUMENT),
]


async def test_what_is_none_is_refused(gang: Gang) -> None:
    for fields, code in INVALID:
        request = pb.ChangeProgramRequest(session=gang.session.id, **fields)
        assert (await refusal(gang.user.sessions.ChangeProgram(request)))[0] is code, fields


async def test_only_owners_and_administrators_may(gang: Gang, rig: Rig) -> None:
    lee, root = await rig.user("lee"), await rig.user("root", role=Role.ADMIN)
    request = pb.ChangeProgramRequest(session=gang.session.id, kind=SET, values={"lr": "1"})
    assert (await refusal(lee.sessions.ChangeProgram(request)))[0] is grpc.StatusCode.NOT_FOUND
    changed = (await root.sessions.ChangeProgram(request)).session.changes[-1]
    assert changed.asked_by == "root"


async def test_an_older_agent_is_not_asked(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent(gpus=1, abilities=[])).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    await kim.reaches(session.id, "RUNNING")
    gang = Gang(kim, agent, session)
    await gang.set(lr="0.5")
    assert "too old" in (await gang.last("WITHDRAWN")).reason


async def test_what_hostile_programs_say_is_cut_to_size(gang: Gang) -> None:
    await gang.set(lr="0.5")
    await gang.wanted(lambda one: one is not None)
    huge = "x" * 5_000
    await gang.say(
        0,
        number=1,
        state=pb.MEMBER_STATE_REFUSED,
        counters={"step": (1 << 64) - 1, huge: 1},
        reason=huge,
        knobs=[pb.KnobChange(name=huge, before=huge) for _ in range(20)],
    )
    assert (await gang.last("WITHDRAWN")).reason == huge[:512]


async def test_a_session_keeps_as_many_changes_as_have_room(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    await applied(gang)
    await gang.set(lr="0.25")
    withdrawal = pb.ChangeProgramRequest(session=gang.session.id, withdraw=True)
    await gang.user.sessions.ChangeProgram(withdrawal)
    await gang.last("WITHDRAWN")
    monkeypatch.setattr(program_changes, "MOST_HISTORY_BYTES", 250)
    change = await applied(gang, "0.75")
    request = pb.GetSessionRequest(session=gang.session.id)
    kept = (await gang.user.sessions.GetSession(request)).session.changes
    assert [one.number for one in kept] == [1, change.number], "what was not made makes room"
    code, words = await refusal(gang.set(lr="0.5"))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "a session keeps no more" in words
