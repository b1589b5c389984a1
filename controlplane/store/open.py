"""Opens the store that is configured."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import DEFAULT_DEADLINE_S, DEFAULT_QUOTA_BYTES
from controlplane.store.revisions import MEMORY
from nsml.common.clock import in_thread, inline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from controlplane.store.etcd_members import Login, Tls
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock


@asynccontextmanager
async def open_store(
    where: Path | str | Sequence[str],
    *,
    clock: Clock,
    root: str = "nsml/",
    tls: Tls | None = None,
    login: Login | None = None,
    deadline_s: float = DEFAULT_DEADLINE_S,
    floor_revision: int = 0,
    quota_bytes: int = DEFAULT_QUOTA_BYTES,
) -> AsyncIterator[KeyValueStore]:
    """Open a store for the duration of an `async with`.

    Args:
        clock: for leases and deadlines.
        tls: etcd only: for https endpoints.
        login: etcd only: for clusters with users.
        deadline_s: how long a call tries before it raises.
        where: the path of the embedded store's file; ":memory:"; or etcd endpoint URLs, as a
            sequence or separated by commas.
        root: etcd only: prefix of all our keys.
        floor_revision: etcd only: a revision that the store is known to have reached.
        quota_bytes: etcd only: its quota, if it does not report one.

    Raises:
        StoreError: it cannot be opened; the kind and the text give the reason.
    """
    endpoints = endpoints_of(where)
    if endpoints:
        # Imported late: gRPC costs time and memory that the embedded store does not need.
        from controlplane.store.etcd import EtcdStore  # noqa: PLC0415

        async with EtcdStore(
            endpoints,
            clock=clock,
            root=root,
            tls=tls,
            login=login,
            deadline_s=deadline_s,
            floor_revision=floor_revision,
            quota_bytes=quota_bytes,
        ) as etcd:
            yield etcd
        return
    path = str(where)
    run = inline if path == MEMORY else in_thread
    async with EmbeddedStore(path, clock=clock, run=run, deadline_s=deadline_s) as embedded:
        yield embedded


def endpoints_of(where: Path | str | Sequence[str]) -> tuple[str, ...]:
    """Return the endpoint URLs in `where`, or nothing if it names the embedded store."""
    if isinstance(where, str):
        parts = tuple(part.strip() for part in where.split(",") if part.strip())
        return parts if "://" in where else ()
    return tuple(where) if not hasattr(where, "__fspath__") else ()
