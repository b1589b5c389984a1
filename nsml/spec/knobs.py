"""Knobs of running programs: names, values, and the limits of changes."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

COUNTERS: Final = ("step", "steps", "report", "optimizer")
"""Step counters of programs; the first one that all processes have is used."""
MOST_PROCESSES: Final = 64
"""Processes of a replica in one change."""
MOST_SAID_CHARS: Final = 300
"""Longest name or value of a knob, as reported by a program."""
MOST_REASON_CHARS: Final = 512
"""Longest reason of a process for refusing a change."""
MOST_AT_ONCE: Final = 16
"""Knobs in one change."""
MOST_GIVEN: Final = 64
"""Initial values of a session."""
MOST_TEXT: Final = 256
"""Characters of a text value."""
_MOST_JSON: Final = 6 * MOST_TEXT + 2
"""Characters of such a text as JSON, which may escape one as six."""
MOST_STEP: Final = 1 << 62
_STEP_DIGITS: Final = 19
USUAL_WAIT_S: Final = 60.0
"""Default limit of the wait for a safe point, in seconds."""
LONGEST_WAIT_S: Final = 3_600.0
USUAL_PAUSE_S: Final = 3_600.0
"""Default limit of a pause, in seconds."""
LONGEST_PAUSE_S: Final = 86_400.0

NAME_RULE: Final = "it has 1 to 64 of A-Z a-z 0-9 _ . - /"
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-/]{1,64}", re.ASCII)


def value_of(text: str) -> Any:
    """Parse a JSON value; raises ValueError, RecursionError."""
    from json import loads  # noqa: PLC0415 - most command lines have no knob

    return loads(text)


def _text_of(value: Any) -> str:
    from json import dumps  # noqa: PLC0415

    return dumps(value)


def is_name(text: str) -> bool:
    """Return whether a text is a valid knob name."""
    return _NAME.fullmatch(text) is not None


def value_error(text: str) -> str:
    """Return why a JSON text is no valid value of a knob, for people; "" if it is."""
    try:
        value = value_of(text) if len(text) <= _MOST_JSON else None
    except (ValueError, RecursionError):
        value = None
    match value:
        case str():
            is_one, rule = len(value) <= MOST_TEXT, f"a text has {MOST_TEXT} characters at most"
        case bool():
            is_one, rule = True, ""
        case int():
            is_one, rule = abs(value) <= MOST_STEP, "a whole number has 62 bits at most"
        case float():
            is_one, rule = math.isfinite(value), "a number is finite"
        case _:
            is_one, rule = False, "it is a number, a text, true or false, as JSON"
    return "" if is_one else rule


def json_of(word: str) -> str:
    """Return a word of the command line as JSON: a number, true or false if it is one, else a text."""
    lowered = word.lower()
    if lowered in {"true", "false"}:
        return lowered
    try:
        return _text_of(int(word))
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        return _text_of(word)
    return _text_of(number) if math.isfinite(number) else _text_of(word)


def word_of(text: str) -> str:
    """Return the word of the command line that `json_of` reads as this JSON; ambiguous texts are quoted."""
    value: Any = value_of(text)
    is_plain = isinstance(value, str) and json_of(value) == text and "@" not in value
    return value if is_plain and not value.startswith('"') else text


def setting_word(name: str, value: str, at: int | None) -> str:
    """Return NAME=VALUE[@STEP] for a value in JSON, as `setting_of` reads it."""
    return f"{name}={word_of(value)}" + ("" if at is None else f"@{at}")


def setting_of(word: str) -> tuple[str, str, int | None]:
    """Parse NAME=VALUE[@STEP] to name, value in JSON and step; the ValueError says what is wrong."""
    name, has_value, value = word.partition("=")
    if not is_name(name):
        raise ValueError(f"{name[:80]!r} is not the name of a knob: {NAME_RULE}")
    if not has_value:
        raise ValueError(
            f"knob {name} has no value: it takes NAME=VALUE, or NAME=VALUE@STEP, without spaces around ="
        )
    before, has_step, step = value.rpartition("@")
    at = None
    if has_step and step.isascii() and step.isdigit() and len(step) < _STEP_DIGITS:
        value, at = before, int(step)
    text = _quoted(value) or json_of(value)
    if why := value_error(text):
        raise ValueError(f"{value[:80]!r} is no value for the knob {name}: {why}")
    return name, text, at


def settings_of(words: Iterable[str]) -> dict[str, str]:
    """Parse words NAME=VALUE to JSON values by name; raises ValueError, also for a step or a duplicate name."""
    values: dict[str, str] = {}
    for word in words:
        name, value, step = setting_of(word)
        if name in values:
            raise ValueError(f"the knob {name} is given twice")
        if step is not None:
            raise ValueError(f"the step is named by --at: nsml set SESSION {name}=... --at {step}")
        values[name] = value
    return values


def step_of(word: str) -> int:
    """Parse 5000 or step=5000; raises ValueError."""
    digits = word.removeprefix("step=").replace(",", "").replace("_", "")
    is_one = digits.isascii() and digits.isdigit() and len(digits) <= _STEP_DIGITS
    if not is_one or int(digits) > MOST_STEP:
        raise ValueError(f"{word[:80]!r} is no step: it takes 5000, or step=5000")
    return int(digits)


def _quoted(word: str) -> str:
    """Return a word in quotes as JSON; "" for any other."""
    if len(word) < len('""') or not (word[0] == word[-1] == '"'):
        return ""
    try:
        return word if isinstance(value_of(word), str) else ""
    except ValueError:
        return ""
