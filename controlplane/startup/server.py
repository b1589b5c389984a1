"""`nsml-controlplane`: a control plane on a data folder and listeners, from start to orderly stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import resource
import secrets
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from controlplane.access.access_table import TABLE
from controlplane.access.bootstrap import ensure_admin_file, ensure_node_file
from controlplane.access.files import write_private
from controlplane.access.listeners import (
    Address,
    CannotListen,
    Identity,
    ListenRefused,
    host_for_others,
    listen_agents,
    listen_plain,
    listen_tls,
    names_of_this_host,
    take_port,
)
from controlplane.access.peers import SocketPeers, process_name
from controlplane.access.wrapping import ByName, Wrapper
from controlplane.core.dependencies import OPENS_HTTP, MemberConfig
from controlplane.domain.errors import NsmlError, Unavailable
from controlplane.domain.idle import WasteRule
from controlplane.domain.values import DAY_S
from controlplane.plane import ControlPlane
from controlplane.scheduler import InClass, Rules
from controlplane.ssh_keys.jump_host_process import jump_host_process
from controlplane.startup.backends import standing_of, surroundings
from controlplane.startup.config import (
    LEASE_ALONE_S,
    LEASE_OF_SEVERAL_S,
    Settings,
    SettingsError,
    read_settings,
)
from controlplane.startup.ownership import StartRefused
from controlplane.startup.restore import refuse_unfinished, restore
from controlplane.startup.secrets_key import change_secrets_key
from controlplane.startup.startup_retry import Waiting
from controlplane.store.filelock import FileLock
from controlplane.store.interface import StoreError, StoreLocked
from controlplane.tunnels.relay_process import RelayProcess
from nsml._version import VERSION
from nsml.common.clock import SystemClock
from nsml.common.local_peers import SESSION_UIDS
from nsml.common.private_folders import make_data_folder, words_of
from nsml.common.program_logs import write_json_lines
from nsml.common.python_gc import collect_seldom
from nsml.common.urls import without_password
from nsml.content.backups import backups_in
from nsml.content.errors import ContentError
from nsml.spec.checkpoint_retention import canonical
from nsml.spec.exit_codes import CANNOT_LISTEN

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from controlplane.access.authority import Authority
    from controlplane.access.wrapping import Handler
    from controlplane.core.dependencies import Backends
    from controlplane.core.serving_process import ServingProcess
    from controlplane.domain.cluster import Cluster
    from controlplane.startup.web import Web

_log = structlog.get_logger()

STOP_GRACE_S: Final = 0.5
"""Time for calls in progress when the control plane stops."""

RESIGN_WITHIN_S: Final = 2.0
"""Time for the handover to another leader when the control plane stops."""

LEAVE_WITHIN_S: Final = 0.5
"""Time for removing our record from the members."""

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING

LONGEST_SOCKET_PATH: Final = 100

GRPC_OPTIONS: Final = (
    # The default of 4 MiB, explicitly: it limits the memory that one message can allocate.
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    # Silent sockets must not hold a file descriptor for two minutes.
    ("grpc.server_handshake_timeout_ms", 2_000),
    # Limit of unread bytes of a message. By default gRPC measures the connection, and then buffers
    # whole messages of all its streams.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 128 << 10),
    # The default is 16 KiB: a message would be assembled from a hundred pieces, each with a cost of its own.
    ("grpc.http2.max_frame_size", 1 << 20),
    # For each connection, so that one client cannot lock out the others.
    ("grpc.max_concurrent_streams", 1_000),
    # An idle connection is closed: its client reconnects for its next call.
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients and agents with several control planes ping theirs each second.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    # A port in use is an error; otherwise the calls would be split.
    ("grpc.so_reuseport", 0),
)


_OPENS_HTTP_OF_A_UNIT: Final = (
    'http = "127.0.0.1:18555" in its settings, then systemctl restart nsml-controlplane'
)

_OWN_FILES: Final = 256
"""File descriptors reserved for databases, logs and HTTP."""
_MOST_FILES: Final = 1 << 16
_LISTENERS: Final = 4
_LEAST_CONNECTIONS: Final = 64


def connection_limit(open_files: int) -> int:
    """Return the maximum connections of each gRPC listener: together they leave file descriptors for other uses."""
    return max(_LEAST_CONNECTIONS, (open_files - _OWN_FILES) // _LISTENERS)


def _grpc_options() -> tuple[tuple[str, int], ...]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = connection_limit(min(open_files, _MOST_FILES))
    return (*GRPC_OPTIONS, ("grpc.max_allowed_incoming_connections", limit))


class Listeners:
    """The listeners of one server."""

    def __init__(self, server: grpc.aio.Server, settings: Settings, authority: Authority) -> None:
        self._server = server
        self._settings = settings
        self.plain: Address | None = None
        self.socket: Address | None = None
        self.users: Address | None = None
        self.agents: Address | None = None
        self.http: Address | None = None
        self.relay: Address | None = None
        self.ssh: Address | None = None
        self._relay_socket: socket.socket | None = None
        self._ssh_socket: socket.socket | None = None
        self._http_socket: socket.socket | None = None
        self._identity: Identity | None = None
        self._open(authority)

    def _open(self, authority: Authority) -> None:
        settings, server = self._settings, self._server
        if settings.plain_address:
            self.plain = listen_plain(server, settings.plain_address)
        path = self._socket_path()
        if path:
            self.socket = listen_plain(server, f"unix:{path}")
        if settings.http:
            self.http, self._http_socket = take_port(settings.http)
        if settings.listen_relay:
            self.relay, self._relay_socket = take_port(settings.listen_relay)
        if settings.listen_ssh:
            self.ssh, self._ssh_socket = take_port(settings.listen_ssh)
        if settings.listen or settings.listen_agents or self._has_https:
            identity = self._identity = Identity(authority, names_of_this_host(settings.hosts))
            if settings.listen:
                self.users = listen_tls(server, settings.listen, identity)
            if settings.listen_agents:
                self.agents = listen_agents(server, settings.listen_agents, identity)

    def _socket_path(self) -> str:
        if self._settings.socket != "auto":
            return self._settings.socket
        path = self._settings.data.absolute() / "socket"
        return str(path) if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH else ""

    @property
    def _has_https(self) -> bool:
        return self.http is not None and not self.http.is_private

    def web(self, plane: ControlPlane) -> Web | None:
        """Return the HTTP server; None if there is no listener for it."""
        if self._http_socket is None:
            return None
        # These imports take a tenth of a second.
        from controlplane.gateway.guard import Rules, networks  # noqa: PLC0415
        from controlplane.startup.web import Web  # noqa: PLC0415
        from nsml.common.connections import Limits  # noqa: PLC0415

        settings = self._settings
        own = names_of_this_host(settings.hosts)
        rules = Rules(
            hosts=frozenset(name.lower() for name in (*own, *settings.http_hosts)),
            session_uids=SESSION_UIDS if settings.http_sessions == "refused" else range(0),
            own=frozenset(own),
            refused=networks(settings.http_refused),
        )
        return Web(
            plane,
            self._http_socket,
            identity=self._identity if self._has_https else None,
            token_file=settings.metrics_token_file,
            url=self._http_url(),
            server=str(self.socket or self.plain or ""),
            visdom_python=settings.visdom_python,
            rules=rules,
            limits=Limits(per_address=settings.http_connections),
            proxies=settings.http_proxies,
        )

    def relay_process(self, on: Backends) -> RelayProcess | None:
        """Return the relay of tunnels' bytes; None if there is no listener for it."""
        if self._relay_socket is None:
            return None
        return RelayProcess(
            self._relay_socket,
            self._reached(self.relay),
            random_bytes=on.random_bytes,
            clock=on.clock,
        )

    def jump_host(self, plane: ControlPlane) -> ServingProcess | None:
        """Return the jump host for ssh; None if there is no listener for it. ListenRefused: it could not call us."""
        own = self.socket or self.plain
        if self._ssh_socket is None:
            return None
        if own is None:
            raise ListenRefused("listen_ssh: the jump host needs socket or address, to call us")
        return jump_host_process(
            plane.core, self._ssh_socket, address=self.for_ssh(), server=str(own)
        )

    def for_ssh(self) -> str:
        """HOST:PORT of the jump host; "" if there is none."""
        return self._reached(self.ssh)

    @property
    def primary(self) -> str:
        """The address for programs of this machine."""
        chosen = self.plain or self.socket or self.users
        return str(chosen) if chosen else ""

    def for_users(self) -> str:
        """HOST:PORT for other machines; "" if there is no listener for them."""
        return self._reached(self.users)

    def for_agents(self) -> str:
        """HOST:PORT for joined agents; "" if there is no listener for them."""
        return self._reached(self.agents)

    def _http_url(self) -> str:
        if self.http is None or not self._has_https:
            return f"http://{self.http}" if self.http else ""
        return f"https://{self._reached(self.http)}"

    def _reached(self, listener: Address | None) -> str:
        if listener is None:
            return ""
        host = host_for_others(listener, self._settings.hosts)
        return str(Address(host=host, port=listener.port))

    def facts(self) -> dict[str, str]:
        """Return all addresses by name, for ready.json."""
        found = {
            "address": self.primary,
            "socket": self.socket.path if self.socket else "",
            "listen": self.for_users(),
            "listen_agents": self.for_agents(),
            "listen_relay": self._reached(self.relay),
            "listen_ssh": self.for_ssh(),
            "http": self._http_url(),
        }
        return {name: text for name, text in found.items() if text}


