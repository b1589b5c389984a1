"""`nsml`: finds the command, runs it, and turns what it raises into words and an exit code."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import TYPE_CHECKING

import click

from cli.app import App, Format
from cli.exits import ExitCode
from cli.group import HELP_NAMES, LazyGroup, global_options, output_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

PROGRAM = "nsml"
COMPLETE_VARIABLE = "_NSML_COMPLETE"

COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Sessions": {
        "run": ("cli.run:run", "Submit a session: your code, a dataset, some GPUs."),
        "ps": ("cli.sessions:ps", "List sessions."),
        "logs": ("cli.logs:logs", "Show what a session printed."),
        "plot": ("cli.metrics:plot", "Draw what a session reported."),
        "stop": ("cli.sessions:stop", "Ask sessions to end."),
        "rm": ("cli.sessions:rm", "Remove ended sessions with all that they left."),
        "events": ("cli.metrics:events", "Show the reported values themselves."),
        "eventlen": ("cli.metrics:eventlen", "Count the reported values."),
        "memo": ("cli.sessions:memo", "Write a session's note."),
        "getid": ("cli.sessions:getid", "Show a session's id."),
        "command": ("cli.sessions:repeat", "Show the command line that repeats a session."),
        "model": ("cli.models:model", "Checkpoints: list, fetch."),
        "forward": ("cli.forward:forward", "Reach what a session's program serves."),
    },
    "Data": {
        "dataset": ("cli.datasets:dataset", "Datasets: push, list, describe."),
    },
    "Machines": {
        "gpustat": ("cli.nodes:gpustat", "Show every GPU and what is on it."),
        "status": ("cli.nodes:status", "Show the platform in a few lines."),
        "node": ("cli.nodes:node", "Nodes: list."),
        "up": ("cli.platform:up", "Start a platform on this machine."),
        "down": ("cli.platform:down", "Stop the platform on this machine."),
        "join": ("cli.platform:join", "Make this machine a node of a platform."),
    },
    "You": {
        "login": ("cli.access:login", "Use a platform that runs elsewhere."),
        "logout": ("cli.access:logout", "Make this context's token invalid."),
        "context": ("cli.access:context", "Contexts: list, choose."),
        "config": ("cli.settings:config", "Settings: get, set, where they are."),
        "completion": ("cli.completion:completion", "Completion for your shell."),
        "admin": ("cli.admin:admin", "Users, tokens, joining nodes."),
        "version": ("cli.topics:version", "Versions of this program and the platform."),
        "help": ("cli.topics:show_help", "Help on a command or a topic."),
    },
}


def _show_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from nsml._version import VERSION

        click.echo(f"nsml {VERSION}")
        context.exit()


def _root() -> LazyGroup:
    options: list[click.Parameter] = [*global_options(), *output_options()]
    options.append(
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version.",
        )
    )
    for option in options[:-1]:
        if isinstance(option, click.Option):
            option.hidden = True
    return LazyGroup(
        name=PROGRAM,
        sections=COMMANDS,
        params=options,
        callback=lambda: None,
        help="A machine-learning platform run from a terminal.\n\n"
        "Help on everything: nsml COMMAND -h, nsml help flags, nsml help exit-codes.",
        context_settings=HELP_NAMES,
    )


root = _root()


def main() -> None:
    """The program `nsml`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter gets a replacement, never a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    # Imports make no garbage, and looking for it takes a twentieth of a short command; commands
    # that run longer have it on again (App.call).
    gc.disable()
    # gRPC's own diagnostics would go to stderr beside ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if os.environ.get(COMPLETE_VARIABLE):
        root.main(prog_name=PROGRAM, obj=App(environ=os.environ))
    code = run(sys.argv[1:], App(environ=os.environ))
    # Nothing is left to be done: skipping the interpreter's teardown saves a tenth of a command.
    sys.stderr.flush()
    os._exit(code)


def run(arguments: Sequence[str], app: App) -> int:
    """Run one command line and give its exit code; never raises, never exits."""
    try:
        # click writes its help texts to sys.stdout.
        with contextlib.redirect_stdout(app.stdout):
            code = _run(arguments, app)
        app.stdout.flush()
    except BrokenPipeError:
        _close_quietly(app.stdout)
        return ExitCode.PIPE_CLOSED
    except KeyboardInterrupt:
        with contextlib.suppress(BrokenPipeError):
            app.stdout.flush()
        app.stderr.write("\n")
        return ExitCode.INTERRUPTED
    return code


def _run(arguments: Sequence[str], app: App) -> int:
    try:
        with root.make_context(PROGRAM, list(arguments) or ["--help"], obj=app) as context:
            result = root.invoke(context)
    except BrokenPipeError:
        raise
    except click.exceptions.Abort:
        return ExitCode.INTERRUPTED
    except click.exceptions.Exit as left:
        return left.exit_code
    except Exception as error:  # noqa: BLE001 - the top of the program
        return _fail(error, arguments, app)
    return int(result) if isinstance(result, int) else ExitCode.OK


def _fail(error: Exception, arguments: Sequence[str], app: App) -> int:
    from cli.problems import EXPECTED, as_json, lines, problem_of

    if isinstance(error, EXPECTED):
        problem = problem_of(error)
    else:
        from cli.problems import defect

        problem = defect(error)
    if app.flags.is_debug or app.environ.get("NSML_DEBUG"):
        import traceback

        app.stderr.write("".join(traceback.format_exception(error)))
    if _wants_json(arguments, app):
        app.stderr.write(as_json(problem) + "\n")
    else:
        for number, line in enumerate(lines(problem)):
            coloured = app.has_colour(app.stderr) and not number
            app.stderr.write((app.paint(line, "red") if coloured else line) + "\n")
    return problem.code


def _wants_json(arguments: Sequence[str], app: App) -> bool:
    """Whether errors are for programs: decided from the words where they were not parsed."""
    if app.flags.output is not None:
        return app.flags.output in {Format.JSON, Format.JSONL}
    words = list(arguments)[: list(arguments).index("--")] if "--" in arguments else arguments
    return any(
        word in {"-j", "--json", "-ojson", "--output=json", "--json-return"}
        or (word in {"-o", "--output"} and list(words[place + 1 : place + 2]) == ["json"])
        for place, word in enumerate(words)
    )


def _close_quietly(stream: IO[str]) -> None:
    """Keep the interpreter from writing what is left to a reader who is gone."""
    try:
        number = stream.fileno()
    except OSError:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


if __name__ == "__main__":
    main()
