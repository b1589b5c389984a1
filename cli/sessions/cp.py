"""cp: copies files and folders out of a running session, or into it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

import click

from cli.app import App
from cli.exits import CommandError, ExitCode
from cli.group import command, json_flag, pass_app
from cli.output import write_one
from nsml._path_text import path_text
from nsml.common.text import visible
from nsml.common.units import counted, size_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from nsml.client.calls import Client
    from nsml.copying.messages import Report

_PATTERN = re.compile(r"[*?\[]")
_RANK = re.compile(r"([0-9]{1,9}):(.*)", re.DOTALL)
_SESSION = re.compile(r"@last|@[1-9]\d*|s[a-z2-7]{16}")
"""Session references, hardly ever names of files."""
_SHOWN_IN_ERROR = 3
_GOES_ON = "the same command goes on where this one stopped"


class _Remote(NamedTuple):
    """A path in a replica."""

    session: str
    rank: int
    path: str


@command(
    "cp",
    examples=[
        "nsml cp @last:checkpoints .",
        "nsml cp kim/mnist/3:/tmp/profile.json profile.json",
        "nsml cp data.csv 12:1:data/",
    ],
)
@click.argument("source", metavar="[SESSION[:RANK]:]SOURCE")
@click.argument("target", metavar="[SESSION[:RANK]:]TARGET")
@click.option(
    "-r",
    "-R",
    "--recursive",
    "-a",
    "--archive",
    is_flag=True,
    expose_value=False,
    help="No effect: known from cp and scp, and always so here.",
)
@json_flag
@pass_app
def cp(app: App, *, source: str, target: str) -> int:
    """Copy files and folders out of a running session, or into it.

    One side is SESSION:PATH or SESSION:RANK:PATH, relative to where the program was started; a local
    name with a colon is written ./NAME. Folders are copied with all that is in them; FOLDER/. is what
    is in it. If the target is a folder, or ends with /, the copy gets into it under its own name.
    Patterns and ~ are not expanded in the session.

    Links in folders stay links, and permissions and times are kept. Files replace those that differ;
    files of the same size and time are skipped. A copy that was interrupted is resumed by the same
    command, large files in their middle: until a file is whole it is called .nsml-cp-*.

    Sockets, pipes, devices and what cannot be read are left out and listed, as are links that would
    lead out of a local copy; the exit code is then 9. Own sessions; administrators all.
    """
    there, here = _sides(source, target)
    from nsml.client.files import FILES

    _check_home(there.path)

    async def copy(client: Client, shown: Callable[[int, int], None]) -> Report:
        from nsml.client.errors import NotFound

        session, rank, path = there
        try:
            if source is here:
                return await client.sessions.copy_in(session, here, path, rank=rank, progress=shown)
            return await client.sessions.copy_out(session, path, here, rank=rank, progress=shown)
        except NotFound as error:
            if error.reason == FILES and source is not here and _PATTERN.search(path):
                error.advice = (
                    "patterns are not expanded in the session: name a file, or its folder"
                )
            raise

    began_at = app.clock.monotonic()
    report = carried_out(app, copy, here, "read" if source is here else "written")
    elapsed_s = app.clock.monotonic() - began_at
    write_one(app, _record(source, target, report, elapsed_s), [], name="target")
    return judged(app, report, source if source is here else there.path)


def carried_out(
    app: App,
    copy: Callable[[Client, Callable[[int, int], None]], Awaitable[Report]],
    here: str,
    done: str,
) -> Report:
    """Run a copy with progress and print what was copied; return its report. `here` is the local side, which is `done`."""
    from cli.progress import Progress

    progress = Progress(app, "copying")
    came = (0, 0)

    def shown(size: int, total: int) -> None:
        nonlocal came
        came = size, total
        progress.update(min(size, total), total)

    async def call(client: Client) -> Report:
        from nsml.client.errors import ConnectionLost
        from nsml.common.c_memory import keep_freed_memory

        keep_freed_memory()
        try:
            return await copy(client, shown)
        except ConnectionLost as error:
            raise CommandError(
                error.message,
                code=ExitCode.UNAVAILABLE,
                why=visible(error.why),
                advice=_GOES_ON,
            ) from error

    try:
        report = app.call(call, waits=False)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandError(f"{here!r} cannot be {done}", why=reason) from error
    except KeyboardInterrupt:
        progress.close()
        app.say(_left(*came))
        raise
    finally:
        progress.close()
    app.say(_words(report))
    return report


def _sides(source: str, target: str) -> tuple[_Remote, str]:
    """Return the side in a session, and the local one."""
    remotes = _remote(source), _remote(target)
    match remotes:
        case (None, _Remote() as there):
            _check_local(source)
            return there, source
        case (_Remote() as there, None):
            _check_local(target)
            return there, target
        case (None, None):
            raise click.UsageError("neither is in a session: write SESSION:PATH")
    raise click.UsageError(
        "both are in a session: copy to a local file first; a local name with a colon is written ./NAME"
    )


def _check_local(text: str) -> None:
    """Raise if the text names a session and no existing file: the colon is missing."""
    if _SESSION.fullmatch(text) and not os.path.lexists(text):
        raise click.UsageError(
            f"{text!r} names a session and no path in it: write {text}: for its folder, ./{text} for a local file"
        )


def _remote(text: str) -> _Remote | None:
    """Parse SESSION:PATH; None for a local path: one without a colon, or with a path's first character."""
    session, colon, rest = text.partition(":")
    if not colon or not session or text.startswith(("/", ".", "~")):
        return None
    found = _RANK.fullmatch(rest)
    rank, path = (int(found[1]), found[2]) if found else (0, rest)
    return _Remote(session, rank, path or ".")


