"""Competitions as the dashboard shows them: beside boards, and the standings of their phases. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from nsml.common.shell import shell_line
from nsml.common.units import counted, duration_text, short_moment
from nsml.v1 import competitions_pb2 as pb
from nsml.v1.boards_pb2 import Board
from nsml.v1.competitions_pb2 import Competition, Standing
from nsml.view import boards as board_view
from nsml.view.boards import BOARD_COLUMNS
from nsml.view.competitions import (
    competition_lines,
    full_name,
    has_begun,
    mark_text,
    next_phase,
    own_row,
    phase_state,
    standing_columns,
    standings_word,
    state_word,
    team_text,
)
from nsml.view.ranked_rows import SCORES, gpu_time_text, scores_of
from nsml.view.scores import digits_of, score_text
from nsml.view.sessions import visibility_word
from nsml.view.tables import Column
from nsml.view.times import seconds_of
from tui.boards import move_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from nsml.v1.competitions_pb2 import Announcement, Phase, WatchStandingsResponse
    from tui.model import Move

Listed: TypeAlias = Board | Competition
"""A row of the list of boards."""
_TITLE_CELLS: Final = 12
_STATE_CELLS: Final = 18
_SHOWN: Final = (
    *("rank", "rank_before", "team", "members", "score", "private_score", "public_rank"),
    *("submissions", "submitted_at", "gpu_seconds", "rerun"),
)


# Beside boards


def listed_name(item: Listed) -> str:
    """Return `OWNER/NAME`."""
    return full_name(item) if isinstance(item, Competition) else board_view.full_name(item)


def listed_state(competition: Competition, now: float) -> str:
    """Return where a competition is, in few words: `open, 2d12h left`, `open, in 3d`, `closed`."""
    word = state_word(competition.state)
    if competition.state != pb.COMPETITION_STATE_OPEN:
        return word
    if (phase := _running(competition)) is not None:
        return f"{word}, {duration_text(seconds_of(phase.ends_at) - now)} left"
    if (later := next_phase(competition, now)) is not None:
        return f"{word}, in {duration_text(seconds_of(later.starts_at) - now)}"
    return f"{word}, over"


_OF_COMPETITION: Final[dict[str, Callable[[Competition, float], str]]] = {
    "name": lambda one, _: full_name(one),
    "kind": lambda _, __: "competition",
    "metric": lambda one, _: one.phase or "-",
    "entries": lambda one, _: counted(one.team_count, "team"),
    "state": listed_state,
    "visibility": lambda one, _: (
        visibility_word(one.settings.visibility) if one.settings.visibility else "-"
    ),
    "description": lambda one, _: one.settings.title or "-",
}


def listed_columns() -> list[Column[Listed]]:
    """Return the columns of boards, in which competitions say what they have of the same kind."""
    return [_of_both(column) for column in BOARD_COLUMNS if column.key in _OF_COMPETITION]


def _of_both(column: Column[Board]) -> Column[Listed]:
    of_competition, worth, tells = _OF_COMPETITION[column.key], column.is_worth, column.tells

    def cell(one: Listed, now: float) -> str:
        if isinstance(one, Competition):
            return of_competition(one, now)
        return column.cell(one, now)

    def is_worth(one: Listed) -> bool:
        return isinstance(one, Competition) or bool(worth is not None and worth(one))

    def is_told(one: Listed) -> bool:
        if isinstance(one, Competition):
            return bool(one.settings.title)
        return tells is None or tells(one)

    return Column(
        key=column.key,
        title=column.title,
        cell=cell,
        is_wide=column.is_wide,
        is_worth=is_worth if column.is_wide else None,
        tells=is_told if tells is not None else None,
        is_optional=column.is_optional,
        shrinks_to=_STATE_CELLS if column.key == "state" else column.shrinks_to,
        is_name=column.is_name,
    )


def preview_lines(competition: Competition, now: float, *, opens: str) -> list[str]:
    """Describe a competition; `opens`: the key that opens its standings."""
    found = competition_lines(pb.GetCompetitionResponse(competition=competition), now)
    title, *rest = found[: found.index("Next")] if "Next" in found else found
    return [title, f"  {opens} shows the standings", *rest]


# Standings


CUT: Final = Standing()
"""The row below those that go on to the next phase. Teams have names."""


def with_cut(rows: Sequence[Standing], phase: Phase | None) -> list[Standing]:
    """Return the rows with `CUT` behind the last one that goes on, where only some teams do."""
    if phase is None or not phase.advance or not any(one.goes_on for one in rows):
        return list(rows)
    last = max(place for place, one in enumerate(rows) if one.goes_on)
    return [*rows[: last + 1], CUT, *rows[last + 1 :]]


def cut_text(phase: Phase | None) -> str:
    """Return `the first 10 go on`; "" where all do."""
    if phase is None or not phase.advance:
        return ""
    return "the first one goes on" if phase.advance == 1 else f"the first {phase.advance:,} go on"


def phase_named(competition: Competition, name: str) -> Phase | None:
    """Return a phase by name."""
    return next((one for one in competition.settings.phases if one.name == name), None)


def next_shown(competition: Competition, name: str) -> str:
    """Return the phase whose standings come after those of one, round and round; "" without phases."""
    names = [one.name for one in competition.settings.phases]
    if not names:
        return ""
    return names[(names.index(name) + 1) % len(names)] if name in names else names[0]


def _running(competition: Competition) -> Phase | None:
    return phase_named(competition, competition.phase) if competition.phase else None


def standings_columns(
    phase: Phase | None,
    move: Callable[[Standing], Move | None],
    clock: Callable[[], float],
    rows: Collection[Standing] = (),
) -> list[Column[Standing]]:
    """Return the columns of standings with these rows, and new changes of ranks; `move`: that of a team, if any."""

    def rank(row: Standing, now: float) -> str:
        return f"{row.rank or '-'} {move_text(move(row), now)}".rstrip()

    def rank_colour(row: Standing) -> str:
        text = move_text(move(row), clock())
        return "red" if text.startswith("↓") else "green" if text else ""

    def team(row: Standing, _: float) -> str:
        if not row.team:
            return f"── {cut_text(phase)} ──"
        return f"{team_text(row)} →" if row.goes_on and cut_text(phase) else team_text(row)

    found = {column.key: column for column in standing_columns(rows)}
    found["rank"] = found["rank"]._replace(cell=rank, colour=rank_colour)
    found["team"] = found["team"]._replace(cell=team)
    shown = [found[key] for key in _SHOWN]
    return [one if one.key == "team" else one._replace(cell=_blank(one)) for one in shown]


def _blank(column: Column[Standing]) -> Callable[[Standing, float], str]:
    return lambda row, now: column.cell(row, now) if row.team else ""


def state_text(
    competition: Competition, answer: WatchStandingsResponse | None, name: str, now: float
) -> str:
    """Return which phase is shown, how its standings are, the time left, the cut, and the reader's place."""
    phase = phase_named(competition, name)
    parts = [f"{full_name(competition)}, {name}" if name else full_name(competition)]
    if phase is not None and not (answer is not None and answer.is_final):
        parts.append(phase_state(competition, phase, now))
    own = own_row(answer.standings) if answer is not None else None
    parts.append(f"your rank {own.rank:,}" if own is not None and own.rank else "")
    if answer is not None:
        word = standings_word(phase, is_final=answer.is_final)
        parts += [word] if word not in parts else []
    parts += [cut_text(phase), counted(competition.team_count, "team")]
    return " · ".join(filter(None, parts))


