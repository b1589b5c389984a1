"""Checks that this version of nsml can work with a store's data, and migrates older data.

The history has versions of its own (`history/sql/tables.py`); so has an agent's journal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.cluster import DATA_VERSION
from controlplane.startup.ownership import StartRefused
from controlplane.state.members import MEMBERS
from controlplane.store.interface import Put, Transaction, unchanged
from controlplane.store.revision_offset import ContinuedStore
from controlplane.stored import etcd_codec
from nsml._version import VERSION

if TYPE_CHECKING:
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

_PATIENCE_TTLS: Final = 2
_LOOK_S: Final = 0.2

RESTORING: Final = "restoring"
"""Key of a store from the first to the last step of a restore."""


async def look_at(store: KeyValueStore) -> KeyValueStore:
    """Return the store for use by the control plane; writes nothing.

    Raises:
        StartRefused: a newer version wrote it, or a restore into it was not finished.
        StoreError: the store does not answer.
    """
    if await store.get(RESTORING) is not None:
        raise StartRefused(
            "a restore into this store was broken off, so a part of the platform is missing: empty "
            "it (the keys under etcd_root, or the data folder), and restore again"
        )
    item = await store.get(etcd_codec.CLUSTER)
    if item is None:
        return store
    cluster = etcd_codec.decode_cluster(item.value)
    if cluster.data_version > DATA_VERSION:
        raise StartRefused(
            f"the store was written by a newer nsml: {cluster.written_by}, data version "
            f"{cluster.data_version}; this is {VERSION}, which knows {DATA_VERSION}. Nothing was "
            f"changed. Start {cluster.written_by} again, or restore a backup from before the upgrade "
            "into an empty store"
        )
    return ContinuedStore(store, cluster.offset) if cluster.offset else store


async def wait_for_one_version(store: KeyValueStore, clock: Clock, lease_s: float) -> None:
    """Return when no control plane of another version runs: they would drop each other's fields.

    A dead one is listed until its lease ends, so that is waited for.

    Raises:
        StartRefused: another version runs.
        StoreError: the store does not answer.
    """
    ends_at = clock.monotonic() + _PATIENCE_TTLS * lease_s
    while True:
        listed = await MEMBERS.list(store)
        others = [one.value for one in listed.items if one.value.version != VERSION]
        if not others:
            return
        if clock.monotonic() >= ends_at:
            raise StartRefused(
                f"{others[0].name} runs nsml {others[0].version} on this store, this is {VERSION}: all "
                "control planes of a platform are of one version; stop every one of them, then "
                "start the new ones (docs/upgrade.md)"
            )
        await clock.sleep(_LOOK_S)


async def bring_forward(store: KeyValueStore) -> None:
    """Migrate older data to this version. The store is ours alone: every other version is stopped.

    A step that changes records runs before the version is written, and may be repeated.

    Raises:
        StoreError: the store does not answer.
    """
    item = await store.get(etcd_codec.CLUSTER)
    if item is None:
        return
    cluster = etcd_codec.decode_cluster(item.value)
    now = replace(cluster, data_version=DATA_VERSION, written_by=VERSION)
    if now == cluster:
        return
    await store.commit(
        Transaction(
            compares=(unchanged(item.key, item.mod_revision),),
            success=(Put(key=item.key, value=etcd_codec.encode_cluster(now)),),
        )
    )
