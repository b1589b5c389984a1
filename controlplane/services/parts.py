"""What is more than one message holds, in parts that are not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nsml.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator

    from google.protobuf.message import Message

T = TypeVar("T")
MessageT = TypeVar("MessageT", bound="Message")

PART_BYTES: Final = 3 << 20
"""Of one part: below gRPC's 4 MiB."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread: for answers as large as what users stored, which others must not wait for.

    Returns after its end even when cancelled, so that a turn around it lasts as long as the work.
    """
    return await to_its_end(asyncio.to_thread(work))


def parts_of(messages: Iterable[MessageT]) -> Iterator[list[MessageT]]:
    """Cut into parts that fit into a message each, as they are asked for; an empty one of nothing."""
    cutter: _Cutter[MessageT] = _Cutter()
    for message in messages:
        if (full := cutter.add(message)) is not None:
            yield full
    yield cutter.part


async def parts_as_made(messages: AsyncIterable[MessageT]) -> AsyncGenerator[list[MessageT], None]:
    """Like `parts_of`, of messages that take their time."""
    cutter: _Cutter[MessageT] = _Cutter()
    async for message in messages:
        if (full := cutter.add(message)) is not None:
            yield full
    yield cutter.part


class _Cutter(Generic[MessageT]):
    """The part that is being filled."""

    def __init__(self) -> None:
        self.part: list[MessageT] = []
        self._size = 0

    def add(self, message: MessageT) -> list[MessageT] | None:
        """Take a message; the part before, if the message begins another."""
        full, size = None, message.ByteSize()
        if self.part and self._size + size > PART_BYTES:
            full, self.part, self._size = self.part, [], 0
        self.part.append(message)
        self._size += size
        return full
