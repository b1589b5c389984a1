"""The configuration that programs reported to W&B, MLflow and others: its limits, and which values are hidden."""

from __future__ import annotations

import re
from typing import Final

MOST_LEAVES: Final = 2_000
"""Most values of one session, by their flattened names."""
MOST_BYTES: Final = 256 << 10
"""Most bytes of one session: JSON and names."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRETS: Final = (
    *("password", "passwords", "passwd", "passphrase", "secret", "secrets"),
    *("credential", "credentials", "apikey", "authorization"),
)
_KEYS: Final = frozenset(
    {"api", "access", "secret", "private", "ssh", "auth", "encryption", "account"}
)
"""Words before `key`: a key of a dict is none."""
_TEXT_TOKENS: Final = frozenset(
    {
        *(
            "bos",
            "eos",
            "pad",
            "unk",
            "mask",
            "cls",
            "sep",
            "sos",
            "start",
            "end",
            "stop",
            "special",
        ),
        *(
            "image",
            "audio",
            "video",
            "prompt",
            "decoder",
            "additional",
            "extra",
            "word",
            "per",
            "a",
        ),
    }
)
"""Words before `token` in the names of tokens of a text."""


def is_secret(name: str) -> bool:
    """Return whether a key looks like that of a secret: `api_key`, `hub_token`, `dbPassword`; not `eos_token` or `max_tokens`."""
    words = [word.lower() for word in _WORD.findall(name[-200:])]
    if any(word.endswith(_SECRETS) for word in words):
        return True
    last, before = words[-1:], words[-2:-1]
    if last == ["token"]:
        return not before or before[0] not in _TEXT_TOKENS
    return last == ["key"] and bool(before) and before[0] in _KEYS
