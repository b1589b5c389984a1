"""The processes of a session, as rows and in raw values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nsml.common.units import duration_text, memory_text
from nsml.spec import agent_services
from nsml.view.tables import Column
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsml.v1.sessions_pb2 import ProcessDevice, ReplicaProcess, Visitor

_COMMAND_CELLS: Final = 20


def _command(process: ReplicaProcess) -> str:
    return f"{process.command}…" if process.is_cut else process.command


def _on_gpu(held: ProcessDevice) -> str:
    """Return `GPU 0: 843M`; `GPU 0` if the driver does not report memory."""
    known = f": {memory_text(held.memory_bytes)}" if held.HasField("memory_bytes") else ""
    return f"GPU {held.index}{known}"


COLUMNS: Final[tuple[Column[ReplicaProcess], ...]] = (
    Column(key="pid", title="PID", cell=lambda p, _: str(p.pid)),
    Column(key="node_pid", title="PID on node", cell=lambda p, _: str(p.node_pid), is_wide=True),
    Column(key="cpu", title="CPU", cell=lambda p, _: f"{100 * p.cpu_cores:.0f}%"),
    Column(key="memory", title="Memory", cell=lambda p, _: memory_text(p.memory_bytes)),
    Column(
        key="gpu_memory",
        title="GPU memory",
        cell=lambda p, _: ", ".join(map(_on_gpu, p.devices)),
        is_wide=True,
        is_worth=lambda p: bool(p.devices),
        tells=lambda p: bool(p.devices),
    ),
    Column(
        key="cpu_time",
        title="CPU time",
        cell=lambda p, _: duration_text(seconds_of(p.cpu_time)),
        is_optional=True,
    ),
    Column(key="age", title="Ran for", cell=lambda p, _: duration_text(seconds_of(p.age))),
    Column(
        key="command",
        title="Command",
        cell=lambda p, _: _command(p),
        shrinks_to=_COMMAND_CELLS,
    ),
)


_SERVICES: Final = {
    agent_services.PROGRAM: "a shell or program",
    agent_services.FILES: "a copy",
    agent_services.SSH: "ssh",
    agent_services.EXEC: "exec",
}


def visitor_lines(visitors: Iterable[Visitor]) -> Iterator[str]:
    """Describe connected users, a line each: `connected: kim, ssh, for 5m`."""
    for one in visitors:
        known = _SERVICES.get(one.service)
        what = known or (f"port {one.service}" if one.service.isdecimal() else one.service)
        user = one.user or "somebody"
        yield f"connected: {user}, {what}, for {duration_text(seconds_of(one.age))}"


def visitor_record(visitor: Visitor) -> dict[str, Any]:
    """Return all fields of a connection in raw values."""
    return {
        "user": visitor.user,
        "service": visitor.service,
        "age_s": seconds_of(visitor.age),
    }


def record(process: ReplicaProcess) -> dict[str, Any]:
    """Return all fields of a process in raw values."""
    return {
        "pid": process.pid,
        "node_pid": process.node_pid,
        "cpu_cores": process.cpu_cores,
        "cpu_time_s": seconds_of(process.cpu_time),
        "memory_bytes": process.memory_bytes,
        "age_s": seconds_of(process.age),
        "gpus": [
            {
                "index": one.index,
                "memory_bytes": one.memory_bytes if one.HasField("memory_bytes") else None,
            }
            for one in process.devices
        ],
        "command": process.command,
        "command_cut": process.is_cut,
    }
