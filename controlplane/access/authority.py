"""The platform's certificate authority: created at first start, signs nodes and our own listeners.

ECDSA on P-256 throughout. The private key never leaves the authority's folder. Signed certificates
are valid for 90 days and are renewed when a third of that is left. Nodes get client certificates
and listeners server certificates, so that neither can pose as the other.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane.access.files import read_private, write_private
from controlplane.domain.errors import InvalidRequest
from controlplane.domain.names import check_node

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nsml.common.clock import Clock

SERVER_NAME = "nsml-controlplane"
"""A name in every certificate of a listener. Only control planes get server certificates from this
authority, so clients that pin it may verify this name at any address."""

PEER_PREFIX = "controlplane:"
"""Prefix of the common name in certificates for calls between control planes: no node's name
has a colon. The rest is the member's name."""

CERTIFICATE_LIFE = dt.timedelta(days=90)
RENEW_WHEN_LEFT = dt.timedelta(days=30)
_AUTHORITY_LIFE = dt.timedelta(days=3650)
_CLOCK_SKEW = dt.timedelta(days=1)
"""How far a clock may be off, here or where a certificate is checked: one that is not valid yet ends all connections.

A machine that takes its clock for local time starts hours ahead."""
_LARGEST_REQUEST = 16 * 1024
_LONGEST_COMMON_NAME = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate chain and its private key, PEM; the key never shows in a repr."""

    chain: bytes
    key: bytes = field(repr=False)
    expires_at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedNode:
    """A joining node's certificate (PEM), its expiry (Unix seconds), and its key's fingerprint."""

    certificate: bytes
    key_fingerprint: str
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCertificate:
    """Fields of a node's certificate: the fingerprint of its key, and its expiry."""

    key_fingerprint: str
    expires_at: float


