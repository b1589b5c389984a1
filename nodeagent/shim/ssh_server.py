"""The ssh server of one connection to a replica, in a process of its own beside the replica's program.

A visitor runs it (`visitor.py`): imported before that enters the replica's namespaces, where nothing of the
agent's is visible, and run after all rights were dropped. So a client that takes it over can do only what the
replica's program can. It authenticates no users: the control plane has authorized the client. It shows its host key. A
client behind a jump host must prove a public key, and gets a certificate of the platform for the host key.

Programs, files and connections are those of this process: its descendants, its user's files, its network. Streams are
copied between descriptors and channels here: asyncssh's own redirection loses output with slow clients, and when
a program ends. The exit status is sent after the client has received all output.

In a container it executes nothing and loads nothing of the image: programs are started by the container's engine, at
its request to the agent (`contained_ssh.py`), which also signs with its host key.

It sends no ignore packets. asyncssh puts one before each packet, against predictable
initialization vectors in CBC mode (RFC 4251, 9.3.1); here all ciphers are AEAD.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import hashlib
import importlib
import json
import logging
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import asyncssh
from asyncssh.constants import MSG_IGNORE
from asyncssh.stream import SSHServerStreamSession

from nodeagent.shim.contained_ssh import Agent, ContainedLoop, HostKey
from nodeagent.shim.gathered import GatheringLoop
from nodeagent.shim.keeper import has_ended

# Late imports of other modules would fail then.
for _late in ("concurrent.futures.thread", "encodings.ascii", "encodings.idna", "grp", "pwd"):
    importlib.import_module(_late)

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

_CIPHERS: Final = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
"""All AEAD. Clients would prefer slower ones."""
_LOGIN_WITHIN_S: Final = 30.0
_HANG_UP: Final = (signal.SIGHUP, signal.SIGCONT)
_MOST_PROGRAMS: Final = 64
"""Programs of one connection at once."""
_MOST_VARIABLES: Final = 64
_PIECE_BYTES: Final = 256 << 10
"""Size of one read from a program, and of its pipes."""
_TERMINAL_BYTES: Final = 4 << 10
_MOST_WRITTEN: Final = 1 << 20
"""Buffered for the client; further output waits in the program."""
_MOST_GIVEN: Final = 256 << 10
"""Buffered for the program; further input waits in the client."""
_SFTP_VERSION: Final = 3
"""The version of OpenSSH."""
_LINGER_S: Final = 1.0
"""Silence after a program's end, until the output held open by its background processes is closed."""
_LAST_CELL: Final = 10_000
_USUAL_CELLS: Final = 80, 24
"""Columns and rows of a terminal whose client sends 0."""
_LAST_PORT: Final = 65_535
_NOT_THERE: Final = 127
_NOT_STARTED: Final = 126
_MOST_MESSAGE: Final = 64 << 10
_TRIES_EVERY_S: Final = 0.05
_MEMORY: Final = "mem"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_COPY_COMMAND: Final = re.compile(r"scp (?:-[vrpd]+ )*-[tf] ")
"""The command of `scp -O`: served like sftp, since images have no scp."""
_SIGNALS: Final = frozenset(
    {"ABRT", "ALRM", "CONT", "HUP", "INT", "KILL", "PIPE", "QUIT", "TERM", "USR1", "USR2", "TSTP"}
)


class _Place(NamedTuple):
    """The surroundings of programs."""

    environment: Mapping[str, str]
    shells: Mapping[str, str]
    """Prompts of shells to try, the best first."""
    agent: Agent | None
    """Has a container's engine start programs; None: this process starts them."""


