"""The agent's side of a program on the node itself (`nodeagent/shim/node_visitor.py`)."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.runtimes.launcher import reap_at_end, start_node_visitor
from nodeagent.runtimes.visits import BEGIN_AT_ONCE, NotAdmitted, begun
from nsml.common.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.runtimes.visits import Visit, VisitOrder

GRACE_S: Final = 5.0
"""From SIGHUP to SIGKILL."""


class NodeVisits:
    """Starts programs on the node of this name, with the agent's account.

    What is left of them is killed `grace_s` after the hangup.
    """

    def __init__(self, node: str, grace_s: float = GRACE_S) -> None:
        self._start = partial(start_node_visitor, node, grace_s=grace_s)
        self._beginning = asyncio.Semaphore(BEGIN_AT_ONCE)

    @asynccontextmanager
    async def started(self, order: VisitOrder) -> AsyncIterator[Visit]:
        """Start a program on the node, while the context lasts. Raises NotAdmitted."""
        async with self._beginning:
            try:
                end = await self._admitted()
            except OSError as error:
                raise NotAdmitted(error.strerror or str(error)) from error
            visit = await begun(end, order)
        with closing(visit):
            yield visit

    async def _admitted(self) -> socket.socket:
        """Return the connection of a new visitor. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                # uninterrupted: the descriptor must not be reused meanwhile
                visitor = await to_its_end(asyncio.to_thread(self._start, theirs.fileno()))
            except BaseException:
                ours.close()
                raise
        reap_at_end(visitor)
        return ours
