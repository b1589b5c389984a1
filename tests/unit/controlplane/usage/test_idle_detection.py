"""Sessions that make nothing of their devices: found by what agents tell, kept in their records, told once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.domain.idle import WasteRule
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    AllocatedReplica,
    Allocation,
    Device,
    DeviceShare,
    EpisodeKind,
    Replica,
    SessionStage,
)
from controlplane.history.sqlite import open_history
from controlplane.history.values import DeviceSample, NodeSample
from controlplane.state.live_state import LiveState
from controlplane.stored.etcd_codec import decode_session, encode_session
from controlplane.usage.idle_detection import IdleDetector
from controlplane.usage.usage import Usages
from nsml.common.clock import inline
from tests.unit.controlplane.builders import node, session
from tests.unit.controlplane.workbench import HandClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.usage.idle_detection import Begun


class Committer:
    """Decides at once, on what is known."""

    def __init__(self, state: LiveState) -> None:
        self._state = state
        self._revision = 1

    async def decide_all(self, decisions: Iterable[Callable[[Any], Any]]) -> list[Any]:
        return [one(self) for one in decisions]

    def session(self, session_id: str) -> Session | None:
        return self._state.session(session_id)

    def put_session(self, one: Session) -> None:
        # As it is when it has been stored.
        self._revision += 1
        self._state.put_session(decode_session(encode_session(one)), self._revision)


class Desk:
    """One session on the only GPU of node a, which a program keeps busy or not."""

    def __init__(self, history: History, clock: HandClock, *, is_simulated: bool = False) -> None:
        self.history, self.clock = history, clock
        self.state = LiveState(None, self.clock)  # type: ignore[arg-type]
        usages = Usages(state=self.state, history=history, clock=self.clock, idle_percent=1.0)
        self.usages = usages
        self.committer = Committer(self.state)
        self.wastes = IdleDetector(
            state=self.state,
            history=history,
            usages=usages,
            committer=self.committer,  # type: ignore[arg-type]
            rule=WasteRule(),
            clock=self.clock,
        )
        self.sequence = self.revision = 0
        self.device = Device(uuid="a-0", index=0, simulated=is_simulated)
        self.offer()
        placed = self.clock.now
        held = AllocatedReplica(
            session_id="s",
            attempt=1,
            rank=0,
            devices=(DeviceShare(uuid="a-0", thousandths=1000),),
            placed_at=placed,
        )
        self.state.put_allocation(Allocation(node="a", replicas=(held,)), 1)
        one = session(id="s", attempt=1)
        replicas = (Replica(rank=0, node="a", started_at=placed),)
        self.state.put_session(replace(one, state=SessionState.RUNNING, replicas=replicas), 1)

    def offer(self, withheld: str = "") -> None:
        device = replace(self.device, withheld=withheld)
        self.revision += 1
        self.state.put_node(replace(node("a"), devices=(device,)), self.revision)

    async def pass_(self, minutes: int, load: float, processes: int = 1) -> list[Begun]:
        """So long, with a reading and a look every ten seconds; what began."""
        begun: list[Begun] = []
        for _ in range(minutes * 6):
            self.clock.now += 10
            self.sequence += 1
            device = DeviceSample(
                uuid="a-0",
                utilization_percent=load,
                memory_used_bytes=3 << 30,
                process_count=processes,
            )
            sample = NodeSample(
                node="a",
                boot_id="b",
                sequence=self.sequence,
                at=self.clock.now,
                devices=(device,),
            )
            await self.history.telemetry.record([sample])
            begun += await self.look()
        return begun

    async def look(self) -> list[Begun]:
        await self.usages.look()
        return await self.wastes.look()

    @property
    def episodes(self) -> list[tuple[EpisodeKind, bool]]:
        """Their kinds, and whether they stand."""
        one = self.state.session("s")
        assert one is not None
        return [(each.kind, not each.until) for each in one.episodes]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def history(clock: HandClock) -> AsyncIterator[History]:
    opened = await open_history(":memory:", clock=clock, run=inline)
    yield opened
    await opened.close()


async def test_a_session_that_idles_is_told_once_and_works_again(
    history: History, clock: HandClock
) -> None:
    desk = Desk(history, clock)
    assert await desk.pass_(15, 60.0) == []
    stopped_at = desk.clock.now
    assert await desk.pass_(9, 1.0) == []
    (begun,) = await desk.pass_(10, 1.0)
    assert begun.session.id == "s"
    assert begun.episode.kind is EpisodeKind.IDLE
    assert begun.episode.since == pytest.approx(stopped_at, abs=11)
    assert desk.episodes == [(EpisodeKind.IDLE, True)]
    assert await desk.pass_(1, 60.0) == []
    assert desk.episodes == [(EpisodeKind.IDLE, False)]
    (again,) = await desk.pass_(12, 0.0)
    assert again.episode.since > begun.episode.since
    assert desk.episodes == [(EpisodeKind.IDLE, False), (EpisodeKind.IDLE, True)]


async def test_without_a_process_on_its_devices_it_is_a_zombie(
    history: History, clock: HandClock
) -> None:
    desk = Desk(history, clock)
    (begun,) = await desk.pass_(15, 0.0, processes=0)
    assert begun.episode.kind is EpisodeKind.ZOMBIE
    assert (
        begun.episode.reason == "no process is on its GPUs, and 3.0 GiB of their memory are in use"
    )
    # One that comes back and does nothing is idle since then.
    (begun,) = await desk.pass_(1, 0.0, processes=1)
    assert begun.episode.kind is EpisodeKind.IDLE
    assert desk.episodes == [(EpisodeKind.ZOMBIE, False), (EpisodeKind.IDLE, True)]


async def test_simulated_devices_have_no_processes_that_could_be_missed(
    history: History, clock: HandClock
) -> None:
    desk = Desk(history, clock, is_simulated=True)
    (begun,) = await desk.pass_(15, 0.0, processes=0)
    assert begun.episode.kind is EpisodeKind.IDLE


async def test_a_process_of_no_session_on_its_device_is_told_at_once(
    history: History, clock: HandClock
) -> None:
    desk = Desk(history, clock)
    assert await desk.pass_(1, 60.0) == []
    desk.offer("used by process 7 (python of kim), of no session")
    (begun,) = await desk.pass_(1, 60.0)
    expected = "GPU 0 of a is used by process 7 (python of kim), of no session"
    assert (begun.episode.kind, begun.episode.reason) == (EpisodeKind.ZOMBIE, expected)
    # Withheld for another reason it is nobody's fault.
    desk.offer("the fan stands still")
    assert await desk.pass_(1, 60.0) == []
    assert desk.episodes == [(EpisodeKind.ZOMBIE, False)]


async def test_of_what_is_out_of_sight_or_not_running_nothing_stands(
    history: History, clock: HandClock
) -> None:
    desk = Desk(history, clock)
    await desk.pass_(15, 0.0)
    assert desk.episodes == [(EpisodeKind.IDLE, True)]
    desk.clock.now += 120  # its node is not heard
    assert await desk.look() == []
    assert desk.episodes == [(EpisodeKind.IDLE, False)]
    for state in (SessionState.PREPARING, SessionState.PAUSED, SessionState.QUEUED):
        one = desk.state.session("s")
        assert one is not None
        desk.committer.put_session(replace(one, state=state))
        assert await desk.pass_(12, 0.0) == []


async def test_nothing_is_said_of_when_a_sealed_session_rests(
    history: History, clock: HandClock
) -> None:
    desk = Desk(history, clock)
    one = desk.state.session("s")
    assert one is not None
    spec = replace(one.spec, stage=SessionStage.PREDICT, submission_id="b1")
    desk.committer.put_session(replace(one, spec=spec))
    assert await desk.pass_(300, load=0.0) == []
    assert desk.episodes == []
