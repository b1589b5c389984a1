"""Trust between machines and a platform: certificate authorities, join tokens, node certificates.

A platform has its own certificate authority. Its listeners send the certificate, so a client can
fetch it over an untrusted connection and compare its digest with one from another channel: a
join token, or an administrator. From then on only that authority is trusted.

    SECRET.DIGEST       a join token: SHA-256 of the authority's certificate (DER), hexadecimal
    HOST:PORT#DIGEST    for sign-in from other machines
"""

from __future__ import annotations

import hashlib
import re
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsml.client.contexts import write_private
from nsml.client.errors import ClientError, Unavailable
from nsml.common.private_files import read_private
from nsml.common.resolving import RESOLVED_WITHIN_S, connect

if TYPE_CHECKING:
    from pathlib import Path

    from nsml.client.calls import Accounts
    from nsml.client.channel import Channel

SERVER_NAME = "nsml-controlplane"
"""Name in every listener's certificate, whatever the machine's host name is."""

CHANNEL_OPTIONS = (
    ("grpc.ssl_target_name_override", SERVER_NAME),
    ("grpc.enable_http_proxy", 0),
    ("grpc.dns_ares_query_timeout", round(RESOLVED_WITHIN_S * 1000)),
)
"""For channels to listeners with a pinned authority: it signs only listeners for that name."""

_TOKEN = re.compile(r"(?P<secret>nsml_[A-Za-z0-9_-]{20,100})\.(?P<digest>[0-9a-f]{64})")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RENEW_BELOW = 1 / 3
_HANDSHAKE_S = 10.0
_KNOWN_WITHIN_S = 5.0
_DER = 2  # _ssl.ENCODING_DER, which ssl does not export before Python 3.13


class TrustError(ClientError):
    """The other side is not the expected one, or its proof is malformed."""


@dataclass(frozen=True, slots=True)
class FetchedAuthority:
    """An authority sent by a listener: untrusted until its digest is compared."""

    pem: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A parsed join token; the secret is not in the repr."""

    secret: str = field(repr=False)
    authority_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """Files of a joined node; the key is readable only by its owner."""

    key: Path
    certificate: Path
    authority: Path

    @classmethod
    def within(cls, folder: Path) -> NodeFiles:
        """Return the files of a node in its folder."""
        return cls(
            key=folder / "node.key",
            certificate=folder / "node.pem",
            authority=folder / "authority.pem",
        )


def parse_join_token(text: str) -> JoinToken:
    """Parse SECRET.DIGEST; TrustError if it has another form."""
    match = _TOKEN.fullmatch(text.strip())
    if match is None:
        raise TrustError(
            "this is not a join token",
            why="a join token is SECRET.DIGEST, as nsml admin join-token prints it",
            advice="nsml admin join-token",
        )
    return JoinToken(match["secret"], match["digest"])


def parse_pinned_server(text: str) -> tuple[str, str]:
    """Parse HOST:PORT#DIGEST into server and digest, "" if there is none.

    Raises:
        TrustError: the part after the # is no digest.
    """
    server, mark, digest = text.partition("#")
    digest = digest.strip().lower()
    if mark and not _DIGEST.fullmatch(digest):
        raise TrustError(
            f"{digest!r} is not the digest of an authority",
            why="it has 64 hexadecimal digits, as nsml admin user token prints it",
        )
    return server, digest


def digest_of(authority_pem: str) -> str:
    """Return the digest of an authority's certificate.

    Raises:
        TrustError: not a certificate.
    """
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority_pem)).hexdigest()
    except ValueError as error:
        raise TrustError("not a certificate in PEM", why=str(error)) from error


def is_publicly_trusted(host: str, port: int, *, timeout_s: float = _HANDSHAKE_S) -> bool:
    """Whether the listener has a certificate for `host` from a public authority.

    Raises:
        Unavailable: nobody answers there.
    """
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    try:
        with (
            connect(host, port, timeout_s=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLError:
        return False
    except OSError as error:
        raise _nobody(host, port, error) from error


def fetch_authority(host: str, port: int, *, timeout_s: float = _HANDSHAKE_S) -> FetchedAuthority:
    """Fetch a listener's authority certificate over an unverified connection.

    Raises:
        Unavailable: nobody answers there.
        TrustError: there is no TLS, or the listener does not send its authority.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the digest decides, not this connection
    context.set_alpn_protocols(["h2"])
    where = f"{host}:{port}"
    try:
        with (
            connect(host, port, timeout_s=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=SERVER_NAME) as secured,
        ):
            chain = _chain_of(secured)
    except ssl.SSLError as error:
        raise TrustError(
            f"{where} does not speak TLS as nsml does", why=str(error), advice="check the port"
        ) from error
    except OSError as error:
        raise _nobody(host, port, error) from error
    if len(chain) < 2:
        raise TrustError(
            f"{where} does not send its authority along",
            why="it may be another server, or a proxy with a certificate of its own",
        )
    return FetchedAuthority(
        pem=ssl.DER_cert_to_PEM_cert(chain[-1]).encode(),
        digest=hashlib.sha256(chain[-1]).hexdigest(),
    )


