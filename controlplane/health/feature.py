"""Detects failures of the platform that no call shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.accounts.feature import joining
from controlplane.core.feature import Feature
from controlplane.domain.conditions import ConditionName
from controlplane.health import warnings
from controlplane.health.probing_loop import Probing
from controlplane.health.warning_loop import Warnings

if TYPE_CHECKING:
    from controlplane.core.core import Core

LEADERLESS_S: Final = 3.0
"""Time without a leader before it is a condition."""


def certificate_ends(core: Core) -> dict[str, float]:
    """Return the ends of nodes' certificates, by node, Unix seconds; 0 if unknown."""
    return {name: core.identities.certificate_ends(name) for name in core.state.nodes}


def wire(core: Core) -> Feature:
    """Probe unused backends, and detect slow failures."""
    probing = Probing(
        core.health.parts(),
        clock=core.clock,
        looks=(core.health.look_at_disks, _LeaderWatch(core).look),
    )
    return Feature(member_loops={"probing": probing.run, "warnings": _warnings(core).run})


def _warnings(core: Core) -> Warnings:
    joins = core.shared(joining)
    return Warnings(
        core.health.conditions,
        core.store,
        looks=(
            (
                ConditionName.SETTINGS_DIFFER,
                lambda: warnings.differing_settings(core.members.everyone()),
            ),
            (
                ConditionName.CLOCK_WRONG,
                lambda: warnings.wrong_clocks(core.contacts.clocks_ahead_s(), _own_clock(core)),
            ),
            (
                ConditionName.PROCESS_FAILING,
                lambda: warnings.failing_processes(core.beside),
            ),
            (
                ConditionName.JOIN_REFUSED,
                lambda: warnings.refused_joins(
                    joins.refused, joins.refused_at, joins.last_refusal, core.wall.time()
                ),
            ),
        ),
        ends=lambda: (
            certificate_ends(core),
            {"authority": core.backends.authority.expires_at},
        ),
        files=core.config.certificates,
        run=core.offload,
        wall=core.wall,
        clock=core.clock,
    )


def _own_clock(core: Core) -> dict[str, float]:
    """Return how far this machine's clock is ahead of the platform's, if it is another one, by control plane."""
    shared = core.backends.shared_clock
    return {} if shared is None else {core.config.member: shared.own_ahead_s()}


class _LeaderWatch:
    """Sets the condition that there is no leader: no call reports that."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._led_at = core.clock.monotonic()

    def look(self) -> None:
        """While the store is gone there can be no leader, and every change of leader has a short gap."""
        conditions, now = self._core.health.conditions, self._core.clock.monotonic()
        if self._core.leading.leader is not None:
            self._led_at = now
        is_gone = conditions.stands(ConditionName.COORDINATION_GONE)
        stands = now - self._led_at >= LEADERLESS_S and not is_gone
        conditions.set(ConditionName.NO_LEADER, stands=stands)
