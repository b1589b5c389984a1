"""Idle limits: a session is stopped once it was out of use for so long, and never before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.idle import IDLE_CORES, Activity, WasteRule, is_active
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import AllocatedReplica, Allocation, Device, DeviceShare, Replica
from controlplane.history.sqlite import open_history
from controlplane.history.values import DeviceSample, NodeSample, ReplicaSample
from controlplane.sessions.idle_limit import LOOK_EVERY_S, IdleLimits
from controlplane.state.live_state import LiveState
from nsml.common.clock import inline
from tests.unit.controlplane.builders import node, session
from tests.unit.controlplane.usage.test_idle_detection import Committer
from tests.unit.controlplane.workbench import HandClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.history.sql.history import History

LIMIT_S = 600.0


class Joined:
    """In place of tunnels: whether somebody is connected."""

    def __init__(self) -> None:
        self.sessions: Counter[str] = Counter()

    def is_joined(self, session_id: str) -> bool:
        return self.sessions[session_id] > 0


class Desk:
    """A gang of two on nodes a and b, with a GPU each."""

    def __init__(self, history: History, clock: HandClock, *, is_simulated: bool = False) -> None:
        self.history, self.clock = history, clock
        self.state = LiveState(None, clock)  # type: ignore[arg-type]
        self.joined = Joined()
        self.limits = self.another_leader()
        self.sequence = 0
        for name, rank in (("a", 0), ("b", 1)):
            self.state.put_node(node(name, gpus=1), 1)
            held = AllocatedReplica(
                session_id="s",
                attempt=1,
                rank=rank,
                devices=(DeviceShare(uuid=f"{name}-0", thousandths=1000),),
                placed_at=clock.now,
            )
            self.state.put_allocation(Allocation(node=name, replicas=(held,)), 1)
        one = session(id="s", attempt=1, replicas=2, spec={"idle_limit_s": LIMIT_S})
        replicas = tuple(
            Replica(
                rank=rank,
                node=name,
                devices=(Device(uuid=f"{name}-0", index=0, simulated=is_simulated),),
            )
            for name, rank in (("a", 0), ("b", 1))
        )
        self.state.put_session(replace(one, state=SessionState.RUNNING, replicas=replicas), 1)

    def another_leader(self) -> IdleLimits:
        return IdleLimits(
            state=self.state,
            history=self.history,
            tunnels=self.joined,  # type: ignore[arg-type]
            committer=Committer(self.state),  # type: ignore[arg-type]
            rule=WasteRule(),
            clock=self.clock,
        )

    async def pass_(
        self,
        seconds: float,
        *,
        load: float = 0.0,
        cores: float = 0.0,
        told_by: tuple[str, ...] = ("a", "b"),
        measures: bool = True,
    ) -> SessionState:
        """So long, with a reading and a look every ten seconds; what rank 1 takes is given."""
        for _ in range(round(seconds / LOOK_EVERY_S)):
            self.clock.now += LOOK_EVERY_S
            self.sequence += 1
            for name in told_by:
                is_second = name == "b"
                reading = ReplicaSample(
                    session_id="s", attempt=1, rank=is_second, cpu_cores=cores * is_second
                )
                device = DeviceSample(uuid=f"{name}-0", utilization_percent=load * is_second)
                sample = NodeSample(
                    node=name,
                    boot_id="b",
                    sequence=self.sequence,
                    at=self.clock.now,
                    devices=(device,),
                    replicas=(reading,) if measures else (),
                )
                await self.history.telemetry.record([sample])
            await self.limits.look()
        return self.session_state

    @property
    def session_state(self) -> SessionState:
        found = self.state.session("s")
        assert found is not None
        return found.state


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def desk(clock: HandClock) -> AsyncIterator[Desk]:
    history = await open_history(":memory:", clock=clock, run=inline)
    yield Desk(history, clock)
    await history.close()


async def test_what_simulated_gpus_seem_to_do_is_no_use(clock: HandClock) -> None:
    history = await open_history(":memory:", clock=clock, run=inline)
    desk = Desk(history, clock, is_simulated=True)
    assert await desk.pass_(LIMIT_S, load=90.0) is SessionState.RUNNING
    assert await desk.pass_(LOOK_EVERY_S, load=90.0) is SessionState.STOPPING
    await history.close()


async def test_what_nobody_uses_is_stopped_and_says_why(desk: Desk) -> None:
    assert await desk.pass_(LIMIT_S) is SessionState.RUNNING
    assert await desk.pass_(LOOK_EVERY_S) is SessionState.STOPPING
    found = desk.state.session("s")
    assert found is not None
    assert found.stop is not None
    assert found.stop.text().startswith("stopped by nsml: idle limit of 10m: nobody was connected")
    assert await desk.pass_(LIMIT_S) is SessionState.STOPPING


@pytest.mark.parametrize("use", [{"load": 5.0}, {"cores": 0.5}, {"measures": False}])
async def test_use_of_any_kind_and_what_nobody_knows_keep_it(desk: Desk, use) -> None:
    assert await desk.pass_(LIMIT_S - 20) is SessionState.RUNNING
    assert await desk.pass_(4 * LIMIT_S, **use) is SessionState.RUNNING
    assert await desk.pass_(LIMIT_S - 20) is SessionState.RUNNING
    assert await desk.pass_(60) is SessionState.STOPPING


async def test_one_replica_in_use_keeps_a_gang_and_one_without_a_reading_does(desk: Desk) -> None:
    assert await desk.pass_(3 * LIMIT_S, told_by=("a",)) is SessionState.RUNNING
    assert await desk.pass_(3 * LIMIT_S, cores=1.0) is SessionState.RUNNING


async def test_a_connection_alone_keeps_it(desk: Desk) -> None:
    desk.joined.sessions["s"] += 1
    assert await desk.pass_(4 * LIMIT_S) is SessionState.RUNNING
    desk.joined.sessions["s"] -= 1
    assert await desk.pass_(LIMIT_S - 20) is SessionState.RUNNING
    assert await desk.pass_(60) is SessionState.STOPPING


async def test_a_new_leader_counts_anew(desk: Desk) -> None:
    assert await desk.pass_(LIMIT_S - 20) is SessionState.RUNNING
    desk.limits = desk.another_leader()
    assert await desk.pass_(LIMIT_S) is SessionState.RUNNING
    assert await desk.pass_(LOOK_EVERY_S) is SessionState.STOPPING


@pytest.mark.parametrize(
    "change",
    [
        {"state": SessionState.PAUSED},
        {"state": SessionState.UNKNOWN},
        {"state": SessionState.PREPARING},
    ],
)
async def test_what_does_not_run_is_not_judged(desk: Desk, change) -> None:
    found = desk.state.session("s")
    assert found is not None
    desk.state.put_session(replace(found, **change), 2)
    assert await desk.pass_(3 * LIMIT_S) is change["state"]


async def test_without_a_limit_nothing_is_stopped(desk: Desk) -> None:
    found = desk.state.session("s")
    assert found is not None
    desk.state.put_session(replace(found, spec=replace(found.spec, idle_limit_s=0.0)), 2)
    assert await desk.pass_(3 * LIMIT_S) is SessionState.RUNNING


_FEW = st.lists(st.floats(0, 100), max_size=3)


@given(is_joined=st.booleans(), percent=_FEW, cores=_FEW, is_whole=st.booleans())
def test_out_of_use_means_that_nothing_at_all_speaks_for_use(
    is_joined: bool, percent: list[float], cores: list[float], is_whole: bool
) -> None:
    rule = WasteRule(percent=5.0)
    seen = Activity(is_joined=is_joined, device_percent=percent, cpu_cores=cores, is_whole=is_whole)
    at_rest = max(percent, default=0) <= 5.0 and max(cores, default=0) <= IDLE_CORES
    assert is_active(seen, rule) is not (is_whole and not is_joined and at_rest)
