"""Sessions of lists, which lack the end of long commands and early changes, and what GetSession says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from nsml.v1.sessions_pb2 import Session


def is_short(session: Session) -> bool:
    """Whether its command or environment lacks its end, or its changes the early ones: to be shown, and not to be repeated, compared or copied."""
    return session.left_out_bytes > 0


def lacks_changes(session: Session) -> bool:
    """Whether early changes of its running programs may be left out."""
    return is_short(session) and len(session.changes) > 0 and session.changes[0].number > 1


def completed(session: Session, whole: Session) -> Session:
    """A short session with what it lacks, of the same session as a whole; everything else stays as it is.

    It stays short where `whole` is so old that changes between the two are in neither.
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
