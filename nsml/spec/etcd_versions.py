"""Which etcd servers may be relied on; standard library only."""

from __future__ import annotations

import re

UNSOUND_VERSIONS = ((3, 5, 0), (3, 5, 4))
"""Between these two a member that is killed can lose acknowledged writes."""
OLDEST_VERSION = (3, 4, 0)


def why_unsound(version: str) -> str:
    """Why a server of this version is not to be used; empty when it is sound."""
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
