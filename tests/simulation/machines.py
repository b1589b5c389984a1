"""Simulated machines: what runs on them outlives their agents, what is on their disks their power."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nodeagent.agent import Agent
from nodeagent.config import Settings
from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.journal import Journal
from nodeagent.meter import HeldDevices
from nodeagent.parts import Machine, Parts
from nodeagent.probes.simulated import SimulatedProbe
from nodeagent.runtimes.fake import FakeDriver, FakeMachine, Script
from nodeagent.runtimes.interface import Isolation, ReplicaSpec
from nodeagent.runtimes.records import read_exit
from nsml._frames import HEADER, MAGIC
from nsml.clock import Clock
from nsml.v1 import agents_pb2, resources_pb2
from tests.simulation.invariants import Referee
from tests.simulation.network import Network
from tests.simulation.workload import Wish

T = TypeVar("T")

DEVICES = 4
CONTROL_PLANE = "controlplane"
"""The name under which agents and clients know all control planes."""

_SAMPLE_EVERY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class World:
    """What everything in one simulation shares."""

    network: Network
    clock: Clock
    rng: random.Random
    referee: Referee
    wishes: Mapping[str, Wish]
    group: asyncio.TaskGroup


class Meter:
    """Readings of a machine that does nothing."""

    def sample(self) -> agents_pb2.NodeSample:
        return agents_pb2.NodeSample()


class WatchedMachine(FakeMachine):
    """Tells the referee when programs begin and are gone."""

    def __init__(self, world: World, node: str) -> None:
        self._world = world
        self._node = node
        super().__init__(world.clock, self._script)

    def _script(self, spec: ReplicaSpec) -> Script:
        self._world.referee.began(self._node, spec)
        return self._world.wishes[spec.argv[1]].script(spec.replica_id.rank)

    def start(self, spec: ReplicaSpec, folder: ReplicaFolder) -> None:
        if not folder.shim.exists():
            super().start(spec, folder)
            self._world.group.create_task(self._see_end(spec.replica_id, folder))

    async def _see_end(self, replica: ReplicaId, folder: ReplicaFolder) -> None:
        await self.gone(replica)
        self._world.referee.stopped(
            replica, read_exit(folder), folder.output.read_bytes(), tuple(_records(folder))
        )


def _records(folder: ReplicaFolder) -> list[bytes]:
    """The payloads of what the program reported, read without the agent's reader."""
    path = folder.spool / "1.records"
    data = path.read_bytes() if path.exists() else MAGIC
    position, found = len(MAGIC), []
    while position < len(data):
        length = HEADER.unpack_from(data, position)[0]
        position += HEADER.size + length
        found.append(data[position - length : position])
    return found


@dataclass
class SimulatedNode:
    """One machine with its disk; its agent comes and goes, and so does its power."""

    world: World
    name: str
    data: Path
    token: str
    server: str = CONTROL_PLANE
    boots: int = 0
    incarnations: int = 0
    _agent: asyncio.Task[None] | None = None
    _power: asyncio.Event = field(default_factory=asyncio.Event)
    _on: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Its life, from boot to boot."""
        while True:
            self.boots += 1
            async with WatchedMachine(self.world, self.name) as machine:
                self._machine = machine
                self._power.clear()
                self._on.set()
                await self._power.wait()

    @property
    def has_agent(self) -> bool:
        return self._agent is not None

    async def start_agent(self) -> None:
        """Begin an agent on what the last one left."""
        await self._on.wait()
        if self._agent is None:
            self.incarnations += 1
            self.world.referee.trace.note("agent", self.name, self.incarnations)
            self._agent = self.world.group.create_task(self._live(), name=f"agent {self.name}")

    async def kill_agent(self) -> None:
        """SIGKILL: what it was doing is left half done, programs run on."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        self.world.referee.trace.note("agent killed", self.name)
        agent.cancel()
        self.world.network.crash(self.name)
        await asyncio.wait([agent])

    async def reboot(self) -> None:
        """The machine loses power and comes back, without an agent still."""
        await self.kill_agent()
        self.world.referee.trace.note("power lost", self.name)
        self.world.referee.reboots[self.name] += 1
        self._on.clear()
        self._power.set()
        await self._on.wait()

    def leftovers(self) -> list[str]:
        """Replicas that have a folder."""
        return [str(one) for one in ReplicaFolders(self.data / "replicas").ids()]

    async def _live(self) -> None:
        world = self.world
        journal = Journal.open(self.data / "journal.db")
        alive = [True]

        async def run(work: Callable[[], T], /) -> T:
            await asyncio.sleep(0)
            if not alive[0]:
                raise asyncio.CancelledError
            return work()

        held = HeldDevices(world.clock)
        probe = SimulatedProbe(self.name, DEVICES, world.clock, held.loads)
        machine = self._machine
        settings = Settings(
            node=self.name, server=self.server, data=self.data, sample_interval_s=_SAMPLE_EVERY_S
        )
        parts = Parts(
            clock=world.clock,
            rng=random.Random(f"{self.name} {self.incarnations} {world.rng.random()}"),
            run=run,
            run_long=run,
            channel_factory=lambda address: world.network.channel(self.name, address),
            runtime=FakeDriver(ReplicaFolders(self.data / "replicas"), machine, world.clock),
            journal=journal,
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
