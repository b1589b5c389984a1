"""The arguments that NSML added when it forked a session: `--pause 1 --iteration CHECKPOINT`.

Programs written for NSML take them: with `--pause 1` they call `nsml.paused()`, and some leave out what a new run begins
with, or count from `--iteration`. Other programs would end with "unrecognized arguments", so only programs whose code has all
three get them. What the code says is found by patterns: it may be somebody else's, and no Python of this version.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAUSE: Final = "--pause"
ITERATION: Final = "--iteration"
MOST_SOURCE_BYTES: Final = 256 << 10
"""Of one file that is looked at."""
MOST_SOURCES: Final = 100
"""Files that are looked at, the entry first."""

_CALL: Final = re.compile(r"\bpaused\s*\(")
_INT: Final = re.compile(r"""["']--iteration["'][^)]{0,300}\btype\s*=\s*int\b""")
_FIRE: Final = re.compile(r"\bFire\s*\(")
_SIGNATURE: Final = re.compile(r"\bdef\s+\w+\s*\(([^()]{0,2000})")


def takes_fork_arguments(sources: Iterable[str], checkpoint: str) -> bool:
    """Whether a program with these Python files takes `--pause` and `--iteration`, and this checkpoint as its value."""
    text = "\n".join(sources)
    if _CALL.search(text) is None:
        return False
    flags = all(re.search(f"[\"']{flag}[\"']", text) for flag in (PAUSE, ITERATION))
    if not flags and not _has_fire(text):
        return False
    return _INT.search(text) is None or re.fullmatch(r"-?[0-9]+", checkpoint) is not None


def _has_fire(text: str) -> bool:
    """Whether `Fire` makes flags of the parameters of a function that has both."""
    words = ({*re.findall(r"\w+", one)} for one in _SIGNATURE.findall(text))
    return _FIRE.search(text) is not None and any({"pause", "iteration"} <= one for one in words)


def has_fork_arguments(words: Sequence[str]) -> bool:
    """Whether one of them is among these arguments."""
    return any(word.partition("=")[0] in {PAUSE, ITERATION} for word in words)


def fork_arguments(checkpoint: str) -> list[str]:
    """The words themselves."""
    # A value that begins with a dash would be taken for an option.
    value = [f"{ITERATION}={checkpoint}"] if checkpoint[:1] == "-" else [ITERATION, checkpoint]
    return [PAUSE, "1", *value]


def with_fork_arguments(words: Sequence[str], checkpoint: str) -> list[str]:
    """The arguments with them at the end, in place of those from an earlier fork."""
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
    return [*kept, *fork_arguments(checkpoint)]
