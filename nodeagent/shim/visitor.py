"""A program that the agent starts in a replica while that runs, as for a shell: where the replica's program is.

Standard library only: it runs in a child of the shim. That is asked by the signal `VISIT`, forks a *visitor* and has
no more to do with it than with any other descendant: what a visitor starts counts against the replica's limits and
ends with the replica, at every level of isolation.

The visitor connects to the socket `visits` in the replica's folder, where the agent waits, and is given one order
with, for a program without a terminal, its three streams:

```
{"argv": [...], "env": {...}, "terminal": [rows, columns] | null}
```

An empty `argv` is a shell. With a `copy` what becomes the account executes nothing, and copies files (`file_server.py`);
that alone is asked for in containers, where programs are started by the engine. With `ssh` it becomes an ssh server of
one connection, which comes with the order (`ssh_server.py`; what it imports is found on `path`, and nothing of the
replica's is):

```
{"ssh": {"host_key": key, "path": [...]}, "env": {...}}
```

The visitor enters the namespaces and forks the program, which joins the control group and becomes the account of the
replica under the same filter of system calls. It answers, a JSON value a message:

```
{}                      with the other end of its terminal, where it has one
{"pid": n, "beside": n} it has begun, beside the replica's program; or {"failed": why}, with a "code" where it is the program's fault
{"code": n}             or {"signal": n}: how the program ended
```

When the agent's end is closed the program gets SIGHUP, as when a terminal is closed; what ignores that goes on.
`{"signal": n}` from the agent goes to the program's group.
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
import sys
import termios

from nodeagent.shim import namespaces, process_limits, scripts, seccomp
from nodeagent.shim.files import content_of
from nodeagent.shim.keeper import has_ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from nodeagent.shim.cgroups import Entrance
    from nodeagent.shim.namespaces import Account

    Serve = Callable[
        [socket.socket, str, Mapping[str, str], Mapping[str, str], Callable[[], None]], None
    ]

VISIT = signal.SIGRTMIN + 8
"""Signals of this kind are counted: as many visitors are forked as were asked for."""
SOCKET = "visits"
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_MOST_ORDER = 1 << 20
_MOST_REASON = 4096
_STREAMS = 3
_NAMESPACES = (
    ("ipc", namespaces.CLONE_NEWIPC),
    ("cgroup", namespaces.CLONE_NEWCGROUP),
    ("mnt", namespaces.CLONE_NEWNS),
)
"""Those that the program itself enters, the one last in which nothing of the agent's is to be seen."""
_HOME = "/"
_FAILED_CODE = 127
_BEGINS_OR_ENDS = "its program is just beginning or ending"
NOT_THERE, NOT_EXECUTABLE = 127, 126
"""What shells end with when a program is not there, and when it cannot be executed."""
_MOST_WORDS = 500
_FOLDER = {"bash": "\\w "}
"""How a shell is asked for the current folder in its prompt; sh cannot be."""


def fork(folder: str, spec: dict, first: Process, entrance: Entrance) -> int:  # type: ignore[type-arg]
    """Fork a visitor of the replica whose program, or its first process, is `first`; its pid. Raises OSError.

    `entrance` is closed then.
    """
    shim = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            try:
                namespaces.end_with(shim)
                _run(folder, spec, first, entrance)
            finally:
                os._exit(_FAILED_CODE)
    finally:
        entrance.close()
    return pid


