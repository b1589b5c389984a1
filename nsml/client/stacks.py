"""Stacks of the Python threads of a session's replicas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nsml.client.errors import NoSuchService, Unavailable
from nsml.v1.sessions_pb2 import ReplicaStacks
from nsml.view.stacks import SeenReplica

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session

_AT_ONCE: Final = 16
"""Replicas queried concurrently."""


async def read_stacks(
    client: Client, session: Session, ranks: Sequence[int] = (), *, with_locals: bool = False
) -> Sequence[SeenReplica]:
    """Return the stacks of the replicas of these ranks, by default of all. Raises ClientError.

    With several replicas, an unavailable node does not hide the others.
    """
    turns = asyncio.Semaphore(_AT_ONCE)
    # The platform refuses unknown ranks.
    wanted = sorted(set(ranks)) or [one.rank for one in session.replicas] or [0]

    async def seen(rank: int) -> SeenReplica:
        async with turns:
            try:
                found = await client.sessions.stacks(session.id, rank=rank, with_locals=with_locals)
            except (NoSuchService, Unavailable) as error:
                if len(session.replicas) == 1:
                    raise
                found = ReplicaStacks(unseen=f"{error.message}: {error.why}".removesuffix(": "))
        return SeenReplica(rank=rank, found=found, unseen=found.unseen)

    return await asyncio.gather(*map(seen, wanted))
