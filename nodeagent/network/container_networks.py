"""The interfaces by which containers of sessions and builds leave the machine, and the containers without enforceable rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from nodeagent.engine.client import EngineError
from nodeagent.engine.networks import Ways, ways_of
from nodeagent.network.gang_network import HOST, NONE, GangNetwork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.config import Settings
    from nodeagent.engine.client import Engine

log = structlog.get_logger()


class ContainerNetworks:
    """The engine's networks of this agent's containers. Blocking.

    Args:
        engine: runs them.
        settings: the site's choice of networks.
        own: the network of sessions and builds if the site names none.
    """

    def __init__(self, engine: Engine, settings: Settings, own: str) -> None:
        gangs = GangNetwork(mode=settings.gang_network or NONE).engine_network
        self._engine = engine
        asked = {HOST} if settings.host_network == "on-request" else set()
        self._sessions = {settings.container_network or own, gangs, *asked}
        self._builds = settings.build_network or settings.container_network or own
        self._ways = Ways()

    def bridges(self) -> Sequence[str]:
        """Return the interfaces of containers; the previous ones if the engine does not answer."""
        try:
            self._ways = ways_of(self._engine, {*self._sessions, self._builds})
        except EngineError as error:
            log.info("engine.networks_unknown", error=str(error))
        return self._ways.bridges

    def open_reason(self, *, has_ids: bool) -> str:
        """Return why rules about metadata services do not hold for all containers, or "".

        `has_ids`: sessions run with ids of their own.
        """
        reasons = []
        if HOST in self._sessions and not has_ids:
            reasons.append("sessions with the machine's network have no ids of their own")
        if self._builds == HOST:
            reasons.append("builds of images have the machine's network (build_network)")
        if others := self._ways.others:
            named = ", ".join(others)
            reasons.append(f"containers leave by no bridge of this machine (network {named})")
        return "; ".join(reasons)
