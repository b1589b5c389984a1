"""Files that usually hold passwords, keys or tokens, by their names: people send them with a folder without knowing."""

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
    """Whether a `/`-separated path reads like that of a file with secrets. Contents are not looked at."""
    return _SECRET.search(path) is not None
