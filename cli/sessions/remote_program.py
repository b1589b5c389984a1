"""Runs a remote program with the streams, the terminal and the signals of this process."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import termios
import time
import tty
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cli.exits import CommandError, ExitCode
from cli.sessions.byte_streams import ByteInput, ByteOutput
from cli.sessions.escapes import Escapes, Leave
from nsml.common.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.errors import ClientError
    from nsml.client.programs import RemoteProgram

    Opening = Callable[
        [Client, Mapping[str, str], tuple[int, int] | None],
        AbstractAsyncContextManager[RemoteProgram],
    ]
    """Opens the program, with these variables and a terminal of this size, or none."""

F = TypeVar("F", bound="Callable[..., Any]")

UNKNOWN: Final = 255
"""Exit code if the program's end is unknown, as in ssh."""
_PASSED_ON: Final = ("TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE")
"""Variables of this terminal that remote programs need to draw on it."""
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MOST_PASSED_ON: Final = 2
"""Signals passed to a program without a terminal; the next one disconnects. As in `docker run`."""
_ENDS_WITHIN_S: Final = 2.0
_LOOKS_EVERY_S: Final = 0.2
_READ_AHEAD: Final = 32
"""Most pieces of input queued for the program: until then, escapes typed for nsml are recognised."""
_NOT_THERE: Final = 127
_SHELL_SYNTAX: Final = frozenset(" |&;<>$*")
_RESET: Final = "\x1b[?47l\x1b[?1000;1002;1003;1006;2004l\x1b[?25h\x1b[0m\n\x1b[J"
"""Resets the terminal after the program: no alternate screen, no mouse, no bracketed paste, a cursor, no colour."""


