"""Named errors of calls, translated from the control plane's errors.

    ClientError
      Unavailable            nobody answers, or not in time: safe to retry
        NodeUnavailable      the control plane answers, a session's node does not
      NotSignedIn            no token, or one that is not valid
      UntrustedServer        another account of this machine listens at the server's port
      Denied                 the caller's role does not allow it
      NotFound               does not exist, or not visible to the caller
      InvalidRequest         the request itself is wrong
        AmbiguousReference   matches several sessions or submissions: `candidates`
      StateConflict          not in the state required by the request
        AlreadyEnded  StillLive  AlreadyExists  MissingBlobs  NoSuchService
      NotEnough              capacity, quota or credit
        CannotEverFit  NoCapacity  OverQuota  NoCredit  LimitReached
      TooLarge               a message over its limit
      Unsupported            the control plane does not know the call
      PlatformFault          a defect of the platform

A control plane states the reason in google.rpc.ErrorInfo (domain "nsml"); without one the gRPC
status decides. Nothing here imports gRPC, so that importing the errors is cheap.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

DOMAIN = "nsml"
_DETAILS_KEY = "grpc-status-details-bin"
_OVERSIZE = "larger than max", "exceeds maximum size"


class ClientError(Exception):
    """The base class. `str()` is one sentence; `why` and `advice` are further lines, possibly empty.

    Tracebacks show `why`, too.
    `retry_after_s` is set if the control plane reports a temporary error and when to retry.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        why: str = "",
        advice: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        if why:
            self.add_note(why)
        self.message = message
        self.reason = reason
        self.why = why
        self.advice = advice
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s


class Unavailable(ClientError):
    """Nobody answers, or not in time.

    `is_undone`: the call certainly had no effect: it was not sent, or was refused at once. Otherwise it
    may have been executed.
    """

    is_undone = False


class StillWorking(Unavailable):
    """The control plane is working on a prerequisite; nothing was changed yet, and a retry joins that work."""


class NodeUnavailable(Unavailable):
    """The control plane answers, but the node of a session does not, or not intelligibly."""


class ConnectionLost(NodeUnavailable):
    """The connection to a program in a session broke: whether it was started or runs is unknown."""


class NotSignedIn(ClientError):
    """The call had no token, or one that is not valid."""


class UntrustedServer(ClientError):
    """Another account of this machine listens at the server's port: the token was not sent."""


class Denied(ClientError):
    """The caller's role does not allow the call."""


class NotFound(ClientError):
    """It does not exist, or the caller may not see it."""


class InvalidRequest(ClientError):
    """The request is malformed."""


class AmbiguousReference(InvalidRequest):
    """A reference matches several sessions, or submissions."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """Full names of the matching sessions, or ids of the submissions."""
        return tuple(filter(None, self.metadata.get("candidates", "").split(",")))


class StateConflict(ClientError):
    """The resource is not in the state required by the request."""


class AlreadyEnded(StateConflict):
    """The session has ended: there is nothing to stop."""


class StillLive(StateConflict):
    """The session has not ended yet."""


class AlreadyExists(StateConflict):
    """The name, or the request id with another content, is taken."""


class MissingBlobs(StateConflict):
    """Not everything that a manifest lists has been sent."""


class NoSuchService(StateConflict):
    """The session's program does not offer the service of a tunnel."""


class NotEnough(ClientError):
    """Capacity, quota or credit does not suffice."""


class CannotEverFit(NotEnough):
    """No node is large enough: waiting does not help."""


class NoCapacity(NotEnough):
    """Nothing is free now, and the request must not queue."""


class OverQuota(NotEnough):
    """More at once than the caller's quota."""


class NoCredit(NotEnough):
    """The caller's credit is used up."""


class LimitReached(NotEnough):
    """The caller has submitted as often as the board allows."""

    @property
    def next_at(self) -> float | None:
        """When the next submission is permitted, in Unix seconds; None: not reported."""
        try:
            return datetime.fromisoformat(self.metadata.get("next_at", "")).timestamp()
        except (ValueError, OverflowError):
            return None


class TooLarge(ClientError):
    """A message over its limit."""


class Unsupported(ClientError):
    """The control plane does not know the call: it is older than this client."""


class PlatformFault(ClientError):
    """The control plane failed; the fault is not the caller's."""


class ContentDamaged(PlatformFault):
    """A part of the content is damaged or lost in the object store: retries fail until it is repaired."""


BY_REASON: Mapping[str, type[ClientError]] = {
    "BLOB_DAMAGED": ContentDamaged,
    "AMBIGUOUS_REFERENCE": AmbiguousReference,
    "ALREADY_ENDED": AlreadyEnded,
    "STILL_LIVE": StillLive,
    "MISSING_BLOBS": MissingBlobs,
    "NO_SUCH_SERVICE": NoSuchService,
    "NODE_UNAVAILABLE": NodeUnavailable,
    "STILL_WORKING": StillWorking,
    "CANNOT_EVER_FIT": CannotEverFit,
    "NO_CAPACITY": NoCapacity,
    "OVER_QUOTA": OverQuota,
    "NO_CREDIT": NoCredit,
    "LIMIT_REACHED": LimitReached,
    "TOO_LARGE": TooLarge,
}