def _check_home(path: str) -> None:
    """Raise for a home folder: a new folder named ~ would be created."""
    if path.partition("/")[0] == "~":
        raise CommandError(
            "~ is not expanded in the session",
            code=ExitCode.USAGE,
            why="the home folder of a program is /tmp in most sessions; nsml sh SESSION -- printenv HOME says it",
            advice=f"SESSION:/tmp{path[1:]} for that folder; SESSION:./{path} for what is called so",
        )


def _record(source: str, target: str, report: Report, elapsed_s: float) -> dict[str, Any]:
    return {
        "source": source,
        "target": target,
        "files": report.files,
        "bytes": report.file_bytes,
        "skipped": report.skipped,
        "failed": report.failed,
        "left_out": [
            {"path": path_text(os.fsdecode(path)), "why": why} for path, why in report.failures
        ],
        "elapsed_s": round(elapsed_s, 3),
    }


def _left(done: int, total: int) -> str:
    """Return the progress of an interrupted copy; a `total` of 0 is unknown."""
    if not done:
        return "stopped before anything was copied"
    of = f" of {size_text(total)}" if total else ""
    return f"stopped at {size_text(done)}{of}; {_GOES_ON}"


def _words(report: Report) -> str:
    sizes = size_text(report.file_bytes)
    if report.files and report.resumed_bytes:
        sizes += f"; {size_text(report.resumed_bytes)} were there"
    words = f"copied {counted(report.files, 'file')} ({sizes})"
    if not report.skipped:
        return words
    return f"{words}, {report.skipped} {'was' if report.skipped == 1 else 'were'} there already"


def judged(app: App, report: Report, whole: str) -> int:
    """Print the failures and return the exit code. `whole`: the requested path."""
    if not report.failed:
        return ExitCode.OK
    named = [f"{_shown(path) or visible(whole)}: {visible(why)}" for path, why in report.failures]
    for line in named:
        app.say(f"left out: {line}")
    more = report.failed - len(named)
    if more > 0:
        app.say(f"and {more} more")
    is_part = bool(report.files or report.skipped)
    raise CommandError(
        f"{counted(report.failed, 'thing')} of it {'was' if report.failed == 1 else 'were'} not copied",
        code=ExitCode.PARTLY if is_part else ExitCode.FAILED,
        why="; ".join(named[:_SHOWN_IN_ERROR]) if app.is_quiet else "",
    )


def _shown(path: bytes) -> str:
    return visible(path.decode(errors="replace"))
