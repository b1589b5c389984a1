"""Public keys of users in OpenSSH's format (RFC 4253, 6.6; PROTOCOL.u2f): parsed strictly, with one form for each key.

Used by clients and servers: a client refuses to send a private key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_KEY_BYTES: Final = 4 << 10
"""Of a line with a key: RSA with 16,384 bits takes 2.8 KB."""
LEAST_RSA_BITS: Final = 3072
_MOST_RSA_BITS: Final = 16_384
"""OpenSSH's limit."""
_MOST_EXPONENT_BITS: Final = 64
_MOST_APPLICATION: Final = 256
_LENGTH: Final = 4
_CERTIFICATE: Final = "-cert-v01@openssh.com"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
NAME_RULE: Final = "1 to 64 of letters, digits and . _ @ + -, beginning with a letter or a digit"
_MAKE_ONE: Final = "ssh-keygen -t ed25519"


class NotAPublicKey(ValueError):
    """The text is no accepted public key: what it is, and what to do."""

    def __init__(self, message: str, *, why: str = "", advice: str = "") -> None:
        super().__init__(message)
        self.why = why
        self.advice = advice


class PublicKey(NamedTuple):
    """A public key.

    Attributes:
        text: type and key in base64, as in an authorized_keys file.
        digest: SHA-256 of the key, in hexadecimal.
        comment: the text after the key.
    """

    text: str
    digest: str
    comment: str = ""

    @property
    def kind(self) -> str:
        """Its type, such as `ssh-ed25519`."""
        return self.text.partition(" ")[0]

    @property
    def fingerprint(self) -> str:
        """In OpenSSH's format."""
        return f"SHA256:{base64.b64encode(bytes.fromhex(self.digest)).decode().rstrip('=')}"

    @property
    def usual_name(self) -> str:
        """The comment if it is a valid name, else a name derived from the key."""
        if is_name(self.comment):
            return self.comment
        kind = self.kind.removeprefix("sk-").removeprefix("ssh-")
        return f"{re.split('[-@]', kind)[0]}-{self.digest[:8]}"


def is_name(text: str) -> bool:
    """Return whether a text is a valid key name."""
    return _NAME.fullmatch(text) is not None


def parse_public_key(given: str) -> PublicKey:
    """Parse a line of a .pub file, with or without a comment.

    Raises:
        NotAPublicKey: it is no public key, or not an accepted one.
    """
    line = given.strip("\r\n \t")
    _check_form(line)
    kind, _, rest = line.partition(" ")
    written, _, comment = rest.strip(" \t").partition(" ")
    if kind not in _READ:
        raise _other_kind(kind)
    try:
        blob = _decoded(written)
        _read(kind, blob)
    except (ValueError, binascii.Error, UnsupportedAlgorithm) as error:
        if isinstance(error, NotAPublicKey):
            raise
        raise NotAPublicKey(
            "this public key is damaged", why=str(error), advice="give the .pub file whole"
        ) from error
    return PublicKey(f"{kind} {written}", hashlib.sha256(blob).hexdigest(), comment.strip())


def digest_of(blob: bytes) -> str:
    """SHA-256 of a key, in hexadecimal, as in PublicKey."""
    return hashlib.sha256(blob).hexdigest()


def _decoded(written: str) -> bytes:
    """Raises ValueError."""
    blob = base64.b64decode(written, validate=True)
    if base64.b64encode(blob).decode() != written:
        raise ValueError("bits are left over")
    return blob


def _check_form(line: str) -> None:
    """Refuse anything but one line with a key at its beginning."""
    if "PRIVATE KEY-----" in line or line.startswith("PuTTY-User-Key-File"):
        raise NotAPublicKey(
            "this is a private key",
            why="it stays on its machine, and nothing of it was sent",
            advice="the file beside it that ends in .pub",
        )
    if line.startswith("---- BEGIN SSH2 PUBLIC KEY"):
        raise NotAPublicKey(
            "this public key is in the format of PuTTY",
            advice="ssh-keygen -i -f FILE    prints it in OpenSSH's",
        )
    if not line:
        raise NotAPublicKey("there is no public key", advice=_MAKE_ONE)
    if "\n" in line or "\r" in line:
        raise NotAPublicKey("this is more than one line", advice="one public key at a time")
    if len(line) > MOST_KEY_BYTES:
        raise NotAPublicKey("this is too long for a public key")
    if not line.isprintable():
        raise NotAPublicKey("this is no public key", why="it has control characters")


