"""The engine's network of sessions and builds: a bridge of our own that isolates containers.

An engine accepts the option for that (`enable_icc=false`) even if it cannot enforce it, without
firewall rules (`--iptables=false`): it is tested, once for each run of the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from nodeagent.engine.client import EngineError, EngineRefused, NotThere, translated
from nodeagent.engine.containers import BUILD_LABEL, remove_container

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.engine.client import Engine

OWN_NETWORK = "nsml"
_ISOLATED = {"com.docker.network.bridge.enable_icc": "false"}
_BRIDGE = "com.docker.network.bridge.name"
_OVERLAYS_WAY = "docker_gwbridge"
_NO_WAY = frozenset({"null", "host"})
_CLONE_NEWNET = 0x40000000
_CONNECTS_WITHIN_S = 0.5

log = structlog.get_logger()
_libc = ctypes.CDLL(None, use_errno=True)


def own_network(engine: Engine, image: str, known: Path, name: str) -> str:
    """Create the network `nsml` if missing, and return why containers in it are not isolated, or "".

    Two containers of `image`, named `name` and a number, try to reach one another; `known` stores the result
    for this run of the engine. If no test is possible, without an image or without root, the engine's
    configuration is trusted.

    Raises:
        EngineRefused: a network of that name does not isolate containers, or none can be created.
        EngineError: the engine does not answer, or `image` is missing (NotThere).
    """
    run = _run_of(engine.socket)
    before = _known(known, run)
    if before is not None and before.why:
        return before.why
    network_id = _made(engine)
    if not image or (before is not None and before.network_id == network_id):
        return ""
    if os.geteuid():
        log.warning("network.untried", reason="the agent is not root")
        return ""
    try:
        why = _tried(engine, image, name)
    except NotThere:
        with translated(engine.socket):
            if _named(engine.sdk.api) is not None:
                raise
        # Another agent got its result meanwhile, and removed the network.
        network_id = _made(engine)
        why = _tried(engine, image, name)
    if why:
        with contextlib.suppress(EngineRefused), translated(engine.socket):  # others may use it
            engine.sdk.api.remove_network(network_id)
    result = {"run": run, "network_id": network_id, "why": why}
    known.write_text(json.dumps(result), encoding="ascii")  # a partial write is ignored
    return why


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    network_id: str
    why: str


def _known(known: Path, run: list[object]) -> _Known | None:
    """Return the result of an earlier test with the same run of the engine."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        found = json.loads(known.read_bytes())
        if run and found["run"] == run:
            return _Known(network_id=str(found["network_id"]), why=str(found["why"]))
    return None


def _made(engine: Engine) -> str:
    """Return the network's id; create it if missing. Raises EngineError."""
    api = engine.sdk.api
    with translated(engine.socket):
        found = _named(api)
        # the second if the bridge's name is in use
        for options in ({**_ISOLATED, _BRIDGE: _bridge_for(engine)}, _ISOLATED):
            if found is not None:
                break
            # Of two agents that create it at once one is refused, and finds the other's.
            with contextlib.suppress(EngineRefused), translated(engine.socket):
                api.create_network(
                    OWN_NETWORK,
                    driver="bridge",
                    options=options,
                    labels={"nsml.network": ""},
                    check_duplicate=True,
                )
            found = _named(api)
    if found is None:
        raise EngineRefused(f"the engine makes no network {OWN_NETWORK}")
    options = found.get("Options") or {}
    if found.get("Driver") != "bridge" or options.items() & _ISOLATED.items() != _ISOLATED.items():
        raise EngineRefused(
            f"the engine's network {OWN_NETWORK} lets containers reach one another: remove it (docker"
            f" network rm {OWN_NETWORK}), and the agent makes its own"
        )
    return str(found["Id"])


