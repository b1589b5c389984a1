"""Starts commands on other replicas of a gang: takes the place of ssh, which images have no server for.

Replicas of rank > 0 run a `Listener` at their own port. Rank 0 keeps a `Control` to each: the listener ends with it, and
its commands with it. `python -m nsml._remote_start HOST COMMAND` is what mpirun runs as its ssh.

A peer proves that it knows the secret of this attempt, and so does the listener, before a command is sent:

    listener: MAGIC NONCE
    peer:     KIND NONCE HMAC(secret, "peer" KIND RANK NONCES)
    listener: HMAC(secret, "listener" KIND RANK NONCES)
    peer:     messages, each LENGTH HMAC(key of this connection, NUMBER MESSAGE) MESSAGE

Nonces are of one connection, so nothing can be replayed; RANK keeps a stranger from passing one replica's answers off
as another's. What a command prints is sent back as it is: LENGTH KIND DATA.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

    Address = Tuple[str, int]

SECRET = "NSML_GANG_SECRET"  # noqa: S105 - the name of a variable
"""Variable with the secret of this attempt; no program that is started has it."""
GANG_FILE = "NSML_GANG_FILE"
"""Variable of mpirun: the path of `write_gang`."""
ALIAS = "nsml-rank-"
"""Begins the name of a replica as a host of mpirun: two replicas may be on one node, which has one name."""
RUN, CONTROL = b"R", b"C"
END = b"end"

_MAGIC = b"NSMLRUN1"
_NONCE, _MAC = 32, 32
_MOST_BYTES = 1 << 20
_PIECE_BYTES = 64 << 10
_UNPROVED_S = 10.0
"""A peer has this long to prove itself."""
_MOST_UNPROVED = 32
_CONNECT_S = 1800.0
"""Replicas prepare data and packages, and do not start at the same time."""
_AGAIN_S = 0.2
_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL of what a listener started."""
_FAILED = 255
"""As ssh: the command was not run."""
_EXIT = b"x"
_INTERFACE = re.compile(
    r"""\s-{1,2}(?:prte)?mca\s+["']?oob_tcp_if_include["']?\s+["']?[\w.-]+["']?\s"""
)
_PR_SET_CHILD_SUBREAPER = 36


class Refused(Exception):
    """The other end does not know the secret, or speaks another language."""


def take_secret() -> bytes:
    """Return the secret of this attempt, and remove it from the environment of what is started from here on."""
    return os.environ.pop(SECRET, "").encode()


class Channel:
    """A connection that has been proved, for messages of the peer in their order."""

    def __init__(self, sock: socket.socket, key: bytes) -> None:
        self.sock, self._key, self._number = sock, key, 0

    def send(self, message: bytes) -> None:
        """Send one message; raises OSError."""
        self.sock.sendall(struct.pack("!I", len(message)) + self._mac(message) + message)

    def receive(self) -> Optional[bytes]:
        """Return the next message; None at the end. Raises OSError, Refused."""
        head = self.sock.recv(4)
        if not head:
            return None
        (length,) = struct.unpack("!I", head + read(self.sock, 4 - len(head)))
        if length > _MOST_BYTES:
            raise Refused("a message is too long")
        mac, message = read(self.sock, _MAC), read(self.sock, length)
        if not hmac.compare_digest(mac, self._mac(message)):
            raise Refused("a message was changed on its way")
        return message

    def _mac(self, message: bytes) -> bytes:
        self._number += 1
        return _digest(self._key, b"message", struct.pack("!Q", self._number), message)


def accept(sock: socket.socket, secret: bytes, rank: int) -> Tuple[bytes, Channel]:
    """Have a peer prove itself; return the kind of its connection. Raises OSError, Refused."""
    ours = os.urandom(_NONCE)
    sock.sendall(_MAGIC + ours)
    answer = read(sock, 1 + _NONCE + _MAC)
    kind, theirs, mac = answer[:1], answer[1 : 1 + _NONCE], answer[1 + _NONCE :]
    about = (kind, struct.pack("!I", rank), ours, theirs)
    if not secret or not hmac.compare_digest(mac, _digest(secret, b"peer", *about)):
        raise Refused("it does not know the secret")
    sock.sendall(_digest(secret, b"listener", *about))
    return kind, Channel(sock, _digest(secret, b"key", *about))