def _nobody(host: str, port: int, error: OSError) -> Unavailable:
    return Unavailable(
        f"nobody answers at {host}:{port}",
        why=error.strerror or str(error),
        advice="check the address, and that its firewall lets you in",
    )


def fetch_trusted_authority(host: str, port: int, digest: str) -> FetchedAuthority:
    """As `fetch_authority`; TrustError unless the authority has this digest."""
    fetched = fetch_authority(host, port)
    if fetched.digest != digest:
        raise TrustError(
            f"{host}:{port} is not the platform that you were told about",
            why="these are the digest of its authority, and under it the one that you were told:\n"
            f"{fetched.digest}\n{digest}",
            advice="check the address; if it is right, somebody may be listening in between",
        )
    return fetched


def make_key(file: Path) -> None:
    """Create a node's private key (ECDSA on P-256) unless it exists."""
    if file.exists():
        return
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(file, pem.decode())


def signing_request(key_file: Path, node: str) -> bytes:
    """Create a certificate signing request (PEM) for the key in `key_file`.

    Raises:
        TrustError: the file has no usable key.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    try:
        key = serialization.load_pem_private_key(read_private(str(key_file)), password=None)
    except (OSError, ValueError) as error:
        raise TrustError(f"cannot read the node's key {key_file}", why=str(error)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TrustError(f"the node's key {key_file} is not an ECDSA key")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name)
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def wrong_port(server: str) -> TrustError:
    """Return the error for a server that has proved its identity, but accepts no calls of users."""
    return TrustError(
        f"{server} takes no users and no machines that join",
        why="it has the platform's certificate: it may be the port of agents, or of HTTP, or just stopping",
        advice="HOST:PORT as nsml admin user token and nsml status show it: 18553 where nothing else was chosen",
    )


async def join(host: str, port: int, token: JoinToken, *, node: str, folder: Path) -> str:
    """Make this machine a node: fetch and check the authority, create a key, have it signed.

    Writes the files of `NodeFiles.within(folder)`; reuses the key of an earlier attempt, so that a
    retry is possible if the response was lost.

    Returns:
        HOST:PORT of the agents' listener; "" if there is none.

    Raises:
        ClientError: a named error.
    """
    import grpc.aio

    fetched = fetch_trusted_authority(host, port, token.authority_digest)
    files = NodeFiles.within(folder)
    make_key(files.key)
    credentials = grpc.ssl_channel_credentials(fetched.pem)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    async with grpc.aio.secure_channel(target, credentials, CHANNEL_OPTIONS) as channel:
        try:
            answer = await _ask(channel, node, token.secret, files)
        except Unavailable as error:
            if error.retry_after_s is not None:
                raise  # the control plane itself gave the reason
            raise wrong_port(f"{host}:{port}") from error
    write_private(files.authority, fetched.pem.decode())
    write_private(files.certificate, answer.certificate.decode())
    return str(answer.agent_address)


async def certify(accounts: Accounts, files: NodeFiles) -> None:
    """Have the key of a control plane's own machine signed; `accounts` uses the token of its node.

    Writes the files of a joined node. Raises ClientError.
    """
    make_key(files.key)
    node = (await accounts.caller()).node
    answer = await _sign(accounts, node, "", files)
    write_private(files.authority, answer.authority.decode())
    write_private(files.certificate, answer.certificate.decode())


async def renew_when_due(address: str, node: str, files: NodeFiles, *, now: float) -> bool:
    """Renew a node's certificate over the agents' listener at `address` if it is due.

    Returns whether there is a new one. Raises ClientError, including Unavailable; the old
    certificate is then kept.
    """
    import grpc.aio

    if not needs_renewal(files.certificate, now=now):
        return False
    if now >= (ended_at := certificate_end(files.certificate)):
        raise TrustError(
            f"the certificate of node {node} ended on {_day(ended_at)}",
            why="it was not renewed in time, and no control plane talks to a node without one",
            advice="nsml join HOST:PORT --token-stdin < FILE   on this machine, with a new token "
            "(nsml admin join-token)",
        )
    credentials = grpc.ssl_channel_credentials(
        files.authority.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    async with grpc.aio.secure_channel(address, credentials, CHANNEL_OPTIONS) as channel:
        await renew_certificate(channel, node, files)
    return True


async def check_known(address: str, files: NodeFiles) -> None:
    """Check with the agents' listener whether the node's certificate is valid; NotSignedIn if not any more.

    Raises ClientError: Unavailable if nobody answers within _KNOWN_WITHIN_S.
    """
    import grpc.aio

    from nsml.client.calls import Accounts
    from nsml.client.rpc import Rpc

    credentials = grpc.ssl_channel_credentials(
        files.authority.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    async with grpc.aio.secure_channel(address, credentials, CHANNEL_OPTIONS) as channel:
        await Accounts(Rpc(channel, deadline_s=_KNOWN_WITHIN_S)).caller()


async def renew_certificate(channel: Channel, node: str, files: NodeFiles) -> None:
    """Replace the node's certificate; `channel` must use the old one.

    The key is kept, so the new certificate is valid as soon as it is written; open connections
    continue. Raises ClientError.
    """
    answer = await _ask(channel, node, "", files)
    write_private(files.certificate, answer.certificate.decode())


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def certificate_end(certificate_file: Path) -> float:
    """Return a certificate's end in Unix seconds; OSError or ValueError if unreadable."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    return certificate.not_valid_after_utc.timestamp()


