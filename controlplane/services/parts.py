"""What is more than one message holds, in parts that are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator

    from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound="Message")

PART_BYTES: Final = 3 << 20
"""Of one part: below gRPC's 4 MiB."""


def parts_of(messages: Iterable[MessageT]) -> Iterator[list[MessageT]]:
    """Cut into parts that fit into a message each, as they are asked for; an empty one of nothing."""
    part: list[MessageT] = []
    size = 0
    for message in messages:
        size += message.ByteSize()
        if part and size > PART_BYTES:
            yield part
            part, size = [], message.ByteSize()
        part.append(message)
    yield part


async def parts_as_made(messages: AsyncIterable[MessageT]) -> AsyncGenerator[list[MessageT], None]:
    """Like `parts_of`, of messages that take their time."""
    part: list[MessageT] = []
    size = 0
    async for message in messages:
        size += message.ByteSize()
        if part and size > PART_BYTES:
            yield part
            part, size = [], message.ByteSize()
        part.append(message)
    yield part
