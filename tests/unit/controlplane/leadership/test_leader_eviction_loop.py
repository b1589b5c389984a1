"""Leaders that die, hang, cannot be reached, or only look dead: one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controlplane.core.dependencies import Backends, MemberConfig
from controlplane.domain import leader_eviction as rules
from controlplane.leadership import leader_eviction_loop as leader_eviction
from controlplane.leadership.feature import deposing
from controlplane.plane import ControlPlane
from controlplane.store.election import Leader, last_deposed
from controlplane.store.interface import StoreUnavailable
from nsml.client.channel import Channel
from tests.support.leaders import current_leader
from tests.support.platforms import ensure_cluster
from tests.unit.controlplane.rig import surroundings, until

LONG_S = 60.0
"""A lease that does not end during a test: what happens then does not come from its end."""


@dataclass
class Town:
    """Which processes are at which addresses, and who reaches whom."""

    living: dict[str, str] = field(default_factory=dict)
    refusing: set[str] = field(default_factory=set)
    """Refused in their name although they live, as a firewall does it."""
    silent: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass
class Way:
    town: Town

    def channel(self, address: str, *, is_tls: bool) -> Channel:
        raise NotImplementedError

    async def attend(self, leader: Leader, met: Callable[[], None]) -> None:
        while (
            self.town.living.get(leader.address) == leader.process
            and leader.address not in self.town.silent | self.town.refusing
        ):
            met()
            await self.town.changed.wait()

    async def refuses(self, address: str) -> bool:
        await asyncio.sleep(0)
        if address in self.town.silent:
            return False
        return address in self.town.refusing or address not in self.town.living

    async def close(self) -> None:
        """Nothing is held."""


class Lifeline:
    """The store as one process reaches it: not at all, once that is dead."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        if self.is_cut:
            raise StoreUnavailable("its process is dead")
        return getattr(self._store, name)


class Verdicts:
    """A judge whose verdicts are kept."""

    def __init__(self, judge: rules.Judge) -> None:
        self._judge = judge
        self._refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judge, name)

    def may_depose(self, process: str, refusals: int, now: float) -> bool:
        may = self._judge.may_depose(process, refusals, now)
        is_proof = refusals >= rules.REFUSALS and process in self._judge.met
        self._refused += is_proof and not may
        return may

    async def has_refused_proof(self) -> bool:
        return self._refused >= 5


@dataclass
class Platform:
    on: Backends
    town: Town
    lifelines: dict[str, Lifeline] = field(default_factory=dict)
    planes: dict[str, ControlPlane] = field(default_factory=dict)
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    starts: int = 0

    async def start(self, name: str) -> ControlPlane:
        self.starts += 1
        # Its lease outlives it, as it would with a store that is asked over the network.
        who = MemberConfig(
            member=f"{name}.{self.starts}", version="1", address=name, lease_s=LONG_S, instance=name
        )
        lifeline = self.lifelines[name] = Lifeline(self.on.store)
        on = replace(self.on, peers=Way(self.town), store=lifeline)  # type: ignore[arg-type]
        plane = ControlPlane(on, who, await ensure_cluster(self.on, "embedded"))
        self.planes[name] = plane
        self.town.living[name] = plane.core.process
        self.running[name] = asyncio.create_task(plane.run())
        return plane

    async def kill(self, name: str) -> None:
        """Its lease goes on, since what it does on its way out does not reach the store."""
        self.lifelines[name].is_cut = True
        del self.planes[name]
        task = self.running.pop(name)
        task.cancel()
        await asyncio.wait([task])
        self.town.living.pop(name, None)
        self.town.tell()

    async def leads(self, *, but: str = "") -> str:
        async def leading() -> str:
            found = [name for name, plane in self.planes.items() if plane.core.committer.is_leading]
            leader = await current_leader(self.on.store)
            is_known = leader is not None and leader.address in found
            return found[0] if found and is_known and found != [but] else ""

        name: str = await until(leading, "somebody leads", timeout_s=60)
        return name

    async def all_have_met(self, leader: str) -> None:
        process = self.planes[leader].core.process

        async def met() -> bool:
            others = [plane for name, plane in self.planes.items() if name != leader]
            return all(process in one.core.shared(deposing)._judge.met for one in others)

        await until(met, "the others have met it")


