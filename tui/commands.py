"""What is typed behind `:`: what it means, and how it can go on. Pure.

A few words are of the dashboard itself; all others are those of `nsml`, whose name may stand before them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.common.shell import shell_line, shell_split, shell_word
from nsml.spec import knobs
from nsml.view.filtering import completions
from nsml.view.themes import THEMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PROGRAM: Final = "nsml"
OWN: Final[Mapping[str, str]] = {
    "q": "leave",
    "ps": "filter the list: ps state:run lr>=1e-3",
    "plot": "the charts of a session: plot NAME",
    "ctx": "another platform: ctx NAME",
    "theme": "other colours: theme NAME",
    "history": "earlier commands, to run again",
}
"""The dashboard's own words, and what they do."""
_FLAGS: Final = {"ps": re.compile(r"--|-\w(\s|$)"), "plot": re.compile("-")}
"""How those begin which `nsml` has, too, and is meant by. In a filter `-state:run` is what does not fit."""


class Way(StrEnum):
    """How a command of `nsml` is carried out."""

    SHOWN = "shown"
    """It only reads: what it writes is shown."""
    ASKED = "asked"
    """It changes something: whether it is meant is asked, then what it writes is shown."""
    HANDED = "handed"
    """It asks, stays, or writes files: it gets the terminal, and gives it back."""


_EVERY: Final = ""
WAYS: Final[Mapping[str, Mapping[str, Way]]] = {
    **{
        name: {_EVERY: Way.SHOWN}
        for name in (
            "ps",
            "queue",
            "logs",
            "plot",
            "diff",
            "events",
            "eventlen",
            "getid",
            "command",
            "media",
            "gpustat",
            "gpumonitor",
            "top",
            "stacks",
            "status",
            "storage",
            "version",
            "help",
        )
    },
    "logout": {_EVERY: Way.ASKED},
    **{
        name: {_EVERY: Way.HANDED}
        for name in (
            "stop",
            "requeue",
            "rm",
            "memo",
            "run",
            "fork",
            "resume",
            "rerun",
            "dev",
            "tensorboard",
            "visdom",
            "dashboard",
            "forward",
            "sh",
            "cp",
            "pull",
            "download",
            "backup",
            "restore",
            "ssh",
            "ssh-config",
            "ssh-proxy",
            "export",
            "up",
            "down",
            "join",
            "login",
            "completion",
        )
    },
    **{name: {_EVERY: Way.ASKED} for name in ("exec", "set", "pause", "continue", "load")},
    "model": {
        "ls": Way.SHOWN,
        "info": Way.SHOWN,
        "pull": Way.HANDED,
        "rm": Way.HANDED,
        "tag": Way.ASKED,
        "untag": Way.ASKED,
    },
    "artifact": {
        "ls": Way.SHOWN,
        "info": Way.SHOWN,
        "pull": Way.HANDED,
        "rm": Way.HANDED,
    },
    "dataset": {
        **dict.fromkeys(("ls", "search", "info", "versions", "lineage", "diff"), Way.SHOWN),
        **dict.fromkeys(("share", "describe", "tag", "untag", "restore"), Way.ASKED),
        **dict.fromkeys(("add", "push", "pull", "rm"), Way.HANDED),
    },
    "image": {
        "ls": Way.SHOWN,
        "pull": Way.HANDED,
        "rm": Way.HANDED,
        "build": Way.HANDED,
        "login": Way.HANDED,
        "logins": Way.SHOWN,
        "logout": Way.HANDED,
    },
    "env": {"build": Way.HANDED, "ls": Way.SHOWN, "lock": Way.SHOWN, "rm": Way.HANDED},
    "secret": {"ls": Way.SHOWN, "set": Way.HANDED, "rm": Way.HANDED},
    "key": {"ls": Way.SHOWN, "add": Way.HANDED, "rm": Way.HANDED},
    "webhook": {"show": Way.SHOWN, "set": Way.HANDED, "test": Way.ASKED, "rm": Way.HANDED},
    "node": {
        "ls": Way.SHOWN,
        "show": Way.SHOWN,
        "sh": Way.HANDED,
        "drain": Way.HANDED,
        "resume": Way.HANDED,
        "fence": Way.HANDED,
        "rm": Way.HANDED,
    },
    "doctor": {_EVERY: Way.SHOWN, "chaos": Way.HANDED, "node": Way.SHOWN, "storage": Way.SHOWN},
    "project": {
        "ls": Way.SHOWN,
        "show": Way.SHOWN,
        "create": Way.ASKED,
        "set": Way.ASKED,
        "add": Way.ASKED,
        "remove": Way.HANDED,
        "rm": Way.HANDED,
    },
    "context": {"ls": Way.SHOWN, "use": Way.ASKED},
    "config": {"get": Way.SHOWN, "path": Way.SHOWN, "set": Way.ASKED},
    "admin": {
        "user": Way.HANDED,
        "join-token": Way.HANDED,
        "backup": Way.HANDED,
        "restore": Way.HANDED,
        "audit": Way.SHOWN,
    },
}
"""Of each command of `nsml`, by the word behind it where it has such.

Those of `nsml.view.confirmation.COMMANDS` are handed the terminal: they ask themselves, and do what was confirmed.
"""
_STAYS_OR_WRITES: Final = (
    "--follow",
    "--watch",
    "--export",
    "--svg",
    "--png",
    "--tensorboard",
    "--edit",
)
_OF_SESSIONS: Final = frozenset(
    {
        "plot",
        "logs",
        "diff",
        "fork",
        "resume",
        "rerun",
        "stop",
        "requeue",
        "rm",
        "memo",
        "events",
        "eventlen",
        "getid",
        "command",
        "media",
        "model",
        "artifact",
        "gpumonitor",
        "top",
        "stacks",
        "status",
        "export",
        "backup",
        "forward",
        "sh",
        "exec",
        "set",
        "pause",
        "continue",
        "load",
        "cp",
        "pull",
        "download",
        "tensorboard",
        "visdom",
    }
)
"""Commands that are followed by sessions."""
_NEEDS_SESSIONS: Final = _OF_SESSIONS - {
    *("model", "artifact", "gpumonitor", "status", "tensorboard", "visdom")
}
"""Those of them that mean nothing without a session, or something else."""
MOST_OFFERED: Final = 8


