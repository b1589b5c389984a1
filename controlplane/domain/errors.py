"""All errors for users. wire/errors.py maps them to status codes and reasons.

NsmlError
├── InvalidRequest            the request is malformed
│   └── AmbiguousReference    a short reference fits several sessions or submissions
├── NotFound                  not there, or not visible to the caller
├── AlreadyExists             the name, or the request id with another content
├── StateConflict             not possible in the present state
│   ├── AlreadyEnded
│   ├── StillLive
│   ├── NotWaiting            it is not in the queue
│   ├── MissingBlobs          content must be sent first
│   ├── CannotEverFit         larger than any node
│   ├── NoCapacity            nothing is free now and the caller would not wait
│   ├── OverQuota             more than a project may have
│   ├── NoSuchService         nothing listens at a tunnel's destination
│   ├── Sealed                a step of a submission: closed to users
│   └── LastAdministrator
├── NotSignedIn               no valid token or certificate
├── Denied                    the caller's role does not allow it
├── TooLarge                  over a stated limit
│   ├── LimitReached          a user, project or session has used up its limit
│   ├── LowOnRoom             a store's last space is reserved for the platform
│   └── TooManyTunnels
└── Unavailable               try again: electing, restarting, store not reachable
    ├── StillWorking          a preparation is still running; nothing was changed yet
    ├── NotLeader             `leader` is the leader's address
    └── Superseded            another agent serves this node now
"""

from __future__ import annotations


class NsmlError(Exception):
    """An error shown to users: what, why, and what to try.

    Args:
        message: one sentence for people.
        why: optional, the evidence.
        attempt: optional, what to try.
    """

    reason = "FAILED"

    def __init__(self, message: str, *, why: str = "", attempt: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.why = why
        self.attempt = attempt

    @property
    def details(self) -> dict[str, str]:
        """Machine-readable additions."""
        details = {"why": self.why, "try": self.attempt}
        return {key: value for key, value in details.items() if value}


class InvalidRequest(NsmlError):
    """The request is malformed."""

    reason = "INVALID_REQUEST"


class AmbiguousReference(InvalidRequest):
    """A short reference fits several sessions, or submissions; the first ten are named.

    Args:
        candidates: what it fits, or the first of these.
        count: how many it fits; 0: the candidates.
        what: what they are, in the plural.
    """

    reason = "AMBIGUOUS_REFERENCE"

    def __init__(
        self,
        reference: str,
        candidates: tuple[str, ...],
        *,
        count: int = 0,
        what: str = "sessions",
    ) -> None:
        super().__init__(
            f"{reference!r} fits {count or len(candidates):,} {what}",
            why=", ".join(candidates[:5]),
            attempt=f"the full {'name' if what == 'sessions' else 'id'} of one of them",
        )
        self.candidates = candidates[:10]

    @property
    def details(self) -> dict[str, str]:
        """As of the base class, with the candidates, separated by commas."""
        return {**super().details, "candidates": ",".join(self.candidates)}


class NotFound(NsmlError):
    """Nonexistent, or not visible to the caller: indistinguishable."""

    reason = "NOT_FOUND"


class AlreadyExists(NsmlError):
    """The name is taken, or the request id was used with another content."""

    reason = "ALREADY_EXISTS"


class NameReserved(AlreadyExists):
    """The name was a removed user's, and is still reserved."""

    reason = "NAME_RESERVED"


class StateConflict(NsmlError):
    """Not possible in the present state."""

    reason = "STATE_CONFLICT"


class AlreadyEnded(StateConflict):
    """The session has ended: there is nothing to stop."""

    reason = "ALREADY_ENDED"


class StillLive(StateConflict):
    """The session must end first."""

    reason = "STILL_LIVE"


class NotWaiting(StateConflict):
    """The session is not in the queue."""

    reason = "NOT_WAITING"


class MissingBlobs(StateConflict):
    """Content must be sent first."""

    reason = "MISSING_BLOBS"


class CannotEverFit(StateConflict):
    """Larger than any node."""

    reason = "CANNOT_EVER_FIT"


class NoCapacity(StateConflict):
    """Nothing is free now, and the caller would not wait."""

    reason = "NO_CAPACITY"


class OverQuota(StateConflict):
    """More than a project may ever have: waiting does not help."""

    reason = "OVER_QUOTA"


class NoSuchService(StateConflict):
    """Nothing listens at a tunnel's destination."""

    reason = "NO_SUCH_SERVICE"


class Sealed(StateConflict):
    """The session is a step of a submission, which is closed to users."""

    reason = "SEALED"


class LastAdministrator(StateConflict):
    """The platform needs an administrator."""

    reason = "LAST_ADMINISTRATOR"


class NotSignedIn(NsmlError):
    """No valid token or certificate."""

    reason = "NOT_SIGNED_IN"


class Denied(NsmlError):
    """The caller's role does not allow it."""

    reason = "DENIED"


class TooLarge(NsmlError):
    """Over a stated limit."""

    reason = "TOO_LARGE"


class LimitReached(TooLarge):
    """A user, a project or a session has used up a limit of the operator."""

    reason = "LIMIT_REACHED"


class LowOnRoom(TooLarge):
    """A store has no space left but its reserve for the platform itself."""

    reason = "LOW_ON_ROOM"


class TooManyTunnels(TooLarge):
    """The caller has the maximum number of tunnels."""

    reason = "TOO_MANY_TUNNELS"


RETRY_AFTER_S = 2.0
"""Default delay before a retry after a temporary error."""


class Unavailable(NsmlError):
    """Temporary: try again.

    Args:
        retry_after_s: when to retry here; 0: try another control plane.
    """

    reason = "UNAVAILABLE"

    def __init__(
        self, message: str, *, why: str = "", attempt: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message, why=why, attempt=attempt)
        self.retry_after_s = retry_after_s


class NodeUnavailable(Unavailable):
    """The agent does not answer, or is not connected to this control plane."""

    reason = "NODE_UNAVAILABLE"


class StillWorking(Unavailable):
    """A preparation takes longer than a call and goes on; nothing was changed yet; the same call again waits for it."""

    reason = "STILL_WORKING"


class NotLeader(Unavailable):
    """Another control plane leads."""

    reason = "NOT_LEADER"

    def __init__(self, leader: str) -> None:
        super().__init__("this control plane does not lead", why=f"leader: {leader or 'none yet'}")
        self.leader = leader

    @property
    def details(self) -> dict[str, str]:
        """As of the base class, with the leader's address."""
        return {**super().details, "leader": self.leader}


class Superseded(Unavailable):
    """Another agent serves this node now."""

    reason = "SUPERSEDED"
