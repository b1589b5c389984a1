"""One run of the command line: global flags, streams, and the connection to the platform."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import IO, TYPE_CHECKING, TypeVar

from cli.exits import CommandError, ExitCode
from nsml.client import contexts
from nsml.client.errors import NOT_LEADER, NodeUnavailable, NotSignedIn, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from nsml.client.calls import Client
    from nsml.client.streams import Link
    from nsml.common.clock import Clock
    from nsml.v1.nodes_pb2 import GetClusterResponse

T = TypeVar("T")

_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
"""In the order of their numbers (ECMA-48, SGR 30-37)."""


class Format(StrEnum):
    """How a reading command writes its result."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"


class Flags:
    """The global flags; None if not set."""

    context: str | None = None
    output: Format | None = None
    fields: tuple[str, ...] = ()
    has_header: bool = True
    is_colourless: bool = False
    is_quiet: bool = False
    is_debug: bool = False
    says_yes: bool = False
    is_dry_run: bool = False
    takes_no_input: bool = False
    timeout_s: float | None = None

    def with_context(self, name: str) -> Flags:
        """These flags with another context."""
        flags = Flags()
        vars(flags).update(vars(self), context=name)
        return flags


class App:
    """The environment, streams, flags and clock of a command."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
        stdin: IO[str] | None = None,
        flags: Flags | None = None,
        given_clock: Clock | None = None,
    ) -> None:
        self.environ = environ
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or sys.stderr
        self.stdin = stdin or sys.stdin
        self.flags = flags or Flags()
        self.given_clock = given_clock
        self.arguments: tuple[str, ...] = ()
        """The command line, to repeat in advice; it may contain values of variables."""
        self._config: contexts.Config | None = None
        self._lost_streams: set[object] = set()
        self._said_once: set[str] = set()

    @property
    def clock(self) -> Clock:
        """The clock of the command: the machine's own unless one was given."""
        if self.given_clock is None:
            from nsml.common.clock import SystemClock

            self.given_clock = SystemClock()
        return self.given_clock

    @property
    def is_quiet(self) -> bool:
        """Whether only results and errors are printed."""
        return self.flags.is_quiet

    @property
    def config(self) -> contexts.Config:
        """config.toml, read once."""
        if self._config is None:
            self._config = contexts.load(self.environ)
        return self._config

    def use(self, config: contexts.Config) -> None:
        """Use a configuration without reading or writing a file."""
        self._config = config

    def save(self, config: contexts.Config) -> None:
        """Write a changed configuration."""
        contexts.save(config)
        self._config = config

    @property
    def context(self) -> contexts.Context:
        """The platform of this command."""
        return contexts.choose(self.config, self.environ, self.flags.context)

    @property
    def format(self) -> Format:
        """The output format: the flag, else NSML_OUTPUT, else the configuration, else a table."""
        if self.flags.output is not None:
            return self.flags.output
        chosen = self.environ.get("NSML_OUTPUT") or self.config.settings.get("output")
        try:
            return Format(chosen) if chosen else Format.TABLE
        except ValueError as error:
            raise CommandError(
                f"{chosen!r} is not an output format (NSML_OUTPUT, settings.output)",
                code=ExitCode.USAGE,
                advice=f"one of {', '.join(Format)}",
            ) from error

    @property
    def is_nsml_style(self) -> bool:
        """Whether tables, messages and `-j` have NSML's form: NSML_STYLE, else the configuration."""
        chosen = self.environ.get("NSML_STYLE") or self.config.settings.get("style", "")
        if chosen not in {"", "nsml"}:
            raise CommandError(
                f"{chosen!r} is not a style (NSML_STYLE, settings.style)",
                code=ExitCode.USAGE,
                advice="one of nsml",
            )
        return chosen == "nsml"

    @property
    def is_for_people(self) -> bool:
        """Whether the result is a table, not data for programs."""
        return self.format in {Format.TABLE, Format.WIDE}

    # Terminals

    @property
    def room(self) -> int | None:
        """Width of the terminal on stdout; None if it is no terminal."""
        return self._room_of(self.stdout)

    @property
    def error_room(self) -> int | None:
        """Width of the terminal on stderr; None if it is none."""
        return self._room_of(self.stderr)

    def _room_of(self, stream: IO[str]) -> int | None:
        if not stream.isatty():
            return None
        import shutil

        if self.stdout.isatty() or self.environ.get("COLUMNS"):
            return shutil.get_terminal_size().columns
        with suppress(OSError, ValueError):  # another stream than that of the result
            return os.get_terminal_size(stream.fileno()).columns
        return None

    def has_colour(self, stream: IO[str]) -> bool:
        """Whether colours may be written to a stream."""
        chosen = self.environ.get("NSML_COLOR", "").lower()
        if self.flags.is_colourless or chosen == "never" or self.environ.get("NO_COLOR"):
            return False
        if chosen == "always" or self.environ.get("FORCE_COLOR", "0") not in {"", "0"}:
            return True
        return stream.isatty() and self.environ.get("TERM") != "dumb"

    def can_show(self, text: str) -> bool:
        """Return whether the encoding of stdout has these characters."""
        try:
            text.encode(getattr(self.stdout, "encoding", None) or "utf-8")
        except UnicodeEncodeError:
            return False
        return True

    @property
    def is_read_aloud(self) -> bool:
        """Whether a screen reader is used: words instead of drawings, no redrawing."""
        return bool(self.environ.get("NSML_ACCESSIBLE") or self.environ.get("ACCESSIBLE"))

    @property
    def has_live_progress(self) -> bool:
        """Whether a line on stderr may be redrawn in place."""
        is_smart = self.stderr.isatty() and self.environ.get("TERM") != "dumb"
        return is_smart and not self.is_read_aloud

    @property
    def can_ask(self) -> bool:
        """Whether the user can be asked."""
        return self.stdin.isatty() and self.stderr.isatty() and not self.flags.takes_no_input

    # Words

    def write(self, text: str) -> None:
        """Write one line of the result."""
        self.stdout.write(text + "\n")

    def write_text(self, text: str) -> None:
        """Write one line of the result, folded at the width of the terminal."""
        for line in self._folded(text, self.room):
            self.write(line)

    def say(self, text: str, *, mark: str = "", colour: str = "") -> None:
        """Write a line to stderr, folded at the width of the terminal; nothing with --quiet.

        Control sequences in `text` are escaped; `mark` comes before it, in its `colour`.
        """
        if self.is_quiet:
            return
        first, *rest = self.folded_words(f"{mark}{text}")
        if colour and self.has_colour(self.stderr):
            first = self.paint(mark, colour) + first[len(mark) :]
        self.stderr.write("\n".join((first, *rest)) + "\n")
        self.stderr.flush()

    def folded_words(self, text: str) -> list[str]:
        """Fold a line for stderr, made safe, at the width of its terminal; one line if it is no terminal."""
        from nsml.common.text import visible

        return self._folded(visible(text), self.error_room)

    @staticmethod
    def _folded(text: str, room: int | None) -> list[str]:
        from nsml.common.text import folded

        return [text] if room is None else folded(text, room)

    def say_once(self, text: str) -> None:
        """`say`, once per command: for messages of several reads."""
        if text not in self._said_once:
            self._said_once.add(text)
            self.say(text)

    def paint(self, text: str, colour: str) -> str:
        """Return `text` in one of a terminal's eight colours."""
        return f"\x1b[{30 + _COLOURS.index(colour)}m{text}\x1b[0m"

    @property
    def painter(self) -> Callable[[str, str], str] | None:
        """`paint` if the result may have colours, else None."""
        return self.paint if self.has_colour(self.stdout) else None

    def ask(self, question: str, *, flag: str) -> str:
        """Return the answer to a question; if the user cannot be asked: exit 2, naming the flag to add."""
        if not self.can_ask:
            raise CommandError(
                "this needs a confirmation, and there is no terminal to ask on",
                code=ExitCode.USAGE,
                advice=f"add {flag}",
            )
        self.stderr.write(question)
        self.stderr.flush()
        try:
            answer = self.stdin.readline()
        except UnicodeDecodeError:
            answer = ""  # bytes that are no text are no answer
        if not answer.endswith("\n"):
            self.stderr.write("\n")  # the cursor is still after the question
            return ""  # the end of input, also in the middle of a line, is no answer
        return answer.strip()

    def read_line(self) -> str:
        """Read a line of input, without surrounding blanks and a byte order mark."""
        try:
            return self.stdin.readline().removeprefix("\ufeff").strip()
        except UnicodeDecodeError:
            raise CommandError("the input is not UTF-8", code=ExitCode.USAGE) from None

    def forget_typed(self) -> None:
        """Discard input typed before a question: it is no answer to it."""
        import termios

        with suppress(OSError, termios.error):  # no terminal, or none of the system's
            termios.tcflush(self.stdin.fileno(), termios.TCIFLUSH)

    def agrees(self, question: str, *, flag: str) -> bool:
        """Return whether the answer is yes, or --yes was set; else like `ask`."""
        if self.flags.says_yes:
            return True
        return self.ask(f"{question} [y/N] ", flag=flag).lower() in {"y", "yes"}

    # The platform

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        """Connect to the context's platform, for use inside `call`."""
        # gRPC costs more than everything else together: only commands that call pay.
        from nsml.client.connect import connect
        from nsml.client.rpc import DEADLINE_S

        async with connect(self.context, deadline_s=DEADLINE_S) as client:
            yield client

    def call(self, body: Callable[[Client], Awaitable[T]], *, waits: bool = True) -> T:
        """Run a coroutine with a client, within --timeout, and return its result.

        `waits`: calls that only read or stop something are retried for a while if the platform reports
        a temporary failure. Work in progress for a call is always awaited.
        """
        import asyncio
        import gc

        from cli.retry import CALL_S, Patience

        # Not the task's result: asyncio.run formats that for nothing, which takes a second for 20,000 files.
        results: list[T] = []

        async def bounded() -> None:
            async with asyncio.timeout(self.flags.timeout_s), self.connect() as client:
                client.rpc.patience = lambda: Patience(self, CALL_S if waits else 0.0)
                results.append(await body(client))

        # Imported objects stay: collecting them repeatedly is not worth the time.
        gc.freeze()
        gc.enable()
        try:
            asyncio.run(bounded())
        except TimeoutError as error:
            raise CommandError(
                f"gave up after {self.flags.timeout_s:g} s (--timeout)", code=ExitCode.TIMED_OUT
            ) from error
        except Unavailable as error:
            raise self.explain(error) from error
        except NotSignedIn as error:
            raise self._explain_sign_in(error) from error
        return results[0]

    def cluster(self) -> GetClusterResponse:
        """Read the cluster's state, and store the addresses of its control planes."""
        cluster = self.call(lambda client: client.nodes.cluster())
        self.remember_servers([one.user_address for one in cluster.members if one.user_address])
        return cluster

    def remember_servers(self, reported: Sequence[str]) -> None:
        """Add the platform's other addresses to the context, if it pins the platform's authority.

        The authority proves these servers, too, when they are called. If the configuration cannot be written, they
        are reported again next time.
        """
        context = self.context
        stored = self.config.contexts.get(context.name)
        if stored is None or stored.servers != context.servers or not stored.ca:
            return
        import random

        servers = contexts.known_servers(stored.servers, reported, random.SystemRandom())
        if set(servers) != set(stored.servers):
            with suppress(OSError):
                self.save(self.config.with_context(stored.at(servers), current=False))

    def explain(self, error: Unavailable) -> Unavailable:
        """Return the error with a message for this context."""
        if isinstance(error, NodeUnavailable) or error.retry_after_s is not None:
            return error  # the platform answered, and named the part that does not
        if error.reason == NOT_LEADER:
            return Unavailable(
                "no control plane leads now, so nothing is decided",
                reason=error.reason,
                advice=f"{'nsml status':<16}what is wrong, since when, and what ends it",
            )
        context = self.context
        if contexts.may_be_ours(context):
            advice = _start_here(context.servers)
        else:
            advice = "nsml context ls   which platforms are known"
        why = error.why or error.message
        if awaits := _awaits(context.servers):
            why = f"its start waits: {awaits}"
            advice = f"{'nsml status':<16}again later: the start continues by itself"
        return Unavailable(
            f"none of the control planes answers: {context.places}"
            if context.others
            else f"the control plane at {context.server} does not answer",
            reason=error.reason,
            why=why,
            advice=error.advice or advice,
        )

    def _explain_sign_in(self, error: NotSignedIn) -> NotSignedIn:
        context = self.context
        has_token = context.token() is not None
        what = "the token is not valid" if has_token else "not logged in"
        is_here = context.server.startswith("unix:")
        return NotSignedIn(
            f"{what} at {context.places}",
            reason=error.reason,
            why=error.why or error.message,
            # The user who runs the platform on this machine needs no token.
            advice=("nsml up    if this account runs the platform: it logs you in\n" * is_here)
            + f"nsml login {context.server}",
        )

    def link_words(self) -> Callable[[Link], None]:
        """Return a callback that reports lost and restored connections of a stream on stderr.

        If several streams break together, only the first is reported, and the return of the last.
        """
        stream, lost = object(), self._lost_streams

        def tell(link: Link) -> None:
            if not link.is_live:
                if not lost:
                    self.say(f"connection lost, reconnecting ({link.reason})")
                lost.add(stream)
            elif stream in lost:
                lost.remove(stream)
                if not lost:
                    self.say("reconnected")

        return tell


