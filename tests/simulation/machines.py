"""Simulated machines: what runs on them outlives their agents, what is on their disks their power."""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nodeagent.agent import Agent
from nodeagent.config import Settings
from nodeagent.dependencies import Dependencies, Machine
from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.journal import Journal
from nodeagent.machine.meter import HeldDevices
from nodeagent.probes.simulated import SimulatedProbe
from nodeagent.runtimes.interface import Isolation, ReplicaSpec
from nodeagent.runtimes.records import read_exit
from nsml._frames import HEADER, MAGIC
from nsml.v1 import agents_pb2, resources_pb2
from tests.simulation.invariants import Referee
from tests.simulation.network import Network
from tests.simulation.points import Points
from tests.simulation.virtual_time import Process, VirtualClock
from tests.simulation.workload import Wish
from tests.support.fake_machine import FakeDriver, FakeMachine, Script

T = TypeVar("T")

_SAMPLE_EVERY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class World:
    """What everything in one simulation shares."""

    network: Network
    clock: VirtualClock
    rng: random.Random
    referee: Referee
    wishes: Mapping[str, Wish]
    group: asyncio.TaskGroup
    fired: Counter[str] = field(default_factory=Counter)
    outside: Context = field(default_factory=copy_context)
    """Where nothing belongs to any process."""

    def fire(self, kind: str, *facts: Any) -> None:
        """A fault has had its effect."""
        self.referee.trace.note("fault", kind, *facts)
        self.fired[kind] += 1


class Meter:
    """Readings of a machine that does nothing."""

    def sample(self) -> agents_pb2.NodeSample:
        return agents_pb2.NodeSample()


class WatchedMachine(FakeMachine):
    """Tells the referee when programs begin and are gone."""

    def __init__(self, world: World, node: str, clock: VirtualClock) -> None:
        self._world = world
        self._node = node
        super().__init__(clock, self._script)

    def _script(self, spec: ReplicaSpec) -> Script:
        self._world.referee.began(self._node, spec)
        return self._world.wishes[spec.argv[1]].script(spec.replica_id.rank)

    def start(self, spec: ReplicaSpec, folder: ReplicaFolder) -> None:
        if not folder.shim.exists():
            # What starts belongs to the machine: a pause of the agent is none of the program.
            self._world.outside.copy().run(super().start, spec, folder)
            self._world.group.create_task(
                self._see_end(spec.replica_id, folder), context=self._world.outside.copy()
            )

    def order_stop(self, replica_id: ReplicaId, *, grace_s: float, reason: str) -> None:
        if self.running(replica_id):
            self._world.referee.stop_ordered(replica_id, reason)
        super().order_stop(replica_id, grace_s=grace_s, reason=reason)

    def lose_one(self, rng: random.Random) -> bool:
        """The shim of a replica that runs is killed."""
        running = sorted((one for one in self._processes if self.running(one)), key=str)
        if running:
            self.lose(rng.choice(running))
        return bool(running)

    async def _see_end(self, replica: ReplicaId, folder: ReplicaFolder) -> None:
        await self.gone(replica)
        self._world.referee.stopped(
            replica, read_exit(folder), folder.output.read_bytes(), tuple(_records(folder))
        )


def _records(folder: ReplicaFolder) -> list[tuple[int, bytes]]:
    """Numbers and payloads of what the program reported, read without the agent's reader."""
    path = folder.spool / "1.records"
    data = path.read_bytes() if path.exists() else MAGIC
    position, found = len(MAGIC), []
    while position < len(data):
        length, _, number = HEADER.unpack_from(data, position)
        position += HEADER.size + length
        found.append((number, data[position - length : position]))
    return found


@dataclass
class DiskTrouble:
    """What is wrong with a node's disk: writes fail, or a share of them; `slow_s` each at most."""

    is_full: bool = False
    failing: float = 0.0
    slow_s: float = 0.0
    hurt: int = 0


class WatchedJournal:
    """The journal on a disk that can refuse, with the points around it; the referee sees it too."""

    def __init__(self, journal: Journal, node: SimulatedNode) -> None:
        self._journal = journal
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def obey(self, term: int, revision: int) -> None:
        self._at("obey", lambda: self._journal.obey(term, revision))
        referee, position = self._node.world.referee, (term, revision)
        referee.obeyed(self._node.name, position, self._journal.highest())

    def join(self, cluster_id: str) -> None:
        self._at("join", lambda: self._journal.join(cluster_id))

    def acknowledge(self, cursors: Any) -> None:
        self._at("acknowledge", lambda: self._journal.acknowledge(cursors))
        self._node.world.referee.remembered(self._node.name, cursors)

    def forget(self, replica_id: ReplicaId) -> None:
        self._at("forget", lambda: self._journal.forget(replica_id))

    def _at(self, what: str, work: Callable[[], None]) -> None:
        points = self._node.points
        points.passing_now(f"journal {what} before")
        self._node.refuse_writes("the journal")
        work()
        points.passing_now(f"journal {what} after")


