"""Images and the containers that make them, as the engine is asked for them; blocking.

What may last (pulls, builds, commits) is looked after while it lasts: `look` is called several times a
second, and what it raises ends the wait.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.engine.client import (
    Engine,
    EngineRefused,
    EngineUnreachable,
    NotThere,
    translated,
)
from nodeagent.engine.containers import remove_container
from nsml.images import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")

_LOOK_EVERY_S = 0.1
_SILENT_FOR_S = 60.0
"""So long an engine may not answer (a restart) before what it was asked for is given up."""
_LASTS_S = 3600.0
"""The longest that one answer may take: the commit of a large image."""
_USER = re.compile(r"[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)?")
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID")
"""What apt and dpkg do: own files, and fetch as a user of their own. Nothing that reaches the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image on this machine. All but its `id` is its configuration's; `environment`: variables."""

    id: str
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """A path of this machine that a build reads at `target`."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContainer:
    """One run of `argv` as root in a container without privileges.

    `cpus` are cores; `network` is one of the engine's.
    """

    name: str
    argv: Sequence[str]
    mounts: Sequence[Mounted]
    network: str
    memory_bytes: int
    cpus: float
    process_count: int = 4096


@dataclass(slots=True)
class PullProgress:
    """How far a pull has come; `layers` is bytes (done, whole) of each layer that is fetched."""

    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)

    def text(self) -> str:
        """In words: "3 of 7 layers, 120 of 900 MB"."""
        here = sum(done for done, _ in self.layers.values()) / 1e6
        whole = sum(size for _, size in self.layers.values()) / 1e6
        return f"{len(self.done)} of {len(self.known)} layers, {here:.0f} of {whole:.0f} MB"


def stored_image(engine: Engine, reference: str) -> StoredImage:
    """The image that `reference` (a name or an id) stands for here. Raises NotThere, EngineError."""
    try:
        with translated(engine.socket):
            found = engine.sdk.api.inspect_image(reference)
    except NotThere:
        raise NotThere(f"image {reference} is not on this node") from None
    config = found.get("Config") or {}
    variables = config.get("Env") or ()
    return StoredImage(
        id=found["Id"],
        entrypoint=config.get("Entrypoint") or (),
        command=config.get("Cmd") or (),
        user=config.get("User") or "",
        environment=dict(line.split("=", 1) for line in variables if "=" in line),
    )


def find_image(engine: Engine, reference: str) -> StoredImage | None:
    """As `stored_image`; None where there is none. Raises EngineError."""
    with contextlib.suppress(NotThere):
        return stored_image(engine, reference)
    return None


def touch_image(engine: Engine, tag: str) -> None:
    """Note with the engine, for all who share it, that `tag` is used now. Raises EngineError.

    It keeps when a tag was last given. Nothing for one that is not there.
    """
    with contextlib.suppress(NotThere):
        name_image(engine, tag, tag)


def name_image(engine: Engine, reference: str, tag: str) -> None:
    """Give an image a further name, or again one that it has. Raises NotThere, EngineError."""
    name, version, _ = parts_of(tag)
    with translated(engine.socket):
        engine.sdk.api.tag(reference, name, version)


def image_used_at(engine: Engine, reference: str) -> float:
    """When it was last touched, or made: Unix seconds; 0 where it is gone. Raises EngineError."""
    try:
        with translated(engine.socket):
            found = engine.sdk.api.inspect_image(reference)
    except NotThere:
        return 0.0
    times = (found.get("Created"), (found.get("Metadata") or {}).get("LastTagTime"))
    # of what never was an engine says the year 1
    known = [one for one in times if one and not one.startswith("0001")]
    return max((datetime.fromisoformat(one).timestamp() for one in known), default=0.0)


def image_sizes(engine: Engine) -> dict[str, int]:
    """Bytes of every image here, by each of its references with tag or digest. Raises EngineError."""
    with translated(engine.socket):
        listed = engine.sdk.api.images()
    return {
        name: int(one.get("Size") or 0)
        for one in listed
        for name in (*(one.get("RepoTags") or ()), *(one.get("RepoDigests") or ()))
    }


def tags_of(engine: Engine, repository: str) -> list[str]:
    """The tags of a repository's images here. Raises EngineError."""
    with translated(engine.socket):
        listed = engine.sdk.api.images(name=repository)
    names = [name for one in listed for name in one.get("RepoTags") or ()]
    return [name.rpartition(":")[2] for name in names if name.startswith(f"{repository}:")]


