"""Errors for users: what, why, and what to try; or one JSON object."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.app import App, Format
from cli.exits import CommandError, ExitCode, code_of
from cli.group import BadValue, Command, SplitCommand, long_name, near, suggestions
from nsml.client.contexts import ContextError, DamagedToken, NoContext
from nsml.client.errors import AmbiguousReference, ClientError, NotSignedIn, Unavailable
from nsml.common.shell import hint_line, option_words, shell_line, shell_word
from nsml.common.text import escaped, visible
from nsml.content.errors import ContentError, EmptyFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONTINUED = " " * 7
"""Indent of further lines: as wide as `error: ` and `  why: `."""
EXPECTED = (
    *(ClientError, ContentError, ContextError, CommandError, click.ClickException, OSError),
    UnicodeEncodeError,
)
"""Expected errors of a command; anything else is a defect."""

_UNEXPECTED = "unexpected argument: "
_QUOTED = re.compile("'([^']*)' is not one of ")
"""The beginning of click's error for an invalid choice."""
_LONGEST_SHOWN = 80
_BYTE = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, as Python decodes it from the command line and the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One failure, ready to be printed."""

    code: ExitCode
    reason: str
    message: str
    why: str = ""
    advice: Sequence[str] = ()
    candidates: Sequence[str] = ()
    retry_after_s: float | None = None


def problem_of(error: BaseException) -> Problem:
    """Convert an expected error; see EXPECTED."""
    match error:
        case ClientError():
            return _platform_problem(error)
        case CommandError() | ContextError():
            return _our_problem(error)
        case click.ClickException():
            return _usage_problem(error)
        case OSError():
            return _system_problem(error)
        case UnicodeEncodeError():
            return _encoding_problem(error)
    code = ExitCode.USAGE if isinstance(error, EmptyFolder) else ExitCode.FAILED
    return Problem(code=code, reason=_reason(error), message=str(error))


def _our_problem(error: CommandError | ContextError) -> Problem:
    advice = error.advice.splitlines()
    if isinstance(error, CommandError):
        return Problem(
            code=error.code,
            reason=error.reason,
            message=error.message,
            why=error.why,
            advice=advice,
        )
    is_sign_in = isinstance(error, (NoContext, DamagedToken))
    return Problem(
        code=ExitCode.DENIED if is_sign_in else ExitCode.USAGE,
        reason="CONTEXT",
        message=error.message,
        advice=advice,
    )


def _platform_problem(error: ClientError) -> Problem:
    advice = error.advice.splitlines()
    candidates: Sequence[str] = ()
    if isinstance(error, AmbiguousReference):
        candidates = error.candidates
    if isinstance(error, NotSignedIn) and not advice:
        advice = ["nsml login HOST"]
    if error.retry_after_s:
        advice = [f"again in {error.retry_after_s:g} s or later", *advice]
    elif isinstance(error, Unavailable) and not advice:
        advice = ["nsml status", "nsml context ls"]
    return Problem(
        code=code_of(error),
        reason=error.reason or _reason(error),
        message=error.message,
        why="" if candidates else error.why,
        advice=advice,
        candidates=candidates,
        retry_after_s=error.retry_after_s,
    )


def _usage_problem(error: click.ClickException) -> Problem:
    advice: list[str] = []
    message = _usage_message(error)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        path = error.ctx.command_path
        if isinstance(error, click.NoSuchOption):
            message = f"no such option: {error.option_name}"
            advice += [f"{path} {name}" for name in suggestions(error)]
            if isinstance(error.ctx.command, SplitCommand):
                option = shell_word(error.option_name)
                whole = "" if advice else _moved_behind(error.ctx)
                advice.append(
                    f"{whole or f'{path} ... -- {option} ...'}  # an option of your program"
                )
        if isinstance(error, click.BadParameter):
            advice += _instead(error, path)
        advice += getattr(error, "advice", "").splitlines()
        if isinstance(error, click.MissingParameter):
            advice += _completed(error, path)
        if path == "nsml run" and message.startswith(_UNEXPECTED):
            advice.append(
                _moved_behind(error.ctx) or f"{path} ENTRY -- ARGS    for arguments of the program"
            )
        if path == "nsml status" and message.startswith(_UNEXPECTED):
            advice.append(f"{path} --explain {message.removeprefix(_UNEXPECTED)}")
        if path == "nsml cp" and message.startswith(_UNEXPECTED):
            advice.append("copy one source at a time, or the folder that has them all")
        advice = [*dict.fromkeys([*advice, f"{path} --help"])]
    why = error.why if isinstance(error, BadValue) else _usage_why(error)
    code = ExitCode.USAGE if isinstance(error, click.UsageError) else ExitCode.FAILED
    return Problem(code=code, reason="USAGE", message=message.rstrip("."), why=why, advice=advice)


def _instead(error: click.BadParameter, path: str) -> list[str]:
    """Return the command with each nearest value."""
    if not isinstance(error.param, (click.Option, click.Argument)):
        return []
    if isinstance(error, BadValue):
        nearest: Sequence[str] = error.nearest
    elif isinstance(error.param.type, click.Choice) and (wrong := _QUOTED.match(error.message)):
        nearest = near(wrong[1], [str(one) for one in error.param.type.choices])
    else:
        return []
    if isinstance(error.param, click.Argument):
        return [] if isinstance(error, BadValue) else [f"{path} {one}" for one in nearest]
    return [
        f"{path} {shell_line(option_words(long_name(error.param), value))} ..." for value in nearest
    ]


def _moved_behind(context: click.Context) -> str:
    """Return `nsml run train.py -- --lr 0.1` for `nsml run train.py --lr 0.1`; "" if ambiguous."""
    from cli.sessions.program_words import corrected

    return corrected(context.meta.get("typed") or (), context.meta.get("words") or ())


def _completed(error: click.MissingParameter, path: str) -> list[str]:
    """Return the command with the missing argument: complete if it takes sessions alone, else its help's example."""
    own = error.ctx.command if error.ctx is not None else None
    if error.ctx is None or not isinstance(own, Command):
        return []
    lacking = [one for one in own.params if isinstance(one, click.Argument) and one.required]
    if error.param is lacking[0] and all(map(_names_sessions, lacking)):
        mine = [one for one in own.examples if "@last" in one.split()]
        return [min(mine, key=len, default=f"{path} @last")]
    listed = []
    if isinstance(error.param, click.Argument) and error.param.name in {
        "checkpoint",
        "checkpoints",
    }:
        listed = [f"nsml model ls {shell_word(error.ctx.params.get('session') or '@last')}"]
    return [*listed, *(f"{one}    # for example" for one in own.examples[:1])]


