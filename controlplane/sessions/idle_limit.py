"""Idle limits: the leader stops sessions that have been idle for their limit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import AlreadyEnded
from controlplane.domain.idle import Activity, is_active
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Stop
from controlplane.sessions.stop import stopped_by
from nsml.common.units import duration_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.domain.idle import WasteRule
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import NodeSample
    from controlplane.state.committer import Committer
    from controlplane.state.draft import Draft
    from controlplane.state.live_state import LiveState
    from controlplane.tunnels.tunnels import Tunnels
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 10.0

_log = structlog.get_logger()


class IdleLimits:
    """The loop. A new leader restarts the count: it does not know about earlier connections."""

    def __init__(
        self,
        *,
        state: LiveState,
        history: History,
        tunnels: Tunnels,
        committer: Committer,
        rule: WasteRule,
        clock: Clock,
    ) -> None:
        self._state = state
        self._history = history
        self._tunnels = tunnels
        self._committer = committer
        self._rule = rule
        self._clock = clock
        self._active_at: dict[tuple[str, int], float] = {}

    async def run(self) -> NoReturn:
        """Look every few seconds, until cancelled."""
        self._active_at.clear()
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Record which sessions are active, and stop those idle for their limit.

        Raises:
            NotLeader: another control plane decides.
        """
        samples = await self._history.telemetry.newest()
        now = self._clock.monotonic()
        before, self._active_at = self._active_at, {}
        over: list[Session] = []
        for stored in self._state.sessions.values():
            session = stored.value
            if not session.spec.idle_limit_s or session.state is not SessionState.RUNNING:
                continue
            key = session.id, session.attempt
            seen = self._activity(session, samples)
            active_at = now if is_active(seen, self._rule) else before.get(key, now)
            self._active_at[key] = active_at
            if now - active_at >= session.spec.idle_limit_s:
                over.append(session)
                _log.info("session.idle_limit", session=session.name)
        stop = partial(_stop, now=self._clock.time())
        await self._committer.decide_all(partial(stop, seen=session) for session in over)

    def _activity(self, session: Session, samples: Mapping[str, NodeSample]) -> Activity:
        percent: list[float] = []
        cores: list[float] = []
        # the utilization of simulated devices is made up
        simulated = {
            one.uuid for replica in session.replicas for one in replica.devices if one.simulated
        }
        is_whole = True
        for node, replica in self._state.placed(session):
            sample = samples.get(node)
            devices = {one.uuid: one for one in sample.devices} if sample else {}
            taken = [
                one.cpu_cores
                for one in (sample.replicas if sample else ())
                if (one.session_id, one.attempt, one.rank)
                == (session.id, session.attempt, replica.rank)
            ]
            held = [devices.get(one.uuid) for one in replica.devices if one.uuid not in simulated]
            is_whole = is_whole and bool(taken) and None not in held
            cores += taken
            percent += [one.utilization_percent for one in held if one is not None]
        return Activity(
            is_joined=self._tunnels.is_joined(session.id),
            device_percent=percent,
            cpu_cores=cores,
            is_whole=is_whole and bool(cores),
        )


def _stop(draft: Draft, seen: Session, now: float) -> None:
    """Stop it, unless its attempt or state has changed."""
    session = draft.session(seen.id)
    if session is None or (session.attempt, session.state) != (seen.attempt, seen.state):
        return
    limit = duration_text(session.spec.idle_limit_s)
    stop = Stop(
        grace_s=session.spec.grace_s,
        reason=f"idle limit of {limit}: nobody was connected, and its GPUs and CPUs did nothing",
        asked_by="nsml",
    )
    try:
        draft.put_session(stopped_by(session, stop, now))
    except AlreadyEnded:
        return
