"""One end of a tunnel, as a call carries it: frames in and frames out at the same time."""

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
"""Of data in one frame."""
LEAVES_WITHIN_S: Final = 5.0
"""How long an agent may take to close its stream when the client has left: it may wait for a program that reads nothing."""
FIRST_WITHIN_S: Final = 10.0
"""How long a caller may take to say where the tunnel leads."""

FrameT = TypeVar("FrameT")


class Frame(Protocol):
    """What both calls' requests have."""

    @property
    def data(self) -> bytes:
        """Bytes that are passed on."""
        ...

    @property
    def end(self) -> bool:
        """Whether nothing follows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What both calls' responses have."""

    data: bytes = b""
    end: bool = False
    gone: bool = False


async def first_frame(frames: AsyncIterator[FrameT]) -> FrameT:
    """The frame that says which tunnel.

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
    """Put what comes into one pipe while yielding what comes out of the other.

    Returns when both directions have ended and everything was taken, or when the caller has closed
    its stream: never while it may be sending, since gRPC's clients then lose what they have not
    read yet. One that has nothing to lose has `leaves_within_s` for that once the other side is gone.

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
    """Until the caller's stream is over: then nothing more comes, and nothing more is taken."""
    broken = Unavailable("the tunnel broke")
    reason: NsmlError = broken
    async for frame in frames:
        if len(frame.data) > FRAME_BYTES or (frame.data and into.is_ended):
            reason = InvalidRequest(
                "not a frame of a tunnel", why=f"{FRAME_BYTES} bytes at most, none after `end`"
            )
            break
        with suppress(NsmlError):  # left by its taker: `passing` says so
            await into.put(frame.data)
        if frame.end:
            into.end()
    into.break_off(broken)
    out.leave(reason)
