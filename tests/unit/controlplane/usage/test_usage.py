"""What sessions made of their devices: live, over several attempts, and once for all when they end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    AllocatedReplica,
    Allocation,
    Cause,
    DeviceShare,
    EndedAttempt,
    HeldDevice,
    Replica,
    Usage,
)
from controlplane.history.sqlite import open_history
from controlplane.history.values import DeviceSample, NodeSample
from controlplane.state.live_state import LiveState
from controlplane.state.replica_reports import MOST_HELD_DEVICES, _lighter
from controlplane.stored.etcd_codec import decode_session, encode_session
from controlplane.usage.usage import Usages
from nsml.common.clock import inline
from tests.unit.controlplane.builders import node, session
from tests.unit.controlplane.workbench import HandClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History


class Desk:
    def __init__(self, history: History, clock: HandClock) -> None:
        self.history, self.clock = history, clock
        self.state = LiveState(None, clock)  # type: ignore[arg-type]
        self.usages = Usages(state=self.state, history=history, clock=clock)
        self.sequence = 0

    async def pass_(self, seconds: int, load: float) -> None:
        """Both devices of the node do as much; 100 W more at full load than at rest."""
        for _ in range(seconds):
            self.clock.now += 1
            self.sequence += 1
            devices = tuple(
                DeviceSample(uuid=uuid, utilization_percent=load, power_watts=100 + load)
                for uuid in ("a-0", "a-1")
            )
            sample = NodeSample(
                node="a",
                boot_id="b",
                sequence=self.sequence,
                at=self.clock.time(),
                devices=devices,
            )
            await self.history.telemetry.record([sample])

    def place(self, one: Session, **shares: int) -> Session:
        held = AllocatedReplica(
            session_id=one.id,
            attempt=one.attempt,
            rank=0,
            devices=tuple(
                DeviceShare(uuid=uuid.replace("_", "-"), thousandths=share)
                for uuid, share in shares.items()
            ),
            placed_at=self.clock.time(),
        )
        self.state.put_allocation(Allocation(node="a", replicas=(held,)), 1)
        one = replace(one, state=SessionState.RUNNING, replicas=(Replica(rank=0, node="a"),))
        self.state.put_session(one, 1)
        return one


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = HandClock()
    history = await open_history(":memory:", clock=clock, run=inline)
    yield Desk(history, clock)
    await history.close()


async def test_a_live_session_is_measured_and_its_idle_time_told(desk: Desk) -> None:
    one = desk.place(session(attempt=1), a_0=1000, a_1=500)
    await desk.pass_(60, 100.0)
    await desk.usages.look()
    live = desk.usages.live(one.id)
    assert live is not None
    assert live.usage.utilization == pytest.approx(100)
    assert live.usage.watt_hours == pytest.approx(60 * 1.5 * 200 / 3600, rel=0.02)
    assert live.usage.device_seconds == pytest.approx(90, rel=0.02)
    assert live.idle_since == 0
    stopped_at = desk.clock.time()
    for _ in range(4):
        await desk.pass_(30, 0.0)
        await desk.usages.look()
    live = desk.usages.live(one.id)
    assert live is not None
    assert live.idle_since == pytest.approx(stopped_at, abs=1)
    assert live.usage.utilization == pytest.approx(100 / 3, rel=0.02)
    assert live.usage.utilization_peak == 100
    # Measured bit by bit or at once, or anew after a start: the same.
    whole = await desk.usages.whole(one)
    assert whole is not None
    assert whole.watt_hours == pytest.approx(live.usage.watt_hours, rel=1e-6)
    anew = Usages(state=desk.state, history=desk.history, clock=desk.clock)
    await anew.look()
    again = anew.live(one.id)
    assert again is not None
    assert again.usage.watt_hours == pytest.approx(live.usage.watt_hours, rel=1e-6)
    assert again.idle_since == pytest.approx(live.idle_since, abs=1)
    await desk.pass_(5, 50.0)
    await desk.usages.look()
    assert desk.usages.live(one.id).idle_since == 0  # type: ignore[union-attr]


async def test_readings_that_come_after_a_look_are_counted(desk: Desk) -> None:
    one = desk.place(session(attempt=1), a_0=1000)
    for _ in range(6):
        await desk.pass_(9, 100.0)
        # A look in between, when a second has gone by of which nothing is told yet.
        desk.clock.now += 1
        await desk.usages.look()
        desk.clock.now -= 1
        await desk.pass_(1, 100.0)
    await desk.usages.look()
    live, whole = desk.usages.live(one.id), await desk.usages.whole(one)
    assert live is not None
    assert whole is not None
    assert whole.device_seconds == pytest.approx(60)
    assert live.usage.device_seconds == pytest.approx(60)
    assert live.usage.watt_hours == pytest.approx(whole.watt_hours)


async def test_what_was_used_is_known_while_a_session_waits_to_go_on(desk: Desk) -> None:
    begin = desk.clock.time()
    one = desk.place(session(attempt=1), a_0=1000)
    await desk.pass_(15, 100.0)
    await desk.usages.look()
    await desk.pass_(5, 100.0)
    attempt = EndedAttempt(
        number=1,
        cause=Cause.PREEMPTED,
        placed_at=begin,
        ended_at=desk.clock.time(),
        gpu_thousandths=1000,
        held_s=20,
        devices=(HeldDevice(node="a", uuid="a-0", thousandths=1000),),
    )
    desk.state.put_allocation(Allocation(node="a", replicas=()), 2)
    desk.state.put_session(
        replace(one, state=SessionState.QUEUED, replicas=(), attempts=(attempt,)), 2
    )
    for _ in range(3):
        await desk.pass_(20, 0.0)
        await desk.usages.look()
        live = desk.usages.live(one.id)
        assert live is not None
        assert live.usage.device_seconds == pytest.approx(20)
        assert (live.usage.utilization, live.idle_since) == (pytest.approx(100), 0.0)
    # Nothing is read for it any more.
    until = desk.usages._sums[one.id].until
    await desk.usages.look()
    assert desk.usages._sums[one.id].until == until < desk.clock.time() - 20


async def test_an_ended_session_is_measured_over_all_its_attempts(desk: Desk) -> None:
    begin = desk.clock.time()
    await desk.pass_(120, 100.0)
    held = HeldDevice(node="a", uuid="a-0", thousandths=500)
    attempts = tuple(
        EndedAttempt(
            number=number,
            cause=Cause.PREEMPTED,
            placed_at=begin + since,
            ended_at=begin + since + 30,
            gpu_thousandths=500,
            held_s=30,
            devices=(held,),
        )
        for number, since in enumerate((10, 70), start=1)
    )
    ended = session(state=SessionState.SUCCEEDED, attempts=attempts, attempt=2)
    usage = await desk.usages.whole(ended)
    assert usage is not None
    assert usage.device_seconds == pytest.approx(30)
    assert usage.watt_hours == pytest.approx(60 * 0.5 * 200 / 3600)
    kept = decode_session(encode_session(replace(ended, usage=usage)))
    assert (kept.usage, kept.attempts) == (usage, attempts)
    silent = Usage(device_seconds=1.0, utilization=None)
    assert decode_session(encode_session(replace(ended, usage=silent))).usage == silent
    assert await desk.usages.whole(session()) is None


async def test_what_all_devices_do_is_summed(desk: Desk) -> None:
    assert (await desk.usages.load()).devices == 0
    desk.state.put_node(node("a", gpus=2), 1)
    desk.place(session(attempt=1), a_0=250)
    await desk.pass_(3, 90.0)
    load = await desk.usages.load()
    assert load == (2, 1, 2, 2, 90.0, 380.0)
    desk.clock.now += 120
    assert (await desk.usages.load()).devices == 0


def test_a_record_of_many_attempts_stays_small() -> None:
    held = tuple(HeldDevice(node="a", uuid=f"a-{n}", thousandths=1000) for n in range(300))
    attempts = tuple(
        EndedAttempt(
            number=number,
            cause=Cause.PREEMPTED,
            placed_at=1.0,
            ended_at=2.0,
            gpu_thousandths=1,
            held_s=1.0,
            devices=held,
        )
        for number in range(9)
    )
    lighter = _lighter(attempts, 300)
    assert [one.number for one in lighter] == list(range(9))
    assert sum(len(one.devices) for one in lighter) + 300 <= MOST_HELD_DEVICES
    assert [bool(one.devices) for one in lighter] == [False] * 7 + [True] * 2
