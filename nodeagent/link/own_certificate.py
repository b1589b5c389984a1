"""A certificate of this process alone, which others pin after the control plane has sent it to them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Final

NAME: Final = "nsml-agent"
"""Its name: clients that pin it may verify this name at any address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCertificate:
    """PEM, except `der`, the certificate as DER."""

    certificate: bytes
    der: bytes
    key: bytes = field(repr=False)


def make_own_certificate() -> OwnCertificate:
    """Return a new key with its self-signed certificate."""
    # Slow imports, needed only by agents that accept connections.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Valid for as long as this process lives, whatever clocks show: it is announced anew each time.
        .not_valid_before(dt.datetime(2000, 1, 1))  # noqa: DTZ001
        .not_valid_after(dt.datetime(2100, 1, 1))  # noqa: DTZ001
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return OwnCertificate(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        der=certificate.public_bytes(serialization.Encoding.DER),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
