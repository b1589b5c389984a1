"""Supported etcd versions; standard library only."""

from __future__ import annotations

import re

UNSOUND_VERSIONS = ((3, 5, 0), (3, 5, 4))
"""From the first to the second of these, a killed member can lose acknowledged writes."""
OLDEST_VERSION = (3, 4, 0)


def why_unsound(version: str) -> str:
    """Return why a server of this version must not be used; "" if it is sound."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        return f"the etcd server calls its version {version!r}: not one that is known"
    number = tuple(map(int, found.groups()))
    if UNSOUND_VERSIONS[0] <= number <= UNSOUND_VERSIONS[1]:
        return (
            f"etcd {version} can lose acknowledged writes when it is killed (etcd issues 13766 "
            "and 14370): use 3.4.21 or later of 3.4, or 3.5.5 or later"
        )
    if number < OLDEST_VERSION:
        return f"etcd {version} is too old: use 3.4.21 or later"
    return ""
