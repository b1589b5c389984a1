"""Changes of a watched board: what the control plane sends in place of all entries, and how a client makes these of it.

The format is described at BoardChange in `proto/nsml/v1/boards.proto`. One new score shifts the ranks of all entries below
it, and changes the trend of all entries of its participant: so entries are compared without these, which are sent apart.
"""

from __future__ import annotations

from collections import deque
from functools import cache, cached_property
from itertools import groupby, pairwise, starmap
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
    before: Sequence[pb.BoardEntry], answer: pb.WatchBoardResponse
) -> list[pb.BoardEntry]:
    """Return the entries that an answer with a change stands for; those before it stay as they are.

    Entries that are as before are the same objects.

    Raises:
        InvalidChange: it does not fit the entries before.
    """
    change = answer.change
    entries, kept = _in_order(change, before, answer.entries)
    edits = _Edits(entries, kept)
    for field, name in _COLUMNS.items():
        _shift(edits, field, getattr(change, name))
    _take_trends(edits, change.trends)
    _take_gpu_seconds(edits, change)
    return entries


def _in_order(
    change: pb.BoardChange, before: Sequence[pb.BoardEntry], added: Sequence[pb.BoardEntry]
) -> tuple[list[pb.BoardEntry], list[int]]:
    """Return the new list, and where in it the entries are that were in the list before."""
    runs = list(change.runs)
    starts, counts = runs[1::_RUN], runs[2::_RUN]
    if (
        len(runs) % _RUN
        or sum(runs[::_RUN]) != len(added)
        or sum(counts) > len(before)
        or any(start + count > len(before) for start, count in zip(starts, counts, strict=True))
    ):
        raise InvalidChange("its runs do not fit the entries")
    if any(a + count > b for (a, count), (b, _) in pairwise(_by_start(starts, counts))):
        raise InvalidChange("it keeps an entry twice")
    entries: list[pb.BoardEntry] = []
    kept: list[int] = []
    taken = 0
    for new, start, count in zip(runs[::_RUN], starts, counts, strict=True):
        entries += added[taken : taken + new]
        taken += new
        kept += range(len(entries), len(entries) + count)
        entries += before[start : start + count]
    return entries, kept


def _by_start(starts: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int]]:
    return sorted(run for run in zip(starts, counts, strict=True) if run[1])


class _Edits:
    """Changes of a new list: the first one of an entry that was in the list before replaces it by a copy.

    Args:
        kept: where in the list these are.
    """

    def __init__(self, entries: list[pb.BoardEntry], kept: Sequence[int]) -> None:
        self._entries = entries
        self._kept = kept
        self._copied: set[int] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def entry(self, number: int) -> pb.BoardEntry:
        """Return an entry to change, by its number among those that were kept."""
        if number not in self._copied:
            copy, at = pb.BoardEntry(), self._kept[number]
            copy.CopyFrom(self._entries[at])
            self._entries[at] = copy
            self._copied.add(number)
        return self._entries[self._kept[number]]


def _shift(edits: _Edits, field: str, runs: Sequence[int]) -> None:
    if len(runs) % 2 or not all(count > 0 for count in runs[::2]) or sum(runs[::2]) > len(edits):
        raise InvalidChange(f"its shifts of {field} do not fit the entries")
    read, place = attrgetter(field), 0
    for count, shift in zip(runs[::2], runs[1::2], strict=True):
        if shift:
            try:
                for one in map(edits.entry, range(place, place + count)):
                    setattr(one, field, read(one) + shift)
            except ValueError as error:
                raise InvalidChange(f"it shifts {field} out of its range") from error
        place += count


def _take_trends(edits: _Edits, trends: Iterable[pb.BoardTrend]) -> None:
    for trend in trends:
        if len(trend.values) > MOST_TREND or max(trend.entries, default=0) >= len(edits):
            raise InvalidChange("its trends do not fit the entries")
        for one in map(edits.entry, trend.entries):
            one.trend[:] = trend.values


def _take_gpu_seconds(edits: _Edits, change: pb.BoardChange) -> None:
    runs = change.gpu_seconds_runs
    if len(runs) % 2 or sum(runs) > len(edits) or sum(runs[1::2]) != len(change.gpu_seconds):
        raise InvalidChange("its GPU seconds do not fit the entries")
    values, place = deque(change.gpu_seconds), 0
    for same, count in zip(runs[::2], runs[1::2], strict=True):
        place += same
        for one in map(edits.entry, range(place, place + count)):
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
