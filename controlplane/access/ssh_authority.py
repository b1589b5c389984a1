"""Keys of the platform for ssh: its jump hosts' own, and the one that certifies host keys of sessions.

Both are derived from the key of the platform's authority, so every control plane has them, and backups do, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
)

if TYPE_CHECKING:
    from controlplane.access.authority import Authority
    from nsml.common.clock import Clock

_LIFE_S: Final = 3600.0
"""How long before and after its issue a certificate is valid: clocks differ, and ssh looks at it once, at its start."""


class SshAuthority:
    """Vouches for ssh servers."""

    def __init__(self, authority: Authority, clock: Clock) -> None:
        self._clock = clock
        self._key = _key(authority.derived_key("ssh host authority"))
        self.jump_host_key = authority.derived_key("ssh jump host")
        """Private half of the key of jump hosts (Ed25519, 32 bytes)."""

    @property
    def public_key(self) -> str:
        """Of who signs, as in known_hosts: type and key."""
        return _public(self._key)

    @property
    def jump_host_public_key(self) -> str:
        """Of jump hosts, likewise."""
        return _public(_key(self.jump_host_key))

    def certify(self, host_key: bytes, host: str) -> str:
        """A certificate for a host key, by its private half, under one name; as in a file that ends in -cert.pub."""
        now = self._clock.time()
        signed = (
            SSHCertificateBuilder()
            .public_key(_key(host_key).public_key())
            .type(SSHCertificateType.HOST)
            .key_id(host.encode())
            .valid_principals([host.encode()])
            .valid_after(round(now - _LIFE_S))
            .valid_before(round(now + _LIFE_S))
            .sign(self._key)
        )
        return signed.public_bytes().decode()


def _key(private: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(private)


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
