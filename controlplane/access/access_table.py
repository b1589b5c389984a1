"""The access table: one row for every method of every service; methods without a row are refused.

Rows of our own services are read from the options of their methods, `proto/nsml/v1/options.proto`.
"""

from __future__ import annotations

import enum
import functools
import importlib
import operator
import pkgutil
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, MethodOptions

import nsml.v1
from controlplane.domain.errors import Denied, NotSignedIn, NsmlError
from controlplane.domain.identity import (
    AnonymousCaller,
    Caller,
    JumpHostCaller,
    NodeCaller,
    PeerCaller,
    UserCaller,
)
from controlplane.domain.policy import ADMINISTER, ALLOW, PLATFORM, may
from nsml.v1 import options_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class AllowedCallers(enum.Flag):
    """Kinds of permitted callers; join several by `|`."""

    ANONYMOUS = enum.auto()
    """Any caller."""
    USER = enum.auto()
    """Every signed-in user, administrators too."""
    ADMIN = enum.auto()
    """Administrators."""
    NODE = enum.auto()
    """Agents, by certificate or token."""
    PEER = enum.auto()
    """Other control planes, by certificate: with forwarded calls of agents."""
    JUMP_HOST = enum.auto()
    """Jump hosts, for the users of public keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How the audit trail records a call that changes something.

    Attributes:
        target: path of the request's field with the name of the changed thing, such as `name` or `target.session`; "":
            the method changes the caller's only such thing.
        answer: path of the response's field with the name, if only the response has it.
        dry_run: a field of the request: if it is set, nothing changes.
        is_frequent: the row is written soon after the response, not before it.
    """

    target: str = ""
    answer: str = ""
    dry_run: str = ""
    is_frequent: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Permitted callers of a method, and the checks that the method itself makes.

    `change` is None for methods that change nothing. `prefers_leader`: the response of a reachable leader is better
    than ours.
    """

    doors: AllowedCallers
    rule: str
    change: Change | None = None
    prefers_leader: bool = False
    throttle: pb.Throttle = pb.THROTTLE_UNSPECIFIED


_EVERYBODY = AllowedCallers.ANONYMOUS | AllowedCallers.USER | AllowedCallers.NODE

_SERVES = Row(_EVERYBODY | AllowedCallers.PEER, "Whether the server serves, nothing else.")

_STANDARD = {
    "/grpc.health.v1.Health/Check": _SERVES,
    "/grpc.health.v1.Health/List": _SERVES,
    "/grpc.health.v1.Health/Watch": _SERVES,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Row(
        AllowedCallers.USER | AllowedCallers.NODE, "The contract, which is public anyway."
    ),
}
"""Methods of services that are not ours."""

_CALLERS = {
    pb.CALLER_ANONYMOUS: AllowedCallers.ANONYMOUS,
    pb.CALLER_USER: AllowedCallers.USER,
    pb.CALLER_ADMIN: AllowedCallers.ADMIN,
    pb.CALLER_NODE: AllowedCallers.NODE,
    pb.CALLER_PEER: AllowedCallers.PEER,
    pb.CALLER_JUMP_HOST: AllowedCallers.JUMP_HOST,
}
_NOBODY = AllowedCallers(0)


def row_of(options: MethodOptions) -> Row:
    """Build the row of a method by its options; without any, all calls are refused, and in the audit trail."""
    extensions: Any = options.Extensions
    access: pb.Access = extensions[pb.access]
    audit: pb.Audit = extensions[pb.audit]
    doors = (_CALLERS.get(kind, _NOBODY) for kind in access.callers)
    reads = options.idempotency_level == MethodOptions.NO_SIDE_EFFECTS
    change = Change(
        target=audit.target,
        answer=audit.answer,
        dry_run=audit.dry_run,
        is_frequent=audit.is_frequent,
    )
    return Row(
        functools.reduce(operator.or_, doors, _NOBODY),
        access.rule,
        None if reads else change,
        prefers_leader=extensions[pb.prefer_leader],
        throttle=extensions[pb.throttle],
    )


def _contract() -> Iterator[tuple[str, Row]]:
    """Yield each method of package nsml.v1 with its row."""
    for module in pkgutil.iter_modules(nsml.v1.__path__, f"{nsml.v1.__name__}."):
        if module.name.endswith("_pb2"):
            generated = importlib.import_module(module.name)
            # Parsed again: descriptors may have decoded their options before ours were imported.
            file = FileDescriptorProto.FromString(generated.DESCRIPTOR.serialized_pb)
            for service in file.service:
                for method in service.method:
                    name = f"/{file.package}.{service.name}/{method.name}"
                    yield name, row_of(method.options)


AccessTable = MappingProxyType[str, Row]

TABLE: AccessTable = MappingProxyType({**dict(_contract()), **_STANDARD})
"""Rows by full method name, in gRPC's form."""


def refusal(table: Mapping[str, Row], method: str, who: Caller) -> NsmlError | None:
    """Return why `who` may not call `method`, or None if they may."""
    row = table.get(method)
    if row is None or not row.doors:
        return Denied(
            "this method cannot be called", why=f"the contract names no callers of {method}"
        )
    if row.doors & _doors_of(who):
        return None
    if isinstance(who, AnonymousCaller):
        return NotSignedIn("you are not signed in", attempt="nsml login HOST")
    if AllowedCallers.ADMIN in row.doors:
        return Denied("only administrators may do this", attempt="ask an administrator")
    kind = "agents" if isinstance(who, UserCaller) else "users"
    return Denied(f"only {kind} may do this")


def _doors_of(who: Caller) -> AllowedCallers:
    match who:
        case UserCaller() if may(who, ADMINISTER, PLATFORM) is ALLOW:
            return AllowedCallers.USER | AllowedCallers.ADMIN
        case UserCaller():
            return AllowedCallers.USER
        case NodeCaller():
            return AllowedCallers.NODE
        case PeerCaller():
            return AllowedCallers.PEER
        case JumpHostCaller():
            return AllowedCallers.JUMP_HOST
        case AnonymousCaller():
            return AllowedCallers.ANONYMOUS
