"""The service agent.files: copies files out of a replica, or into it; or synchronizes its folder with another.

The agent parses none of it: it joins its client to a process in the replica, with the replica's account
(`nodeagent/shim/file_server.py`), and each side waits while the other does not read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nodeagent.runtimes.visits import NotAdmitted, Output, VisitOrder
from nsml.common.concurrency import TaskGroup
from nsml.copying.messages import MOST_PATH_BYTES
from nsml.spec.frames import Frames, NotFrames, framed
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.link.services import RunningReplica, Stream
    from nodeagent.runtimes.visits import Visit, Visits

_MOST_NAME: Final = 255
_TAKES_WITHIN_S: Final = 60.0


class Files:
    """Serves `agent.files`."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits

    async def serve(self, replica: RunningReplica, stream: Stream) -> None:
        """Carry out the copy of the first message, until it is done or the client disconnects."""
        order, refused = await _order(stream)
        if order is not None:
            try:
                async with self._visits.started(replica.folder, order) as visit:
                    in_step = bool(order.copy and order.copy["keeps_in_step"])
                    await _say(stream, pb.FilesResponse(started=True, keeps_in_step=in_step))
                    await _join(visit, stream)
            except* NotAdmitted as error:
                refused = str(error.exceptions[0])
            except* TimeoutError:
                pass  # its client is sent the end of the stream
        if refused:
            await _say(stream, pb.FilesResponse(refused=refused))


async def _order(stream: Stream) -> tuple[VisitOrder | None, str]:
    """Return the order, or why it is refused."""
    frames, request = Frames(), None
    try:
        while request is None and (data := await stream.read()):
            for message in frames.feed(data):
                request = pb.FilesRequest.FromString(message)
        if request is None or not frames.is_between:
            return None, "what its client says cannot be understood"
    except (NotFrames, DecodeError):
        return None, "what its client says cannot be understood"
    if not 0 < len(request.path) <= MOST_PATH_BYTES or b"\0" in request.path:
        return None, f"a path has 1 to {MOST_PATH_BYTES} bytes"
    name = request.name
    if len(name) > _MOST_NAME or b"/" in name or b"\0" in name or name in {b".", b".."}:
        return None, "it cannot be called so"
    copy = {
        "path": request.path.decode("utf-8", "surrogateescape"),
        "sends": request.sends,
        "name": name.decode("utf-8", "surrogateescape"),
        "keeps_in_step": request.keeps_in_step,
    }
    return VisitOrder(argv=(), environment={}, terminal=None, copy=copy), ""


async def _say(stream: Stream, response: pb.FilesResponse) -> None:
    await stream.write(framed(response.SerializeToString()))


async def _join(visit: Visit, stream: Stream) -> None:
    """Relay both ways, until the process has ended and all of its output is sent."""
    async with TaskGroup() as group:
        giving = group.create_task(_give(visit, stream))
        passing = [group.create_task(_pass_on(one, stream)) for one in visit.sources]
        await visit.ended()
        await asyncio.gather(*passing)
        giving.cancel()


async def _give(visit: Visit, stream: Stream) -> None:
    while data := await stream.read():
        # a stopped process never reads it: while this waits, the client's end goes unnoticed
        async with asyncio.timeout(_TAKES_WITHIN_S):
            if not await visit.write(data):
                return
    await visit.close_input()


async def _pass_on(source: AsyncIterator[tuple[Output, bytes]], stream: Stream) -> None:
    async for kind, data in source:
        if kind is Output.STANDARD:
            await stream.write(data)
