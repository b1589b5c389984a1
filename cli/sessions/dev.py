"""dev: a session without a program of its own, to work in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from cli.arguments import flag_options, visibility_options
from cli.exits import CommandError, ExitCode
from cli.group import SplitCommand, command, the_app
from cli.sessions.preflight import check_first
from cli.sessions.remote_program import run_joined
from cli.sessions.run import options_of, submitted, submitted_text
from nsml.common.units import duration_text
from nsml.spec.variables import without_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.programs import RemoteProgram
    from nsml.v1.sessions_pb2 import Session

IDLE_LIMIT_S: Final = 2 * 3600.0
"""Unless another one is given: what nobody uses must not hold devices for ever."""
_WAITS: Final = ("python", "-c", "import threading; threading.Event().wait()")
"""A session that calls Python has the environment that its code asks for, at least a bare Python."""
_WAITS_IN_IMAGE: Final = ("sleep", "infinity")
"""What is in an image that somebody names need not be Python."""
_OF_RUN: Final = {
    "positional": None,
    "rerun": None,
    "is_argv": True,
    "max_size": None,
}
"""What `run` has beside the flags of both: nothing of a program."""


@command(
    "dev",
    cls=SplitCommand,
    examples=[
        "nsml dev -g 1",
        "nsml dev -g 1 -d mnist --image pytorch/pytorch:2.4.0",
        "nsml dev -g 1 --idle-limit 8h --detach",
        "nsml dev --stop -- python -i model.py",
    ],
)
@flag_options
@visibility_options
@click.option("--code/--no-code", "sends_code", default=True, help="Send this folder (default).")
@click.option("-D", "--detach", "is_detached", is_flag=True, help="Only start it.")
@click.option("--stop", "stops", is_flag=True, help="Stop it when the shell or program ends.")
@click.pass_context
def dev(context: click.Context, /, **given: Any) -> int:
    """Start a session to work in, and open a shell in it.

    The session gets this folder, datasets, GPUs and environment as with nsml run, but runs no
    program of its own. Words after -- are started there instead of a shell.

    It goes on when the shell ends: nsml sh, nsml ssh, nsml forward and nsml cp reach it. It is
    stopped once nobody was connected and its GPUs and CPUs did nothing for the idle limit, 2
    hours unless --idle-limit says otherwise. What is changed in the session stays there: fetch it
    with nsml cp. nsml run from the same folder trains with the same code and environment.
    """
    app = the_app(context)
    is_detached, stops = given.pop("is_detached"), given.pop("stops")
    words: list[str] = context.meta["words"] or []
    if is_detached and (stops or words):
        raise click.UsageError(
            "--detach starts no shell or program: leave out --stop and the words after --"
        )
    if given["entry"] or given["args"]:
        raise click.UsageError("there is no program to start: -e and -a are of nsml run")
    if given["idle_limit"] is None:
        given["idle_limit"] = IDLE_LIMIT_S
    typed = context.meta["typed"]
    waits = _WAITS_IN_IMAGE if given["image"] else _WAITS
    options = options_of({**_OF_RUN, **given}, [*waits], typed)
    repeat = [word for one in typed for word in one.words]
    options.request.command[:] = ("nsml", "dev", *without_values(repeat))
    check_first(app, options)
    session = submitted(app, options)
    if session is None:
        return ExitCode.INTERRUPTED
    app.write(submitted_text(app, session))
    app.stdout.flush()
    if is_detached:
        app.say(f"  shell: nsml sh {session.name}   stop: nsml stop {session.name}")
        return ExitCode.OK
    return _work_in(app, session, words, stops=stops)


def _work_in(app: App, session: Session, words: Sequence[str], *, stops: bool) -> int:
    """The shell or program, once the session runs; its exit code."""
    try:
        _wait_for(app, session)

        def opening(
            client: Client, environment: Mapping[str, str], terminal: tuple[int, int] | None
        ) -> AbstractAsyncContextManager[RemoteProgram]:
            return client.sessions.open_program(
                session.id, words, environment=environment, terminal=terminal
            )

        code = run_joined(
            app,
            words,
            opening,
            has_terminal=None,
            has_no_input=False,
            lost="error: the session has ended, and this program with it",
            command_line=f"nsml sh {session.name}",
        )
    except KeyboardInterrupt:
        app.say("")
        code = ExitCode.INTERRUPTED
    if stops:
        app.call(lambda client: client.sessions.stop(session.id, reason="nsml dev --stop"))
        app.say(f"session {session.name} is stopped")
    else:
        _tell_how_it_goes_on(app, session)
    return code


def _wait_for(app: App, session: Session) -> None:
    """Return once it runs, saying what it waits for."""
    from nsml.client.streams import ENDED_STATES, wait_until
    from nsml.common.text import visible
    from nsml.v1 import sessions_pb2 as pb
    from nsml.view.sessions import state_text, waiting_text

    told = session.waiting  # printed already

    def is_over(seen: Session) -> bool:
        nonlocal told
        if seen.waiting and seen.waiting != told:
            told = seen.waiting
            app.say(visible(waiting_text(seen)))
        return seen.state in {pb.SESSION_STATE_RUNNING, pb.SESSION_STATE_HELD, *ENDED_STATES}

    seen = app.call(lambda client: wait_until(client, session.id, is_over))
    if seen.state != pb.SESSION_STATE_RUNNING:
        raise CommandError(
            f"session {seen.name} {state_text(seen)}",
            why=visible(seen.end.message),
            advice=f"nsml logs {seen.name}",
        )


def _tell_how_it_goes_on(app: App, session: Session) -> None:
    from nsml.client.errors import ClientError
    from nsml.client.streams import ENDED_STATES

    try:
        seen = app.call(lambda client: client.sessions.get(session.id))
    except ClientError:
        seen = session  # what is known of it
    if seen.state in ENDED_STATES:
        return
    limit = duration_text(seen.spec.idle_limit.ToNanoseconds() / 1e9)
    app.say(f"session {seen.name} continues until it is idle for {limit}")
    app.say(f"  shell: nsml sh {seen.name}   stop: nsml stop {seen.name}")
