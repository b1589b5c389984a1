"""The keys of a shared platform: kept in its store, sealed under one key that is in no store.

That key is `platform.key`: 32 bytes in hexadecimal, created by the first control plane, and copied to
each further one. With it and the store one has all rights of the platform; with the store alone one
learns nothing. So the certificate authority and the keys of users' secrets are the same for every
control plane, and a backup of the store has them.
"""

from __future__ import annotations

import hashlib
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError

from controlplane.access.authority import load_authority, make_authority_pair
from controlplane.access.files import read_private
from controlplane.access.vault import KEY_BYTES, Vault, read_vault_keys
from controlplane.access.vault import KEY_FILE as VAULT_FILE
from controlplane.store.interface import Put, Transaction, unchanged
from controlplane.store.watched_key import follow_key
from controlplane.stored import etcd_codec
from controlplane.stored.v1 import records_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from controlplane.access.authority import Authority
    from controlplane.access.secret import RandomBytes
    from controlplane.store.interface import KeyValue, KeyValueStore
    from nsml.common.clock import Clock

KEY_FILE: Final = "platform.key"
_NONCE_BYTES: Final = 12
KNOWN_WITHIN_S: Final = 2.0
"""Maximum delay until every live control plane follows a changed record, in seconds."""

_log = structlog.get_logger()


class WrongPlatformKey(Exception):
    """The sealed keys in the store were not sealed under this key, or are damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformKeys:
    """Keys that every control plane of a platform needs.

    Attributes:
        authority: certificate and key of the certificate authority, PEM.
        vault: keys of users' secrets; the first one seals.
    """

    authority: tuple[bytes, bytes] = field(repr=False)
    vault: tuple[bytes, ...] = field(repr=False)

    def open_authority(self, clock: Clock) -> Authority:
        """Load the authority; ValueError if certificate and key do not match."""
        return load_authority(*self.authority, clock)


class PlatformKey:
    """Seals the keys of one platform."""

    def __init__(self, key: bytes, random_bytes: RandomBytes) -> None:
        self._cipher = AESGCM(key)
        self._random_bytes = random_bytes
        self.id = hashlib.sha256(b"nsml platform\0" + key).hexdigest()[:16]

    def seal(self, keys: PlatformKeys, cluster_id: str) -> bytes:
        """Return the record for the store, usable by this platform only."""
        certificate, key = keys.authority
        message = pb.PlatformKeys(
            authority_certificate=certificate, authority_key=key, vault_keys=keys.vault
        )
        nonce = self._random_bytes(_NONCE_BYTES)
        text = message.SerializeToString()
        sealed = nonce + self._cipher.encrypt(nonce, text, _place(cluster_id))
        return pb.SealedKeysRecord(sealed=sealed, key_id=self.id).SerializeToString()

    def open(self, record: bytes, cluster_id: str) -> PlatformKeys:
        """Open a sealed record.

        Raises:
            WrongPlatformKey: it is sealed under another key, of another platform, or damaged.
        """
        try:
            stored = pb.SealedKeysRecord.FromString(record)
            nonce, rest = stored.sealed[:_NONCE_BYTES], stored.sealed[_NONCE_BYTES:]
            text = self._cipher.decrypt(nonce, rest, _place(cluster_id))
            message = pb.PlatformKeys.FromString(text)
        except (InvalidTag, ValueError, DecodeError) as error:
            raise WrongPlatformKey("the platform's keys do not open with it") from error
        return PlatformKeys(
            authority=(message.authority_certificate, message.authority_key),
            vault=tuple(message.vault_keys),
        )


def read_platform_key(path: Path, random_bytes: RandomBytes) -> PlatformKey | None:
    """Read the key in a file; None if there is no file.

    Raises:
        PermissionError: others may read it.
        ValueError: it is not a key.
    """
    written = read_private(path)
    if written is None:
        return None
    try:
        key = bytes.fromhex(written.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} is not a platform's key: {2 * KEY_BYTES} hexadecimal digits")
    return PlatformKey(key, random_bytes)


def first_keys(folder: Path, clock: Clock, random_bytes: RandomBytes) -> PlatformKeys:
    """Return a platform's first keys: the authority and the vault of its folder, or else new ones.

    Raises:
        PermissionError: others may read the files.
        ValueError: the files are invalid.
    """
    key = read_private(folder / "ca.key")
    if key is None:
        authority = make_authority_pair(clock)
    else:
        authority = ((folder / "ca.pem").read_bytes(), key)
        load_authority(*authority, clock)
    vault = read_vault_keys(folder) or (random_bytes(KEY_BYTES),)
    return PlatformKeys(authority=authority, vault=vault)


def forget_files(folder: Path, keys: PlatformKeys) -> None:
    """Remove the files of a platform's keys, which are sealed in the store now.

    Files with other contents stay: they are of another platform.
    """
    if read_private(folder / "ca.key") == keys.authority[1]:
        (folder / "ca.key").unlink()
    taken = read_vault_keys(folder)
    if taken and set(taken) <= set(keys.vault):
        (folder / VAULT_FILE).unlink()


class SharedKeys:
    """This control plane's keys; they follow the store, so that a new one is used at once."""

    def __init__(
        self, store: KeyValueStore, key: PlatformKey, cluster_id: str, vault: Vault, *, clock: Clock
    ) -> None:
        self._store = store
        self._key = key
        self._cluster_id = cluster_id
        self._vault = vault
        self._clock = clock

    async def run(self) -> None:
        """Follow the store until cancelled. An unreadable record is logged, and the known keys stay in use.

        Raises:
            StoreReplaced, StoreRefused: nothing more can be followed.
        """
        following = follow_key(self._store, etcd_codec.PLATFORM_KEYS, clock=self._clock)
        async with aclosing(following) as items:
            async for item in items:
                self._take(item)

    def _take(self, item: KeyValue | None) -> None:
        try:
            if item is None:
                raise WrongPlatformKey("they were deleted")  # noqa: TRY301
            keys = self._key.open(item.value, self._cluster_id)
        except WrongPlatformKey as error:
            _log.error("keys.not_opened", reason=str(error))
            return
        if self._vault.take(keys.vault):
            _log.info("keys.changed", key=self._vault.key_id, count=len(keys.vault))


