"""The client of the container engine: connection, facts, and errors by name.

```
EngineError
    EngineUnreachable  no answer, or not in time: the call may have been carried out or not
    EngineRefused      it refuses; the message is its reason
        NotThere       there is no such container or image
```
"""

from __future__ import annotations

import contextlib
import socket as sockets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import docker.errors

OLDEST_API = (1, 41)
"""Docker 20.10, the oldest supported."""


class EngineError(Exception):
    """The engine could not carry out a call."""


class EngineUnreachable(EngineError):
    """No answer, or not in time."""


class EngineRefused(EngineError):
    """It refuses."""


class NotThere(EngineRefused):
    """There is no such container or image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Facts of an engine, by its own report.

    `has_init`: it has an init process for containers, which forwards signals and reaps.
    `networks`: names of its networks, for example `none`, `host`, `bridge`. `has_nvidia`: it supports
    NVIDIA devices. `keeps_containers`: they outlive its restart (live restore). `cgroups`: 1 or 2.
    `filters_calls`: containers get a seccomp profile by default.
    """

    version: str
    api: str
    root: str
    cgroups: int
    has_init: bool
    has_nvidia: bool
    keeps_containers: bool
    filters_calls: bool
    networks: frozenset[str]


class Engine:
    """One engine on this machine, behind a Unix socket. Blocking; thread-safe."""

    def __init__(self, socket: Path, *, timeout_s: float = 60.0) -> None:
        self.socket = socket
        self._timeout_s = timeout_s
        self._client: Any = None
        self.keeps_containers: bool | None = None
        """As last reported (live restore); None: not asked yet."""

    @property
    def sdk(self) -> Any:
        """Docker's own client, for the modules of this package only; use within `translated`.

        Raises:
            EngineUnreachable: no answer.
            EngineRefused: access is denied, or it is too old.
        """
        if self._client is None:
            if reason := _obstacle(self.socket):
                raise EngineUnreachable(f"no engine answers at {self.socket}: {reason}")
            # Imported late: it takes as long as the rest of the agent.
            import docker  # noqa: PLC0415

            with translated(self.socket):
                self._client = docker.DockerClient(
                    base_url=f"unix://{self.socket}",
                    version="auto",
                    timeout=self._timeout_s,
                    max_pool_size=16,
                )
            _refuse_old(self._client.api.api_version)
        return self._client

    def facts(self) -> EngineFacts:
        """Return its facts. Raises EngineError."""
        sdk = self.sdk
        with translated(self.socket):
            said = sdk.info()
            networks = frozenset(network.name for network in sdk.networks.list())
        runtimes = said.get("Runtimes") or {}
        self.keeps_containers = bool(said.get("LiveRestoreEnabled"))
        return EngineFacts(
            version=str(said.get("ServerVersion", "")),
            api=str(self.sdk.api.api_version),
            root=str(said.get("DockerRootDir", "")),
            cgroups=int(said.get("CgroupVersion") or 1),
            has_init=bool(said.get("InitBinary")),
            has_nvidia="nvidia" in runtimes,
            keeps_containers=self.keeps_containers,
            filters_calls=_filters_calls(said.get("SecurityOptions") or ()),
            networks=networks,
        )

    def look(self) -> None:
        """Return if it answers for its containers: a hanging one may still answer pings. Raises EngineError."""
        sdk = self.sdk
        with translated(self.socket):
            sdk.api.containers(all=True, limit=1)

    def close(self) -> None:
        """Close its connections; it can be used again."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _filters_calls(options: Iterable[str]) -> bool:
    """Parse words such as "name=seccomp,profile=default"."""
    found = [dict(part.partition("=")[::2] for part in one.split(",")) for one in options]
    return any(one.get("name") == "seccomp" and one.get("profile") != "unconfined" for one in found)


@contextlib.contextmanager
def translated(socket: Path) -> Iterator[None]:
    """Translate exceptions of Docker's client to EngineError."""
    import docker.errors  # noqa: PLC0415 - see Engine.sdk
    import requests.exceptions  # noqa: PLC0415

    try:
        yield
    except docker.errors.NotFound as error:
        raise NotThere(reason_of(error)) from error
    except docker.errors.APIError as error:
        raise EngineRefused(reason_of(error)) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        reason = _obstacle(socket) or "it accepts connections and does not answer"
        raise EngineUnreachable(f"no engine answers at {socket}: {reason}") from error


def reason_of(error: docker.errors.APIError) -> str:
    """Return the engine's reason for a refusal, in one line."""
    return " ".join(str(error.explanation or error).split())


def _obstacle(socket: Path) -> str:
    """Return the problem of a socket, as visible from here; empty: it is reachable."""
    try:
        with sockets.socket(sockets.AF_UNIX) as trial:
            trial.settimeout(1.0)
            trial.connect(str(socket))
    except FileNotFoundError:
        return "there is no such socket (the agent's setting engine_socket names another)"
    except PermissionError:
        return "permission denied: add this user to the group docker"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _refuse_old(api: str) -> None:
    major, _, minor = api.partition(".")
    if (int(major), int(minor)) < OLDEST_API:
        raise EngineRefused(f"its API is {api}; Docker 20.10 (1.41) or newer is needed")
