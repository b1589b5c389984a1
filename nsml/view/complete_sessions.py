"""Sessions of lists have truncated commands and changes; these functions complete them from GetSession."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from nsml.v1.sessions_pb2 import Session


def is_short(session: Session) -> bool:
    """Return whether its command or environment is truncated, or early changes are missing: show it, but do not repeat, compare or copy it."""
    return session.left_out_bytes > 0


def lacks_changes(session: Session) -> bool:
    """Return whether early changes of its running programs may be missing."""
    return is_short(session) and len(session.changes) > 0 and session.changes[0].number > 1


def completed(session: Session, whole: Session) -> Session:
    """Complete a short session from the whole one; everything else is unchanged.

    It stays short if `whole` is so old that changes between the two are in neither.
    """
    first = session.changes[0].number if session.changes else 0
    newest = whole.changes[-1].number if whole.changes else 0
    if first > newest + 1:
        return session
    found = sessions_pb2.Session()
    found.CopyFrom(session)
    spec = found.spec
    spec.entry = whole.spec.entry
    for words, others in (
        (spec.args, whole.spec.args),
        (spec.argv, whole.spec.argv),
        (found.command, whole.command),
    ):
        words[:] = others
    spec.environment.clear()
    spec.environment.update(whole.spec.environment)
    del found.changes[:]
    found.changes.extend(one for one in whole.changes if one.number < first)
    found.changes.extend(session.changes)
    found.left_out_bytes = 0
    return found
