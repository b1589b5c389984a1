"""A program that the agent starts in a running replica, such as a shell: beside the replica's program.

Standard library only: it runs in a child of the shim. The shim gets the signal `VISIT`, forks a *visitor* and treats
it like any other descendant: programs of a visitor count against the replica's limits and
end with the replica, at every level of isolation.

The visitor connects to the socket `visits` in the replica's folder, where the agent listens, and receives one order
(`client_program.py`). It enters the namespaces and forks the program, which joins the control group and switches to the
account of the replica under the same seccomp filter. Beside the program's pid it reports that of the replica's
own, `beside`. Programs that ignore the hangup when the agent disconnects continue.

`{"listener": true}` requests only the shim's listener (`loopback.py`), which comes with the answer.

Two more orders start no program. The process with the account executes nothing then, and is

```
{"copy": {...}, ...}                                    a copy of files (`file_server.py`)
{"ssh": {"host_key": key, "path": [...]}, "env": {...}} an ssh server of the one connection that comes with it
```

(`ssh_server.py`; its imports come from `path`, none from the replica). Containers are entered for
these two alone: their engine starts programs. An ssh server there has a second socket, to ask the agent for
those (`contained_ssh.py`).

Its imports take longer than all else, so that order carries another descriptor, whose other end has a *stand-in* (`ssh_zygote.py`): a process of the agent's that has them imported, and nothing else. The
visitor sends it all that it has received, and it takes over. It is no descendant of the shim, so this is done
only if its programs are found by the control group, with a limit of processes, whatever their parent; and the
visitor stays until the server is in the group, so that the shim always knows of a process. Like a
visitor, a stand-in ends its server with the shim.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import sys

from nodeagent.shim import client_program, loopback, namespaces, process_limits, seccomp
from nodeagent.shim.cgroups import Entrance
from nodeagent.shim.files import content_of
from nodeagent.shim.keeper import has_ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from nodeagent.shim.namespaces import Account

    Serve = Callable[..., None]
    """`ssh_server.run`."""

VISIT = signal.SIGRTMIN + 8
"""Signals of this kind are queued: each forks a visitor."""
SOCKET = "visits"
PROGRAM, COPY, SSH, CONTAINED_SSH = "program", "copy", "ssh", "contained-ssh"
KINDS = (PROGRAM, COPY, SSH, CONTAINED_SSH, loopback.LISTENER)
"""Orders that visitors of these shims support: claims list them, and nothing else is ordered."""
_NAMESPACES = (
    ("ipc", namespaces.CLONE_NEWIPC),
    ("cgroup", namespaces.CLONE_NEWCGROUP),
    ("mnt", namespaces.CLONE_NEWNS),
)
"""Namespaces that the program itself enters, last the one that hides all of the agent."""
_HOME = "/"
_TAKEN, _JOINED = b"t", b"j"
"""Messages of a stand-in: it has all that it needs; its server is in the control group."""
_MOST_GIVEN = 32
"""Most descriptors sent to a stand-in."""
_BEGINS_OR_ENDS = "its program is just beginning or ending"


def fork(
    folder: str,
    spec: dict,  # type: ignore[type-arg]
    first: Process,
    entrance: Entrance,
    *,
    may_hand_over: bool = False,
) -> int:
    """Fork a visitor of the replica with program or first process `first`; return its pid. Raises OSError.

    Closes `entrance`. `may_hand_over`: processes in the control group are found and ended with the replica,
    whatever their parent, and the replica's shim is in the machine's user namespace.
    """
    shim = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            try:
                namespaces.end_with(shim)
                end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                call = _Call(end, spec, first, entrance)
                _run(folder, call, shim if may_hand_over else 0)
            finally:
                os._exit(client_program.FAILED_CODE)
    finally:
        entrance.close()
    return pid


class _Call:
    """An order of the agent, connected by `end`, and a visitor's access to the replica."""

    def __init__(self, end: socket.socket, spec: dict, first: Process, entrance: Entrance) -> None:  # type: ignore[type-arg]
        self.end = end
        self.spec = spec
        self.first = first
        self.entrance = entrance
        self.order: dict = {}  # type: ignore[type-arg]
        self.streams: Sequence[int] = ()

    def fail(self, error: OSError | ValueError) -> NoReturn:
        """Report the failure, and exit."""
        client_program.say(self.end, {"failed": str(error)})
        os._exit(client_program.FAILED_CODE)


def _run(folder: str, call: _Call, shim: int) -> NoReturn:
    """Run a visitor; `shim` is 0 if it may not hand over."""
    # the path may be longer than an address allows
    os.chdir(folder)
    call.end.connect(SOCKET)
    try:
        order, call.streams = client_program.received(call.end)
        if order is None:
            os._exit(0)
        call.order = order
        if loopback.LISTENER in order:
            loopback.hand_over(call.spec, call.end)
            os._exit(0)
        if "ssh" in order:
            *call.streams, channel = call.streams
            with socket.socket(fileno=channel) as other:
                if shim:
                    _hand_over(call, other, shim)
    except (OSError, ValueError) as error:
        call.fail(error)
    _start(call)


