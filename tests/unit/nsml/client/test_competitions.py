"""Calls of competitions, over connections that break."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from nsml.client import errors
from nsml.client.competitions import own_standing, watch_standings
from nsml.v1 import competitions_pb2 as pb


async def test_a_competition_from_its_creation_to_its_removal(client, server):
    settings = pb.CompetitionSettings(title="Cup")
    settings.phases.add(name="final")
    made = await client.competitions.create("cup", settings)
    assert (made.owner, made.name, made.state) == ("kim", "cup", pb.COMPETITION_STATE_DRAFT)
    settings.title = "Digits"
    assert (await client.competitions.update("cup", settings)).settings.title == "Digits"
    assert (await client.competitions.open("cup")).state == pb.COMPETITION_STATE_OPEN
    with pytest.raises(errors.StateConflict):
        await client.competitions.remove("cup")
    assert [one.name for one in await client.competitions.every()] == ["cup"]
    assert (await client.competitions.open_page("cup")).endswith("/kim/cup?ticket=T")
    assert (await client.competitions.close("cup")).state == pb.COMPETITION_STATE_CLOSED
    await client.competitions.remove("kim/cup")
    with pytest.raises(errors.NotFound):
        await client.competitions.get("cup")


async def test_all_competitions_are_read_page_by_page(client, server):
    names = [f"cup-{number}" for number in range(5)]
    for name in names:
        server.state.add_competition(f"kim/{name}")
    assert [one.name for one in await client.competitions.every()] == names
    assert server.state.calls.count("ListCompetitions") == 3


async def test_teams(client, server):
    server.state.add_competition("kim/cup").teams.add(name="tigers")
    assert (await client.competitions.join("cup", "lions")).name == "lions"
    await client.competitions.invite("cup", ["lee"])
    assert (await client.competitions.get("cup")).team.invited == ["lee"]
    assert not (await client.competitions.merge("cup", "tigers", "cats")).is_merged
    assert (await client.competitions.pick("cup", ["sub1"], "final")).picks == ["sub1"]
    assert (await client.competitions.disqualify("cup", "tigers", "why")).disqualified == "why"
    await client.competitions.leave("cup")
    with pytest.raises(errors.StateConflict):
        await client.competitions.leave("cup")


async def test_what_the_organiser_does(client, server):
    server.state.add_competition("kim/cup")
    await client.competitions.set_baseline("cup", "sub1", "Linear")
    await client.competitions.announce("cup", "hello")
    assert await client.competitions.rerun("cup", "final", 2) == 2
    assert server.state.baselines == {"sub1": "Linear"}
    assert [one.text for one in (await client.competitions.get("cup")).announcements] == ["hello"]
    assert b"".join([part async for part in client.competitions.export("cup")])[-2:] == b"}\n"


async def test_the_own_place_is_that_of_the_team(client, server):
    server.state.add_competition("kim/cup")
    server.state.add_standing("kim/cup", "tigers", 0.9)
    assert await own_standing(client, "cup") is None
    server.state.add_standing("kim/cup", "lions", 0.8, is_own=True)
    found = await own_standing(client, "cup")
    assert found is not None
    table, own = found
    assert (table.phase, own.team, own.rank) == ("qualifying", "lions", 2)
    assert await own_standing(client, "none") is None


async def test_standings_are_watched_over_a_restart(client, server):
    server.state.add_competition("kim/cup")
    server.state.add_standing("kim/cup", "lions", 0.9)
    assert (await client.competitions.standings("cup", "final")).phase == "final"
    seen = []
    async with asyncio.timeout(60), aclosing(watch_standings(client, "cup")) as watching:
        async for answer in watching:
            seen.append(len(answer.standings))
            if len(seen) == 1:
                await asyncio.to_thread(server.cut)
                await asyncio.to_thread(server.restore)
                server.state.add_standing("kim/cup", "tigers", 0.8)
            else:
                break
    assert seen == [1, 2]