def _bridge_for(engine: Engine) -> str:
    """Return the name of the network's bridge: stable for an engine, different between engines."""
    name = str(engine.sdk.info().get("ID", ""))
    return "br-nsml-" + hashlib.sha256(name.encode()).hexdigest()[:6]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Routes of containers out of this machine.

    Attributes:
        bridges: their interfaces.
        others: names of networks without such an interface here, so that no rule of the machine applies.
    """

    bridges: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def ways_of(engine: Engine, networks: Iterable[str]) -> Ways:
    """Return the routes of containers in these networks out of the machine; missing networks are skipped.

    Raises EngineError.
    """
    bridges, others = set(), set()
    here = {name for _, name in socket.if_nameindex()}
    for name in networks:
        found = _inspected(engine, name)
        if found is not None and found.get("Driver") == "overlay":
            found = _inspected(engine, _OVERLAYS_WAY)
        if found is None or found.get("Driver") in _NO_WAY:
            continue
        options = found.get("Options") or {}
        bridge = str(options.get(_BRIDGE) or f"br-{found['Id'][:12]}")
        if found.get("Driver") == "bridge" and bridge in here:
            bridges.add(bridge)
        else:
            others.add(name)
    return Ways(bridges=tuple(sorted(bridges)), others=tuple(sorted(others)))


def _inspected(engine: Engine, name: str) -> dict[str, Any] | None:
    with contextlib.suppress(NotThere), translated(engine.socket):
        return dict(engine.sdk.api.inspect_network(name))
    return None


def _named(api: Any) -> dict[str, Any] | None:
    return next(
        (one for one in api.networks(names=[OWN_NETWORK]) if one["Name"] == OWN_NETWORK), None
    )


def _tried(engine: Engine, image: str, name: str) -> str:
    """Test a connection from one container to another, as root. Raises EngineError."""
    names = [f"{name}-{number}" for number in range(2)]
    with ThreadPoolExecutor(len(names)) as pool, contextlib.ExitStack() as left:
        for one in names:
            left.callback(_remove_quietly, engine, one)
        (here, address), (there, _) = pool.map(lambda one: _started(engine, image, one), names)
        with _socket_in(here) as listening, _socket_in(there) as calling:
            listening.bind((address, 0))
            listening.listen(1)
            calling.settimeout(_CONNECTS_WITHIN_S)
            try:
                calling.connect(listening.getsockname())
            except OSError:
                return ""
    return (
        "the container engine cannot keep containers apart (it runs with --iptables=false, or its rules"
        " are not in force)"
    )


def _started(engine: Engine, image: str, name: str) -> tuple[int, str]:
    """Start a waiting container; return its first pid and its address."""
    remove_container(engine, name)
    api = engine.sdk.api
    with translated(engine.socket):
        host = api.create_host_config(
            network_mode=OWN_NETWORK,
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            log_config={"Type": "none", "Config": {}},
            mem_limit=64 << 20,
            pids_limit=16,
        )
        made = api.create_container(
            image,
            entrypoint=["/bin/sh", "-c", "read x"],
            name=name,
            stdin_open=True,
            working_dir="/",
            labels={BUILD_LABEL: name},
            healthcheck={"test": ["NONE"]},
            host_config=host,
        )["Id"]
        api.start(made)
        found = api.inspect_container(made)
    address = found["NetworkSettings"]["Networks"][OWN_NETWORK]["IPAddress"]
    if not address or not found["State"]["Pid"]:
        raise EngineRefused(f"a container in the engine's network {OWN_NETWORK} does not run there")
    return int(found["State"]["Pid"]), str(address)


def _remove_quietly(engine: Engine, name: str) -> None:
    try:
        remove_container(engine, name)
    except EngineError as error:
        log.warning("container.not_removed", container=name, error=str(error))


def _socket_in(pid: int) -> socket.socket:
    """Return a socket in the network of a process: a thread enters the namespace, and then ends."""
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(space, _CLONE_NEWNET):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            finally:
                os.close(space)
            made.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    match made[0]:
        case socket.socket() as found:
            return found
        case error:
            raise EngineRefused(f"a container's network cannot be entered: {error}") from error


def _run_of(path: Path) -> list[object]:
    """Return the identity of this run of an engine: its process, if visible; else nothing."""
    with contextlib.suppress(OSError, IndexError), socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(1.0)
        trial.connect(str(path))
        found = trial.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", found)[0]
        ticks = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        if pid > 1:  # a service manager may hold the socket across runs
            return [pid, int(ticks), boot]
    return []
