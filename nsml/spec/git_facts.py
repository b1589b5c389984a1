"""Rules for the recorded git commit of a session's code, for clients and servers."""

from __future__ import annotations

import re
from typing import Final

MOST_BRANCH_BYTES: Final = 255
MOST_REMOTE_BYTES: Final = 1_024
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SCP: Final = re.compile(r"(?:[^/@:]*@)?([^/@:\s]+:[^:\s].*)")
"""HOST:PATH, in scp's syntax."""


def is_commit(text: str) -> bool:
    """Return whether a text is a full commit hash."""
    return _COMMIT.fullmatch(text) is not None


def is_branch(text: str) -> bool:
    """Return whether a text is a valid branch name; "": none is checked out."""
    return text.isprintable() and len(text.encode(errors="replace")) <= MOST_BRANCH_BYTES


def public_remote(url: str) -> str:
    """Return a remote's URL without user, password, query and fragment: every user that sees the session sees it.

    "" for anything but the URL of a repository that others could reach: a path, or a command (`ext::...`).
    """
    if not url.isprintable() or len(url.encode(errors="replace")) > MOST_REMOTE_BYTES:
        return ""
    if scheme := _SCHEME.match(url):
        if scheme[0].lower() == "file://":
            return ""
        place = re.split(r"[?#]", url[scheme.end() :], maxsplit=1)[0]
        host, slash, path = place.partition("/")
        return f"{scheme[0].lower()}{host.rpartition('@')[2]}{slash}{path}"
    if "::" in url or (scp := _SCP.fullmatch(url)) is None:
        return ""
    return scp[1]
