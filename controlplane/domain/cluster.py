"""The platform as its store knows it: who it is, what belongs to it, of which version its data are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DATA_VERSION: Final = 2
"""Of what this version writes into the store. 1: nsml 0.1. 2: says its version; may be restored."""

LIFE: Final = 1 << 40
"""Revisions from one restore to the next: more than a store takes in three years of full load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """The platform was put back from a backup.

    Attributes:
        after: the last revision that the backup has; what came after it is lost.
        offset: added to the revisions of the store since. No earlier revision was so high.
        restored_at: Unix seconds.
    """

    after: int
    offset: int
    restored_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Who lives in a store.

    Attributes:
        created_at: Unix seconds.
        coordination: "etcd" or "embedded".
        is_shared: any number of control planes may serve it.
        history: "sqlite" or "postgresql".
        objects: "folder", that of its one control plane, or "shared".
        history_mark, objects_mark: what these are marked with; "" until the first start is through.
        data_version, written_by: of what the store holds; the version of nsml that made it so.
        restores: what it was restored from, oldest first.
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
        """What is added to the store's own revisions."""
        return self.restores[-1].offset if self.restores else 0


def next_offset(revision: int) -> int:
    """The offset of a store that goes on after a backup whose last revision is this one."""
    return (revision // LIFE + 1) * LIFE


def is_lost(revision: int, restores: tuple[Restore, ...]) -> bool:
    """Whether a revision was made between a backup and the loss of its store."""
    return any(one.after < revision <= one.offset for one in restores)
