"""dev: interactive sessions without a program."""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from cli.arguments import flag_options, visibility_options
from cli.exits import CommandError, ExitCode
from cli.group import SplitCommand, command, the_app
from cli.sessions.code_server import CODE_SERVER
from cli.sessions.forward import PORT, forward_to
from cli.sessions.jupyter import JUPYTER
from cli.sessions.preflight import check_first
from cli.sessions.remote_program import UNKNOWN, run_joined
from cli.sessions.run import options_of, submitted, submitted_text
from cli.sessions.synced import SyncedFolder
from cli.signals import ended_as_by_ctrl_c
from nsml.common.units import duration_text
from nsml.spec.dev_sessions import WAITS, WAITS_IN_IMAGE
from nsml.spec.variables import without_values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from cli.app import App
    from cli.sessions.servers import Server
    from cli.sessions.sync import FolderSync
    from nsml.client.calls import Client
    from nsml.client.programs import RemoteProgram
    from nsml.v1.sessions_pb2 import Session

IDLE_LIMIT_S: Final = 2 * 3600.0
"""Default idle limit, in seconds: unused sessions must not hold devices for ever."""
_OF_PROGRAMS: Final = frozenset({"entry", "args"})
"""Program flags of `run`; refused here."""
_OF_RUN: Final = {
    "positional": None,
    "is_argv": True,
    "max_size": None,
    "rehash": False,
}
"""Parameters of `run` alone: no program."""


@command(
    "dev",
    cls=SplitCommand,
    examples=[
        "nsml dev -g 1",
        "nsml dev -g 1 -d mnist --image pytorch/pytorch:2.4.0",
        "nsml dev -g 1 --idle-limit 8h --detach",
        "nsml dev --stop -- python -i model.py",
        "nsml dev -g 1 --jupyter",
        "nsml dev -g 1 --sync",
    ],
)
@flag_options
@visibility_options
@click.option("--code/--no-code", "sends_code", default=True, help="Send this folder (default).")
@click.option("-D", "--detach", "is_detached", is_flag=True, help="Only start it.")
@click.option("--jupyter", "is_jupyter", is_flag=True, help="JupyterLab instead of a shell.")
@click.option("--code-server", "is_code", is_flag=True, help="VS Code in the browser, likewise.")
@click.option("--port", type=PORT, metavar="P", help="The port on this machine of either.")
@click.option("--sync", "is_synced", is_flag=True, help="Keep its folder in step with this one.")
@click.option("--new", "is_new", is_flag=True, help="With --sync: start another session.")
@click.option("--no-shell", "has_no_shell", is_flag=True, help="With --sync: do only that.")
@click.option("--stop", "stops", is_flag=True, help="Stop it when the shell or program exits.")
@click.pass_context
def dev(context: click.Context, /, **given: Any) -> int:
    """Start a session to work in, and open a shell in it.

    The session gets this folder, datasets, GPUs and environment as with nsml run, but runs no
    program of its own. Words after -- are started there instead of a shell.

    --jupyter starts the JupyterLab of that environment (jupyterlab in requirements.txt, or in the
    image) and prints its address on this machine, until Ctrl-C.

    --sync sends every change of this folder while the command runs, and brings both into step at
    its start. What programs changed or made in the session is kept there, and named. Called again
    in the same folder, it opens another shell in the same session.

    Ctrl-C, SIGTERM or SIGHUP stop the session while it waits; --detach leaves it in the queue.

    It goes on when the shell ends: nsml sh, nsml ssh, nsml forward and nsml cp reach it. It is
    stopped once nobody was connected and its GPUs and CPUs did nothing for the idle limit, 2
    hours unless --idle-limit says otherwise. What is changed in the session stays there: fetch it
    with nsml cp. nsml run from the same folder trains with the same code and environment.
    """
    app = the_app(context)
    way = _Way(**{name: given.pop(name) for name in _Way._fields})
    words: list[str] = context.meta["words"] or []
    _check(given, way, words)
    with ended_as_by_ctrl_c():
        return _dev(app, context, given, way, words)


for _option in dev.params:
    if isinstance(_option, click.Option) and _option.name in _OF_PROGRAMS:
        _option.hidden = True


