"""URLs as they may be shown."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(://[^:/@\s]*):\S*@")
_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&\s]*", re.IGNORECASE)


def without_password(text: str) -> str:
    """A text in which no URL shows its password; rather too much is hidden than too little."""
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def has_password(url: str) -> bool:
    """Whether a URL bears a password, be it an empty one."""
    return without_password(url) != url