def prove(sock: socket.socket, secret: bytes, rank: int, kind: bytes) -> Channel:
    """Prove this end to the listener of `rank`, and have it prove itself. Raises OSError, Refused."""
    greeting = read(sock, len(_MAGIC) + _NONCE)
    if not secret or not greeting.startswith(_MAGIC):
        raise Refused("something else listens at its port")
    theirs, ours = greeting[len(_MAGIC) :], os.urandom(_NONCE)
    about = (kind, struct.pack("!I", rank), theirs, ours)
    sock.sendall(kind + ours + _digest(secret, b"peer", *about))
    if not hmac.compare_digest(read(sock, _MAC), _digest(secret, b"listener", *about)):
        raise Refused("it does not know the secret of this attempt")
    return Channel(sock, _digest(secret, b"key", *about))


def read(sock: socket.socket, count: int) -> bytes:
    """Return exactly so many bytes; raises OSError, also if there are fewer."""
    parts: List[bytes] = []
    while count:
        part = sock.recv(min(count, _PIECE_BYTES))
        if not part:
            raise ConnectionError("the other end is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _digest(key: bytes, *parts: bytes) -> bytes:
    # Each part with its length: different parts are never the same bytes.
    text = b"".join(struct.pack("!I", len(one)) + one for one in parts)
    return hmac.new(key, text, hashlib.sha256).digest()


def connect(address: Address, secret: bytes, rank: int, kind: bytes) -> Channel:
    """Return a connection to the listener of `rank`, which may start later than this. Raises OSError, Refused."""
    until, tell = time.monotonic() + _CONNECT_S, time.monotonic() + 60.0
    while True:
        try:
            sock = socket.create_connection(address, timeout=_UNPROVED_S)
            try:
                channel = prove(sock, secret, rank, kind)
            except BaseException:
                sock.close()
                raise
            sock.settimeout(None)
            _keep_alive(sock)
        except (OSError, Refused):
            if time.monotonic() > until:
                raise
        else:
            return channel
        if time.monotonic() > tell:
            tell = time.monotonic() + 600.0
            _say(f"waiting for rank {rank} at {address[0]}:{address[1]}")
        time.sleep(_AGAIN_S)


def _keep_alive(sock: socket.socket) -> None:
    """Notice a machine that is gone without a word, within about two minutes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Listener:
    """Runs commands of rank 0 until that ends."""

    def __init__(self, port: int, secret: bytes, rank: int) -> None:
        """Listen; raises OSError."""
        self._secret, self._rank = secret, rank
        self._lock = threading.Lock()
        self._unproved: List[socket.socket] = []
        self._running: Dict[int, subprocess.Popen[bytes]] = {}
        self._is_controlled = False
        self._ended = threading.Event()
        self._code = 0
        self._environment = dict(os.environ)
        self._environment.pop(SECRET, None)
        self._sock = socket.socket(socket.AF_INET6 if _has_ipv6() else socket.AF_INET)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._sock.family == socket.AF_INET6:
            self._sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self._sock.bind(("", port))
        self._sock.listen(_MOST_UNPROVED)
        self.port = int(self._sock.getsockname()[1])

    def serve(self) -> int:
        """Serve until rank 0 has ended, or `end` is called; return the exit code. What it started has ended, too."""
        threading.Thread(target=self._accept, daemon=True).start()
        while not self._ended.wait(60.0):  # a wait without an end would keep signals back
            pass
        self._sock.close()
        self._stop_all()
        return self._code

    def end(self, code: int) -> None:
        """End, with what was started."""
        if not self._ended.is_set():
            self._code = code
            self._ended.set()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                sock, _ = self._sock.accept()
            except OSError:
                if self._ended.is_set():
                    return
                time.sleep(_AGAIN_S)  # no descriptor is free
                continue
            with self._lock:
                # The oldest goes: strangers that say nothing keep nobody else away.
                oldest = self._unproved.pop(0) if len(self._unproved) >= _MOST_UNPROVED else None
                self._unproved.append(sock)
            if oldest is not None:
                _close(oldest)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(_UNPROVED_S)
            try:
                kind, channel = accept(sock, self._secret, self._rank)
            finally:
                with self._lock:
                    is_kept = sock in self._unproved
                    if is_kept:
                        self._unproved.remove(sock)
            sock.settimeout(None)
            _keep_alive(sock)
            if kind == CONTROL:
                self._obey(channel)
            elif kind == RUN:
                self._run(channel)
        except (OSError, Refused, ValueError, KeyError, TypeError):
            pass  # a stranger, or a peer that is gone
        finally:
            _close(sock)

    def _obey(self, channel: Channel) -> None:
        """Stay as long as rank 0 does."""
        with self._lock:
            if self._is_controlled:
                return
            self._is_controlled = True
        try:
            message = channel.receive()
        except (OSError, Refused):
            message = None
        if message != END:
            _say("rank 0 is gone: this replica ends, too")
        self.end(0 if message == END else 1)

    def _run(self, channel: Channel) -> None:
        request = json.loads(channel.receive() or b"{}")
        command = request["command"]
        program = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        with self._lock:
            self._running[program.pid] = program
        threading.Thread(target=self._stop_with, args=(channel.sock, program), daemon=True).start()
        sending = threading.Lock()
        pumps = [
            threading.Thread(target=_pump, args=(stream, kind, channel.sock, sending), daemon=True)
            for stream, kind in ((program.stdout, b"o"), (program.stderr, b"e"))
        ]
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        code = program.wait()
        with self._lock:
            self._running.pop(program.pid, None)
        code = 128 - code if code < 0 else code
        _send(channel.sock, _EXIT, struct.pack("!I", code))

    def _stop_with(self, sock: socket.socket, program: subprocess.Popen[bytes]) -> None:
        """Stop the program once the peer is gone: it says nothing more, so all that comes is the end."""
        with suppress(OSError):
            while sock.recv(_PIECE_BYTES):
                pass
        _stop(program)

    def _stop_all(self) -> None:
        """End what was started, and what that has started: the daemons of mpirun leave its process group."""
        with self._lock:
            running = list(self._running)
        below = [pid for one in running for pid in (one, *descendants(one))]
        end_processes(below)


def _pump(stream: IO[bytes], kind: bytes, sock: socket.socket, sending: threading.Lock) -> None:
    """Send on what a program prints, no faster than the peer takes it; nobody takes it: it goes on all the same."""
    is_taken = True
    with stream:
        while True:
            piece = os.read(stream.fileno(), _PIECE_BYTES)
            if not piece:
                return
            try:
                if is_taken:
                    with sending:
                        _send(sock, kind, piece)
            except OSError:
                is_taken = False


def _send(sock: socket.socket, kind: bytes, data: bytes) -> None:
    sock.sendall(struct.pack("!I", len(data)) + kind + data)


def _stop(program: subprocess.Popen[bytes]) -> None:
    """End a program with its group: SIGTERM, then SIGKILL."""
    for number, seconds in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        if program.poll() is not None:
            return
        try:
            os.killpg(program.pid, number)
        except OSError:
            return
        with suppress(subprocess.TimeoutExpired):
            program.wait(seconds)
            return


def adopt_orphans() -> None:
    """Have processes whose parent has ended become children of this one, where the system can do that."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def end_processes(
    pids: Sequence[int], numbers: Sequence[int] = (signal.SIGTERM, signal.SIGKILL)
) -> None:
    """End these processes below this one with the first signal, then with the next one."""
    for number in numbers:
        until = time.monotonic() + _GRACE_S
        left = set(pids).intersection(descendants(os.getpid()))
        for pid in left:
            with suppress(OSError):  # it has ended
                os.kill(pid, number)
        while time.monotonic() < until and left.intersection(descendants(os.getpid())):
            time.sleep(_AGAIN_S / 4)


