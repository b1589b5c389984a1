"""Keys of the platform for ssh: its jump hosts' own, and those that certify host keys of sessions.

All are derived from the key of the platform's authority, so every control plane has them, and backups do, too.

There is a certifying key per user, which only that user's clients trust. The program in a session knows its host key,
and a host such as `last.nsml` is a different session for each user: with one key for all, a user with a certificate for
it could impersonate other users' sessions, if the jump host connected their clients to it.
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
    from controlplane.domain.identity import User
    from nsml.common.clock import Clock

_LIFE_S: Final = 3600.0
"""Validity of a certificate before and after its issue: clocks differ, and ssh checks it once, at its start."""


class SshAuthority:
    """Certifies ssh servers."""

    def __init__(self, authority: Authority, clock: Clock) -> None:
        self._clock = clock
        self._authority = authority
        self.jump_host_key = authority.derived_key("ssh jump host")
        """Private half of the key of jump hosts (Ed25519, 32 bytes)."""

    def public_key(self, user: User) -> str:
        """Return the certifying key for a user's clients, as in known_hosts: type and key."""
        return _public(self._key_for(user))

    @property
    def jump_host_public_key(self) -> str:
        """The key of jump hosts, likewise."""
        return _public(_key(self.jump_host_key))

    def certify(self, host_key: bytes, host: str, user: User) -> str:
        """Certify a host key, given its private half, under one name, for one user's clients.

        Formatted as a -cert.pub file.
        """
        now = self._clock.time()
        signed = (
            SSHCertificateBuilder()
            .public_key(_key(host_key).public_key())
            .type(SSHCertificateType.HOST)
            .key_id(host.encode())
            .valid_principals([host.encode()])
            .valid_after(round(now - _LIFE_S))
            .valid_before(round(now + _LIFE_S))
            .sign(self._key_for(user))
        )
        return signed.public_bytes().decode()

    def _key_for(self, user: User) -> Ed25519PrivateKey:
        return _key(self._authority.derived_key(f"ssh host authority for user {user.id}"))


def _key(private: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(private)


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