def pull_image(
    engine: Engine,
    reference: str,
    *,
    credentials: Path | None,
    look: Callable[[], object],
) -> Iterator[PullProgress]:
    """Pull `reference`, with the credentials for its registry in a docker `config.json`.

    Raises EngineError, with the registry's reason when it is EngineRefused.
    """
    name, tag, digest = parts_of(reference)
    progress = PullProgress()
    with translated(engine.socket):
        answers = engine.sdk.api.pull(
            name,
            tag=digest or tag or "latest",
            stream=True,
            decode=True,
            auth_config=_access(name, credentials),
        )
        for answer in looked_after(answers, look):
            if "error" in answer:
                raise EngineRefused(" ".join(str(answer["error"]).split()))
            _note(progress, answer)
            yield progress


def run_build(
    engine: Engine,
    build: BuildContainer,
    base: StoredImage,
    *,
    say: Callable[[bytes], object],
    look: Callable[[], object],
    keep: Callable[[str], object],
) -> tuple[int, bool]:
    """Run it upon `base` to its end; its exit code, and whether it was killed for memory.

    `say` gets its output. `keep` is called, after code 0, with the container's id, to commit it.
    Nothing is left of the container. Raises EngineError and what `look` raises.
    """
    remove_container(engine, build.name)
    api = engine.sdk.api
    with translated(engine.socket):
        made = api.create_container(
            base.id,
            # What is set here and empty in the base could not be taken back with the commit.
            **{"entrypoint" if base.entrypoint else "command": list(build.argv)},
            name=build.name,
            user="0:0",
            host_config=_host_config(api, build),
        )["Id"]
    try:
        with translated(engine.socket):
            pieces = api.attach(made, stdout=True, stderr=True, stream=True, logs=True)
            api.start(made)
        for piece in looked_after(_unbroken(engine, pieces), look):
            say(piece)
        state = _ended(engine, made, look)
        code = int(state["ExitCode"])
        if code == 0:
            keep(made)
        return code, bool(state.get("OOMKilled"))
    finally:
        remove_container(engine, build.name)


def commit_build(engine: Engine, container: str, base: StoredImage, tag: str) -> None:
    """Make `tag` of what a build left, configured like `base`. Raises EngineError."""
    name, version, _ = parts_of(tag)
    changes = [
        *([f"ENTRYPOINT {json.dumps(list(base.entrypoint))}"] if base.entrypoint else []),
        f"CMD {json.dumps(list(base.command) or ['/bin/sh'])}",
        f"USER {base.user if _USER.fullmatch(base.user) else '0:0'}",
    ]
    patient = Engine(engine.socket, timeout_s=_LASTS_S)
    try:
        with translated(engine.socket):
            patient.sdk.api.commit(container, repository=name, tag=version, changes=changes)
    finally:
        patient.close()


def builds_named(engine: Engine, prefix: str) -> list[str]:
    """Names of containers that begin with `prefix`. Raises EngineError."""
    with translated(engine.socket):
        listed = engine.sdk.api.containers(all=True, filters={"name": f"^/{re.escape(prefix)}"})
    return [name.removeprefix("/") for one in listed for name in one["Names"]]


def remove_image(engine: Engine, reference: str) -> bool:
    """Remove a reference, and the image when it was its last; False when a container uses it."""
    try:
        with translated(engine.socket):
            engine.sdk.api.remove_image(reference)
    except NotThere:
        return True
    except EngineRefused:
        return False
    return True


