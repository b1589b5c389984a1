"""The tunnels of one control plane, for the areas with calls as their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.tunnels.pacing import Pacing
from controlplane.tunnels.tunnels import Tunnels

if TYPE_CHECKING:
    from controlplane.core.core import Core


def tunnels(core: Core) -> Tunnels:
    """Byte streams from clients to programs on nodes."""
    return Tunnels(
        contacts=core.contacts,
        random_bytes=core.random_bytes,
        clock=core.clock,
        pacing=Pacing(core.calls),
        relay=core.backends.relay,
    )