def descendants(root: int) -> List[int]:
    """Return the running processes below `root`, parents first."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    state, parent = stat.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue  # it has ended
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(name))
    found = [root]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def _close(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::", 0))
    except OSError:
        return False
    return True


class Controls:
    """Rank 0's connections to all listeners: they end with it."""

    def __init__(self, addresses: Sequence[Address], secret: bytes) -> None:
        """Wait for the listeners of all further replicas. Raises OSError, Refused."""
        found: Dict[int, Any] = {}
        waiting = [
            threading.Thread(target=self._connect, args=(found, address, secret, rank), daemon=True)
            for rank, address in enumerate(addresses)
            if rank
        ]
        for one in waiting:
            one.start()
        for one in waiting:
            while one.is_alive():
                one.join(1.0)  # signals come through
        for rank, one in sorted(found.items()):
            if isinstance(one, BaseException):
                where = "{}:{}".format(*addresses[rank])
                raise Refused(f"rank {rank} at {where} is not reached: {one}")
        self._channels: List[Channel] = list(found.values())

    @staticmethod
    def _connect(found: Dict[int, Any], address: Address, secret: bytes, rank: int) -> None:
        try:
            found[rank] = connect(address, secret, rank, CONTROL)
        except BaseException as error:
            found[rank] = error

    def end(self) -> None:
        """Let the listeners end well."""
        for channel in self._channels:
            with suppress(OSError):  # that replica is gone
                channel.send(END)


