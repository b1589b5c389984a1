"""Boards of the demo: one of its sessions, and one of submissions to a dataset."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsml.client.boards import WatchedBoard
from nsml.v1 import boards_pb2 as pb
from nsml.v1 import resources_pb2, sessions_pb2
from tui.demo.plan import AFTER_S, BEFORE_S
from tui.demo.scripted_session import project_of, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tui.demo.scripted_session import ScriptedSession
    from tui.model import BoardQuery

USER: Final = "ada"
SESSIONS_BOARD: Final = "ada/leaf-accuracy"
DATASET_BOARD: Final = "bo/leaves"
METRIC: Final = "val/acc"
_DATASET: Final = "leaves"
_MOST_TREND: Final = 32
_DAY_S: Final = 3_600.0
"""Of the story, which has only begun hours ago: ranks of a day ago are those of an hour ago."""
_SUBMITTED_EVERY_S: Final = 540.0
_PREDICTED_S: Final = (20.0, 70.0)
"""From when to when after it was submitted its session predicts."""
_SCORED_S: Final = 95.0
_STANDARD_ERROR: Final = 0.0021
_LIKELY: Final = 1.96 * math.sqrt(2)
"""Standard errors by which scores differ at random, in 95 of 100 pairs."""
_FAILURES: Final = (
    pb.SUBMISSION_CAUSE_MALFORMED,
    pb.SUBMISSION_CAUSE_LIMIT_EXCEEDED,
    pb.SUBMISSION_CAUSE_INFER_FAILED,
)
_ARRIVALS: Final = (
    # Around the start of the show: something changes while one looks.
    (-700.0, USER, pb.SUBMISSION_CAUSE_LIMIT_EXCEEDED, 0.0),
    (-80.0, "cleo", pb.SUBMISSION_CAUSE_UNSPECIFIED, 0.012),
    (-52.0, USER, pb.SUBMISSION_CAUSE_UNSPECIFIED, 0.016),
    (-8.0, "bo", pb.SUBMISSION_CAUSE_UNSPECIFIED, 0.004),
)
"""When, whose, what comes of it, and by how much it is better than the best before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One to the board of the dataset; `at` in seconds from the start of the show."""

    number: int
    part: ScriptedSession
    at: float
    score: float
    cause: pb.SubmissionCause

    @property
    def id(self) -> str:
        """Its id."""
        return f"demo-submission-{self.number}"

    def state(self, now: float) -> pb.SubmissionState:
        """Where it is at a time."""
        begun, done = _PREDICTED_S
        since = now - self.at
        if since < begun:
            return pb.SUBMISSION_STATE_QUEUED
        if since < done:
            return pb.SUBMISSION_STATE_PREDICTING
        if self.cause:
            return pb.SUBMISSION_STATE_FAILED
        return pb.SUBMISSION_STATE_EVALUATING if since < _SCORED_S else pb.SUBMISSION_STATE_SCORED


class Boards:
    """All of them, with times in seconds from `origin` on (Unix seconds)."""

    def __init__(self, parts: Sequence[ScriptedSession], origin: float) -> None:
        self._parts = [part for part in parts if part.program.dataset == _DATASET]
        self._origin = origin
        self._bests: dict[str, list[float]] = {}
        self._submissions = _written(self._parts)

    @property
    def submissions(self) -> Sequence[Submission]:
        """All of them, by time."""
        return self._submissions

    def every(self, now: float) -> list[pb.Board]:
        """All boards, by name."""
        return [self._sessions_board(now), self._dataset_board(now)]

    def shown(self, query: BoardQuery, now: float) -> WatchedBoard:
        """A board with its entries."""
        is_of_sessions = query.name == SESSIONS_BOARD
        board = self._sessions_board(now) if is_of_sessions else self._dataset_board(now)
        entries_at = self._by_metric if is_of_sessions else self._submitted
        best_per = query.best_per or board.settings.best_per
        entries = _ranked(entries_at(now), best_per)
        group = _GROUPS[best_per]
        earlier = _ranked(entries_at(now - _DAY_S), best_per)
        before = {group(one): one.rank for one in earlier if one.rank}
        for one in entries:
            one.rank_before = before.get(group(one), 0) if one.rank else 0
        return WatchedBoard(board, entries[: query.limit or None])

    def _sessions_board(self, now: float) -> pb.Board:
        board = pb.Board(kind=pb.BOARD_KIND_METRIC, may_change=True)
        board.owner, board.name = SESSIONS_BOARD.split("/")
        settings = board.settings
        settings.metric, settings.filter = METRIC, f"ds:{_DATASET}"
        settings.direction = pb.SCORE_DIRECTION_MAX
        settings.best_per, settings.value = pb.BEST_PER_NONE, pb.METRIC_VALUE_BEST
        settings.visibility = resources_pb2.VISIBILITY_TEAM
        settings.description = "who knows most leaves"
        stamp(board.created_at, self._origin - 86_400.0 * 4)
        board.entry_count = sum(part.reports(now) > 0 for part in self._parts)
        return board

    def _dataset_board(self, now: float) -> pb.Board:
        board = pb.Board(kind=pb.BOARD_KIND_DATASET, evaluation=1)
        board.owner, board.name = DATASET_BOARD.split("/")
        settings = board.settings
        settings.metric, settings.direction = "accuracy", pb.SCORE_DIRECTION_MAX
        settings.best_per, settings.public_score = pb.BEST_PER_USER, pb.PUBLIC_SCORE_EXACT
        settings.visibility = resources_pb2.VISIBILITY_PUBLIC
        settings.is_open = True
        settings.limit.count = 20
        settings.limit.window.FromSeconds(86_400)
        stamp(board.created_at, self._origin - 86_400.0 * 30)
        board.entry_count = sum(_is_seen(one, now) for one in self._submissions)
        return board

    def _by_metric(self, now: float) -> list[pb.BoardEntry]:
        """An entry for each session that has reported."""
        found = []
        for part in self._parts:
            count = part.reports(now)
            if not count:
                continue
            bests = self._best(part, count)
            entry = _entry(part, now)
            entry.score = round(bests[count - 1], 4)
            entry.trend.extend(_thinned(bests[:count]))
            reached = bisect_right(bests, bests[count - 1] - 1e-9, 0, count)
            stamp(
                entry.submitted_at,
                self._origin + part.started + reached * part.program.every_s,
            )
            found.append(entry)
        return found

    def _best(self, part: ScriptedSession, count: int) -> list[float]:
        """The best value of its metric by each report, of at least so many."""
        bests = self._bests.setdefault(part.id, [])
        while len(bests) < count:
            value = part.value(METRIC, len(bests))
            bests.append(max(value, bests[-1]) if bests else value)
        return bests

    def _submitted(self, now: float) -> list[pb.BoardEntry]:
        """An entry for each submission that the user may see."""
        found = []
        best: dict[str, list[float]] = {}
        for one in self._submissions:
            if one.at > now:
                break
            state = one.state(now)
            if state == pb.SUBMISSION_STATE_SCORED:
                own = best.setdefault(one.part.user, [])
                own.append(max([one.score, *own[-1:]]))
            if not _is_seen(one, now):
                continue
            entry = _entry(one.part, now)
            entry.submission_id, entry.state = one.id, state
            entry.checkpoint = str(100 * max(int(one.part.ran_s(one.at) / 60), 1))
            stamp(entry.submitted_at, self._origin + one.at)
            if state == pb.SUBMISSION_STATE_SCORED:
                entry.score, entry.standard_error = one.score, _STANDARD_ERROR
                entry.trend.extend(best[one.part.user][-_MOST_TREND:])
            elif state == pb.SUBMISSION_STATE_FAILED:
                entry.cause = one.cause
            found.append(entry)
        return found


def _entry(part: ScriptedSession, now: float) -> pb.BoardEntry:
    entry = pb.BoardEntry(
        owner=part.user,
        team=project_of(part),
        session=part.name,
        session_id=part.id,
        args=part.program.args,
        memo=part.memo,
        is_own=part.user == USER,
    )
    placed_s = max(min(now, part.stopped) - part.placed, 0.0)
    entry.gpu_seconds = part.gpus * part.replicas * placed_s
    return entry


def _is_seen(one: Submission, now: float) -> bool:
    """Whether it is listed: of others' submissions those with a score."""
    is_scored = one.state(now) == pb.SUBMISSION_STATE_SCORED
    return one.at <= now and (is_scored or one.part.user == USER)