def _names_sessions(argument: click.Argument) -> bool:
    return str(argument.metavar).startswith("SESSION")


def _system_problem(error: OSError) -> Problem:
    where = f"{error.filename}: " if error.filename else ""
    message = f"{where}{error.strerror or error}"
    advice: Sequence[str] = ()
    if isinstance(error, FileNotFoundError) and not where and _is_nowhere():
        message, advice = "the folder that you are in is not there any more", ("cd to one that is",)
    return Problem(code=ExitCode.FAILED, reason="SYSTEM", message=message, advice=advice)


def _encoding_problem(error: UnicodeEncodeError) -> Problem:
    """Convert the error for a command-line word that is not UTF-8; values of variables are refused earlier, unshown."""
    shown = _BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", error.object)
    if shown == error.object:  # not a byte decoded by `os.fsdecode`
        return defect(error)
    return Problem(
        code=ExitCode.USAGE,
        reason="NOT_UTF_8",
        message=f"'{shown[:_LONGEST_SHOWN]}' is not UTF-8",
        why="names, arguments and values of variables are text in UTF-8",
        advice=["the same in UTF-8, or in a file of the folder, which may hold any bytes"],
    )


def _is_nowhere() -> bool:
    """Return whether the working folder was removed."""
    try:
        Path.cwd()
    except OSError:
        return True
    return False


def _usage_why(error: click.ClickException) -> str:
    """Return all arguments in order, if one of several is missing, else ""."""
    match error:
        case click.MissingParameter(param=click.Argument(), ctx=click.Context() as context):
            own = context.command.get_params(context)
            names = [one.make_metavar(context) for one in own if isinstance(one, click.Argument)]
            shown = [name for name in names if name]
            return f"{context.command_path} takes {' '.join(shown)}" if len(shown) > 1 else ""
    return ""


