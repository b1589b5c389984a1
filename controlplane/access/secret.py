"""Secrets: 256 random bits, kept and logged as fingerprints only."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

PREFIX = "nsml_"
"""Prefix of every secret, so that scanners for leaked secrets can find them."""

SECRET_BYTES = 32

_LONGEST = 128

RandomBytes = Callable[[int], bytes]
"""Returns that many random bytes: `secrets.token_bytes` outside of tests."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A token or the secret half of a join token; its text never shows in a repr.

    Attributes:
        text: presented by its holder.
        fingerprint: SHA-256 in hexadecimal, stored instead of the text. A plain hash is enough, since the text
            has 256 random bits; a slow one would only help to flood the server.
    """

    text: str = field(repr=False)
    fingerprint: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", hashlib.sha256(self.text.encode()).hexdigest())


def new_secret(random_bytes: RandomBytes) -> Secret:
    """Create a secret."""
    body = base64.urlsafe_b64encode(random_bytes(SECRET_BYTES)).rstrip(b"=")
    return Secret(PREFIX + body.decode())


def new_id(kind: str, random_bytes: RandomBytes) -> str:
    """Create a unique id: `kind`, a dot and 80 random bits."""
    return f"{kind}.{base64.b32encode(random_bytes(10)).decode().lower()}"


def parse_secret(text: str) -> Secret | None:
    """Parse a presented secret; None if it cannot be one of ours."""
    if not text.startswith(PREFIX) or len(text) > _LONGEST or not text.isascii():
        return None
    return Secret(text)


def short(fingerprint: str) -> str:
    """Return the part of a fingerprint that logs show."""
    return fingerprint[:8]