def program_options(function: F) -> F:
    """Add the program and the options of its streams; for a `ProgramCommand`."""
    options = (
        click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM ARG...]"),
        click.option(
            "-t/-T",
            "--tty/--no-tty",
            "has_terminal",
            default=None,
            help="Use a terminal, or pipes. By default a terminal if stdin and stdout are one.",
        ),
        click.option("-n", "--no-stdin", "has_no_input", is_flag=True, help="Read no stdin."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def run_joined(
    app: App,
    argv: Sequence[str],
    opening: Opening,
    *,
    has_terminal: bool | None,
    has_no_input: bool,
    lost: str,
    command_line: str,
    session: str | None = None,
) -> int:
    """Connect this process's streams to a remote program until it has ended; return its exit code.

    `lost` is printed if its end is unknown, unless its `session` has ended: then the end of that.
    `command_line` are the words before the program.
    """
    if has_terminal and not app.stdin.isatty():
        raise CommandError("-t needs a terminal as stdin", code=ExitCode.USAGE)
    if has_terminal is None:
        has_terminal = not has_no_input and app.stdin.isatty() and app.stdout.isatty()
    if has_terminal and has_no_input:
        raise CommandError("-t and -n exclude each other", code=ExitCode.USAGE)
    environment = {name: app.environ[name] for name in _PASSED_ON if name in app.environ}

    async def attach(client: Client) -> tuple[int, str]:
        from nsml.client.errors import ConnectionLost
        from nsml.common.c_memory import keep_freed_memory

        keep_freed_memory()

        async def because(line: str) -> str:
            return (await _end_of(client, session) if session else "") or line

        try:
            async with opening(
                client,
                environment if has_terminal else {},
                _size(app) if has_terminal else None,
            ) as program:
                source = os.open(os.devnull, os.O_RDONLY) if has_no_input else app.stdin.fileno()
                joined = _Attached(app, program, source, has_terminal=has_terminal)
                code, why = await joined.run()
                return (code, why) if code is not None else (UNKNOWN, await because(why or lost))
        except ConnectionLost as error:
            return UNKNOWN, await because(_line(error))

    code, why = app.call(attach, waits=False)
    # Unlike other messages, with --quiet, too; and only now, as a terminal may accept nothing more.
    if why:
        lead = _RESET if has_terminal else ""
        with suppress(OSError):  # the terminal is gone
            os.write(app.stderr.fileno(), f"{lead}{visible(why)}\n".encode())
    if code == _NOT_THERE and len(argv) == 1 and _SHELL_SYNTAX & set(argv[0]):
        app.say(f"  try: {command_line} -- sh -c {shlex.quote(argv[0])}")
    return code


async def _end_of(client: Client, session: str) -> str:
    """Return how a session ended, which may reach the control plane a moment later; "" if it has not."""
    from cli.sessions.logs import end_words
    from nsml.client.errors import ClientError
    from nsml.v1 import sessions_pb2 as pb

    give_up_at = time.monotonic() + _ENDS_WITHIN_S
    with suppress(ClientError):
        while True:
            seen = await client.sessions.get(session)
            is_going = seen.state in {pb.SESSION_STATE_RUNNING, pb.SESSION_STATE_PAUSED}
            is_ending = seen.state in {pb.SESSION_STATE_STOPPING, pb.SESSION_STATE_FINALIZING}
            if time.monotonic() >= give_up_at or not (is_going or is_ending):
                return "" if is_going else f"error: {end_words(seen)}"
            await asyncio.sleep(_LOOKS_EVERY_S)
    return ""


def _line(error: ClientError) -> str:
    return f"error: {error.message}: {error.why}".rstrip(": ")


def _size(app: App) -> tuple[int, int]:
    """Return rows and columns of this terminal; the common size if unknown."""
    size = os.get_terminal_size(app.stdin.fileno())
    return size.lines or 24, size.columns or 80


class _Attached:
    """The streams and signals of this process, connected to a program."""

    def __init__(
        self, app: App, program: RemoteProgram, source: int, *, has_terminal: bool
    ) -> None:
        self._app = app
        self._program = program
        self._has_terminal = has_terminal
        self._input = ByteInput(source)
        self._output = ByteOutput()
        self._typed: asyncio.Queue[bytes] = asyncio.Queue(_READ_AHEAD)
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self._leaves = asyncio.Event()
        self._ending_signals = 0

    async def run(self) -> tuple[int | None, str]:
        """Run until the program has ended; return its exit code, None if unknown, and a message on it."""
        from nsml.client.errors import ClientError

        is_raw = _raw_terminal(self._app.stdin.fileno()) if self._has_terminal else nullcontext()
        try:
            with self._signals_taken(), is_raw:
                await self._joined()
        except Leave:
            return UNKNOWN, "disconnected; the program gets SIGHUP"
        except ClientError as error:
            return None, _line(error)
        except BrokenPipeError:
            raise
        except OSError as error:
            return UNKNOWN, f"error: cannot write the output: {error.strerror}"
        return self._program.exit_code, ""

    async def _joined(self) -> None:
        """Run until the program has ended. Raises Leave; ClientError: the connection broke; OSError: the reader is gone."""
        showing = asyncio.create_task(self._show())
        helpers = {
            asyncio.create_task(one)
            for one in (
                self._take_input(),
                self._send_input(),
                self._send_signals(),
                self._wait_leaving(),
            )
        }
        waiting = {showing, *helpers}
        try:
            while not showing.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in done & helpers if showing not in done else ():
                    one.result()
            showing.result()
        finally:
            self._input.close()
            for one in (showing, *helpers):
                one.cancel()

    async def _show(self) -> None:
        from nsml.client.programs import Output

        to = {
            Output.STANDARD: self._app.stdout.fileno(),
            Output.ERRORS: self._app.stderr.fileno(),
        }
        async for kind, data in self._program.output():
            await self._output.write(to[kind], data)

    async def _take_input(self) -> None:
        escapes = Escapes() if self._has_terminal else None
        while data := await self._input.read():
            if escapes is not None:
                data = escapes.taken(data)
                if escapes.said:
                    await self._output.write(self._app.stderr.fileno(), escapes.said.encode())
            if data:
                await self._typed.put(data)
        if escapes is not None:
            raise Leave  # the terminal is gone
        await self._typed.put(b"")

    async def _send_input(self) -> None:
        from nsml.client.errors import ClientError

        with suppress(ClientError):  # the reader of the output gets it, too
            while data := await self._typed.get():
                await self._program.write(data)
            await self._program.end_input()

    async def _send_signals(self) -> None:
        from nsml.client.errors import ClientError

        with suppress(ClientError):
            while True:
                number = await self._signals.get()
                if number != signal.SIGWINCH:
                    await self._program.signal(number)
                elif self._has_terminal and self._signals.empty():
                    await self._program.resize(*_size(self._app))

    async def _wait_leaving(self) -> None:
        await self._leaves.wait()
        raise Leave

    def _take_signal(self, number: int) -> None:
        """With a terminal, programs get signals by keys through it: signals of this process disconnect."""
        if number in _ENDING:
            self._ending_signals += 1
            # If the program reads no input, signals queued after it do not arrive.
            if self._has_terminal or self._ending_signals > _MOST_PASSED_ON:
                self._leaves.set()
                return
        self._signals.put_nowait(number)

    @contextmanager
    def _signals_taken(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        # Signals that are already ignored, as under nohup, stay ignored.
        taken = [
            number
            for number in (signal.SIGWINCH, *_ENDING)
            if signal.getsignal(number) != signal.SIG_IGN
        ]
        for number in taken:
            loop.add_signal_handler(number, self._take_signal, number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)


@contextmanager
def _raw_terminal(descriptor: int) -> Iterator[None]:
    """Set the terminal to raw mode; restore it afterwards."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # keeps input typed meanwhile
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            # Not TCSADRAIN: that blocks if the terminal's output is stopped.
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
