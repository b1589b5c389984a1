"""Values of competitions. Numbers of CompetitionState are those of nsml/v1/competitions.proto, and are stored."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final

from controlplane.domain.boards.values import PublicScore, SubmissionLimit
from controlplane.domain.values import Visibility

DEFAULT_TEAM_SIZE: Final = 4
DEFAULT_PICKS: Final = 2
DEFAULT_RERUN_TEAMS: Final = 3


class CompetitionState(enum.IntEnum):
    """Where a competition is."""

    DRAFT = 1
    OPEN = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A round: submissions from `starts_at` on, and before `end`.

    Attributes:
        dataset_owner, dataset: whose board it uses.
        limit: of a team's submissions; None: as the dataset's board.
        advance: how many teams go on to the next phase; 0: all.
        picks: how many submissions of a team count in the end.
        closed_at: when its organiser ended it before `ends_at`; 0.0: not.
    """

    name: str
    starts_at: float
    ends_at: float
    dataset_owner: str
    dataset: str
    limit: SubmissionLimit | None = None
    public_score: PublicScore = PublicScore.OWN_BEST
    advance: int = 0
    picks: int = DEFAULT_PICKS
    closed_at: float = 0.0

    @property
    def end(self) -> float:
        """The first instant that is not of the phase any more; not after `ends_at`."""
        return min(self.ends_at, self.closed_at or math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompetitionSettings:
    """What the organiser sets; see nsml.v1.CompetitionSettings.

    Attributes:
        mergers_until: 0.0: until the end of the last phase.
        gpu_thousandths: that the sessions of one team hold at one time; 0: no limit.
    """

    title: str = ""
    description: str = ""
    phases: tuple[Phase, ...] = ()
    by_invitation: bool = False
    team_size: int = DEFAULT_TEAM_SIZE
    mergers_until: float = 0.0
    gpu_thousandths: int = 0
    visibility: Visibility = Visibility.PRIVATE

    @property
    def datasets(self) -> frozenset[tuple[str, str]]:
        """Owner and name of each phase's dataset."""
        return frozenset((one.dataset_owner, one.dataset) for one in self.phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Competition:
    """A competition.

    Attributes:
        owner, owner_id: the organiser; the name may get another user.
        team: of the organiser at its creation, for the visibility TEAM.
        closed_at: 0.0: it is not closed.
    """

    id: str
    owner: str
    name: str
    settings: CompetitionSettings
    created_at: float
    owner_id: str = ""
    team: str = ""
    state: CompetitionState = CompetitionState.DRAFT
    closed_at: float = 0.0

    @property
    def full_name(self) -> str:
        """OWNER/NAME."""
        return f"{self.owner}/{self.name}"

    @property
    def visibility(self) -> Visibility:
        """Who sees it, beside its organiser, invited users and participants."""
        return self.settings.visibility


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A team; its name is unique in its competition, also after all members left.

    Attributes:
        founder: the user who may join it again after everybody left.
        disqualified: why; "": it is not.
        merged_into: the team that it became a part of; "": none.
    """

    name: str
    founder: str
    created_at: float
    disqualified: str = ""
    merged_into: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A user in a team; in one of a competition at most."""

    user_name: str
    user_id: str
    team: str
    joined_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Of a user, into a team, or into the competition (team "")."""

    user_name: str
    team: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """`team` asks `other` to become one team, `name`."""

    team: str
    other: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A text for all participants; numbers count from 1."""

    number: int
    text: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A submission that counts for its team in the end of a phase."""

    phase: str
    team: str
    submission_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A submission of the organiser, shown in the standings by a label."""

    submission_id: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of a competition. Rules return it changed; submissions are elsewhere."""

    competition: Competition
    teams: tuple[Team, ...] = ()
    members: tuple[Member, ...] = ()
    invitations: tuple[Invitation, ...] = ()
    merges: tuple[MergeRequest, ...] = ()
    announcements: tuple[Announcement, ...] = ()
    picks: tuple[Pick, ...] = ()
    baselines: tuple[Baseline, ...] = ()

    @property
    def settings(self) -> CompetitionSettings:
        """Of the competition."""
        return self.competition.settings

    def team(self, name: str) -> Team | None:
        """Return a team, merged ones too."""
        return next((one for one in self.teams if one.name == name), None)

    def team_of(self, user_name: str, user_id: str = "") -> Team | None:
        """Return the team of a user; None: they are in none. `user_id`: not of an earlier user with the name."""
        name = next(
            (
                one.team
                for one in self.members
                if one.user_name == user_name and user_id in {"", one.user_id}
            ),
            "",
        )
        return self.team(name) if name else None

    def members_of(self, team: str) -> tuple[str, ...]:
        """Return the names of a team's members, sorted."""
        return tuple(sorted(one.user_name for one in self.members if one.team == team))

    def is_invited(self, user_name: str) -> bool:
        """Whether a user is invited, into the competition or a team."""
        return any(one.user_name == user_name for one in self.invitations)

    def present(self, team: str) -> str:
        """Return the team that a team is now a part of, else itself."""
        seen = {team}
        while (found := self.team(team)) and found.merged_into and found.merged_into not in seen:
            team = found.merged_into
            seen.add(team)
        return team


def participant_key(competition_id: str, team: str) -> str:
    """The `team` of a team's submissions."""
    return f"{competition_id}/{team}"


def team_of_key(key: str) -> str:
    """The name of a team from the `team` of a submission; others are names of users' teams."""
    return key.rpartition("/")[2]
