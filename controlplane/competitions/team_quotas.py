"""Keeps the records by which the scheduler limits the GPUs of teams true to what competitions say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.core.compare_and_swap import commit_at
from controlplane.domain.competitions.team_quota import team_quota
from controlplane.domain.competitions.values import CompetitionState, participant_key
from controlplane.domain.errors import NsmlError
from controlplane.store.interface import Delete, Put, StoreError, unchanged
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from controlplane.core.compare_and_swap import SessionWriter
    from controlplane.domain.competitions.values import Competition
    from controlplane.domain.identity import User
    from controlplane.domain.values import Session, TeamQuota
    from controlplane.history.sql.history import History
    from controlplane.state.live_state import LiveState
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 30.0
"""Interval of comparing the records with the history: competitions end by time, and a write may have been missed."""
TRIES: Final = 20


class TeamQuotaRecords:
    """Any control plane writes a record after a change of its competition; the leader compares all of them.

    The history is what holds. A record that could not be written is written by the next comparison.

    Args:
        writer: of sessions, without their owners' limits.
    """

    def __init__(
        self,
        *,
        store: KeyValueStore,
        state: LiveState,
        history: History,
        writer: SessionWriter,
        clock: Clock,
    ) -> None:
        self._store = store
        self._state = state
        self._history = history
        self._writer = writer
        self._clock = clock
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Compare all records with the history, until cancelled."""
        while True:
            try:
                await self._compare()
            except NsmlError as error:
                self._log.warning("team_quotas.not_compared", reason=error.message)
            await self._clock.sleep(LOOK_EVERY_S)

    async def changed(self, competition_id: str) -> None:
        """Write the record of a competition that was changed, or that is not there any more."""
        try:
            await self._write(competition_id)
        except (NsmlError, StoreError) as error:
            self._log.warning(
                "team_quotas.not_written", competition=competition_id, reason=str(error)
            )

    async def joined(self, competition_id: str, user: User, team: str) -> None:
        """Let live sessions of a user who joined a team count for it, else they would never count.

        Those that count for another team of the competition go on to do so.
        """
        stored = self._state.team_quotas.get(competition_id)
        if stored is None:
            return
        sessions = [one.value for one in self._state.sessions.values()]
        for one in sessions:
            if _counts(stored.value, one, user):
                await self._count(one, participant_key(competition_id, team))

    async def _count(self, session: Session, team: str) -> None:
        def with_team(known: Session) -> Session:
            return replace(known, competition_teams=tuple(sorted({*known.competition_teams, team})))

        try:
            await self._writer.change(session.id, with_team, is_counted=False)
        except NsmlError as error:
            self._log.warning("team_quotas.not_counted", session=session.name, reason=error.message)

    async def _compare(self) -> None:
        wanted: dict[str, TeamQuota] = {}
        for one in await self._history.competitions.every(CompetitionState.OPEN):
            if (quota := await self._wanted(one)) is not None:
                wanted[one.id] = quota
        for competition_id in sorted({*wanted, *self._state.team_quotas}):
            stored = self._state.team_quotas.get(competition_id)
            if (stored.value if stored is not None else None) != wanted.get(competition_id):
                await self.changed(competition_id)

    async def _wanted(self, competition: Competition | None) -> TeamQuota | None:
        if competition is None:
            return None
        merged = await self._history.competitions.merged(competition.id)
        return team_quota(competition, merged, self._clock.time())

    async def _write(self, competition_id: str) -> None:
        """Write or delete a record; the history is read after the record, so that an older state never replaces it."""
        key = etcd_codec.team_quota_key(competition_id)
        for _ in range(TRIES):
            item = await self._store.get(key)
            quota = await self._wanted(await self._history.competitions.get(competition_id))
            if quota is None and item is None:
                return
            write = (
                Delete(key=key)
                if quota is None
                else Put(key=key, value=etcd_codec.encode_team_quota(quota))
            )
            compares = [unchanged(key, item.mod_revision if item is not None else 0)]
            if await commit_at(self._store, self._state, key, compares, write):
                return
        self._log.warning("team_quotas.contended", competition=competition_id)


def _counts(quota: TeamQuota, session: Session, user: User) -> bool:
    """Whether a user's session uses a dataset of a competition, and counts for none of its teams."""
    prefix = participant_key(quota.competition_id, "")
    used = {f"{one.owner}/{one.name}" for one in session.spec.datasets}
    return (
        (session.owner, session.owner_id or session.owner) == (user.name, user.id)
        and not session.spec.submission_id
        and not session.state.is_ended
        and not used.isdisjoint(quota.datasets)
        and not any(one.startswith(prefix) for one in session.competition_teams)
    )
