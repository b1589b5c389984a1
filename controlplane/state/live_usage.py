"""How many sessions each user and project has in the coordination store, and how large their records are.

Kept up as sessions come, change and go: nothing is counted when somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.values import Session

_FIXED_BYTES: Final = 512
"""Of a record beside its texts, with its name and its request id, which have keys of their own."""
_FIELD_BYTES: Final = 4


@dataclass(slots=True)
class Usage:
    """Of one user or project: sessions that have not ended, and the records of all that are stored."""

    sessions: int = 0
    stored_bytes: int = 0


NOTHING: Final = Usage()


class LiveUsage:
    """Of users and of projects, each by name."""

    def __init__(self) -> None:
        self._users: dict[str, Usage] = {}
        self._projects: dict[str, Usage] = {}
        self._known: dict[str, tuple[int, bool]] = {}

    def user(self, name: str) -> Usage:
        """What a user has; not to be changed."""
        return self._users.get(name, NOTHING)

    def project(self, name: str) -> Usage:
        """What a project has; not to be changed."""
        return self._projects.get(name, NOTHING)

    def put(self, session: Session) -> None:
        """A session is new or changed. Its size is worked out once: hardly anything of it changes later."""
        is_live = not session.state.is_ended
        known = self._known.get(session.id)
        if known is None:
            size = record_size(session)
            self._add(session, int(is_live), size)
        else:
            size, was_live = known
            if was_live == is_live:
                return
            self._add(session, is_live - was_live, 0)
        self._known[session.id] = size, is_live

    def remove(self, session: Session) -> None:
        """A session left the store."""
        size, is_live = self._known.pop(session.id, (0, False))
        self._add(session, -int(is_live), -size)

    def _add(self, session: Session, sessions: int, size: int) -> None:
        for by_name, name in (
            (self._users, session.owner),
            (self._projects, session.project or session.owner),
        ):
            usage = by_name.setdefault(name, Usage())
            usage.sessions += sessions
            usage.stored_bytes += size
            if not usage.sessions and not usage.stored_bytes:
                del by_name[name]


def record_size(session: Session) -> int:
    """About how many bytes the record of a session takes: of texts and of how many there are."""
    spec = session.spec
    return (
        _FIXED_BYTES
        + _size(spec.args)
        + _size(spec.argv)
        + _size(session.command)
        + _size(spec.environment)
        + _size(spec.environment.values())
        + _size(spec.labels)
        + _size(spec.labels.values())
        + _size(one.name for one in spec.secrets)
        + _size(one.variable for one in spec.secrets)
        + _size((spec.entry, spec.image, session.memo))
    )


def _size(texts: Iterable[str]) -> int:
    size = 0
    for text in texts:
        size += _FIELD_BYTES + (len(text) if text.isascii() else len(text.encode(errors="replace")))
    return size
