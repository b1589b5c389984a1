"""Who may submit to a phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from controlplane.domain.competitions.standings import may_go_on
from controlplane.domain.competitions.values import CompetitionState

if TYPE_CHECKING:
    from controlplane.domain.competitions.standings import Standings
    from controlplane.domain.competitions.values import Facts, Phase


class Refusal(NamedTuple):
    """Why a user cannot submit, one sentence, and what to do."""

    why: str
    attempt: str = ""


def refusal(
    facts: Facts,
    phase: Phase | None,
    user_name: str,
    user_id: str,
    before: Standings | None,
    *,
    not_now: str = "",
) -> Refusal | None:
    """Return why a user cannot submit to the phase that runs; None: they can, if the limit permits.

    `before`: the standings of the last phase that let only some teams go on; None: there is none.
    `not_now`: why there is no phase to submit to, if it is known.
    """
    competition = facts.competition
    if competition.state is not CompetitionState.OPEN:
        is_over = competition.state is CompetitionState.CLOSED
        return Refusal("it is over" if is_over else "it is not open yet")
    if phase is None:
        return Refusal(
            not_now or "none of its phases runs now",
            f"nsml competition phases {competition.full_name}",
        )
    team = facts.team_of(user_name, user_id)
    if team is None:
        return Refusal("you are in no team", f"nsml competition join {competition.full_name}")
    why = f"your team {team.name} is disqualified: {team.disqualified}" if team.disqualified else ""
    why = why or (_cut(facts, before, team.name) if before is not None else "")
    return Refusal(why) if why else None


def _cut(facts: Facts, before: Standings, team: str) -> str:
    """Return why a team does not go on from a phase; "": it does."""
    name = before.phase.name
    if not before.is_final:
        return f"the standings of {name} are not final: {before.waiting} submissions are being evaluated"
    if may_go_on(facts, before, team):
        return ""
    first = before.phase.advance
    going = "the first team goes on" if first == 1 else f"the first {first:,} teams go on"
    return f"your team {team} is out: only {going} from {name}"
