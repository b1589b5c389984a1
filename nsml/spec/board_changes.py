"""Changes of a watched board: what the control plane sends in place of all entries, and how a client makes these of it.

The format is described at BoardChange in `proto/nsml/v1/boards.proto`. One new score shifts the ranks of all entries below
it, and changes the trend of all entries of its participant: so entries are compared without these, which are sent apart.
"""

from __future__ import annotations

from collections import deque
from functools import cache, cached_property
from itertools import groupby, starmap
from operator import attrgetter, ne, sub
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

_TAG: Final = bytes([pb.WatchBoardResponse.ENTRIES_FIELD_NUMBER << 3 | 2])
"""Of an entry in an encoded WatchBoardResponse: a field with a length."""
_LOW_BITS: Final = 0x7F
_RUN: Final = 3
"""Numbers that describe a run: added, from, kept."""
_COLUMNS: Final = {
    "rank": "ranks",
    "rank_before": "ranks_before",
    "rank_low": "rank_lows",
    "rank_high": "rank_highs",
}
"""Fields of an entry that are shifted in place, and the field of a change with their shifts."""


MOST_TREND: Final = 32
"""Values of a trend: many entries may have one that is sent once."""


class InvalidChange(ValueError):
    """A change that does not fit the entries before it."""


class Ranks(NamedTuple):
    """The ranks of an entry; see BoardEntry."""

    rank: int = 0
    rank_before: int = 0
    rank_low: int = 0
    rank_high: int = 0


class EncodedEntry:
    """An entry that is encoded once, however many answers have it.

    Attributes:
        body: the encoded BoardEntry without what follows. Entries with equal bodies are the same, and may be moved.
        trend: of all entries of a participant the same.
        gpu_seconds: those of a live session, which change all the time and are no change by themselves.
    """

    __slots__ = ("_encoded", "body", "gpu_seconds", "ranks", "trend")

    def __init__(
        self,
        body: bytes,
        ranks: Ranks,
        *,
        trend: tuple[float, ...] = (),
        gpu_seconds: float = 0.0,
    ) -> None:
        self.body = body
        self.ranks = ranks
        self.trend = trend
        self.gpu_seconds = gpu_seconds
        self._encoded: bytes | None = None

    @classmethod
    def of(cls, entry: pb.BoardEntry) -> EncodedEntry:
        """Encode an entry."""
        body = pb.BoardEntry()
        body.CopyFrom(entry)
        for name in (*_COLUMNS, "trend", "gpu_seconds"):
            body.ClearField(name)
        return cls(
            body.SerializeToString(deterministic=True),
            Ranks(entry.rank, entry.rank_before, entry.rank_low, entry.rank_high),
            trend=tuple(entry.trend),
            gpu_seconds=entry.gpu_seconds,
        )

    @property
    def encoded(self) -> bytes:
        """The whole entry, as a part of an encoded WatchBoardResponse or ListEntriesResponse."""
        if self._encoded is None:
            # Fields of an encoded message may come in any order.
            rest = pb.BoardEntry(
                trend=self.trend, gpu_seconds=self.gpu_seconds, **self.ranks._asdict()
            )
            whole = self.body + rest.SerializeToString()
            self._encoded = _prefix(len(whole)) + whole
        return self._encoded


class EncodedEntries:
    """The entries of one answer, best first."""

    def __init__(self, entries: Iterable[EncodedEntry]) -> None:
        self.entries = tuple(entries)
        self._bodies = [one.body for one in self.entries]
        self._changes: WeakKeyDictionary[EncodedEntries, EncodedChange] = WeakKeyDictionary()

    def is_same(self, other: EncodedEntries) -> bool:
        """Whether they differ in nothing but the GPU seconds of live sessions."""
        return (
            self._bodies == other._bodies
            and [one.ranks for one in self.entries] == [one.ranks for one in other.entries]
            and [one.trend for one in self.entries] == [one.trend for one in other.entries]
        )

    def change_from(self, before: EncodedEntries) -> EncodedChange:
        """Return what makes these entries of those before: found once, and kept as long as `before`."""
        change = self._changes.get(before)
        if change is None:
            unused = before._places.copy()
            places = [unused.pop(body, -1) for body in self._bodies]
            change = self._changes[before] = _encoded_change(before.entries, self.entries, places)
        return change

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {body: place for place, body in enumerate(self._bodies)}

    @cached_property
    def size(self) -> int:
        """Bytes of all bodies."""
        return sum(map(len, self._bodies))


