"""`nsml-controlplane --restore`: restores a platform from a backup into empty backends.

An interrupted restore leaves no platform that looks whole: the folder and the store are marked as
being restored until the last step, which writes the platform's record.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.access.files import read_private, write_private
from controlplane.access.platform_keys import (
    KEY_FILE,
    WrongPlatformKey,
    first_keys,
    read_platform_key,
)
from controlplane.access.records import USERS
from controlplane.access.vault import KEY_BYTES
from controlplane.backups.backups import batches_in, records_in
from controlplane.domain.cluster import DATA_VERSION, Restore, next_offset
from controlplane.startup.backends import key_file_of, opened_ground, standing_of
from controlplane.startup.migrations import RESTORING
from controlplane.startup.ownership import StartRefused
from controlplane.store.filelock import FileLock
from controlplane.store.interface import Delete, Put, Transaction
from controlplane.stored import etcd_codec
from nsml._version import VERSION
from nsml.common.clock import SystemClock
from nsml.content.backups import Backup, BackupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from controlplane.access.platform_keys import PlatformKey, PlatformKeys
    from controlplane.domain.cluster import Cluster
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.objects.interface import ObjectStore
    from controlplane.startup.backends import ClaimedBackends
    from controlplane.startup.config import Settings
    from controlplane.startup.ownership import BackendSettings
    from controlplane.store.interface import KeyValueStore

MARK: Final = "restoring"
"""File of a data folder from the first to the last step of a restore into it."""

_VALID_AGAIN: Final = (
    "users, tokens and nodes that were removed or revoked after the backup are valid again: remove them again "
    "(nsml admin user ls, nsml node ls)"
)
_LEAST_KEYS: Final = frozenset({"ca.key", "ca.pem", "secrets.key"})
_KEYS: Final = ("ca.pem", "ca.key", "secrets.key", KEY_FILE)
_OPERATIONS: Final = 100
_BYTES: Final = 1_000_000
_BATCH_BLOBS: Final = 64
_BATCH_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result; `is_beside`: the objects were there already."""

    cluster_id: str
    record_count: int
    blob_count: int
    is_beside: bool = False

    def lines(self) -> list[str]:
        """Return the report to the operator, by lines."""
        found = [
            f"restored {self.cluster_id}: {self.record_count} records, {self.blob_count} blobs",
            _VALID_AGAIN,
        ]
        if self.is_beside:
            found.append(
                "the object store was there already: what nothing refers to in this platform is removed from it after "
                "collect_after_s; if another platform still uses it, set collect_after_s = 0 before the first start"
            )
        return found


def refuse_unfinished(data: Path) -> None:
    """Raise StartRefused for a folder with an interrupted restore."""
    if (data / MARK).exists():
        raise StartRefused(
            f"a restore into {data} was broken off, so a part of the platform is missing: empty it "
            "(and the etcd cluster and the database, if they are elsewhere), and restore again"
        )


async def restore(settings: Settings, path: Path, keys: Path | None) -> Restored:
    """Fill the configured backends from the backup at `path`.

    `keys` is a folder with the platform's private files, if the backup lacks them.

    Raises:
        StartRefused: a backend is not empty, or this version cannot restore the backup.
        BackupError: it is incomplete, or others could have changed it or read its keys; nothing was written.
        StoreError, NsmlError, OSError: the restore was interrupted.
    """
    backup = Backup(path)
    _check_version(backup)
    backup.refuse_foreign()
    backup.check(with_blobs=False)
    stored = dict(records_in(backup.pieces("store")))
    is_sealed = etcd_codec.PLATFORM_KEYS in stored
    private = _private_files(backup, keys, key_file_of(settings), is_sealed=is_sealed)
    data = settings.data
    _check_empty(data)
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    data.chmod(0o700)
    with FileLock(str(data / "lock")):
        standing = standing_of(settings)
        write_private(data / MARK, f"{path}\n".encode())
        is_begun = False
        try:
            async with opened_ground(settings, standing, SystemClock()) as on:
                restoring = _Restoring(
                    on, backup, standing, settings, stored=stored, private=private
                )
                cluster, objects_mark = await restoring.checked()
                is_begun = True
                done = await restoring.run(cluster, objects_mark)
        finally:
            if not is_begun:
                _clear(data)
        write_private(data / "coordination", standing.coordination.kind.encode() + b"\n")
        write_private(data / "cluster", done.cluster_id.encode() + b"\n")
        (data / MARK).unlink()
    return done


