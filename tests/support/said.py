"""What a failure says: the end of a test run's record keeps one line of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path


def last_line(said: str | Path) -> str:
    """The last line with words in it of what a program wrote, or of its log."""
    if isinstance(said, Path):
        said = said.read_text(errors="replace") if said.exists() else ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"


def words_of(condition: Callable[..., object]) -> str:
    """What a condition asks, as it stands in the test, in one line."""
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):  # not written in Python
        return repr(condition)
