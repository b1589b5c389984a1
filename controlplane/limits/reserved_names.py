"""Reserved names: those like the platform's own."""

from __future__ import annotations

from controlplane.domain.errors import InvalidRequest
from nsml.spec.reserved_names import is_reserved_for_platform


def check_not_reserved(name: str, what: str) -> str:
    """Return the name of a new user, project or node (`what`); raise InvalidRequest if it is reserved."""
    if is_reserved_for_platform(name, of_node=what == "node"):
        raise InvalidRequest(
            f"no {what} can be called {name}",
            why="the name looks like one of the platform itself",
            attempt="another name",
        )
    return name