def _host_config(api: Any, build: BuildContainer) -> Any:
    """Like a session's: no privileges, no way to new ones, nothing of the machine to write to."""
    return api.create_host_config(
        network_mode=build.network,
        mem_limit=build.memory_bytes,
        memswap_limit=build.memory_bytes,
        nano_cpus=round(build.cpus * 1e9),
        pids_limit=build.process_count,
        cap_drop=["ALL"],
        cap_add=list(_CAPABILITIES),
        security_opt=["no-new-privileges"],
        oom_score_adj=500,
        init=True,
        # The engine's copy of the output is for whoever finds the container, and bounded.
        log_config={"Type": "json-file", "Config": {"max-size": "16m", "max-file": "1"}},
        mounts=[
            {
                "Type": "bind",
                "Source": mounted.source,
                "Target": mounted.target,
                "ReadOnly": True,
                "BindOptions": {"Propagation": "rprivate"},
            }
            for mounted in build.mounts
        ],
    )


def _unbroken(engine: Engine, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A stream that breaks says nothing of the container: whether that has ended is asked for."""
    with contextlib.suppress(EngineUnreachable), translated(engine.socket):
        yield from pieces


def _ended(engine: Engine, container: str, look: Callable[[], object]) -> dict[str, Any]:
    """The state of a container that has ended; an engine that restarts is waited for."""
    silent_since: float | None = None
    while True:
        look()
        try:
            with translated(engine.socket):
                state: dict[str, Any] = engine.sdk.api.inspect_container(container)["State"]
        except EngineUnreachable:
            silent_since = silent_since or time.monotonic()
            if time.monotonic() > silent_since + _SILENT_FOR_S:
                raise
        else:
            silent_since = None
            if not state["Running"]:
                return state
        time.sleep(_LOOK_EVERY_S)


def _access(name: str, credentials: Path | None) -> dict[str, str]:
    """What the file has for the registry of `name`; nothing where it has none."""
    if credentials is None:
        return {}
    import docker.auth  # noqa: PLC0415 - see Engine.sdk

    config = docker.auth.load_config(str(credentials))
    registry, _ = docker.auth.resolve_repository_name(name)
    return dict(config.resolve_authconfig(registry) or {})


def _note(progress: PullProgress, answer: dict[str, Any]) -> None:
    layer, status = answer.get("id", ""), str(answer.get("status", ""))
    if not layer or status.startswith("Pulling from"):
        return
    progress.known.add(layer)
    detail = answer.get("progressDetail") or {}
    if status == "Downloading" and detail.get("total"):
        progress.layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
    elif status in {"Download complete", "Pull complete", "Already exists"}:
        _, whole = progress.layers.get(layer, (0, 0))
        progress.layers[layer] = (whole, whole)
    if status in {"Pull complete", "Already exists"}:
        progress.done.add(layer)


def looked_after(pieces: Iterable[T], look: Callable[[], object]) -> Iterator[T]:
    """`pieces` as they come; `look` is called all the while, and what it raises ends it."""
    pump = _Pump(pieces)
    threading.Thread(target=pump.work, daemon=True).start()
    try:
        while True:
            look()
            try:
                kind, value = pump.arriving.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                continue
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        pump.is_unwanted.set()


class _Pump:
    """Reads what blocks in a thread of its own, until nobody wants it."""

    def __init__(self, pieces: Iterable[Any]) -> None:
        self._pieces = pieces
        self.arriving: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=64)
        self.is_unwanted = threading.Event()

    def work(self) -> None:
        try:
            for piece in self._pieces:
                if not self._put("piece", piece):
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the pieces are awaited
            self._put("error", error)
        else:
            self._put("end", None)

    def _put(self, kind: str, value: Any) -> bool:
        while not self.is_unwanted.is_set():
            with contextlib.suppress(queue.Full):
                self.arriving.put((kind, value), timeout=1.0)
                return True
        return False