class EncodedChange(NamedTuple):
    """What makes entries of others.

    Attributes:
        places: where each entry was before; -1: it is added.
        added: positions of the added entries.
        kept: all places before of kept entries.
        change: the `change` of an encoded WatchBoardResponse.
    """

    places: Sequence[int]
    added: Sequence[int]
    kept: AbstractSet[int]
    change: bytes


def encoded_change(before: EncodedEntries, after: EncodedEntries) -> bytes | None:
    """Return the `entries` and the `change` of an encoded WatchBoardResponse; None: all entries are as short."""
    change = after.change_from(before)
    return joined(change, [after.entries[place] for place in change.added], after.size)


def joined(change: EncodedChange, added: Sequence[EncodedEntry], size: int) -> bytes | None:
    """Return a change with the added entries; None: it is not shorter than `size`."""
    if len(change.change) + sum(len(one.body) for one in added) >= size:
        return None
    return b"".join([*[one.encoded for one in added], change.change])


def _encoded_change(
    before: Sequence[EncodedEntry], after: Sequence[EncodedEntry], places: Sequence[int]
) -> EncodedChange:
    kept = [(before[place], one) for one, place in zip(after, places, strict=True) if place >= 0]
    change = pb.BoardChange(runs=_runs(places))
    old, new = [one.ranks for one, _ in kept], [one.ranks for _, one in kept]
    if old != new:
        for name, was, now in zip(
            _COLUMNS.values(), zip(*old, strict=True), zip(*new, strict=True), strict=True
        ):
            getattr(change, name).extend(_shift_runs(was, now))
    _set_trends(change, [one.trend for one, _ in kept], [one.trend for _, one in kept])
    _set_gpu_seconds(change, [(was.gpu_seconds, now.gpu_seconds) for was, now in kept])
    return EncodedChange(
        places,
        [place for place, was in enumerate(places) if was < 0],
        set(places),
        pb.WatchBoardResponse(change=change).SerializeToString(),
    )


def _runs(places: Iterable[int]) -> Iterator[int]:
    added = first = kept = 0
    for place in places:
        if kept and place != first + kept:
            yield from (added, first, kept)
            added = first = kept = 0
        if place < 0:
            added += 1
        else:
            first = first if kept else place
            kept += 1
    if added or kept:
        yield from (added, first, kept)


def _shift_runs(before: Sequence[int], after: Sequence[int]) -> list[int]:
    if before == after:
        return []
    runs: list[int] = []
    for shift, group in groupby(map(sub, after, before)):
        runs += len(list(group)), shift
    return runs if runs[-1] else runs[:-2]


def _set_trends(
    change: pb.BoardChange,
    before: Sequence[tuple[float, ...]],
    after: Sequence[tuple[float, ...]],
) -> None:
    if before == after:
        return
    entries: dict[tuple[float, ...], list[int]] = {}
    for place, (was, now) in enumerate(zip(before, after, strict=True)):
        if was is not now and was != now:
            entries.setdefault(now, []).append(place)
    for values, places in entries.items():
        change.trends.add(values=values, entries=places)


def _set_gpu_seconds(change: pb.BoardChange, pairs: Sequence[tuple[float, float]]) -> None:
    if not any(starmap(ne, pairs)):
        return
    counts = [(is_new, len(list(group))) for is_new, group in groupby(starmap(ne, pairs))]
    if counts[0][0]:
        change.gpu_seconds_runs.append(0)
    change.gpu_seconds_runs.extend(count for _, count in counts)
    if not counts[-1][0]:
        change.gpu_seconds_runs.pop()
    change.gpu_seconds.extend(now for was, now in pairs if was != now)


