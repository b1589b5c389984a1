"""Passwords in URLs."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(://[^:/@\s]*):\S*@")
_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&\s]*", re.IGNORECASE)


def without_password(text: str) -> str:
    """Hide passwords in all URLs of a text; hides too much rather than too little."""
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def has_password(url: str) -> bool:
    """Return whether a URL has a password, even an empty one."""
    return without_password(url) != url
