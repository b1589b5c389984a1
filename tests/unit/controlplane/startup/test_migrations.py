"""Which data and which other control planes a version starts with."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from controlplane.core.dependencies import Backends
from controlplane.domain.cluster import DATA_VERSION, LIFE, Cluster, Restore, is_lost, next_offset
from controlplane.startup.migrations import RESTORING, bring_forward, look_at, wait_for_one_version
from controlplane.startup.ownership import StartRefused
from controlplane.state.members import MEMBERS, Member
from controlplane.store.interface import KeyValueStore, Put, Transaction
from controlplane.stored import etcd_codec
from nsml._version import RELEASE, VERSION
from tests.support.platforms import ensure_cluster
from tests.unit.controlplane.rig import surroundings


@pytest.fixture
async def on():
    async with surroundings() as on:
        yield on


async def put(store: KeyValueStore, *puts: Put) -> None:
    await store.commit(Transaction(success=puts))


async def cluster(store: KeyValueStore) -> Cluster:
    item = await store.get(etcd_codec.CLUSTER)
    assert item is not None
    return etcd_codec.decode_cluster(item.value)


async def write(store: KeyValueStore, **changes: object) -> None:
    changed = replace(await cluster(store), **changes)  # type: ignore[arg-type]
    await put(store, Put(key=etcd_codec.CLUSTER, value=etcd_codec.encode_cluster(changed)))


async def test_older_data_become_ours_and_newer_ones_are_refused_by_name(on: Backends) -> None:
    assert await look_at(on.store) is on.store
    await ensure_cluster(on, "embedded")
    assert (await cluster(on.store)).data_version == DATA_VERSION
    await write(on.store, data_version=1, written_by="")
    await look_at(on.store)
    await bring_forward(on.store)
    found = await cluster(on.store)
    assert (found.data_version, found.written_by) == (DATA_VERSION, VERSION)
    revision = (await on.store.list("")).revision
    await bring_forward(on.store)
    await write(on.store, data_version=DATA_VERSION + 1, written_by="9.9.9")
    assert (await on.store.list("")).revision == revision + 1, "nothing to bring forward"
    with pytest.raises(StartRefused, match=r"newer nsml: 9\.9\.9"):
        await look_at(on.store)


async def test_a_half_restored_store_is_refused(on: Backends) -> None:
    await ensure_cluster(on, "embedded")
    await put(on.store, Put(key=RESTORING, value=b""))
    with pytest.raises(StartRefused, match="broken off"):
        await look_at(on.store)


async def test_a_restored_store_goes_on_counting(on: Backends) -> None:
    await ensure_cluster(on, "embedded")
    await write(on.store, restores=(Restore(after=70, offset=next_offset(70)),))
    store = await look_at(on.store)
    assert (await store.list("")).revision == (await on.store.list("")).revision + LIFE
    for revision, is_gone in ((70, False), (71, True), (LIFE, True), (LIFE + 1, False)):
        assert is_lost(revision, (Restore(after=70, offset=LIFE),)) is is_gone
    assert next_offset(LIFE) == next_offset(LIFE + 5) == 2 * LIFE


@pytest.mark.parametrize("version", ["0.1.9", f"{RELEASE}+gffffffffffff"])
async def test_control_planes_are_of_one_version(on: Backends, version: str) -> None:
    """Two commits of one release are two versions."""
    ours, other = Member(name="a", version=VERSION), Member(name="b", version=version)
    await put(on.store, MEMBERS.put("a", ours))
    await wait_for_one_version(on.store, on.clock, 0.1)
    lease = await on.store.grant(30)
    await put(on.store, MEMBERS.put("b", other, lease=lease.id))
    with pytest.raises(StartRefused, match=re.escape(f"b runs nsml {version}")):
        await wait_for_one_version(on.store, on.clock, 0.1)
    await on.store.revoke(lease)
    await wait_for_one_version(on.store, on.clock, 0.1)