def _start(call: _Call, joined: Callable[[], None] = lambda: None, ends_with: int = -1) -> NoReturn:
    """Start the program of the order, and watch it.

    `joined` is called in it once it is in the control group. `ends_with` is a pidfd.
    """
    visitor = os.getpid()
    try:
        visit = _Visit(call)

        def become(tell: int) -> NoReturn:
            namespaces.end_with(visitor)
            call.entrance.join()  # not the visitor, which is the platform's
            joined()
            visit.become_program(call.end, tell, visitor)

        program = client_program.started(call.end, call.streams, become, {"beside": call.first.pid})
        visit.close()
        call.entrance.close()
    except OSError as error:
        call.fail(error)
    client_program.watch(call.end, program, ends_with=ends_with)
    os._exit(0)


def _hand_over(call: _Call, channel: socket.socket, shim: int) -> None:
    """Hand over to a stand-in and exit; return if there is none. Raises OSError."""
    content = os.memfd_create("nsml-visit")
    words = {
        "spec": call.spec,
        "order": call.order,
        "first": call.first.pid,
        "visitor": os.getpid(),
        "streams": len(call.streams),
    }
    with os.fdopen(os.dup(content), "wb") as file:
        file.write(json.dumps(words).encode())
    own = [content, os.pidfd_open(os.getpid()), os.pidfd_open(shim), call.first.duplicate()]
    own.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    given = [*own, call.end.fileno(), *call.streams, *call.entrance.member_files]
    try:
        socket.send_fds(channel, [b"!"], given)
        said = _said(call, channel)
    except OSError:  # there is no stand-in
        said = b""
    if said == _TAKEN:
        _said(call, channel)
        os._exit(0)
    for one in own:
        os.close(one)


def _said(call: _Call, channel: socket.socket) -> bytes:
    """Return a stand-in's next message; empty if it is gone. Exits if the agent disconnects."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(call.end, select.POLLIN)
    if channel.fileno() not in {one for one, _ in poll.poll()}:
        os._exit(client_program.FAILED_CODE)
    return channel.recv(1)


def stand_in(channel: socket.socket) -> NoReturn:
    """Run a stand-in: with only `channel` open, on which a visitor may connect."""
    message, given, _, _ = socket.recv_fds(channel, 1, _MOST_GIVEN)
    if not message:
        os._exit(0)
    for one in given:
        os.set_inheritable(one, False)  # noqa: FBT003
    content, visitor, shim, first, network, end, *others = given
    channel.send(_TAKEN)
    with os.fdopen(content, "rb") as file:
        file.seek(0)
        words = json.load(file)
    count = words.get("streams", 1)  # from a shim of an earlier version it is always one
    streams, members = others[:count], others[count:]
    entrance = Entrance()
    entrance.member_files = members
    call = _Call(socket.socket(fileno=end), words["spec"], Process(words["first"], first), entrance)
    call.order, call.streams = words["order"], streams
    replaced = Process(words["visitor"], visitor)

    def joined() -> None:
        # While it lives the shim does not regard the replica as ended; before that it sees the group's members.
        replaced.check()
        channel.send(_JOINED)

    try:
        if not _is_own(network, "net"):
            namespaces.enter_network(network)
        os.close(network)
    except OSError as error:
        call.fail(error)
    _start(call, joined, ends_with=shim)


class _Visit:
    """Resources of the replica, opened before the necessary rights are dropped."""

    def __init__(self, call: _Call) -> None:
        spec, order, streams, first = call.spec, call.order, call.streams, call.first
        self._spec = spec
        self._order = order
        self._streams = streams
        self._isolation = spec.get("namespace")
        self._is_contained = "container" in spec
        self._account = spec.get("account")
        self._opened: list[tuple[int, int]] = []
        if self._account:
            for one in streams:  # /dev/stdout and its like reopen a pipe, which only its owner may
                os.fchown(one, self._account["uid"], self._account["gid"])
        self._serve = ssh_server(order["ssh"]["path"]) if "ssh" in order else None
        self._copy = order.get("copy")
        if self._copy:
            from nodeagent.shim import file_server  # while it is visible; shims do not import it

            file_server.prepare()
        elif self._is_contained and self._serve is None:
            raise OSError(errno.EPERM, "programs are started in a container by its engine")
        if self._is_contained:
            self._env = dict(order["env"])
            self._open_container(first, is_limited=bool(call.entrance.member_files))
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
        """Enter it like its first process, with that account and no rights."""
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
        if _is_own(self._opened[-1][0], "mnt"):
            raise OSError(errno.EPERM, "its container is not apart from the agent")

    def close(self) -> None:
        """Close the namespaces."""
        for descriptor, _ in self._opened:
            os.close(descriptor)
        self._opened = []

    def become_program(self, end: socket.socket, tell: int, visitor: int) -> NoReturn:
        """In the child of the visitor: enter, drop rights, and execute the program, or report the failure."""
        try:
            # else programs of the replica could trace it once it has no more rights than they; executed programs
            # are traceable again
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
            if self._serve is None:
                client_program.take_streams(end, self._order, self._streams)
            else:
                self._leave_streams(tell)
            if is_enclosed:
                seccomp.load()
            client_program.settle(self._folders())
            if self._serve is not None:
                self._be_server(self._serve, tell)
            if self._copy:
                os.close(tell)
                from nodeagent.shim import file_server

                file_server.serve(self._copy)
            client_program.execute(self._order["argv"], self._env, place=self._place())
        except (OSError, ValueError) as error:
            client_program.tell_failure(tell, error)

    def _leave_streams(self, tell: int) -> None:
        """Keep only the connection of the order open: a server executes nothing."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        streams = range(client_program.STREAMS)
        for number in streams:
            os.dup2(nowhere, number)
        namespaces.close_all_but(*streams, *self._streams, tell)

    def _be_server(self, serve: Serve, tell: int) -> NoReturn:
        namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-ssh")
        connection, *agent = [socket.socket(fileno=one) for one in self._streams]
        serve(
            connection,
            self._order["ssh"]["host_key"],
            self._env,
            {one: client_program.prompt(one, self._place()) for one in client_program.SHELLS},
            lambda: os.close(tell),
            **({"agent": agent[0]} if agent else {}),
        )
        os._exit(0)

    def _folders(self) -> Sequence[str]:
        """Return folders for programs to begin in: the first accessible one."""
        plan = self._spec.get("container")
        return plan["config"]["WorkingDir"] if plan else self._spec["cwd"], _HOME

    def _place(self) -> str:
        """Return the beginning of prompts."""
        return f"{self._env.get('NSML_SESSION_NAME', 'nsml')}:{self._env.get('NSML_RANK', 0)}"


