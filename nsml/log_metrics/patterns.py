"""Requests for metrics out of a log: `auto`, or NAME=PATTERN in RE2 syntax.

Clients, control planes and agents share one grammar. RE2 does not backtrack: a match takes at most the
pattern's size times the line's, and the pattern's size is limited.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

AUTO: Final = "auto"
"""Requests the recognisers, which need no pattern."""
MOST_PATTERNS: Final = 32
MOST_PATTERN_BYTES: Final = 1_000
MOST_NAME_CHARS: Final = 200
EXAMPLE: Final = r"loss=loss[:=]\s*([\d.eE+-]+)"
STEP: Final = "step"
"""The group of a pattern that gives the step."""
_LARGEST_PROGRAM: Final = 1_000
"""Most steps of a compiled pattern; any character, a hundred times, has 900."""
_PATTERN_MEMORY: Final = 4 << 20
_WHOLE_TEXT: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[Az]|\(\?[a-zA-Z]*-)")
"""Anchors and flags with which a search of many lines would differ from one of each."""
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Pattern(NamedTuple):
    """A compiled pattern: `value` and `step` are the numbers of its groups; `step` 0: it has none.

    `search` searches a line, `find_line` a block of lines, for one that may match.
    """

    name: str
    search: Any
    find_line: Any
    value: int
    step: int


def check(text: str) -> None:
    """Raise ValueError if this is no request; its text is `what: why`."""
    if text != AUTO:
        pattern_of(text)


def check_all(texts: Sequence[str]) -> None:
    """Raise ValueError if these cannot be requested together; its text is `what: why`."""
    for text in texts:
        check(text)
    if len(texts) > MOST_PATTERNS:
        raise ValueError(f"{len(texts)} metrics out of the log: {MOST_PATTERNS} is the most")
    names = [text.partition("=")[0] for text in texts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"metric {twice[0]} has two patterns: join them with |, and put one group around the number"
        )


@lru_cache(256)
def pattern_of(text: str) -> Pattern:
    """Compile NAME=PATTERN. Raises ValueError; its text is `what: why`."""
    name, equals, pattern = text.partition("=")
    if not equals or not name or not pattern:
        raise ValueError(f"'{text[:80]}' has no pattern: it takes auto or NAME=PATTERN")
    if len(name) > MOST_NAME_CHARS or _FORBIDDEN.search(name) or name != name.strip():
        raise ValueError(
            f"{name[:80]!r} cannot name a metric: a name has 1 to {MOST_NAME_CHARS} visible characters"
        )
    if len(pattern.encode(errors="replace")) > MOST_PATTERN_BYTES:
        raise ValueError(
            f"the pattern of {name} is too long: {MOST_PATTERN_BYTES} bytes is the most"
        )
    if "\n" in pattern or "\0" in pattern:
        raise ValueError(
            f"the pattern of {name} spans lines: it is matched with one line at a time"
        )
    if _WHOLE_TEXT.search(pattern):
        raise ValueError(
            f"the pattern of {name} has \\A, \\z or a flag that is turned off: use ^ and $"
        )
    compiled = _compiled(name, pattern)
    step = compiled.groupindex.get(STEP.encode(), 0)
    value = next((n for n in range(1, compiled.groups + 1) if n != step), 0)
    if not value:
        raise ValueError(
            f"the pattern of {name} has no group around the number: add parentheses, as in '{EXAMPLE}'"
        )
    find_line = _compiled(name, f"(?m){pattern}", captures=False).search
    return Pattern(name, compiled.search, find_line, value, step)


def _compiled(name: str, pattern: str, *, captures: bool = True) -> Any:
    import re2  # noqa: PLC0415 - who requests no metrics does without

    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY
    options.never_nl = True
    options.never_capture = not captures
    options.log_errors = False
    try:
        made = re2.compile(pattern.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(
            f"the pattern of {name} is no valid regular expression (RE2): {said[:200]}"
        ) from None
    except UnicodeEncodeError:
        raise ValueError(f"the pattern of {name} is no text in UTF-8: {pattern[:40]!r}") from None
    if made.programsize > _LARGEST_PROGRAM:
        raise ValueError(f"the pattern of {name} is too large: repetitions of repetitions multiply")
    return made
