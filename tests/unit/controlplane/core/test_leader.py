"""Leading, its end, and where those who ask the wrong control plane are sent."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.core.dependencies import MemberConfig
from controlplane.core.leader import LeaderLoop
from controlplane.plane import ControlPlane
from controlplane.state.committer import Deposed
from controlplane.store.election import Candidate
from tests.support.platforms import ensure_cluster
from tests.unit.controlplane.rig import serving, surroundings, until


async def test_nobody_is_sent_to_where_they_are() -> None:
    """A predecessor at the same address has died, and its lease has not ended yet."""
    async with (
        surroundings() as on,
        serving(on, member="died", address="a.example:1") as died,
        serving(on, member="again", address="a.example:1") as again,
        serving(on, member="other", address="b.example:1") as other,
    ):

        async def seen() -> bool:
            known = [one.plane.core.leading.leader for one in (died, again, other)]
            return all(known) and len({leader.member for leader in known if leader}) == 1

        await until(seen, "all know the leader")
        leader = other.plane.core.leading.leader
        assert leader is not None
        elsewhere = "" if leader.member == "other" else "a.example:1"
        assert other.plane.core.leading.leader_address() == elsewhere
        expected = "b.example:1" if leader.member == "other" else ""
        assert again.plane.core.leading.leader_address() == expected
        assert died.plane.core.leading.leader_address() == expected


@pytest.mark.parametrize("turns", range(30))
async def test_it_ends_when_told_also_while_it_is_deposed(turns: int) -> None:
    """Told at every turn of the event loop from the loss of its term on."""
    leads, lost = asyncio.Event(), asyncio.Event()

    async def loses() -> None:
        leads.set()
        await lost.wait()
        raise Deposed

    async def lingers() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)

    async with surroundings() as on:
        cluster = await ensure_cluster(on, "embedded")
        plane = ControlPlane(on, MemberConfig(member="one", version="test"), cluster)
        following = asyncio.create_task(plane.core.state.follow())
        leading = asyncio.create_task(
            LeaderLoop(
                store=on.store,
                state=plane.core.state,
                committer=plane.core.committer,
                contacts=plane.core.contacts,
                clock=on.clock,
                candidate=Candidate(member="one", address=""),
                ttl_s=3.0,
            ).run((loses, lingers))
        )
        await leads.wait()
        lost.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        leading.cancel()
        done, _ = await asyncio.wait([leading], timeout=60)
        assert done == {leading}
        assert leading.cancelled()
        following.cancel()
        await asyncio.wait([following])


async def test_it_leads_no_more_before_anything_of_it_ends() -> None:
    """What is refused meanwhile is sent on by who knows that it does not lead."""
    terms: list[int] = []
    async with surroundings() as on, serving(on, member="one") as one:
        leading = one.plane.core.leading
        leads = asyncio.Event()

        async def remembers() -> None:
            leads.set()
            try:
                await asyncio.Event().wait()
            finally:
                terms.append(leading.term)

        await leading.resign()
        leading._standing, leading._leaves = None, False
        running = asyncio.create_task(leading.run([remembers]))
        await leads.wait()
        assert leading.term > 0
        await leading.resign()
        assert terms == [0]
        running.cancel()
        await asyncio.wait([running])
