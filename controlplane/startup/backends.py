"""The backends of a control plane, opened by its settings: store, history, objects, keys."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from controlplane.access.authority import open_authority
from controlplane.access.files import read_private
from controlplane.access.platform_keys import KEY_FILE, SharedKeys
from controlplane.access.vault import Vault, open_vault
from controlplane.core.dependencies import Backends
from controlplane.core.shared_clock import SharedClock
from controlplane.history.sqlite import open_history
from controlplane.notices.webhook_delivery import Poster
from controlplane.objects.bucket_files import Bucket, BucketFiles
from controlplane.objects.errors import ObjectsUnavailable
from controlplane.objects.folder_files import open_folder, shared_folder
from controlplane.objects.packed import PackedObjects
from controlplane.objects.service import BucketService
from controlplane.objects.shared_files import open_shared
from controlplane.startup.config import LEASE_ALONE_S, LEASE_OF_SEVERAL_S
from controlplane.startup.migrations import bring_forward, look_at, wait_for_one_version
from controlplane.startup.ownership import BackendSettings, StartRefused, choose_coordination, claim
from controlplane.store.etcd_members import Login, Tls
from controlplane.store.etcd_process import EtcdProcess, find_etcd
from controlplane.store.interface import StoreUnavailable
from controlplane.store.open import open_store
from nsml.common import private_files
from nsml.common.clock import elapsed, in_own_thread, in_thread
from nsml.common.text_files import decoded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from controlplane.access.authority import Authority
    from controlplane.domain.cluster import Cluster
    from controlplane.history.sql.history import History
    from controlplane.objects.files import Files
    from controlplane.startup.config import Settings
    from controlplane.startup.ownership import Claimed
    from controlplane.startup.startup_retry import Waiting
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedBackends:
    """The opened backends, before ownership is checked."""

    store: KeyValueStore
    history: History
    objects: PackedObjects
    clock: Clock
    bucket: Bucket | None = None
    random_bytes: Callable[[int], bytes] = secrets.token_bytes


def standing_of(settings: Settings) -> BackendSettings:
    """Return the backend settings from the settings and the data folder.

    Raises:
        StartRefused: they do not agree.
    """
    coordination = choose_coordination(settings.coordination, settings.data)
    if settings.etcd_user and coordination.is_inside:
        raise StartRefused(
            "etcd_user is for an etcd cluster by URLs: the store of a data folder has no users"
        )
    return BackendSettings(
        coordination=coordination,
        history=settings.history,
        objects=settings.objects,
        accept_empty=settings.accept_empty,
    )


@contextlib.asynccontextmanager
async def surroundings(
    settings: Settings, standing: BackendSettings, clock: Clock, waiting: Waiting
) -> AsyncIterator[tuple[Backends, Cluster]]:
    """Open and claim the backends of a control plane for the duration of an `async with`.

    Unavailable backends are waited for.

    Raises:
        StartRefused: the backends do not belong together, or not to this data folder.
        StoreError, NsmlError: a backend denies access, or cannot be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        reached = functools.partial(reached_store, settings, standing, clock)
        store = await waiting.until_there(lambda: stack.enter_async_context(reached()))
        files = await open_files(settings)
        claimed = functools.partial(_claimed, settings, standing, clock, store, files)
        yield await waiting.until_there(lambda: stack.enter_async_context(claimed()))


@contextlib.asynccontextmanager
async def _claimed(
    settings: Settings,
    standing: BackendSettings,
    clock: Clock,
    store: KeyValueStore,
    files: Files,
) -> AsyncIterator[tuple[Backends, Cluster]]:
    """One attempt. Each checks everything again: a platform may have been restored while waiting."""
    if standing.objects:
        await files.mark()  # before the history is opened; repeated while they are unavailable
        if fault := await files.unfit():
            raise StartRefused(f"the service of {standing.objects} cannot be used: {fault}")
    async with _ground_on(store, files, settings, clock) as ground:
        claimed = await claim(ground, settings.data, standing, key_file_of(settings))
        await ground.objects.prepare()
        await bring_forward(ground.store)
        post = Poster(allows_private=settings.webhooks_to_private)
        on = replace(
            _stood_on(ground, claimed, settings.data),
            post=post,
            shared_clock=await _shared_clock(settings, ground),
        )
        yield replace(on, folders=_folders(settings, standing)), claimed.cluster


