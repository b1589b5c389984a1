"""How teams begin, grow, merge and end. Each rule returns the changed facts, or raises."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.competitions.phases import check_name, end_of, last_end, phase_named
from controlplane.domain.competitions.values import (
    CompetitionState,
    Invitation,
    Member,
    MergeRequest,
    Team,
)
from controlplane.domain.errors import AlreadyExists, LimitReached, NotFound, StateConflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.boards.values import SubmissionLimit
    from controlplane.domain.competitions.values import Facts
    from controlplane.domain.identity import User

MOST_INVITATIONS: Final = 10_000
"""In a competition."""
MOST_TEAMS: Final = 10_000
MOST_FOUNDED: Final = 20
"""Of these, by one user: teams stay when all have left them."""
MOST_MERGES: Final = 100
"""Mergers that a team asks for at one time."""


def join(facts: Facts, user: User, wanted: str, now: float) -> Facts:
    """Let a user found a team, or accept an invitation to one; `wanted` "": the user's name.

    Raises:
        StateConflict: it is not open, it is by invitation, or the user organises it.
        AlreadyExists: the user has a team, or the name is another team's.
        LimitReached: the team is full, or the user founded too many.
        InvalidRequest: the name.
    """
    competition = facts.competition
    _check_open(facts)
    if competition.owner == user.name:
        raise StateConflict(
            f"you organise {competition.name}",
            why="its organiser knows the labels; baselines are for that",
            attempt=f"nsml competition baseline {competition.full_name} SUBMISSION --label TEXT",
        )
    if (own := facts.team_of(user.name)) is not None:
        raise AlreadyExists(
            f"you are in the team {own.name}",
            attempt=f"nsml competition leave {competition.full_name}",
        )
    if facts.settings.by_invitation and not facts.is_invited(user.name):
        raise StateConflict(
            f"{competition.name} is by invitation", why=f"{competition.owner} invites participants"
        )
    name = check_name(wanted or user.name, "team")
    team = facts.team(name)
    is_invited = Invitation(user_name=user.name, team=name) in facts.invitations
    if team is None:
        if len(facts.teams) >= MOST_TEAMS:
            raise LimitReached(f"{competition.name} has {MOST_TEAMS:,} teams")
        if sum(one.founder == user.name for one in facts.teams) >= MOST_FOUNDED:
            raise LimitReached(
                f"you have founded {MOST_FOUNDED} teams of {competition.name}",
                attempt=f"nsml competition join {competition.full_name} --team NAME    one of these",
            )
        facts = replace(
            facts, teams=(*facts.teams, Team(name=name, founder=user.name, created_at=now))
        )
    elif team.merged_into or not (is_invited or _may_found_again(facts, team, user)):
        raise AlreadyExists(
            f"there is a team {name}",
            why="its members did not invite you",
            attempt=f"nsml competition join {competition.full_name} --team OTHER_NAME",
        )
    elif len(facts.members_of(name)) >= facts.settings.team_size:
        raise _full(facts, name)
    member = Member(user_name=user.name, user_id=user.id, team=name, joined_at=now)
    return replace(
        facts,
        members=(*facts.members, member),
        invitations=tuple(
            one for one in facts.invitations if one.user_name != user.name or not one.team
        ),
    )


def leave(facts: Facts, user_name: str) -> Facts:
    """Let a user leave their team, which stays. Raises StateConflict: they have none, or it is disqualified."""
    team = _own(facts, user_name)
    if team.disqualified:
        raise StateConflict(
            f"your team {team.name} is disqualified: {team.disqualified}",
            why="its members stay in it; with another team they would take part again",
        )
    left = replace(facts, members=tuple(one for one in facts.members if one.user_name != user_name))
    if left.members_of(team.name):
        return left
    return replace(
        left,
        merges=_without(left.merges, team.name),
        invitations=tuple(one for one in left.invitations if one.team != team.name),
    )


def invite(facts: Facts, users: Iterable[str], team: str) -> Facts:
    """Invite users into a team, or into the competition (team "").

    Raises:
        LimitReached: the team is full, or there are too many invitations.
        StateConflict: a user is in a team, or the competition is by invitation and theirs is missing.
    """
    invited = set(users)
    if team:
        room = facts.settings.team_size - len(facts.members_of(team))
        waiting = {one.user_name for one in facts.invitations if one.team == team}
        if len(waiting | invited) > room:
            raise _full(facts, team)
        for name in sorted(invited):
            if facts.team_of(name) is not None:
                raise StateConflict(
                    f"{name} is in a team",
                    attempt=f"nsml competition merge {facts.competition.full_name} TEAM    joins both teams",
                )
            if facts.settings.by_invitation and not facts.is_invited(name):
                raise StateConflict(
                    f"{name} is not invited to {facts.competition.name}",
                    why=f"{facts.competition.owner} invites participants",
                )
    new = {Invitation(user_name=name, team=team) for name in invited} - {*facts.invitations}
    if len(facts.invitations) + len(new) > MOST_INVITATIONS:
        raise LimitReached(f"{facts.competition.name} has {MOST_INVITATIONS:,} invitations")
    ordered = sorted(new, key=lambda one: one.user_name)
    return replace(facts, invitations=(*facts.invitations, *ordered))


class MergeBound(NamedTuple):
    """What a merger must keep to in the phase that runs.

    Attributes:
        counted: submissions of both teams in the phase.
        most: how many one team could have had by now; None: any number.
    """

    counted: int
    most: int | None


class Merged(NamedTuple):
    """The changed facts; `team`: the merged one, "": the other team has yet to agree."""

    facts: Facts
    team: str


def most_by_now(limit: SubmissionLimit, starts_at: float, now: float) -> int | None:
    """Return how many submissions a team can have had in a phase by now; None: any number."""
    if not limit.count:
        return None
    return limit.count * (max(math.floor((now - starts_at) / limit.window_s), 0) + 1)


def merge(
    facts: Facts, user_name: str, other: str, name: str, *, bound: MergeBound | None, now: float
) -> Merged:
    """Ask another team to merge, or agree to what it asked. `bound`: None while no phase runs.

    The names of merged teams stay taken; the one that is kept goes on with all members.

    Raises:
        NotFound: there is no such team.
        StateConflict: mergers are over, one is disqualified, too many members or submissions together.
        AlreadyExists: the name is a third team's.
        LimitReached: it waits for too many teams.
    """
    _check_open(facts)
    own, asked = _own(facts, user_name), facts.team(other)
    if asked is None or asked.merged_into or not facts.members_of(other):
        raise NotFound(f"there is no team {other[:80]!a} in {facts.competition.name}")
    if own.name == other:
        raise StateConflict(f"{other} is your team")
    until = facts.settings.mergers_until or last_end(facts.competition)
    if now >= until:
        raise StateConflict("teams do not merge any more", why="the time for mergers is over")
    for one in (own, asked):
        if one.disqualified:
            raise StateConflict(f"the team {one.name} is disqualified")
    size = len(facts.members_of(own.name)) + len(facts.members_of(other))
    if size > facts.settings.team_size:
        raise StateConflict(
            f"{own.name} and {other} have {size} members together",
            why=f"a team has at most {facts.settings.team_size}",
        )
    if bound is not None and bound.most is not None and bound.counted > bound.most:
        raise StateConflict(
            f"{own.name} and {other} have {bound.counted} submissions together",
            why=f"one team could have had {bound.most} by now",
            attempt="again when the limit permits so many",
        )
    known = next((one for one in facts.merges if (one.team, one.other) == (other, own.name)), None)
    if known is None:
        return Merged(_asked(facts, own, other, check_name(name or other, "team")), "")
    return Merged(_united(facts, own, asked, known.name, now), known.name)


def _asked(facts: Facts, own: Team, other: str, name: str) -> Facts:
    if facts.team(name) is not None and name not in {own.name, other}:
        raise AlreadyExists(f"there is a team {name}")
    request = MergeRequest(team=own.name, other=other, name=name)
    rest = tuple(one for one in facts.merges if (one.team, one.other) != (own.name, other))
    if sum(one.team == own.name for one in rest) >= MOST_MERGES:
        raise LimitReached(f"{own.name} waits for the answers of {MOST_MERGES} teams")
    return replace(facts, merges=(*rest, request))


def _united(facts: Facts, own: Team, other: Team, name: str, now: float) -> Facts:
    both = {own.name, other.name}
    kept = facts.team(name)
    if kept is not None and name not in both:  # founded since
        raise AlreadyExists(f"there is a team {name}")
    teams = tuple(
        replace(one, merged_into=name) if one.name in both - {name} else one for one in facts.teams
    )
    if kept is None:
        teams = (*teams, Team(name=name, founder=other.founder, created_at=now))
    return replace(
        facts,
        teams=teams,
        members=tuple(
            replace(one, team=name) if one.team in both else one for one in facts.members
        ),
        merges=_without(facts.merges, *both),
        # Both teams' picks would be more than one team has. Of phases that are over everything stays.
        picks=tuple(
            one for one in facts.picks if one.team not in both or _is_over(facts, one.phase, now)
        ),
        invitations=tuple(one for one in facts.invitations if one.team not in both),
    )


def disqualify(facts: Facts, team: str, reason: str) -> Facts:
    """Disqualify a team, or take that back (reason ""). Raises NotFound: there is none."""
    found = facts.team(team)
    if found is None or found.merged_into:
        raise NotFound(f"there is no team {team[:80]!a} in {facts.competition.name}")
    return replace(
        facts,
        teams=tuple(
            replace(one, disqualified=reason) if one.name == team else one for one in facts.teams
        ),
    )


def ancestry(facts: Facts, team: str) -> frozenset[str]:
    """Return a team and all teams that became part of it."""
    return frozenset(one.name for one in facts.teams if facts.present(one.name) == team) | {team}


def _is_over(facts: Facts, phase: str, now: float) -> bool:
    found = phase_named(facts.competition, phase)
    return found is not None and end_of(facts.competition, found) <= now


def _own(facts: Facts, user_name: str) -> Team:
    team = facts.team_of(user_name)
    if team is None:
        raise StateConflict(
            f"you are in no team of {facts.competition.name}",
            attempt=f"nsml competition join {facts.competition.full_name}",
        )
    return team


def _check_open(facts: Facts) -> None:
    competition = facts.competition
    if competition.state is not CompetitionState.OPEN:
        state = competition.state.name.lower()
        raise StateConflict(
            f"{competition.name} is not open",
            why="it is over"
            if competition.state is CompetitionState.CLOSED
            else f"it is a {state}",
        )


def _may_found_again(facts: Facts, team: Team, user: User) -> bool:
    return team.founder == user.name and not facts.members_of(team.name)


def _full(facts: Facts, team: str) -> LimitReached:
    return LimitReached(
        f"the team {team} is full",
        why=f"a team has at most {facts.settings.team_size} members, invited users counted",
    )


def _without(merges: Iterable[MergeRequest], *teams: str) -> tuple[MergeRequest, ...]:
    return tuple(one for one in merges if not {one.team, one.other} & {*teams})
