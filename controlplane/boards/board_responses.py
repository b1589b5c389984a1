"""What viewers of a board see of it: encoded once for all who see the same, whole or as a change."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from controlplane.wire.chunking import PART_BYTES
from nsml.spec.board_changes import EncodedEntries, encoded_change, joined
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsml.spec.board_changes import EncodedChange, EncodedEntry

_MORE: Final = 400
"""Bytes of an encoded entry beside those of its body, at most."""


def encoded_board(board: pb.Board) -> bytes:
    """Encode a board as a part of a WatchBoardResponse."""
    return pb.WatchBoardResponse(board=board).SerializeToString(deterministic=True)


def fitting(entries: Iterable[EncodedEntry]) -> EncodedEntries:
    """Return as many of the first entries as fit into a message."""
    return EncodedEntries(_fitting(entries))


def _fitting(entries: Iterable[EncodedEntry]) -> Iterator[EncodedEntry]:
    size = 0
    for one in entries:
        size += len(one.body) + _MORE
        if size > PART_BYTES:
            return
        yield one


class ShownEntries:
    """The entries that a viewer sees, best first.

    Args:
        shared: as all others see them, too.
        own: those that the viewer sees in another way, by position. Ranks and trend are as in `shared`.
    """

    def __init__(
        self, shared: EncodedEntries, own: Mapping[int, EncodedEntry] | None = None
    ) -> None:
        self._shared = shared
        self._own = own or {}

    @property
    def entries(self) -> Sequence[EncodedEntry]:
        """All entries."""
        found = list(self._shared.entries)
        for at, one in self._own.items():
            found[at] = one
        return found

    def is_same(self, other: ShownEntries) -> bool:
        """Whether they differ in nothing but the GPU seconds of live sessions."""
        if bool(self._own) is not bool(other._own):
            # One of them is made for the viewer alone: own entries are among the shared ones.
            return EncodedEntries(self.entries).is_same(EncodedEntries(other.entries))
        is_same = self._shared is other._shared or self._shared.is_same(other._shared)
        return is_same and _bodies(self._own) == _bodies(other._own)

    def change_from(self, before: ShownEntries) -> bytes | None:
        """Return the `entries` and the `change` of an encoded WatchBoardResponse; None: all entries are as short.

        Most of a change is the same for all viewers, and is found once.
        """
        change = self._shared.change_from(before._shared)
        if not self._is_of_viewer(change, before):
            return encoded_change(EncodedEntries(before.entries), EncodedEntries(self.entries))
        added = [self._own.get(at) or self._shared.entries[at] for at in change.added]
        return joined(change, added, self._shared.size)

    def _is_of_viewer(self, change: EncodedChange, before: ShownEntries) -> bool:
        """Whether the viewer keeps what others keep: own entries stay own ones, and are not changed."""
        count = 0
        for at, one in self._own.items():
            place = change.places[at]
            if place < 0:
                continue
            was = before._own.get(place)
            if was is None or was.body != one.body:
                return False
            count += 1
        return count == sum(place in change.kept for place in before._own)


def _bodies(entries: Mapping[int, EncodedEntry]) -> dict[int, bytes]:
    return {at: one.body for at, one in entries.items()}


class Answer:
    """A board and its entries."""

    def __init__(self, board: bytes, shown: ShownEntries, *, made_at: float) -> None:
        self.made_at = made_at
        self._board = board
        self._shown = shown
        # By the answer before. A watcher holds the one that it has: with the last of them its change goes.
        self._changes: WeakKeyDictionary[Answer, bytes] = WeakKeyDictionary()

    @cached_property
    def encoded(self) -> bytes:
        """The answer as an encoded WatchBoardResponse, which is one of ListEntries, too."""
        # Fields of an encoded message may be joined: those who see the same entries share their encoding.
        return b"".join([self._board, *[one.encoded for one in self._shown.entries]])

    def read(self) -> pb.ListEntriesResponse:
        """Return the answer as a message."""
        return pb.ListEntriesResponse.FromString(self.encoded)

    def is_same(self, other: Answer) -> bool:
        """Whether they differ in nothing but the GPU seconds of live sessions."""
        return self._board == other._board and self._shown.is_same(other._shown)

    def after(self, before: Answer) -> bytes:
        """Return an encoded WatchBoardResponse for watchers that have another answer: its change, if that is shorter.

        It is made once for all of them.
        """
        known = self._changes.get(before)
        if known is None:
            change = self._shown.change_from(before._shown)
            known = self.encoded if change is None else self._board + change
            self._changes[before] = known
        return known
