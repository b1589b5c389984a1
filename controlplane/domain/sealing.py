"""What is closed to users of sessions that are steps of submissions.

Nobody enters a confined one: what it reads would leave it. What a sealed one writes is read by nobody, not by its own
user either: it has seen hidden inputs. One rule for all users, administrators too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import Sealed
from controlplane.domain.values import Cause

if TYPE_CHECKING:
    from controlplane.domain.values import Exit, Session

ONLY_REMOVED: Final = "Only nsml rm is valid for submit sessions"
_IN_WORDS_OF_ITS_PROGRAM: Final = frozenset(
    {
        Cause.COMPLETED,
        Cause.PROGRAM_FAILED,
        Cause.DATA_FAILED,
        Cause.OUT_OF_MEMORY,
        Cause.LIMIT_EXCEEDED,
    }
)
"""Causes whose message may have words of the program, names of its files, or how much it took of what."""


def check_readable(session: Session) -> None:
    """Raise Sealed if what the session writes is hidden."""
    if session.spec.is_sealed:
        raise Sealed(
            f"what session {session.name} writes is hidden: it predicts on hidden inputs",
            why=ONLY_REMOVED,
        )


def check_enterable(session: Session) -> None:
    """Raise Sealed if nobody may reach into the session or change its program."""
    if session.spec.is_confined:
        raise Sealed(
            f"nobody reaches into session {session.name}: it is a step of a submission",
            why=ONLY_REMOVED,
        )


def check_source(session: Session) -> None:
    """Raise Sealed if no user's session may be made of this one: it would have the same inputs."""
    if session.spec.is_confined:
        raise Sealed(
            f"no session is made of {session.name}: it is a step of a submission",
            why=ONLY_REMOVED,
        )


def without_words(session: Session, ended: Exit) -> Exit:
    """Return how a replica ended, without what a sealed program may have said."""
    if session.spec.is_sealed and ended.cause in _IN_WORDS_OF_ITS_PROGRAM:
        return replace(ended, message="")
    return ended


def shown_code(session: Session, exit_code: int) -> int:
    """Return an exit code for people: a sealed program could tell something by its own."""
    return int(exit_code != 0) if session.spec.is_sealed else exit_code
