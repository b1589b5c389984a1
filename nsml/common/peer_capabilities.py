"""Capabilities to read a dataset version from another node: issued by control planes, checked by agents.

Each agent shares a key of its own with the control plane alone. So a capability for one node is invalid at another, and a
compromised node can give access only to its own data.
"""

from __future__ import annotations

import hmac
from typing import Final

KEY_BYTES: Final = 32


def mac_of(key: bytes, *, root: str, node: str, expires_at: int) -> bytes:
    """Return the MAC of a capability for the dataset version `root` and the reading node; `expires_at` in Unix seconds."""
    return hmac.digest(key, f"nsml peer\n{root}\n{node}\n{expires_at}".encode(), "sha256")


def is_valid(mac: bytes, key: bytes, *, root: str, node: str, expires_at: int, now: float) -> bool:
    """Return whether a capability has this key's MAC, is for this node, and has not expired at `now`."""
    expected = mac_of(key, root=root, node=node, expires_at=expires_at)
    return hmac.compare_digest(mac, expected) and now < expires_at
