"""A pipe of bytes between two calls; a slow reader blocks the writer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from controlplane.domain.errors import NsmlError

MOST_BYTES: Final = 256 << 10
"""Maximum bytes held, plus one piece: the cost of a slow side."""


class Pipe:
    """One direction of a tunnel, for one writer and one reader."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._is_ended = False
        self._has_lost = False
        self._broken: NsmlError | None = None
        self._left: NsmlError | None = None
        self._changed = asyncio.Event()

    @property
    def is_ended(self) -> bool:
        """Whether the writer has ended the stream."""
        return self._is_ended

    def check(self) -> None:
        """Raise the error that the reader left with if bytes were lost by it."""
        if self._left is not None and self._has_lost:
            raise self._left

    # The writer's side.

    async def put(self, piece: bytes) -> None:
        """Write bytes, once there is room.

        Raises:
            NsmlError: the reader has left; unread bytes are lost.
        """
        while self._held >= self._most_bytes and self._left is None:
            await self._change()
        if self._left is not None:
            self._has_lost = True
            raise self._left
        if piece:
            self._pieces.append(piece)
            self._held += len(piece)
            self._note()

    def end(self) -> None:
        """End the stream."""
        self._is_ended = True
        self._note()

    def drop(self, error: NsmlError) -> None:
        """Do not wait for the reader any more: unless it is at the end, it gets `error`."""
        if self._pieces or not self._is_ended:
            self.leave(error)

    def break_off(self, error: NsmlError) -> None:
        """Break the stream off before its end: the reader gets the unread bytes and then `error`."""
        if not self._is_ended:
            self._broken = self._broken or error
            self._note()

    async def settled(self) -> bool:
        """Wait until everything was read; return False if the reader has left instead.

        Raises:
            NsmlError: the writer broke off.
        """
        while True:
            if self._is_ended and not self._pieces and not self._has_lost:
                return True
            if self._left is not None:
                return False
            if self._broken is not None:
                raise self._broken
            await self._change()

    # The reader's side.

    async def take(self) -> bytes:
        """Return the next bytes; empty at the end.

        Raises:
            NsmlError: the stream broke off, or the reader has left.
        """
        while True:
            if self._left is not None:
                raise self._left
            if self._pieces:
                piece = self._pieces.popleft()
                self._held -= len(piece)
                self._note()
                return piece
            if self._is_ended:
                return b""
            if self._broken is not None:
                raise self._broken
            await self._change()

    def leave(self, error: NsmlError) -> None:
        """Stop reading; the writer gets `error`."""
        if self._left is None:
            self._left = error
            self._has_lost = bool(self._pieces)
            self._pieces.clear()
            self._held = 0
            self._note()

    def _note(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _change(self) -> None:
        await self._changed.wait()