class WatchedDriver(FakeDriver):
    """The runtime with the points around what it does to the machine."""

    def __init__(self, node: SimulatedNode, machine: FakeMachine) -> None:
        super().__init__(ReplicaFolders(node.data / "replicas"), machine, node.clock)
        self._points = node.points

    async def start(self, spec: ReplicaSpec) -> Any:
        await self._points.passing("runtime start before")
        handle = await super().start(spec)
        await self._points.passing("runtime start after")
        return handle

    async def stop(self, replica_id: ReplicaId, **order: Any) -> None:
        await self._points.passing("runtime stop before")
        await super().stop(replica_id, **order)
        await self._points.passing("runtime stop after")

    async def remove(self, replica_id: ReplicaId) -> None:
        await self._points.passing("runtime remove before")
        await super().remove(replica_id)
        await self._points.passing("runtime remove after")


@dataclass
class SimulatedNode:
    """One machine with its disk; its agent comes and goes, and so does its power."""

    world: World
    name: str
    data: Path
    token: str
    servers: str
    devices: int = 4
    boots: int = 0
    incarnations: int = 0
    disk: DiskTrouble = field(default_factory=DiskTrouble)
    _agent: asyncio.Task[None] | None = None
    _killed: asyncio.Task[None] | None = None
    _alive: list[bool] = field(default_factory=list)
    _power: asyncio.Event = field(default_factory=asyncio.Event)
    _on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.points = Points(self._crashed)
        self.process = Process(f"agent {self.name}")
        self.clock = VirtualClock(asyncio.get_running_loop())

    async def run(self) -> None:
        """Its life, from boot to boot."""
        while True:
            self.boots += 1
            async with WatchedMachine(self.world, self.name, self.clock) as machine:
                self._machine = machine
                self._power.clear()
                self._on.set()
                await self._power.wait()

    @property
    def has_agent(self) -> bool:
        return self._agent is not None and not self.process.is_paused

    async def start_agent(self) -> None:
        """Begin an agent on what the last one left."""
        await self._on.wait()
        # One that is killed while another fault, or the end of all of them, begins the next.
        if self._killed is not None:
            await asyncio.wait([self._killed])
        if self._agent is None:
            self.incarnations += 1
            self.world.referee.trace.note("agent", self.name, self.incarnations)
            self.process = Process(f"agent {self.name}.{self.incarnations}")
            self._alive = [True]
            self._agent = self.world.group.create_task(
                self._live(self._alive), name=f"agent {self.name}", context=self.process.context()
            )

    async def kill_agent(self) -> None:
        """SIGKILL: what it was doing is left half done, programs run on."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        self._killed = agent
        self.world.referee.trace.note("agent killed", self.name)
        self._end_now()
        agent.cancel()
        self.points.bury()
        self.process.bury()
        await asyncio.wait([agent])

    def _end_now(self) -> None:
        """Nothing that the agent does from here on has an effect."""
        self._alive[:] = [False]
        self.world.network.crash(self.name)

    def _crashed(self, point: str) -> None:
        self.world.fire("crash of an agent at a point", self.name, point)
        self.process.die()
        self._end_now()

    async def reboot(self) -> None:
        """The machine loses power and comes back, without an agent still."""
        await self.kill_agent()
        self.world.referee.trace.note("power lost", self.name)
        self.world.referee.reboots[self.name] += 1
        self._on.clear()
        self._power.set()
        await self._on.wait()

    def lose_shim(self) -> bool:
        """One replica's shim dies, and its program with it; False when nothing runs."""
        self.world.referee.reboots[self.name] += 1
        return self._machine.lose_one(self.world.rng)

    def leftovers(self) -> list[str]:
        """Replicas that have a folder."""
        return [str(one) for one in ReplicaFolders(self.data / "replicas").ids()]

    def refuse_writes(self, what: str) -> None:
        """Raise OSError when the disk takes nothing now."""
        if self.disk.is_full or (self.disk.failing and self.world.rng.random() < self.disk.failing):
            self.disk.hurt += 1
            raise OSError(errno.ENOSPC, f"{what}: no space left on device (simulated)")

    async def _live(self, alive: list[bool]) -> None:
        world = self.world
        journal = Journal.open(self.data / "journal.db")

        async def run(work: Callable[[], T], /) -> T:
            await asyncio.sleep(world.rng.uniform(0.0, self.disk.slow_s))
            if not alive[0]:
                raise asyncio.CancelledError
            await self.points.passing("disk before")
            done = work()
            await self.points.passing("disk after")
            return done

        held = HeldDevices(self.clock)
        probe = SimulatedProbe(self.name, self.devices, self.clock, held.loads)
        machine = self._machine
        settings = Settings(
            node=self.name, server=self.servers, data=self.data, sample_interval_s=_SAMPLE_EVERY_S
        )
        parts = Dependencies(
            clock=self.clock,
            rng=random.Random(f"{self.name} {self.incarnations} {world.rng.random()}"),
            run=run,
            run_long=run,
            channel_factory=lambda address, **_: world.network.channel(self.name, address),
            runtime=WatchedDriver(self, machine),
            journal=WatchedJournal(journal, self),  # type: ignore[arg-type]
            machine=self._facts(),
            probe=probe,
            load=held.update,
            meter=Meter(),
            token=lambda: self.token,
            has_sockets=False,
            touch=lambda _, replica: machine.contacted(replica),
        )
        try:
            await Agent(settings, parts).run()
        finally:
            alive[0] = False
            journal.close()

    def _facts(self) -> Machine:
        return Machine(
            boot_id=f"{self.name}-boot-{self.boots}",
            host=f"{self.name}.lab",
            isolation=Isolation.NAMESPACE,
            isolation_note="",
            capacity=resources_pb2.Resources(cpu_thousandths=16_000, memory_bytes=64 << 30),
        )
