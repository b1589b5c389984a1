"""SHA-256 without loading `hashlib`, which loads OpenSSL and takes milliseconds."""

from __future__ import annotations

import sys

try:
    from _sha2 import sha256 as _small  # type: ignore[import-not-found]
except ImportError:
    try:  # before Python 3.12
        from _sha256 import sha256 as _small  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256 as _small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import _Hash


def sha256(data: bytes = b"") -> _Hash:
    """As `hashlib.sha256`, which is used if the program has loaded it, since it is faster."""
    fast = getattr(sys.modules.get("hashlib"), "sha256", None)  # None: it is being loaded
    digest: _Hash = (fast or _small)(data)
    return digest