def _start_here(servers: Sequence[str]) -> str:
    """Return the command that starts this machine's platform: of its unit, or `nsml up` for its folders."""
    from pathlib import Path

    from cli.local.units import CONTROL_PLANE_UNIT, is_installed

    sockets = [Path(one.removeprefix("unix:")) for one in servers if one.startswith("unix:")]
    is_of_up = any((one.parent.parent / "local.json").exists() for one in sockets)
    if is_installed(CONTROL_PLANE_UNIT) and not is_of_up:
        unit = CONTROL_PLANE_UNIT.removesuffix(".service")
        return f"systemctl start {unit}   and journalctl -u {unit} for why it does not run"
    return f"{'nsml up':<16}start the platform on this machine"


def is_stopped(servers: Sequence[str]) -> bool:
    """Return whether nothing listens at any of these; False unless all are Unix sockets."""
    import socket

    def listens(path: str) -> bool:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(1.0)
            try:
                tried.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except OSError:
                return True  # the actual call will report it
        return True

    paths = [server.removeprefix("unix:") for server in servers if server.startswith("unix:")]
    return len(paths) == len(servers) and not any(map(listens, paths))


def _awaits(servers: Sequence[str]) -> str:
    """Return the blocker of a control plane starting on this machine; "" if none is."""
    from pathlib import Path

    from cli.local import processes

    for server in servers:
        if server.startswith("unix:"):
            folder = Path(server.removeprefix("unix:")).parent
            said = processes.read_json(folder / "starting.json")
            pid = said.get("pid")
            if isinstance(pid, int) and processes.find(pid) is not None:
                return str(said.get("awaits", ""))
    return ""


def new_request_id() -> str:
    """Return an id that makes a submission safe to repeat."""
    import secrets

    return secrets.token_hex(16)
