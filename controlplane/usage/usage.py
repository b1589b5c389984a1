"""Use of devices by sessions: their shares of devices over time, and the measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from controlplane.domain.values import HeldDevice, Usage
from controlplane.history.errors import HistoryUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.telemetry_rollup import Used
    from controlplane.history.values import NodeSample
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 10.0
AT_ONCE: Final = 50
"""Live sessions per measurement, least recently measured first."""
SETTLED_S: Final = 10.0
"""Age at which a node's samples are complete, also those through another control plane."""
IDLE_S: Final = 60.0
"""Minimum reported pause."""
BUSY_PERCENT: Final = 80.0
_JOULES: Final = 3600.0
_SILENT: Final = "MIG-"
"""Prefix of the uuids of instances: drivers do not report their utilization."""

_log = structlog.get_logger()


class Held(NamedTuple):
    """A share of a device, in an attempt, in an interval; Unix seconds."""

    device: HeldDevice
    attempt: int
    since: float
    until: float


class Ran(NamedTuple):
    """A replica on a node, in an interval; Unix seconds."""

    node: str
    attempt: int
    rank: int
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Measurements of a live session; `idle_since` 0: it is busy, holds nothing, or this is unknown."""

    usage: Usage
    idle_since: float = 0.0


class Load(NamedTuple):
    """Current use of all devices: history.telemetry_rollup.CLUSTER_FIGURES."""

    devices: int
    held: int
    running: int
    busy: int
    utilization: float
    watts: float


@dataclass(slots=True)
class _Sum:
    """Accumulates measurements; `until` is their end."""

    attempt: int
    until: float = 0.0
    seconds: float = 0.0
    told_seconds: float = 0.0
    weighted: float = 0.0
    peak: float = 0.0
    memory: float = 0.0
    joules: float = 0.0
    busy_until: float = -math.inf
    has_silent: bool = False

    def add(self, held: HeldDevice, used: Used) -> None:
        share = held.thousandths / 1000
        self.seconds += used.seconds * share
        self.joules += used.joules * share
        self.memory = max(self.memory, used.memory_peak)
        if held.uuid.startswith(_SILENT) and not used.utilization_peak:
            self.has_silent = True
            return
        self.told_seconds += used.seconds * share
        self.weighted += used.utilization * used.seconds * share
        self.peak = max(self.peak, used.utilization_peak)
        self.busy_until = max(self.busy_until, used.busy_until)

    def usage(self) -> Usage | None:
        if not self.seconds:
            return None
        return Usage(
            device_seconds=self.seconds,
            utilization=self.weighted / self.told_seconds if self.told_seconds else None,
            utilization_peak=self.peak,
            memory_peak=self.memory,
            watt_hours=self.joules / _JOULES,
        )


class Usages:
    """Measures sessions; `look` keeps the values of live ones fresh.

    No total exists only in memory: an ended session is measured once, from the history of its devices,
    and a live one is measured again after a restart.

    Args:
        idle_percent: a device with at most this utilization is idle.
    """

    def __init__(
        self, *, state: LiveState, history: History, clock: Clock, idle_percent: float = 0.0
    ) -> None:
        self._idle_percent = idle_percent
        self._state = state
        self._history = history
        self._clock = clock
        self._sums: dict[str, _Sum] = {}
        self._live: dict[str, Live] = {}

    def held(self, session: Session) -> tuple[Held, ...]:
        """Return all shares that it held and holds, oldest first."""
        found = [
            Held(device, attempt.number, attempt.placed_at, attempt.ended_at)
            for attempt in session.attempts
            for device in attempt.devices
        ]
        return (*found, *self.holding(session))

    def ran(self, session: Session) -> tuple[Ran, ...]:
        """Return the nodes and times of its replicas, oldest first."""
        found = [
            Ran(node, attempt.number, rank, attempt.placed_at, attempt.ended_at)
            for attempt in session.attempts
            for rank, node in enumerate(attempt.nodes)
        ]
        now = self._clock.time()
        running = [
            Ran(name, session.attempt, replica.rank, replica.placed_at, now)
            for name, replica in self._state.placed(session)
        ]
        return (*found, *sorted(running, key=lambda one: one.rank))

    def live(self, session_id: str) -> Live | None:
        """Return a live session's measurements, or None."""
        return self._live.get(session_id)

    def measured(self) -> Iterable[str]:
        """Return the measured live sessions."""
        return self._live.keys()

    async def whole(self, session: Session) -> Usage | None:
        """Return its whole usage; None if nothing was measured."""
        total = _Sum(session.attempt)
        await self._measure(total, self.held(session))
        return total.usage()

    async def load(self) -> Load:
        """Return the current use of all devices, by their nodes' latest samples."""
        return self.load_of(await self._history.telemetry.newest())

    def load_of(self, samples: Mapping[str, NodeSample]) -> Load:
        """Return the current use of all devices, by recent samples of nodes."""
        devices = held = running = busy = 0
        load = watts = 0.0
        for name, sample in samples.items():
            stored = self._state.nodes.get(name)
            if stored is None:
                continue
            offered = {one.uuid for one in stored.value.devices}
            allocation = self._state.allocations.get(name)
            shares = allocation.value.held_thousandths() if allocation else {}
            for one in sample.devices:
                if one.uuid in offered:
                    devices += 1
                    held += one.uuid in shares
                    running += one.utilization_percent > 0
                    busy += one.utilization_percent > BUSY_PERCENT
                    load += min(max(one.utilization_percent, 0.0), 100.0)
                    watts += max(one.power_watts, 0.0)
        return Load(devices, held, running, busy, load / devices if devices else 0.0, watts)

    async def look(self) -> None:
        """Measure some live sessions up to now, the least recently measured ones."""
        live = {
            stored.value.id: stored.value
            for stored in self._state.sessions.values()
            if stored.value.state.holds_devices or stored.value.attempts
        }
        for gone in self._sums.keys() - live.keys():
            self._sums.pop(gone, None)
            self._live.pop(gone, None)
        grows = [one for one in live if not self._is_whole(live[one])]
        oldest = sorted(grows, key=lambda one: self._sums[one].until if one in self._sums else 0.0)
        for session_id in oldest[:AT_ONCE]:
            try:
                await self._look_at(live[session_id])
            except HistoryUnavailable as error:
                _log.debug("usage.unknown", reason=error.message)
                return

    def _is_whole(self, session: Session) -> bool:
        """Return whether the measurement is complete: it holds nothing, and all its shares are measured."""
        known = self._sums.get(session.id)
        if known is None or known.attempt != session.attempt or session.state.holds_devices:
            return False
        return known.until >= max(one.ended_at for one in session.attempts)

    async def _look_at(self, session: Session) -> None:
        settled, now = self._sums.get(session.id), self._clock.time()
        until = now - SETTLED_S
        if settled is None or settled.attempt != session.attempt:
            settled = _Sum(session.attempt, until)
            await self._measure(settled, _within(self.held(session), -math.inf, until))
        elif settled.until < until:
            since, settled = settled.until, replace(settled, until=until, has_silent=False)
            await self._measure(settled, _within(self.held(session), since, until))
        self._sums[session.id] = settled
        # Later samples are measured again when they are complete.
        known = replace(settled)
        await self._measure(known, _within(self.held(session), settled.until, now))
        usage = known.usage()
        if usage is None:
            return
        held = self.holding(session)
        idle_since = max([known.busy_until, *(one.since for one in held)])
        is_idle = bool(held) and not known.has_silent and now - idle_since >= IDLE_S
        self._live[session.id] = Live(usage=usage, idle_since=idle_since if is_idle else 0.0)

    def holding(self, session: Session) -> list[Held]:
        """Return its current shares."""
        now = self._clock.time()
        return [
            Held(
                HeldDevice(node=name, uuid=one.uuid, thousandths=one.thousandths),
                session.attempt,
                replica.placed_at,
                now,
            )
            for name, replica in self._state.placed(session)
            for one in replica.devices
        ]

    async def _measure(self, total: _Sum, held: Iterable[Held]) -> None:
        groups: dict[tuple[str, float, float], list[HeldDevice]] = {}
        for one in held:
            groups.setdefault((one.device.node, one.since, one.until), []).append(one.device)
        for (node, since, until), devices in groups.items():
            told = await self._history.telemetry.used(
                node,
                [one.uuid for one in devices],
                since=since,
                until=until,
                above=self._idle_percent,
            )
            for device in devices:
                if device.uuid in told:
                    total.add(device, told[device.uuid])


def _within(held: Iterable[Held], since: float, until: float) -> Iterator[Held]:
    """Return the shares in an interval, clipped to it."""
    for one in held:
        if one.since < until and one.until > since:
            yield one._replace(since=max(one.since, since), until=min(one.until, until))
