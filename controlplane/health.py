"""How the parts of one control plane do: each observed by its calls, and asked where nobody calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from controlplane.domain.conditions import ConditionName
from controlplane.loops.probing import Part
from controlplane.operations import records
from controlplane.operations.conditions import Conditions
from controlplane.operations.observing import (
    HISTORY_KINDS,
    OBJECTS_KINDS,
    STORE_KINDS,
    Gauge,
    ObservedStore,
    observed_history,
    observed_objects,
)
from controlplane.store.interface import Put, Transaction
from nsml.content.digests import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from controlplane.history.interface import History
    from controlplane.objects.interface import ObjectStore
    from controlplane.store.interface import KeyValueStore
    from nsml.clock import Clock

LEAST_FREE_BYTES: Final = 16 << 20
"""With less a disk of ours counts as full; etcd ends when it cannot write."""

_NOBODY: Final = "probe"
_BLOB: Final = b"nsml probe"


class Health:
    """The parts as everybody is to call them, and the conditions that their calls show.

    Args:
        disks: folders whose disk is looked at, by what lies there.
    """

    def __init__(
        self,
        *,
        store: KeyValueStore,
        history: History,
        objects: ObjectStore,
        clock: Clock,
        disks: Mapping[str, Path],
    ) -> None:
        self.conditions = Conditions(clock)
        self._clock = clock
        self._disks = dict(disks)
        self._store_gauge = Gauge(self.conditions, clock, subject="store", kinds=STORE_KINDS)
        self._history_gauge = Gauge(self.conditions, clock, subject="history", kinds=HISTORY_KINDS)
        self._objects_gauge = Gauge(self.conditions, clock, subject="objects", kinds=OBJECTS_KINDS)
        self.store: KeyValueStore = ObservedStore(store, self._store_gauge)
        self.history = observed_history(history, self._history_gauge)
        self.objects = observed_objects(objects, self._objects_gauge)

    async def touch(self) -> None:
        """Write a few bytes to the store, for what that says of it."""
        await self.store.commit(Transaction(success=(Put(key=records.PROBE, value=b""),)))

    def parts(self) -> tuple[Part, ...]:
        """What is asked where nobody calls."""
        blob = digest_of(_BLOB)
        return (
            Part(
                name="store",
                gauge=self._store_gauge,
                read=lambda: self.store.get(records.CLUSTER),
                write=self.touch,
            ),
            Part(
                name="history",
                gauge=self._history_gauge,
                read=lambda: self.history.catalogue.session(_NOBODY),
                write=self.history.probe,
            ),
            Part(
                name="objects",
                gauge=self._objects_gauge,
                read=lambda: self.objects.has_missing([blob]),
                write=lambda: self.objects.put(blob, _BLOB),
            ),
        )

    def known_at(self) -> float:
        """Unix seconds when what is known of sessions and nodes was last known to be so."""
        if self.conditions.stands(ConditionName.COORDINATION_GONE):
            return self._store_gauge.answered_at
        return self._clock.time()

    def look_at_disks(self) -> None:
        """Whether the disks of those that cannot say so themselves are full."""
        for subject, folder in self._disks.items():
            try:
                found = os.statvfs(folder)
            except OSError:
                continue  # what is wrong with it, its owner's calls tell
            free = found.f_bavail * found.f_frsize
            self.conditions.set(
                ConditionName.DISK_FULL,
                subject,
                stands=free < LEAST_FREE_BYTES,
                evidence=f"{free} bytes are free where {folder} lies",
            )
