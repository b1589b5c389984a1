"""Images and the containers that build them, through the engine; blocking.

Long calls (builds, commits) are monitored: `look` is called several times a
second, and its exceptions end the wait.
"""

from __future__ import annotations

import contextlib
import json
import re
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
from nodeagent.engine.containers import AGENT_LABEL, BUILD_LABEL, REPLICA_LABEL, remove_container
from nodeagent.engine.engine_health import refuse_unsound
from nodeagent.engine.streams import LOOK_EVERY_S, looked_after, whole_lines
from nodeagent.engine.volumes import covered_volumes
from nsml.common.units import size_text
from nsml.spec.images import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

_SILENT_FOR_S = 60.0
"""How long an engine may not answer (a restart) before a call is given up."""
_LASTS_S = 3600.0
"""The longest time of one answer: the commit of a large image."""
_USER = re.compile(r"[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)?")
_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_FURTHER_DEVICES = frozenset(
    {
        "NVIDIA_GDRCOPY",
        "NVIDIA_GDS",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
        "NVIDIA_MOFED",
        "NVIDIA_NVSWITCH",
    }
)
"""For these NVIDIA's container runtime also adds InfiniBand adapters, storage, switches and channels to other
machines, which only its node's administrator may allow a session."""
_LOADED = frozenset({"GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH"})
MOST_CONFIGURATION_BYTES = 256 << 10
"""Limit of an image's configuration: far more than any in use, a sixteenth of a shim's limit for an answer."""
FOR_APT = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID")
"""Required by apt and dpkg: to own files, and to fetch as another user. None affects the machine."""
FOR_PIP = ("DAC_OVERRIDE", "FOWNER")
"""Required by pip: to write where another user of the image owns the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image on this machine, with its configuration, which its author chose.

    `environment`: variables. `volumes`: declared paths. `sources` are the references NAME@DIGEST
    of registries, as far as the engine knows them; empty if it was built here. `names` are NAME:TAG.
    `configuration_bytes` is the size of its configuration, as JSON.
    """

    id: str
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[str] = ()
    sources: Sequence[str] = ()
    names: Sequence[str] = ()
    size_bytes: int = 0
    created_at: float = 0.0
    configuration_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """A path of this machine, readable for a build at `target`."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContainer:
    """One run of `argv` as root, or as `user`, in a container with only `capabilities`.

    `cpus` are cores; `network` is one of the engine's; `mark` is the agent's. `environment` overrides the base's; it
    must have no variables that the engine's own programs act on (`is_engine_variable`).
    """

    name: str
    mark: str
    argv: Sequence[str]
    mounts: Sequence[Mounted]
    network: str
    capabilities: Sequence[str]
    memory_bytes: int
    cpus: float
    process_count: int = 4096
    user: str = "0:0"
    environment: Mapping[str, str] = field(default_factory=dict)


def stored_image(engine: Engine, reference: str) -> StoredImage:
    """Return the image named `reference` (a name or an id) here. Raises NotThere, EngineError."""
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
        folder=config.get("WorkingDir") or "",
        labels=config.get("Labels") or {},
        volumes=sorted(config.get("Volumes") or ()),
        sources=found.get("RepoDigests") or (),
        names=found.get("RepoTags") or (),
        size_bytes=int(found.get("Size") or 0),
        created_at=_unix_s(found.get("Created")),
        configuration_bytes=len(json.dumps(config)),
    )


def refuse_large_configuration(image: StoredImage) -> None:
    """Raise EngineRefused for an image with too much configuration: variables, labels, ports, volumes.

    The engine repeats it in each answer about the image and its containers, and in lists of all images.
    """
    if image.configuration_bytes > MOST_CONFIGURATION_BYTES:
        raise EngineRefused(
            f"its variables, labels and ports have {size_text(image.configuration_bytes)}:"
            f" at most {size_text(MOST_CONFIGURATION_BYTES)}"
        )


def find_image(engine: Engine, reference: str) -> StoredImage | None:
    """Return `stored_image`, or None. Raises EngineError."""
    with contextlib.suppress(NotThere):
        return stored_image(engine, reference)
    return None


def touch_image(engine: Engine, tag: str) -> None:
    """Mark `tag` as used now, for all users of the engine. Raises EngineError.

    It stores when a tag was last set. No effect on a missing one.
    """
    with contextlib.suppress(NotThere):
        name_image(engine, tag, tag)


def name_image(engine: Engine, reference: str, tag: str) -> None:
    """Tag an image, perhaps with a tag that it has already. Raises NotThere, EngineError."""
    name, version, _ = parts_of(tag)
    with translated(engine.socket):
        engine.sdk.api.tag(reference, name, version)


def image_used_at(engine: Engine, reference: str) -> float:
    """Return when it was last touched, or made: Unix seconds; 0 if it is gone. Raises EngineError."""
    try:
        with translated(engine.socket):
            found = engine.sdk.api.inspect_image(reference)
    except NotThere:
        return 0.0
    times = (found.get("Created"), (found.get("Metadata") or {}).get("LastTagTime"))
    return max(map(_unix_s, times))


def _unix_s(time_said: str | None) -> float:
    """Return Unix seconds of an engine's time; 0 for the year 1, which means never."""
    is_known = time_said and not time_said.startswith("0001")
    return datetime.fromisoformat(time_said).timestamp() if time_said and is_known else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedImage:
    """An image here; `names` are its references with tag or digest."""

    id: str
    names: Sequence[str]
    size_bytes: int


