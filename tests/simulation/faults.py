"""What goes wrong in a simulated cluster, chosen by chance."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tests.simulation.cluster import USERS, Cluster
from tests.simulation.machines import SimulatedNode
from tests.simulation.store_link import STORE
from tests.simulation.workload import LOST_AFTER_S

LONG_SILENCE_S = LOST_AFTER_S + 100.0

ROOT = {"asked_by": "root", "reason": "new disks"}

FAULTS: Mapping[str, float] = {
    "kill agent": 3,
    "kill control plane": 3,
    "cut agent": 3,
    "freeze agent": 2,
    "cut client": 2,
    "lose answers": 1,
    "cut store": 1.5,
    "freeze store": 2,
    "reboot": 0.7,
    "long silence": 0.5,
    "drain": 0.7,
}
"""Kinds with their weights."""


@dataclass
class Faults:
    """Breaks things while it runs, several at once, and mends each after a while."""

    cluster: Cluster
    rng: random.Random
    weights: Mapping[str, float]
    every_s: float = 5.0

    async def run(self) -> None:
        """Until cancelled; what is broken then stays so."""
        kinds = {
            "kill agent": self._kill_agent,
            "kill control plane": self._kill_control_plane,
            "cut agent": lambda: self._between_agents(self._cut),
            "freeze agent": lambda: self._between_agents(self._freeze),
            "cut client": self._cut_client,
            "lose answers": self._lose_answers,
            "cut store": lambda: self._at_store(self._cut),
            "freeze store": lambda: self._at_store(self._freeze),
            "reboot": self._reboot,
            "long silence": self._long_silence,
            "drain": self._drain,
        }
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self.rng.expovariate(1 / self.every_s))
                names = list(self.weights)
                (kind,) = self.rng.choices(names, [self.weights[name] for name in names])
                self.cluster.trace.note("fault", kind)
                group.create_task(_coroutine(kinds[kind]))

    def _while(self) -> float:
        """How long something stays broken: mostly for moments."""
        return min(self.rng.expovariate(1 / 3.0), 20.0)

    async def _kill_agent(self) -> None:
        node = self.rng.choice(self.cluster.nodes)
        await node.kill_agent()
        await asyncio.sleep(self._while())
        await node.start_agent()

    async def _kill_control_plane(self) -> None:
        process = self.rng.choice(self.cluster.planes)
        await process.kill()
        await asyncio.sleep(self._while())
        process.start()

    async def _between_agents(self, harm: Callable[[str, str], Awaitable[None]]) -> None:
        node = self.rng.choice(self.cluster.nodes).name
        addresses = [process.address for process in self.cluster.planes]
        if self.rng.random() < 0.5:
            addresses = [self.rng.choice(addresses)]
        async with asyncio.TaskGroup() as group:
            for address in addresses:
                group.create_task(_coroutine(lambda address=address: harm(node, address)))  # type: ignore[misc]

    async def _cut_client(self) -> None:
        machine = f"{self.rng.choice(USERS)}-laptop"
        await self._cut(machine, self.rng.choice(self.cluster.planes).address)

    async def _lose_answers(self) -> None:
        machine = f"{self.rng.choice(USERS)}-laptop"
        for process in self.cluster.planes:
            self.cluster.network.lose_answers(machine, process.address, 0.5)
        await asyncio.sleep(self._while())
        for process in self.cluster.planes:
            self.cluster.network.heal(machine, process.address)

    async def _at_store(self, harm: Callable[[str, str], Awaitable[None]]) -> None:
        await harm(self.rng.choice(self.cluster.planes).address, STORE)

    async def _cut(self, one: str, other: str) -> None:
        self.cluster.network.cut(one, other)
        await asyncio.sleep(self._while())
        self.cluster.network.heal(one, other)

    async def _freeze(self, one: str, other: str) -> None:
        self.cluster.network.freeze(one, other)
        await asyncio.sleep(self._while())
        self.cluster.network.heal(one, other)

    async def _reboot(self) -> None:
        node = self.rng.choice(self.cluster.nodes)
        await node.reboot()
        await asyncio.sleep(self._while())
        await node.start_agent()

    async def _long_silence(self) -> None:
        """Long enough that a session with lost_after must be stopped there and go elsewhere."""
        node = self.rng.choice(self.cluster.nodes)
        self.cluster.trace.note("long silence", node.name)
        if self.rng.random() < 0.5:
            await self._be_dead(node)
        else:
            await self._be_cut(node)

    async def _drain(self) -> None:
        """An administrator has a node emptied, by moves or not, and takes it back later."""
        node = self.rng.choice(self.cluster.nodes).name
        after = self.rng.choice([None, 0.0, self._while()])
        await self.cluster.minding(lambda keeper: keeper.drain(node, move_after_s=after, **ROOT))
        await asyncio.sleep(self._while())
        await self.cluster.minding(lambda keeper: keeper.resume(node, asked_by="root"))

    async def _be_dead(self, node: SimulatedNode) -> None:
        await node.kill_agent()
        await asyncio.sleep(LONG_SILENCE_S)
        await node.start_agent()

    async def _be_cut(self, node: SimulatedNode) -> None:
        until = asyncio.get_running_loop().time() + LONG_SILENCE_S
        while asyncio.get_running_loop().time() < until:
            # Again and again: a shorter cut of the same link may have ended meanwhile.
            for process in self.cluster.planes:
                self.cluster.network.cut(node.name, process.address)
            await asyncio.sleep(0.5)
        for process in self.cluster.planes:
            self.cluster.network.heal(node.name, process.address)


async def _coroutine(work: Callable[[], Awaitable[None]]) -> None:
    await work()