class Authority:
    """Signs certificate requests with the platform's key."""

    def __init__(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, clock: Clock
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._clock = clock

    @property
    def pem(self) -> bytes:
        """The authority's certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def expires_at(self) -> float:
        """Expiry of that certificate, Unix seconds."""
        return self._certificate.not_valid_after_utc.timestamp()

    @property
    def digest(self) -> str:
        """SHA-256 of the certificate's DER form, hexadecimal, as in join tokens."""
        return hashlib.sha256(
            self._certificate.public_bytes(serialization.Encoding.DER)
        ).hexdigest()

    def sign_node(self, node: str, signing_request: bytes) -> SignedNode:
        """Sign a node's request; only its public key is taken from it, never its subject.

        Raises:
            InvalidRequest: it is not a request, or not signed with its own key.
        """
        check_node(node)  # refuses any other name, above all that of a control plane
        public_key = _public_key_of(signing_request)
        certificate = self._sign(node, public_key, [x509.DNSName(node)], server=False)
        return SignedNode(
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            key_fingerprint=_fingerprint(public_key),
            expires_at=certificate.not_valid_after_utc.timestamp(),
        )

    def issue_server(self, hosts: Iterable[str]) -> KeyPair:
        """Create a key and a certificate for listeners at `hosts`."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_general_name(host) for host in dict.fromkeys([SERVER_NAME, *hosts])]
        certificate = self._sign(SERVER_NAME, key.public_key(), names, server=True)
        return KeyPair(
            chain=certificate.public_bytes(serialization.Encoding.PEM) + self.pem,
            key=_pem_of(key),
            expires_at=certificate.not_valid_after_utc,
        )

    def issue_peer(self, member: str) -> KeyPair:
        """Create a key and a certificate for a control plane's calls to others."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = (PEER_PREFIX + member)[:_LONGEST_COMMON_NAME]
        certificate = self._sign(name, key.public_key(), [x509.DNSName(SERVER_NAME)], server=False)
        return KeyPair(
            chain=certificate.public_bytes(serialization.Encoding.PEM),
            key=_pem_of(key),
            expires_at=certificate.not_valid_after_utc,
        )

    def sign_digest(self, digest: bytes) -> bytes:
        """Sign the SHA-256 digest of something that others check with the authority's certificate.

        What was digested must begin with a prefix of its kind, or it could be a certificate.
        """
        return self._key.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256())))

    def derived_key(self, purpose: str) -> bytes:
        """Derive 32 secret bytes for a purpose from the authority's key: always the same ones."""
        secret = self._key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        kdf = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=f"nsml {purpose}".encode())
        return kdf.derive(secret)

    def needs_renewal(self, pair: KeyPair) -> bool:
        """Return whether it is time to replace a certificate."""
        return pair.expires_at - self._now() < RENEW_WHEN_LEFT

    def _sign(
        self,
        name: str,
        public_key: ec.EllipticCurvePublicKey,
        names: list[x509.GeneralName],
        *,
        server: bool,
    ) -> x509.Certificate:
        now = self._now()
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(min(now + CERTIFICATE_LIFE, self._certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(authority_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._clock.time(), dt.UTC)


def open_authority(folder: Path, clock: Clock) -> Authority:
    """Load the authority in `folder`, creating it at the first start.

    A shared platform's authority is in its store instead: see `platform_keys`.

    Raises:
        PermissionError: others may read its private key.
        ValueError: the files are not an authority's key and certificate.
    """
    key_pem = read_private(folder / "ca.key")
    if key_pem is None:
        certificate, key_pem = make_authority_pair(clock)
        # the key last: after a crash in between both are created again, and the first was not used yet
        write_private(folder / "ca.pem", certificate)
        write_private(folder / "ca.key", key_pem)
        return load_authority(certificate, key_pem, clock)
    try:
        return load_authority((folder / "ca.pem").read_bytes(), key_pem, clock)
    except ValueError as error:
        raise ValueError(f"ca.key and ca.pem in {folder}: {error}") from error


def load_authority(certificate_pem: bytes, key_pem: bytes, clock: Clock) -> Authority:
    """Load the authority of a certificate and its key.

    Raises:
        ValueError: they are invalid, or do not match.
    """
    key = serialization.load_pem_private_key(key_pem, password=None)
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an ECDSA key")  # noqa: TRY004 - a file's content
    if key.public_key() != certificate.public_key():
        raise ValueError("they do not belong together")
    return Authority(certificate, key, clock)


def make_authority_pair(clock: Clock) -> tuple[bytes, bytes]:
    """Create certificate and key of a new authority, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _make_authority(key, clock)
    return certificate.public_bytes(serialization.Encoding.PEM), _pem_of(key)


def make_authority(clock: Clock) -> Authority:
    """Create an authority in memory only."""
    return load_authority(*make_authority_pair(clock), clock)


def read_certificate(pem: bytes) -> ShownCertificate:
    """Read the fields of a certificate from a trusted issuer.

    Raises:
        ValueError: it is not a certificate with an ECDSA key.
    """
    certificate = x509.load_pem_x509_certificate(pem)
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not an ECDSA certificate")  # noqa: TRY004 - a certificate's content
    return ShownCertificate(
        key_fingerprint=_fingerprint(key), expires_at=certificate.not_valid_after_utc.timestamp()
    )


def _make_authority(key: ec.EllipticCurvePrivateKey, clock: Clock) -> x509.Certificate:
    now = dt.datetime.fromtimestamp(clock.time(), dt.UTC)
    subject = _name("nsml authority")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _public_key_of(signing_request: bytes) -> ec.EllipticCurvePublicKey:
    if len(signing_request) > _LARGEST_REQUEST:
        raise InvalidRequest("the certificate signing request is too large")
    try:
        request = x509.load_pem_x509_csr(signing_request)
        valid = request.is_signature_valid
        key = request.public_key()
    except (ValueError, InvalidSignature) as error:
        raise InvalidRequest("not a certificate signing request in PEM") from error
    if not valid:
        raise InvalidRequest("the certificate signing request is not signed with its own key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidRequest("the key must be ECDSA on P-256")
    return key


def _fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
