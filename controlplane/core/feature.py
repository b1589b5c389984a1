"""What one area of the control plane adds to it."""

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
    """Answer nothing over HTTP."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One area: what it offers and what goes on in it.

    Attributes:
        leader_loops: run while this control plane leads, and are cancelled when it does not.
        member_loops: run in every control plane until it stops, by the name of their task.
        routes: makes the routes that it answers over HTTP. Only called where somebody listens: what routes are made of
            takes a tenth of a second to import.
    """

    services: tuple[Service, ...] = ()
    leader_loops: tuple[Loop, ...] = ()
    member_loops: Mapping[str, Loop] = field(default_factory=dict)
    routes: Callable[[], Sequence[BaseRoute]] = no_routes
