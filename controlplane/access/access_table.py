"""The access table: one row for every method of every service; what has no row is refused."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from controlplane.domain.errors import Denied, NotSignedIn, NsmlError
from controlplane.domain.identity import (
    AnonymousCaller,
    Caller,
    NodeCaller,
    PeerCaller,
    UserCaller,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class AllowedCallers(enum.Flag):
    """Who may knock; several are joined by `|`."""

    ANONYMOUS = enum.auto()
    """Anybody at all."""
    USER = enum.auto()
    """Every signed-in user, administrators too."""
    ADMIN = enum.auto()
    """Administrators."""
    NODE = enum.auto()
    """Agents, by certificate or token."""
    PEER = enum.auto()
    """Other control planes, by certificate: with calls of agents that they pass on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What the audit trail says of a call that changes something.

    Attributes:
        target: path of the request's field that names what is changed, such as `name` or `target.session`; "": the
            method changes what is the caller's own, and there is one of it.
        answer: path of the answer's field that has the name, where only the answer knows it.
        dry_run: a field of the request: where it is set, nothing changes.
        is_frequent: the row is written soon after the answer, not before it.
    """

    target: str = ""
    answer: str = ""
    dry_run: str = ""
    is_frequent: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Who may call a method, and what the method itself checks about the things it touches.

    `change` is None for methods that change nothing.
    """

    doors: AllowedCallers
    rule: str
    change: Change | None = None


_EVERYBODY = AllowedCallers.ANONYMOUS | AllowedCallers.USER | AllowedCallers.NODE

_SESSIONS = {
    "CreateSession": Row(
        AllowedCallers.USER,
        "The session belongs to the caller; datasets must be visible.",
        Change(answer="session.name", dry_run="validate_only", is_frequent=True),
    ),
    "GetSession": Row(AllowedCallers.USER, "Invisible sessions are NOT_FOUND."),
    "ListSessions": Row(AllowedCallers.USER, "Only visible sessions are listed."),
    "WatchSessions": Row(AllowedCallers.USER, "Only visible sessions are sent, as of each change."),
    "StopSession": Row(
        AllowedCallers.USER,
        "Own sessions; administrators all. Others are denied, or NOT_FOUND.",
        Change(target="session", is_frequent=True),
    ),
    "RequeueSession": Row(
        AllowedCallers.USER,
        "Own sessions; administrators all. Others are denied, or NOT_FOUND.",
        Change(target="session", is_frequent=True),
    ),
    "RemoveSession": Row(
        AllowedCallers.USER,
        "Own sessions; administrators all. Others are denied, or NOT_FOUND.",
        Change(target="session", is_frequent=True),
    ),
    "UpdateSession": Row(
        AllowedCallers.USER,
        "Own sessions; administrators all. Others are denied, or NOT_FOUND.",
        Change(target="session", is_frequent=True),
    ),
    "ReadLogs": Row(AllowedCallers.USER, "Invisible sessions are NOT_FOUND."),
    "SearchLogs": Row(AllowedCallers.USER, "Invisible sessions are NOT_FOUND."),
    "ReadMetrics": Row(AllowedCallers.USER, "Invisible sessions are NOT_FOUND."),
    "ReadSeries": Row(AllowedCallers.USER, "Invisible sessions are NOT_FOUND."),
    "ListMetrics": Row(AllowedCallers.USER, "Invisible sessions are NOT_FOUND."),
    "ExplainSession": Row(
        AllowedCallers.USER,
        "Invisible sessions are NOT_FOUND; holders that are invisible have no name.",
    ),
    "ListQueue": Row(
        AllowedCallers.USER,
        "Of invisible sessions only place, owner, size and age. Invisible projects are NOT_FOUND.",
    ),
    "OpenTunnel": Row(
        AllowedCallers.USER,
        "Own sessions; administrators all. Others are denied, or NOT_FOUND.",
        Change(target="target.session", is_frequent=True),
    ),
}

_AGENTS = {
    "Control": Row(
        AllowedCallers.NODE | AllowedCallers.PEER,
        "Register names the caller's own node; reports are of its replicas.",
        Change(target="register.node", is_frequent=True),
    ),
    "Ingest": Row(
        AllowedCallers.NODE,
        "Chunks are of replicas that run or ran on the caller's node.",
        Change(is_frequent=True),
    ),
    "Tunnel": Row(
        AllowedCallers.NODE | AllowedCallers.PEER,
        "The tunnel was asked of the caller's node.",
        Change(target="tunnel_id", is_frequent=True),
    ),
}

