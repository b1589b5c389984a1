"""Sessions of lists, which lack the end of long commands, and what GetSession says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from nsml.v1.sessions_pb2 import Session


def is_short(session: Session) -> bool:
    """Whether its command or environment lacks its end: to be shown, and not to be repeated, compared or copied."""
    return session.left_out_bytes > 0


def completed(session: Session, whole: Session) -> Session:
    """A short session with what it lacks, of the same session as a whole; everything else stays as it is."""
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
    found.left_out_bytes = 0
    return found