def run(
    connection: socket.socket,
    host_key: str,
    environment: Mapping[str, str],
    shells: Mapping[str, str],
    begun: Callable[[], None],
    *,
    agent: socket.socket | None = None,
) -> None:
    """Serve one connection to its end. Also called by shims of earlier versions.

    Args:
        connection: to the client.
        host_key: the private half, in OpenSSH's format; with `agent` the public one.
        environment: of started programs.
        shells: prompts of shells to try by path, the best first.
        begun: called once it is ready.
        agent: socket to the agent, for a server in a container.
    """
    gc.enable()
    logging.disable()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # errors here; programs get the default
        signal.signal(number, signal.SIG_IGN)
    # asyncssh looks for a configuration there, and fails if HOME is not set
    os.environ["HOME"] = environment.get("HOME", "/")
    asked = None if agent is None else Agent(agent)
    place = _Place(environment, shells, asked)
    login = _login(host_key)
    host_key = login.host_key
    key: Any = (
        asyncssh.load_keypairs([asyncssh.import_private_key(host_key)])[0]
        if asked is None
        else HostKey(asked, host_key)
    )
    if login.certificate:
        key.set_certificate(asyncssh.import_certificate(login.certificate))
    if asked is not None:
        _find_nothing()

    def new_loop() -> GatheringLoop:
        return GatheringLoop(connection) if asked is None else ContainedLoop(connection, asked)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(connection, key, _Server(place, login.authorized_keys), begun))


class _Login(NamedTuple):
    """Keys of both sides."""

    host_key: str
    certificate: str = ""
    authorized_keys: frozenset[str] | None = None
    """SHA-256 of each authorized key, in hexadecimal; None: the client is authenticated already."""


def _login(given: str) -> _Login:
    """Parse the host key sent by the agent (`runtimes/visits.py`)."""
    if not given.startswith("{"):
        return _Login(given)
    words = json.loads(given)
    return _Login(words["host_key"], words["certificate"], frozenset(words["authorized_keys"]))


def _find_nothing() -> None:
    """Block further imports, which could find files of the image; also of user names, for which the C library loads modules."""
    sys.path.clear()
    sys.meta_path.clear()
    for one in ("pwd", "grp"):
        sys.modules[one] = None  # type: ignore[assignment]


async def _serve(
    connection: socket.socket, key: Any, server: _Server, begun: Callable[[], None]
) -> None:
    # the agent has disconnected: programs notice the end of the connection
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.leave)
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
    """Permissions of the client of one connection."""

    def __init__(self, place: _Place, authorized_keys: frozenset[str] | None) -> None:
        self._place = place
        self._authorized_keys = authorized_keys
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
        return self._authorized_keys is not None

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, _username: str, key: asyncssh.SSHKey) -> bool:
        """Whether a key may log in; its possession is checked later."""
        # asyncssh uses this, not its options; ssh-rsa signs SHA-1
        key.all_sig_algorithms = key.all_sig_algorithms - {b"ssh-rsa"}
        digest = hashlib.sha256(key.public_data).hexdigest()
        return self._authorized_keys is not None and digest in self._authorized_keys

    def session_requested(self) -> Any:
        if len(self._programs) >= _MOST_PROGRAMS:
            return False
        channel = _Channel(self._place, self._programs)
        self._programs.add(channel)
        return channel

    def connection_requested(self, dest_host: str, dest_port: int, *_origin: object) -> Any:
        """Allow all that the replica's program can reach: the connection is made from here."""
        connection: Any = self._connection
        return _connected(connection.forward_connection(dest_host, dest_port))

    def unix_connection_requested(self, dest_path: str) -> Any:
        connection: Any = self._connection
        return _connected(connection.forward_unix_connection(dest_path))

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        return listen_host in _LOOPBACK and listen_port <= _LAST_PORT

    def unix_server_requested(self, _listen_path: str) -> bool:
        return False


async def _connected(forwarding: Awaitable[Any]) -> Any:
    """Connect by asyncssh, which would otherwise end the client's whole connection for an invalid address."""
    try:
        return await forwarding
    except (
        ValueError,
        OverflowError,
    ) as error:  # such as a..b, from a browser behind -D
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from None


class _Channel(SSHServerStreamSession[bytes]):
    """A session of the client: a program, or its files."""

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
            agent = self._place.agent
            if agent is None:
                self._program = _StartedProgram(channel, command, self._place)
            else:
                self._program = _AskedProgram(channel, command, agent)
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


class _NotStarted(Exception):
    """A program cannot be started: the reason, and the exit code of shells for it."""

    def __init__(self, why: str, code: int = _NOT_STARTED) -> None:
        super().__init__(why)
        self.code = code


