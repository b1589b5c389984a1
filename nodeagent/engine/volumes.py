"""Volumes that images declare (`VOLUME`): an engine stores them outside of a container, without limits.

Each is covered by a mount: in sessions by a folder of the replica, in builds by a tmpfs of limited size. The
image's files at that path are hidden.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from nodeagent.engine.client import EngineRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any

MOST_VOLUMES = 32

_SYSTEM = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr"}
)
"""Top-level folders without which no program starts; folders in them may be volumes."""


def volume_targets(declared: Iterable[str], mounted: Collection[str] = ()) -> list[str]:
    """Return the paths to mount over, normalized and in order, without those that are `mounted` anyway.

    Raises:
        EngineRefused: no program could run with them, or there are too many.
    """
    targets = set()
    for path in declared:
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path or len(path) > 1024:
            raise EngineRefused(
                f"the image declares a volume at {path[:80]!r}, which is not a path"
            )
        whole = "/" + posixpath.normpath(path).strip("/")
        top, _, below = whole[1:].partition("/")
        if not top or (top in _SYSTEM and not below) or top in {"proc", "sys"}:
            raise EngineRefused(
                f"the image declares {whole[:80]} as a volume, which would hide its own system: use"
                " an image without that VOLUME"
            )
        if whole not in mounted:
            targets.add(whole)
    if len(targets) > MOST_VOLUMES:
        raise EngineRefused(f"the image declares {len(targets)} volumes: at most {MOST_VOLUMES}")
    return sorted(targets)


def covered_volumes(
    declared: Iterable[str], mounted: Collection[str] = (), *, most_bytes: int = 0
) -> list[dict[str, Any]]:
    """Return a tmpfs mount over each, in the engine's format, so that it creates no volumes and copies nothing into them.

    Raises EngineRefused as `volume_targets`.
    """
    size = {"TmpfsOptions": {"SizeBytes": most_bytes}} if most_bytes else {}
    return [{"Type": "tmpfs", "Target": path, **size} for path in volume_targets(declared, mounted)]
