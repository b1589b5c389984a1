"""What goes wrong in a simulated cluster, chosen by chance. Each kind counts how often it had an effect."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from controlplane.store.election import LEADER_KEY, depose
from controlplane.store.interface import Lease
from tests.simulation.cluster import USERS, Cluster, ControlPlaneProcess
from tests.simulation.machines import SimulatedNode
from tests.simulation.network import KEEPALIVE_S
from tests.simulation.points import AGENT_POINTS, CONTROL_PLANE_POINTS, Points
from tests.simulation.store_link import STORE
from tests.simulation.workload import LOST_AFTER_S

LONG_SILENCE_S = LOST_AFTER_S + 100.0

ROOT = {"asked_by": "root", "reason": "new disks"}

HOUR_S = 3600.0

FAULTS: Mapping[str, float] = {
    "kill agent": 3,
    "kill control plane": 2,
    "stop control plane": 1,
    "take-overs in a row": 0.5,
    "pause control plane": 2,
    "pause agent": 1.5,
    "crash of a control plane at a point": 3,
    "crash of an agent at a point": 3,
    "cut agent": 2,
    "cut agent one way": 1.5,
    "freeze agent": 1.5,
    "orders come again": 1.5,
    "cut client": 1.5,
    "lose answers": 1,
    "slow network": 0.7,
    "cut store": 1.5,
    "cut store one way": 1,
    "freeze store": 1.5,
    "store gone": 0.5,
    "store full": 0.5,
    "lease ends": 1,
    "deposed": 1,
    "lost watch events": 0.5,
    "history gone": 0.7,
    "history fails": 1,
    "history slow": 0.7,
    "objects gone": 0.5,
    "objects fail": 0.7,
    "disk full": 0.7,
    "disk fails": 0.7,
    "disk slow": 0.5,
    "clock of a control plane steps": 0.7,
    "clock of a node steps": 0.7,
    "shim dies": 0.5,
    "reboot": 0.7,
    "long silence": 0.3,
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
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self.rng.expovariate(1 / self.every_s))
                names = list(self.weights)
                (kind,) = self.rng.choices(names, [self.weights[name] for name in names])
                group.create_task(_coroutine(self._KINDS[kind], self, kind))

    def _while(self) -> float:
        """How long something stays broken: mostly for moments."""
        return min(self.rng.expovariate(1 / 3.0), 20.0)

    def _fire(self, kind: str, *facts: object) -> None:
        self.cluster.world.fire(kind, *facts)

    def _node(self) -> SimulatedNode:
        return self.rng.choice(self.cluster.nodes)

    def _plane(self, *, leader_share: float = 0.5) -> ControlPlaneProcess:
        """Any of them, the leader rather often: it is where things go wrong."""
        leader = self.cluster.leader
        if leader is not None and self.rng.random() < leader_share:
            return leader
        return self.rng.choice(self.cluster.planes)

    # Processes.

    async def _kill_agent(self, kind: str) -> None:
        node = self._node()
        if node.has_agent:
            self._fire(kind, node.name)
            await node.kill_agent()
            await asyncio.sleep(self._while())
            await node.start_agent()

    async def _kill_control_plane(self, kind: str) -> None:
        process = self._plane()
        if process.is_alive:
            self._fire(kind, process.address)
            await process.kill()
            await asyncio.sleep(self._while())
            process.start()

    async def _stop_control_plane(self, kind: str) -> None:
        process = self._plane()
        if process.stop():
            self._fire(kind, process.address)
            await process.stopped()
            await asyncio.sleep(self._while())
            process.start()

    async def _take_overs(self, kind: str) -> None:
        """Whoever leads is gone as soon as he does, several times in a row."""
        for _ in range(self.rng.randint(2, 5)):
            until = asyncio.get_running_loop().time() + 10.0
            while (leader := self.cluster.leader) is None:
                if asyncio.get_running_loop().time() > until:
                    return
                await asyncio.sleep(0.05)
            self._fire(kind, leader.address)
            if self.rng.random() < 0.5:
                await leader.kill()
            elif leader.stop():
                await leader.stopped()
            await asyncio.sleep(self.rng.choice((0.0, 0.3, 2.0)))
            leader.start()

    async def _pause_control_plane(self, kind: str) -> None:
        process = self._plane(leader_share=0.7)
        paused = process.process
        if not process.is_alive or paused.is_paused:
            return
        self._fire(kind, process.address)
        paused.pause()
        try:
            await self._be_silent(process.address, self.rng.choice((1.0, 2.9, 3.1, 6.0, 20.0)))
        finally:
            paused.resume(timers_last=self.rng.random() < 0.5)

    async def _pause_agent(self, kind: str) -> None:
        node = self._node()
        paused = node.process
        if not node.has_agent:
            return
        self._fire(kind, node.name)
        paused.pause()
        try:
            await self._be_silent(node.name, self.rng.choice((1.0, 9.0, 14.0, LOST_AFTER_S + 5)))
        finally:
            paused.resume(timers_last=self.rng.random() < 0.5)

    async def _be_silent(self, endpoint: str, for_s: float) -> None:
        for_s *= self.rng.uniform(0.9, 1.1)
        await asyncio.sleep(min(for_s, KEEPALIVE_S))
        if for_s > KEEPALIVE_S:
            self.cluster.network.fall_silent(endpoint)
            await asyncio.sleep(for_s - KEEPALIVE_S)

    async def _crash_control_plane(self, _: str) -> None:
        process = self._plane(leader_share=0.6)
        if await self._reached(process.points, self.rng.choice(CONTROL_PLANE_POINTS)):
            await process.kill()
            await asyncio.sleep(self._while())
            process.start()

    async def _crash_agent(self, _: str) -> None:
        node = self._node()
        if await self._reached(node.points, self.rng.choice(AGENT_POINTS)):
            await node.kill_agent()
            await asyncio.sleep(self._while())
            await node.start_agent()

    async def _reached(self, points: Points, point: str) -> bool:
        fired = points.arm(point, self.rng.choice((1, 1, 1, 2, 5)))
        try:
            async with asyncio.timeout(15.0):
                return await fired.wait()
        except TimeoutError:
            return False

    # The network.

    async def _cut_agent(self, kind: str) -> None:
        await self._at_agent(kind, self._cut)

    async def _freeze_agent(self, kind: str) -> None:
        await self._at_agent(kind, self._freeze)

    async def _cut_agent_one_way(self, kind: str) -> None:
        await self._at_agent(kind, self._freeze_one_way)

    async def _at_agent(self, kind: str, harm: Callable[[str, str], Awaitable[None]]) -> None:
        node = self._node().name
        addresses = [process.address for process in self.cluster.planes]
        if self.rng.random() < 0.5:
            addresses = [self.rng.choice(addresses)]
        self._fire(kind, node, *addresses)
        async with asyncio.TaskGroup() as group:
            for address in addresses:
                group.create_task(_coroutine(harm, node, address))

    async def _orders_again(self, kind: str) -> None:
        """Old ones or the newest: twice, late and out of order."""
        node = self._node().name
        for _ in range(self.rng.choice((1, 1, 3))):
            if self.cluster.network.replay(node):
                self._fire(kind, node)
            await asyncio.sleep(self.rng.uniform(0.0, 0.5))

    async def _cut_client(self, kind: str) -> None:
        machine, address = f"{self.rng.choice(USERS)}-laptop", self._plane().address
        self._fire(kind, machine, address)
        await self._cut(machine, address)

    async def _lose_answers(self, kind: str) -> None:
        machine = f"{self.rng.choice(USERS)}-laptop"
        self._fire(kind, machine)
        for process in self.cluster.planes:
            self.cluster.network.lose_answers(machine, process.address, 0.5)
        await asyncio.sleep(self._while())
        for process in self.cluster.planes:
            self.cluster.network.heal(machine, process.address)

    async def _slow_network(self, kind: str) -> None:
        """Slow and uneven: what is sent on different connections overtakes one another."""
        network = self.cluster.network
        self._fire(kind)
        network.latency_s = (0.001, self.rng.choice((0.05, 0.3, 1.0)))
        await asyncio.sleep(self._while())
        network.latency_s = self.cluster.shape.latency_s

    async def _cut(self, one: str, other: str) -> None:
        self.cluster.network.cut(one, other)
        await asyncio.sleep(self._while())
        self.cluster.network.heal(one, other)

    async def _freeze(self, one: str, other: str) -> None:
        self.cluster.network.freeze(one, other)
        await asyncio.sleep(self._while())
        self.cluster.network.heal(one, other)

    async def _freeze_one_way(self, one: str, other: str) -> None:
        if self.rng.random() < 0.5:
            one, other = other, one
        self.cluster.network.freeze(one, other, one_way=True)
        await asyncio.sleep(self._while() * 2)
        self.cluster.network.heal(one, other)

    # The store.

    async def _cut_store(self, kind: str) -> None:
        await self._at_store(kind, self._cut)

    async def _freeze_store(self, kind: str) -> None:
        await self._at_store(kind, self._freeze)

    async def _cut_store_one_way(self, kind: str) -> None:
        await self._at_store(kind, self._freeze_one_way)

    async def _at_store(self, kind: str, harm: Callable[[str, str], Awaitable[None]]) -> None:
        address = self._plane().address
        self._fire(kind, address)
        await harm(address, STORE)

    async def _store_gone(self, kind: str) -> None:
        """For all control planes at once, and for long."""
        until = asyncio.get_running_loop().time() + self.rng.uniform(5.0, 40.0)
        self._fire(kind)
        while asyncio.get_running_loop().time() < until:
            for process in self.cluster.planes:
                self.cluster.network.cut(process.address, STORE)
            await asyncio.sleep(0.5)  # a shorter cut may have ended meanwhile
        for process in self.cluster.planes:
            self.cluster.network.heal(process.address, STORE)

    async def _store_full(self, kind: str) -> None:
        trouble = self.cluster.durable.store_trouble
        # It may be full again between the room that was made and the try whether there is some.
        self.cluster.trace.tolerated.add("store.not_reclaimed")
        before, trouble.no_space = trouble.hurt, True
        await asyncio.sleep(self._while())
        trouble.no_space = False
        if trouble.hurt > before:
            self._fire(kind)

    async def _lease_ends(self, kind: str) -> None:
        """The store takes a lease for ended that was kept alive."""
        item = await self.cluster.durable.store.get(LEADER_KEY)
        if item is not None and item.lease is not None:
            self._fire(kind)
            lease = Lease(id=item.lease, ttl_s=1.0, valid_until=0.0)
            await self.cluster.durable.store.revoke(lease)

    async def _deposed(self, kind: str) -> None:
        """Somebody takes the leader for dead, who is not."""
        for process in self.cluster.planes:
            leader = process.plane.core.leading.leader if process.plane else None
            if leader is not None:
                if await depose(self.cluster.durable.store, leader):
                    self._fire(kind, leader.address)
                return

    async def _lost_events(self, kind: str) -> None:
        link = self._plane(leader_share=0.7).link
        if link is not None:
            self._fire(kind)
            self.cluster.trace.tolerated.add("cache.drift_repaired")
            link.lose_events(self.rng.choice((1, 1, 2)))

    # History, objects, disks.

    async def _history_gone(self, kind: str) -> None:
        trouble = self.cluster.durable.history_trouble
        before, trouble.is_gone = trouble.hurt, True
        await asyncio.sleep(2 * self._while())
        trouble.is_gone = False
        if trouble.hurt > before:
            self._fire(kind)

    async def _history_fails(self, kind: str) -> None:
        trouble = self.cluster.durable.history_trouble
        before, trouble.failing = trouble.hurt, self.rng.choice((0.2, 0.5, 0.9))
        await asyncio.sleep(2 * self._while())
        trouble.failing = 0.0
        if trouble.hurt > before:
            self._fire(kind)

    async def _history_slow(self, kind: str) -> None:
        trouble = self.cluster.durable.history_trouble
        before, trouble.slow_s = trouble.hurt, self.rng.choice((0.1, 1.0, 5.0))
        await asyncio.sleep(2 * self._while())
        trouble.slow_s = 0.0
        if trouble.hurt > before:
            self._fire(kind)

    async def _objects_gone(self, kind: str) -> None:
        trouble = self.cluster.durable.objects_trouble
        before, trouble.is_gone = trouble.hurt, True
        await asyncio.sleep(4 * self._while())
        trouble.is_gone = False
        if trouble.hurt > before:
            self._fire(kind)

    async def _objects_fail(self, kind: str) -> None:
        trouble = self.cluster.durable.objects_trouble
        before, trouble.failing = trouble.hurt, self.rng.choice((0.2, 0.5, 0.9))
        await asyncio.sleep(4 * self._while())
        trouble.failing = 0.0
        if trouble.hurt > before:
            self._fire(kind)

    async def _disk_full(self, kind: str) -> None:
        disk = self._node().disk
        before, disk.is_full = disk.hurt, True
        await asyncio.sleep(2 * self._while())
        disk.is_full = False
        if disk.hurt > before:
            self._fire(kind)

    async def _disk_fails(self, kind: str) -> None:
        disk = self._node().disk
        before, disk.failing = disk.hurt, self.rng.choice((0.2, 0.5))
        await asyncio.sleep(2 * self._while())
        disk.failing = 0.0
        if disk.hurt > before:
            self._fire(kind)

    async def _disk_slow(self, kind: str) -> None:
        disk = self._node().disk
        self._fire(kind)
        disk.slow_s = self.rng.choice((0.1, 1.0))
        await asyncio.sleep(self._while())
        disk.slow_s = 0.0

    # Clocks and machines.

    async def _clock_of_control_plane(self, kind: str) -> None:
        await self._step(kind, self._plane())

    async def _clock_of_node(self, kind: str) -> None:
        await self._step(kind, self._node())

    async def _step(self, kind: str, whose: ControlPlaneProcess | SimulatedNode) -> None:
        """The wall clock jumps, and after a while back."""
        step_s = self.rng.choice((-HOUR_S, HOUR_S, self.rng.uniform(-20.0, 20.0)))
        self._fire(kind, round(step_s, 3))
        if isinstance(whose, ControlPlaneProcess):
            self.cluster.referee.clocks_stepped = True
        whose.clock.skew_s += step_s
        await asyncio.sleep(3 * self._while())
        whose.clock.skew_s -= step_s

    async def _shim_dies(self, kind: str) -> None:
        node = self._node()
        if node.lose_shim():
            self._fire(kind, node.name)

    async def _reboot(self, kind: str) -> None:
        node = self._node()
        self._fire(kind, node.name)
        await node.reboot()
        await asyncio.sleep(self._while())
        await node.start_agent()

    async def _long_silence(self, kind: str) -> None:
        """Long enough that a session with lost_after must be stopped there and go elsewhere."""
        node = self._node()
        self._fire(kind, node.name)
        if self.rng.random() < 0.5:
            await self._be_dead(node)
        else:
            await self._be_cut(node)

    async def _drain(self, kind: str) -> None:
        """An administrator has a node emptied, by moves or not, and takes it back later."""
        node = self._node().name
        after = self.rng.choice([None, 0.0, self._while()])
        await self.cluster.minding(lambda keeper: keeper.drain(node, move_after_s=after, **ROOT))
        self._fire(kind, node)
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

    _KINDS: ClassVar[Mapping[str, Callable[[Faults, str], Awaitable[None]]]] = {
        "kill agent": _kill_agent,
        "kill control plane": _kill_control_plane,
        "stop control plane": _stop_control_plane,
        "take-overs in a row": _take_overs,
        "pause control plane": _pause_control_plane,
        "pause agent": _pause_agent,
        "crash of a control plane at a point": _crash_control_plane,
        "crash of an agent at a point": _crash_agent,
        "cut agent": _cut_agent,
        "cut agent one way": _cut_agent_one_way,
        "freeze agent": _freeze_agent,
        "orders come again": _orders_again,
        "cut client": _cut_client,
        "lose answers": _lose_answers,
        "slow network": _slow_network,
        "cut store": _cut_store,
        "cut store one way": _cut_store_one_way,
        "freeze store": _freeze_store,
        "store gone": _store_gone,
        "store full": _store_full,
        "lease ends": _lease_ends,
        "deposed": _deposed,
        "lost watch events": _lost_events,
        "history gone": _history_gone,
        "history fails": _history_fails,
        "history slow": _history_slow,
        "objects gone": _objects_gone,
        "objects fail": _objects_fail,
        "disk full": _disk_full,
        "disk fails": _disk_fails,
        "disk slow": _disk_slow,
        "clock of a control plane steps": _clock_of_control_plane,
        "clock of a node steps": _clock_of_node,
        "shim dies": _shim_dies,
        "reboot": _reboot,
        "long silence": _long_silence,
        "drain": _drain,
    }


async def _coroutine(work: Callable[..., Awaitable[None]], *given: object) -> None:
    await work(*given)
