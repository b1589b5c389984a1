"""Every refusal by name. wire/errors.py maps them to status codes and reasons.

NsmlError
├── InvalidRequest            the request is malformed
│   └── AmbiguousReference    a short session reference fits several sessions
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
│   ├── NoSuchService         nobody listens where a tunnel would lead
│   └── LastAdministrator
├── NotSignedIn               no valid token or certificate
├── Denied                    the caller's role does not allow it
├── TooLarge                  over a stated limit
│   ├── LimitReached          a user, project or session has used what it may
│   ├── LowOnRoom             a store keeps its last room for the platform itself
│   └── TooManyTunnels
└── Unavailable               try again: electing, restarting, store not reachable
    ├── StillWorking          what has to come first goes on meanwhile; nothing was changed yet
    ├── NotLeader             `leader` names who decides
    └── Superseded            another agent speaks for this node now
"""

from __future__ import annotations


class NsmlError(Exception):
    """A refusal that users see: what, why, and what to try.

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
    """A short session reference fits several sessions; the first ten are named."""

    reason = "AMBIGUOUS_REFERENCE"

    def __init__(self, reference: str, candidates: tuple[str, ...]) -> None:
        super().__init__(
            f"{reference!r} fits {len(candidates)} sessions",
            why=", ".join(candidates[:5]),
            attempt="the full name of one of them",
        )
        self.candidates = candidates[:10]

    @property
    def details(self) -> dict[str, str]:
        """With the candidates, separated by commas."""
        return {**super().details, "candidates": ",".join(self.candidates)}


class NotFound(NsmlError):
    """Not there, or not visible to the caller: the same answer."""

    reason = "NOT_FOUND"


class AlreadyExists(NsmlError):
    """The name is taken, or the request id was used with another content."""

    reason = "ALREADY_EXISTS"


class NameReserved(AlreadyExists):
    """The name is that of a removed user: it goes to nobody else yet."""

    reason = "NAME_RESERVED"


class StateConflict(NsmlError):
    """Not possible in the present state."""

    reason = "STATE_CONFLICT"


class AlreadyEnded(StateConflict):
    """There is nothing left to stop."""

    reason = "ALREADY_ENDED"


class StillLive(StateConflict):
    """It must end first."""

    reason = "STILL_LIVE"


class NotWaiting(StateConflict):
    """It is not in the queue."""

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
    """More than a project may have, however long one waits."""

    reason = "OVER_QUOTA"


class NoSuchService(StateConflict):
    """Nobody listens where a tunnel would lead."""

    reason = "NO_SUCH_SERVICE"


class LastAdministrator(StateConflict):
    """Somebody must be able to administer."""

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
    """A user, a project or a session has used what the operator allows it."""

    reason = "LIMIT_REACHED"


class LowOnRoom(TooLarge):
    """A store has no room left but what is kept for the platform itself."""

    reason = "LOW_ON_ROOM"


class TooManyTunnels(TooLarge):
    """The caller has as many as one may have."""

    reason = "TOO_MANY_TUNNELS"


RETRY_AFTER_S = 2.0
"""When what passes by itself is worth another try."""


class Unavailable(NsmlError):
    """Passing: try again.

    Args:
        retry_after_s: when it is worth it here; 0 where another control plane is the better answer.
    """

    reason = "UNAVAILABLE"

    def __init__(
        self, message: str, *, why: str = "", attempt: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message, why=why, attempt=attempt)
        self.retry_after_s = retry_after_s


class NodeUnavailable(Unavailable):
    """An agent that is to answer does not, or is not connected to this control plane."""

    reason = "NODE_UNAVAILABLE"


class StillWorking(Unavailable):
    """What has to come first takes longer than a call and goes on; nothing was changed yet, and the same call joins in."""

    reason = "STILL_WORKING"


class NotLeader(Unavailable):
    """Somebody else decides."""

    reason = "NOT_LEADER"

    def __init__(self, leader: str) -> None:
        super().__init__("this control plane does not lead", why=f"leader: {leader or 'none yet'}")
        self.leader = leader

    @property
    def details(self) -> dict[str, str]:
        """With the leader's address."""
        return {**super().details, "leader": self.leader}


class Superseded(Unavailable):
    """Another agent speaks for this node now."""

    reason = "SUPERSEDED"