class CommandError(ValueError):
    """What was typed means nothing; `message` says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Own(NamedTuple):
    """A word of the dashboard, with what stands behind it."""

    name: str
    rest: str


class Nsml(NamedTuple):
    """A command of `nsml`: its words without that name, and how it is carried out."""

    words: tuple[str, ...]
    way: Way

    @property
    def text(self) -> str:
        """As it is typed in a shell."""
        return shell_line([PROGRAM, *self.words])


def understood(text: str) -> Own | Nsml | None:
    """What a line means; None: nothing was typed.

    Raises CommandError where it means nothing.
    """
    first, _, rest = text.strip().partition(" ")
    if not first:
        return None
    flags = _FLAGS.get(first)
    if first in OWN and not (flags and flags.match(rest.strip())):
        return Own(first, rest.strip())
    if "\0" in text:
        raise CommandError("no program takes the character NUL")
    try:
        words = shell_split(text)
    except ValueError as error:
        raise CommandError("a quote that nothing closes, or \\ at the end") from error
    if words[0] == PROGRAM:
        words = words[1:]
    if not words:
        raise CommandError("nsml, and what? nsml help lists the commands")
    return Nsml(tuple(words), _way(words))


def lacks_session(command: Nsml) -> bool:
    """Whether it needs a session and has nothing but flags."""
    name, *behind = command.words
    is_bare = all(word.startswith("-") for word in behind)
    return name in _NEEDS_SESSIONS and is_bare and not {"-h", "--help"} & set(behind)


def run_of(text: str) -> Nsml:
    """The `nsml run` that a line says; `nsml` may be left out, before a flag `run`, too.

    Raises CommandError where it is another command, or none.
    """
    command = understood(f"run {text}" if text.strip().startswith("-") else text)
    if not isinstance(command, Nsml) or command.words[0] != "run":
        raise CommandError("this is no nsml run; its options are listed below")
    return command


class Settings(NamedTuple):
    """What is behind `nsml set SESSION`: values in JSON by knob, the step, and the words themselves."""

    values: Mapping[str, str]
    at: int | None
    words: tuple[str, ...]


def settings_of(text: str) -> Settings:
    """What a line sets, as `nsml set` takes it: NAME=VALUE [NAME=VALUE]... [--at STEP].

    Raises CommandError where it sets nothing.
    """
    try:
        words = shell_split(text)
    except ValueError as error:
        raise CommandError("a quote that nothing closes, or \\ at the end") from error
    named: list[str] = []
    at, rest = None, iter(words)
    try:
        for word in rest:
            flag, has_step, step = word.partition("=")
            if flag == "--at":
                at = knobs.step_of(step if has_step else next(rest, ""))
            else:
                named.append(word)
        values = knobs.settings_of(named)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not values:
        raise CommandError("no knob is named: it takes NAME=VALUE")
    return Settings(values, at, tuple(words))


def runs_of(typed: Iterable[str]) -> list[str]:
    """Those of the lines that submit."""
    return [text for text in typed if _is_run(text)]


def _is_run(text: str) -> bool:
    try:
        run_of(text)
    except CommandError:
        return False
    return True


def rerun_of(line: str) -> str:
    """The session whose code a line of `nsml run` runs again; "" where it sends a folder."""
    with suppress(ValueError):
        found = ""
        words = iter(shell_split(line))
        for word in words:
            if word == "--":
                break
            if word == "--rerun":
                found = next(words, "")
            elif word.startswith("--rerun="):
                found = word.removeprefix("--rerun=")
        return found
    return ""


def without_memo(words: Sequence[str]) -> list[str]:
    """A `nsml run` without its memo, which tells that run from others; what is behind `--` is the program's."""
    end = words.index("--") if "--" in words else len(words)
    kept: list[str] = []
    flags = iter(words[:end])
    for word in flags:
        if word in {"-m", "--memo"}:
            next(flags, "")
        elif not word.startswith("--memo="):
            kept.append(word)
    return [*kept, *words[end:]]


