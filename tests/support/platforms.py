"""A platform in a store, for control planes that stand on parts in memory: `ownership.py` has real ones."""

from __future__ import annotations

from controlplane.core.dependencies import Backends
from controlplane.core.ids import new_cluster_id
from controlplane.domain.cluster import Cluster
from controlplane.store.interface import Get, KeyValueStore, Put, Transaction, absent
from controlplane.stored import etcd_codec
from nsml._version import VERSION


async def ensure_cluster(on: Backends, coordination: str) -> str:
    """The id of the platform that lives in the store; an empty store gets a new one."""
    if known := await cluster_in(on.store):
        return known  # a full store would refuse what follows
    fresh = new_cluster_id(on.random_bytes)
    made = Cluster(
        id=fresh, created_at=on.clock.time(), coordination=coordination, written_by=VERSION
    )
    value = etcd_codec.encode_cluster(made)
    result = await on.store.commit(
        Transaction(
            compares=(absent(etcd_codec.CLUSTER),),
            success=(Put(key=etcd_codec.CLUSTER, value=value),),
            failure=(Get(key=etcd_codec.CLUSTER),),
        )
    )
    item = None if result.succeeded else result.responses[0].item
    return etcd_codec.decode_cluster(item.value).id if item else fresh


async def cluster_in(store: KeyValueStore) -> str:
    """The id of the platform that lives in a store; "" for an empty one."""
    item = await store.get(etcd_codec.CLUSTER)
    return etcd_codec.decode_cluster(item.value).id if item else ""