def apply_change(
    before: pb.WatchBoardResponse, answer: pb.WatchBoardResponse
) -> pb.WatchBoardResponse:
    """Return the whole answer that an answer with a change stands for; `before`, the whole one before it, stays as it is.

    Raises:
        InvalidChange: it does not fit the entries before.
    """
    change = answer.change
    order = _order(change, len(before.entries), len(answer.entries))
    whole = pb.WatchBoardResponse()
    # One copy of everything, in C, costs less than one of each entry.
    whole.CopyFrom(before)
    whole.board.CopyFrom(answer.board)
    whole.entries.extend(answer.entries)
    if order.is_moved:
        positions = iter(order.positions)
        whole.entries.sort(key=lambda _: next(positions))
        del whole.entries[order.length :]
    if len(change.ListFields()) > 1 or not change.runs:
        kept = [one for one, is_kept in zip(whole.entries, order.is_kept, strict=True) if is_kept]
        for field, name in _COLUMNS.items():
            _shift(kept, field, getattr(change, name))
        _take_trends(kept, change.trends)
        _take_gpu_seconds(kept, change)
    return whole


class _Order(NamedTuple):
    """Where entries are in the new list.

    Attributes:
        positions: of each entry before, and then of each added one; those that are not kept come last.
        length: entries of the new list.
        is_kept: for each of the new list: whether it was in the list before.
    """

    positions: list[int]
    length: int
    is_kept: list[bool]

    @property
    def is_moved(self) -> bool:
        """Whether the new list is another one than that before with the added entries behind it."""
        return self.length != len(self.positions) or self.positions != list(range(self.length))


def _order(change: pb.BoardChange, before: int, added: int) -> _Order:
    runs = list(change.runs)
    starts, counts = runs[1::_RUN], runs[2::_RUN]
    if (
        len(runs) % _RUN
        or sum(runs[::_RUN]) != added
        or sum(counts) > before
        or any(start + count > before for start, count in zip(starts, counts, strict=True))
    ):
        raise InvalidChange("its runs do not fit the entries")
    last = before + added
    positions, is_kept = [last] * last, [False] * (added + sum(counts))
    place, taken = 0, before
    for new, start, count in zip(runs[::_RUN], starts, counts, strict=True):
        positions[taken : taken + new] = range(place, place + new)
        taken += new
        place += new
        positions[start : start + count] = range(place, place + count)
        is_kept[place : place + count] = [True] * count
        place += count
    # As many positions as entries: none was kept twice.
    if last - positions.count(last) != place:
        raise InvalidChange("it keeps an entry twice")
    return _Order(positions, place, is_kept)


def _shift(kept: Sequence[pb.BoardEntry], field: str, runs: Sequence[int]) -> None:
    if len(runs) % 2 or not all(count > 0 for count in runs[::2]) or sum(runs[::2]) > len(kept):
        raise InvalidChange(f"its shifts of {field} do not fit the entries")
    read, place = attrgetter(field), 0
    for count, shift in zip(runs[::2], runs[1::2], strict=True):
        if shift:
            try:
                for one in kept[place : place + count]:
                    setattr(one, field, read(one) + shift)
            except ValueError as error:
                raise InvalidChange(f"it shifts {field} out of its range") from error
        place += count


def _take_trends(kept: Sequence[pb.BoardEntry], trends: Iterable[pb.BoardTrend]) -> None:
    for trend in trends:
        if len(trend.values) > MOST_TREND or max(trend.entries, default=0) >= len(kept):
            raise InvalidChange("its trends do not fit the entries")
        for place in trend.entries:
            kept[place].trend[:] = trend.values


def _take_gpu_seconds(kept: Sequence[pb.BoardEntry], change: pb.BoardChange) -> None:
    runs = change.gpu_seconds_runs
    if len(runs) % 2 or sum(runs) > len(kept) or sum(runs[1::2]) != len(change.gpu_seconds):
        raise InvalidChange("its GPU seconds do not fit the entries")
    values, place = deque(change.gpu_seconds), 0
    for same, count in zip(runs[::2], runs[1::2], strict=True):
        place += same
        for one in kept[place : place + count]:
            one.gpu_seconds = values.popleft()
        place += count


@cache
def _prefix(length: int) -> bytes:
    """Return the tag and the length, seven bits a byte, the low ones first."""
    parts = [_TAG]
    while length > _LOW_BITS:
        parts.append(bytes([length & _LOW_BITS | 0x80]))
        length >>= 7
    return b"".join([*parts, bytes([length])])
