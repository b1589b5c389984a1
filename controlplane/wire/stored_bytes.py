"""Messages on object store usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.history.values import KeptKind
from nsml.v1 import accounts_pb2

if TYPE_CHECKING:
    from controlplane.history.values import Item
    from controlplane.limits.user_storage import KeptUse


def usage_message(use: KeptUse) -> accounts_pb2.Usage:
    """Return the usage of a user or a project, without the name."""
    message = accounts_pb2.Usage(
        kept_bytes=use.used,
        limit_bytes=use.most or None,
        is_own_limit=use.is_own_limit,
        kinds=[
            accounts_pb2.KeptOfKind(kind=_kind(kind), bytes=size)
            for kind, size in use.kept.counted.items()
            if size
        ],
        sent_bytes=use.kept.sent,
        is_being_counted=bool(use.kept.asked),
        is_full=use.is_full,
    )
    if use.kept.counted_at:
        message.counted_at.FromMicroseconds(round(use.kept.counted_at * 1e6))
    return message


def item_message(one: Item) -> accounts_pb2.KeptItem:
    """Return one of the largest items."""
    return accounts_pb2.KeptItem(
        name=one.name, kind=_kind(one.kind.name), bytes=one.bytes, is_live=one.is_live
    )


_KINDS: Final = {
    KeptKind.DATASETS.name: accounts_pb2.KEPT_KIND_DATASETS,
    KeptKind.CHECKPOINTS.name: accounts_pb2.KEPT_KIND_CHECKPOINTS,
    KeptKind.CODE.name: accounts_pb2.KEPT_KIND_CODE,
    KeptKind.MEDIA.name: accounts_pb2.KEPT_KIND_MEDIA,
    KeptKind.LOGS.name: accounts_pb2.KEPT_KIND_LOGS,
    KeptKind.UNUSED.name: accounts_pb2.KEPT_KIND_UNUSED,
    KeptKind.ARTIFACTS.name: accounts_pb2.KEPT_KIND_ARTIFACTS,
}


def _kind(name: str) -> accounts_pb2.KeptKind:
    """Return a kind by its name in `KeptKind`; UNSPECIFIED for one of a newer control plane."""
    return _KINDS.get(name, accounts_pb2.KEPT_KIND_UNSPECIFIED)
