"""One line to the session's log, from code that must never fail the training it runs in."""

from __future__ import annotations

import sys


def notice(text: str) -> None:
    """Write `nsml: TEXT` to standard error, whatever state that is in."""
    try:
        sys.stderr.write("nsml: " + text + "\n")
        sys.stderr.flush()
    except Exception:
        pass  # closed, full or replaced by something that raises: there is nowhere left to say so
