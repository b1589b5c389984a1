"""A competition's standings: the reader's own place, and watches; the calls are in `competition_calls`."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from nsml.v1 import competitions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nsml.client.calls import Client
    from nsml.client.streams import OnLink


async def own_standing(
    client: Client, competition: str
) -> tuple[pb.ListStandingsResponse, pb.Standing] | None:
    """Return the standings of the phase that runs, else of the last that began, and the row of the caller's team.

    None: the caller has no team, or there are no standings.
    """
    from nsml.client.errors import NotFound, StateConflict

    try:
        table = await client.competitions.standings(competition)
    except (NotFound, StateConflict):  # it was removed or changed meanwhile
        return None
    own = next((one for one in table.standings if one.is_own), None)
    return (table, own) if own is not None else None


async def watch_standings(
    client: Client,
    competition: str,
    phase: str = "",
    *,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[pb.WatchStandingsResponse, None]:
    """Yield the standings of a phase, now and after each change, until closed; see `nsml.client.streams`."""
    from nsml.client.streams import watch_again

    watching = watch_again(
        client,
        "CompetitionService/WatchStandings",
        pb.WatchStandingsRequest(competition=competition, phase=phase),
        pb.WatchStandingsResponse,
        patience_s=patience_s,
        on_link=on_link,
    )
    async with aclosing(watching):
        async for answer in watching:
            yield answer