def ssh_server(path: Sequence[str]) -> Serve:
    """Import the ssh server while it is visible: a shim's own path has only the standard library. Raises OSError."""
    sys.path += [one for one in path if one not in sys.path]
    try:
        from nodeagent.shim import ssh_server
    except ImportError as error:
        raise OSError(errno.ENOENT, f"its node cannot serve ssh: {error}") from error
    return ssh_server.run


class Process:
    """A process of the replica, for lookups by its pid: `check` then verifies that the pid was not reused.

    Create it while the pid is certainly valid, as for an unreaped child; or with a `pidfd`, which it then owns.
    """

    def __init__(self, pid: int, pidfd: int = -1) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid) if pidfd < 0 else pidfd

    def check(self) -> None:
        """Check that it has not ended, so that its pid is still its own. Raises OSError."""
        if has_ended(self._pidfd):
            raise OSError(errno.ESRCH, _BEGINS_OR_ENDS)

    def namespace(self, name: str) -> int:
        """Open one of its namespaces."""
        return os.open(f"/proc/{self.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def child(self) -> Process:
        """Return the program started by a first process, which itself cannot be inspected. Raises OSError."""
        found = Process(_child_of(self.pid))
        if _child_of(self.pid) != found.pid:
            raise OSError(errno.ESRCH, _BEGINS_OR_ENDS)
        self.check()
        return found

    def duplicate(self) -> int:
        """Return another pidfd of it. Raises OSError."""
        return os.dup(self._pidfd)

    def close(self) -> None:
        """Close its pidfd."""
        os.close(self._pidfd)


def _account_of(pid: int) -> Account:
    """Return the user and groups of a process, in this machine's ids."""
    # its name may contain other line ends
    lines = content_of(f"/proc/{pid}/status").split(b"\n")
    words = {line.partition(b":")[0]: line.split()[1:] for line in lines}
    return {
        "uid": int(words[b"Uid"][0]),
        "gid": int(words[b"Gid"][0]),
        "groups": [int(one) for one in words[b"Groups"]],
    }


def _is_own(namespace: int, name: str) -> bool:
    """Whether that namespace is this process's."""
    return os.path.samestat(os.fstat(namespace), os.stat(f"/proc/self/ns/{name}"))


def _child_of(first: int) -> int:
    for thread in os.listdir(f"/proc/{first}/task"):
        for word in content_of(f"/proc/{first}/task/{thread}/children").split():
            return int(word)
    raise OSError(errno.ESRCH, _BEGINS_OR_ENDS)


def _secrets_of(spec: dict, program: Process) -> dict[str, str]:  # type: ignore[type-arg]
    """Return the program's secret variables, which no file has: those of its environment that are not in `spec`."""
    if not spec.get("has_secrets"):
        return {}
    pairs = (one.partition(b"=") for one in content_of(f"/proc/{program.pid}/environ").split(b"\0"))
    program.check()
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
    return {name: value for name, value in found.items() if name not in spec["env"]}