def needs_renewal(certificate_file: Path, *, now: float) -> bool:
    """Whether less than a third of a certificate's lifetime is left at `now` (Unix seconds)."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    ends = certificate.not_valid_after_utc.timestamp()
    life = ends - certificate.not_valid_before_utc.timestamp()
    return ends - now < life * _RENEW_BELOW


async def _ask(channel: Channel, node: str, secret: str, files: NodeFiles) -> Any:
    from nsml.client.calls import Accounts
    from nsml.client.rpc import Rpc

    return await _sign(Accounts(Rpc(channel)), node, secret, files)


async def _sign(accounts: Accounts, node: str, secret: str, files: NodeFiles) -> Any:
    from nsml.v1 import accounts_pb2

    request = accounts_pb2.JoinNodeRequest(
        secret=secret, node=node, signing_request=signing_request(files.key, node)
    )
    return await accounts.join_node(request)


def _chain_of(secured: ssl.SSLSocket) -> list[bytes]:
    """Return the peer's certificates (DER), its own first."""
    public = getattr(secured, "get_unverified_chain", None)  # from Python 3.13 on
    if public is not None:
        return [bytes(certificate) for certificate in public()]
    inner: Any = secured._sslobj  # type: ignore[attr-defined] # noqa: SLF001
    return [certificate.public_bytes(_DER) for certificate in inner.get_unverified_chain()]
