"""Which phase runs at an instant, what settings of competitions are possible, and how they may change."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from controlplane.domain.boards.settings import MOST_SUBMISSIONS, MOST_WINDOW_S
from controlplane.domain.boards.values import PublicScore
from controlplane.domain.competitions.values import CompetitionState
from controlplane.domain.errors import InvalidRequest, StateConflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.boards.values import SubmissionLimit
    from controlplane.domain.competitions.values import (
        Competition,
        CompetitionSettings,
        Phase,
    )

MOST_PHASES: Final = 20
MOST_TITLE: Final = 200
MOST_DESCRIPTION_BYTES: Final = 64 << 10
MOST_ANNOUNCEMENT_BYTES: Final = 4 << 10
MOST_REASON: Final = 500
MOST_TEAM_SIZE: Final = 100
MOST_ADVANCE: Final = 1_000_000
MOST_PICKS: Final = 20
LEAST_WINDOW_S: Final = 60.0

_NAME: Final = re.compile(r"(?=.{1,64}\Z)[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9_-]+)*")
_RULE: Final = (
    "1 to 64 of a-z 0-9 _ -, with single dots between them, beginning with a letter or a digit"
)


def check_name(name: str, what: str) -> str:
    """Check and return the name of a competition, a phase or a team; `what` says which."""
    if not _NAME.fullmatch(name):
        near = name.lower()
        attempt = near if _NAME.fullmatch(near) else ""
        raise InvalidRequest(f"{name[:80]!a} is not a name of a {what}", why=_RULE, attempt=attempt)
    return name


def check_line(text: str, what: str, most: int = MOST_REASON) -> str:
    """Check and return a text of one line without control characters."""
    if len(text) > most:
        raise InvalidRequest(f"the {what} has {len(text)} characters", why=f"at most {most}")
    if not text.isprintable():
        raise InvalidRequest(
            f"the {what} {text[:40]!a} is not one line of text",
            why="it has line breaks or control characters",
        )
    return text


def check_text(text: str, what: str, most_bytes: int) -> str:
    """Check and return a text of several lines without other control characters."""
    if len(text.encode()) > most_bytes:
        raise InvalidRequest(f"the {what} is too long", why=f"at most {most_bytes:,} bytes")
    for char in text:
        if char not in "\n\t" and unicodedata.category(char) in {"Cc", "Cs"}:
            raise InvalidRequest(f"the {what} has the control character {char!a}")
    return text


def check_settings(settings: CompetitionSettings) -> CompetitionSettings:
    """Check and return settings.

    Raises:
        InvalidRequest: one is not possible, or phases overlap.
    """
    check_line(settings.title, "title", MOST_TITLE)
    check_text(settings.description, "description", MOST_DESCRIPTION_BYTES)
    _check_count(settings.team_size, "size of teams", 1, MOST_TEAM_SIZE)
    if len(settings.phases) > MOST_PHASES:
        raise InvalidRequest(
            f"a competition cannot have {len(settings.phases)} phases", why=f"at most {MOST_PHASES}"
        )
    names = [check_name(one.name, "phase") for one in settings.phases]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidRequest(
            f"there are two phases {min(twice)!r}", why="their names tell them apart"
        )
    for one in settings.phases:
        _check_phase(one)
    for before, after in pairwise(in_order(settings.phases)):
        if after.starts_at < before.ends_at:
            raise InvalidRequest(
                f"the phases {before.name!r} and {after.name!r} overlap",
                why="a submission belongs to one phase",
                attempt=f"let {after.name!r} start when {before.name!r} ends, or later",
            )
    return settings


def in_order(phases: Iterable[Phase]) -> tuple[Phase, ...]:
    """Return the phases in the order of time."""
    return tuple(sorted(phases, key=lambda one: one.starts_at))


def end_of(competition: Competition, phase: Phase) -> float:
    """The first instant that is not of a phase any more, by its own end or the competition's."""
    return min(phase.end, competition.closed_at or math.inf)


def is_held(competition: Competition, phase: Phase) -> bool:
    """Whether a phase takes place; False: the competition was closed before it began."""
    return phase.starts_at < end_of(competition, phase)


def has_begun(competition: Competition, phase: Phase, instant: float) -> bool:
    """Whether a phase that takes place has begun; in a draft by its time alone."""
    return phase.starts_at <= instant and is_held(competition, phase)


def is_within(competition: Competition, phase: Phase, instant: float) -> bool:
    """Whether an instant is in a phase: its start is, its end is not."""
    return phase.starts_at <= instant < end_of(competition, phase)


def phase_at(competition: Competition, instant: float) -> Phase | None:
    """Return the phase that runs at an instant; None: none does, or the competition never opened."""
    if competition.state is CompetitionState.DRAFT:
        return None
    return next(
        (one for one in competition.settings.phases if is_within(competition, one, instant)), None
    )


def phase_named(competition: Competition, name: str) -> Phase | None:
    """Return a phase by its name."""
    return next((one for one in competition.settings.phases if one.name == name), None)


def phase_shown(competition: Competition, instant: float) -> Phase | None:
    """Return the phase that runs, else the last that began, else the first; None: there are none."""
    phases = in_order(competition.settings.phases)
    begun = [one for one in phases if has_begun(competition, one, instant)]
    return phase_at(competition, instant) or (begun[-1] if begun else next(iter(phases), None))


def phase_before(competition: Competition, phase: Phase) -> Phase | None:
    """Return the phase before one."""
    earlier = [
        one for one in in_order(competition.settings.phases) if one.starts_at < phase.starts_at
    ]
    return earlier[-1] if earlier else None


