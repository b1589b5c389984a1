"""Storage of users and projects in the object store, in words, rows and raw values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nsml.common.text import visible
from nsml.common.units import ago, moment, size_text
from nsml.v1.accounts_pb2 import (
    KEPT_KIND_ARTIFACTS,
    KEPT_KIND_CHECKPOINTS,
    KEPT_KIND_CODE,
    KEPT_KIND_DATASETS,
    KEPT_KIND_LOGS,
    KEPT_KIND_MEDIA,
    KEPT_KIND_UNUSED,
    KeptKind,
)
from nsml.view.enums import enum_name
from nsml.view.tables import Column
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from nsml.v1.accounts_pb2 import KeptItem, Usage
    from nsml.v1.projects_pb2 import ProjectStorage

WORDS: Final = {
    KEPT_KIND_DATASETS: "datasets",
    KEPT_KIND_CHECKPOINTS: "checkpoints",
    KEPT_KIND_ARTIFACTS: "artifacts",
    KEPT_KIND_CODE: "code",
    KEPT_KIND_MEDIA: "media",
    KEPT_KIND_LOGS: "logs",
    KEPT_KIND_UNUSED: "sent, not used yet",
}

MOST_LARGEST: Final = 10
"""Most entries of the largest items in a usage."""


def limit_text(usage: Usage) -> str:
    """Return `2.0 TB`, or `no limit`; with `(own)` if an administrator set it for this user."""
    text = size_text(usage.limit_bytes) if usage.HasField("limit_bytes") else "no limit"
    return f"{text} (own)" if usage.is_own_limit else text


def counted_text(usage: Usage, now: float) -> str:
    """Return the age of the count: `counted 5 minutes ago`."""
    if not usage.HasField("counted_at"):
        return "not counted yet"
    text = f"counted {ago(now - seconds_of(usage.counted_at))}"
    return f"{text}, and again soon" if usage.is_being_counted else text


COLUMNS: tuple[Column[Usage], ...] = (
    Column(key="user", title="User", cell=lambda u, _: u.user, is_name=True),
    Column(key="kept", title="Kept", cell=lambda u, _: size_text(u.kept_bytes)),
    Column(key="limit", title="Limit", cell=lambda u, _: limit_text(u)),
    Column(key="full", title="Full", cell=lambda u, _: "full" if u.is_full else "-"),
    Column(
        key="sent",
        title="Sent since",
        cell=lambda u, _: size_text(u.sent_bytes),
        is_optional=True,
    ),
    Column(
        key="counted",
        title="Counted",
        cell=lambda u, now: counted_text(u, now).removeprefix("counted "),
        is_optional=True,
    ),
)


def _of_usage(column: Column[Usage]) -> Column[ProjectStorage]:
    return Column(
        key=column.key,
        title=column.title,
        cell=lambda stored, now: column.cell(stored.usage, now),
        is_optional=column.is_optional,
    )


PROJECT_COLUMNS: tuple[Column[ProjectStorage], ...] = (
    Column(key="project", title="Project", cell=lambda p, _: p.project, is_name=True),
    *map(_of_usage, COLUMNS[1:]),
)


def project_lines(stored: ProjectStorage, now: float) -> list[str]:
    """Describe a project's usage for people, with the commands that remove the largest items."""
    usage = stored.usage
    name = f"project {stored.project}"
    if stored.is_uncounted:
        found = [f"{visible(name)} has no limits, and is not counted apart from its user"]
    else:
        found = [*_head(name, usage, now), *_kinds(usage)]
    if stored.users:
        found += ["by user, by the sizes of their files:"]
        sizes = [size_text(one.bytes) for one in stored.users]
        width = max(map(len, sizes))
        found += [
            f"  {size:>{width}}  {visible(one.user)}"
            for one, size in zip(stored.users, sizes, strict=True)
        ]
    return [*found, *_largest(usage)]


def lines(usage: Usage, now: float) -> list[str]:
    """Describe a user's usage for people, with the commands that remove the largest items."""
    return [*_head(usage.user, usage, now), *_kinds(usage), *_largest(usage)]


def _head(name: str, usage: Usage, now: float) -> list[str]:
    most = f"of {limit_text(usage)}" if usage.HasField("limit_bytes") else f"({limit_text(usage)})"
    stored = f"{visible(name)} has {size_text(usage.kept_bytes)} {most} in the object store"
    found = [f"{stored}, {counted_text(usage, now)}"]
    if usage.is_full:
        found += ["  at the limit: uploads are refused, and new checkpoints wait on their nodes"]
    return found


def _kinds(usage: Usage) -> list[str]:
    found = []
    for one in sorted(usage.kinds, key=lambda kind: -kind.bytes):
        found += [f"  {WORDS.get(one.kind, 'other'):<19}{size_text(one.bytes)}"]
    if usage.sent_bytes:
        found += [f"  {_sent_label(usage):<19}{size_text(usage.sent_bytes)} at most"]
    return found


def _largest(usage: Usage) -> list[str]:
    found = []
    if usage.largest:
        found += ["  (equal data counts once, and each stored file 4 KiB at least)"]
        count = f"the {MOST_LARGEST} " if len(usage.largest) >= MOST_LARGEST else ""
        found += [
            f"{count}largest, by the sizes of their files, with the command that removes each:"
        ]
    sizes = [size_text(one.bytes) for one in usage.largest]
    width = max(map(len, sizes), default=0)
    for item, size in zip(usage.largest, sizes, strict=True):
        found += [f"  {size:>{width}}  {removal(item)}"]
    if len(usage.largest) >= MOST_LARGEST:
        found += ["  there may be smaller ones: nsml dataset ls, nsml ps -a"]
    return found


def _sent_label(usage: Usage) -> str:
    """Label of data sent since the last count, which may be stored already."""
    return "sent since then" if usage.HasField("counted_at") else "sent so far"


def removal(item: KeptItem) -> str:
    """Return the command that removes an item."""
    if item.kind == KEPT_KIND_DATASETS:
        return f"nsml dataset rm {visible(item.name)}"
    if item.is_live:
        return f"nsml model rm {visible(item.name)} CHECKPOINT"
    return f"nsml rm {visible(item.name)}"


def record(usage: Usage) -> dict[str, Any]:
    """Return all fields of a usage in raw values."""
    return {
        "user": usage.user,
        "kept_bytes": usage.kept_bytes,
        "limit_bytes": usage.limit_bytes if usage.HasField("limit_bytes") else None,
        "own_limit": usage.is_own_limit,
        "full": usage.is_full,
        "kinds": {
            enum_name(KeptKind, one.kind, "KEPT_KIND_").lower(): one.bytes for one in usage.kinds
        },
        "sent_bytes": usage.sent_bytes,
        "counted_at": moment(seconds_of(usage.counted_at))
        if usage.HasField("counted_at")
        else None,
        "being_counted": usage.is_being_counted,
        "largest": [
            {
                "name": one.name,
                "kind": enum_name(KeptKind, one.kind, "KEPT_KIND_").lower(),
                "bytes": one.bytes,
                "remove": removal(one),
            }
            for one in usage.largest
        ],
    }


def project_record(stored: ProjectStorage) -> dict[str, Any]:
    """Return all fields of a project's usage in raw values."""
    usage = record(stored.usage)
    del usage["user"], usage["own_limit"]
    if stored.is_uncounted:
        usage["kept_bytes"] = None
    users = [{"user": one.user, "bytes": one.bytes} for one in stored.users]
    return {"project": stored.project, **usage, "users": users}
