"""Requests of user code to the agent: one JSON line each way over the replica's socket.

`{"v": 1, "op": "load", "checkpoint": NAME, "session": NAME or null, "target": FOLDER}` answers with
`{"ok": true, "folder": FOLDER}` once the checkpoint is in that folder below `run/`, or with
`{"ok": false, "error": CODE, "message": TEXT}`; `"resume": true` loads the one that the attempt resumes from. `{"v": 1, "op": "artifact", "name": NAME, "target": FOLDER}` does so with the
newest artifact of a name among the sessions of the session's owner. `{"v": 1, "op": "keep", "folder": FOLDER}` answers once the
agent has made that checkpoint its own, as far as possible. `order` and `answer` are those of `nsml/_orders.py`, `change` is that of `nsml/_changes.py`.
Whatever a client sends or omits, only its own connection suffers.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from nodeagent.collect.pace import Pace
from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.probes.processes import read_stat
from nodeagent.replica.orders import KNOBS, PAGE, Order, ReplicaOrders
from nodeagent.replica.user_sockets import (
    UserConnection,
    close_user_listener,
    close_user_socket,
)
from nodeagent.safe_paths import give, open_folder, path_of, remove_tree
from nodeagent.storage.datasets import Trees
from nodeagent.storage.sealed_checkpoints import NotKept, keep
from nodeagent.storage.transfer import uninterrupted
from nsml.client.errors import ClientError, NotFound, Unavailable
from nsml.client.rpc import Rpc
from nsml.common.clock import Offload, inline
from nsml.common.concurrency import to_its_end
from nsml.content.errors import ContentError
from nsml.v1 import artifacts_pb2 as artifacts
from nsml.v1 import checkpoints_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_LONGEST_LINE = 64 << 10
_LONGEST_ANSWER = 2 << 20
"""To an order: three texts of up to 64 KiB, whose bytes JSON may escape as six each."""
_BEYOND_LIMIT_S = 10.0
"""Time after its limit in which an order may be answered."""
_LONGEST_TEXT = 1024
_MOST_CLIENTS = 16
_SILENT_S = 30.0
_NOT_ACCEPTED_S = 1.0
"""Delay after a failed accept."""
_RESERVED = ("spool", "checkpoints", "socket", "tunnel", PAGE, KNOBS)
_DEEPEST = 4
_TRIES = 3

log = structlog.get_logger()


class RequestRefused(Exception):
    """A request answered with an error; `code` is its code in the contract."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Loads:
    """Fetches checkpoints into the folder that a replica shares with its agent.

    Args:
        trees: fetches the files.
        staging: folder on the same file system as the replicas, the agent's own.
        rpc: returns the current connection.
        run: runs disk work.
        pause: awaited before a retry.
    """

    def __init__(
        self,
        trees: Trees,
        staging: Path,
        *,
        rpc: Callable[[], Rpc],
        run: Offload,
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        self._trees = trees
        self._staging = staging
        self._rpc = rpc
        self._run = run
        self._pause = pause

    def create(self) -> None:
        """Create an empty staging folder."""
        remove_tree(self._staging)
        self._staging.mkdir(mode=0o700, parents=True)

    async def load(
        self, replica: ReplicaId, run_folder: Path, request: dict[str, Any], user: str = ""
    ) -> str:
        """Carry out one request, for a session of `user`; return the folder of the files below `run_folder`.

        Raises RequestRefused.
        """
        name = _text(request, "checkpoint")
        session = _text(request, "session") if request.get("session") else replica.session_id
        parts = _target(_text(request, "target"))
        staged = self._staging / secrets.token_hex(8)
        try:
            # Without a name: the checkpoint that the attempt resumes from, even if one of that name was saved since.
            is_resuming = bool(request.get("resume")) and not request.get("session")
            find = partial(self._find, replica, session, "" if is_resuming else name)
            before = 0 if request.get("session") else replica.attempt
            await self._fetch(find, staged, user, before=before)
            return await uninterrupted(self._run, partial(_move, staged, run_folder, parts))
        except ClientError as error:
            raise RequestRefused(error.reason or "FAILED", error.message) from error
        except (ContentError, OSError) as error:
            raise RequestRefused("FAILED", str(error)) from error
        finally:
            await uninterrupted(self._run, partial(remove_tree, staged))

    async def load_artifact(
        self, replica: ReplicaId, run_folder: Path, request: dict[str, Any], user: str = ""
    ) -> tuple[str, str]:
        """Fetch the newest artifact of a name among all sessions of `user`; return its folder below `run_folder`, and its session.

        Raises RequestRefused.
        """
        parts = _target(_text(request, "target"))
        asked = artifacts.FindArtifactRequest(
            session_id=replica.session_id, name=_text(request, "name")
        )
        staged = self._staging / secrets.token_hex(8)
        method = "ArtifactService/FindArtifact"
        try:
            answer = await self._rpc().unary(method, asked, artifacts.FindArtifactResponse)
            await self._trees.fetch(answer.artifact.digest, staged, user)
            folder = await uninterrupted(self._run, partial(_move, staged, run_folder, parts))
        except NotFound as error:
            raise RequestRefused("NOT_FOUND", error.message) from error
        except ClientError as error:
            raise RequestRefused(error.reason or "FAILED", error.message) from error
        except (ContentError, OSError) as error:
            raise RequestRefused("FAILED", str(error)) from error
        else:
            return folder, answer.artifact.session
        finally:
            await uninterrupted(self._run, partial(remove_tree, staged))

    async def newest(self, replica: ReplicaId) -> str:
        """Return the name of the checkpoint that the next attempt of the session resumes from, or ""."""
        try:
            return (await self._find(replica, replica.session_id, "")).name
        except RequestRefused as refused:
            log.info("resume.nothing", replica=str(replica), reason=str(refused))
            return ""

    async def _fetch(
        self,
        find: Callable[[], Awaitable[pb.Checkpoint]],
        staged: Path,
        user: str,
        *,
        before: int,
    ) -> None:
        """Fetch the checkpoint to `staged`, from the current control plane.

        Each knows only its own grants: after a failover the new one is asked again.
        """
        tries_left = _TRIES
        while True:
            checkpoint = await find()
            if (problem := _unreadable(checkpoint, before)) is not None:
                raise problem
            tries_left -= 1
            try:
                return await self._trees.fetch(checkpoint.digest, staged, user)
            except NotFound:
                if not tries_left:
                    raise

    async def _find(self, replica: ReplicaId, session: str, name: str) -> pb.Checkpoint:
        """Find it with the rights of the session's owner: others' programs run here too."""
        request = pb.GetCheckpointRequest(
            session=session, name=name, for_session=replica.session_id
        )
        method = "CheckpointService/GetCheckpoint"
        while True:
            try:
                answer = await self._rpc().unary(method, request, pb.GetCheckpointResponse)
            except Unavailable:
                await self._pause()
            except NotFound as error:
                raise RequestRefused("NOT_FOUND", error.message) from error
            except ClientError as error:
                raise RequestRefused(error.reason or "FAILED", error.message) from error
            else:
                return answer.checkpoint


@dataclass(slots=True)
class _Client:
    """A connection of a program, and the order that it has taken."""

    connection: UserConnection
    order: Order | None = None

    @property
    def longest_line(self) -> int:
        """Limit of its next request, in bytes."""
        return _LONGEST_LINE if self.order is None else _LONGEST_ANSWER

    @property
    def patience_s(self) -> float:
        """Timeout of its next request."""
        if self.order is None:
            return _SILENT_S
        return float(self.order.content["limit_s"]) + _BEYOND_LIMIT_S


class RequestServer:
    """Listens on the socket of one replica, of a session of `user`.

    `pace` limits requests; `connections` limits connections, each of which costs the agent a
    thread. Connections not accepted yet wait in the kernel, at the cost of their programs.
    """

    def __init__(
        self,
        replica: ReplicaId,
        folder: ReplicaFolder,
        loads: Loads,
        user: str = "",
        *,
        orders: ReplicaOrders | None = None,
        pace: Pace | None = None,
        connections: Pace | None = None,
        run: Offload = inline,
    ) -> None:
        self._replica = replica
        self._orders = orders
        self._pace = pace
        self._connections = connections
        self._run = run
        self._user = user
        self._folder = folder
        self._loads = loads
        self._clients: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answer requests while the context lasts."""
        listener = _listen(self._folder.run)
        accepting = asyncio.create_task(self._accept(listener))
        try:
            yield
        finally:
            for client in (accepting, *self._clients):
                client.cancel()
            await to_its_end(_close(listener, accepting))

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            if self._connections is not None:
                await self._connections.wait()
            try:
                program, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:  # for example, too many open files
                log.warning("requests.not_accepted", replica=str(self._replica), error=str(error))
                await asyncio.sleep(_NOT_ACCEPTED_S)
                continue
            if len(self._clients) >= _MOST_CLIENTS:
                await close_user_socket(program)
                continue
            connection = UserConnection(program)
            client = asyncio.create_task(self._serve(connection))
            self._clients.add(client)
            client.add_done_callback(self._clients.discard)
            # if it was cancelled before it began
            client.add_done_callback(lambda _, one=connection: one.give_up())  # type: ignore[misc]

    async def _serve(self, connection: UserConnection) -> None:
        try:
            await self._answer_all(connection)
        except (OSError, TimeoutError) as error:
            log.debug("request.broken", replica=str(self._replica), error=str(error))
        finally:
            await connection.close()

    async def _answer_all(self, connection: UserConnection) -> None:
        received, client = bytearray(), _Client(connection)
        try:
            while True:
                longest = client.longest_line
                line = await asyncio.wait_for(
                    _line(connection, received, longest), client.patience_s
                )
                if len(line) > longest:
                    await _say(connection, _refusal("INVALID", "the request is too long"))
                    return
                if not line:
                    return
                if self._pace is not None:
                    await self._pace.wait()
                try:
                    answer = await self._answer(line, client)
                except RequestRefused as refused:
                    answer = _refusal(refused.code, str(refused))
                await _say(connection, answer)
        finally:
            if client.order is not None:
                client.order.leave()

    async def _answer(self, line: bytes, client: _Client) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RequestRefused("INVALID", "the request is not JSON") from error
        if not isinstance(request, dict) or request.get("v") != 1:
            raise RequestRefused("INVALID", 'the request is not an object with "v": 1')
        match request.get("op"):
            case "load" | "artifact":
                return await self._load(request)
            case "keep":
                if (
                    client.connection.sends_no_more()
                ):  # it was saved meanwhile, and may have changed since
                    raise RequestRefused("FAILED", "the program no longer waits for it")
                return {"ok": True, "kept": await self._keep(_text(request, "folder"))}
            case "order":
                return {"ok": True, "order": self._order_for(client, request), **self._change()}
            case "change":
                return self._hear(request, _presence_of(client.connection.peer()))
            case "answer":
                if client.order is None or not isinstance(request.get("answer"), dict):
                    raise RequestRefused("INVALID", "nothing was asked on this connection")
                client.order.give(request["answer"])
                client.order = None
                return {"ok": True}
            case operation:
                text = f"this agent does not know {str(operation)[:40]!r}"
                raise RequestRefused("UNSUPPORTED", text)

    async def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Fetch a checkpoint or an artifact."""
        place = self._replica, self._folder.run, request, self._user
        if request["op"] == "load":
            return {"ok": True, "folder": await self._loads.load(*place)}
        folder, session = await self._loads.load_artifact(*place)
        return {"ok": True, "folder": folder, "session": session}

    def _order_for(self, client: _Client, request: dict[str, Any]) -> Mapping[str, Any] | None:
        """Return the order for the requesting process, which answers on the same connection."""
        if self._orders is None or client.order is not None:
            return None
        if client.connection.sends_no_more():  # it no longer waits for a slow agent
            return None
        local_rank = request.get("local_rank")
        client.order = self._orders.take(local_rank if isinstance(local_rank, int) else 0)
        return None if client.order is None else client.order.content

    def _change(self) -> dict[str, Any]:
        """Return the current change, as an entry; none until the control plane has sent it."""
        if self._orders is None or not self._orders.changes.is_known:
            return {}
        return {"change": self._orders.changes.wanted}

    def _hear(self, request: dict[str, Any], is_there: Callable[[], bool]) -> dict[str, Any]:
        """Process a report on a change."""
        if self._orders is None:
            raise RequestRefused("UNSUPPORTED", "this agent changes no running programs")
        is_member = self._orders.changes.hear(request, is_there)
        if not self._orders.changes.is_known:
            raise RequestRefused("UNAVAILABLE", "the agent does not know yet what is to be changed")
        return {"ok": True, "is_member": is_member, **self._change()}

    async def _keep(self, checkpoint: str) -> bool:
        """Return whether the program can no longer change the checkpoint."""
        try:
            await uninterrupted(self._run, partial(keep, self._folder, checkpoint))
        except NotKept as error:
            if error.errno == errno.EOPNOTSUPP and os.geteuid():
                raise RequestRefused("UNSUPPORTED", "it takes root, or Btrfs or XFS") from error
            return False
        except (OSError, ValueError) as error:
            raise RequestRefused("FAILED", str(error)) from error
        return True


def _presence_of(pid: int) -> Callable[[], bool]:
    """Return a check that a process still exists; always True for one not visible here."""
    first = read_stat(pid)
    if first is None:
        return lambda: True

    def is_there() -> bool:
        now = read_stat(pid)
        return now is not None and not now.is_dead and now.start_ticks == first.start_ticks

    return is_there


def _listen(run_folder: Path) -> socket.socket:
    """Listen at `run/socket`, even if its path is longer than the kernel's limit."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with open_folder(run_folder, []) as descriptor:
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.lstat("socket", dir_fd=descriptor).st_mode):
                    os.unlink("socket", dir_fd=descriptor)
            # by descriptor: a running program can replace the socket by a link
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(str(path_of(descriptor) / "socket"))
            facts = os.fstat(descriptor)
            give("socket", descriptor, facts.st_uid, facts.st_gid)
        listener.listen()
        listener.settimeout(0)
    except OSError:
        listener.close()
        raise
    return listener


def _target(text: str) -> list[str]:
    """Return the parts of a folder below `run/`; raises RequestRefused for others."""
    parts = text.split("/")
    is_plain = all(part not in {"", ".", ".."} and "\0" not in part for part in parts)
    if not is_plain or len(parts) > _DEEPEST or parts[0] in _RESERVED:
        raise RequestRefused("INVALID", f"not a folder for files: {text[:80]!r}")
    return parts


def _move(staged: Path, run_folder: Path, parts: list[str]) -> str:
    """Move the files to the requested folder, or beside it; return the place below `run/`.

    A request whose answer was lost is repeated, and its folder then exists already.
    """
    *above, name = parts
    with (
        open_folder(run_folder, above, create=True) as target,
        open_folder(staged.parent, []) as source,
    ):
        facts = run_folder.stat()
        give(staged.name, source, facts.st_uid, facts.st_gid)
        move = partial(os.rename, staged.name, src_dir_fd=source, dst_dir_fd=target)
        try:
            move(name)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            name = staged.name
            move(name)
    return "/".join([*above, name])


def _unreadable(checkpoint: pb.Checkpoint, before: int) -> RequestRefused | None:
    """Return why it cannot be loaded as saved, or None.

    For the session's own attempts before `before` any readable content will do, if need be that of an
    earlier save of that name: there is nothing better to resume from.
    """
    which = f"checkpoint {checkpoint.name} of {checkpoint.session}"
    is_earlier = 0 < checkpoint.attempt < before
    is_itself = checkpoint.state not in {pb.CHECKPOINT_STATE_SAVED, pb.CHECKPOINT_STATE_LOST}
    if checkpoint.digest and (is_itself or is_earlier):
        return None
    if checkpoint.state == pb.CHECKPOINT_STATE_LOST:
        return RequestRefused("LOST", f"{which} is lost: {checkpoint.why_lost}")
    return RequestRefused("NOT_FOUND", f"{which} is not durable yet")


def _text(request: dict[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_TEXT:
        raise RequestRefused("INVALID", f"{key} is missing or not a text")
    if not value.isascii() and value.encode(errors="replace").decode() != value:
        raise RequestRefused("INVALID", f"{key} has half a character")
    return value


def _refusal(code: str, message: str) -> dict[str, Any]:
    return {"ok": False, "error": code, "message": message}


async def _close(listener: socket.socket, accepting: asyncio.Task[None]) -> None:
    await asyncio.wait([accepting])
    await close_user_listener(listener)


async def _line(connection: UserConnection, received: bytearray, longest: int) -> bytes:
    """Return the next line, removed from `received`; b"" at the end, and all of a line that is too long."""
    while (end := received.find(b"\n") + 1) == 0 and len(received) <= longest:
        if not (data := await connection.receive()):
            return b""
        received += data
    line = bytes(received[: end or None])
    del received[: len(line)]
    return line


async def _say(connection: UserConnection, answer: dict[str, Any]) -> None:
    await asyncio.wait_for(connection.send(json.dumps(answer).encode() + b"\n"), _SILENT_S)