def _dev(
    app: App,
    context: click.Context,
    given: dict[str, Any],
    way: _Way,
    words: Sequence[str],
) -> int:
    started = _started(app, context, given, way, words)
    if started is None:
        return ExitCode.INTERRUPTED
    session, server = started.session, way.server
    if way.is_detached:
        app.say(f"  shell: nsml sh {session.name}   stop: nsml stop {session.name}")
        return ExitCode.OK
    stops_waiting = way.stops or started.is_new  # nobody has worked in it
    try:
        advice = server.advice(session) if server else f"nsml logs {session.name}"
        _wait_for(app, session, advice, stops=stops_waiting)
    except KeyboardInterrupt:
        _end_line(app)
        if stops_waiting:
            _stop(app, session, "nsml dev was interrupted")
        else:
            _tell_how_it_goes_on(app, session, server)
        return ExitCode.INTERRUPTED
    try:
        in_step = started.sync(session) if started.sync is not None else None
        if server is not None:
            code = _serve(app, session, server, way.port, in_step)
        elif way.has_no_shell and in_step is not None:
            app.call(in_step.run)
            code = ExitCode.OK
        else:
            code = _work_in(app, session, words, in_step)
    except KeyboardInterrupt:
        _end_line(app)
        code = ExitCode.INTERRUPTED
    if (
        way.stops and code != UNKNOWN
    ):  # of a broken connection nobody knows; what was made there would be lost
        _stop(app, session, "nsml dev --stop")
    else:
        _tell_how_it_goes_on(app, session, server)
    return code


def _end_line(app: App) -> None:
    """End the terminal's line with ^C."""
    with suppress(OSError):  # the terminal is gone
        app.say("")


def _stop(app: App, session: Session, reason: str) -> None:
    app.call(lambda client: client.sessions.stop(session.id, reason=reason))
    app.say(f"session {session.name} is stopped")


class _Started(NamedTuple):
    """The session to work in."""

    session: Session
    is_new: bool
    """Whether this call started it."""
    sync: Callable[[Session], FolderSync] | None
    """Keeps its folder in sync once it runs."""


class _Way(NamedTuple):
    """Options of this call besides starting a session."""

    is_detached: bool
    stops: bool
    is_jupyter: bool
    is_code: bool
    port: int | None
    is_synced: bool
    is_new: bool
    has_no_shell: bool

    @property
    def server(self) -> Server | None:
        """The server started instead of a shell."""
        if self.is_code:
            return CODE_SERVER
        return JUPYTER if self.is_jupyter else None


def _check(given: Mapping[str, Any], way: _Way, words: Sequence[str]) -> None:
    """Raise a usage error for options that exclude each other."""
    server = way.server
    for is_wrong, why in (
        (
            way.is_detached and (way.stops or words),
            "--detach starts no shell or program: leave out --stop and the words after --",
        ),
        (way.is_jupyter and way.is_code, "--jupyter and --code-server exclude each other"),
        (
            server is not None and (way.is_detached or words),
            f"{server and server.flag} goes without --detach and words after --",
        ),
        (way.port is not None and server is None, "--port goes with --jupyter and --code-server"),
        (
            given["entry"] or given["args"],
            "there is no program to start: -e and -a are of nsml run",
        ),
        (
            way.is_new and not way.is_synced,
            "--new goes with --sync: without it every call starts a session",
        ),
        (way.has_no_shell and not way.is_synced, "--no-shell goes with --sync: see --detach"),
        (
            way.has_no_shell and (server is not None or words),
            "--no-shell goes without --jupyter, --code-server and words after --",
        ),
        (
            way.is_synced and way.is_detached,
            "--sync keeps folders in step while it runs: leave out --detach",
        ),
        (way.is_synced and not given["sends_code"], "--sync sends this folder: without --no-code"),
        (
            way.is_synced and (given["nodes"] or 1) > 1,
            "--sync is for sessions on one node: leave out --nodes",
        ),
    ):
        if is_wrong:
            raise click.UsageError(why)


def _started(
    app: App,
    context: click.Context,
    given: dict[str, Any],
    way: _Way,
    words: Sequence[str],
) -> _Started | None:
    """Start or find the session; None after Ctrl-C."""
    if given["idle_limit"] is None:
        given["idle_limit"] = IDLE_LIMIT_S
    typed = context.meta["typed"]
    has_image = given["image"] or given["dockerfile"]
    waits: Sequence[str] = WAITS_IN_IMAGE if has_image else WAITS
    if way.server is not None:
        waits = way.server.argv_in_image if has_image else way.server.argv
    options = options_of({**_OF_RUN, **given}, [*waits], typed)
    repeat = [word for one in typed for word in one.words]
    repeat += ["--", *words] if words else []
    options.request.command[:] = ("nsml", "dev", *without_values(repeat))
    synced = SyncedFolder(app, typed)
    found = synced.session() if way.is_synced and not way.is_new else None
    if found is not None:
        app.write(f"Session {found.name} attached")
        session = found
    else:
        check_first(app, options)
        made = submitted(app, options)
        if made is None:
            return None
        session = made
        app.write(submitted_text(app, session))
        if given["sends_code"]:
            synced.remember(session)
    app.stdout.flush()
    is_new = found is None
    sync = (lambda running: synced.sync(running, is_new=is_new)) if way.is_synced else None
    return _Started(session, is_new, sync)


