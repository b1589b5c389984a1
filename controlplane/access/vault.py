"""The key under which users' secrets lie in the store: who copies the store has none of them.

AES-256-GCM. What is sealed says whose it is and what it is called, so that a value that somebody
puts under another name, or another user's, does not open there.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from controlplane.access.files import read_private, write_private

if TYPE_CHECKING:
    from pathlib import Path

    from controlplane.access.secret import RandomBytes

KEY_FILE: Final = "secrets.key"
KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class NotOpened(Exception):
    """What is sealed is damaged, of another key, or in a place that is not its own."""


class Vault:
    """Seals and opens values with one key."""

    def __init__(self, key: bytes, random_bytes: RandomBytes) -> None:
        self._cipher = AESGCM(key)
        self._random_bytes = random_bytes
        self.key_id = hashlib.sha256(b"nsml secrets\0" + key).hexdigest()[:16]
        """Tells keys apart and says nothing of them."""

    def seal(self, value: bytes, *, owner: str, name: str) -> bytes:
        """The value as only this key opens it, under this owner and name."""
        # Random: 96 bits for the few values that are ever set meet no other.
        nonce = self._random_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value, _place(owner, name))

    def open(self, sealed: bytes, *, owner: str, name: str) -> bytes:
        """The value again.

        Raises:
            NotOpened: it was not sealed with this key, for this owner and name.
        """
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, rest, _place(owner, name))
        except (InvalidTag, ValueError) as error:
            raise NotOpened("it was not sealed with this key, for this place") from error


def open_vault(folder: Path, random_bytes: RandomBytes) -> Vault:
    """The vault whose key lies in `folder`, which gets one at the first start.

    As with the authority: control planes that share a store share the key, so copy the file to each
    of them. Without it what was sealed is lost, and has to be set again.

    Raises:
        PermissionError: others may read the key.
        ValueError: what lies there is not a key.
    """
    path = folder / KEY_FILE
    written = read_private(path)
    if written is None:
        key = random_bytes(KEY_BYTES)
        write_private(path, key.hex().encode() + b"\n")
        return Vault(key, random_bytes)
    try:
        key = bytes.fromhex(written.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} is not a key of {KEY_BYTES} bytes")
    return Vault(key, random_bytes)


def make_vault(random_bytes: RandomBytes) -> Vault:
    """A vault whose key is written nowhere."""
    return Vault(random_bytes(KEY_BYTES), random_bytes)


def _place(owner: str, name: str) -> bytes:
    return f"nsml secret\0{owner}\0{name}".encode()
