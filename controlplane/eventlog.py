"""The store's whole history as lines of JSON: all writes in the order of revisions.

    python -m controlplane.eventlog https://HOST:PORT[,...] --ca FILE

`nsml doctor chaos` compares it with the actions of every control plane. One object a line, oldest first:

    {"revision": 7, "key": "alloc/n1", "created": 3, "value": {...}}

`value` is null for a deleted key, and {} for private keys: users,
tokens, secrets. It reaches back to the last compaction.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from controlplane.store.election import LEADER_KEY
from controlplane.store.etcd_members import Tls
from controlplane.store.interface import StoreError
from controlplane.store.open import open_store
from controlplane.stored import etcd_codec
from controlplane.stored.v1 import records_pb2 as pb
from nsml.common.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from controlplane.store.interface import Event, KeyValueStore


def _leader(value: bytes) -> dict[str, Any]:
    return {"member": json.loads(value)["member"]}


def _session(value: bytes) -> dict[str, Any]:
    record = pb.SessionRecord.FromString(value)
    return {
        "name": record.name,
        "request": record.request_id,
        "state": record.state,
        "attempt": record.attempt,
        "term": record.term,
    }


def _allocation(value: bytes) -> dict[str, Any]:
    record = pb.AllocationRecord.FromString(value)
    return {
        "term": record.term,
        "replicas": [
            {
                "session": held.session_id,
                "attempt": held.attempt,
                "rank": held.rank,
                "devices": {share.uuid: share.thousandths for share in held.devices},
            }
            for held in record.replicas
        ],
    }


def _pointer(value: bytes) -> dict[str, Any]:
    return {"session": etcd_codec.decode_pointer(value)}


_SHOWN: Final[dict[str, Callable[[bytes], dict[str, Any]]]] = {
    LEADER_KEY: _leader,
    etcd_codec.SESSIONS: _session,
    etcd_codec.ALLOCATIONS: _allocation,
    etcd_codec.NAMES: _pointer,
    etcd_codec.REQUESTS: _pointer,
}
"""Visible parts of a value, by its key or the key's prefix."""


def told(event: Event, revision: int) -> dict[str, Any]:
    """Return one change as an output line."""
    line: dict[str, Any] = {"revision": revision, "key": event.key, "value": None}
    if event.item is not None:
        line["created"] = event.item.create_revision
        first, slash, _ = event.key.partition("/")
        show = _SHOWN.get(first + slash)
        line["value"] = {} if show is None else show(event.item.value)
    return line


async def history(store: KeyValueStore) -> AsyncIterator[dict[str, Any]]:
    """Yield every change up to now.

    Raises:
        Compacted: the beginning is gone.
    """
    last = (await store.list(LEADER_KEY)).revision
    async with aclosing(store.watch("", 1)) as batches:
        async for batch in batches:
            for event in batch.events:
                if batch.revision <= last:
                    yield told(event, batch.revision)
            if batch.revision >= last:
                return


async def _write(endpoints: str, root: str, tls: Tls | None) -> None:
    async with open_store(endpoints, clock=SystemClock(), root=root, tls=tls) as store:
        async for line in history(store):
            sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the history of an etcd cluster to stdout; exit code 1 if it cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m controlplane.eventlog",
        description="The whole history of a platform's etcd, as lines of JSON.",
    )
    parser.add_argument("endpoints", help="URLs of the members, separated by commas")
    parser.add_argument("--ca", type=Path, help="PEM of the authority of the servers")
    parser.add_argument("--root", default="nsml/", help="what all keys begin with")
    chosen = parser.parse_args(arguments)
    try:
        tls = None if chosen.ca is None else Tls(ca=chosen.ca.read_bytes())
        asyncio.run(_write(chosen.endpoints, chosen.root, tls))
    except (StoreError, OSError, ValueError) as error:
        sys.stderr.write(f"eventlog: {error}\n")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