@contextlib.asynccontextmanager
async def opened_ground(
    settings: Settings, standing: BackendSettings, clock: Clock
) -> AsyncIterator[ClaimedBackends]:
    """Open store, history and objects without checking the owner; no other version works with them.

    Raises:
        StartRefused: a newer version wrote the store, or another one uses it.
        StoreError, NsmlError: a backend does not answer.
    """
    async with (
        reached_store(settings, standing, clock) as store,
        _ground_on(store, await open_files(settings), settings, clock) as ground,
    ):
        yield ground


@contextlib.asynccontextmanager
async def _ground_on(
    store: KeyValueStore, files: Files, settings: Settings, clock: Clock
) -> AsyncIterator[ClaimedBackends]:
    looked_at = await look_at(store)
    # Before the history is opened, which migrates an older one.
    longest_s = max(LEASE_ALONE_S, LEASE_OF_SEVERAL_S)
    await wait_for_one_version(looked_at, clock, settings.lease_s or longest_s)
    history = await _open_history(settings, clock)
    try:
        objects = PackedObjects(files, history.packs)
        yield ClaimedBackends(
            store=looked_at,
            history=history,
            objects=objects,
            clock=clock,
            bucket=await _bucket_for_nodes(settings, files),
        )
    finally:
        await history.close()


@contextlib.asynccontextmanager
async def opened_store(
    settings: Settings, standing: BackendSettings, clock: Clock
) -> AsyncIterator[KeyValueStore]:
    """Open the store alone, for the duration of an `async with`.

    Raises:
        StartRefused: there is no such etcd any more, it cannot be checked, or a newer version
            wrote its data.
        StoreError: it does not answer.
    """
    async with reached_store(settings, standing, clock) as store:
        yield await look_at(store)


@contextlib.asynccontextmanager
async def reached_store(
    settings: Settings, standing: BackendSettings, clock: Clock
) -> AsyncIterator[KeyValueStore]:
    """Open the configured store without checking the owner or its contents.

    Raises:
        StartRefused, StoreError: it cannot be reached or used.
    """
    data, kind = settings.data, standing.coordination.kind
    async with contextlib.AsyncExitStack() as stack:
        where: Path | str = data / "store.db"
        if kind == "etcd":
            binary = find_etcd()
            if binary is None:
                raise StartRefused(
                    f"{data} keeps its records in etcd, and no sound etcd is on PATH any more: "
                    "install it again (Debian: etcd-server; versions 3.5.0 to 3.5.4 lose writes)"
                )
            process = EtcdProcess(binary, data / "etcd", clock=clock)
            where = (await stack.enter_async_context(process)).endpoint
        elif kind != "embedded":
            where = kind
            if "https://" in where and settings.etcd_ca is None:
                raise StartRefused(
                    f"the etcd cluster at {where} cannot be checked without the authority of its "
                    "servers: nsml up --etcd-ca FILE, or etcd_ca in the settings"
                )
        store = await stack.enter_async_context(
            open_store(
                where,
                clock=clock,
                root=settings.etcd_root,
                tls=_tls(settings),
                login=_login(settings),
                quota_bytes=settings.etcd_quota_bytes,
            )
        )
        yield store


def key_file_of(settings: Settings) -> Path:
    """Return the path of a shared platform's key."""
    return settings.platform_key or settings.data / KEY_FILE


def _stood_on(ground: ClaimedBackends, claimed: Claimed, data: Path) -> Backends:
    """Return all backends, with the keys of the platform: from its store, or from the data folder."""
    clock, random_bytes = ground.clock, ground.random_bytes
    on = Backends(
        store=ground.store,
        history=ground.history,
        objects=ground.objects,
        authority=_authority(claimed, data, clock),
        vault=_vault(claimed, data, random_bytes),
        clock=clock,
        elapsed=elapsed,
        random_bytes=random_bytes,
        bucket=ground.bucket,
        run=in_thread,
        # No call to our own etcd reports a full disk: it ends, or does not answer.
        disks={"store": data / "etcd"} if (data / "etcd").is_dir() else {},
        restores=claimed.cluster.restores,
    )
    if claimed.key is None:
        return on
    cluster_id = claimed.cluster.id
    return replace(on, keys=SharedKeys(on.store, claimed.key, cluster_id, on.vault, clock=clock))


async def _shared_clock(settings: Settings, ground: ClaimedBackends) -> SharedClock | None:
    """Return the clock of the history's server, read for the first time; None: the history is in a file here."""
    if not settings.history:
        return None
    shared = SharedClock(ground.clock, elapsed, ground.history.packs.now)
    await shared.look()
    return shared


