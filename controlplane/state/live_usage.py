"""Number of sessions of each user and project in the coordination store, and the size of their records.

Updated as sessions are added, changed and removed: nothing is counted on request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

from controlplane.stored.v1.records_pb2 import SpecRecord

if TYPE_CHECKING:
    from controlplane.domain.values import Session

_FIXED_BYTES: Final = 512
"""Size of a record without its texts, with its name and its request id, which have keys of their own."""
_FIELD_BYTES: Final = 4


@dataclass(slots=True)
class Usage:
    """Usage of one user or project: sessions not ended, and the record bytes of all stored ones."""

    sessions: int = 0
    stored_bytes: int = 0


NOTHING: Final = Usage()


class LiveUsage:
    """Usage of users and of projects, each by name."""

    def __init__(self) -> None:
        self._users: dict[str, Usage] = {}
        self._projects: dict[str, Usage] = {}
        self._known: dict[str, tuple[int, bool]] = {}

    def user(self, name: str) -> Usage:
        """Return a user's usage; do not modify it."""
        return self._users.get(name, NOTHING)

    def project(self, name: str) -> Usage:
        """Return a project's usage; do not modify it."""
        return self._projects.get(name, NOTHING)

    def put(self, session: Session) -> None:
        """Add or update a session. Its size is computed once, since it hardly changes later."""
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
        """Remove a session that left the store."""
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
    """Estimate the bytes of a session's record, from its texts and their number."""
    spec = session.spec
    texts = [session.memo, *session.command]
    texts += filter(None, _TEXTS(spec))
    for get in _LISTS:
        texts += get(spec)
    for get in _MAPPINGS:
        if mapping := get(spec):
            texts += mapping
            texts += mapping.values()
    for get, texts_of in _RECORDS:
        for record in get(spec):
            texts += texts_of(record)
    text = "".join(texts)
    size = len(text) if text.isascii() else len(text.encode(errors="replace"))
    return _FIXED_BYTES + _FIELD_BYTES * len(texts) + size


_Get: TypeAlias = Callable[[Any], Any]


def _texts(message: Any, *, are_repeated: bool) -> list[str]:
    return [
        one.name
        for one in message.fields
        if one.type == FieldDescriptor.TYPE_STRING and one.is_repeated == are_repeated
    ]


# The text fields of a specification are read from its record type, so that a new one counts as soon as it is stored;
# the codec of the two ensures that fields have the same names.
_SPEC: Final = SpecRecord.DESCRIPTOR
_REPEATED: Final = [(one.name, one.message_type) for one in _SPEC.fields if one.is_repeated]
_TEXTS: Final[_Get] = attrgetter(*_texts(_SPEC, are_repeated=False))
_LISTS: Final[list[_Get]] = [attrgetter(one) for one in _texts(_SPEC, are_repeated=True)]
_MAPPINGS: Final[list[_Get]] = [
    attrgetter(name) for name, kind in _REPEATED if kind and kind.GetOptions().map_entry
]
_RECORDS: Final[list[tuple[_Get, _Get]]] = [
    (attrgetter(name), attrgetter(*_texts(kind, are_repeated=False)))
    for name, kind in _REPEATED
    if kind and not kind.GetOptions().map_entry
]
