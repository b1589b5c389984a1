"""Keys of a shared platform: sealed in its store, followed, renewed."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.access import platform_keys
from controlplane.access.platform_keys import (
    PlatformKey,
    SharedKeys,
    WrongPlatformKey,
    first_keys,
    forget_vault_keys,
    renew_vault_key,
)
from controlplane.access.vault import NotOpened, Vault
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import KeyValue, Listing, Put, Transaction
from controlplane.stored import etcd_codec
from nsml.common.clock import SystemClock, inline

CLOCK = SystemClock()


def a_key() -> PlatformKey:
    return PlatformKey(os.urandom(32), os.urandom)


@pytest.fixture
async def store():
    async with EmbeddedStore(":memory:", clock=CLOCK, run=inline) as store:
        yield store


async def until(holds) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - a condition of others
            await asyncio.sleep(0.005)


def test_keys_open_only_with_their_key_and_for_their_platform(tmp_path: Path) -> None:
    key, keys = a_key(), first_keys(tmp_path, CLOCK, os.urandom)
    record = key.seal(keys, "c1")
    assert key.open(record, "c1") == keys
    assert key.seal(keys, "c1") != record, "never the same nonce"
    for opener, text, platform in (
        (a_key(), record, "c1"),
        (key, record, "c2"),
        (key, record[:-3], "c1"),
        (key, b"", "c1"),
        (key, b"\xff" * 40, "c1"),
    ):
        with pytest.raises(WrongPlatformKey):
            opener.open(text, platform)


async def test_a_new_key_of_secrets_is_known_before_it_seals(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform_keys, "KNOWN_WITHIN_S", 0.05)
    key, keys, fresh = a_key(), first_keys(tmp_path, CLOCK, os.urandom), os.urandom(32)
    record = key.seal(keys, "c1")
    await store.commit(
        Transaction(compares=(), success=(Put(key=etcd_codec.PLATFORM_KEYS, value=record),))
    )
    vaults = [Vault(keys.vault, os.urandom) for _ in range(2)]
    following = [
        asyncio.create_task(SharedKeys(store, key, "c1", vault, clock=CLOCK).run())
        for vault in vaults
    ]
    old = vaults[0].seal(b"old", owner="kim", name="A")
    before = vaults[0].key_id
    changed = asyncio.create_task(vaults[1].changed())
    renewing = asyncio.create_task(renew_vault_key(store, key, "c1", fresh, clock=CLOCK))
    await changed
    assert vaults[1].key_id == before, "at first it only opens"
    await renewing
    await until(lambda: all(vault.key_id != before for vault in vaults))
    new = vaults[0].seal(b"new", owner="kim", name="A")
    assert vaults[1].open(new, owner="kim", name="A") == b"new"
    assert vaults[1].open(old, owner="kim", name="A") == b"old"
    await forget_vault_keys(store, key, "c1")
    await until(lambda: not any(vault.has_older_keys for vault in vaults))
    with pytest.raises(NotOpened):
        vaults[1].open(old, owner="kim", name="A")
    # What nobody can read changes nothing, and is no reason to end.
    await store.commit(
        Transaction(compares=(), success=(Put(key=etcd_codec.PLATFORM_KEYS, value=b"rubbish"),))
    )
    with pytest.raises(WrongPlatformKey):
        await renew_vault_key(store, key, "c1", fresh, clock=CLOCK)
    assert not any(task.done() for task in following)
    assert vaults[1].open(new, owner="kim", name="A") == b"new"
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)


class OftenAsked(EmbeddedStore):
    """Takes note of reads, and refuses to be asked without end."""

    reads = 0

    def _count(self) -> None:
        self.reads += 1
        if self.reads > 20:
            raise AssertionError("it asks again and again")

    async def get(self, key: str) -> KeyValue | None:
        self._count()
        return await super().get(key)

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing:
        self._count()
        return await super().list(prefix, revision=revision, keys_only=keys_only)


async def test_keys_older_than_what_the_store_remembers_are_followed(tmp_path: Path) -> None:
    """The store forgets its past every few minutes, and the keys were written long before."""
    key, keys, fresh = a_key(), first_keys(tmp_path, CLOCK, os.urandom), os.urandom(32)
    async with OftenAsked(":memory:", clock=CLOCK, run=inline) as store:
        for written in (etcd_codec.PLATFORM_KEYS, "other", "other", "other"):
            put = Put(key=written, value=key.seal(keys, "c1"))
            result = await store.commit(Transaction(success=(put,)))
        await store.compact(result.revision)
        vault = Vault(keys.vault, os.urandom)
        following = asyncio.create_task(SharedKeys(store, key, "c1", vault, clock=CLOCK).run())
        await until(lambda: store.reads)
        changed = replace(keys, vault=(*keys.vault, fresh))
        put = Put(key=etcd_codec.PLATFORM_KEYS, value=key.seal(changed, "c1"))
        await store.commit(Transaction(success=(put,)))
        await until(lambda: vault.has_older_keys or following.done())
        assert not following.done(), following.exception()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
