"""What the teams of competitions let start: how many GPUs the sessions of one team hold at one time.

A session has the teams that it counts for from its submission; sessions of teams that merged count together. What
already runs is not bounded by a quota that became smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from controlplane.domain.changes import TeamQuotaChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from controlplane.domain.changes import TeamQuotaRemoved
    from controlplane.domain.values import Session, TeamQuota


class TeamHolder(NamedTuple):
    """A session that counts for teams, and the thousandths of GPUs that it holds."""

    session: Session
    gpus: int


class Shortage(NamedTuple):
    """A quota that bars a session: the team, what its sessions hold in thousandths of GPUs, and which ones hold some."""

    quota: TeamQuota
    team: str
    held: int
    holders: tuple[TeamHolder, ...]


class _Team:
    """The sessions of one team that hold resources, by id, and the sum of their thousandths of GPUs."""

    __slots__ = ("held", "holders")

    def __init__(self) -> None:
        self.held = 0
        self.holders: dict[str, TeamHolder] = {}


class TeamQuotas:
    """Quotas of competitions' teams, and what their sessions hold; updated by changes.

    Teams are named COMPETITION_ID/TEAM, as in `Session.competition_teams`.
    """

    def __init__(self) -> None:
        self._quotas: dict[str, TeamQuota] = {}
        self._holders: dict[str, TeamHolder] = {}
        self._teams: dict[str, _Team] = {}

    def apply(self, change: TeamQuotaChanged | TeamQuotaRemoved) -> None:
        """Apply a change."""
        # Holders are counted again, since teams may have merged: this is rare, and so are sessions with teams.
        holders = list(self._holders.values())
        for one in holders:
            self.release(one.session.id)
        if isinstance(change, TeamQuotaChanged):
            self._quotas[change.quota.competition_id] = change.quota
        else:
            self._quotas.pop(change.competition_id, None)
        for one in holders:
            self.hold(*one)

    def lacks(self, change: TeamQuotaChanged | TeamQuotaRemoved) -> bool:
        """Return whether the record in a change differs from the known one."""
        if isinstance(change, TeamQuotaChanged):
            return self._quotas.get(change.quota.competition_id) != change.quota
        return change.competition_id in self._quotas

    def competitions(self) -> list[str]:
        """List the ids of competitions with a quota."""
        return list(self._quotas)

    def hold(self, session: Session, gpus: int) -> None:
        """Set the thousandths of GPUs that a session holds."""
        self.release(session.id)
        holder = self._holders[session.id] = TeamHolder(session, gpus)
        for key in self._keys(session.competition_teams):
            team = self._teams.setdefault(key, _Team())
            team.held += gpus
            team.holders[session.id] = holder

    def release(self, session_id: str) -> None:
        """Remove a session that holds nothing any more."""
        holder = self._holders.pop(session_id, None)
        if holder is None:
            return
        for key in self._keys(holder.session.competition_teams):
            team = self._teams[key]
            team.held -= holder.gpus
            del team.holders[session_id]
            if not team.holders:
                del self._teams[key]

    def bars(self, teams: Sequence[str], gpus: int) -> bool:
        """Return whether a quota bars a session of these teams that would hold so many thousandths of GPUs."""
        return self.short(teams, gpus) is not None

    def short(self, teams: Sequence[str], gpus: int) -> Shortage | None:
        """Return the first quota that bars a session of these teams; None: none does."""
        if not gpus:
            return None
        for key in self._keys(teams):
            quota = self._quota(key)
            team = self._teams.get(key)
            held = team.held if team is not None else 0
            if quota is not None and held + gpus > quota.gpu_thousandths > 0:
                holders = tuple(team.holders.values()) if team is not None else ()
                name = key.partition("/")[2]
                return Shortage(quota, name, held, tuple(one for one in holders if one.gpus))
        return None

    def never(self, teams: Sequence[str], gpus: int) -> TeamQuota | None:
        """Return the first quota that is smaller than what a session would hold; None: none is."""
        return first_exceeded((self._quota(key) for key in self._keys(teams)), gpus)

    def opens_at(
        self, teams: Sequence[str], gpus: int, ends: Callable[[Session], float]
    ) -> float | None:
        """Return when all quotas let a session start at the latest, Unix seconds; 0: unknown, None: they let it now.

        `ends` returns the latest end of a session; 0: unbounded.
        """
        opens: list[float] = []
        for key in self._keys(teams):
            found = self.short([key], gpus)
            if found is not None:
                opens.append(_opens_at(found, gpus, ends))
        if not opens:
            return None
        return max(opens) if all(opens) else 0.0

    def _quota(self, key: str) -> TeamQuota | None:
        return self._quotas.get(key.partition("/")[0])

    def _keys(self, teams: Iterable[str]) -> list[str]:
        """Return the teams of which these are a part now, each once."""
        found: dict[str, None] = {}
        for one in teams:
            competition_id, _, team = one.partition("/")
            quota = self._quotas.get(competition_id)
            found[f"{competition_id}/{quota.present(team)}" if quota is not None else one] = None
        return list(found)


def first_exceeded(quotas: Iterable[TeamQuota | None], gpus: int) -> TeamQuota | None:
    """Return the first quota below so many thousandths of GPUs; None: none is."""
    return next((one for one in quotas if one is not None and 0 < one.gpu_thousandths < gpus), None)


def _opens_at(short: Shortage, gpus: int, ends: Callable[[Session], float]) -> float:
    held = short.held
    leaving = ((ends(one.session), one.session.id, one.gpus) for one in short.holders)
    for at, _, its in sorted(one for one in leaving if one[0]):
        held -= its
        if held + gpus <= short.quota.gpu_thousandths:
            return at
    return 0.0
