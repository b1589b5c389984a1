"""What participants do: join, leave, invite, merge, and pick."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from controlplane.access.unknown_users import unknown_user
from controlplane.competitions.competitions import organises
from controlplane.domain.competitions import teams
from controlplane.domain.competitions.phases import is_within, phase_at
from controlplane.domain.competitions.teams import MergeBound, most_by_now
from controlplane.domain.competitions.values import Pick, participant_key
from controlplane.domain.errors import (
    AmbiguousReference,
    InvalidRequest,
    NotFound,
    StateConflict,
)
from controlplane.history.sql.competitions import Merging
from nsml.common.shell import shell_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from controlplane.competitions.competitions import Competitions
    from controlplane.competitions.team_quotas import TeamQuotaRecords
    from controlplane.domain.competitions.values import Facts, Phase, Team
    from controlplane.domain.identity import User, UserCaller
    from controlplane.history.sql.history import History
    from controlplane.submissions.participation import Participation
    from nsml.common.clock import Clock

MOST_INVITED: Final = 100
"""In one call."""


class TeamChanges:
    """The use cases.

    Args:
        quotas: of teams, for the scheduler.
        user: returns a user by name; raises NotFound.
    """

    def __init__(
        self,
        *,
        history: History,
        quotas: TeamQuotaRecords,
        competitions: Competitions,
        participation: Participation,
        clock: Clock,
        user: Callable[[str], Awaitable[User]],
    ) -> None:
        self._history = history
        self._quotas = quotas
        self._competitions = competitions
        self._participation = participation
        self._clock = clock
        self._user = user

    async def join(self, caller: UserCaller, text: str, team: str) -> Facts:
        """Join with a new team, or accept an invitation."""
        known = await self._competitions.find(caller, text)
        now = self._clock.time()
        joined = await self._change(
            known, lambda facts: teams.join(_without_earlier(facts, caller), caller.user, team, now)
        )
        own = _team(joined, caller).name
        await self._quotas.joined(joined.competition.id, caller.user, own)
        return joined

    async def leave(self, caller: UserCaller, text: str) -> Facts:
        """Leave one's team."""
        known = await self._competitions.find(caller, text)
        return await self._change(known, lambda facts: teams.leave(facts, _own(facts, caller)))

    async def invite(
        self, caller: UserCaller, text: str, users: Sequence[str], *, into_competition: bool
    ) -> None:
        """Invite users into the competition, by its organiser, or into the caller's team.

        Raises:
            NotFound: there is no such user.
            StateConflict: the caller is in no team.
        """
        if not users or len(users) > MOST_INVITED:
            raise InvalidRequest(f"1 to {MOST_INVITED} users are invited at a time")
        find = self._competitions.changeable if into_competition else self._competitions.find
        known = await find(caller, text)
        for name in users:
            try:
                await self._user(name)
            except NotFound as unknown:
                raise unknown_user(unknown, name, caller) from None

        def rule(facts: Facts) -> Facts:
            team = "" if into_competition else _inviting_team(facts, caller, users)
            return teams.invite(facts, users, team)

        await self._change(known, rule)

    async def merge(
        self, caller: UserCaller, text: str, other: str, name: str
    ) -> tuple[Facts, str]:
        """Ask a team to merge, or agree; the merged team, "": it has yet to agree."""
        known = await self._competitions.find(caller, text)
        now = self._clock.time()
        phase = phase_at(known.competition, now)
        bound = await self._bound(known, caller, other, phase, now) if phase is not None else None
        merged = ""

        def rule(facts: Facts) -> Facts:
            nonlocal merged
            done = teams.merge(facts, _own(facts, caller), other, name, bound=bound, now=now)
            merged = done.team
            return done.facts

        def merging(before: Facts, after: Facts) -> Merging | None:
            own = before.team_of(caller.user.name)
            if not merged or phase is None or own is None or after == before:
                return None
            return Merging(
                phase.dataset_owner,
                phase.dataset,
                frozenset({own.name, other}),
                merged,
                phase.starts_at,
            )

        changed = await self._history.competitions.change(
            known.competition.id, rule, merging=merging
        )
        if changed is None:
            raise _gone(known)
        if merged:
            await self._quotas.changed(changed.competition.id)
        return changed, merged

    async def pick(
        self, caller: UserCaller, text: str, phase_name: str, ids: Sequence[str]
    ) -> Facts:
        """Say which submissions of the caller's team count in the end of a phase; "": of the one that runs.

        `ids`: of these, or their beginnings.

        Raises:
            AmbiguousReference: several submissions of the team begin so.
            NotFound: the phase, or a submission of the team in it.
            StateConflict: the phase does not run, or the caller has no team.
            InvalidRequest: too many.
        """
        known = await self._competitions.find(caller, text)
        running = phase_at(known.competition, self._clock.time())
        if not phase_name and running is None:
            raise StateConflict(f"no phase of {known.competition.name} runs now")
        name = phase_name or (running.name if running is not None else "")
        phase = self._competitions.phase(known, name)
        found = {
            one.id: one.key
            for one in await self._participation.submissions(known, phase)
            if is_within(known.competition, phase, one.submitted_at)
        }

        def rule(facts: Facts) -> Facts:
            current = self._competitions.phase(facts, name)
            if not is_within(facts.competition, current, self._clock.time()):
                raise StateConflict(
                    f"the phase {name} does not run", why="picks are made while it does"
                )
            team = _team(facts, caller).name
            key = participant_key(facts.competition.id, team)
            own = [one for one in found if found[one] == key]
            wanted = tuple(dict.fromkeys(_named(own, one, team, name) for one in ids))
            if len(wanted) > phase.picks:
                raise InvalidRequest(
                    f"{len(wanted)} submissions are too many",
                    why=f"a team picks at most {phase.picks}",
                )
            rest = tuple(one for one in facts.picks if (one.phase, one.team) != (name, team))
            new = tuple(Pick(phase=name, team=team, submission_id=one) for one in wanted)
            return replace(facts, picks=(*rest, *new))

        return await self._change(known, rule)

    async def _bound(
        self, facts: Facts, caller: UserCaller, other: str, phase: Phase, now: float
    ) -> MergeBound:
        own = facts.team_of(caller.user.name, caller.user.id)
        both = {own.name if own is not None else "", other}
        members = {name for team in both for name in facts.members_of(team)}
        counted = sum(
            one.is_counted
            and is_within(facts.competition, phase, one.submitted_at)
            and (one.team in both or one.owner in members)
            for one in await self._participation.submissions(facts, phase)
        )
        limit = phase.limit or (await self._participation.board(phase)).limit
        return MergeBound(counted=counted, most=most_by_now(limit, phase.starts_at, now))

    async def _change(self, known: Facts, rule: Callable[[Facts], Facts]) -> Facts:
        changed = await self._history.competitions.change(known.competition.id, rule)
        if changed is None:
            raise _gone(known)
        return changed


