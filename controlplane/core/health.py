"""Health of one control plane's parts: observed by their calls, and probed without calls."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from controlplane.core.store_health import (
    HISTORY_KINDS,
    OBJECTS_KINDS,
    STORE_KINDS,
    Gauge,
    ObservedStore,
    ProbedStore,
    observed_history,
    observed_objects,
)
from controlplane.domain.conditions import ConditionName
from controlplane.state.conditions import Conditions
from controlplane.stored import etcd_codec
from nsml.common.clock import in_own_thread
from nsml.content.digests import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from controlplane.core.store_health import Kinds
    from controlplane.history.sql.history import History
    from controlplane.objects.interface import ObjectStore
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

LEAST_FREE_BYTES: Final = 16 << 20
"""With less free space a disk of ours counts as full; etcd exits when it cannot write."""

_NOBODY: Final = "probe"
_BLOB: Final = b"nsml probe"


class Health:
    """The parts with observed calls, and the resulting conditions.

    Args:
        disks: folders with constantly checked disks, by content.
        folders: of parts that report a full disk themselves, by part; the disk is checked then,
            until there is room.
    """

    def __init__(
        self,
        *,
        store: KeyValueStore,
        history: History,
        objects: ObjectStore,
        clock: Clock,
        disks: Mapping[str, Path],
        folders: Mapping[str, Path],
    ) -> None:
        self.conditions = Conditions(clock)
        self._clock = clock
        self._disks = dict(disks)
        self._folders = dict(folders)
        self._store_gauge = self._gauge("store", STORE_KINDS)
        self._history_gauge = self._gauge("history", HISTORY_KINDS)
        self._objects_gauge = self._gauge("objects", OBJECTS_KINDS)
        self.store: KeyValueStore = ObservedStore(store, self._store_gauge)
        self.history = observed_history(history, self._history_gauge)
        self.objects = observed_objects(objects, self._objects_gauge)

    async def touch(self) -> None:
        """Write a few bytes to the store, to test whether it accepts writes."""
        await self.store.commit(etcd_codec.PROBE)

    def parts(self) -> tuple[ProbedStore, ...]:
        """Return the parts to probe without calls."""
        blob = digest_of(_BLOB)
        parts = (
            ProbedStore(
                name="store",
                gauge=self._store_gauge,
                read=lambda: self.store.get(etcd_codec.CLUSTER),
                write=self.touch,
            ),
            ProbedStore(
                name="history",
                gauge=self._history_gauge,
                read=lambda: self.history.catalogue.session(_NOBODY),
                write=self.history.probe,
            ),
            ProbedStore(
                name="objects",
                gauge=self._objects_gauge,
                read=lambda: self.objects.has_missing([blob]),
                write=lambda: self.objects.put(blob, _BLOB),
            ),
        )
        return tuple(self._looking(part) for part in parts)

    def known_at(self) -> float:
        """Return when the state of sessions and nodes was last current, Unix seconds."""
        if self.conditions.stands(ConditionName.COORDINATION_GONE):
            return self._store_gauge.answered_at
        return self._clock.time()

    def look_at_disks(self) -> None:
        """Set the condition of full disks, for parts that do not report it themselves."""
        for subject, folder in self._disks.items():
            try:
                found = os.statvfs(folder)
            except OSError:
                continue  # its owner's calls report the error
            short = _shortage(found, folder)
            self.conditions.set(
                ConditionName.DISK_FULL, subject, stands=bool(short), evidence=short
            )

    def _gauge(self, part: str, kinds: Kinds) -> Gauge:
        has_disk = part in self._folders
        return Gauge(self.conditions, self._clock, subject=part, kinds=kinds, has_disk=has_disk)

    def _looking(self, part: ProbedStore) -> ProbedStore:
        """Add a check of the disk after a write: a write of a few bytes may just fit."""
        folder = self._folders.get(part.name)
        if folder is None:
            return part

        async def write() -> None:
            await part.write()
            # A network mount may not answer.
            found = await in_own_thread(lambda: os.statvfs(folder))
            part.gauge.looked(_shortage(found, folder))

        return replace(part, write=write)


def _shortage(found: os.statvfs_result, folder: Path) -> str:
    """Say how much is free, if the disk counts as full, else ""."""
    free = found.f_bavail * found.f_frsize
    return f"{free} bytes are free on the disk of {folder}" if free < LEAST_FREE_BYTES else ""
