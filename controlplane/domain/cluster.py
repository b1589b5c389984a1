"""The platform as its store knows it: who it is, and what else belongs to it."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    id: str
    created_at: float
    coordination: str
    is_shared: bool = False
    history: str = "sqlite"
    objects: str = "folder"
    history_mark: str = ""
    objects_mark: str = ""
