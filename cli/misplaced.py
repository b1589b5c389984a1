"""Misplaced arguments, as in `nsml forward 8888 @last`: finds the intended command line."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click

from nsml.common.shell import option_words, shell_line
from nsml.spec.dataset_names import is_dataset_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REFERENCE = re.compile(r"@last|@[1-9]\d*|s[a-z2-7]{16}|(?:[^/\s]+/){0,2}[1-9]\d*")
_FILTER = re.compile(r"^!?[a-z_]+:\S|[<>=]", re.IGNORECASE)
_SESSION = "session"
"""The type name of session arguments (`cli.arguments.SESSION`)."""
_NO_SESSION = ("does not name a session", "no session ")


def meant(context: click.Context, words: Sequence[str], message: str) -> str:
    """Return the command line with each argument in its place; "" if none seems misplaced.

    Args:
        context: the command's context; its arguments may not be parsed yet.
        words: the words after the command.
        message: the message of the command's error.
    """
    arguments = [one for one in context.command.params if isinstance(one, click.Argument)]
    values = {**_read(context, words), **context.params}
    corrected: list[str] = []
    if filtered := _as_filter(context, words, message):
        return filtered
    if [one.name for one in arguments] == ["name", "path"]:
        name, path = (str(values.get(one)) for one in ("name", "path"))
        if _is_name_last(name, path, reads=getattr(arguments[1].type, "exists", False)):
            corrected = _swapped(words, name, path)
    elif arguments and arguments[-1].type is click.UNPROCESSED:
        pass  # arguments of a program: none is a session
    elif len(arguments) > 1 and arguments[0].type.name == _SESSION:
        first, *others = (values.get(str(one.name)) for one in arguments)
        if _may_be(arguments[1], str(first), context):
            corrected = _session_first(words, str(first), _flat(others), message)
    elif any(text in message for text in _NO_SESSION):
        corrected = _as_option(context.command, words, message)
    if not corrected:
        return ""
    return shell_line([*context.command_path.split(" "), *corrected])


def _read(context: click.Context, words: Sequence[str]) -> Mapping[str, Any]:
    try:
        values, _, _ = context.command.make_parser(context).parse_args([*words])
    except click.UsageError:
        return {}
    return values


def _is_name_last(name: str, path: str, *, reads: bool) -> bool:
    """Return whether the dataset comes after the path; `reads`: the command reads the path, others create it."""
    if reads:
        return os.path.exists(name) and not os.path.exists(path)  # noqa: PTH110 - any text
    return not _names_dataset(name) and _names_dataset(path)


def _names_dataset(text: str) -> bool:
    owner, _, name = text.rpartition("/")
    return "/" not in owner and owner != "." and is_dataset_name(name.partition("@")[0])


def _flat(values: Sequence[Any]) -> list[str]:
    found: list[str] = []
    for value in values:
        found += map(str, value if isinstance(value, (tuple, list)) else [value])
    return found


def _may_be(argument: click.Argument, word: str, context: click.Context) -> bool:
    """Return whether the word can be meant for this argument: not if it names a session and is not just a number."""
    if _names_session(word):
        return False
    try:
        argument.type.convert(word, argument, context)
    except click.UsageError:
        return False
    return True


def _names_session(word: str) -> bool:
    """Return whether it is clearly a session reference: a number may also be a port, a checkpoint, code."""
    return _REFERENCE.fullmatch(word) is not None and not word.isdecimal()


def _session_first(
    words: Sequence[str], first: str, others: Sequence[str], message: str
) -> list[str]:
    """Return the words with the session moved to the first argument."""
    session = next(filter(_names_session, others), None)
    is_first_wrong = repr(first) in message and any(text in message for text in _NO_SESSION)
    is_other_wrong = session is not None and repr(session) in message
    if session is None or not (is_first_wrong or is_other_wrong):
        return []
    return _swapped(words, first, session)


def _swapped(words: Sequence[str], one: str, other: str) -> list[str]:
    found = [*words]
    if one not in found or other not in found or one == other:
        return []
    at, to = found.index(one), found.index(other)
    found[at], found[to] = other, one
    return found


def _as_filter(context: click.Context, words: Sequence[str], message: str) -> str:
    """Return the command on the output of `nsml ps`, if a filter such as `memo:sweep` was given as a session."""
    takes_several = any(one.name == "references" for one in context.command.params)
    if not takes_several or not any(text in message for text in _NO_SESSION):
        return ""
    found = [one for one in words if _FILTER.search(one) and repr(one) in message]
    if len(found) != 1:
        return ""
    rest = [one for one in words if one not in found]
    listing = shell_line(["nsml", "ps", "-a", *found, "-o", "name"])
    return f"{listing} | {shell_line([*context.command_path.split(' '), '-', *rest])}"


def _as_option(command: click.Command, words: Sequence[str], message: str) -> list[str]:
    """Return the words with -m before a metric given as a session."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    option = next((one for one in options if one.name == "metrics"), None)
    if option is None:
        return []
    for at, word in enumerate(words):
        if repr(word) not in message:
            continue
        if _names_session(word):
            return []
        if not any(_REFERENCE.fullmatch(other) for other in words if other != word):
            return []
        return [*words[:at], *option_words(option.opts[0], word), *words[at + 1 :]]
    return []
