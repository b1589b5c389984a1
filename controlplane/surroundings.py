"""What a control plane stands on, opened as its settings say: store, history, objects, keys."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from controlplane.access.authority import open_authority
from controlplane.access.vault import open_vault
from controlplane.claim import StartRefused
from controlplane.history.sqlite import open_history
from controlplane.objects.stored import open_folder
from controlplane.plane import Surroundings
from controlplane.store.etcd_members import Tls
from controlplane.store.etcd_process import EtcdProcess, find_etcd
from controlplane.store.open import open_store
from nsml.clock import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from controlplane.claim import Coordination
    from controlplane.config import Settings
    from nsml.clock import Clock


@contextlib.asynccontextmanager
async def surroundings(
    settings: Settings, coordination: Coordination, clock: Clock
) -> AsyncIterator[Surroundings]:
    """Store, history and objects of a data folder, opened for the length of an `async with`."""
    data = settings.data
    async with contextlib.AsyncExitStack() as stack:
        where: Path | str = data / "store.db"
        if coordination.kind == "etcd":
            binary = find_etcd()
            if binary is None:
                raise StartRefused(
                    f"{data} keeps its records in etcd, and no sound etcd is on PATH any more: "
                    "install it again (Debian: etcd-server; versions 3.5.0 to 3.5.4 lose writes)"
                )
            process = EtcdProcess(binary, data / "etcd", clock=clock)
            where = (await stack.enter_async_context(process)).endpoint
        elif coordination.kind != "embedded":
            where = coordination.kind
            if "https://" in where and settings.etcd_ca is None:
                raise StartRefused(
                    f"the etcd cluster at {where} cannot be checked without the authority of its "
                    "servers: nsml up --etcd-ca FILE, or etcd_ca in the settings"
                )
        store = await stack.enter_async_context(
            open_store(where, clock=clock, root=settings.etcd_root, tls=_tls(settings))
        )
        history = await open_history(data / "history.db", clock=clock, run=in_thread)
        stack.push_async_callback(history.close)
        yield Surroundings(
            store=store,
            history=history,
            objects=open_folder(data / "objects", in_thread),
            authority=open_authority(data, clock),
            vault=open_vault(data, secrets.token_bytes),
            clock=clock,
            random_bytes=secrets.token_bytes,
            run=in_thread,
        )


def _tls(settings: Settings) -> Tls | None:
    """What encrypts the way to an etcd cluster; None for plain text on this machine."""
    if settings.etcd_ca is None:
        return None
    certificate, key = settings.etcd_certificate, settings.etcd_key
    return Tls(
        ca=settings.etcd_ca.read_bytes(),
        certificate=None if certificate is None else certificate.read_bytes(),
        key=None if key is None else key.read_bytes(),
    )
