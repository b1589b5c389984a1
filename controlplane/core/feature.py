"""The contribution of one area to the control plane."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

Loop = Callable[[], Coroutine[Any, Any, None]]
Service = tuple[Callable[[Any, Any], None], object]
"""The generated function that adds a servicer to a server, and the servicer."""


def no_routes() -> Sequence[BaseRoute]:
    """Return no HTTP routes."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One area: its services and loops.

    Attributes:
        leader_loops: run while this control plane leads, and are cancelled when it does not.
        member_loops: run in every control plane until it stops, by task name.
        routes: creates its HTTP routes. Only called if HTTP is enabled: their imports take a tenth of a second.
    """

    services: tuple[Service, ...] = ()
    leader_loops: tuple[Loop, ...] = ()
    member_loops: Mapping[str, Loop] = field(default_factory=dict)
    routes: Callable[[], Sequence[BaseRoute]] = no_routes
