"""What lets one node read a dataset version from another: control planes give it, agents check it.

Each agent tells the control plane a key of its own, and nobody else. So no capability of one node counts at another, and a
node that is taken over can give access to nothing but what it has itself.
"""

from __future__ import annotations

import hmac
from typing import Final

KEY_BYTES: Final = 32


def mac_of(key: bytes, *, root: str, node: str, expires_at: int) -> bytes:
    """Of a capability for the dataset version `root` and the node that asks; `expires_at` in Unix seconds."""
    return hmac.digest(key, f"nsml peer\n{root}\n{node}\n{expires_at}".encode(), "sha256")


def is_valid(mac: bytes, key: bytes, *, root: str, node: str, expires_at: int, now: float) -> bool:
    """Whether a capability is of this key, for this node, and counts `now`."""
    expected = mac_of(key, root=root, node=node, expires_at=expires_at)
    return hmac.compare_digest(mac, expected) and now < expires_at
