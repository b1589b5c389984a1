"""Errors about users that do not exist, without commands that the caller may not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.errors import NotFound
from controlplane.domain.policy import ADMINISTER, ALLOW, PLATFORM, may
from nsml.common.shell import shell_word

if TYPE_CHECKING:
    from controlplane.domain.identity import UserCaller


def unknown_user(error: NotFound, name: str, who: UserCaller | None) -> NotFound:
    """Return the error for a caller: only administrators list and add users. `who`: None for an administrator."""
    if who is None or may(who, ADMINISTER, PLATFORM) is ALLOW:
        adding = f"nsml admin user add {shell_word(name[:64])}    creates the user"
        return NotFound(error.message, attempt=f"nsml admin user ls\n{adding}")
    return NotFound(
        error.message,
        why="names are those that administrators gave",
        attempt="ask them, or an administrator, for the name",
    )