def _way(words: Sequence[str]) -> Way:
    if words[0].startswith("-"):
        if words[0] in {"--version", "-h", "--help"}:
            return Way.SHOWN
        raise CommandError("the command comes first, then its flags")
    ways = WAYS.get(words[0])
    if ways is None:
        own = ", ".join(OWN)
        raise CommandError(f"no command {words[0]!r}: nsml help lists them, beside {own} here")
    ours = words[1 : words.index("--")] if "--" in words else words[1:]
    if {"-h", "--help"} & set(ours):
        return Way.SHOWN
    if "--dry-run" in words[1:] and words[0] != "run":
        return Way.SHOWN
    following = words[1] if len(words) > 1 else _EVERY
    way = ways.get(following, ways.get(_EVERY, Way.SHOWN))
    if way is Way.SHOWN and any(map(_stays_or_writes, words[1:])):
        return Way.HANDED
    return way


def _stays_or_writes(word: str) -> bool:
    if word.startswith("--"):
        # click takes what a flag begins with for the flag where that is no other.
        flag = word.partition("=")[0]
        return any(one.startswith(flag) for one in _STAYS_OR_WRITES)
    return word.startswith("-") and bool({"f", "w"} & set(word[1:]))


def offered(
    text: str, *, sessions: Callable[[], Iterable[str]], contexts: Callable[[], Iterable[str]]
) -> list[str]:
    """How a line could go on: whole lines, the likeliest first.

    Args:
        text: what is typed so far.
        sessions: names of sessions, asked for where one may stand.
        contexts: those of platforms.
    """
    first, space, _ = text.lstrip().partition(" ")
    if not space:
        return _begun(first, [*OWN, *(one for one in WAYS if one not in OWN)], before="")
    lead, _, last = text.rpartition(" ")
    words = lead.split()
    words = words[1:] if words[0] == PROGRAM else words
    if words and words[0] in _OF_SESSIONS and not (len(words) == 1 and _following(words[0])):
        if words[0] in {"plot", "forward", "sh"} and len(words) > 1:  # it is of one
            return []
        others = (name for name in sessions() if name not in words)
        return _holding(last, others, f"{lead} ")
    if words[:1] == ["ps"]:
        return [f"{lead} {one}" for one in completions(last)][:MOST_OFFERED]
    return _begun(last, _words_behind(words, contexts), f"{lead} ")


def _following(name: str) -> list[str]:
    return [word for word in WAYS.get(name, {}) if word]


def _words_behind(words: Sequence[str], contexts: Callable[[], Iterable[str]]) -> Iterable[str]:
    match words:
        case []:
            return WAYS
        case ["theme"]:
            return THEMES
        case ["ctx"]:
            return contexts()
        case [name]:
            return _following(name)
    return ()


def _begun(part: str, names: Iterable[str], before: str) -> list[str]:
    return [before + name for name in names if name.startswith(part)][:MOST_OFFERED]


def _holding(part: str, names: Iterable[str], before: str) -> list[str]:
    """What begins with it, then what has it anywhere; no more names are looked at than have to be."""
    begun, others = list[str](), list[str]()
    for name in names:
        if name.startswith(part):
            begun.append(before + shell_word(name))
            if len(begun) == MOST_OFFERED:
                break
        elif part in name and len(others) < MOST_OFFERED:
            others.append(before + shell_word(name))
    return [*begun, *others][:MOST_OFFERED]
