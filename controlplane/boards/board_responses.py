"""What viewers of a board see of it: encoded once for all who see the same, whole or as a change."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from controlplane.wire.chunking import PART_BYTES
from nsml.spec.board_changes import EncodedEntries, encoded_change
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsml.spec.board_changes import EncodedEntry

_MORE: Final = 64
"""Bytes of an encoded entry around its body, at most."""


class Answer:
    """A board and its entries, best first: as many as fit into a message."""

    def __init__(self, board: pb.Board, entries: Iterable[EncodedEntry], *, made_at: float) -> None:
        self.made_at = made_at
        self._board = pb.WatchBoardResponse(board=board).SerializeToString(deterministic=True)
        self._entries = EncodedEntries(_fitting(entries))
        # By the answer before. A watcher holds the one that it has: with the last of them its change goes.
        self._changes: WeakKeyDictionary[Answer, bytes] = WeakKeyDictionary()

    @cached_property
    def encoded(self) -> bytes:
        """The answer as an encoded WatchBoardResponse, which is one of ListEntries, too."""
        # Fields of an encoded message may be joined: those who see the same entries share their encoding.
        return self._board + self._entries.encoded

    def read(self) -> pb.ListEntriesResponse:
        """Return the answer as a message."""
        return pb.ListEntriesResponse.FromString(self.encoded)

    def is_same(self, other: Answer) -> bool:
        """Whether they differ in nothing but the GPU seconds of live sessions."""
        return self._board == other._board and self._entries.is_same(other._entries)

    def after(self, before: Answer) -> bytes:
        """Return an encoded WatchBoardResponse for watchers that have another answer: its change, if that is shorter.

        It is made once for all of them.
        """
        known = self._changes.get(before)
        if known is None:
            change = encoded_change(before._entries, self._entries)
            known = self.encoded if change is None else self._board + change
            self._changes[before] = known
        return known


def _fitting(entries: Iterable[EncodedEntry]) -> Iterator[EncodedEntry]:
    size = 0
    for one in entries:
        size += len(one.body) + _MORE
        if size > PART_BYTES:
            return
        yield one