def _named(own: Sequence[str], text: str, team: str, phase: str) -> str:
    """Return the id of a team's submission that is, or begins, as a text."""
    found = [text] if text in own else [one for one in own if text and one.startswith(text)]
    if not found:
        raise NotFound(f"the team {team} has no submission {text[:80]!a} in {phase}")
    if len(found) > 1:
        raise AmbiguousReference(text, tuple(found), what="submissions")
    return found[0]


def _team(facts: Facts, caller: UserCaller) -> Team:
    """Return the caller's team; StateConflict: they have none."""
    found = facts.team_of(caller.user.name, caller.user.id)
    if found is None:
        raise StateConflict(
            f"you are in no team of {facts.competition.name}",
            attempt=f"nsml competition join {facts.competition.full_name}",
        )
    return found


def _inviting_team(facts: Facts, caller: UserCaller, users: Sequence[str]) -> str:
    """Return the name of the caller's team, into which users are invited; StateConflict: they have none."""
    competition = facts.competition
    if facts.team_of(caller.user.name, caller.user.id) is None and organises(caller, competition):
        words = ["nsml", "competition", "invite", competition.full_name, *users]
        raise StateConflict(
            f"you are in no team of {competition.name}, which you organise",
            attempt=f"{shell_line([*words, '--into-competition'])}    lets them join",
        )
    return _team(facts, caller).name


def _own(facts: Facts, caller: UserCaller) -> str:
    """Return the caller's name, if a member has it who is no earlier user with that name."""
    _team(facts, caller)
    return caller.user.name


def _without_earlier(facts: Facts, caller: UserCaller) -> Facts:
    """Let an earlier user with the caller's name leave."""
    user = caller.user
    return replace(
        facts,
        members=tuple(
            one for one in facts.members if one.user_name != user.name or one.user_id == user.id
        ),
    )


def _gone(known: Facts) -> NotFound:
    return NotFound(f"there is no competition {known.competition.name}")