def _key(entry: pb.BoardEntry) -> str:
    return entry.submission_id or entry.session_id


_GROUPS: Final[dict[int, Callable[[pb.BoardEntry], str]]] = {
    pb.BEST_PER_USER: lambda one: one.owner,
    pb.BEST_PER_TEAM: lambda one: one.team,
    pb.BEST_PER_NONE: _key,
}


def _ranked(entries: Iterable[pb.BoardEntry], best_per: int) -> list[pb.BoardEntry]:
    """Return them with their ranks, the best of each group; those without a score last, the newest first."""
    every = list(entries)
    scored = sorted(
        (one for one in every if one.HasField("score")),
        key=lambda one: (-one.score, one.submitted_at.ToNanoseconds()),
    )
    best: dict[str, pb.BoardEntry] = {}
    for one in scored:
        best.setdefault(_GROUPS[best_per](one), one)
    kept = list(best.values())
    for rank, one in enumerate(kept, 1):
        one.rank = rank
        if one.HasField("standard_error"):
            reach = _LIKELY * one.standard_error
            one.rank_low = 1 + sum(other.score > one.score + reach for other in kept)
            one.rank_high = sum(other.score >= one.score - reach for other in kept)
    rest = [one for one in every if not one.HasField("score")]
    rest.sort(key=lambda one: -one.submitted_at.ToNanoseconds())
    return [*kept, *rest]


