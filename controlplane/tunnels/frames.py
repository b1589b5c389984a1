"""One end of a tunnel as a call: frames in and frames out at the same time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from controlplane.domain.errors import InvalidRequest, NsmlError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from controlplane.tunnels.byte_pipe import Pipe
    from controlplane.tunnels.pacing import Pacing

FRAME_BYTES: Final = 256 << 10
"""Maximum data in one frame."""
LEAVES_WITHIN_S: Final = 5.0
"""How long an agent may take to close its stream after the client has left: it may wait for a program that does not read."""
FIRST_WITHIN_S: Final = 10.0
"""How long a caller may take to name the tunnel's target."""

FrameT = TypeVar("FrameT")


class Frame(Protocol):
    """Common fields of both calls' requests."""

    @property
    def data(self) -> bytes:
        """Bytes to pass on."""
        ...

    @property
    def end(self) -> bool:
        """Whether the stream ends here."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """Common fields of both calls' responses."""

    data: bytes = b""
    end: bool = False
    gone: bool = False


async def first_frame(frames: AsyncIterator[FrameT]) -> FrameT:
    """Return the frame that names the tunnel.

    Raises:
        InvalidRequest: there is none, or not in time.
    """
    try:
        async with asyncio.timeout(FIRST_WITHIN_S):
            first = await anext(frames, None)
    except TimeoutError as error:
        raise InvalidRequest("the first message of a tunnel did not come") from error
    if first is None:
        raise InvalidRequest("a tunnel without a first message")
    return first


async def passing(
    frames: AsyncIterator[Frame],
    *,
    into: Pipe,
    out: Pipe,
    pacing: Pacing,
    leaves_within_s: float | None = None,
) -> AsyncGenerator[Passed, None]:
    """Write incoming bytes into one pipe while yielding the other's.

    Returns when both directions have ended and everything was read, or when the caller has closed
    its stream: never while it may be sending, since gRPC's clients then lose their unread
    bytes. A caller with nothing to lose has `leaves_within_s` for that after the other side has left.

    Raises:
        NsmlError: the tunnel broke, bytes are lost, or the caller broke the contract.
    """
    filling = asyncio.create_task(_fill(frames, into, out), name="tunnel.fill")
    try:
        try:
            while piece := await out.take():
                await pacing.wait(len(piece))
                yield Passed(data=piece)
            yield Passed(end=True)
        except NsmlError:
            has_closed = filling.done() and into.is_ended
            if not has_closed:
                raise
        if not await into.settled():
            yield Passed(gone=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(leaves_within_s):
                    await filling
            into.check()
    finally:
        filling.cancel()


async def _fill(frames: AsyncIterator[Frame], into: Pipe, out: Pipe) -> None:
    """Read until the caller's stream ends: then nothing more is written or read."""
    broken = Unavailable("the tunnel broke")
    reason: NsmlError = broken
    async for frame in frames:
        if len(frame.data) > FRAME_BYTES or (frame.data and into.is_ended):
            reason = InvalidRequest(
                "not a frame of a tunnel", why=f"{FRAME_BYTES} bytes at most, none after `end`"
            )
            break
        with suppress(NsmlError):  # its reader has left: `passing` reports it
            await into.put(frame.data)
        if frame.end:
            into.end()
    into.break_off(broken)
    out.leave(reason)
