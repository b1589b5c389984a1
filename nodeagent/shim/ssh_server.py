"""The ssh server of one connection to a replica, in a process of its own where the replica's program is.

A visitor becomes it (`visitor.py`): imported before that enters the replica's namespaces, where nothing of the
agent's is to be seen, and run after all rights were given up. So whatever a client makes of it, it can do what the
replica's program can. It asks for no user: who reaches it was let in by the control plane. It shows its host key.

Programs, files and connections are those of this process: its descendants, its user's files, its network. Streams are
moved between descriptors and channels here: asyncssh's own redirection loses output where a client is slow, and where
a program ends. How a program ended is said after the client took all that it wrote.

Of packets that are to be ignored none are sent. asyncssh puts one before each other, against what can be guessed of
ciphers in CBC mode (RFC 4251, 9.3.1); here all ciphers are AEAD.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import importlib
import logging
import os
import re
import signal
import struct
import subprocess
import termios
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import asyncssh
from asyncssh.constants import MSG_IGNORE
from asyncssh.stream import SSHServerStreamSession

from nodeagent.shim.gathered import GatheringLoop

# What is imported late by others could not be found then.
for _late in ("concurrent.futures.thread", "encodings.ascii", "encodings.idna", "grp", "pwd"):
    importlib.import_module(_late)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

_CIPHERS: Final = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
"""Clients would choose slower ones first. AEAD all."""
_LOGIN_WITHIN_S: Final = 30.0
_MOST_PROGRAMS: Final = 64
"""Of one connection at once."""
_MOST_VARIABLES: Final = 64
_PIECE_BYTES: Final = 256 << 10
"""Of a program in one read, and what its pipes hold."""
_TERMINAL_BYTES: Final = 4 << 10
_MOST_WRITTEN: Final = 1 << 20
"""That waits for the client; more is left with the program."""
_MOST_GIVEN: Final = 256 << 10
"""That waits for the program; more is left with the client."""
_SFTP_VERSION: Final = 3
"""That of OpenSSH."""
_LINGER_S: Final = 1.0
"""How long after a program's end what it has left in the background may be silent and hold its output open."""
_LAST_CELL: Final = 10_000
_NOT_THERE: Final = 127
_NOT_STARTED: Final = 126
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_COPY_COMMAND: Final = re.compile(r"scp (?:-[vrpd]+ )*-[tf] ")
"""What `scp -O` asks for: served like sftp, since images have no scp."""
_SIGNALS: Final = frozenset(
    {"ABRT", "ALRM", "CONT", "HUP", "INT", "KILL", "PIPE", "QUIT", "TERM", "USR1", "USR2", "TSTP"}
)


class _Place(NamedTuple):
    """What programs are started with."""

    environment: Mapping[str, str]
    shells: Mapping[str, str]
    """The prompts of those to try, the best first."""


def run(
    connection: socket.socket,
    host_key: str,
    environment: Mapping[str, str],
    shells: Mapping[str, str],
    begun: Callable[[], None],
) -> None:
    """Serve one connection to its end.

    Args:
        connection: to the client.
        host_key: the private half, in OpenSSH's form.
        environment: of the programs that are started.
        shells: the prompts of those to try by their paths, the best first.
        begun: called once it can serve.
    """
    gc.enable()
    logging.disable()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # errors here; programs get them as usual
        signal.signal(number, signal.SIG_IGN)
    # asyncssh looks for a configuration there, and fails where nothing says where that is
    os.environ["HOME"] = environment.get("HOME", "/")
    with asyncio.Runner(loop_factory=lambda: GatheringLoop(connection)) as runner:
        runner.run(_serve(connection, host_key, _Place(environment, shells), begun))


