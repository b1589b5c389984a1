"""Synchronize a folder in a running replica with a local one: read states, put and remove files.

async with client.sessions.open_folder("@last") as folder:
    states = await folder.states([b"train.py"])
    results = await folder.carry_out([Remove(b"old.py", there)], read)

The caller decides what to do. Only paths that the caller names are replaced or removed.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from nsml.client.errors import ClientError, Unavailable, Unsupported
from nsml.client.files import begun, opened, read_from, write_to
from nsml.copying import messages as m
from nsml.copying import sync_messages as s
from nsml.spec.frames import framed
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence

    from nsml.client.rpc import Rpc
    from nsml.client.tunnels import Tunnel

    Reader = Callable[[s.Put], Iterator[s.Piece]]
    """Reads the content of a file; raises OSError, and ValueError if the file has changed."""

_MOST_HELD = 256 << 10


@asynccontextmanager
async def open_folder(
    rpc: Rpc, reference: str, path: str, *, rank: int = 0
) -> AsyncIterator[SessionFolder]:
    """Open the folder `path` in a replica, relative to where its program was started.

    Raises:
        NotFound, Denied, StateConflict: the folder cannot be used.
        ConnectionLost: the connection broke.
        Unsupported: the node's agent is too old.
        ClientError: as `nsml.client.tunnels.open_tunnel`.
    """
    start = pb.FilesRequest(path=path.encode("utf-8", "surrogateescape"), keeps_in_step=True)
    async with opened(rpc, reference, rank) as tunnel:
        await write_to(tunnel, framed(start.SerializeToString()))
        try:
            first, rest = await begun(tunnel)
        except m.NotUnderstood as error:
            raise _unclear() from error
        if not first.keeps_in_step:
            raise Unsupported("the agent of its node is too old for that")
        folder = SessionFolder(tunnel, rest)
        await folder.greet()
        yield folder


class SessionFolder:
    """An open folder. Call one method at a time. Raises ClientError; unusable after ConnectionLost."""

    def __init__(self, tunnel: Tunnel, came: bytes) -> None:
        self._tunnel = tunnel
        self._incoming = m.Incoming()
        self._came = came

    async def greet(self) -> None:
        """Send the version and wait for the start."""
        await self._say(m.message(m.BEGIN, s.VERSION))
        await self._expected(m.GO)

    async def states(self, paths: Sequence[bytes]) -> list[s.State]:
        """Return the state of each path."""
        states: list[s.State] = []
        for part in s.parts(paths, most=m.MOST_ENTRIES, most_bytes=m.MOST_NAME_BYTES):
            await self._say(s.ask_message(part))
            states += s.states_of(await self._expected(s.STATES), len(part))
        return states

    async def carry_out(self, orders: Sequence[s.Order], read: Reader) -> list[s.Result]:
        """Carry out all orders; return their results in order."""
        results: list[s.Result] = []
        for start in range(0, len(orders), s.MOST_ORDERS):
            part = orders[start : start + s.MOST_ORDERS]
            pieces = _pieces(part, read)
            while said := await asyncio.to_thread(next, pieces, b""):
                await self._say(said)
            results += s.results_of(await self._expected(s.RESULTS), len(part))
        return results

    async def _say(self, data: bytes) -> None:
        try:
            await write_to(self._tunnel, data)
        except m.Refused as error:
            raise _refused(error) from error

    async def _expected(self, kind: bytes) -> Any:
        steps = self._incoming.expect(kind)
        try:
            next(steps)
            while True:
                came, self._came = self._came, b""
                steps.send(came or await read_from(self._tunnel))
        except StopIteration as done:
            return done.value
        except m.NotUnderstood as error:
            raise _unclear() from error
        except m.Refused as error:
            raise ClientError(
                "the session's folder cannot be kept in step", why=str(error)
            ) from error


def _refused(error: m.Refused) -> ClientError:
    return ClientError("the session's folder cannot be kept in step", why=str(error))


def _unclear() -> Unavailable:
    return Unavailable("the node's answer cannot be understood")


def _pieces(orders: Sequence[s.Order], read: Reader) -> Generator[bytes, None, None]:
    """Encode the orders and their content, in bounded pieces."""
    held = bytearray()
    for order in orders:
        held += s.order_message(order)
        if isinstance(order, s.Put):
            why = ""
            try:
                for piece in read(order):
                    held += s.piece_message(piece)
                    if len(held) >= _MOST_HELD:
                        yield bytes(held)
                        held.clear()
            except (OSError, ValueError) as error:
                why = str(error) or "it cannot be read"
            held += m.message(m.CONTENT_END, why[:200])
        if len(held) >= _MOST_HELD:
            yield bytes(held)
            held.clear()
    yield bytes(held + m.message(m.DONE))
