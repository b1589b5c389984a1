"""A JSON document with the platform's signature, as one file.

The file is a JSON object itself: the line `{"document":`, the document, and a line `,"signature":{...}}`. The
signature is over the bytes between, exactly as they are in the file, after a prefix that says what they are; so it can
be made and checked while the file is read, and nothing depends on how JSON is written.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import BinaryIO

PREFIX = b"nsml.signed-json.v1\n"
"""What is signed begins with this: no certificate does, which the same key signs."""
BEGIN = b'{"document":\n'
SIGNATURE = b'\n,"signature":'
ALGORITHM = "ecdsa-p256-sha256"
_MOST_TAIL = 4096


class SignatureInvalid(Exception):
    """The file is not what the platform signed; the message, one sentence, says why."""


class JsonSigning:
    """Makes the file.

    Args:
        sign: signs a SHA-256 digest.
    """

    def __init__(self, sign: Callable[[bytes], bytes]) -> None:
        self._sign = sign
        self._hash = hashlib.sha256(PREFIX)

    def begin(self) -> bytes:
        """Return the first bytes of the file."""
        return BEGIN

    def add(self, text: str) -> bytes:
        """Return more of the document, a text of JSON."""
        data = text.encode()
        self._hash.update(data)
        return data

    def end(self) -> bytes:
        """Return the rest of the file."""
        value = base64.b64encode(self._sign(self._hash.digest())).decode()
        signature = json.dumps({"algorithm": ALGORITHM, "value": value})
        return SIGNATURE + signature.encode() + b"}\n"


def to_json(value: Any) -> str:
    """Write JSON with ASCII characters alone; NaN and infinities are refused."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def verify(path: Path, certificate: bytes) -> Any:
    """Check a file with the platform's certificate (PEM), and return its document.

    Raises:
        SignatureInvalid: the signature is not the platform's, or the file was changed.
        OSError: it cannot be read.
    """
    # Only this part needs it, and its import takes long.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, utils  # noqa: PLC0415

    with path.open("rb") as file:
        document, signature = _divided(file)
    try:
        stated = json.loads(signature)
        value = base64.b64decode(stated["value"], validate=True)
        is_known = stated["algorithm"] == ALGORITHM
    except (ValueError, KeyError, TypeError):
        raise SignatureInvalid("its signature cannot be read") from None
    if not is_known:
        raise SignatureInvalid("its signature is of another kind than this version checks")
    key = x509.load_pem_x509_certificate(certificate).public_key()
    digest = hashlib.sha256(PREFIX + document).digest()
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise SignatureInvalid("the certificate has another kind of key")
        key.verify(value, digest, ec.ECDSA(utils.Prehashed(hashes.SHA256())))
    except InvalidSignature:
        raise SignatureInvalid(
            "it was changed, or is not of the platform of this certificate"
        ) from None
    return json.loads(document)


def _divided(file: BinaryIO) -> tuple[bytes, bytes]:
    """Return the document and the signature."""
    whole = file.read()
    at = whole.rfind(SIGNATURE, max(len(whole) - _MOST_TAIL, 0))
    if not whole.startswith(BEGIN) or at < len(BEGIN) or not whole.endswith(b"}\n"):
        raise SignatureInvalid("it is not a signed export")
    return whole[len(BEGIN) : at], whole[at + len(SIGNATURE) : -2]
