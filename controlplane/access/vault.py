"""The keys that seal users' secrets in the store: a copy of the store reveals none of them.

AES-256-GCM. A sealed value is bound to its owner and name, so that a value moved to another name or
another user does not open there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from controlplane.access.files import read_private, write_private

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from controlplane.access.secret import RandomBytes

KEY_FILE: Final = "secrets.key"
KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class NotOpened(Exception):
    """The sealed value is damaged, of another key, or of another owner or name."""


class Vault:
    """Seals values with the first of its keys, and opens values sealed by any of them.

    Attributes:
        key_id: identifies the first key without revealing it.
        has_older_keys: whether there are others, to be removed.
    """

    def __init__(self, keys: Sequence[bytes], random_bytes: RandomBytes) -> None:
        self._random_bytes = random_bytes
        self._keys: tuple[bytes, ...] = ()
        self._changed = asyncio.Event()
        self.take(keys)

    def take(self, keys: Sequence[bytes]) -> bool:
        """Replace the keys; False if they are unchanged."""
        if tuple(keys) == self._keys:
            return False
        self._keys = tuple(keys)
        self._ciphers = [AESGCM(key) for key in keys]
        self.key_id = hashlib.sha256(b"nsml secrets\0" + keys[0]).hexdigest()[:16]
        self.has_older_keys = len(keys) > 1
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def changed(self) -> None:
        """Wait until the keys change."""
        await self._changed.wait()

    def derive(self, purpose: str) -> str:
        """Return a secret for this purpose, the same from every control plane while the first key stays."""
        return hmac.new(
            self._keys[0], f"nsml derived\0{purpose}".encode(), hashlib.sha256
        ).hexdigest()

    def seal(self, value: bytes, *, owner: str, name: str) -> bytes:
        """Seal a value for this owner and name."""
        # Random: 96 bits do not collide for the few values that are ever set.
        nonce = self._random_bytes(_NONCE_BYTES)
        return nonce + self._ciphers[0].encrypt(nonce, value, _place(owner, name))

    def open(self, sealed: bytes, *, owner: str, name: str) -> bytes:
        """Open a sealed value.

        Raises:
            NotOpened: it was sealed with none of the keys, or not for this owner and name.
        """
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        for cipher in self._ciphers:
            with contextlib.suppress(InvalidTag, ValueError):
                return cipher.decrypt(nonce, rest, _place(owner, name))
        raise NotOpened("it was not sealed with our keys, for this place")


def open_vault(folder: Path, random_bytes: RandomBytes) -> Vault:
    """Open the vault with the keys in `folder`, one per line; the first start creates one.

    Without the file all sealed values are lost, and must be set again. A new key is put before the
    others, which can be removed once all values are resealed (`UserSecrets.renew`). The keys of a
    shared platform are in its store instead: see `platform_keys`.

    Raises:
        PermissionError: others may read the keys.
        ValueError: a line there is not a key.
    """
    keys = read_vault_keys(folder)
    if not keys:
        keys = (random_bytes(KEY_BYTES),)
        write_private(folder / KEY_FILE, keys[0].hex().encode() + b"\n")
    return Vault(keys, random_bytes)


def read_vault_keys(folder: Path) -> tuple[bytes, ...]:
    """Read the keys in `folder`; none if there is no file. Raises as `open_vault`."""
    path = folder / KEY_FILE
    written = read_private(path)
    if written is None:
        return ()
    try:
        keys = [bytes.fromhex(line) for line in written.decode("ascii").split()]
    except ValueError:
        keys = []
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"{path} has a line that is not a key of {KEY_BYTES} bytes")
    return tuple(keys)


def make_vault(random_bytes: RandomBytes) -> Vault:
    """Create a vault in memory only."""
    return Vault([random_bytes(KEY_BYTES)], random_bytes)


def _place(owner: str, name: str) -> bytes:
    return f"nsml secret\0{owner}\0{name}".encode()
