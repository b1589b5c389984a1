"""A program started for a client, with its streams: shared by visitors of replicas and of the node.

Standard library only. A visitor (`visitor.py`, `node_visitor.py`) has a socket to the agent, which sends one order
and, for a program without a terminal, its three streams:

```
{"argv": [...], "env": {...}, "terminal": [rows, columns] | null}
```

An empty `argv` is a shell. The visitor answers, a JSON value a message:

```
{}              with the other end of its terminal, if it has one
{"pid": n}      it has begun; or {"failed": why}, with a "code" if the program is at fault
{"code": n}     or {"signal": n}: how the program ended
```

When the agent's end is closed the program gets SIGHUP, as when a terminal is closed. `{"signal": n}` from the agent goes
to the program's group.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios

from nodeagent.shim import scripts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

FAILED_CODE = 127
NOT_THERE, NOT_EXECUTABLE = 127, 126
"""Exit codes of shells if a program does not exist, and if it is not executable."""
SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_MOST_ORDER = 1 << 20
_MOST_REASON = 4096
STREAMS = 3
_MOST_WORDS = 500
_FOLDER = {"bash": "\\w "}
"""Prompt escape of the current folder, by shell; sh has none."""


def received(end: socket.socket) -> tuple[dict | None, Sequence[int]]:  # type: ignore[type-arg]
    """Receive the order, and the streams; no order if the agent has disconnected. Raises OSError."""
    message, streams, _, _ = socket.recv_fds(end, _MOST_ORDER, STREAMS)
    for one in streams:
        # the program has copies: when it closes those, all are closed
        os.set_inheritable(one, False)  # noqa: FBT003
    try:
        return (json.loads(message) if message else None), streams
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from error


def started(
    end: socket.socket,
    streams: Sequence[int],
    become: Callable[[int], NoReturn],
    facts: Mapping[str, object] | None = None,
) -> int:
    """Fork the program, by `become` in the child, and report its start, with `facts`; return its pid.

    Raises OSError.
    """
    told, tell = os.pipe2(os.O_CLOEXEC)
    program = os.fork()
    if program == 0:
        become(tell)
    os.close(tell)
    poll = select.poll()
    poll.register(told, select.POLLIN)
    poll.register(end, select.POLLIN)
    if told not in {descriptor for descriptor, _ in poll.poll()}:
        # the agent has disconnected: its user may have stopped the child before exec, and it would stay for ever
        os.kill(program, signal.SIGKILL)
        os._exit(FAILED_CODE)
    # closed by exec
    failure = os.read(told, _MOST_REASON)
    os.close(told)
    say(end, json.loads(failure) if failure else {"pid": program, **(facts or {})})
    for one in streams:
        os.close(one)
    return program


def say(end: socket.socket, words: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
    """Send a message to the agent, which may have died."""
    with contextlib.suppress(OSError):
        socket.send_fds(end, [json.dumps(words).encode()], descriptors)


def heard(end: socket.socket) -> bytes:
    """Return the agent's next message; empty once it has disconnected."""
    try:
        return end.recv(_MOST_ORDER)
    except OSError:  # it did not read all messages
        return b""


def watch(
    end: socket.socket,
    program: int,
    leave: Callable[[], float | None] = lambda: None,
    *,
    ends_with: int = -1,
) -> bool:
    """Forward signals until the program has ended, and report its end; False if the agent disconnected first.

    `leave` is called then, after the hangup, and returns the seconds to wait for the end; None: for ever.
    `ends_with` is a pidfd: the program is killed when that process has ended.
    """
    pidfd = os.pidfd_open(program)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(end, select.POLLIN)
    if ends_with >= 0:
        poll.register(ends_with, select.POLLIN)
    is_left, patience_s = False, None
    while True:
        ready = {descriptor for descriptor, _ in poll.poll(patience_s and patience_s * 1000)}
        if pidfd in ready:
            break
        if not ready:
            return False
        if ends_with in ready:
            os.kill(program, signal.SIGKILL)
            poll.unregister(ends_with)
        if end.fileno() not in ready:
            continue
        message = heard(end)
        with contextlib.suppress(OSError, OverflowError):
            os.killpg(program, _signal_in(message))
            if not message:
                os.killpg(program, signal.SIGCONT)  # a stopped process gets no other signal
        if not message:
            poll.unregister(end)
            is_left, patience_s = True, leave()
    _, status = os.waitpid(program, 0)
    code = os.waitstatus_to_exitcode(status)
    say(end, {"code": code} if code >= 0 else {"signal": -code})
    return not is_left


def _signal_in(message: bytes) -> int:
    """Return the requested signal; SIGHUP if the agent is gone."""
    try:
        return int(json.loads(message)["signal"]) if message else signal.SIGHUP
    except (ValueError, KeyError, TypeError):
        return 0


# In the child of the visitor.


def take_streams(end: socket.socket, order: dict, streams: Sequence[int]) -> None:  # type: ignore[type-arg]
    """Set up the standard streams of an order. This process is a session leader. Raises OSError."""
    if order["terminal"] is not None:
        say(end, {}, [_take_terminal(order["terminal"])])
        return
    for number, stream in enumerate(streams):
        os.dup2(stream, number)


def _take_terminal(size: Sequence[int]) -> int:
    """Open a new terminal for this process; return its other end."""
    ours, theirs = os.openpty()
    rows, columns = size
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
    for number in range(STREAMS):
        os.dup2(theirs, number)
    return ours


def settle(folders: Sequence[str]) -> None:
    """Reset signals and umask, and enter the first of the folders that is accessible."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    for folder in folders:
        with contextlib.suppress(OSError):
            os.chdir(folder)
            break


def prompt(shell: str, place: str) -> str:
    """Return the prompt of a shell; `place` comes first."""
    return f"{place} {_FOLDER.get(os.path.basename(shell), '')}$ "


def execute(argv: list[str], env: Mapping[str, str], *, place: str) -> NoReturn:
    """Execute the program. Raises OSError, ValueError."""
    if argv:
        try:
            os.execvpe(argv[0], argv, env)  # noqa: S606
        except OSError as error:
            path = env.get("PATH", os.defpath)
            reason = scripts.why_not_started(argv[0], path, error.errno or 0)
            code = NOT_THERE if error.errno == errno.ENOENT else NOT_EXECUTABLE
            raise _NotStarted(f"cannot start {argv[0]!r}: {reason}", code) from error
    for shell in SHELLS:
        own = {"SHELL": shell, "PS1": prompt(shell, place)}
        with contextlib.suppress(OSError):
            os.execve(shell, [os.path.basename(shell)], {**env, **own})  # noqa: S606
    raise _NotStarted("there is no shell", NOT_THERE)


def tell_failure(tell: int, error: OSError | ValueError) -> NoReturn:
    """Report why the program cannot be executed, and exit."""
    words = {"failed": (getattr(error, "strerror", None) or str(error))[:_MOST_WORDS]}
    code = {"code": error.code} if isinstance(error, _NotStarted) else {}
    os.write(tell, json.dumps({**words, **code}).encode())
    os._exit(FAILED_CODE)


class _NotStarted(OSError):
    """The program itself cannot be executed."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(errno.ENOENT, words)
        self.code = code
