"""Watchers of one board, many in a process of their own; `bench.competition` starts it and compares what they saw.

Standard input has one JSON object of `Watching`, and later one line with the entries that the whole board has in the
end, `[submission, owner, score]` each, best first. Then one JSON object of `Seen` is written to standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nsml.client.boards import Selection, watch_board
from nsml.client.connect import connect
from nsml.client.contexts import Context
from nsml.common.concurrency import TaskGroup
from nsml.v1 import boards_pb2 as pb

WHOLE, TOP, OWN = "whole", "top", "own"
KINDS: Final[Mapping[str, Selection]] = {
    WHOLE: Selection(),
    TOP: Selection(limit=50),
    OWN: Selection(own_only=True),
}
"""What watchers request: all entries of an answer, the best ones, or their own."""
MOST: Final = 1_000
"""Entries of one answer."""
PATIENCE_S: Final = 60.0
_SHOWN: Final = 5

Expected = Sequence[tuple[str, str, float]]


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """One watcher: a user, by token, and what is watched."""

    user: str
    token: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What a process of watchers has to do."""

    server: str
    ca: str
    server_name: str
    board: str
    watchers: Sequence[Watcher]


@dataclass(kw_only=True)
class Seen:
    """What the watchers of a process saw.

    Attributes:
        wrong: sentences on answers that were wrong.
        answers: number of answers, by kind of watcher.
        entries: number of their entries, by kind of watcher.
        at: by kind of watcher and submission, the times at which watchers had its score first.
        scores: by submission, each score that was seen.
    """

    wrong: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    at: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)


def mistakes(kind: str, entries: Iterable[pb.BoardEntry]) -> list[str]:
    """Return what is wrong with an answer in itself: order, ranks, scores before the end of a submission."""
    found = []
    before = None
    is_over = False
    for place, one in enumerate(entries, 1):
        has_score = one.HasField("score")
        if has_score != (one.state == pb.SUBMISSION_STATE_SCORED):
            found.append(f"{one.submission_id} has state {one.state} and score: {has_score}")
        if kind != OWN and one.rank != (place if has_score else 0):
            found.append(f"{one.submission_id} has rank {one.rank} in place {place}")
        if has_score:
            if is_over:
                found.append(f"{one.submission_id} has a score behind entries without one")
            key = -one.score, one.submitted_at.ToNanoseconds()
            if before is not None and before > key:
                found.append(f"{one.submission_id} is behind a worse entry")
            before = key
        is_over = is_over or not has_score
    return found


def view(kind: str, user: str, expected: Expected) -> list[tuple[str, float, int]]:
    """Return what a watcher has to see of the whole board: submission, score and rank."""
    ranked = [
        (submission, score, rank)
        for rank, (submission, owner, score) in enumerate(expected, 1)
        if kind != OWN or owner == user
    ]
    return ranked[: KINDS[kind].limit or MOST]


def scored(entries: Iterable[pb.BoardEntry]) -> list[tuple[str, float, int]]:
    """Return what a watcher sees: of each entry with a score, submission, score and rank."""
    return [(one.submission_id, one.score, one.rank) for one in entries if one.HasField("score")]


class Watchers:
    """All watchers of a process."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._seen = Seen()
        self._at: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._scores: dict[str, set[float]] = defaultdict(set)
        self._last: dict[int, Sequence[pb.BoardEntry]] = {}
        self._changed = asyncio.Condition()

    async def run(self) -> Seen:
        """Watch until standard input says what is to be seen in the end, and that is seen."""
        reader = asyncio.StreamReader(limit=1 << 30)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        kinds = [one.kind for one in self._watching.watchers]
        async with TaskGroup() as group:
            tasks = [
                group.create_task(self._follow(number, one, checks=kinds.index(one.kind) == number))
                for number, one in enumerate(self._watching.watchers)
            ]
            async with self._changed:
                await self._changed.wait_for(lambda: len(self._last) == len(tasks))
            print("watching", flush=True)
            expected = json.loads(await reader.readline())
            await self._reach(expected)
            for task in tasks:
                task.cancel()
        self._seen.at = {kind: dict(found) for kind, found in self._at.items()}
        self._seen.scores = {one: sorted(found) for one, found in self._scores.items()}
        return self._seen

    async def _reach(self, expected: Expected) -> None:
        """Wait until every watcher sees what it has to, or note what it sees instead."""
        missing = {
            number: view(one.kind, one.user, expected)
            for number, one in enumerate(self._watching.watchers)
        }

        def all_seen() -> bool:
            for number in list(missing):
                if scored(self._last[number]) == missing[number]:
                    del missing[number]
            return not missing

        try:
            async with asyncio.timeout(PATIENCE_S), self._changed:
                await self._changed.wait_for(all_seen)
        except TimeoutError:
            for number, wanted in missing.items():
                one, has = self._watching.watchers[number], scored(self._last[number])
                pairs = zip(has, wanted, strict=False)
                others = [f"{one} for {other}" for one, other in pairs if one != other]
                self._seen.wrong.append(
                    f"{one.user} ({one.kind}) sees {len(has)} of {len(wanted)} entries in the end:"
                    f" {'; '.join(others[:_SHOWN])}"
                )
        for number, one in enumerate(self._watching.watchers):
            self._check(one.kind, self._last[number])

    async def _follow(self, number: int, watcher: Watcher, *, checks: bool) -> None:
        """Watch; `checks`: look for mistakes in each answer, which takes longer than to receive it."""
        watching = self._watching
        context = Context(
            name="bench",
            server=watching.server,
            ca=watching.ca,
            server_name=watching.server_name,
        )
        known: set[str] = set()
        times, kind = self._at[watcher.kind], watcher.kind
        async with connect(context, token=watcher.token) as client:
            async for answer in watch_board(client, watching.board, KINDS[kind]):
                now = time.time()
                entries = answer.entries
                # Answers share what did not change.
                last = set(map(id, self._last.get(number, ())))
                for one in entries:
                    if (
                        id(one) not in last
                        and one.submission_id not in known
                        and one.HasField("score")
                    ):
                        known.add(one.submission_id)
                        times[one.submission_id].append(now)
                        self._scores[one.submission_id].add(one.score)
                if checks:
                    self._check(kind, entries)
                self._seen.answers[kind] = self._seen.answers.get(kind, 0) + 1
                self._seen.entries[kind] = self._seen.entries.get(kind, 0) + len(entries)
                async with self._changed:
                    self._last[number] = entries
                    self._changed.notify_all()

    def _check(self, kind: str, entries: Sequence[pb.BoardEntry]) -> None:
        self._seen.wrong += mistakes(kind, entries)[:_SHOWN]
        for submission, score, _ in scored(entries):
            self._scores[submission].add(score)


def main() -> None:
    """Watch."""
    # Unbuffered: what follows is read by the loop.
    with open(0, "rb", buffering=0, closefd=False) as first:
        given: dict[str, Any] = json.loads(first.readline())
    watchers = [Watcher(**one) for one in given.pop("watchers")]
    seen = asyncio.run(Watchers(Watching(**given, watchers=watchers)).run())
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main()
