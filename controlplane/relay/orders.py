"""Orders of a control plane to its relay: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """Accept the two ends of a tunnel, each with one of these keys."""

    tunnel_id: str
    user: str
    keys: tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The tunnel has ended."""

    tunnel_id: str


def encode(order: Expect | Forget) -> bytes:
    """Return an order as one line."""
    said = asdict(order)
    if isinstance(order, Expect):
        said["keys"] = [key.hex() for key in order.keys]
    return json.dumps(said).encode() + b"\n"


def decode(line: bytes) -> Expect | Forget:
    """Return the order of a line."""
    said = json.loads(line)
    if "keys" not in said:
        return Forget(**said)
    one, other = map(bytes.fromhex, said.pop("keys"))
    return Expect(**said, keys=(one, other))