def listed_images(engine: Engine) -> list[ListedImage]:
    """Return every image here. Raises EngineError."""
    with translated(engine.socket):
        listed = engine.sdk.api.images()
    return [
        ListedImage(
            id=one["Id"],
            names=[*(one.get("RepoTags") or ()), *(one.get("RepoDigests") or ())],
            size_bytes=int(one.get("Size") or 0),
        )
        for one in listed
    ]


def tags_of(engine: Engine, repository: str) -> list[str]:
    """Return the tags of a repository's images here. Raises EngineError."""
    with translated(engine.socket):
        listed = engine.sdk.api.images(name=repository)
    names = [name for one in listed for name in one.get("RepoTags") or ()]
    return [name.rpartition(":")[2] for name in names if name.startswith(f"{repository}:")]


def run_build(
    engine: Engine,
    build: BuildContainer,
    base: StoredImage,
    *,
    say: Callable[[bytes], object],
    look: Callable[[], object],
    keep: Callable[[str], object],
    fill: Callable[[str], object] = lambda _: None,
) -> tuple[int, bool]:
    """Run it on `base` to its end; return its exit code, and whether it was killed for memory.

    `say` gets its output. `fill` is called with the container's id before the start, to add files. `keep` is called with it after code 0, to commit it.
    The container is always removed. Raises EngineError, EngineUnreachable also if the engine was
    restarted during the build, and the exceptions of `look`.
    """
    refuse_large_configuration(base)
    remove_container(engine, build.name)
    api = engine.sdk.api
    with translated(engine.socket):
        made = api.create_container(
            base.id,
            # Settings that are empty in the base could not be undone by the commit.
            **{"entrypoint" if base.entrypoint else "command": list(build.argv)},
            name=build.name,
            user=build.user,
            # Not the image's: that may be any folder, even one that exploits a flaw of the engine.
            working_dir="/",
            environment={**build.environment, **_build_environment(base)},
            labels=_build_labels(build, base),
            healthcheck={"test": ["NONE"]},
            host_config=_host_config(api, build, base),
        )["Id"]
    try:
        refuse_unsound(engine, made)
        fill(made)
        with translated(engine.socket):
            frames = api.attach(made, stdout=True, stderr=True, stream=True, logs=True, demux=True)
            api.start(made)
        for piece in looked_after(whole_lines(_unbroken(engine, frames)), look):
            say(piece)
        state, was_away = ended_build(engine, made, look)
        code = int(state["ExitCode"])
        if code and was_away:
            raise EngineUnreachable("the container engine was restarted during the build")
        if code == 0:
            keep(made)
        return code, bool(state.get("OOMKilled"))
    finally:
        remove_container(engine, build.name)


def commit_build(engine: Engine, container: str, base: StoredImage, tag: str) -> None:
    """Commit a build's container as `tag`, configured like `base`. Raises EngineError."""
    name, version, _ = parts_of(tag)
    changes = [
        *([f"ENTRYPOINT {json.dumps(list(base.entrypoint))}"] if base.entrypoint else []),
        f"CMD {json.dumps(list(base.command) or ['/bin/sh'])}",
        f"USER {base.user if _USER.fullmatch(base.user) else '0:0'}",
    ]
    # The base's again; labels of the build that the base lacks cannot be removed, only emptied.
    configuration = {
        "Env": [f"{name}={value}" for name, value in base.environment.items()],
        "Labels": {BUILD_LABEL: "", **base.labels},
        "WorkingDir": base.folder or "/",
    }
    patient = Engine(engine.socket, timeout_s=_LASTS_S)
    try:
        with translated(engine.socket):
            patient.sdk.api.commit(
                container, repository=name, tag=version, changes=changes, conf=configuration
            )
    finally:
        patient.close()


def put_archive(
    engine: Engine, container: str, folder: str, pieces: Iterable[bytes], look: Callable[[], object]
) -> None:
    """Unpack a tar archive in a folder of a container that is not started yet. Raises EngineError, and exceptions of `look`."""
    patient = Engine(engine.socket, timeout_s=_LASTS_S)

    def put() -> Iterator[None]:
        with translated(engine.socket):
            patient.sdk.api.put_archive(container, folder, pieces)
        yield None

    try:
        for _ in looked_after(put(), look):
            pass
    finally:
        patient.close()


def packed_folder(
    engine: Engine, container: str, path: str, look: Callable[[], object]
) -> Iterator[bytes]:
    """Yield a tar archive of a file or folder of a container, packed by the engine. Raises EngineError, and exceptions of `look`."""
    with translated(engine.socket):
        pieces, _ = engine.sdk.api.get_archive(container, path)
    yield from looked_after(_as_they_are(engine, pieces), look)