def _run(folder: str, spec: dict, first: Process, entrance: Entrance) -> NoReturn:  # type: ignore[type-arg]
    """Be a visitor."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # the path may be longer than an address can be
    os.chdir(folder)
    end.connect(SOCKET)
    message, streams, _, _ = socket.recv_fds(end, _MOST_ORDER, _STREAMS)
    for one in streams:
        # the program's own three are copies: when it closes those, all are closed
        os.set_inheritable(one, False)  # noqa: FBT003
    if not message:
        os._exit(0)
    try:
        order = json.loads(message)
        visit = _Visit(spec, order, streams, first, entrance)
        visitor = os.getpid()
        told, tell = os.pipe2(os.O_CLOEXEC)
        program = os.fork()
        if program == 0:
            namespaces.end_with(visitor)
            entrance.join()  # not the visitor, which is the platform's
            visit.become_program(end, tell, visitor)
        os.close(tell)
        poll = select.poll()
        poll.register(told, select.POLLIN)
        poll.register(end, select.POLLIN)
        if told not in {descriptor for descriptor, _ in poll.poll()}:
            # the agent has left: its user may have halted what has not begun, which would stay for ever
            os.kill(program, signal.SIGKILL)
            os._exit(_FAILED_CODE)
        # closed by what it executes
        failure = os.read(told, _MOST_REASON)
        _say(end, json.loads(failure) if failure else {"pid": program, "beside": first.pid})
    except OSError as error:
        _say(end, {"failed": str(error)})
        os._exit(_FAILED_CODE)
    for one in streams:
        os.close(one)
    _watch(end, program)
    os._exit(0)


def _say(end: socket.socket, words: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
    with contextlib.suppress(OSError):  # the agent died
        socket.send_fds(end, [json.dumps(words).encode()], descriptors)


def _watch(end: socket.socket, program: int) -> None:
    """Pass on signals until the program has ended, and say how."""
    pidfd = os.pidfd_open(program)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(end, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if pidfd in ready:
            break
        message = end.recv(_MOST_ORDER)
        with contextlib.suppress(OSError, OverflowError):
            os.killpg(program, _signal_in(message))
            if not message:
                os.killpg(program, signal.SIGCONT)  # what is halted hears of nothing else
        if not message:
            poll.unregister(end)
    _, status = os.waitpid(program, 0)
    code = os.waitstatus_to_exitcode(status)
    _say(end, {"code": code} if code >= 0 else {"signal": -code})


def _signal_in(message: bytes) -> int:
    """What the agent asks for; that it is gone is a hangup."""
    try:
        return int(json.loads(message)["signal"]) if message else signal.SIGHUP
    except (ValueError, KeyError, TypeError):
        return 0


class _Visit:
    """What is needed of the replica, opened before the rights that this takes are given up."""

    def __init__(
        self,
        spec: dict,  # type: ignore[type-arg]
        order: dict,  # type: ignore[type-arg]
        streams: Sequence[int],
        first: Process,
        entrance: Entrance,
    ) -> None:
        self._spec = spec
        self._order = order
        self._streams = streams
        self._isolation = spec.get("namespace")
        self._is_contained = "container" in spec
        self._account = spec.get("account")
        self._opened: list[tuple[int, int]] = []
        if self._account:
            for one in streams:  # /dev/stdout and its like open a pipe anew, which its owner may
                os.fchown(one, self._account["uid"], self._account["gid"])
        self._serve = _ssh_server(order["ssh"]["path"]) if "ssh" in order else None
        self._copy = order.get("copy")
        if self._copy:
            from nodeagent.shim import file_server  # while it can be seen; shims do not carry it

            file_server.prepare()
        elif self._serve is not None and self._is_contained:
            raise OSError(errno.EPERM, "no ssh server is started in a container")
        elif self._is_contained:
            raise OSError(errno.EPERM, "programs are started in a container by its engine")
        if self._is_contained:
            self._open_container(first, is_limited=bool(entrance.member_files))
            return
        program = first.child() if self._isolation else first
        if not self._copy:
            self._env = {**_secrets_of(spec, program), **spec["env"], **order["env"]}
        if not self._isolation:
            return
        seccomp.assemble()
        users = program.namespace("user")
        self._opened = [(program.namespace(name), kind) for name, kind in _NAMESPACES]
        pids = program.namespace("pid") if self._isolation["pid"] else None
        program.check()
        namespaces.enter_users(users)
        if pids is not None:
            namespaces.enter(pids, namespaces.CLONE_NEWPID)  # for the program, which is forked next

    def _open_container(self, first: Process, *, is_limited: bool) -> None:
        """As its first process, which is the account's without any right."""
        seccomp.assemble()
        kinds = (("net", namespaces.CLONE_NEWNET), *_NAMESPACES)
        self._account = _account_of(first.pid)
        try:
            self._opened = [(first.namespace(name), kind) for name, kind in kinds]
            pids = first.namespace("pid")
            first.check()
            namespaces.enter(pids, namespaces.CLONE_NEWPID)
        except PermissionError as error:
            reason = "its node's agent is not root, and may not enter containers"
            raise OSError(errno.EPERM, reason) from error
        if not is_limited:
            raise OSError(errno.ENOENT, "the control group of its container cannot be seen")
        if _is_own(self._opened[-1][0]):
            raise OSError(errno.EPERM, "its container is not apart from the agent")

    def become_program(self, end: socket.socket, tell: int, visitor: int) -> NoReturn:
        """In the child of the visitor: enter, give up rights, and become the program, or tell why not."""
        try:
            # else programs of the replica could look into it once it has no more rights than they; what it executes
            # can be looked into again
            namespaces.prctl(namespaces.PR_SET_DUMPABLE, 0)
            for descriptor, kind in self._opened:
                namespaces.enter(descriptor, kind)
            os.setsid()
            is_enclosed = self._isolation or self._is_contained
            if not self._is_contained:
                process_limits.set_of(self._spec)
            if is_enclosed or self._account:
                namespaces.drop_privileges(self._account)
                namespaces.end_with(visitor)
                namespaces.prctl(namespaces.PR_SET_DUMPABLE, 0)  # a change of user may undo it
            if self._serve is not None:
                self._be_server(self._serve, tell)
            if self._order["terminal"] is not None:
                _say(end, {}, [self._take_terminal()])
            else:
                for number, stream in enumerate(self._streams):
                    os.dup2(stream, number)
            if is_enclosed:
                seccomp.load()
            self._settle()
            if self._copy:
                os.close(tell)
                from nodeagent.shim import file_server

                file_server.serve(self._copy)
            self._execute()
        except (OSError, ValueError) as error:
            words = {"failed": (getattr(error, "strerror", None) or str(error))[:_MOST_WORDS]}
            code = {"code": error.code} if isinstance(error, _NotStarted) else {}
            os.write(tell, json.dumps({**words, **code}).encode())
        os._exit(_FAILED_CODE)

    def _be_server(self, serve: Serve, tell: int) -> NoReturn:
        """Serve the connection that came with the order. Nothing is executed: what is open is closed here."""
        [connection] = self._streams
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(_STREAMS):
            os.dup2(nowhere, number)
        namespaces.close_all_but(*range(_STREAMS), connection, tell)
        if self._isolation:
            seccomp.load()
        self._settle()
        namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-ssh")
        serve(
            socket.socket(fileno=connection),
            self._order["ssh"]["host_key"],
            self._env,
            {shell: self._prompt(shell) for shell in _SHELLS},
            lambda: os.close(tell),
        )
        os._exit(0)

    def _take_terminal(self) -> int:
        """A new terminal for this process, which is the leader of a session; its other end."""
        ours, theirs = os.openpty()
        rows, columns = self._order["terminal"]
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        for number in range(_STREAMS):
            os.dup2(theirs, number)
        return ours

    def _settle(self) -> None:
        """As programs begin: signals, permissions of what is made, and where it is."""
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(0o022)
        plan = self._spec.get("container")
        cwd = plan["config"]["WorkingDir"] if plan else self._spec["cwd"]
        for folder in (cwd, _HOME):
            with contextlib.suppress(OSError):
                os.chdir(folder)
                break

    def _prompt(self, shell: str) -> str:
        place = f"{self._env.get('NSML_SESSION_NAME', 'nsml')}:{self._env.get('NSML_RANK', 0)}"
        return f"{place} {_FOLDER.get(os.path.basename(shell), '')}$ "

    def _execute(self) -> NoReturn:
        argv = self._order["argv"]
        if argv:
            try:
                os.execvpe(argv[0], argv, self._env)  # noqa: S606
            except OSError as error:
                path = self._env.get("PATH", os.defpath)
                reason = scripts.why_not_started(argv[0], path, error.errno or 0)
                code = NOT_THERE if error.errno == errno.ENOENT else NOT_EXECUTABLE
                raise _NotStarted(f"cannot start {argv[0]!r}: {reason}", code) from error
        for shell in _SHELLS:
            name = os.path.basename(shell)
            own = {"SHELL": shell, "PS1": self._prompt(shell)}
            with contextlib.suppress(OSError):
                os.execve(shell, [name], {**self._env, **own})  # noqa: S606
        raise _NotStarted("there is no shell", NOT_THERE)


