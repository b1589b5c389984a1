"""What is more than one message holds, in parts that are not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from nsml.common.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Mapping

    from google.protobuf.message import Message

T = TypeVar("T")
MessageT = TypeVar("MessageT", bound="Message")

PART_BYTES: Final = 3 << 20
"""Of one part: below gRPC's 4 MiB."""


AT_ONCE: Final = 200
"""Entries that are made in a few milliseconds; a thread for fewer costs more than it saves."""
ENTRY_CHARS: Final = 16
"""Characters of JSON text that count as an entry."""


async def beside(work: Callable[[], T], *, of: int) -> T:
    """Run `work` in a thread where it makes many entries: others must not wait for what users stored.

    Returns after its end even when cancelled, so that a turn around it lasts as long as the work.

    Args:
        work: makes the entries of an answer.
        of: how many.
    """
    return work() if of <= AT_ONCE else await to_its_end(asyncio.to_thread(work))


def entries_of(values: Mapping[str, Any]) -> int:
    """How many entries JSON values are made of: exactly of plain ones, and too many for `AT_ONCE` with a list or object."""
    is_plain = not any(isinstance(value, list | dict) for value in values.values())
    return len(values) if is_plain else AT_ONCE + 1


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