def _serve(
    app: App, session: Session, server: Server, port: int | None, sync: FolderSync | None
) -> int:
    """Forward a server until the session ends."""
    app.say(f"waiting for {server.name}...")

    async def serve(client: Client) -> None:
        path = await server.path(client, session)

        def address(at: str) -> str:
            return f"http://{at}{path}"

        async with _in_step(client, sync):
            await forward_to(app, client, session, server.service, port=port, address=address)

    app.call(serve)
    return ExitCode.OK


def _in_step(client: Client, sync: FolderSync | None) -> AbstractAsyncContextManager[None]:
    return nullcontext() if sync is None else sync.running(client)


def _work_in(app: App, session: Session, words: Sequence[str], sync: FolderSync | None) -> int:
    """Run the shell or program; return its exit code. The folder is in sync before it starts."""

    @asynccontextmanager
    async def opening(
        client: Client, environment: Mapping[str, str], terminal: tuple[int, int] | None
    ) -> AsyncIterator[RemoteProgram]:
        async with (
            _in_step(client, sync),
            client.sessions.open_program(
                session.id, words, environment=environment, terminal=terminal
            ) as program,
        ):
            if sync is not None:
                sync.said.is_raw = terminal is not None
            try:
                yield program
            finally:
                if sync is not None:
                    sync.said.is_raw = False

    return run_joined(
        app,
        words,
        opening,
        has_terminal=None,
        has_no_input=False,
        lost="error: the session has ended, and this program with it",
        command_line=f"nsml sh {session.name}",
        session=session.id,
    )


def _wait_for(app: App, session: Session, advice: str, *, stops: bool) -> None:
    """Return once it runs, printing its waiting reasons; `advice` is for a session that ends before.

    `stops`: Ctrl-C stops it.
    """
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

    async def wait(client: Client) -> Session:
        if session.state == pb.SESSION_STATE_QUEUED:
            await _tell_how_it_waits(app, client, session, stops=stops)
        return await wait_until(client, session.id, is_over, on_link=app.link_words())

    seen = app.call(wait)
    if seen.state != pb.SESSION_STATE_RUNNING:
        raise CommandError(
            f"session {seen.name} {state_text(seen)}",
            why=visible(seen.end.message),
            advice=advice,
        )


async def _tell_how_it_waits(app: App, client: Client, session: Session, *, stops: bool) -> None:
    """Print the sessions that hold its resources, if known, and the options."""
    from nsml.client.errors import ClientError
    from nsml.common.text import visible
    from nsml.view.queue import holder_lines

    with suppress(ClientError):
        answer = await client.sessions.explain(session.id)
        for line in holder_lines(answer.waiting, app.clock.time()):
            app.say(visible(line))
    leaves = "Ctrl-C stops it" if stops else "Ctrl-C leaves it in the queue"
    app.say(f"  {leaves}   why it waits: nsml status --explain {session.name}")


def _tell_how_it_goes_on(app: App, session: Session, server: Server | None) -> None:
    from nsml.client.errors import ClientError
    from nsml.client.streams import ENDED_STATES
    from nsml.v1 import sessions_pb2 as pb

    try:
        seen = app.call(lambda client: client.sessions.get(session.id))
    except ClientError:
        seen = session  # the last known state
    if seen.state in {pb.SESSION_STATE_STOPPING, pb.SESSION_STATE_FINALIZING, *ENDED_STATES}:
        return
    if seen.state in {pb.SESSION_STATE_QUEUED, pb.SESSION_STATE_PREPARING}:
        app.say(f"session {seen.name} is not running yet; stop: nsml stop {seen.name}")
        return
    limit = duration_text(seen.spec.idle_limit.ToNanoseconds() / 1e9)
    app.say(f"session {seen.name} continues until it is idle for {limit}")
    again = f"address: nsml forward {seen.name} {server.service}   " if server else ""
    app.say(f"  {again}shell: nsml sh {seen.name}   stop: nsml stop {seen.name}")