def announcement_text(announcements: Sequence[Announcement], now: float) -> str:
    """Return the newest announcement on one line; "" without any."""
    if not announcements:
        return ""
    newest = announcements[-1]
    return f"{short_moment(seconds_of(newest.at), now)}  {' '.join(newest.text.split())}"


def standing_lines(
    row: Standing, phase: Phase | None, now: float, standings: Collection[Standing] = ()
) -> list[str]:
    """Describe a team in these standings."""
    if not row.team:
        return [cut_text(phase), "  as of now: ranks change until the standings are final"]
    score, private = (
        score_text(getattr(row, field), digits_of(scores_of(field, standings)))
        if row.HasField(field)
        else ""
        for field in SCORES
    )
    is_there = row.HasField("submitted_at")
    goes_on = "goes on to the next phase" if row.goes_on and cut_text(phase) else ""
    rows = (
        ("rank", f"{row.rank:,}" if row.rank else f"none: {mark_text(row) or 'no score yet'}"),
        ("before", f"{row.rank_before:,}" if row.rank_before else ""),
        ("score", score),
        ("private", private),
        ("public rank", f"{row.public_rank:,}" if row.public_rank else ""),
        ("", goes_on),
        ("members", ", ".join(row.members)),
        ("submissions", f"{row.submissions:,}"),
        (
            "submitted",
            short_moment(seconds_of(row.submitted_at), now, has_seconds=True) if is_there else "",
        ),
        ("GPU time", gpu_time_text(row.gpu_seconds) if row.gpu_seconds else ""),
        ("re-run", row.rerun),
        ("why", f"disqualified: {row.disqualified}" if row.disqualified else ""),
    )
    return [team_text(row), *(f"  {name:{_TITLE_CELLS}}{text}" for name, text in rows if text)]


def no_standings(competition: Competition, now: float) -> str:
    """Say why there are no standings, and what makes some."""
    if not has_begun(competition, now):
        later = next_phase(competition, now)
        when = (
            f"{later.name} starts in {duration_text(seconds_of(later.starts_at) - now)}"
            if later
            else ""
        )
        return " · ".join(filter(None, ["no phase has begun yet", when]))
    join = shell_line(["nsml", "competition", "join", full_name(competition)])
    return f"no team has submitted yet · {join} takes part"
