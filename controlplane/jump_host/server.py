"""Authenticates clients of a jump host, and relays connections to ssh servers in sessions.

A client logs in with a public key, and may then open connections to port 22 of sessions as hosts, and nothing else: no
shell, no program, no file, no port, no agent. The control plane decides on each connection, for the user of the key;
the relayed bytes are ssh between the client and the session, which requires the key itself and authenticates by a
certificate. So control of this process discloses nothing, and gives access to nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import asyncssh
import structlog
from asyncssh.stream import SSHTCPStreamSession
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from nsml.client.errors import ClientError, ConnectionLost, NotSignedIn
from nsml.client.rpc import Rpc
from nsml.client.ssh import open_ssh
from nsml.common.hosts import client_of
from nsml.spec.ssh_hosts import RULE, replica_at
from nsml.v1 import ssh_keys_pb2 as pb

if TYPE_CHECKING:
    from nsml.client.endpoints import Endpoints
    from nsml.client.ssh import SshServer
    from nsml.common.concurrency import TaskGroup

LOGIN_WITHIN_S: Final = 20.0
MOST_CONNECTIONS: Final = 1000
MOST_STRANGERS: Final = 64
MOST_STRANGERS_OF_ADDRESS: Final = 16
"""Limits of connections without a login: in total, and of one address. Beyond them the oldest one is closed, of the
address with most: otherwise idle ones would lock everybody out, and a login takes a moment."""
_LOOKS_AT_ONCE: Final = 200
_LOOKS_PER_S: Final = 50.0
"""Rate of lookups at the control plane for all clients without a login; further ones wait."""
_MOST_OF_USER: Final = 64
_MOST_KEYS: Final = 20
"""Maximum keys that a client may offer: more than OpenSSH accepts, since agents have many."""
_MOST_PASSAGES: Final = 16
"""Of one connection at once."""
IDLE_S: Final = 30.0
"""Timeout of a connection without open channels."""
_JOINED_WITHIN_S: Final = 10.0
_PIECE_BYTES: Final = 64 << 10
_PORT: Final = 22
_CIPHERS: Final = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
)
_KEY_EXCHANGES: Final = "-diffie-hellman-*,rsa*"
"""All except those with long computations for clients without a login (CVE-2002-20001), or with SHA-1."""
_log = structlog.get_logger()

_USE: Final = "it leads to sessions alone: ssh -J HOST:PORT SESSION.nsml"


class JumpHost:
    """All connections of a jump host.

    Args:
        ways: endpoints of the control plane.
        secret: our credential there.
        group: runs the tasks of connections.
    """

    def __init__(self, ways: Endpoints, secret: str, group: TaskGroup) -> None:
        self._ways = ways
        self._secret = secret
        self.group = group
        self.open = 0
        self._strangers: dict[_Connection, str] = {}
        """By age, with their addresses."""
        self._looking = asyncio.Lock()
        self._next_look_at = -math.inf
        self.of_user: Counter[str] = Counter()

    def options(self, host_key: bytes) -> dict[str, Any]:
        """Return the options of `asyncssh.listen`; `host_key` is the private half (Ed25519, 32 bytes)."""
        return {
            "server_factory": lambda: _Connection(self),
            "server_host_keys": [_private_key(host_key)],
            "server_version": "nsml",
            "encoding": None,
            "line_editor": False,
            "agent_forwarding": False,
            "x11_forwarding": False,
            "gss_host": None,
            "password_auth": False,
            "kbdint_auth": False,
            "host_based_auth": False,
            "login_timeout": LOGIN_WITHIN_S,
            "keepalive_interval": 30,
            "keepalive_count_max": 3,
            "kex_algs": _KEY_EXCHANGES,
            "compression_algs": ["none"],
            "encryption_algs": list(_CIPHERS),
        }

    def rpc(self, key: str) -> Rpc:
        """Return calls for the user of a public key, by its SHA-256 in hexadecimal."""
        return Rpc(self._ways, token=self._secret, ssh_key=key)

    def let_in(self, stranger: _Connection, address: str) -> None:
        """Add a client without a login, and close another one beyond the limits."""
        self._strangers[stranger] = address
        addresses = Counter(self._strangers.values())
        if addresses[address] <= MOST_STRANGERS_OF_ADDRESS:
            if len(self._strangers) <= MOST_STRANGERS:
                return
            [(address, _)] = addresses.most_common(1)
        oldest = next(one for one, where in self._strangers.items() if where == address)
        self.no_stranger(oldest)
        oldest.leave()

    def no_stranger(self, one: _Connection) -> None:
        """Remove a client that has logged in, or is gone."""
        self._strangers.pop(one, None)

    async def is_known(self, key: str) -> bool:
        """Return whether an offered key is a user's."""
        async with self._looking:  # in turn; clients that leave meanwhile use none
            now = asyncio.get_running_loop().time()
            at = max(self._next_look_at, now - (_LOOKS_AT_ONCE - 1) / _LOOKS_PER_S)
            await asyncio.sleep(at - now)
            self._next_look_at = at + 1 / _LOOKS_PER_S
        return bool(await self.user_of(key))

    async def user_of(self, key: str) -> str:
        """Return the key's user; "" if there is none, or while it cannot be looked up."""
        try:
            answer = await self.rpc(key).unary(
                "SshKeyService/GetSshKeyUser", pb.GetSshKeyUserRequest(), pb.GetSshKeyUserResponse
            )
        except ClientError:
            return ""
        return answer.user