@contextlib.asynccontextmanager
async def a_platform(*names: str) -> AsyncIterator[Platform]:
    async with surroundings() as on:
        platform = Platform(on, Town())
        try:
            for name in names:
                await platform.start(name)
            yield platform
        finally:
            for task in platform.running.values():
                task.cancel()
            await asyncio.wait(platform.running.values())


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "NOT_TWICE_WITHIN_S", 0.0)
    monkeypatch.setattr(leader_eviction, "AGAIN_S", 0.01)


async def test_twenty_take_overs_in_a_row(hurry: None) -> None:
    async with a_platform("a", "b", "c") as platform:
        terms = []
        for _ in range(20):
            leader = await platform.leads()
            await platform.all_have_met(leader)
            terms.append(platform.planes[leader].core.leading.term)
            await platform.kill(leader)
            await platform.leads()
            await platform.start(leader)
        assert terms == sorted(set(terms))


async def test_two_are_not_deposed_within_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    # As long as the test may take: what it waits for must not take long enough.
    monkeypatch.setattr(rules, "NOT_TWICE_WITHIN_S", LONG_S)
    monkeypatch.setattr(leader_eviction, "AGAIN_S", 0.01)
    async with a_platform("a", "b", "c") as platform:
        first = await platform.leads()
        await platform.all_have_met(first)
        await platform.kill(first)
        second = await platform.leads()
        deposed_at = await last_deposed(platform.on.store)
        assert deposed_at
        await platform.all_have_met(second)
        [left] = [plane for name, plane in platform.planes.items() if name != second]
        judged = Verdicts(left.core.shared(deposing)._judge)
        monkeypatch.setattr(left.core.shared(deposing), "_judge", judged)
        await platform.kill(second)
        await until(judged.has_refused_proof, "it is judged again and again")
        assert await last_deposed(platform.on.store) == deposed_at
        assert not left.core.committer.is_leading
        # Agents are not sent to the dead meanwhile.
        assert left.core.leading.leader_address() == ""
        # Only the time between the two held it back.
        monkeypatch.setattr(rules, "NOT_TWICE_WITHIN_S", 0.0)
        assert platform.planes[await platform.leads()] is left


async def test_silence_deposes_nobody(hurry: None) -> None:
    async with a_platform("a", "b") as platform:
        leader = await platform.leads()
        await platform.all_have_met(leader)
        term = platform.planes[leader].core.leading.term
        platform.town.silent.add(leader)
        platform.town.tell()
        await asyncio.sleep(0.5)
        assert platform.planes[leader].core.leading.term == term


async def test_nobody_is_sent_to_a_leader_that_hangs_before_it_has_outlived_its_lease(
    hurry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host takes connections for it: an agent that is sent there waits for nothing."""
    monkeypatch.setattr(leader_eviction, "SILENT_S", LONG_S)  # it does not pass by itself
    async with a_platform("a", "b") as platform:
        leader = await platform.leads()
        await platform.all_have_met(leader)
        other = platform.planes["b" if leader == "a" else "a"].core.leading
        platform.town.silent.add(leader)
        platform.town.tell()

        async def sends_to() -> str:
            return other.leader_address() or "nowhere"

        async def is_left() -> bool:
            return await sends_to() == "nowhere"

        await until(is_left, "it is suspected")
        for _ in range(300):  # for many looks, and between any two of its own steps
            await asyncio.sleep(0.001)
            assert await is_left()
        monkeypatch.setattr(leader_eviction, "SILENT_S", 0.0)

        async def is_trusted() -> bool:
            return await sends_to() == leader

        await until(is_trusted, "only the way to it is cut")


async def test_who_is_only_refused_in_its_name_is_deposed_once(hurry: None) -> None:
    async with a_platform("a", "b") as platform:
        first = await platform.leads()
        await platform.all_have_met(first)
        other = "b" if first == "a" else "a"
        platform.town.refusing |= {"a", "b"}
        platform.town.tell()
        # Each deposes the other at most once: then both know that the other lives.
        assert await platform.leads(but=first) == other
        leader = await current_leader(platform.on.store)
        await asyncio.sleep(0.5)
        assert await current_leader(platform.on.store) == leader


async def test_a_stranger_at_the_leaders_address_is_no_proof(hurry: None) -> None:
    """Two hosts each call their own loopback by the same address."""
    async with a_platform("a", "b") as platform:
        leader = await platform.leads()
        term = platform.planes[leader].core.leading.term
        judge = platform.planes["b" if leader == "a" else "a"].core.shared(deposing)._judge
        judge.met.clear()
        platform.town.living.pop(leader)
        platform.town.tell()
        await asyncio.sleep(0.3)
        assert platform.planes[leader].core.leading.term == term or not judge.accused
