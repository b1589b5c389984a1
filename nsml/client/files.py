"""Copy files out of and into running sessions, through the control plane.

report = await client.sessions.copy_out("@last", "checkpoints", "here")
report = await client.sessions.copy_in("@last", "data.csv", "data.csv")

Both resume an interrupted copy, and skip files that are there already: same size, same time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nsml.client.errors import (
    ClientError,
    ConnectionLost,
    Denied,
    NotFound,
    StateConflict,
    Unavailable,
    Unsupported,
)
from nsml.client.tunnels import open_agent_service
from nsml.copying.messages import Incoming, NotUnderstood, Refused
from nsml.copying.receiver import Receiver
from nsml.copying.sender import Sender
from nsml.spec import agent_services
from nsml.spec.frames import NotFrames, first_of, framed
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractAsyncContextManager

    from nsml.client.rpc import Rpc
    from nsml.client.tunnels import Tunnel
    from nsml.copying.messages import Report

    Progress = Callable[[int, int], None]
    """Called with the bytes done and the bytes in total; 0 in total if unknown."""


FILES: Final = "FILES"
"""The reason of errors reported by the session's side."""


async def copy_out(
    rpc: Rpc,
    reference: str,
    path: str,
    target: str | os.PathLike[str],
    *,
    rank: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Copy a file or folder of a replica to `target`, or into it if that is a folder.

    Raises:
        NotFound, Denied, StateConflict: the source cannot be read.
        OSError: the target cannot be written.
        ConnectionLost: the connection broke; another call resumes.
        ClientError: as `nsml.client.tunnels.open_tunnel`.
    """
    if os.open not in os.supports_dir_fd:
        raise Unsupported("files cannot be copied out of sessions to this system")
    receiver = Receiver(os.fsencode(target), own_name(os.fsencode(path)), keeps_inside=True)
    start = pb.FilesRequest(path=os.fsencode(path), sends=True)
    async with opened(rpc, reference, rank) as tunnel:
        return await _copied(tunnel, start, receiver, progress)


async def copy_in(
    rpc: Rpc,
    reference: str,
    source: str | os.PathLike[str],
    path: str,
    *,
    rank: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Copy a file or folder to `path` in a replica, or into it if that is a folder there. Raises as `copy_out`."""
    name = own_name(os.fsencode(source))
    start = pb.FilesRequest(path=os.fsencode(path), sends=False, name=name)
    with closing(await asyncio.to_thread(Sender, os.fsencode(source))) as sender:
        async with opened(rpc, reference, rank) as tunnel:
            return await _copied(tunnel, start, sender, progress)


def opened(rpc: Rpc, reference: str, rank: int) -> AbstractAsyncContextManager[Tunnel]:
    """Open a tunnel to the file service."""
    what = "files of sessions"
    return open_agent_service(rpc, reference, agent_services.FILES, rank=rank, what=what)


def own_name(path: bytes) -> bytes:
    """Return the name of its copy in a folder; empty for "." and "a/.", which mean only the contents."""
    name = os.path.basename(path.rstrip(b"/"))  # noqa: PTH119 - of bytes
    return b"" if name in {b".", b".."} else name


async def _copied(
    tunnel: Tunnel, start: pb.FilesRequest, side: Receiver | Sender, progress: Progress | None
) -> Report:
    try:
        await write_to(tunnel, framed(start.SerializeToString()))
        _, rest = await begun(tunnel)
        await _carry_out(tunnel, side, rest, progress)
    except NotUnderstood as error:
        raise Unavailable("the node's answer cannot be understood") from error
    except Refused as error:
        raise _refusal(error, start) from error
    if side.report is None:
        raise ConnectionLost("the connection to the session broke")
    # Send no end of stream: the other side has closed or is closing, and might not receive it.
    return side.report


async def begun(tunnel: Tunnel) -> tuple[pb.FilesResponse, bytes]:
    """Return the start response and the bytes after it. Raises ClientError, NotUnderstood."""
    held = b""
    try:
        while (found := first_of(held)) is None:
            held += await read_from(tunnel)
        first = pb.FilesResponse.FromString(found[0])
    except (NotFrames, DecodeError) as error:
        raise NotUnderstood from error
    if first.WhichOneof("kind") == "refused":
        raise StateConflict("no files can be copied in this session", why=first.refused)
    if not first.started:
        raise NotUnderstood
    return first, found[1]


async def _carry_out(
    tunnel: Tunnel, side: Receiver | Sender, came: bytes, progress: Progress | None
) -> None:
    """Run this side of the copy. Raises NotUnderstood, Refused, OSError, ClientError."""
    steps = _Steps(side.steps())
    said = await asyncio.to_thread(steps.next, b"")
    try:
        while said is not None:
            if said:
                await write_to(tunnel, said)
            else:
                came = came or await read_from(tunnel)
            given, came = (b"", came) if said else (came, b"")
            said = await asyncio.to_thread(steps.next, given)
            if progress is not None:
                progress(side.done_bytes, side.total_bytes)
    finally:
        await asyncio.to_thread(steps.close)


class _Steps:
    """Steps that may be closed while one runs."""

    def __init__(self, steps: Generator[bytes, bytes, None]) -> None:
        self._steps = steps
        self._turn = threading.Lock()

    def next(self, came: bytes) -> bytes | None:
        """Return the bytes to send; empty: read more first; None: the end."""
        with self._turn:
            try:
                return self._steps.send(came) if came else next(self._steps)
            except StopIteration:
                return None

    def close(self) -> None:
        """Close the generator and its files."""
        with self._turn:
            self._steps.close()


async def read_from(tunnel: Tunnel) -> bytes:
    """Read some bytes. Raises ConnectionLost, also at the end."""
    try:
        data = await tunnel.read()
    except Unavailable as error:
        raise _broken(error) from error
    if not data:
        raise ConnectionLost("the connection to the session broke", why="its end was not said")
    return data


async def write_to(tunnel: Tunnel, data: bytes) -> None:
    """Send it. Raises Refused with the other side's reason, else ConnectionLost."""
    try:
        await tunnel.write(data)
    except Unavailable as error:
        steps = Incoming().next()
        next(steps)
        try:
            while True:
                steps.send(await tunnel.read() or b"\xff" * 4)
        except (StopIteration, NotUnderstood, ClientError):
            raise _broken(error) from error


def _broken(error: Unavailable) -> ConnectionLost:
    return ConnectionLost("the connection to the session broke", why=error.why)


def _refusal(error: Refused, start: pb.FilesRequest) -> ClientError:
    """Convert an error of the session's side, by its errno name."""
    kinds = {"ENOENT": NotFound, "EACCES": Denied, "EPERM": Denied}
    kind = kinds.get(error.name, ClientError)
    what = "copied" if start.sends else "written"
    path = os.fsdecode(start.path)
    return kind(f"{path!r} in the session cannot be {what}", why=str(error), reason=FILES)