def write_gang(path: str, addresses: Sequence[Address], secret: bytes) -> None:
    """Write what `python -m nsml._remote_start` needs, readable by this user alone."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        json.dump({"secret": secret.decode(), "addresses": [list(one) for one in addresses]}, out)


def start_remotely(arguments: Sequence[str]) -> int:
    """Run `[OPTIONS] HOST COMMAND` as ssh does; return its exit code."""
    words = list(arguments)
    while words and words[0].startswith("-"):
        words.pop(0)  # options of ssh, such as -x
    if len(words) < 2:
        _say("usage: HOST COMMAND")
        return _FAILED
    # Of rank 0's node: the daemon takes the name of its own one from its environment.
    host, command = words[0], _INTERFACE.sub(" ", " ".join(words[1:]))
    try:
        with open(os.environ[GANG_FILE]) as gang:
            known = json.load(gang)
        rank = _rank_of(host, known["addresses"])
        address = known["addresses"][rank][0], int(known["addresses"][rank][1])
        channel = connect(address, known["secret"].encode(), rank, RUN)
        channel.send(json.dumps({"command": command}).encode())
        return _show(channel.sock)
    except (OSError, Refused, KeyError, ValueError, IndexError) as error:
        _say(f"{host} is not reached: {error}")
        return _FAILED


def _rank_of(host: str, addresses: Sequence[Sequence[Any]]) -> int:
    found = re.fullmatch(re.escape(ALIAS) + r"(\d{1,4})", host)
    if found:
        return int(found[1])
    ranks = [rank for rank, one in enumerate(addresses) if rank and one[0] == host]
    if not ranks:
        raise ValueError("no replica of this session has that name")
    return ranks[0]


def _show(sock: socket.socket) -> int:
    """Write what the command prints; return its exit code."""
    outputs = {b"o": 1, b"e": 2}
    while True:
        length, kind = struct.unpack("!Ic", read(sock, 5))
        data = read(sock, min(length, _PIECE_BYTES))
        if kind == _EXIT:
            return int(struct.unpack("!I", data)[0])
        output = outputs.get(kind, 2)
        while data:
            data = data[os.write(output, data) :]


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads it
        sys.stderr.write(f"nsml: {text}\n")
        sys.stderr.flush()


def on_signals(call: Callable[[int], object]) -> None:
    """Call it with the number of a signal that asks this program to end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda given, _frame: call(given))


def _main() -> NoReturn:
    sys.exit(start_remotely(sys.argv[1:]))


if __name__ == "__main__":
    _main()