def phase_after(competition: Competition, phase: Phase) -> Phase | None:
    """Return the phase after one."""
    later = [
        one for one in in_order(competition.settings.phases) if one.starts_at > phase.starts_at
    ]
    return later[0] if later else None


def last_end(competition: Competition) -> float:
    """The end of the last phase; 0.0: there are none."""
    return max((end_of(competition, one) for one in competition.settings.phases), default=0.0)


def check_none_is_over(competition: Competition, now: float) -> None:
    """Raise StateConflict if a phase of a draft is over: nobody could have submitted to it."""
    over = [one for one in in_order(competition.settings.phases) if one.end <= now]
    if competition.state is CompetitionState.DRAFT and over:
        raise _over_already(competition, over[0])


def changed_settings(
    competition: Competition, settings: CompetitionSettings, now: float
) -> CompetitionSettings:
    """Return the settings of a competition after an update with `settings`.

    A phase that its organiser ended stays ended. What was decided by a phase that is over stays as it was.

    Raises:
        StateConflict: a phase that began in an open competition would be another one, a new one would be over, or
            the phases of a closed competition would change.
        InvalidRequest: as check_settings.
    """
    known = {one.name: one for one in competition.settings.phases}
    kept = tuple(
        replace(one, closed_at=known[one.name].closed_at) if one.name in known else one
        for one in settings.phases
    )
    changed = replace(settings, phases=kept)
    if competition.state is CompetitionState.CLOSED and not has_same_phases(
        competition.settings, changed
    ):
        raise StateConflict(
            f"the phases of {competition.name} cannot be changed", why="the competition is closed"
        )
    if competition.state is CompetitionState.OPEN:
        after = {one.name: one for one in kept}
        for one in in_order(kept):
            if one.end <= now and one.name not in known:
                raise _over_already(competition, one)
        for one in competition.settings.phases:
            if one.starts_at <= now:
                _check_begun(competition, one, after.get(one.name), now)
    return check_settings(changed)


def scores_shown(
    competitions: Iterable[Competition], dataset: tuple[str, str]
) -> tuple[PublicScore, str]:
    """Return how little phases on a dataset (owner and name) show of scores, and the full name of a competition that does.

    Without such a phase: EXACT and "".
    """
    return max(
        (
            (phase.public_score, one.full_name)
            for one in competitions
            for phase in one.settings.phases
            if (phase.dataset_owner, phase.dataset) == dataset
        ),
        default=(PublicScore.EXACT, ""),
    )


def check_datasets_free(competition: Competition, others: Iterable[Competition]) -> None:
    """Raise StateConflict if another open competition uses a dataset in the time of a phase."""
    for other in others:
        for phase in competition.settings.phases:
            if any(
                (one.dataset_owner, one.dataset) == (phase.dataset_owner, phase.dataset)
                and one.starts_at < phase.end
                and phase.starts_at < one.end
                for one in other.settings.phases
            ):
                raise StateConflict(
                    f"{other.full_name} uses the dataset {phase.dataset_owner}/{phase.dataset} at that time",
                    why="a submission belongs to one competition",
                )


def has_same_phases(one: CompetitionSettings, other: CompetitionSettings) -> bool:
    """Whether nothing of the phases differs."""
    return in_order(one.phases) == in_order(other.phases)


def _over_already(competition: Competition, phase: Phase) -> StateConflict:
    return StateConflict(
        f"the phase {phase.name!r} is over already",
        why="nobody could have submitted to it",
        attempt=f"nsml competition update {competition.full_name} FILE.toml    with a later end",
    )


def _check_begun(competition: Competition, before: Phase, after: Phase | None, now: float) -> None:
    if after is None:
        raise StateConflict(f"the phase {before.name!r} began, and cannot be removed")
    is_over = end_of(competition, before) <= now
    fixed = (
        before == after
        if is_over
        else (before.starts_at, before.dataset_owner, before.dataset)
        == (after.starts_at, after.dataset_owner, after.dataset)
        and after.end > now
    )
    if not fixed:
        raise StateConflict(
            f"the phase {before.name!r} cannot be changed so",
            why="it is over"
            if is_over
            else "it began: its start and its dataset stay, and it ends later than now",
            attempt=""
            if is_over
            else f"nsml competition close {competition.full_name} --phase {before.name}    ends it now",
        )


def _check_phase(phase: Phase) -> None:
    if not (math.isfinite(phase.starts_at) and math.isfinite(phase.ends_at)):
        raise InvalidRequest(f"the phase {phase.name!r} needs a start and an end")
    if not 0.0 < phase.starts_at < phase.ends_at:
        raise InvalidRequest(f"the phase {phase.name!r} ends before it starts")
    _check_count(phase.advance, f"teams that go on from {phase.name!r}", 0, MOST_ADVANCE)
    _check_count(phase.picks, f"picks of {phase.name!r}", 1, MOST_PICKS)
    if phase.limit is not None:
        _check_limit(phase.limit, phase.name)


def _check_limit(limit: SubmissionLimit, phase: str) -> None:
    _check_count(limit.count, f"limit of {phase!r}", 0, MOST_SUBMISSIONS)
    if not LEAST_WINDOW_S <= limit.window_s <= MOST_WINDOW_S:
        raise InvalidRequest(
            f"the window of the limit of {phase!r} cannot be {limit.window_s:g} s",
            why=f"{LEAST_WINDOW_S:g} to {MOST_WINDOW_S:g} seconds",
        )


def _check_count(count: int, what: str, least: int, most: int) -> None:
    if not least <= count <= most:
        raise InvalidRequest(f"the {what} cannot be {count}", why=f"{least} to {most:,}")
