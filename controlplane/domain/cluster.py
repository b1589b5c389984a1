"""The platform's record in its store: its identity, its other stores, the version of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DATA_VERSION: Final = 2
"""Format of the store's data. 1: nsml 0.1. 2: records its version; may be restored."""

LIFE: Final = 1 << 40
"""Revisions reserved per restore: more than three years of full load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """The platform was restored from a backup.

    Attributes:
        after: the last revision in the backup; later ones are lost.
        offset: added to the revisions of the store since; higher than any earlier revision.
        restored_at: Unix seconds.
    """

    after: int
    offset: int
    restored_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The platform that owns a store.

    Attributes:
        created_at: Unix seconds.
        coordination: "etcd" or "embedded".
        is_shared: any number of control planes may serve it.
        history: "sqlite" or "postgresql".
        objects: "folder", a folder of its only control plane, or "shared".
        history_mark, objects_mark: marks of these stores; "" until the first start is complete.
        data_version, written_by: format of the store's data; the version of nsml that wrote it.
        restores: its restores, oldest first.
    """

    id: str
    created_at: float
    coordination: str
    is_shared: bool = False
    history: str = "sqlite"
    objects: str = "folder"
    history_mark: str = ""
    objects_mark: str = ""
    data_version: int = DATA_VERSION
    written_by: str = ""
    restores: tuple[Restore, ...] = ()

    @property
    def offset(self) -> int:
        """Added to the store's own revisions."""
        return self.restores[-1].offset if self.restores else 0


def next_offset(revision: int) -> int:
    """Return the offset of a store restored from a backup with this last revision."""
    return (revision // LIFE + 1) * LIFE


def is_lost(revision: int, restores: tuple[Restore, ...]) -> bool:
    """Return whether a revision was made between a backup and the loss of its store."""
    return any(one.after < revision <= one.offset for one in restores)