_CONTENT = {
    "FindMissingBlobs": Row(
        AllowedCallers.USER | AllowedCallers.NODE,
        "Of blobs that the caller has sent or may read; all others are missing, stored or not.",
    ),
    "PutBlobs": Row(
        AllowedCallers.USER | AllowedCallers.NODE,
        "Content is named by its digest, which is verified.",
        Change(target="blobs.digest", is_frequent=True),
    ),
    "GetBlobs": Row(
        AllowedCallers.USER | AllowedCallers.NODE,
        "Read through a manifest that the caller may see; nodes: of sessions placed on them.",
    ),
}

_CHECKPOINTS = {
    "ListCheckpoints": Row(
        AllowedCallers.USER | AllowedCallers.NODE,
        "Visible sessions; nodes: of sessions placed on them.",
    ),
    "GetCheckpoint": Row(
        AllowedCallers.USER | AllowedCallers.NODE,
        "Visible sessions; nodes: what a session placed on them may see.",
    ),
    "CommitCheckpoint": Row(
        AllowedCallers.NODE,
        "The session runs or ran on the caller's node; content that the node sent for it.",
        Change(target="session_id", is_frequent=True),
    ),
    "RemoveCheckpoints": Row(
        AllowedCallers.USER,
        "Own sessions; administrators all. Others are denied, or NOT_FOUND.",
        Change(target="session", is_frequent=True),
    ),
}

_MEDIA = {
    "ListMedia": Row(
        AllowedCallers.USER, "Visible sessions; what is listed may be read from then on."
    ),
    "CommitMedia": Row(
        AllowedCallers.NODE,
        "The replica runs or ran on the caller's node; content that the node sent for it.",
        Change(target="session_id", is_frequent=True),
    ),
}

_DATASETS = {
    "CreateDatasetVersion": Row(
        AllowedCallers.USER,
        "The dataset is the caller's, or the caller is an administrator; content that the caller sent or may read.",
        Change(target="name", dry_run="validate_only", is_frequent=True),
    ),
    "ListDatasets": Row(AllowedCallers.USER, "Only visible datasets are listed."),
    "GetDataset": Row(AllowedCallers.USER, "Invisible datasets are NOT_FOUND."),
    "RemoveDataset": Row(
        AllowedCallers.USER,
        "Own datasets; administrators all. Others are denied, or NOT_FOUND.",
        Change(target="name", is_frequent=True),
    ),
}

_NODES = {
    "ListNodes": Row(AllowedCallers.USER, "Names of invisible sessions are left out."),
    "GetNode": Row(AllowedCallers.USER, "Names of invisible sessions are left out, and counted."),
    "DrainNode": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change(target="name")),
    "ResumeNode": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change(target="name")),
    "FenceNode": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change(target="name")),
    "RemoveNode": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change(target="name")),
    "PullImage": Row(
        AllowedCallers.USER,
        "Nodes that run the caller's sessions; administrators any.",
        Change(target="node", is_frequent=True),
    ),
    "GetImagePull": Row(AllowedCallers.USER, "The caller's own pulls."),
    "RemoveImage": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change(target="node")),
    "GetCluster": Row(AllowedCallers.USER, "Sums only, and why nodes take nothing."),
}

_ACCOUNTS = {
    "GetCaller": Row(AllowedCallers.USER | AllowedCallers.NODE, "Tells callers who they are."),
    "CreateUser": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change(target="name")),
    "ListUsers": Row(AllowedCallers.ADMIN, "No rule beyond the door."),
    "DeleteUser": Row(AllowedCallers.ADMIN, "The last administrator stays.", Change(target="name")),
    "UpdateUser": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change(target="name")),
    "GetUsage": Row(AllowedCallers.USER, "The caller's own; administrators anybody's."),
    "ListUsage": Row(AllowedCallers.ADMIN, "No rule beyond the door."),
    "CreateToken": Row(
        AllowedCallers.USER, "For oneself; administrators for anybody.", Change(target="user")
    ),
    "RevokeToken": Row(
        AllowedCallers.USER,
        "The caller's own token; administrators all of anybody's.",
        Change(target="user"),
    ),
    "CreateJoinToken": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change()),
    "JoinNode": Row(
        _EVERYBODY,
        "The secret of a join token decides; a node may renew its own certificate.",
        Change(target="node"),
    ),
}

_SECRETS = {
    "SetSecret": Row(
        AllowedCallers.USER, "For oneself: nobody sets another's secrets.", Change(target="name")
    ),
    "ListSecrets": Row(
        AllowedCallers.USER, "The caller's own; administrators anybody's. Never a value."
    ),
    "RemoveSecret": Row(
        AllowedCallers.USER, "The caller's own; administrators anybody's.", Change(target="name")
    ),
}

