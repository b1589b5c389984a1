"""`nsml`: dispatches a command line, and turns exceptions into messages and exit codes.

Nothing heavy is imported here: commands import their own needs.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
import sys
from typing import TYPE_CHECKING

from cli.app import App
from cli.exits import ExitCode
from cli.sessions import listing
from nsml.common.grpc_polling import poll_in_place
from nsml.common.resolving import bound_resolvers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

COMPLETE_VARIABLE = "_NSML_COMPLETE"


def main() -> None:
    """The program `nsml`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A closed stream is replaced by /dev/null, so that no socket gets its number.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks are replaced, never a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    # Imports make no garbage, and collection takes a twentieth of a short command; longer
    # commands turn it on again (App.call).
    gc.disable()
    # gRPC's own diagnostics would mix with ours on stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    poll_in_place()
    bound_resolvers(os.environ)
    if os.environ.get(COMPLETE_VARIABLE):
        from cli.root import PROGRAM, root

        root.main(prog_name=PROGRAM, obj=App(environ=os.environ))
    code = run(sys.argv[1:], App(environ=os.environ))
    # Everything is done: skipping the interpreter's teardown saves a tenth of a command.
    sys.stderr.flush()
    os._exit(code)


def run(arguments: Sequence[str], app: App) -> int:
    """Run one command line and return its exit code; never raises, never exits."""
    app.arguments = tuple(arguments)
    try:
        # click writes its help texts to sys.stdout.
        with contextlib.redirect_stdout(app.stdout):
            # Settings of one command line, such as its time zone, end with it.
            code = contextvars.copy_context().run(_run, arguments, app)
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
        answered = listing.answer_plainly(arguments, app)
        if answered:
            return ExitCode.OK
        return _invoke(arguments, app)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the top of the program
        return _fail(error, arguments, app)


def _invoke(arguments: Sequence[str], app: App) -> int:
    import click

    from cli.root import PROGRAM, root

    try:
        with root.make_context(PROGRAM, list(arguments), obj=app) as context:
            result = root.invoke(context)
    except click.exceptions.Abort:
        return ExitCode.INTERRUPTED
    except click.exceptions.Exit as left:
        return left.exit_code
    return int(result) if isinstance(result, int) else ExitCode.OK


def _fail(error: Exception, arguments: Sequence[str], app: App) -> int:
    from cli.problems import EXPECTED, defect, problem_of, tell

    problem = problem_of(error) if isinstance(error, EXPECTED) else defect(error)
    if app.flags.is_debug or app.environ.get("NSML_DEBUG"):
        import traceback

        app.stderr.write("".join(traceback.format_exception(error)))
    if app.flags.output is None:
        _note_format(error, arguments, app)
    tell(app, problem)
    return problem.code


def _note_format(error: Exception, arguments: Sequence[str], app: App) -> None:
    """Apply the format flags of a line that could not be parsed as a whole."""
    import click

    if not isinstance(error, click.UsageError):
        return

    from cli.group import output_options

    lenient = click.Command(
        name=None,
        params=output_options(),
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    with contextlib.suppress(click.UsageError):
        lenient.make_context(None, list(arguments), obj=app)


def _close_quietly(stream: IO[str]) -> None:
    """Discard the rest of the output, as the reader is gone: else the interpreter writes it at exit."""
    try:
        number = stream.fileno()
    except OSError:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


if __name__ == "__main__":
    main()
