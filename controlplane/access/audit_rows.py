"""Build rows of the audit trail from calls, by the access table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc

from controlplane.access.auditing import OK, UNKNOWN
from controlplane.access.current import current_call
from controlplane.domain.identity import JumpHostCaller, NodeCaller, PeerCaller, UserCaller
from controlplane.history.values import AuditRow

if TYPE_CHECKING:
    from controlplane.access.access_table import Change
    from controlplane.domain.identity import Caller

MOST_NAMES: Final = 8
"""Names listed for a field with several things."""
_OPEN_CODES: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "INTERNAL", "UNKNOWN"}
)
"""After these codes it is unknown whether the change was made."""
_CODES: Final = {code.value[0]: code.name for code in grpc.StatusCode}


def code_name(code: grpc.StatusCode | int | None, unset: str) -> str:
    """Return the name of a context's status code: a number or StatusCode; 0 until it is set."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _CODES.get(code, unset) if code else unset


def outcome_of(code: str) -> str:
    """Return a call's outcome in the trail, by the name of its status code."""
    return UNKNOWN if code in _OPEN_CODES else code


def name_in(message: Any, path: str) -> str:
    """Return the text at a path of a message; "" if there is none."""
    values: list[Any] = [message]
    for part in path.split(".") if path else ():
        found: list[Any] = [getattr(value, part, None) for value in values]
        values = [inner for one in found for inner in (one if _is_repeated(one) else [one])]
    names = [value for value in values if isinstance(value, str) and value]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def is_dry_run(change: Change, request: Any) -> bool:
    """Return whether a request is a dry run."""
    return bool(change.dry_run) and getattr(request, change.dry_run, False) is True


def row_of(who: Caller, method: str, request: Any, outcome: str) -> AuditRow:
    """Build a call's row in the trail; `method` in gRPC's form."""
    service, _, name = method.rpartition("/")
    request_id = getattr(request, "request_id", "")
    return AuditRow(
        at=0.0,
        actor=actor_of(who),
        method=f"{service.rpartition('.')[2]}/{name}",
        target=current_call().target,
        outcome=outcome or OK,
        request_id=request_id if isinstance(request_id, str) else "",
        token=who.token if isinstance(who, UserCaller) else "",
    )


def actor_of(who: Caller) -> str:
    """Return the actor: a user's name, `node NAME`, `control plane NAME`, or "" if unknown."""
    match who:
        case UserCaller(user=user) | JumpHostCaller(user=user):
            return user.name
        case NodeCaller(node=node):
            return f"node {node}"
        case PeerCaller(member=member, node=node):
            return f"node {node}" if node else f"control plane {member}"
    return ""


def _is_repeated(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes)