async def _serve(
    connection: socket.socket, host_key: str, place: _Place, begun: Callable[[], None]
) -> None:
    server = _Server(place)
    # the agent has left: programs are told so by the end of the connection
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.leave)
    key = asyncssh.import_private_key(host_key)
    connection.setblocking(False)  # noqa: FBT003
    begun()
    with contextlib.suppress(OSError, asyncssh.Error, TimeoutError):
        await asyncssh.run_server(
            connection,
            server_factory=lambda: server,
            server_host_keys=[key],
            server_version="nsml",
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            x11_forwarding=False,
            gss_host=None,
            login_timeout=_LOGIN_WITHIN_S,
            compression_algs=["none"],
            encryption_algs=list(_CIPHERS),
        )
    await server.over.wait()


class _Server(asyncssh.SSHServer):
    """What the client of one connection may."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._connection: asyncssh.SSHServerConnection | None = None
        self._programs: set[_Channel] = set()
        self.over = asyncio.Event()

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        send = conn.send_packet

        def send_packet(kind: int, *words: bytes, handler: Any = None) -> None:
            if kind != MSG_IGNORE:
                send(kind, *words, handler=handler)

        vars(conn)["send_packet"] = send_packet

    def connection_lost(self, _exc: Exception | None) -> None:
        self.over.set()

    def leave(self) -> None:
        """End the connection at once."""
        if self._connection is None:
            self.over.set()
        else:
            self._connection.abort()

    def begin_auth(self, _username: str) -> bool:
        return False

    def session_requested(self) -> Any:
        if len(self._programs) >= _MOST_PROGRAMS:
            return False
        channel = _Channel(self._place, self._programs)
        self._programs.add(channel)
        return channel

    def connection_requested(self, *_whereto: object) -> bool:
        """Whatever the replica's program can reach: it is made from here."""
        return True

    def unix_connection_requested(self, _dest_path: str) -> bool:
        return True

    def server_requested(self, listen_host: str, _listen_port: int) -> bool:
        return listen_host in _LOOPBACK

    def unix_server_requested(self, _listen_path: str) -> bool:
        return False


class _Channel(SSHServerStreamSession[bytes]):
    """A session of the client's: a program, or its files."""

    def __init__(self, place: _Place, beside: set[_Channel]) -> None:
        super().__init__(None, _files, sftp_version=_SFTP_VERSION, allow_scp=True)
        self._place = place
        self._beside = beside
        self._program: _Program | None = None

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, _command: str) -> bool:
        return True

    def session_started(self) -> None:
        channel: Any = self._chan
        command = channel.get_command()
        if channel.get_subsystem() is not None or _COPY_COMMAND.match(command or ""):
            super().session_started()
        else:
            self._allow_scp = False
            self._program = _Program(channel, self._place, command)
            self._program.start()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._program is None:
            super().data_received(data, datatype)
        else:
            self._program.give(data)

    def eof_received(self) -> bool:
        if self._program is None:
            return super().eof_received()
        self._program.end_input()
        return True

    def pause_writing(self) -> None:
        if self._program is None:
            super().pause_writing()
        else:
            self._program.pause()

    def resume_writing(self) -> None:
        if self._program is None:
            super().resume_writing()
        else:
            self._program.resume()

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._program is not None:
            self._program.resize(width, height, pixwidth, pixheight)

    def signal_received(self, signal: str) -> None:
        if self._program is not None and signal in _SIGNALS:
            self._program.signal(_number(signal))

    def break_received(self, _msec: int) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._beside.discard(self)
        if self._program is not None:
            self._program.leave()
        super().connection_lost(exc)


