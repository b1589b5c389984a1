"""Sessions as hosts of ssh: SESSION.nsml, or RANK.SESSION.nsml."""

from __future__ import annotations

import re
from typing import Final

_HOST: Final = re.compile(r"(?:([0-9]{1,9})\.)?([^\x00-\x20\x7f]{1,200})\.nsml", re.IGNORECASE)
_LAST: Final = "last"
"""Means `@last`: a host cannot begin with @, which ssh reads as the end of a user name."""
RULE: Final = "it is written SESSION.nsml, or RANK.SESSION.nsml for a replica other than the first"


def host_of(session_id: str, rank: int) -> str:
    """Return the host name of a replica; with a session's id it has no special characters."""
    return f"{rank}.{session_id}.nsml"


def replica_at(host: str) -> tuple[str, int]:
    """Parse a host name to session and rank. Raises ValueError."""
    found = _HOST.fullmatch(host)
    if found is None:
        raise ValueError(f"{host!r} is not a session as a host")
    reference = f"@{_LAST}" if found[2] == _LAST else found[2]
    return reference, int(found[1] or 0)