def _thinned(values: Sequence[float]) -> list[float]:
    """At most as many as a trend has, the last among them."""
    step = max(math.ceil(len(values) / _MOST_TREND), 1)
    return list(values[::-step][::-1])


def _written(parts: Sequence[ScriptedSession]) -> list[Submission]:
    """All submissions, by time: each of the last session of its user that had run for a while by then."""
    chance = random.Random(7)  # noqa: S311 - a story, no secret
    plans = list(_ARRIVALS)
    at = -BEFORE_S + 4_000.0
    users = sorted({part.user for part in parts})
    while at < AFTER_S:
        is_bad = chance.random() < 0.2
        cause = chance.choice(_FAILURES) if is_bad else pb.SUBMISSION_CAUSE_UNSPECIFIED
        plan = (at, chance.choice(users), cause, chance.gauss(0.0, 0.006))
        if not -400.0 < at < 60.0:  # the scene alone
            plans.append(plan)
        at += chance.uniform(0.5, 1.5) * _SUBMITTED_EVERY_S
    found: list[Submission] = []
    for at, user, cause, better in sorted(plans):
        own = [
            part
            for part in parts
            if part.user == user
            and part.started + 300.0 < at
            and part.outcome != sessions_pb2.SESSION_STATE_HELD
        ]
        if not own:
            continue
        # Ever harder to improve on.
        level = 0.80 + 0.12 * (1 - math.exp(-(at + BEFORE_S) / 20_000.0))
        found.append(
            Submission(
                number=len(found) + 1,
                part=max(own, key=lambda part: part.started),
                at=at,
                score=round(min(level + better, 0.995), 4),
                cause=cause,
            )
        )
    return found
