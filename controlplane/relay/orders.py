"""What a control plane tells its relay: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """Two ends of a tunnel may come, each with one of these keys."""

    tunnel_id: str
    user: str
    keys: tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The tunnel is over."""

    tunnel_id: str


def encode(order: Expect | Forget) -> bytes:
    """One line."""
    said = asdict(order)
    if isinstance(order, Expect):
        said["keys"] = [key.hex() for key in order.keys]
    return json.dumps(said).encode() + b"\n"


def decode(line: bytes) -> Expect | Forget:
    """What `encode` gave."""
    said = json.loads(line)
    if "keys" not in said:
        return Forget(**said)
    one, other = map(bytes.fromhex, said.pop("keys"))
    return Expect(**said, keys=(one, other))
