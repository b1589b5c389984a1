"""Packed objects for tests, each with an index of its own in memory unless one is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.history.sql.packs import SqlPacks
from controlplane.history.sqlite.database import MEMORY, open_database
from controlplane.objects.folder_files import open_folder
from controlplane.objects.packed import PackedObjects
from controlplane.objects.service import BucketService
from controlplane.objects.shared_files import open_shared
from nsml.common.clock import SystemClock, inline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nsml.common.clock import Clock, Offload


def pack_index(clock: Clock | None = None) -> SqlPacks:
    """An index that knows no pack."""
    return SqlPacks(open_database(MEMORY, inline), clock or SystemClock())


def folder_objects(folder: Path, run: Offload, index: SqlPacks | None = None) -> PackedObjects:
    """Objects in a folder of this process."""
    return PackedObjects(open_folder(folder, run), index or pack_index())


def shared_objects(
    url: str,
    run: Offload,
    *,
    service: BucketService | None = None,
    environment: Mapping[str, str] | None = None,
    index: SqlPacks | None = None,
) -> PackedObjects:
    """Objects that several processes share."""
    files = open_shared(url, run, service=service or BucketService(), environment=environment or {})
    return PackedObjects(files, index or pack_index())
