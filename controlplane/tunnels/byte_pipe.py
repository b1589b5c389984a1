"""Bytes that one call puts in and another one takes out; a slow taker holds the putter back."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from controlplane.domain.errors import NsmlError

MOST_BYTES: Final = 256 << 10
"""Held at most, and at most one piece more: what a slow side can cost."""


class Pipe:
    """One direction of a tunnel, for one putter and one taker."""

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
        """Whether the putter has said that nothing follows."""
        return self._is_ended

    def check(self) -> None:
        """Raise what the taker left with if anything was lost by it."""
        if self._left is not None and self._has_lost:
            raise self._left

    # The putter's side.

    async def put(self, piece: bytes) -> None:
        """Pass bytes on, once there is room.

        Raises:
            NsmlError: the taker has left; what it did not take is lost.
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
        """Nothing follows."""
        self._is_ended = True
        self._note()

    def drop(self, error: NsmlError) -> None:
        """Nobody waits for what is left to be taken: unless that is nothing, the taker gets `error`."""
        if self._pieces or not self._is_ended:
            self.leave(error)

    def break_off(self, error: NsmlError) -> None:
        """Nothing follows, though it has not ended: the taker gets what is here and then `error`."""
        if not self._is_ended:
            self._broken = self._broken or error
            self._note()

    async def settled(self) -> bool:
        """Wait until everything was taken; False when the taker has left instead.

        Raises:
            NsmlError: the putter broke off.
        """
        while True:
            if self._is_ended and not self._pieces and not self._has_lost:
                return True
            if self._left is not None:
                return False
            if self._broken is not None:
                raise self._broken
            await self._change()

    # The taker's side.

    async def take(self) -> bytes:
        """The next bytes; empty at the end.

        Raises:
            NsmlError: it broke off, or was left.
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
        """Nobody takes any more; the putter gets `error`."""
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