class _Restoring:
    """One restore, into opened backends; `stored` are the records of the backup by key."""

    def __init__(
        self,
        on: ClaimedBackends,
        backup: Backup,
        standing: BackendSettings,
        settings: Settings,
        *,
        stored: Mapping[str, bytes],
        private: Mapping[str, bytes],
    ) -> None:
        self._on = on
        self._backup = backup
        self._stored = stored
        self._standing = standing
        self._data = settings.data
        self._key_file = key_file_of(settings)
        self._private = dict(private)

    async def checked(self) -> tuple[Cluster, str]:
        """Return the platform of the backup, and the mark of objects that survived it ("" if none); writes nothing.

        Raises:
            StartRefused: a backend is not empty.
            BackupError: there is no platform in the backup.
        """
        made = self._stored.get(etcd_codec.CLUSTER)
        if made is None:
            raise BackupError(f"{self._backup.path / 'store'} has no platform in it")
        cluster = etcd_codec.decode_cluster(made)
        return cluster, await self._check_empty(cluster)

    async def run(self, cluster: Cluster, objects_mark: str) -> Restored:
        on, backup = self._on, self._backup
        found = dict(self._stored)
        del found[etcd_codec.CLUSTER]
        key_records = self._put_keys(cluster.id, found.pop(etcd_codec.PLATFORM_KEYS, None))
        await on.store.commit(Transaction(success=(Put(key=RESTORING, value=b""),)))
        blobs = await _put_blobs(on.objects, backup)
        await on.history.load(batches_in(backup.pieces("history")))
        kept = await _still_live(on.history, found) | key_records
        await _put_records(on.store, kept)
        now = self._going_on(cluster, objects_mark)
        end = (
            Put(key=etcd_codec.CLUSTER, value=etcd_codec.encode_cluster(now)),
            Delete(key=RESTORING),
        )
        await on.store.commit(Transaction(success=end))
        return Restored(
            cluster_id=cluster.id,
            record_count=len(kept) + 1,
            blob_count=blobs,
            is_beside=bool(objects_mark),
        )

    async def _check_empty(self, cluster: Cluster) -> str:
        """Return the mark of objects that survived the platform, "" if none; StartRefused."""
        there = [item.key for item in (await self._on.store.list("", keys_only=True)).items]
        if there:
            raise StartRefused(
                f"the store is not empty: it has {len(there)} records, {there[0]} among them; restore "
                "into an empty one"
            )
        history, objects = await self._on.history.mark(), await self._on.objects.mark()
        if history:
            raise StartRefused(
                f"the history belongs to {history.partition('/')[0]}: name a database that is empty"
            )
        if objects and objects != cluster.objects_mark:
            raise StartRefused(
                f"the object store belongs to {objects.partition('/')[0]}: name one that is empty"
            )
        if not objects and "objects" not in self._backup.manifest.parts:
            raise StartRefused(
                f"{self._backup.path} was made without objects: name the object store that the "
                "platform had"
            )
        return objects

    def _put_keys(self, cluster_id: str, sealed: bytes | None) -> dict[str, bytes]:
        """Write the private keys to their places; return the store's part of them.

        Raises:
            StartRefused: the platform's key does not decrypt them.
        """
        platform_key = self._private.pop(KEY_FILE, None)
        if sealed is not None:
            is_laid_now = not self._key_file.exists()
            if is_laid_now:
                write_private(self._key_file, platform_key or b"")
            keys = self._opened(sealed, cluster_id)
            if self._standing.is_shared:
                return {etcd_codec.PLATFORM_KEYS: sealed}
            vault = "".join(f"{one.hex()}\n" for one in keys.vault).encode()
            certificate, key = keys.authority
            self._private |= {"ca.pem": certificate, "ca.key": key, "secrets.key": vault}
            if is_laid_now:  # otherwise it is the owner's, perhaps the only copy
                self._key_file.unlink()
        for name, content in self._private.items():
            write_private(self._data / name, content)
        if not self._standing.is_shared:
            return {}
        random_bytes = self._on.random_bytes
        if not self._key_file.exists():
            write_private(self._key_file, random_bytes(KEY_BYTES).hex().encode() + b"\n")
        sealing = self._platform_key()
        keys = first_keys(self._data, self._on.clock, random_bytes)
        return {etcd_codec.PLATFORM_KEYS: sealing.seal(keys, cluster_id)}

    def _opened(self, sealed: bytes, cluster_id: str) -> PlatformKeys:
        try:
            return self._platform_key().open(sealed, cluster_id)
        except WrongPlatformKey as error:
            raise StartRefused(f"{self._key_file} is not the platform's key: {error}") from error

    def _platform_key(self) -> PlatformKey:
        try:
            key = read_platform_key(self._key_file, self._on.random_bytes)
        except ValueError as error:
            raise StartRefused(str(error)) from error
        if key is None:
            raise StartRefused(f"{self._key_file} does not exist any more")
        return key

    def _going_on(self, cluster: Cluster, objects_mark: str) -> Cluster:
        """Return the cluster record to continue with: its revisions begin above all reported ones."""
        standing = self._standing
        after = max(self._backup.manifest.revision, cluster.offset)
        restored = Restore(
            after=after, offset=next_offset(after), restored_at=self._on.clock.time()
        )
        return replace(
            cluster,
            coordination=standing.coordination.shown,
            is_shared=standing.is_shared,
            history=standing.history_kind,
            objects=standing.objects_kind,
            history_mark="",
            objects_mark=objects_mark,
            restores=(*cluster.restores, restored),
        )


