"""The arguments that NSML added when it forked a session: `--pause 1 --iteration CHECKPOINT`.

Programs written for NSML accept them: with `--pause 1` they call `nsml.paused()`, and some skip the start of a new
run, or count from `--iteration`. Other programs would fail with "unrecognized arguments", so only programs whose code
has all three get them. The code is searched by patterns: it may be untrusted, or not valid in this Python.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAUSE: Final = "--pause"
ITERATION: Final = "--iteration"
MOST_SOURCE_BYTES: Final = 256 << 10
"""Largest searched file."""
MOST_SOURCES: Final = 100
"""Most searched files, the entry first."""

_CALL: Final = re.compile(r"\bpaused\s*\(")
_INT: Final = re.compile(r"""["']--iteration["'][^)]{0,300}\btype\s*=\s*int\b""")
_FIRE: Final = re.compile(r"\bFire\s*\(")
_SIGNATURE: Final = re.compile(r"\bdef\s+\w+\s*\(([^()]{0,2000})")


def takes_fork_arguments(sources: Iterable[str], checkpoint: str) -> bool:
    """Return whether a program with these Python files accepts `--pause` and `--iteration` with this checkpoint."""
    text = "\n".join(sources)
    if _CALL.search(text) is None:
        return False
    flags = all(re.search(f"[\"']{flag}[\"']", text) for flag in (PAUSE, ITERATION))
    if not flags and not _has_fire(text):
        return False
    return _INT.search(text) is None or re.fullmatch(r"-?[0-9]+", checkpoint) is not None


def _has_fire(text: str) -> bool:
    """Return whether `Fire` makes flags of a function with both parameters."""
    words = ({*re.findall(r"\w+", one)} for one in _SIGNATURE.findall(text))
    return _FIRE.search(text) is not None and any({"pause", "iteration"} <= one for one in words)


def has_fork_arguments(words: Sequence[str]) -> bool:
    """Return whether the words have one of these arguments."""
    return any(word.partition("=")[0] in {PAUSE, ITERATION} for word in words)


def fork_arguments(checkpoint: str) -> list[str]:
    """Return the arguments for a checkpoint."""
    # A value that begins with a dash would be read as an option.
    value = [f"{ITERATION}={checkpoint}"] if checkpoint[:1] == "-" else [ITERATION, checkpoint]
    return [PAUSE, "1", *value]


def with_fork_arguments(words: Sequence[str], checkpoint: str) -> list[str]:
    """Return the words with these arguments at the end, replacing those of an earlier fork."""
    return [*without_fork_arguments(words), *fork_arguments(checkpoint)]


def with_pause(words: Sequence[str]) -> list[str]:
    """Return the words with `--pause 1` at the end, replacing arguments of an earlier fork."""
    return [*without_fork_arguments(words), PAUSE, "1"]


def without_fork_arguments(words: Sequence[str]) -> list[str]:
    """Return the words without these arguments."""
    kept: list[str] = []
    is_value = False
    for word in words:
        name, has_value, _ = word.partition("=")
        if is_value:
            is_value = False
        elif name in {PAUSE, ITERATION}:
            is_value = not has_value
        else:
            kept.append(word)
    return kept
