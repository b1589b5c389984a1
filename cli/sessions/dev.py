"""dev: a session without a program of its own, to work in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from cli.arguments import flag_options, visibility_options
from cli.exits import CommandError, ExitCode
from cli.group import SplitCommand, command, the_app
from cli.sessions import jupyter
from cli.sessions.forward import PORT, forward_to
from cli.sessions.preflight import check_first
from cli.sessions.remote_program import UNKNOWN, run_joined
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
_OF_PROGRAMS: Final = frozenset({"entry", "args"})
"""Flags of `run` about its program; here they are refused."""
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
        "nsml dev -g 1 --jupyter",
    ],
)
@flag_options
@visibility_options
@click.option("--code/--no-code", "sends_code", default=True, help="Send this folder (default).")
@click.option("-D", "--detach", "is_detached", is_flag=True, help="Only start it.")
@click.option("--jupyter", "is_jupyter", is_flag=True, help="JupyterLab instead of a shell.")
@click.option("--port", type=PORT, metavar="P", help="With --jupyter: the port on this machine.")
@click.option("--stop", "stops", is_flag=True, help="Stop it when the shell or program exits.")
@click.pass_context
def dev(context: click.Context, /, **given: Any) -> int:
    """Start a session to work in, and open a shell in it.

    The session gets this folder, datasets, GPUs and environment as with nsml run, but runs no
    program of its own. Words after -- are started there instead of a shell.

    --jupyter starts the JupyterLab of that environment (jupyterlab in requirements.txt, or in the
    image) and prints its address on this machine, until Ctrl-C.

    It goes on when the shell ends: nsml sh, nsml ssh, nsml forward and nsml cp reach it. It is
    stopped once nobody was connected and its GPUs and CPUs did nothing for the idle limit, 2
    hours unless --idle-limit says otherwise. What is changed in the session stays there: fetch it
    with nsml cp. nsml run from the same folder trains with the same code and environment.
    """
    app = the_app(context)
    is_detached, stops = given.pop("is_detached"), given.pop("stops")
    is_jupyter, port = given.pop("is_jupyter"), given.pop("port")
    words: list[str] = context.meta["words"] or []
    if is_detached and (stops or words):
        raise click.UsageError(
            "--detach starts no shell or program: leave out --stop and the words after --"
        )
    if is_jupyter and (is_detached or words):
        raise click.UsageError("--jupyter goes without --detach and words after --")
    if port is not None and not is_jupyter:
        raise click.UsageError("--port goes with --jupyter")
    if given["entry"] or given["args"]:
        raise click.UsageError("there is no program to start: -e and -a are of nsml run")
    if given["idle_limit"] is None:
        given["idle_limit"] = IDLE_LIMIT_S
    typed = context.meta["typed"]
    waits = _WAITS_IN_IMAGE if given["image"] else _WAITS
    waits = jupyter.ARGV if is_jupyter else waits
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
    try:
        advice = jupyter.advice_for(session) if is_jupyter else f"nsml logs {session.name}"
        _wait_for(app, session, advice)
        code = _serve(app, session, port) if is_jupyter else _work_in(app, session, words)
    except KeyboardInterrupt:
        app.say("")
        code = ExitCode.INTERRUPTED
    if (
        stops and code != UNKNOWN
    ):  # of a broken connection nobody knows; what was made there would be lost
        app.call(lambda client: client.sessions.stop(session.id, reason="nsml dev --stop"))
        app.say(f"session {session.name} is stopped")
    else:
        _tell_how_it_goes_on(app, session, is_jupyter=is_jupyter)
    return code


for _option in dev.params:
    if isinstance(_option, click.Option) and _option.name in _OF_PROGRAMS:
        _option.hidden = True


def _serve(app: App, session: Session, port: int | None) -> int:
    """Forward JupyterLab until the session ends."""
    app.say("waiting for Jupyter...")

    async def serve(client: Client) -> None:
        token = await jupyter.token_of(client, session)

        def address(server: str) -> str:
            return f"http://{server}/lab?token={token}" if token else f"http://{server}/lab"

        await forward_to(app, client, session, jupyter.SERVICE, port=port, address=address)

    app.call(serve)
    return ExitCode.OK


def _work_in(app: App, session: Session, words: Sequence[str]) -> int:
    """The shell or program; its exit code."""

    def opening(
        client: Client, environment: Mapping[str, str], terminal: tuple[int, int] | None
    ) -> AbstractAsyncContextManager[RemoteProgram]:
        return client.sessions.open_program(
            session.id, words, environment=environment, terminal=terminal
        )

    return run_joined(
        app,
        words,
        opening,
        has_terminal=None,
        has_no_input=False,
        lost="error: the session has ended, and this program with it",
        command_line=f"nsml sh {session.name}",
    )


def _wait_for(app: App, session: Session, advice: str) -> None:
    """Return once it runs, saying what it waits for; `advice` is what to do where it ends before."""
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
            advice=advice,
        )


def _tell_how_it_goes_on(app: App, session: Session, *, is_jupyter: bool) -> None:
    from nsml.client.errors import ClientError
    from nsml.client.streams import ENDED_STATES
    from nsml.v1 import sessions_pb2 as pb

    try:
        seen = app.call(lambda client: client.sessions.get(session.id))
    except ClientError:
        seen = session  # what is known of it
    if seen.state in ENDED_STATES:
        return
    if seen.state in {pb.SESSION_STATE_QUEUED, pb.SESSION_STATE_PREPARING}:
        app.say(f"session {seen.name} is not running yet; stop: nsml stop {seen.name}")
        return
    limit = duration_text(seen.spec.idle_limit.ToNanoseconds() / 1e9)
    app.say(f"session {seen.name} continues until it is idle for {limit}")
    again = f"address: nsml forward {seen.name} {jupyter.SERVICE}   " if is_jupyter else ""
    app.say(f"  {again}shell: nsml sh {seen.name}   stop: nsml stop {seen.name}")
