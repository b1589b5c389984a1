"""The service agent.files: a copy of files out of a replica, or into it; or its folder is kept in step with another.

The agent looks into none of it: it joins its client to a process in the replica, which is the replica's account there
(`nodeagent/shim/file_server.py`), and each side waits while the other takes nothing.
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
    """Serves it."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits

    async def serve(self, replica: RunningReplica, stream: Stream) -> None:
        """Copy what the first message says, until that is done or the client is gone."""
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
                pass  # its client hears that it is over before its end
        if refused:
            await _say(stream, pb.FilesResponse(refused=refused))


async def _order(stream: Stream) -> tuple[VisitOrder | None, str]:
    """What is to be done, or why not."""
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
    """Pass on what both say, until the process has ended and all that it said was taken."""
    async with TaskGroup() as group:
        giving = group.create_task(_give(visit, stream))
        passing = [group.create_task(_pass_on(one, stream)) for one in visit.sources]
        await visit.ended()
        await asyncio.gather(*passing)
        giving.cancel()


async def _give(visit: Visit, stream: Stream) -> None:
    while data := await stream.read():
        # who is stopped by its user never takes it: while it waits nobody hears that its client has left
        async with asyncio.timeout(_TAKES_WITHIN_S):
            if not await visit.write(data):
                return
    await visit.close_input()


async def _pass_on(source: AsyncIterator[tuple[Output, bytes]], stream: Stream) -> None:
    async for kind, data in source:
        if kind is Output.STANDARD:
            await stream.write(data)
