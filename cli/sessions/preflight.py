"""Checks of `run` before the folder is read: the entry, names of datasets, and a configured platform."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from cli.app import App, is_stopped
from cli.arguments import split_dataset
from cli.exits import CommandError, ExitCode
from cli.group import near
from nsml.client.errors import Unavailable
from nsml.common.shell import option_words, shell_line, shell_word
from nsml.spec.dataset_names import mounted_dataset
from nsml.spec.run_flags import DEFAULT_ENTRY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.group import Typed
    from cli.sessions.run_request import RunOptions
    from nsml.client.contexts import ContextError

_LONGEST_SHOWN = 200
"""Most characters of a word repeated in an error."""


def no_entry(message: str, *, why: str = "", advice: str = "") -> CommandError:
    """Return the error for an entry, or a program of the folder, that is missing or cannot be run."""
    return CommandError(message, code=ExitCode.USAGE, reason="NO_ENTRY", why=why, advice=advice)


def check_first(app: App, options: RunOptions) -> None:
    """Raise for a missing entry, or if no platform is configured, before the folder is read; both in one."""
    try:
        if options.repetition is None and not options.spec.argv:
            _check_entry(Path.cwd(), options.spec.entry)
    except CommandError as error:
        if (no_platform := _platform_error(app)) is not None:
            error.why += f"; and {no_platform.message}"
            error.advice += f"\n{no_platform.advice}"
        raise
    app.context  # noqa: B018 - raises where none is known; one that is may be starting, and is waited for


def entry_of(named: str, typed: Sequence[Typed], words: Sequence[str]) -> str:
    """Return the program: the named one, as a path in this folder, else main.py.

    Raises CommandError for a whole command line, `"train.py --lr 0.1"` or `-- python train.py`, with the one meant.
    """
    from cli.sessions.program_words import meant_by

    options = [one for one in typed if one.option is not None and one.option.name != "entry"]
    if not named:
        is_there = Path(DEFAULT_ENTRY).exists()
        if not is_there and (meant := meant_by(options, words)):
            raise no_entry(
                f"no such entry file: {DEFAULT_ENTRY}",
                why="the words behind -- are arguments of the entry, or with --argv a command",
                advice=f"{meant}\n{shell_line(['nsml', 'run', '--argv', '--', *words])}",
            )
        return DEFAULT_ENTRY
    path = Path(named)
    if path.is_absolute():
        with suppress(ValueError):
            return path.relative_to(Path.cwd()).as_posix()
    if not path.exists() and (given := _unquoted_arguments(typed)):
        # `-a --lr 0.1`: an unquoted value, split by the shell.
        raise no_entry(
            f"no such entry file: {named}",
            why="-a takes all arguments as one word, in quotes",
            advice=f"nsml run ... {shell_line(['-a', f'{given} {named}'])}\n"
            f"nsml run ... {shell_line(['--', given, named])}",
        )
    line = [] if path.exists() else named.split()
    if len(line) > 1 and (meant := meant_by(options, [*line, *words])):
        raise no_entry(
            f"no such entry file: {named}",
            why="it names a file; its arguments come behind --",
            advice=meant,
        )
    return named


def _unquoted_arguments(typed: Sequence[Typed]) -> str:
    """Return the value of -a if it is one word with a leading dash and the next word was parsed as the entry; else ""."""
    for one, behind in pairwise(typed):
        if one.option is not None and one.option.name == "args" and behind.option is None:
            value = one.words[-1].removeprefix("--args=")
            return value if value.startswith("-") and " " not in value else ""
    return ""


def check_dataset_name(reference: str) -> None:
    """Raise CommandError for a local folder, or a version in image syntax."""
    name = Path(reference).expanduser().resolve().name
    if reference.startswith((".", "/", "~")) and name:
        raise CommandError(
            f"a dataset is named, not given as a path: {reference[:_LONGEST_SHOWN]}",
            code=ExitCode.USAGE,
            why="a folder of this machine is pushed once, and then used by its name",
            advice=f"nsml dataset push {shell_line([name, reference])}\n"
            f"nsml run -d {shell_word(name)} ...",
        )
    split_dataset(reference.partition("=")[0])
    try:
        mounted_dataset(reference)
    except ValueError:
        raise CommandError(
            f"{reference[:_LONGEST_SHOWN]!r} names no folder of /data",
            code=ExitCode.USAGE,
            why="after = comes a name as datasets have them, without a slash",
            advice=f"nsml run -d {shell_word(reference.partition('=')[0])}=OTHER ...",
        ) from None


def _check_entry(folder: Path, entry: str) -> None:
    path = folder / entry
    inside = Path(entry).parts
    if Path(entry).is_absolute() or ".." in inside:
        raise CommandError(
            f"the entry {entry} is outside this folder",
            code=ExitCode.USAGE,
            advice="run it from the folder that holds the program",
        )
    if path.is_file():
        return
    programs = sorted(item.name for item in folder.glob("*.py"))
    nearest = near(entry, programs) or programs[:3]
    raise no_entry(
        f"no such entry file: {entry}" + (" (it is a folder)" if path.is_dir() else ""),
        why=f"looked in {folder}",
        advice="\n".join(
            shell_line(["nsml", "run", *option_words("-e", name, long="--entry")])
            for name in nearest
        )
        or "cd FOLDER    to where your program is\n"
        "nsml run --argv -- COMMAND    for a program that is not Python",
    )


def _platform_error(app: App) -> ContextError | Unavailable | None:
    """Return why there is no platform to submit to, if known without a request."""
    from nsml.client.contexts import ContextError

    try:
        servers = app.context.servers
    except ContextError as error:
        return error
    return app.explain(Unavailable("nobody answers")) if is_stopped(servers) else None
