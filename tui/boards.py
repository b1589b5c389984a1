"""Boards as the dashboard shows them: the columns of `nsml board show`, newly changed ranks, and details. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsml.common.shell import shell_line
from nsml.common.units import counted, number_text, short_moment
from nsml.v1 import boards_pb2 as pb
from nsml.view.boards import (
    COLUMNS,
    board_lines,
    cause_words,
    columns_for,
    entry_why,
    full_name,
    headline,
    interval_text,
    is_of_dataset,
    marks_text,
)
from nsml.view.ranked_rows import SCORES, gpu_time_text, scores_of, trend_text
from nsml.view.scores import digits_of, score_text
from nsml.view.tables import Column, kept, render
from nsml.view.times import seconds_of
from tui.model import MOVES_SHOWN_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from nsml.client.boards import WatchedBoard
    from nsml.v1.boards_pb2 import BestPer, Board, BoardEntry
    from nsml.view.scores import Digits
    from tui.model import Move

MOST_BARS: Final = 12
"""Of a trend: as many as there are shows too little else."""
LEAST_BARS: Final = 6
FIRST: Final = 10
"""Entries below the list of boards."""
_TITLE_CELLS: Final = 12
_SHOWN: Final = (
    "rank",
    "rank_before",
    "owner",
    "score",
    "private_score",
    "trend",
    "submitted_at",
    "session",
    "checkpoint",
    "marks",
    "rank_low",
    "gpu_seconds",
    "team",
)
"""Columns of entries with a score; of those without room the last are left out first."""
_PREVIEWED: Final = ("rank", "owner", "score", "session")
_OF_UNSCORED: Final = ("submitted_at", "owner", "score", "session", "checkpoint")
_STATE_CELLS: Final = 24
_BEST_PER: Final = (pb.BEST_PER_NONE, pb.BEST_PER_USER, pb.BEST_PER_TEAM)
_WORDS: Final = {
    pb.BEST_PER_NONE: "all",
    pb.BEST_PER_USER: "best per user",
    pb.BEST_PER_TEAM: "best per team",
}
NONE_YET: Final = (
    "no boards yet: a board ranks sessions by a metric that they report, or submissions to a dataset"
    " · nsml board create NAME --metric val/acc --max makes one"
)


def best_per_of(board: Board) -> pb.BestPer:
    """Return which entries its owner has it list."""
    default = pb.BEST_PER_NONE if is_of_dataset(board) else pb.BEST_PER_USER
    return board.settings.best_per or default


def next_best_per(best_per: pb.BestPer) -> pb.BestPer:
    """Return the next choice: every entry, the best of each user, of each team."""
    place = _BEST_PER.index(best_per) if best_per in _BEST_PER else -1
    return _BEST_PER[(place + 1) % len(_BEST_PER)]


def best_per_text(best_per: BestPer) -> str:
    """Return which entries are listed, in words."""
    return _WORDS.get(best_per, "the board's choice")


def move_text(move: Move | None, now: float) -> str:
    """Return a newly changed rank, `↑2`, `↓1` or `new`; "" after a while."""
    if move is None or not 0 <= now - move.at < MOVES_SHOWN_S:
        return ""
    if not move.ranks:
        return "new"
    return f"{'↑' if move.ranks > 0 else '↓'}{abs(move.ranks)}"


def entry_columns(
    board: Board,
    move: Callable[[BoardEntry], Move | None],
    clock: Callable[[], float],
    entries: Collection[BoardEntry] = (),
) -> list[Column[BoardEntry]]:
    """Return the columns of these entries with a score; `move`: the new rank change of an entry, if any."""

    def rank(entry: BoardEntry, now: float) -> str:
        return f"{entry.rank} {move_text(move(entry), now)}".rstrip()

    def rank_colour(entry: BoardEntry) -> str:
        text = move_text(move(entry), clock())
        return "red" if text.startswith("↓") else "green" if text else ""

    is_min = board.settings.direction == pb.SCORE_DIRECTION_MIN
    found = {column.key: column for column in columns_for(board, entries)}
    if not is_of_dataset(board):
        found["submitted_at"] = found["submitted_at"]._replace(title="Reported")
    found["rank"] = found["rank"]._replace(cell=rank, colour=rank_colour)
    found["trend"] = found["trend"]._replace(
        cell=lambda one, _: _trend(one, MOST_BARS, is_min=is_min),
        within=lambda one, _, cells: _trend(one, cells, is_min=is_min),
        is_wide=False,
        shrinks_to=LEAST_BARS,
    )
    likely = found["rank_low"]
    found["rank_low"] = likely._replace(is_worth=likely.tells, is_optional=True)
    found["team"] = found["team"]._replace(is_optional=True)
    for key in ("submitted_at", "checkpoint"):
        found[key] = found[key]._replace(is_optional=False)
    return [found[key] for key in _SHOWN]


def _trend(entry: BoardEntry, cells: int, *, is_min: bool) -> str:
    return trend_text(thinned(entry.trend, cells), is_min=is_min) or "-"


def thinned(values: Sequence[float], most: int) -> list[float]:
    """Return at most so many of these, evenly, the first and the last among them."""
    last = len(values) - 1
    if last < most:
        return list(values)
    return [values[round(place * last / (most - 1))] for place in range(most)] if most > 1 else []


def unscored_columns() -> list[Column[BoardEntry]]:
    """Return the columns of entries without a score: where they are, or why they failed."""
    found = {column.key: column for column in COLUMNS}
    found["score"] = found["score"]._replace(title="State", shrinks_to=_STATE_CELLS)
    found["owner"] = found["owner"]._replace(is_wide=True, is_worth=lambda one: not one.is_own)
    why: Column[BoardEntry] = Column(
        key="why",
        title="Why",
        cell=lambda one, _: entry_why(one) or "-",
        tells=lambda one: bool(entry_why(one)),
        shrinks_to=20,
        is_optional=True,
    )
    return [*(found[key] for key in _OF_UNSCORED), why]


def own_rank_text(entries: Sequence[BoardEntry]) -> str:
    """Return the best rank of the reader: `your rank 3`; "" without one."""
    own = min((one.rank for one in entries if one.rank and one.is_own), default=0)
    return f"your rank {own:,}" if own else ""


def state_text(board: Board, best_per: BestPer, entries: Sequence[BoardEntry]) -> str:
    """Return what a board ranks, which entries are listed, and the reader's place."""
    parts = [headline(board), best_per_text(best_per), own_rank_text(entries)]
    return " · ".join(filter(None, parts))