_VIEWS = {
    "OpenView": Row(
        AllowedCallers.USER,
        "Invisible sessions are NOT_FOUND; shown with the caller's token.",
        Change(target="sessions"),
    ),
    "ListViews": Row(AllowedCallers.USER, "The caller's own; administrators everybody's."),
    "StopView": Row(
        AllowedCallers.USER,
        "The caller's own; administrators all. Others NOT_FOUND.",
        Change(target="id"),
    ),
}

_PROJECTS = {
    "CreateProject": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change(target="name")),
    "GetProject": Row(
        AllowedCallers.USER,
        "Members; administrators all. Others NOT_FOUND. Invisible sessions are counted.",
    ),
    "ListProjects": Row(
        AllowedCallers.USER, "Those of which the caller is a member; administrators all."
    ),
    "UpdateProject": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change(target="name")),
    "DeleteProject": Row(AllowedCallers.ADMIN, "No rule beyond the door.", Change(target="name")),
    "ChangeMembers": Row(
        AllowedCallers.USER,
        "Its owner; administrators all. Members are denied, others NOT_FOUND.",
        Change(target="name"),
    ),
}

_BACKUPS = {
    "CreateBackup": Row(
        AllowedCallers.ADMIN,
        "Everything, but no key of the platform: secrets stay sealed.",
        Change(),
    ),
    "GetBackupBlobs": Row(AllowedCallers.ADMIN, "Any blob, by its digest alone."),
}

_AUDIT = {
    "ListAuditRows": Row(AllowedCallers.ADMIN, "No rule beyond the door."),
}

_TELEMETRY = {
    "ReadTelemetry": Row(
        AllowedCallers.USER,
        "Invisible sessions are NOT_FOUND; of nodes and the platform no session is told.",
    ),
}

_HEALTH = {
    "Check": Row(_EVERYBODY | AllowedCallers.PEER, "Whether the server serves, nothing else."),
    "List": Row(_EVERYBODY | AllowedCallers.PEER, "Whether the server serves, nothing else."),
    "Watch": Row(_EVERYBODY | AllowedCallers.PEER, "Whether the server serves, nothing else."),
}
_WEBHOOKS = {
    "SetWebhook": Row(AllowedCallers.USER, "For oneself.", Change()),
    "GetWebhook": Row(AllowedCallers.USER, "The caller's own; never more of it than the host."),
    "RemoveWebhook": Row(AllowedCallers.USER, "The caller's own.", Change()),
    "TestWebhook": Row(AllowedCallers.USER, "The caller's own.", Change()),
}

_REFLECTION = {
    "ServerReflectionInfo": Row(
        AllowedCallers.USER | AllowedCallers.NODE, "The contract, which is public anyway."
    ),
}

_SERVICES = {
    "nsml.v1.SessionService": _SESSIONS,
    "nsml.v1.AgentService": _AGENTS,
    "nsml.v1.ContentService": _CONTENT,
    "nsml.v1.CheckpointService": _CHECKPOINTS,
    "nsml.v1.MediaService": _MEDIA,
    "nsml.v1.DatasetService": _DATASETS,
    "nsml.v1.NodeService": _NODES,
    "nsml.v1.AccountService": _ACCOUNTS,
    "nsml.v1.SecretService": _SECRETS,
    "nsml.v1.ViewService": _VIEWS,
    "nsml.v1.WebhookService": _WEBHOOKS,
    "nsml.v1.ProjectService": _PROJECTS,
    "nsml.v1.BackupService": _BACKUPS,
    "nsml.v1.AuditService": _AUDIT,
    "nsml.v1.TelemetryService": _TELEMETRY,
    "grpc.health.v1.Health": _HEALTH,
    "grpc.reflection.v1alpha.ServerReflection": _REFLECTION,
}

AccessTable = MappingProxyType[str, Row]

TABLE: AccessTable = MappingProxyType(
    {
        f"/{service}/{method}": row
        for service, rows in _SERVICES.items()
        for method, row in rows.items()
    }
)
"""Full method name, as gRPC writes it, to its row."""


def refusal(table: Mapping[str, Row], method: str, who: Caller) -> NsmlError | None:
    """Return why `who` may not call `method`, or None if they may."""
    row = table.get(method)
    if row is None:
        return Denied("nobody may call this", why=f"{method} has no row in the access table")
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
        case UserCaller(is_admin=True):
            return AllowedCallers.USER | AllowedCallers.ADMIN
        case UserCaller():
            return AllowedCallers.USER
        case NodeCaller():
            return AllowedCallers.NODE
        case PeerCaller():
            return AllowedCallers.PEER
        case AnonymousCaller():
            return AllowedCallers.ANONYMOUS
