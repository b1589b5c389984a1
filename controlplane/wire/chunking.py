"""Splits content that exceeds one message."""

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
"""Size of one part: below gRPC's 4 MiB."""


AT_ONCE: Final = 200
"""Entries that take a few milliseconds; a thread for fewer costs more than it saves."""
ENTRY_CHARS: Final = 16
"""Characters of JSON text that count as an entry."""


async def beside(work: Callable[[], T], *, of: int) -> T:
    """Run `work` in a thread if it makes many entries: other calls must not wait for one user's data.

    Returns after its end even when cancelled, so that a turn around it lasts as long as the work.

    Args:
        work: makes the entries of an answer.
        of: number of entries.
    """
    return work() if of <= AT_ONCE else await to_its_end(asyncio.to_thread(work))


def entries_of(values: Mapping[str, Any]) -> int:
    """Count the entries of JSON values: exact for plain values; above `AT_ONCE` with a list or object."""
    is_plain = not any(isinstance(value, list | dict) for value in values.values())
    return len(values) if is_plain else AT_ONCE + 1


def parts_of(messages: Iterable[MessageT]) -> Iterator[list[MessageT]]:
    """Split lazily into parts of one message's size; for no messages one empty part."""
    cutter: _Cutter[MessageT] = _Cutter()
    for message in messages:
        if (full := cutter.add(message)) is not None:
            yield full
    yield cutter.part


async def parts_as_made(messages: AsyncIterable[MessageT]) -> AsyncGenerator[list[MessageT], None]:
    """Like `parts_of`, for messages of an async iterator."""
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
        """Add a message; return the previous part if the message begins another."""
        full, size = None, message.ByteSize()
        if self.part and self._size + size > PART_BYTES:
            full, self.part, self._size = self.part, [], 0
        self.part.append(message)
        self._size += size
        return full