class _Program:
    """A program with its streams, for one channel."""

    def __init__(self, channel: Any, place: _Place, command: str | None) -> None:
        self._channel = channel
        self._place = place
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._has_terminal = channel.get_terminal_type() is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self._input: int | None = None
        self._given = bytearray()
        self._waits_to_write = False
        self._has_all_input = False
        self._outputs: dict[int, int | None] = {}
        """What is read, and as which kind of data it is sent."""
        self._is_paused = False
        self._is_left = False
        self._is_emptied = False
        self._heard_at = 0.0

    # its start

    def start(self) -> None:
        """Start it, or say on the channel why not."""
        shell = next((one for one in self._place.shells if os.access(one, os.X_OK)), None)
        if shell is None:
            self._refuse("there is no shell", _NOT_THERE)
            return
        argv = [os.path.basename(shell)]
        if self._command is not None:
            argv += ["-c", self._command]
        theirs: list[int] = []
        try:
            theirs = self._terminal() if self._has_terminal else self._pipes()
            self._process = subprocess.Popen(
                argv,
                executable=shell,
                env=self._environment(shell),
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                start_new_session=True,
                preexec_fn=_take_terminal if self._has_terminal else None,  # noqa: PLW1509
            )
            ended = os.pidfd_open(self._process.pid)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._close_all()
            self._refuse(str(error), _NOT_STARTED)
            return
        finally:
            for one in set(theirs):
                os.close(one)
        self._loop.add_reader(ended, self._reap, ended, self._process)
        self._channel.set_write_buffer_limits(_MOST_WRITTEN)
        self.resume()

    def _refuse(self, why: str, code: int) -> None:
        self._channel.write_stderr(f"nsml: {why}\r\n".encode())
        self._channel.exit(code)

    def _environment(self, shell: str) -> dict[bytes, bytes]:
        told: Mapping[bytes, bytes] = self._channel.get_environment_bytes()
        found = {os.fsencode(name): os.fsencode(it) for name, it in self._place.environment.items()}
        found[b"SHELL"] = os.fsencode(shell)
        if self._has_terminal:
            found[b"PS1"] = os.fsencode(self._place.shells[shell])
            found[b"TERM"] = self._channel.get_terminal_type().encode() or b"dumb"
        names = [one for one in told if one and b"=" not in one and b"\0" not in one + told[one]]
        return found | {name: told[name] for name in names[:_MOST_VARIABLES]}

    def _terminal(self) -> list[int]:
        ours, theirs = os.openpty()
        self._input = ours
        self._outputs = {ours: None}
        os.set_blocking(ours, False)
        self.resize(*self._channel.get_terminal_size())
        return [theirs, theirs, theirs]

    def _pipes(self) -> list[int]:
        theirs = []
        for kind in (0, None, asyncssh.EXTENDED_DATA_STDERR):
            reads, writes = os.pipe()
            with contextlib.suppress(OSError):  # this user has much in pipes already
                fcntl.fcntl(reads, fcntl.F_SETPIPE_SZ, _PIECE_BYTES)
            if kind == 0:
                self._input, other = writes, reads
            else:
                self._outputs[reads], other = kind, writes
            theirs.append(other)
            os.set_blocking(writes if kind == 0 else reads, False)
        return theirs

    # what it writes

    def pause(self) -> None:
        """The client takes no more now."""
        self._is_paused = True
        for one in self._outputs:
            self._loop.remove_reader(one)

    def resume(self) -> None:
        """The client has taken what was written."""
        self._is_paused = False
        for one in self._outputs:
            self._loop.add_reader(one, self._read, one)
        self._end_if_over()

    def _read(self, output: int) -> None:
        size = _TERMINAL_BYTES if self._has_terminal else _PIECE_BYTES
        try:
            data = os.read(output, size)
        except BlockingIOError:
            return
        except OSError:  # of a terminal: its other end is closed
            data = b""
        if data:
            self._heard_at = self._loop.time()
            self._channel.write(data, self._outputs[output])
        else:
            self._close_output(output)
            self._end_if_over()

    def _close_output(self, output: int) -> None:
        self._loop.remove_reader(output)
        del self._outputs[output]
        if output != self._input:
            os.close(output)

    # what it is given

    def give(self, data: bytes) -> None:
        """Bytes for its standard input."""
        if self._input is None or self._has_all_input:
            return
        self._given += data
        self._write()
        if len(self._given) > _MOST_GIVEN:
            self._channel.pause_reading()

    def end_input(self) -> None:
        """Its standard input has ended; a terminal has no such end."""
        self._has_all_input = True
        if not self._given and not self._has_terminal:
            self._close_input()

    def _write(self) -> None:
        if self._input is None:
            return
        try:
            while self._given:
                del self._given[: os.write(self._input, self._given)]
        except BlockingIOError:
            if not self._waits_to_write:
                self._waits_to_write = True
                self._loop.add_writer(self._input, self._write)
        except OSError:  # it has closed its input
            self._close_input()
        else:
            if self._waits_to_write:
                self._waits_to_write = False
                self._loop.remove_writer(self._input)
            if self._has_all_input and not self._has_terminal:
                self._close_input()
        if len(self._given) <= _MOST_GIVEN // 2 and not self._is_left:
            self._channel.resume_reading()

    def _close_input(self) -> None:
        if self._input is None:
            return
        self._loop.remove_writer(self._input)
        self._waits_to_write = False
        self._given.clear()
        if not self._has_terminal:
            os.close(self._input)
            self._input = None

    def resize(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Its terminal has another size."""
        if self._has_terminal and self._input is not None:
            cells = [min(max(one, 1), _LAST_CELL) for one in (height, width)]
            pixels = [min(one, 0xFFFF) for one in (pixwidth, pixheight)]
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._input, termios.TIOCSWINSZ, struct.pack("HHHH", *cells, *pixels))

    def signal(self, *numbers: int) -> None:
        """Send signals to its process group."""
        if self._process is not None and self._status is None:
            with contextlib.suppress(OSError):
                for number in numbers:
                    os.killpg(self._process.pid, number)

    # its end

    def _reap(self, ended: int, process: subprocess.Popen[bytes]) -> None:
        self._loop.remove_reader(ended)
        os.close(ended)
        self._status = process.wait()
        self._heard_at = self._loop.time()
        if not self._is_left:
            self._look()

    def _look(self) -> None:
        """End it, once what it left behind is silent."""
        silent = self._loop.time() - self._heard_at
        if self._is_left:
            return
        if self._outputs and not self._is_paused and silent >= _LINGER_S:
            for one in list(self._outputs):
                self._read_rest(one)
        if self._outputs:
            self._loop.call_later(_LINGER_S / 4, self._look)
        self._end_if_over()

    def _read_rest(self, output: int) -> None:
        """What came since the last look; nothing: let go of it."""
        before = self._heard_at
        self._read(output)
        if output in self._outputs and self._heard_at == before:
            self._close_output(output)

    def _end_if_over(self) -> None:
        """Say how it ended, when the client has taken all."""
        if self._status is None or self._outputs or self._is_left or self._is_paused:
            return
        if not self._is_emptied:
            # calls `pause`, and `resume` when nothing waits any more
            self._is_emptied = True
            self._channel.set_write_buffer_limits(0, 0)
            if self._channel.get_write_buffer_size():
                return
        status = self._status
        self._close_all()
        if status < 0:
            name = (
                signal.Signals(-status).name.removeprefix("SIG") if _is_known(-status) else "TERM"
            )
            self._channel.exit_with_signal(name)
        else:
            self._channel.exit(status)

    def leave(self) -> None:
        """The channel is closed: it gets SIGHUP unless it has ended."""
        if self._is_left:
            return
        self._close_all()
        # what is halted hears of nothing until it goes on
        self.signal(signal.SIGHUP, signal.SIGCONT)

    def _close_all(self) -> None:
        self._is_left = True
        ours = {*self._outputs, *([] if self._input is None else [self._input])}
        for one in ours:
            self._loop.remove_reader(one)
            self._loop.remove_writer(one)
            os.close(one)
        self._outputs = {}
        self._input = None


class _Files(asyncssh.SFTPServer):
    """The files that this process may use."""

    def exit(self) -> None:
        """Its client is done: asyncssh gives no exit status, which scp takes for a failure."""
        channel: Any = self.channel
        if channel.get_subsystem() is not None:
            channel.exit(0)


def _files(channel: Any) -> _Files:
    return _Files(channel)


def _number(name: str) -> int:
    return signal.Signals[f"SIG{name}"].value


def _is_known(number: int) -> bool:
    return number in {one.value for one in signal.Signals}


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
