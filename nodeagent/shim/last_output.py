"""The last output of a failed program, in one line for people."""

from __future__ import annotations

import os
import re

_TAIL_BYTES = 16 << 10
_LONGEST = 400
"""In characters."""
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""Colours and cursor moves of a terminal."""


def last_output(path: str) -> str:
    """Return the exception that ended a Python program, else `last output: ` and the last line with a word; "" without any."""
    try:
        # The program may have replaced the file: follow no link, and never block.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(path, flags), "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _TAIL_BYTES, 0))
            tail = file.read(_TAIL_BYTES)
    except OSError:
        return ""
    text = _ESCAPE.sub("", tail.decode("utf-8", "replace"))
    lines = [line.rstrip() for line in text.splitlines() if any(map(str.isalnum, line))]
    exception = _exception_in(lines)
    if not exception and not lines:
        return ""
    return (exception or f"last output: {lines[-1].strip()}")[:_LONGEST]


def _exception_in(lines: list[str]) -> str:
    """Return the last exception: the first line after a traceback, else a last line like one, as of a SyntaxError."""
    begins = [place for place, line in enumerate(lines) if line == _TRACEBACK]
    behind = lines[begins[-1] + 1 :] if begins else lines[-1:]
    found = next((line for line in behind if not line[0].isspace()), "")
    return found if begins or _EXCEPTION.match(found) else ""
