"""Requests of an ssh server in a container to the agent: programs, and signatures with its host key.

The container's engine starts programs, which only the agent can request. Nor does the server have its private key:
inspecting its memory reveals none. Both ends of their socket send JSON values, one a message:

```
{"sign": data}                                   both in base64
    {"signature": bytes}
{"command": words | null, "env": {...}, "terminal": [rows, columns] | null}
    {"begins": true}                             with a socket, and the program's streams: three pipes, or its terminal
    {"failed": why}
{"argv": [...]}                                  the same, for a program chosen by the platform
```

Without a command it is a shell. The program's socket carries

```
{"failed": why, "code": n}        it was not started
{"pid": n | null}                 it has begun: its pid in the container, if known
{"code": n}                       it has ended; its output is in its streams, which are closed
{"lost": true}                    it ended with its container, or part of its output is lost
```

and `{"signal": n}` and `{"size": [rows, columns]}` in the other direction. The agent makes all descriptors and receives none.
A program whose client disconnects gets SIGHUP from both: either may have been killed. Answers come in the order of
requests, and at once: the agent does not block first.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import re
import socket
import stat
from typing import TYPE_CHECKING, Any, Final

import asyncssh
from asyncssh.packet import String

from nodeagent.shim.gathered import GatheringLoop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_MESSAGE: Final = 1 << 20
_MOST_DESCRIPTORS: Final = 4
_ANSWERS_WITHIN_S: Final = 20.0
_HOSTS: Final = "/etc/hosts"
_MOST_HOSTS: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})")
_LOCALHOST: Final = "localhost"


class Agent:
    """The agent, as seen by a server in a container; all methods raise OSError if it does not answer."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.settimeout(_ANSWERS_WITHIN_S)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_MESSAGE)

    def signature(self, data: bytes) -> bytes:
        """Return a signature of `data` with the private host key."""
        answer, _ = self._ask({"sign": base64.b64encode(data).decode("ascii")})
        return base64.b64decode(answer["signature"])

    def program(self, words: Mapping[str, object]) -> tuple[socket.socket, Sequence[int]]:
        """Return the socket and the streams of a starting program."""
        _, given = self._ask(words)
        end, *streams = given
        return socket.socket(fileno=end), streams

    def _ask(self, words: Mapping[str, object]) -> tuple[dict[str, Any], Sequence[int]]:
        try:
            self._end.send(json.dumps(words).encode())
            message, given, _, _ = socket.recv_fds(self._end, MOST_MESSAGE, _MOST_DESCRIPTORS)
        except OSError:
            self._end.close()  # a later message would be read as another answer
            raise
        if not message:
            raise OSError("its node has left")
        for one in given:
            os.set_inheritable(one, False)  # noqa: FBT003
        answer = json.loads(message)
        if "failed" in answer:
            raise OSError(str(answer["failed"]))
        return answer, given


class HostKey(asyncssh.SSHKeyPair):
    """A host key with its private half at the agent; `public` is the other half, in OpenSSH's format."""

    def __init__(self, agent: Agent, public: str) -> None:
        key = asyncssh.import_public_key(public)
        names = key.sig_algorithms
        super().__init__(key.algorithm, key.algorithm, names, names, key.public_data, None)
        self._agent = agent

    def sign(self, data: bytes) -> bytes:
        """Return the algorithm's name and the signature, as in the protocol."""
        return String(self.key_algorithm) + String(self._agent.signature(data))


class ContainedLoop(GatheringLoop):
    """An event loop that resolves names without files of the image.

    The C library would load modules named in the image's nsswitch.conf. Resolved here are numbers, `localhost` and
    names in /etc/hosts; others are resolved by a program in the container, if it has one (`getent`).
    """

    def __init__(self, gathered: socket.socket, agent: Agent) -> None:
        super().__init__(gathered)
        self._agent = agent

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002
        proto: int = 0,
        flags: int = 0,
    ) -> list[tuple[Any, ...]]:
        """Resolve as every event loop does. Raises OSError."""
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host or ""
        numeric = flags | socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        found: list[tuple[Any, ...]] = []
        is_listening = bool(flags & socket.AI_PASSIVE)
        for address in await self._addresses(name, is_listening=is_listening):
            if family in (0, _family(address)):
                found += socket.getaddrinfo(address, port, family, type, proto, numeric)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found

    async def getnameinfo(self, sockaddr: Any, _flags: int = 0) -> tuple[str, str]:
        """Return the numbers themselves."""
        numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        return socket.getnameinfo(sockaddr, numeric)

    async def _addresses(self, name: str, *, is_listening: bool) -> Sequence[str]:
        if _family(name):
            return [name]
        if name.lower().rstrip(".") == _LOCALHOST:
            # a machine may have no IPv6, and listening would fail as a whole
            return ["127.0.0.1"] if is_listening else ["127.0.0.1", "::1"]
        if not _NAME.fullmatch(name):
            return []
        return addresses_in(_hosts(), name) or await self._asked(name)

    async def _asked(self, name: str) -> Sequence[str]:
        """Return the addresses that a program of the image finds."""
        words: dict[str, object] = {"argv": ["getent", "ahosts", name], "env": {}, "terminal": None}
        end, (given, output, errors) = self._agent.program(words)
        os.close(given)
        os.close(errors)
        try:
            os.set_blocking(output, False)
            text = await self._read_all(output)
        finally:
            os.close(output)
            end.close()
        first = [line.split()[0] for line in text.decode("ascii", "replace").splitlines() if line]
        return [one for one in dict.fromkeys(first) if _family(one)]

    async def _read_all(self, output: int) -> bytes:
        found = b""
        while len(found) < _MOST_HOSTS:
            ready = self.create_future()
            self.add_reader(output, ready.set_result, None)
            try:
                await ready
            finally:
                self.remove_reader(output)
            data = os.read(output, 1 << 16)
            if not data:
                break
            found += data
        return found


def addresses_in(hosts: str, name: str) -> Sequence[str]:
    """Return the addresses of a name in a file like /etc/hosts, in its order."""
    found = []
    for line in hosts.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if name.lower() in (one.lower() for one in names) and _family(address):
            found.append(address)
    return found


def _hosts() -> str:
    """Return the container's file, if it is a regular one."""
    try:
        descriptor = os.open(_HOSTS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, _MOST_HOSTS).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def _family(address: str) -> int:
    """Return the family of a numeric address; 0 for anything else."""
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return 0
    return socket.AF_INET if version == 4 else socket.AF_INET6
