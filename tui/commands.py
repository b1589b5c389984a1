"""Commands typed after `:`: parsing and completion. Pure.

A few belong to the dashboard itself; all others are commands of `nsml`, whose name may precede them.
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
"""The dashboard's own commands and their effects."""
_FLAGS: Final = {"ps": re.compile(r"--|-\w(\s|$)"), "plot": re.compile("-")}
"""Arguments that select the `nsml` command of the same name. In a filter, `-state:run` excludes."""


class Way(StrEnum):
    """How a command of `nsml` is run."""

    SHOWN = "shown"
    """It only reads: its output is shown."""
    ASKED = "asked"
    """It changes something: it is confirmed first, then its output is shown."""
    HANDED = "handed"
    """It asks, keeps running, or writes files: it gets the terminal until it ends."""


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
            "infer",
            "submit",
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
        **dict.fromkeys(
            ("ls", "search", "info", "board", "versions", "lineage", "diff"), Way.SHOWN
        ),
        **dict.fromkeys(("share", "describe", "tag", "untag", "restore"), Way.ASKED),
        **dict.fromkeys(("add", "push", "pull", "rm"), Way.HANDED),
    },
    "import": dict.fromkeys(("tensorboard", "mlflow", "wandb"), Way.HANDED),
    "submission": {"ls": Way.SHOWN, "info": Way.SHOWN},
    "board": {
        **dict.fromkeys(("ls", "show", "info", "diff"), Way.SHOWN),
        **dict.fromkeys(("create", "set"), Way.ASKED),
        **dict.fromkeys(("watch", "export", "reevaluate", "rm"), Way.HANDED),
    },
    "competition": {
        **dict.fromkeys(("ls", "show", "phases", "standings", "template", "verify"), Way.SHOWN),
        **dict.fromkeys(
            ("create", "update", "open", "join", "invite", "pick", "baseline", "announce", "rerun"),
            Way.ASKED,
        ),
        **dict.fromkeys(("page", "teams", "export", "merge", "close", "leave", "rm"), Way.HANDED),
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
"""By command of `nsml` and subcommand, if it has any.

Commands in `nsml.view.confirmation.COMMANDS` get the terminal: they ask themselves, and do what was confirmed.
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
        "infer",
        "submit",
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
"""Commands with sessions as arguments."""
_NEEDS_SESSIONS: Final = _OF_SESSIONS - {
    *("model", "artifact", "gpumonitor", "status", "tensorboard", "visdom")
}
"""Those with no meaning, or another one, without a session."""
MOST_OFFERED: Final = 8


class CommandError(ValueError):
    """Invalid input; `message` says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Own(NamedTuple):
    """A command of the dashboard, with its arguments."""

    name: str
    rest: str


class Nsml(NamedTuple):
    """A command of `nsml`: its words without that name, and how it is run."""

    words: tuple[str, ...]
    way: Way

    @property
    def text(self) -> str:
        """As typed in a shell."""
        return shell_line([PROGRAM, *self.words])


def understood(text: str) -> Own | Nsml | None:
    """Parse a line; None: it is empty.

    Raises CommandError if it is invalid.
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
    """Whether it needs a session and has only flags."""
    name, *behind = command.words
    is_bare = all(word.startswith("-") for word in behind)
    return name in _NEEDS_SESSIONS and is_bare and not {"-h", "--help"} & set(behind)


def run_of(text: str) -> Nsml:
    """Parse a line as `nsml run`; `nsml` is optional, and before a flag also `run`.

    Raises CommandError if it is another command, or none.
    """
    command = understood(f"run {text}" if text.strip().startswith("-") else text)
    if not isinstance(command, Nsml) or command.words[0] != "run":
        raise CommandError("this is no nsml run; its options are listed below")
    return command


class Settings(NamedTuple):
    """Arguments of `nsml set SESSION`: values in JSON by knob, the step, and the words themselves."""

    values: Mapping[str, str]
    at: int | None
    words: tuple[str, ...]


def settings_of(text: str) -> Settings:
    """Parse arguments of `nsml set`: NAME=VALUE [NAME=VALUE]... [--at STEP].

    Raises CommandError if they set nothing.
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
    """Return the lines that submit."""
    return [text for text in typed if _is_run(text)]


def _is_run(text: str) -> bool:
    try:
        run_of(text)
    except CommandError:
        return False
    return True


def rerun_of(line: str) -> str:
    """Return the session whose code a `nsml run` line reuses; "" if it sends a folder."""
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
    """Drop the memo of a `nsml run`, which is specific to that run; words after `--` are the program's."""
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
        # click accepts unambiguous prefixes of flags.
        flag = word.partition("=")[0]
        return any(one.startswith(flag) for one in _STAYS_OR_WRITES)
    return word.startswith("-") and bool({"f", "w"} & set(word[1:]))


def offered(
    text: str, *, sessions: Callable[[], Iterable[str]], contexts: Callable[[], Iterable[str]]
) -> list[str]:
    """Complete a line: whole lines, the likeliest first.

    Args:
        text: the input so far.
        sessions: returns names of sessions, called only if one may follow.
        contexts: returns names of contexts.
    """
    first, space, _ = text.lstrip().partition(" ")
    if not space:
        return _begun(first, [*OWN, *(one for one in WAYS if one not in OWN)], before="")
    lead, _, last = text.rpartition(" ")
    words = lead.split()
    words = words[1:] if words[0] == PROGRAM else words
    if words and words[0] in _OF_SESSIONS and not (len(words) == 1 and _following(words[0])):
        if words[0] in {"plot", "forward", "sh"} and len(words) > 1:  # it takes one
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
    """List names with this prefix, then others that contain it; look at no more names than needed."""
    begun, others = list[str](), list[str]()
    for name in names:
        if name.startswith(part):
            begun.append(before + shell_word(name))
            if len(begun) == MOST_OFFERED:
                break
        elif part in name and len(others) < MOST_OFFERED:
            others.append(before + shell_word(name))
    return [*begun, *others][:MOST_OFFERED]