class _Program:
    """A program with its streams, for one channel."""

    def __init__(self, channel: Any, command: str | None) -> None:
        self._channel = channel
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._has_terminal = channel.get_terminal_type() is not None
        self._status: int | None = None
        self._input: int | None = None
        self._given = bytearray()
        self._waits_to_write = False
        self._has_all_input = False
        self._outputs: dict[int, int | None] = {}
        """Descriptors to read, and the type of data to send each as."""
        self._is_paused = False
        self._is_left = False
        self._is_emptied = False
        self._heard_at = 0.0

    # its start

    def start(self) -> None:
        """Start it, or report the failure on the channel."""
        try:
            self._begin()
        except _NotStarted as error:
            self._close_all()
            self._refuse(str(error), error.code)
            return
        self._channel.set_write_buffer_limits(_MOST_WRITTEN)
        self.resume()

    def _begin(self) -> None:
        """Start it, and set `_input` and `_outputs`. Raises _NotStarted."""
        raise NotImplementedError

    def _refuse(self, why: str, code: int) -> None:
        self._channel.write_stderr(f"nsml: {why}\r\n".encode())
        self._channel.exit(code)

    def _take_streams(self, streams: Sequence[int]) -> None:
        """Use this side of a terminal, or of three pipes."""
        self._input = streams[0]
        kinds = (None, asyncssh.EXTENDED_DATA_STDERR)
        self._outputs = (
            {streams[0]: None} if self._has_terminal else dict(zip(streams[1:], kinds, strict=True))
        )
        for one in streams:
            os.set_blocking(one, False)

    def _told_environment(self) -> dict[bytes, bytes]:
        """Return the variables requested by the client."""
        told: Mapping[bytes, bytes] = self._channel.get_environment_bytes()
        names = [one for one in told if one and b"=" not in one and b"\0" not in one + told[one]]
        return {name: told[name] for name in names[:_MOST_VARIABLES]}

    def _terminal_name(self) -> bytes:
        name: str = self._channel.get_terminal_type()
        return name.encode() or b"dumb"

    # its output

    def pause(self) -> None:
        """The client's window is full."""
        self._is_paused = True
        for one in self._outputs:
            self._loop.remove_reader(one)

    def resume(self) -> None:
        """The client's window has room again."""
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
        except OSError:  # a terminal whose other end is closed
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

    # its input

    def give(self, data: bytes) -> None:
        """Write to its standard input."""
        if self._input is None or self._has_all_input:
            return
        self._given += data
        self._write()
        if len(self._given) > _MOST_GIVEN:
            self._channel.pause_reading()

    def end_input(self) -> None:
        """Close its standard input; a terminal has no such end."""
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
        """Resize its terminal."""
        raise NotImplementedError

    def signal(self, *numbers: int) -> None:
        """Send signals to its process group."""
        raise NotImplementedError

    # its end

    def _note_end(self, status: int) -> None:
        """Record its end: an exit code, or a signal as a negative number."""
        self._status = status
        self._heard_at = self._loop.time()
        if not self._is_left:
            self._look()

    def _look(self) -> None:
        """Finish, once its background processes are silent."""
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
        """Read output since the last look; if there is none, close it."""
        before = self._heard_at
        self._read(output)
        if output in self._outputs and self._heard_at == before:
            self._close_output(output)

    def _end_if_over(self) -> None:
        """Send its exit status, when the client has received all output."""
        if self._status is None or self._outputs or self._is_left or self._is_paused:
            return
        if not self._is_emptied:
            # calls `pause`, and `resume` once the buffer is empty
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
        """The channel is closed: send SIGHUP unless it has ended."""
        if self._is_left:
            return
        self._close_all()
        self._hang_up()

    def _hang_up(self) -> None:
        # a stopped process handles it only after SIGCONT
        self.signal(*_HANG_UP)

    def _close_all(self) -> None:
        self._is_left = True
        ours = {*self._outputs, *([] if self._input is None else [self._input])}
        for one in ours:
            self._loop.remove_reader(one)
            self._loop.remove_writer(one)
            os.close(one)
        self._outputs = {}
        self._input = None