def _other_kind(kind: str) -> NotAPublicKey:
    if kind.endswith(_CERTIFICATE):
        return NotAPublicKey(
            "this is a certificate",
            why="a key is added for good, and a certificate ends",
            advice="the .pub file of its key",
        )
    if kind == "ssh-dss":
        return NotAPublicKey("DSA keys are not accepted", why="they are weak", advice=_MAKE_ONE)
    return NotAPublicKey(
        "this is no public key",
        why=f"a line begins with one of {', '.join(_READ)}; options before it are not accepted",
        advice="~/.ssh/id_ed25519.pub, or make one: " + _MAKE_ONE,
    )


class _Fields:
    """The fields of a key in its binary form."""

    def __init__(self, blob: bytes) -> None:
        self._rest = blob

    def next(self) -> bytes:
        size = int.from_bytes(self._rest[:_LENGTH], "big")
        if len(self._rest) < _LENGTH + size:
            raise ValueError("it ends too soon")
        field, self._rest = (
            self._rest[_LENGTH : _LENGTH + size],
            self._rest[_LENGTH + size :],
        )
        return field

    def number(self) -> int:
        """Read a positive number in its shortest form: else one key could be written in two ways."""
        field = self.next()
        number = int.from_bytes(field, "big", signed=True)
        if number <= 0 or len(field) != number.bit_length() // 8 + 1:
            raise ValueError("a number in it is malformed")
        return number

    def check_end(self) -> None:
        if self._rest:
            raise ValueError("something follows it")


def _read(kind: str, blob: bytes) -> None:
    """Raise ValueError if it is no key of this type."""
    fields = _Fields(blob)
    if fields.next() != kind.encode():
        raise ValueError("its type is another one inside")
    _READ[kind](fields)
    if kind.startswith("sk-") and not 0 < len(fields.next()) <= _MOST_APPLICATION:
        raise ValueError("its application is malformed")
    fields.check_end()


def _ed25519(fields: _Fields) -> None:
    ed25519.Ed25519PublicKey.from_public_bytes(fields.next())


def _ecdsa(curve: ec.EllipticCurve, name: bytes) -> Callable[[_Fields], None]:
    def read(fields: _Fields) -> None:
        if fields.next() != name:
            raise ValueError("its curve is another one")
        point = fields.next()
        if not point.startswith(b"\x04"):
            raise ValueError("its point is compressed")
        ec.EllipticCurvePublicKey.from_encoded_point(curve, point)

    return read


def _rsa(fields: _Fields) -> None:
    exponent, modulus = fields.number(), fields.number()
    if exponent < 3 or exponent % 2 == 0 or exponent.bit_length() > _MOST_EXPONENT_BITS:
        raise ValueError("its exponent is malformed")
    bits = modulus.bit_length()
    if bits < LEAST_RSA_BITS:
        raise NotAPublicKey(
            f"this RSA key has {bits} bits", why=f"at least {LEAST_RSA_BITS}", advice=_MAKE_ONE
        )
    if bits > _MOST_RSA_BITS or modulus % 2 == 0:
        raise ValueError("its modulus is malformed")


_READ: Final[Mapping[str, Callable[[_Fields], None]]] = {
    "ssh-ed25519": _ed25519,
    "ecdsa-sha2-nistp256": _ecdsa(ec.SECP256R1(), b"nistp256"),
    "ecdsa-sha2-nistp384": _ecdsa(ec.SECP384R1(), b"nistp384"),
    "ecdsa-sha2-nistp521": _ecdsa(ec.SECP521R1(), b"nistp521"),
    "sk-ssh-ed25519@openssh.com": _ed25519,
    "sk-ecdsa-sha2-nistp256@openssh.com": _ecdsa(ec.SECP256R1(), b"nistp256"),
    "ssh-rsa": _rsa,
}
"""Parsers of the fields after the type, by accepted type."""
