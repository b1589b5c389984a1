"""Lines in the session's log, from code that must never fail the training."""

from __future__ import annotations

import sys


def notice(text: str) -> None:
    """Write `nsml: TEXT` to standard error; never raises."""
    try:
        sys.stderr.write("nsml: " + text + "\n")
        sys.stderr.flush()
    except Exception:
        pass  # closed, full or replaced by an object that raises: the error cannot be reported
