"""Containers of this agent, as the engine lists them; blocking."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.engine.client import EngineRefused, NotThere, translated

if TYPE_CHECKING:
    from nodeagent.engine.client import Engine

AGENT_LABEL = "nsml.agent"
REPLICA_LABEL = "nsml.replica"
BUILD_LABEL = "nsml.build"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundContainer:
    """A container with an agent's mark: its name, and the replica in its label."""

    name: str
    replica: str


def containers_of(engine: Engine, mark: str) -> list[FoundContainer]:
    """Return all containers, running or not, with the agent's `mark`. Raises EngineError."""
    sdk = engine.sdk
    with translated(engine.socket):
        listed = sdk.api.containers(all=True, filters={"label": f"{AGENT_LABEL}={mark}"})
    return [
        FoundContainer(
            name=one["Names"][0].removeprefix("/") if one["Names"] else one["Id"],
            replica=one["Labels"].get(REPLICA_LABEL, ""),
        )
        for one in listed
    ]


def remove_container(engine: Engine, name: str) -> None:
    """End the container and delete it with its data; idempotent. Raises EngineError."""
    sdk = engine.sdk
    with contextlib.suppress(NotThere), translated(engine.socket):
        sdk.api.remove_container(name, force=True, v=True)


def end_container(engine: Engine, name: str) -> None:
    """As `remove_container`, but accept an undeletable one without processes."""
    try:
        remove_container(engine, name)
    except EngineRefused:
        if _has_processes(engine, name):
            raise


def _has_processes(engine: Engine, name: str) -> bool:
    sdk = engine.sdk
    try:
        with translated(engine.socket):
            state = sdk.api.inspect_container(name)["State"]
    except NotThere:
        return False
    return bool(state["Running"] or state["Pid"] or state.get("Restarting"))