def score_digits(entries: Collection[BoardEntry]) -> Mapping[str, Digits]:
    """Return the digits of the scores of a list, by field: its columns are made anew when these change."""
    return {field: digits_of(scores_of(field, entries)) for field in SCORES}


def entry_lines(
    entry: BoardEntry,
    board: Board,
    ranked: int,
    now: float,
    entries: Collection[BoardEntry] = (),
) -> list[str]:
    """Describe an entry among `entries`; `ranked`: how many have a rank."""
    likely = interval_text(entry)
    rank = [f"{entry.rank} of {ranked:,}"]
    rank += [f"likely {likely} (95 %)"] if likely else []
    rank += [f"{entry.rank_before} a day ago"] if entry.rank_before else []
    error = ""
    if entry.HasField("standard_error"):
        error = f" ± {number_text(entry.standard_error)} (standard error)"
    score, private = (
        score_text(getattr(entry, field), score_digits(entries)[field])
        if entry.HasField(field)
        else ""
        for field in SCORES
    )
    cause = cause_words(entry.cause) if entry.cause else None
    again = shell_line(["nsml", "submit", "-t", entry.session, entry.checkpoint])
    is_there = entry.HasField("submitted_at")
    when = short_moment(seconds_of(entry.submitted_at), now, has_seconds=True) if is_there else ""
    rows = (
        ("rank", ", ".join(rank) if entry.rank else ""),
        ("score", f"{score}{error}" if score else ""),
        ("private", private),
        ("why", entry_why(entry)),
        (
            "do",
            cause.advice.replace("{look}", f"see its output in a dry run: {again}")
            if cause
            else "",
        ),
        ("args", entry.args),
        ("memo", entry.memo),
        ("submitted" if is_of_dataset(board) else "reported", when),
        ("GPU time", gpu_time_text(entry.gpu_seconds)),
        ("marks", marks_text(entry)),
        ("submission", entry.submission_id),
    )
    whose = f"by {entry.owner}{f' of {entry.team}' if entry.team else ''}"
    name = f"{entry.session or 'a session that you may not see'} {entry.checkpoint}".rstrip()
    lines = [f"{name} {whose}"]
    return [*lines, *(f"  {title:{_TITLE_CELLS}}{text}" for title, text in rows if text)]


def preview_lines(received: WatchedBoard, now: float, room: int, *, opens: str) -> list[str]:
    """Describe a board: its first entries, and its settings; `opens`: the key that opens it."""
    board = received.board
    name, *settings = board_lines(board)
    first = [one for one in received.entries if one.rank][:FIRST]
    if not first:
        return [name, *no_entries(board), "", *settings]
    found = {column.key: column for column in columns_for(board, first)}
    columns = [kept(found[key]) for key in _PREVIEWED]
    table = render(columns, first, now=now, room=max(room, 1)).lines
    more = [f"the first {FIRST}: {opens} shows all"] if len(first) == FIRST else []
    return [name, *table, *more, "", *settings]


def no_entries(board: Board) -> list[str]:
    """Say that a board has no entries, and what makes one."""
    if is_of_dataset(board):
        return [
            f"no submissions yet · nsml submit SESSION submits a checkpoint to {full_name(board)}"
        ]
    metric = board.settings.metric
    return [f"no entries yet · sessions that report {metric} with nsml.report are listed here"]


def unscored_title(entries: Sequence[BoardEntry]) -> str:
    """Return the title of entries without a score."""
    failed = sum(one.state == pb.SUBMISSION_STATE_FAILED for one in entries)
    parts = [f"no score: {counted(len(entries), 'entry', 'entries')}"]
    return " · ".join([*parts, *([f"{failed} failed"] if failed else [])])