class _StartedProgram(_Program):
    """A program started by this process."""

    def __init__(self, channel: Any, command: str | None, place: _Place) -> None:
        super().__init__(channel, command)
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe_ids: set[tuple[int, int]] = set()
        """Device and inode of its pipes, if it has no terminal."""

    def _begin(self) -> None:
        shell = next((one for one in self._place.shells if os.access(one, os.X_OK)), None)
        if shell is None:
            raise _NotStarted("there is no shell", _NOT_THERE)
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
            raise _NotStarted(str(error)) from error
        finally:
            for one in set(theirs):
                os.close(one)
        self._loop.add_reader(ended, self._reap, ended, self._process)

    def _environment(self, shell: str) -> dict[bytes, bytes]:
        found = {os.fsencode(name): os.fsencode(it) for name, it in self._place.environment.items()}
        found[b"SHELL"] = os.fsencode(shell)
        if self._has_terminal:
            found[b"PS1"] = os.fsencode(self._place.shells[shell])
            found[b"TERM"] = self._terminal_name()
        return found | self._told_environment()

    def _terminal(self) -> list[int]:
        ours, theirs = os.openpty()
        self._take_streams([ours])
        self.resize(*self._channel.get_terminal_size())
        return [theirs, theirs, theirs]

    def _pipes(self) -> list[int]:
        ours, theirs = [], []
        for is_input in (True, False, False):
            reads, writes = os.pipe()
            with contextlib.suppress(OSError):  # this user's pipes use much memory already
                fcntl.fcntl(reads, fcntl.F_SETPIPE_SZ, _PIECE_BYTES)
            ours.append(writes if is_input else reads)
            theirs.append(reads if is_input else writes)
        self._pipe_ids = {_file_id(one) for one in theirs}
        self._take_streams(ours)
        return theirs

    def resize(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Resize its terminal."""
        if self._has_terminal and self._input is not None:
            pixels = [min(one, 0xFFFF) for one in (pixwidth, pixheight)]
            size = struct.pack("HHHH", *_cells(width, height), *pixels)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._input, termios.TIOCSWINSZ, size)

    def signal(self, *numbers: int) -> None:
        """Send signals to its process group."""
        if self._process is not None and self._status is None:
            with contextlib.suppress(OSError):
                for number in numbers:
                    os.killpg(self._process.pid, number)

    def _hang_up(self) -> None:
        """Hang up like a terminal. Without one, processes with none of its pipes continue, as with sshd.

        VS Code's Remote-SSH starts its server so, from a shell that stays. Node ignores nohup.
        """
        if self._has_terminal:
            super()._hang_up()
        elif self._process is not None and self._status is None:
            for pid in _members(self._process.pid):
                _hang_up_if_connected(pid, self._pipe_ids)

    def _reap(self, ended: int, process: subprocess.Popen[bytes]) -> None:
        self._loop.remove_reader(ended)
        os.close(ended)
        self._note_end(process.wait())


def _file_id(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _members(group: int) -> Iterator[int]:
    """Yield the processes of a group."""
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):  # it has ended
            if name.isdecimal() and os.getpgid(int(name)) == group:
                yield int(name)


def _hang_up_if_connected(pid: int, pipes: set[tuple[int, int]]) -> None:
    """Send SIGHUP to a process with one of these pipes."""
    with contextlib.suppress(OSError):  # it has ended
        process = os.pidfd_open(pid)
        try:
            if any(_may_be_one_of(pipes, pid, stream) for stream in range(3)):
                for number in _HANG_UP:
                    signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


def _may_be_one_of(pipes: set[tuple[int, int]], pid: int, stream: int) -> bool:
    try:
        found = os.stat(f"/proc/{pid}/fd/{stream}")
    except FileNotFoundError:  # it has closed that
        return False
    except PermissionError:  # it has other rights, and hides its descriptors
        return True
    return (found.st_dev, found.st_ino) in pipes


class _AskedProgram(_Program):
    """A program started by the container's engine, for the agent."""

    def __init__(self, channel: Any, command: str | None, agent: Agent) -> None:
        super().__init__(channel, command)
        self._agent = agent
        self._end: socket.socket | None = None
        self._group = 0
        self._leader: int | None = None
        """A pidfd of its process, and the number of its group."""

    def _begin(self) -> None:
        environment = self._told_environment()
        size = None
        if self._has_terminal:
            width, height, *_ = self._channel.get_terminal_size()
            size = _cells(width, height)
            environment = {b"TERM": self._terminal_name()} | environment
        words = {
            "command": self._command,
            "env": {
                name.decode(): value.decode()
                for name, value in environment.items()
                if _is_text(name + value)
            },
            "terminal": size,
        }
        try:
            self._end, streams = self._agent.program(words)
        except (OSError, ValueError) as error:
            raise _NotStarted(str(error)) from error
        self._end.setblocking(False)  # noqa: FBT003
        self._take_streams(streams)
        self._loop.add_reader(self._end, self._hear, self._end)

    def _hear(self, end: socket.socket) -> None:
        """Process the agent's report of its end, or the agent's own end."""
        try:
            message = end.recv(_MOST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        said = json.loads(message) if message else {}
        if "pid" in said:
            self._note_group(said["pid"])
            return
        self._loop.remove_reader(end)
        if "code" not in said:
            self.leave()
            # without an exit code ssh reports a broken connection
            self._channel.close()
            return
        if "failed" in said:
            self._channel.write_stderr(f"nsml: {said['failed']}\r\n".encode())
        self._note_end(int(said["code"]))

    def _note_group(self, pid: int | None) -> None:
        with contextlib.suppress(OSError):  # it has ended already
            if pid is not None:
                self._leader, self._group = os.pidfd_open(pid), pid

    def _hang_up(self) -> None:
        """Hang up as the agent does, which may have died."""
        if self._leader is not None and not has_ended(self._leader):
            with contextlib.suppress(OSError):
                for number in _HANG_UP:
                    os.killpg(self._group, number)

    def resize(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Resize its terminal."""
        if not self._tell({"size": _cells(width, height)}):
            again = (width, height, pixwidth, pixheight)
            self._loop.call_later(_TRIES_EVERY_S, self._resize_again, again)

    def _resize_again(self, size: tuple[int, int, int, int]) -> None:
        if size == tuple(self._channel.get_terminal_size()):
            self.resize(*size)

    def signal(self, *numbers: int) -> None:
        """Send signals to its process group."""
        for number in numbers:
            self._tell({"signal": number})

    def _tell(self, words: Mapping[str, object]) -> bool:
        """Send a message to the agent; False while its buffer is full."""
        if self._end is not None:
            try:
                self._end.send(json.dumps(words).encode())
            except BlockingIOError:
                return False
            except OSError:  # it is gone, which `_hear` notices
                pass
        return True

    def leave(self) -> None:
        """The channel is closed: send SIGHUP unless it has ended."""
        if not self._is_left:
            self._hang_up()
            self._close_all()

    def _close_all(self) -> None:
        super()._close_all()
        if self._end is not None:
            self._loop.remove_reader(self._end)
            self._end.close()
            self._end = None
        if self._leader is not None:
            os.close(self._leader)
            self._leader = None


class _Files(asyncssh.SFTPServer):
    """Files accessible to this process, except its own memory: a client could take it over through that."""

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> Any:
        """Open as asyncssh does."""
        file: Any = super().open(path, pflags, attrs)
        where = os.readlink(f"/proc/self/fd/{file.fileno()}")
        if os.path.basename(where) == _MEMORY and _is_of_kernel(file.fileno()):
            file.close()
            raise asyncssh.SFTPPermissionDenied("memory of processes is not served")
        return file

    def exit(self) -> None:
        """Send an exit status when the client is done: asyncssh sends none, which scp treats as a failure."""
        channel: Any = self.channel
        if channel.get_subsystem() is not None:
            channel.exit(0)


def _is_of_kernel(descriptor: int) -> bool:
    return os.fstat(descriptor).st_dev == os.stat("/proc/self/stat").st_dev


def _files(channel: Any) -> _Files:
    return _Files(channel)


def _cells(width: int, height: int) -> tuple[int, int]:
    """Return rows and columns of a terminal."""
    said = zip((width, height), _USUAL_CELLS, strict=True)
    columns, rows = (min(one or usual, _LAST_CELL) for one, usual in said)
    return rows, columns


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _number(name: str) -> int:
    return signal.Signals[f"SIG{name}"].value


def _is_known(number: int) -> bool:
    return number in {one.value for one in signal.Signals}


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
