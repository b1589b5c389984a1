"""Several sessions from one command line: a range of numbers, and values of arguments in all combinations."""

from __future__ import annotations

import itertools
import re
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from cli.arguments import option_names, shell_words
from cli.group import Typed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST: Final = 1_000
"""Most sessions of one command line."""
INDEX: Final = "ARRAY_INDEX"
"""The variable with the number of each session of an array."""
LABEL: Final = "array"
"""The common label of sessions of one command line."""

_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_OPTIONS: Final = {"array", "sweep"}


class Member(NamedTuple):
    """One of the sessions, as if typed alone."""

    given: dict[str, Any]
    words: list[str] | None
    typed: list[Typed]
    text: str
    """Its differences from the others: `ARRAY_INDEX=3 lr=0.1`."""


def array_numbers(text: str) -> list[int]:
    """Parse `0-9`, `0-9:3` or `1,3,10-12` to numbers, in that order and each once; a usage error for other texts."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise click.UsageError(
                f"--array {text[:80]!r} is no range of numbers: 0-9, 0-9:3 or 1,3,10-12"
            )
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        step = int(found[3] or 1)
        if last < first or not step:
            raise click.UsageError(f"--array {part[:80]!r} has no numbers")
        if len(range(first, last + 1, step)) > MOST:
            raise _too_many(len(range(first, last + 1, step)))
        numbers.update(dict.fromkeys(range(first, last + 1, step)))
    return list(numbers)


def swept_values(text: str) -> tuple[str, list[str]]:
    """Return name and values of `lr=0.1,0.01`; a usage error for other texts."""
    name, equals, values = text.partition("=")
    found = [one.strip() for one in values.split(",")]
    if not equals or not _NAME.fullmatch(name) or not all(found):
        raise click.UsageError(
            f"--sweep {text[:80]!r} does not say which values: --sweep lr=0.1,0.01"
        )
    if twice := [one for one in dict.fromkeys(found) if found.count(one) > 1]:
        raise click.UsageError(
            f"--sweep {name[:80]} has the value {twice[0][:80]!r} twice: to run it twice, --array 1-2"
        )
    return name, found


def members(
    given: Mapping[str, Any], words: Sequence[str] | None, typed: Sequence[Typed]
) -> list[Member]:
    """Return the sessions of a command line, [] if it is one alone; a usage error for more than MOST."""
    if given["array"] is None and not given["sweep"]:
        return []
    numbers: list[int | None] = [None]
    if given["array"] is not None:
        numbers = [*array_numbers(given["array"])]
    sweeps = [swept_values(text) for text in given["sweep"]]
    names = [name for name, _ in sweeps]
    if len(set(names)) < len(names):
        raise click.UsageError("--sweep names one argument twice: give all its values at once")
    fixed = option_names([*shell_words("-a", given.get("args", "")), *(words or ())])
    if twice := [name for name in names if f"--{name}" in fixed]:
        raise click.UsageError(
            f"--{twice[0]} is given twice, by --sweep and as an argument: leave one out"
        )
    count = len(numbers)
    for _, values in sweeps:
        count *= len(values)
    if count > MOST:
        raise _too_many(count)
    kept = [one for one in typed if one.option is None or one.option.name not in _OPTIONS]
    label = (LABEL, secrets.token_hex(4))
    if LABEL not in dict(given["label"]):
        given = {**given, "label": (*dict(given["label"]).items(), label)}
        kept.append(Typed(None, ["--label", "=".join(label)]))
    return [
        _member(given, words, kept, number, list(zip(names, values, strict=True)))
        for number in numbers
        for values in itertools.product(*[values for _, values in sweeps])
    ]


def _member(
    given: Mapping[str, Any],
    words: Sequence[str] | None,
    typed: list[Typed],
    number: int | None,
    swept: list[tuple[str, str]],
) -> Member:
    own = list(_own_words(swept))
    texts = [f"{name}={value}" for name, value in swept]
    given = {**given, "array": None, "sweep": ()}
    if number is not None:
        variable = f"{INDEX}={number}"
        given["env"] = (*dict(given["env"]).items(), (INDEX, str(number)))
        typed = [*typed, Typed(None, ["--env", variable])]
        texts.insert(0, variable)
    all_words = None if words is None and not own else [*(words or ()), *own]
    return Member(given, all_words, typed, " ".join(texts))


def _own_words(swept: list[tuple[str, str]]) -> Iterator[str]:
    for name, value in swept:
        yield from (f"--{name}", value) if not value.startswith("-") else (f"--{name}={value}",)


def _too_many(count: int) -> click.UsageError:
    return click.UsageError(f"{count:,} sessions in one command line: at most {MOST:,}")
