"""Retention rules for the checkpoints of a session, as a text: `best:3:val/acc:max last:2`. Used by clients and servers.

A session may request `best:3 last:2`: the metric is that of its project's rules, else of the platform's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

KEEP_ALL: Final = "all"
EXAMPLE: Final = "best:3:val/acc:max last:2"
MOST_KEPT: Final = 100_000
MOST_RULES: Final = 8
MOST_CHARACTERS: Final = 1_000
RULE: Final = "it has words such as last:2 and best:3:METRIC:max (or :min), or is the word all"
_LAST: Final = re.compile(r"last:([0-9]{1,6})", re.ASCII)
_BEST_OF_PROJECT: Final = re.compile(r"best:([0-9]{1,6})", re.ASCII)
_BEST: Final = re.compile(r"best:([0-9]{1,6}):(.+):(max|min)", re.ASCII)


class Best(NamedTuple):
    """Keep this number of checkpoints with the largest, or the smallest, values of a metric."""

    number: int
    metric: str
    is_max: bool


class CheckpointRetention(NamedTuple):
    """Keep the `last` newest checkpoints, and those of each `best` rule; at least 1 each."""

    last: int
    best: tuple[Best, ...] = ()

    @property
    def text(self) -> str:
        """The canonical text of the rules."""
        words = [f"best:{n}:{name}:{'max' if is_max else 'min'}" for n, name, is_max in self.best]
        return " ".join([*words, f"last:{self.last}"])


def retention_of(text: str) -> CheckpointRetention | None:
    """Parse retention rules; None: all checkpoints are kept.

    The last one is always kept, so rules without `last` have `last:1`.

    Raises:
        ValueError: the text is invalid; the message says why.
    """
    words = _words(text)
    if words == [KEEP_ALL]:
        return None
    last: int | None = None
    best: list[Best] = []
    for word in words:
        if found := _LAST.fullmatch(word):
            if last is not None:
                raise ValueError("last: is there twice")
            last = _number(word, found[1])
        elif found := _BEST.fullmatch(word):
            if any(known.metric == found[2] for known in best):
                raise ValueError(f"best: is there twice for {found[2]}")
            best.append(Best(_number(word, found[1]), found[2], found[3] == "max"))
        else:
            raise ValueError(_why_not(word))
    return CheckpointRetention(last or 1, tuple(best))


def canonical(text: str) -> str:
    """Return the text in which rules are stored; ValueError as `retention_of`."""
    rules = retention_of(text)
    return KEEP_ALL if rules is None else rules.text


def canonical_request(text: str) -> str:
    """As `canonical`, for a session's request: `best:N` may leave the metric to its project (`with_metric`)."""
    words = text.split()
    found = [one for one in map(_BEST_OF_PROJECT.fullmatch, words) if one]
    if not found:
        return canonical(text)
    _words(text)
    if found[1:]:
        raise ValueError("best: is there twice without a metric")
    rest = " ".join(word for word in words if word != found[0][0])
    if rest == KEEP_ALL:
        raise ValueError(_why_not(KEEP_ALL))
    number = _number(found[0][0], found[0][1])
    return f"best:{number} {canonical(rest or 'last:1')}"


def with_metric(text: str, declared: Iterable[str]) -> str:
    """Return the canonical request; if `best` has no metric, it gets that of the first `best` rule in `declared`.

    Raises ValueError: `declared` has no `best` rule, or the request has a rule for that metric, too.
    """
    words = text.split()
    if not any(map(_BEST_OF_PROJECT.fullmatch, words)):
        return text
    rules = [retention_of(one) for one in declared if one]
    best = next((one for rule in rules if rule is not None for one in rule.best), None)
    if best is None:
        raise ValueError("best names no metric, and no rule of its project or the platform does")
    of = f"{best.metric}:{'max' if best.is_max else 'min'}"
    return canonical(
        " ".join(f"{one}:{of}" if _BEST_OF_PROJECT.fullmatch(one) else one for one in words)
    )


def _words(text: str) -> list[str]:
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters, and {MOST_CHARACTERS:,} are the most")
    words = text.split()
    if not words:
        raise ValueError("it is empty")
    if not all(word.isprintable() for word in words):
        raise ValueError("it has characters that cannot be printed")
    if len(words) > MOST_RULES:
        raise ValueError(f"it has {len(words)} words, and {MOST_RULES} are the most")
    return words


def _number(word: str, digits: str) -> int:
    if not 0 < int(digits) <= MOST_KEPT:
        raise ValueError(f"{word}: it is 1 to {MOST_KEPT:,} checkpoints")
    return int(digits)


def _why_not(word: str) -> str:
    if word == KEEP_ALL:
        return "all goes with nothing else"
    if word.startswith("best:"):
        return f"{word[:80]}: best needs a metric and its direction: best:3:METRIC:max or best:3:METRIC:min"
    return f"{word[:80]}: {RULE}"