def _check_version(backup: Backup) -> None:
    manifest = backup.manifest
    if manifest.data_version > DATA_VERSION:
        raise StartRefused(
            f"{backup.path} was made by a newer nsml: {manifest.version}, data version "
            f"{manifest.data_version}; this is {VERSION}, which knows {DATA_VERSION}: restore it with "
            f"{manifest.version}"
        )
    missing = {"store", "history"} - manifest.parts.keys()
    if missing:
        raise BackupError(f"{backup.path} lacks {', '.join(sorted(missing))}")


def _check_empty(data: Path) -> None:
    there = (
        sorted(one.name for one in data.iterdir() if one.name != "lock") if data.exists() else []
    )
    if MARK in there:
        refuse_unfinished(data)
    if there:
        raise StartRefused(
            f"{data} is not empty: it has {', '.join(there[:5])}; a platform is restored into an "
            "empty folder only"
        )


def _clear(data: Path) -> None:
    """Empty a folder into which nothing has been restored, for another try."""
    for one in data.iterdir():
        if one.name == "lock":
            continue
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        else:
            one.unlink()


def _private_files(
    backup: Backup, keys: Path | None, key_file: Path, *, is_sealed: bool
) -> Mapping[str, bytes]:
    """Return the platform's private files by name; StartRefused if some are missing."""
    if keys is None:
        found = {name: backup.key(name) for name in _KEYS if name in backup.manifest.keys}
    else:
        read = {name: read_private(keys / name) for name in _KEYS if name != "ca.pem"}
        if (keys / "ca.pem").exists():
            read["ca.pem"] = (keys / "ca.pem").read_bytes()
        found = {name: content for name, content in read.items() if content is not None}
    if key_file.exists():
        found[KEY_FILE] = read_private(key_file) or b""
    missing = ({KEY_FILE} if is_sealed else _LEAST_KEYS) - found.keys()
    if missing:
        where = f"{keys} does not have" if keys else f"{backup.path} was made without"
        raise StartRefused(
            f"{where} the platform's private keys ({', '.join(sorted(missing))}): without them no "
            "node and no secret of it can be used; name the folder that has them: --keys DIR"
        )
    return found


async def _put_blobs(objects: ObjectStore, backup: Backup) -> int:
    count = 0
    batch: dict[str, bytes] = {}
    for digest in backup.digests():
        batch[digest] = backup.blob(digest)
        if len(batch) >= _BATCH_BLOBS or sum(map(len, batch.values())) >= _BATCH_BYTES:
            count += len(batch)
            await objects.put_many(batch)
            batch = {}
    if batch:
        await objects.put_many(batch)
    return count + len(batch)


async def _still_live(history: History, found: dict[str, bytes]) -> dict[str, bytes]:
    """Return the records without the sessions that were exported during the backup.

    The catalogue has their final state. Their allocations on nodes are removed, too.
    """
    exported: dict[str, Session] = {}
    for key, value in found.items():
        if key.startswith(etcd_codec.SESSIONS):
            session = etcd_codec.decode_session(value)
            if await history.catalogue.session(session.id) is not None:
                exported[session.id] = session
    if not exported:
        return found
    gone = {
        key
        for one in exported.values()
        for key in (
            etcd_codec.session_key(one.id),
            etcd_codec.name_key(one.name),
            etcd_codec.request_key(one.owner, one.request_id),
        )
    }
    kept = {key: value for key, value in found.items() if key not in gone}
    for key, value in kept.items():
        if key.startswith(etcd_codec.ALLOCATIONS):
            allocation = etcd_codec.decode_allocation(value)
            left = tuple(one for one in allocation.replicas if one.session_id not in exported)
            if left != allocation.replicas:
                kept[key] = etcd_codec.encode_allocation(replace(allocation, replicas=left))
    return kept


async def _put_records(store: KeyValueStore, found: Mapping[str, bytes]) -> None:
    """Create them in the order of their first creation.

    A token or secret that is older than its user belongs to an earlier user of that name: so a
    user is created in a transaction of its own.
    """
    for puts in _transactions(Put(key=key, value=value) for key, value in found.items()):
        await store.commit(Transaction(success=tuple(puts)))


def _transactions(puts: Iterable[Put]) -> Iterator[list[Put]]:
    gathered: list[Put] = []
    size = 0
    for put in puts:
        more = len(put.key.encode()) + len(put.value)
        is_user = put.key.startswith(USERS.prefix)
        if gathered and (is_user or len(gathered) >= _OPERATIONS or size + more > _BYTES):
            yield gathered
            gathered, size = [], 0
        gathered.append(put)
        size += more
        if is_user:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered
