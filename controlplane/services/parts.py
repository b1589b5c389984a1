"""What is more than one message holds, in parts that are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound="Message")

PART_BYTES: Final = 3 << 20
"""Of one part: below gRPC's 4 MiB."""


def parts_of(messages: Iterable[MessageT]) -> list[list[MessageT]]:
    """Cut into parts that fit into a message each; one empty part of nothing."""
    parts: list[list[MessageT]] = [[]]
    size = 0
    for message in messages:
        size += message.ByteSize()
        if parts[-1] and size > PART_BYTES:
            parts.append([])
            size = message.ByteSize()
        parts[-1].append(message)
    return parts