def _ssh_server(path: Sequence[str]) -> Serve:
    """What serves ssh, imported while it can be found: a shim's own path has the standard library alone. Raises OSError."""
    sys.path += [one for one in path if one not in sys.path]
    try:
        from nodeagent.shim import ssh_server
    except ImportError as error:
        raise OSError(errno.ENOENT, f"its node cannot serve ssh: {error}") from error
    return ssh_server.run


class _NotStarted(OSError):
    """The program itself cannot be executed."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(errno.ENOENT, words)
        self.code = code


class Process:
    """A process of the replica, of which something is looked up by its number: `check` then says that it was its own.

    To be made while the number surely means it, as of a child that was not waited for; or of a `pidfd`, which becomes its.
    """

    def __init__(self, pid: int, pidfd: int = -1) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid) if pidfd < 0 else pidfd

    def check(self) -> None:
        """Its number is not somebody else's yet: it has not ended. Raises OSError."""
        if has_ended(self._pidfd):
            raise OSError(errno.ESRCH, _BEGINS_OR_ENDS)

    def namespace(self, name: str) -> int:
        """One of its namespaces, opened."""
        return os.open(f"/proc/{self.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def child(self) -> Process:
        """The program that a first process has started: that one itself lets nobody look into it. Raises OSError."""
        found = Process(_child_of(self.pid))
        if _child_of(self.pid) != found.pid:
            raise OSError(errno.ESRCH, _BEGINS_OR_ENDS)
        self.check()
        return found

    def close(self) -> None:
        """Know nothing of it any more."""
        os.close(self._pidfd)


def _account_of(pid: int) -> Account:
    """Whom a process runs as, as this machine calls them."""
    lines = content_of(f"/proc/{pid}/status").split(
        b"\n"
    )  # its name may have other ends of lines in it
    words = {line.partition(b":")[0]: line.split()[1:] for line in lines}
    return {
        "uid": int(words[b"Uid"][0]),
        "gid": int(words[b"Gid"][0]),
        "groups": [int(one) for one in words[b"Groups"]],
    }


def _is_own(mounts: int) -> bool:
    """Whether these mounts are those of this process."""
    return os.path.samestat(os.fstat(mounts), os.stat("/proc/self/ns/mnt"))


def _child_of(first: int) -> int:
    for thread in os.listdir(f"/proc/{first}/task"):
        for word in content_of(f"/proc/{first}/task/{thread}/children").split():
            return int(word)
    raise OSError(errno.ESRCH, _BEGINS_OR_ENDS)


def _secrets_of(spec: dict, program: Process) -> dict[str, str]:  # type: ignore[type-arg]
    """Variables that the program was given and no file has: what is in its environment beside those of `spec`."""
    if not spec.get("has_secrets"):
        return {}
    pairs = (one.partition(b"=") for one in content_of(f"/proc/{program.pid}/environ").split(b"\0"))
    program.check()
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
    return {name: value for name, value in found.items() if name not in spec["env"]}