def _usage_message(error: click.ClickException) -> str:
    """Return the error of the command line: `--env: ...` for a value of an option or argument."""
    match error:
        case click.MissingParameter(param=click.Argument() as argument, ctx=click.Context() as ctx):
            return f"missing argument: {argument.make_metavar(ctx)}"
        case click.MissingParameter():
            return error.format_message()
        case click.BadOptionUsage(ctx=click.Context() as context):
            return _option_message(error, context)
        case click.BadParameter(param=click.Option() as option):
            return f"{long_name(option)}: {error.message}"
        case click.BadParameter(param=click.Argument() as argument, ctx=click.Context() as context):
            return f"{argument.make_metavar(context)}: {error.message}"
    extra = re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", error.format_message())
    return f"{_UNEXPECTED}{extra[1]}" if extra else error.format_message()


def _option_message(error: click.BadOptionUsage, context: click.Context) -> str:
    """Return `-d needs a value: DATASET`, or that the option takes none."""
    options = [one for one in context.command.get_params(context) if isinstance(one, click.Option)]
    name = error.option_name
    found = next((one for one in options if name in (*one.opts, *one.secondary_opts)), None)
    if found is None:
        return error.format_message()
    if found.is_flag:
        return f"{name} takes no value"
    return f"{name} needs a value: {found.make_metavar(context)}"


def _reason(error: BaseException) -> str:
    """Return TARGET_EXISTS for TargetExists."""
    name = type(error).__name__
    return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name)).upper()


def tell(app: App, problem: Problem) -> None:
    """Write the problem to stderr: as JSON if the output is JSON or JSONL; as text if the format is invalid."""
    try:
        is_for_programs = app.format in {Format.JSON, Format.JSONL}
        is_nsml_style = app.is_nsml_style
    except (CommandError, ContextError):
        is_for_programs = is_nsml_style = False
    if is_for_programs:
        app.stderr.write(_json(problem) + "\n")
        return
    lines = _lines(problem)
    if is_nsml_style:
        from nsml.view.nsml_style import error_lines

        said = [visible(line) for line in error_lines(problem.reason, problem.message, problem.why)]
        # The cause in our words follows, unless that is what was said.
        ours = lines[1:] if said == [f"Error: {visible(problem.message)}"] else _below(lines)
        lines = [*said, *ours]
    first, *rest = (part for line in lines for part in app.folded_words(line))
    if app.has_colour(app.stderr):
        first = app.paint(first, "red")
    app.stderr.write("\n".join((first, *rest)) + "\n")


def _below(lines: Sequence[str]) -> list[str]:
    """Return the lines of a problem to stand below another one: `  why: ` instead of `error: `."""
    return [f"  why: {lines[0].removeprefix('error: ')}", *lines[1:]]


def _lines(problem: Problem) -> list[str]:
    """Return the lines for people."""
    first, *rest = problem.message.splitlines() or [problem.reason]
    out = [f"error: {visible(first)}"]
    # Indented below the first line, so that none looks like a line of ours.
    out += [f"{_CONTINUED}{visible(line)}" for line in rest]
    for number, line in enumerate(problem.why.splitlines()):
        out.append(f"  why: {visible(line)}" if not number else f"{_CONTINUED}{visible(line)}")
    for number, name in enumerate(problem.candidates):
        out.append(f"  {'one of:' if not number else '       '} {visible(name)}")
    for number, line in enumerate(problem.advice):
        out.append(f"  {'try:' if not number else '    '} {visible(hint_line(line))}")
    return out


def _json(problem: Problem) -> str:
    """Return the JSON line for programs."""
    error: dict[str, Any] = {
        "code": int(problem.code),
        "reason": problem.reason,
        "message": problem.message,
        "why": problem.why or None,
        "try": [hint_line(line) for line in problem.advice],
    }
    if problem.retry_after_s is not None:
        error["retry_after_s"] = problem.retry_after_s
    if problem.candidates:
        error["candidates"] = list(problem.candidates)
    return escaped(json.dumps({"schema_version": 1, "error": error}, ensure_ascii=False))


def defect(error: BaseException) -> Problem:
    """Convert an unexpected error."""
    return Problem(
        code=ExitCode.FAILED,
        reason="DEFECT",
        message=f"a defect of nsml itself: {type(error).__name__}: {error}",
        advice=["run it again with --debug and report what it shows"],
    )