def _private_key(seed: bytes) -> asyncssh.SSHKey:
    pair = Ed25519PrivateKey.from_private_bytes(seed)
    text = pair.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return asyncssh.import_private_key(text)


class _Connection(asyncssh.SSHServer):
    """One connection's client, and its rights."""

    def __init__(self, jump_host: JumpHost) -> None:
        self._jump_host = jump_host
        self._connection: Any = None
        self._offered = 0
        self._key = ""
        self._user = ""
        self._passages: set[asyncio.Task[bool]] = set()
        self._ending: asyncio.TimerHandle | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._jump_host.open += 1
        if self._jump_host.open > MOST_CONNECTIONS:
            conn.abort()
            return
        peer = conn.get_extra_info("peername")
        self._jump_host.let_in(self, client_of(str(peer[0])) if peer else "")
        validate = conn.validate_public_key

        async def validate_public_key(username: str, key: bytes, msg: bytes, sig: bytes) -> bool:
            is_valid = await validate(username, key, msg, sig)
            if is_valid and msg:  # it has signed; otherwise the client only asks whether it should
                self._key = _digest(key)
            return is_valid

        vars(conn)["validate_public_key"] = validate_public_key

    def connection_lost(self, _exc: Exception | None) -> None:
        self._jump_host.open -= 1
        self._jump_host.no_stranger(self)
        if self._user:
            _less(self._jump_host.of_user, self._user)
        if self._ending is not None:
            self._ending.cancel()
        for one in self._passages:
            one.cancel()

    def leave(self) -> None:
        """Close it at once."""
        self._connection.abort()

    # login

    def begin_auth(self, _username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    async def validate_public_key(self, _username: str, key: asyncssh.SSHKey) -> bool:
        """Return whether a key is a user's: it identifies the user, whatever the user name."""
        self._offered += 1
        if self._offered > _MOST_KEYS:
            self._connection.abort()
            return False
        # also for ssh-rsa, which signs with SHA-1: asyncssh checks this, and not its options
        key.all_sig_algorithms = key.all_sig_algorithms - {b"ssh-rsa"}
        return await self._jump_host.is_known(_digest(key.public_data))

    def auth_completed(self) -> None:
        self._jump_host.no_stranger(self)
        self._jump_host.group.create_task(self._note_user())
        self._end_if_idle()

    async def _note_user(self) -> None:
        """Count it as one of the user's."""
        user = await self._jump_host.user_of(self._key)
        if not user or self._jump_host.of_user[user] >= _MOST_OF_USER:
            self._connection.abort()
        elif not self._connection.is_closed():
            self._user = user
            self._jump_host.of_user[user] += 1

    # channels

    def session_requested(self) -> Any:
        raise _Refused(f"this is a jump host: {_USE}")

    def server_requested(self, _listen_host: str, _listen_port: int) -> bool:
        return False

    def connection_requested(
        self, dest_host: str, dest_port: int, _orig_host: str, _orig_port: int
    ) -> Any:
        try:
            reference, rank = replica_at(dest_host)
        except ValueError as error:
            raise _Refused(f"{error}: {RULE}") from error
        if dest_port != _PORT:
            raise _Refused(f"port {dest_port}: {_USE}, and ssh there forwards ports (-L)")
        if not self._key or len(self._passages) >= _MOST_PASSAGES:
            raise _Refused(f"{_MOST_PASSAGES} connections to sessions are open already")
        passage = _Passage(self._jump_host.rpc(self._key), reference, rank, dest_host)
        task = self._jump_host.group.create_task(passage.live())
        self._passages.add(task)
        task.add_done_callback(self._is_over)
        return passage.session()

    def _is_over(self, task: asyncio.Task[bool]) -> None:
        self._passages.discard(task)
        if not task.cancelled() and task.result():
            self._connection.abort()
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        if not self._passages:
            self._connection.close()


class _Refused(asyncssh.ChannelOpenError):
    """ssh prints the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, reason)


class _Passage:
    """The relay of one connection to a session."""

    def __init__(self, rpc: Rpc, reference: str, rank: int, host: str) -> None:
        loop = asyncio.get_running_loop()
        self._rpc = rpc
        self._reference = reference
        self._rank = rank
        self._host = host
        self._opened: asyncio.Future[ClientError | None] = loop.create_future()
        self._streams: asyncio.Future[tuple[Any, Any]] = loop.create_future()
        self._over: asyncio.Future[None] = loop.create_future()

    async def session(self) -> asyncssh.SSHTCPSession[bytes]:
        """Return the client's end, once the session's is open. Raises ChannelOpenError: the control plane refuses it."""
        error = await self._opened
        if error is not None:
            why = f" ({error.why})" if error.why else ""
            raise _Refused(f"{error.message}{why}")
        return SSHTCPStreamSession[bytes](self._take)

    async def _take(self, reader: Any, writer: Any) -> None:
        if not self._streams.done():
            self._streams.set_result((reader, writer))
        with suppress(asyncio.CancelledError):
            await self._over
        writer.close()

    async def live(self) -> bool:
        """Relay until either end leaves; return whether the key lost its user. A defect must not end other connections."""
        failure: ClientError = ConnectionLost("the connection to the session broke")
        try:
            async with open_ssh(
                self._rpc, self._reference, rank=self._rank, ssh_host=self._host
            ) as server:
                self._opened.set_result(None)
                async with asyncio.timeout(_JOINED_WITHIN_S):
                    reader, writer = await self._streams
                await _pass(server, reader, writer)
        except ClientError as error:
            failure = error
        except (OSError, TimeoutError, asyncssh.Error):
            pass
        except Exception:  # noqa: BLE001 - what one sends must not end the others
            _log.exception("passage.failed")
        finally:
            if not self._opened.done():
                self._opened.set_result(failure)
            self._streams.cancel()
            self._over.cancel()
        return isinstance(failure, NotSignedIn)


async def _pass(server: SshServer, reader: Any, writer: Any) -> None:
    """Relay in both directions until the session's end closes."""

    async def give() -> None:
        with suppress(ClientError):  # the reader reports it, too
            while data := await reader.read(_PIECE_BYTES):
                await server.write(data)
            await server.end()

    giving = asyncio.create_task(give())
    try:
        while data := await server.read():
            writer.write(data)
            await writer.drain()
    finally:
        giving.cancel()


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _less(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]