async def serve(settings: Settings, *, stop: asyncio.Event) -> None:
    """Run a control plane until `stop` is set, at any time, even while waiting for a backend.

    Raises:
        StartRefused, ListenRefused, StoreError, NsmlError: it cannot start or go on.
    """
    make_data_folder(settings.data, StartRefused)
    refuse_unfinished(settings.data)
    with FileLock(str(settings.data / "lock")):
        started = asyncio.Event()
        life = asyncio.create_task(_live(settings, stop, started), name="life")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({life, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not started.is_set():
                life.cancel()
            await asyncio.wait({life})
        finally:
            stopping.cancel()
            life.cancel()
        if not life.cancelled():
            life.result()


async def _live(settings: Settings, stop: asyncio.Event, started: asyncio.Event) -> None:
    standing, clock = standing_of(settings), SystemClock()
    starting = settings.data / "starting.json"
    waiting = Waiting(standing, clock, functools.partial(_tell_starting, starting))
    try:
        async with surroundings(settings, standing, clock, waiting) as stood:
            await _serve(settings, stood, waiting, stop, started)
    finally:
        starting.unlink(missing_ok=True)


def _tell_starting(file: Path, awaits: str) -> None:
    """Report the awaited backend, "" for none, to `nsml up` and `nsml status` of this machine."""
    if awaits:
        write_private(file, json.dumps({"pid": os.getpid(), "awaits": awaits}).encode() + b"\n")
    else:
        file.unlink(missing_ok=True)


def _programs(relay: RelayProcess | None, jump_host: ServingProcess | None) -> list[ServingProcess]:
    """Return the child processes."""
    return [one for one in (relay.process if relay else None, jump_host) if one is not None]


async def _serve(
    settings: Settings,
    stood: tuple[Backends, Cluster],
    waiting: Waiting,
    stop: asyncio.Event,
    started: asyncio.Event,
) -> None:
    on, cluster = stood
    door = _Door()
    server = grpc.aio.server(interceptors=[door], options=_grpc_options())
    listeners = Listeners(server, settings, on.authority)
    member = settings.member or f"{socket.gethostname()}-{os.getpid()}"
    character = MemberConfig(
        member=member,
        version=VERSION,
        address=listeners.for_agents() or listeners.primary,
        user_address=listeners.for_users(),
        agent_address=listeners.for_agents(),
        local_address=listeners.primary,
        jump_address=listeners.for_ssh(),
        instance=_instance(settings.data),
        coordination=cluster.coordination,
        heartbeat_s=settings.heartbeat_s,
        silent_after_s=settings.silent_after_s,
        notice_s=settings.notice_s,
        half_life_s=settings.half_life_days * DAY_S,
        archive_logs_after_s=settings.archive_logs_after_s,
        collect_after_s=settings.collect_after_s,
        keep_points_s=settings.keep_points_s,
        keep_levels_s=settings.keep_levels_s,
        keep_checkpoints=settings.keep_checkpoints and canonical(settings.keep_checkpoints),
        keep_files=settings.keep_files,
        keep_files_s=settings.keep_files_s,
        keep_files_by_default_s=settings.keep_files_by_default_s,
        in_place_roots=settings.in_place_roots,
        time_limits=settings.limits_by_class,
        waste=WasteRule(percent=settings.idle_percent, after_s=settings.idle_after_s),
        rules=Rules(
            least_run_s=settings.least_run_s,
            least_run_in_class_s=settings.least_run_in_class_s,
            in_class=InClass(settings.give_way_in_class),
            moves=settings.defragment,
        ),
        limits=settings.limits,
        floor_bytes=settings.floor_bytes,
        history_bytes=settings.history_bytes,
        audit_rows=settings.audit_rows,
        audit_bytes=settings.audit_bytes,
        settings=settings.shared,
        certificates=settings.certificates,
        opens_http=OPENS_HTTP if _is_of_up(settings.data) else _OPENS_HTTP_OF_A_UNIT,
        lease_s=settings.lease_s or (LEASE_OF_SEVERAL_S if cluster.is_shared else LEASE_ALONE_S),
    )
    peers = SocketPeers(on.authority, member)
    relay = listeners.relay_process(on)
    plane = ControlPlane(replace(on, peers=peers, relay=relay), character, cluster.id)
    web = listeners.web(plane)
    door.open((*((web.calls,) if web else ()), *plane.interceptors()))
    plane.add_services(ByName(server))
    health_servicer = _add_standard_services(server)
    running = asyncio.create_task(plane.run(), name="controlplane")
    answering = asyncio.create_task(web.serve() if web else _nothing(), name="web")
    plane.core.beside += _programs(relay, listeners.jump_host(plane))
    beside = [asyncio.create_task(one.run(), name="beside") for one in plane.core.beside]
    ready = settings.data / "ready.json"
    try:
        # Other members identify this very process by it.
        await health_servicer.set(process_name(plane.core.process), _SERVING)
        await _prepare(settings, plane, running, waiting)
        await server.start()
        await _set_health(health_servicer, _SERVING)
        own = {"pid": os.getpid(), "cluster_id": plane.core.cluster_id, "member": member}
        write_private(ready, json.dumps({**own, **listeners.facts()}).encode() + b"\n")
        _log.info("controlplane.serving", **listeners.facts())
        started.set()
        if web:
            web.serves = True
        stopping = asyncio.create_task(_leave_at(stop, plane), name="stop")
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
    finally:
        ready.unlink(missing_ok=True)
        if web:
            web.serves = False
        await _set_health(health_servicer, health_pb2.HealthCheckResponse.NOT_SERVING)
        await _within(RESIGN_WITHIN_S, plane.resign())
        plane.core.contacts.close_all(Unavailable("this control plane stops"))
        await server.stop(STOP_GRACE_S)
        running.cancel()
        for task in beside:
            task.cancel()
        if web:
            web.stop()
        await asyncio.wait({running, answering, *beside})
        await _within(LEAVE_WITHIN_S, plane.core.members.leave())
        await peers.close()
        for task in (running, answering, *beside):
            if not task.cancelled():
                task.result()


def _is_of_up(data: Path) -> bool:
    """Return whether `nsml up` starts this control plane; otherwise a unit or a person does."""
    return (data.absolute().parent / "local.json").exists()


async def _nothing() -> None:
    """Used if there is no listener."""


async def _leave_at(stop: asyncio.Event, plane: ControlPlane) -> None:
    """Wait for `stop`, then resign at once, so that a successor is elected."""
    await stop.wait()
    plane.leave()


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Run with a timeout: a store that does not answer must not delay a stop."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        _log.warning("controlplane.stop_cut_short", within_s=seconds)


def _instance(data: Path) -> str:
    """Return the id of this data folder, unique even among control planes of the same name."""
    file = data / "instance"
    if not file.exists():
        write_private(file, secrets.token_hex(8).encode() + b"\n")
    return file.read_text(encoding="utf-8").strip()


async def _prepare(
    settings: Settings, plane: ControlPlane, running: asyncio.Task[None], waiting: Waiting
) -> None:
    """Wait until the state is loaded, and write the configured tokens."""
    tokens = asyncio.create_task(waiting.until_there(lambda: _write_tokens(settings, plane)))
    try:
        await asyncio.wait({tokens, running}, return_when=asyncio.FIRST_COMPLETED)
        await (tokens if tokens.done() else running)
    finally:
        tokens.cancel()


async def _write_tokens(settings: Settings, plane: ControlPlane) -> None:
    await plane.core.state.reached(1)
    if settings.admin:
        await ensure_admin_file(
            settings.data, plane.core.accounts, plane.core.identities, settings.admin
        )
    if settings.node:
        await ensure_node_file(
            settings.data, plane.core.accounts, plane.core.identities, settings.node
        )


class _Door(Wrapper):
    """Placeholder for the interceptors until they exist.

    The server must exist before the ports are known, and these before the control plane is made.
    """

    def __init__(self) -> None:
        super().__init__()
        self._behind: tuple[Wrapper, ...] = ()

    def open(self, behind: tuple[Wrapper, ...]) -> None:
        """Pass calls on to these interceptors."""
        self._behind = behind

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Serve nothing before `open`."""
        if not self._behind:
            return None
        return await super().intercept_service(continuation, handler_call_details)

    def wrap(self, handler: Handler, method: str) -> Handler:
        """Return the method's handler wrapped by all interceptors, the first one outermost."""
        for wrapper in reversed(self._behind):
            handler = wrapper.wrap(handler, method)
        return handler


def _add_standard_services(server: grpc.aio.Server) -> Any:
    """Add health and reflection; return the health servicer."""
    servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(servicer, ByName(server))
    services = sorted({method.split("/")[1] for method in TABLE})
    reflection.enable_server_reflection(services, server)
    return servicer


async def _set_health(servicer: Any, state: Any) -> None:
    for service in ("", *sorted({method.split("/")[1] for method in TABLE})):
        await servicer.set(service, state)


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(settings, stop=stop)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run until SIGTERM or SIGINT. Exit codes: 0 stopped, 1 failed, 2 bad settings, 3 in use, CANNOT_LISTEN."""
    code = 0
    try:
        _do(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader may be gone
            stream.flush()
    # All is closed. Only threads of native libraries are left: one that returns into an interpreter
    # that is shutting down aborts the process (SIGABRT).
    os._exit(code)


def _do(arguments: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(
        prog="nsml-controlplane", description="The control plane of nsml."
    )
    parser.add_argument("--config", type=Path, required=True, help="settings, a TOML file")
    parser.add_argument(
        "--secrets-key",
        choices=["renew", "forget"],
        help="of a shared platform, while it runs: take a new key for users' secrets, or forget the "
        "older ones; then end",
    )
    parser.add_argument(
        "--restore", type=Path, metavar="BACKUP", help="fill what is empty from a backup, and end"
    )
    parser.add_argument(
        "--keys", type=Path, metavar="DIR", help="private keys for --restore, if BACKUP has none"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="say all that is wrong with settings, certificates, stores and ports, and end: 0 where nothing is",
    )
    chosen = parser.parse_args(arguments)
    try:
        settings = read_settings(chosen.config, os.environ)
        write_json_lines(
            settings.log_level, file=settings.log_file, most_bytes=settings.log_file_bytes
        )
        if chosen.check:
            _check(settings)
        if chosen.secrets_key:
            report = asyncio.run(change_secrets_key(settings, chosen.secrets_key, SystemClock()))
            print(report)  # noqa: T201 - for people
            return
        if chosen.restore is not None:
            _restore(settings, chosen.restore, chosen.keys)
            return
        collect_seldom()
        asyncio.run(_run(settings))
    except SettingsError as error:
        _exit(2, str(error))
    except StoreLocked:
        _exit(3, f"another control plane runs in {settings.data}")
    except CannotListen as error:
        _exit(CANNOT_LISTEN, str(error))
    except (StartRefused, ListenRefused, StoreError, NsmlError, ContentError, OSError) as error:
        _exit(1, _sentence(error))
    except ExceptionGroup as group:
        known, other = group.split((StoreError, NsmlError))
        if other is not None or known is None:
            raise
        _exit(1, "; ".join(dict.fromkeys(_sentences(known))))


def _check(settings: Settings) -> NoReturn:
    from controlplane.startup.checking import check, report  # noqa: PLC0415 - a start needs none of it

    findings = asyncio.run(check(settings, SystemClock()))
    print(without_password(report(findings)))  # noqa: T201 - for people
    raise SystemExit(int(any(one.grade == "bad" for one in findings)))


def _restore(settings: Settings, folder: Path, keys: Path | None) -> None:
    """Restore the given backup, or the newest one of a folder."""
    done = asyncio.run(restore(settings, backups_in(folder.absolute())[-1], keys))
    print("\n".join(done.lines()))  # noqa: T201


def _sentences(error: BaseException) -> Iterator[str]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _sentences(one)
    else:
        yield _sentence(error)


def _sentence(error: BaseException) -> str:
    """Format an error, with its reason and advice if known."""
    if isinstance(error, OSError):
        return words_of(error)
    if not isinstance(error, NsmlError):
        return str(error)
    why = f" ({error.why})" if error.why else ""
    return f"{error}{why}" + (f"; try: {error.attempt}" if error.attempt else "")


def _exit(code: int, message: str) -> NoReturn:
    # Our messages have no passwords; those of libraries might.
    print(f"nsml-controlplane: {without_password(message)}", file=sys.stderr)  # noqa: T201
    raise SystemExit(code)


if __name__ == "__main__":
    main()