BY_STATUS: Mapping[str, type[ClientError]] = {
    "CANCELLED": Unavailable,  # by the server: a caller's own cancellation never gets here
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": Unavailable,
    "UNAUTHENTICATED": NotSignedIn,
    "PERMISSION_DENIED": Denied,
    "NOT_FOUND": NotFound,
    "INVALID_ARGUMENT": InvalidRequest,
    "OUT_OF_RANGE": InvalidRequest,
    "FAILED_PRECONDITION": StateConflict,
    "ABORTED": StateConflict,
    "ALREADY_EXISTS": AlreadyExists,
    "RESOURCE_EXHAUSTED": NotEnough,
    "UNIMPLEMENTED": Unsupported,
}


_UNREACHED = (
    r"failed to connect to all addresses; last error: \w+: \S+: "
    r"(Failed to connect to remote host: |connect failed: addr: \S+ error: )?"
)
"""gRPC's text before the reason of a failed connection."""
_UNRESOLVED = (
    r"errors resolving \S+: \[field:hostname lookup error:"
    r"address lookup failed for (?P<host>\S+):\d+: (?P<why>.*)\]"
)
"""gRPC's message for a host name without addresses."""
_NO_NAME = "Domain name not found"
_UNSENT = "failed to connect to all addresses"
"""gRPC's message for a call without a connection."""
_BROKEN = r"Stream removed|Socket closed|Connection reset|GOAWAY received"
"""gRPC's messages for a broken connection; also for that between control planes, if the call was forwarded."""
_SILENT = r"(?i)(ping|keepalive) timeout"
"""gRPC's additional text if the other end hangs."""
_CUT_IN_A_MESSAGE = "Internal error from Core"
"""gRPC's message, with status INTERNAL, for a connection that broke while a message was sent."""
NOT_LEADER = "NOT_LEADER"
"""Reason of a refused call: nothing was done."""


class FailedCall(Protocol):
    """The part of gRPC's errors used here."""

    def code(self) -> Any:
        """A grpc.StatusCode."""
        ...

    def details(self) -> str | None:
        """The server's message."""
        ...

    def trailing_metadata(self) -> Any:
        """Pairs of key and value."""
        ...


def _why_unresolved(found: re.Match[str]) -> str:
    if found["why"] == _NO_NAME:
        return f"there is no host {found['host']}"
    return f"no resolver answers for {found['host']} ({found['why']})"


def translate(failed: FailedCall) -> ClientError:
    """Convert a failed call to a named error."""
    status = str(failed.code().name)
    message = re.sub(_UNREACHED, "", failed.details() or status)
    message = re.sub(_UNRESOLVED, _why_unresolved, message)
    if status == "INTERNAL" and message == _CUT_IN_A_MESSAGE:
        status, message = "UNAVAILABLE", "the connection broke"
    reason, metadata, retry_after_s = _error_info(failed.trailing_metadata())
    is_unsent = not reason and (failed.details() or "").startswith(_UNSENT)
    if status == "UNAVAILABLE" and not reason and not is_unsent:
        message = _of_connection(message)
    kind = BY_REASON.get(reason) or BY_STATUS.get(status, PlatformFault)
    if kind is NotEnough and any(words in message.lower() for words in _OVERSIZE):
        kind = TooLarge
    if status == "DEADLINE_EXCEEDED" and not reason:
        message = "the control plane did not answer in time"
    advice = metadata.get("try", "")
    if kind is Unsupported and not reason:
        message = "this control plane does not know the call: it is of another version"
        advice = "nsml version --server"
    error = kind(
        message,
        reason=reason or status,
        why=metadata.get("why", ""),
        advice=advice,
        metadata=metadata,
        retry_after_s=retry_after_s,
    )
    if isinstance(error, Unavailable):
        error.is_undone = is_unsent or reason == NOT_LEADER
    return error


def _of_connection(message: str) -> str:
    if re.search(_SILENT, message):
        return "the control plane does not answer"
    return "the connection broke" if re.search(_BROKEN, message) else message


def _error_info(trailing: Any) -> tuple[str, dict[str, str], float | None]:
    """Return reason and metadata of nsml's ErrorInfo, and RetryInfo's delay; empty if invalid."""
    packed = next((value for key, value in trailing or () if key == _DETAILS_KEY), None)
    if packed is None:
        return "", {}, None
    # Loaded by the first error only: they cost a tenth of a short command.
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    after_s = None
    try:
        status = status_pb2.Status.FromString(packed)
        for detail in status.details:
            if detail.Unpack(retry):
                after_s = retry.retry_delay.ToMilliseconds() / 1000
        for detail in status.details:
            if detail.Unpack(info) and info.domain == DOMAIN:
                return info.reason, dict(info.metadata), after_s
    except DecodeError:
        return "", {}, None
    return "", {}, None