async def renew_vault_key(
    store: KeyValueStore, key: PlatformKey, cluster_id: str, fresh: bytes, *, clock: Clock
) -> None:
    """Put a new key of users' secrets first, once every control plane has it.

    Raises:
        WrongPlatformKey: the keys do not open.
        StoreError: the store does not answer.
    """
    await _change(store, key, cluster_id, lambda vault: (*vault, fresh))
    # At first it only opens: no control plane may meet values sealed with a key that it does not have yet.
    await clock.sleep(KNOWN_WITHIN_S)
    await _change(store, key, cluster_id, lambda vault: (fresh, *(k for k in vault if k != fresh)))


async def forget_vault_keys(store: KeyValueStore, key: PlatformKey, cluster_id: str) -> None:
    """Remove all but the first key of users' secrets; raises as `renew_vault_key`."""
    await _change(store, key, cluster_id, lambda vault: vault[:1])


async def _change(
    store: KeyValueStore,
    key: PlatformKey,
    cluster_id: str,
    changed: Callable[[tuple[bytes, ...]], tuple[bytes, ...]],
) -> None:
    while True:
        item = await store.get(etcd_codec.PLATFORM_KEYS)
        if item is None:
            raise WrongPlatformKey("there are none in the store")
        keys = key.open(item.value, cluster_id)
        keys = replace(keys, vault=changed(keys.vault))
        result = await store.commit(
            Transaction(
                compares=(unchanged(item.key, item.mod_revision),),
                success=(Put(key=item.key, value=key.seal(keys, cluster_id)),),
            )
        )
        if result.succeeded:
            return


def _place(cluster_id: str) -> bytes:
    return f"nsml platform keys\0{cluster_id}".encode()
