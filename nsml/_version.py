"""The version of the SDK, the programs and the command line.

`VERSION` has the commit, too, as the local part of PEP 440: from a file that a build leaves beside this one, or
from a checkout's .git, without running git. Code from another source has the release alone.
"""

import os
import re

RELEASE = "0.2.0"

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_DIGITS = 12
_HEX = re.compile(r"[0-9a-f]{40,64}")


def commit_of(package: str) -> str:
    """Return the commit (hexadecimal) that the package in this folder was built from or checked out at; "" if unknown."""
    try:
        found = _read(package, "COMMIT") or _checked_out(
            os.path.join(os.path.dirname(package), ".git")
        )
    except (OSError, ValueError):
        return ""
    return found if _HEX.fullmatch(found) else ""


def _checked_out(git: str) -> str:
    if os.path.isfile(git):  # a worktree
        link = _read(os.path.dirname(git), os.path.basename(git))
        git = os.path.join(os.path.dirname(git), link[len("gitdir:") :].strip())
    head = _read(git, "HEAD")
    if not head.startswith("ref:"):
        return head
    name = head[len("ref:") :].strip()
    shared = os.path.join(git, _read(git, "commondir") or ".")
    return _read(git, name) or _read(shared, name) or _packed(_read(shared, "packed-refs"), name)


def _packed(refs: str, name: str) -> str:
    for line in refs.splitlines():
        commit, _, ref = line.partition(" ")
        if ref == name:
            return commit
    return ""


def _read(folder: str, name: str) -> str:
    file = os.path.join(folder, name)
    if not os.path.isfile(file):
        return ""
    with open(file, encoding="ascii", errors="replace") as opened:
        return opened.read().strip()


def version_of(package: str) -> str:
    """Return `RELEASE`, with the commit of the package in this folder, if known."""
    commit = commit_of(package)
    return "%s+g%s" % (RELEASE, commit[:_DIGITS]) if commit else RELEASE


VERSION = version_of(_PACKAGE)
