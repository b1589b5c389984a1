"""Recognizes files with passwords, keys or tokens by name: users often upload them by accident."""

from __future__ import annotations

import re
from typing import Final

_SECRET: Final = re.compile(
    r"""(?:\A|/)(?:
        \.env(?!\.(?:example|sample|template)\Z)(?:\.[^/]+)? |
        [^/]+\.(?:pem|p12|pfx|ppk) |
        id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)? |
        [._]netrc | \.pgpass | \.git-credentials | \.pypirc | \.htpasswd | kaggle\.json |
        \.aws/credentials | \.docker/config\.json | \.kube/config | \.git/config
    )\Z""",
    re.VERBOSE | re.IGNORECASE,
)


def looks_secret(path: str) -> bool:
    """Whether a `/`-separated path looks like a file with secrets. Contents are not checked."""
    return _SECRET.search(path) is not None