def _folders(settings: Settings, standing: BackendSettings) -> dict[str, Path]:
    """Return the folders that backends write to."""
    data = settings.data
    objects = shared_folder(settings.objects) if settings.objects else data / "objects"
    found = {
        "store": data if standing.coordination.kind == "embedded" else None,
        "history": None if settings.history else data,
        "objects": objects,
    }
    return {part: folder for part, folder in found.items() if folder is not None}


def _authority(claimed: Claimed, data: Path, clock: Clock) -> Authority:
    if claimed.keys is not None:
        return claimed.keys.open_authority(clock)
    return open_authority(data, clock)


def _vault(claimed: Claimed, data: Path, random_bytes: Callable[[int], bytes]) -> Vault:
    if claimed.keys is not None:
        return Vault(claimed.keys.vault, random_bytes)
    return open_vault(data, random_bytes)


async def _open_history(settings: Settings, clock: Clock) -> History:
    if settings.history:
        # Importing it takes longer than a start on SQLite.
        from controlplane.history.postgresql import open_postgresql  # noqa: PLC0415

        return await open_postgresql(
            settings.history, clock=clock, metric_names=settings.session_metric_names
        )
    return await open_history(
        settings.data / "history.db",
        clock=clock,
        run=in_thread,
        metric_names=settings.session_metric_names,
    )


async def open_files(settings: Settings) -> Files:
    """Open the configured object store; StartRefused or OSError if that fails."""
    # A network mount may never answer, and the waiting caller may be stopped.
    return await in_own_thread(lambda: _files_of(settings))


def _files_of(settings: Settings) -> Files:
    if not settings.objects:
        return open_folder(settings.data / "objects", in_thread)
    try:
        # A network mount may never answer: use no thread of the pool.
        return open_shared(
            settings.objects, in_own_thread, service=_service_of(settings), environment=os.environ
        )
    except ValueError as error:
        raise StartRefused(f"objects: {error}") from error


def _service_of(settings: Settings) -> BucketService:
    """Return the settings of the bucket's service."""
    if settings.objects.startswith("gs://"):
        return BucketService(endpoint=settings.gcs_endpoint, credentials=settings.gcs_credentials)
    if settings.objects.startswith("az://"):
        return BucketService(
            endpoint=settings.azure_endpoint,
            account=settings.azure_account,
            credentials=settings.azure_credentials,
        )
    return BucketService(
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        ca=None if settings.s3_ca is None else settings.s3_ca.read_bytes(),
        credentials=settings.s3_credentials,
    )


async def _bucket_for_nodes(settings: Settings, files: Files) -> Bucket | None:
    if not settings.direct_reads or not isinstance(files, BucketFiles):
        return None
    try:
        await files.sign("packs/none", 60.0)
    except ObjectsUnavailable as error:
        # As with a SAS, or a user's credentials at Google: agents would ask again and again.
        _log.warning("objects.no_direct_reads", error=str(error), why=error.why)
        return None
    authority = b"" if settings.s3_ca is None else settings.s3_ca.read_bytes()
    return Bucket(files, authority)


def _login(settings: Settings) -> Login | None:
    """Return our login at an etcd cluster with users.

    Raises:
        StartRefused: there is no password, or others may read it.
    """
    file = settings.etcd_password_file
    if file is None:
        return None
    _password(file)  # fail at the start if it is unreadable
    return Login(user=settings.etcd_user, password=lambda: _password_again(file))


def _password_again(file: Path) -> str:
    """Return the current password; a file that is just being rewritten is a temporary error."""
    try:
        return _password(file)
    except StartRefused as error:
        raise StoreUnavailable(str(error)) from error


def _password(file: Path) -> str:
    try:
        written = read_private(file)
    except OSError as error:
        raise StartRefused(str(error)) from error
    if not written or not written.strip():
        raise StartRefused(f"etcd_password_file: {file} has no password")
    return decoded(written, "replace").strip("\r\n")


def _tls(settings: Settings) -> Tls | None:
    """Return the TLS files for an etcd cluster; None for plain text on this machine."""
    if settings.etcd_ca is None:
        return None
    certificate, key = settings.etcd_certificate, settings.etcd_key
    return Tls(
        ca=settings.etcd_ca.read_bytes(),
        certificate=None if certificate is None else certificate.read_bytes(),
        key=None if key is None else private_files.read_private(str(key)),
    )
