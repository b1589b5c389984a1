"""A certificate authority of a few hours for etcd and PostgreSQL: both are reached over TLS alone."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LASTS = dt.timedelta(days=7)


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """PEM files of servers, one certificate for all of them."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, addresses: Sequence[str], *, now: dt.datetime) -> ServerFiles:
    """An authority, and a certificate by it for servers at these addresses."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name, server_name = _name("chaos"), _name("chaos server")
    authority = (
        _builder(authority_name, authority_name, authority_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    )
    server = (
        _builder(server_name, authority_name, server_key, now)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    files = ServerFiles(folder / "servers-ca.pem", folder / "servers.pem", folder / "servers.key")
    files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    files.key.touch(mode=0o600)
    files.key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LASTS)
        .not_valid_after(now + _LASTS)
    )
