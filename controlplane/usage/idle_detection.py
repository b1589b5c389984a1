"""Finds sessions with idle devices, and records that in them (`domain/idle.py`)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.idle import Seen, following, judged
from controlplane.domain.lifecycle import SessionState
from nsml.spec.foreign_processes import USED_BY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.domain.idle import WasteRule
    from controlplane.domain.values import Device, Episode, Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import NodeSample
    from controlplane.state.committer import Committer
    from controlplane.state.draft import Draft
    from controlplane.state.live_state import LiveState
    from controlplane.usage.usage import Usages
    from nsml.common.clock import Clock

AT_ONCE: Final = 200
"""Sessions per turn of the event loop."""
_JUDGED: Final = frozenset({SessionState.RUNNING, SessionState.STOPPING})
"""States in which a program could use them. Preparing, paused and unreachable sessions are not idle."""


class Begun(NamedTuple):
    """A new episode of a session."""

    session: Session
    episode: Episode


class IdleDetector:
    """Checks the leader's state; results are in the sessions' records."""

    def __init__(
        self,
        *,
        state: LiveState,
        history: History,
        usages: Usages,
        committer: Committer,
        rule: WasteRule,
        clock: Clock,
    ) -> None:
        self._state = state
        self._history = history
        self._usages = usages
        self._committer = committer
        self._rule = rule
        self._clock = clock
        self._empty: dict[tuple[str, int], float] = {}

    async def look(self) -> list[Begun]:
        """Begin and end episodes; return the new ones.

        Raises:
            NotLeader: another control plane leads.
        """
        samples = await self._history.telemetry.newest()
        now = self._clock.time()
        sessions = [stored.value for stored in self._state.sessions.values()]
        news: list[tuple[Session, Episode | None]] = []
        empty: dict[tuple[str, int], float] = {}
        for number, session in enumerate(sessions):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            found = None
            # A sealed program could tell hidden inputs by when its devices rest, and its time is limited anyway.
            if session.state in _JUDGED and not session.spec.is_sealed:
                seen = self._seen(session, samples, now)
                found = judged(seen, self._rule, now)
                if seen.empty_since:
                    empty[session.id, session.attempt] = seen.empty_since
            if following(session.episodes, found, now) != session.episodes:
                news.append((session, found))
        self._empty = empty
        begun = await self._committer.decide_all(
            partial(apply_waste, seen=session, found=found, now=now) for session, found in news
        )
        return [one for one in begun if one is not None]

    def _seen(self, session: Session, samples: Mapping[str, NodeSample], now: float) -> Seen:
        live = self._usages.live(session.id)
        held = self._usages.holding(session)
        strangers, memory, is_heard, is_empty = [], 0, bool(held), bool(held)
        for one in held:
            node, uuid = one.device.node, one.device.uuid
            device = self._device(node, uuid)
            if device is not None and device.withheld.startswith(USED_BY):
                strangers.append(f"GPU {device.index} of {node} is {device.withheld}")
            sample = samples.get(node)
            readings = sample.devices if sample else ()
            reading = next((each for each in readings if each.uuid == uuid), None)
            if device is None or reading is None:
                is_heard = is_empty = False
                continue
            # Simulated ones have no processes to count.
            is_empty = is_empty and not device.simulated and not reading.process_count
            memory += reading.memory_used_bytes
        key = session.id, session.attempt
        started = [one.started_at for one in session.replicas]
        idle_since = live.idle_since if live and is_heard else 0.0
        return Seen(
            # Not before its programs existed.
            idle_since=max([idle_since, *started]) if idle_since else 0.0,
            empty_since=self._empty.get(key, now) if is_empty else 0.0,
            memory_bytes=memory,
            strangers=strangers,
        )

    def _device(self, node: str, uuid: str) -> Device | None:
        stored = self._state.nodes.get(node)
        devices = stored.value.devices if stored else ()
        return next((one for one in devices if one.uuid == uuid), None)


def apply_waste(draft: Draft, seen: Session, found: Episode | None, now: float) -> Begun | None:
    """Record the result for a session unless it has changed since; return its new episode."""
    session = draft.session(seen.id)
    if session is None or session.attempt != seen.attempt or session.state is not seen.state:
        return None
    episodes = following(session.episodes, found, now)
    if episodes == session.episodes:
        return None
    session = replace(session, episodes=episodes)
    draft.put_session(session)
    return None if found is None else Begun(session, episodes[-1])
