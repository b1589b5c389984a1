"""`nsml-controlplane --secrets-key`: rotates the key of users' secrets, while the platform runs."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Literal

from controlplane.access.platform_keys import (
    PlatformKey,
    WrongPlatformKey,
    forget_vault_keys,
    read_platform_key,
    renew_vault_key,
)
from controlplane.access.records import SECRETS
from controlplane.access.vault import KEY_BYTES, Vault
from controlplane.startup.backends import key_file_of, opened_store, standing_of
from controlplane.startup.ownership import StartRefused
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from controlplane.startup.config import Settings
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

Change = Literal["renew", "forget"]


async def change_secrets_key(settings: Settings, change: Change, clock: Clock) -> str:
    """Add a new key before the others, or keep only the first; return the report.

    Raises:
        StartRefused: the platform is not shared, its keys cannot be decrypted, or old keys are in use.
        StoreError: the store does not answer.
    """
    standing = standing_of(settings)
    if not standing.is_shared:
        raise StartRefused(
            f"a platform of one data folder has these keys in {settings.data / 'secrets.key'}: put a "
            "new one in front of them there (see deploy/README.md)"
        )
    file = key_file_of(settings)
    try:
        key = read_platform_key(file, secrets.token_bytes)
    except (OSError, ValueError) as error:
        raise StartRefused(str(error)) from error
    if key is None:
        raise StartRefused(f"there is no platform key at {file}")
    async with opened_store(settings, standing, clock) as store:
        item = await store.get(etcd_codec.CLUSTER)
        cluster_id = etcd_codec.decode_cluster(item.value).id if item else ""
        try:
            if change == "renew":
                fresh = secrets.token_bytes(KEY_BYTES)
                await renew_vault_key(store, key, cluster_id, fresh, clock=clock)
                return (
                    "a new key is in use; secrets under the others are sealed again within seconds"
                )
            await _refuse_while_used(store, key, cluster_id)
            await forget_vault_keys(store, key, cluster_id)
        except WrongPlatformKey as error:
            raise StartRefused(
                f"{file} is not the key of the platform {cluster_id or 'here: there is none'}"
            ) from error
    return "only one key is left"


async def _refuse_while_used(store: KeyValueStore, key: PlatformKey, cluster_id: str) -> None:
    item = await store.get(etcd_codec.PLATFORM_KEYS)
    if item is None:
        raise WrongPlatformKey("there are none in the store")
    first = Vault(key.open(item.value, cluster_id).vault[:1], secrets.token_bytes).key_id
    sealed = [SECRETS.stored(found) for found in (await store.list(SECRETS.prefix)).items]
    left = [one.key for one in sealed if one.value.key_id != first]
    if left:
        raise StartRefused(
            f"{len(left)} secrets are under an older key, such as {left[0]}: they are sealed again "
            "within seconds while a control plane runs; those that no key opens have to be set again"
        )