def _as_they_are(engine: Engine, pieces: Iterable[bytes]) -> Iterator[bytes]:
    with translated(engine.socket):
        yield from pieces


def created_container(engine: Engine, image: StoredImage, *, name: str, mark: str) -> str:
    """Create a container of an image, never started, to read files from; return its id. Raises EngineError."""
    refuse_large_configuration(image)
    remove_container(engine, name)
    api = engine.sdk.api
    labels = {
        **without_meaning(image.labels),
        BUILD_LABEL: mark,
        AGENT_LABEL: "",
        REPLICA_LABEL: "",
    }
    with translated(engine.socket):
        made: str = api.create_container(
            image.id,
            ["true"],
            name=name,
            entrypoint=["true"],
            working_dir="/",
            labels=labels,
            network_disabled=True,
            host_config=api.create_host_config(mounts=covered_volumes(image.volumes)),
        )["Id"]
    return made


def written_bytes(engine: Engine, container: str) -> int:
    """Return the bytes that a container has written to its root, by its name. Raises EngineError."""
    api = engine.sdk.api
    with translated(engine.socket):
        answer = api._get(api._url("/containers/{0}/json", container), params={"size": 1})  # noqa: SLF001 - `inspect_container` has no such parameter
        return int(api._result(answer, json=True).get("SizeRw") or 0)  # noqa: SLF001


def builds_named(engine: Engine, prefix: str) -> list[str]:
    """Return names of containers that begin with `prefix`. Raises EngineError."""
    with translated(engine.socket):
        listed = engine.sdk.api.containers(all=True, filters={"name": f"^/{re.escape(prefix)}"})
    return [name.removeprefix("/") for one in listed for name in one["Names"]]


def remove_image(engine: Engine, reference: str) -> bool:
    """Remove a reference, and the image if it was its last; False if a container uses it."""
    try:
        with translated(engine.socket):
            engine.sdk.api.remove_image(reference)
    except NotThere:
        return True
    except EngineRefused:
        return False
    return True


def _build_environment(base: StoredImage) -> dict[str, str]:
    """Override the base's variables that would affect the engine's own programs."""
    taken = {name: "" for name in base.environment if is_engine_variable(name)}
    if _DEVICES in base.environment:
        taken[_DEVICES] = "void"  # else an engine with NVIDIA's runtime adds all devices to builds
    return taken


def is_engine_variable(name: str) -> bool:
    """Whether programs of the engine act on a container's variable, with the machine's rights.

    It affects libraries loaded into each of them, or makes NVIDIA's runtime add devices other than GPUs.
    """
    return name.startswith("LD_") or name in _LOADED or name in _FURTHER_DEVICES


def without_meaning(labels: Mapping[str, str]) -> dict[str, str]:
    """Return an image's labels, emptied: programs of the machine act on labels of containers."""
    return dict.fromkeys(labels, "")


def _build_labels(build: BuildContainer, base: StoredImage) -> dict[str, str]:
    """Return our own labels; an image with ours would make its build look like a session."""
    ours = {BUILD_LABEL: build.mark, AGENT_LABEL: "", REPLICA_LABEL: ""}
    return {**without_meaning(base.labels), **ours}


def _host_config(api: Any, build: BuildContainer, base: StoredImage) -> Any:
    """Return a configuration like a session's: no privileges, no way to gain them, nothing of the machine writable."""
    return api.create_host_config(
        network_mode=build.network,
        mem_limit=build.memory_bytes,
        memswap_limit=build.memory_bytes,
        nano_cpus=round(build.cpus * 1e9),
        pids_limit=build.process_count,
        cap_drop=["ALL"],
        cap_add=list(build.capabilities),
        security_opt=["no-new-privileges"],
        # the kernel ends builds first: sessions have 500
        oom_score_adj=1000,
        init=True,
        # The engine's copy of the output is for people who find the container, and bounded.
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
        ]
        # from the build's memory, and not part of the image, as in any build
        + covered_volumes(
            base.volumes,
            [one.target for one in build.mounts],
            most_bytes=build.memory_bytes // 2,
        ),
        restart_policy={"Name": "no"},
    )


def _unbroken(engine: Engine, frames: Iterable[T]) -> Iterator[T]:
    """Ignore a broken stream: whether the container has ended is checked separately."""
    with contextlib.suppress(EngineUnreachable), translated(engine.socket):
        yield from frames


def ended_build(
    engine: Engine, container: str, look: Callable[[], object]
) -> tuple[dict[str, Any], bool]:
    """Wait for the end of a container; return its state, and whether the engine was away meanwhile."""
    silent_since: float | None = None
    was_away = False
    while True:
        look()
        try:
            with translated(engine.socket):
                state: dict[str, Any] = engine.sdk.api.inspect_container(container)["State"]
        except EngineUnreachable:
            silent_since = silent_since or time.monotonic()
            was_away = True
            if time.monotonic() > silent_since + _SILENT_FOR_S:
                raise
        else:
            silent_since = None
            if not state["Running"]:
                return state, was_away
        time.sleep(LOOK_EVERY_S)
