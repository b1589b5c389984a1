"""Builds of environments that users request before a session needs them. Orders are not stored.

Results are kept like those of sessions.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

import structlog

from nodeagent.client_work import ClientWork, Work
from nodeagent.environments.dockerfile_builds import Recipe
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.virtualenvs import lock_of
from nodeagent.replica.preparation_steps import check_python, not_honoured
from nsml.packages.dockerfile import is_path
from nsml.packages.requirements import (
    as_text,
    is_other_list,
    read_requirements,
)
from nsml.v1 import resources_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from nodeagent.engine.pulls import Login
    from nodeagent.environments.build_queue import Waits
    from nodeagent.environments.builds import Say
    from nodeagent.environments.images import Images
    from nodeagent.environments.virtualenvs import Environments
    from nodeagent.replica.preparation_steps import MakeReaders
    from nsml.common.clock import Clock, Offload
    from nsml.packages.requirements import Requirements

_ABANDONED_AFTER_S: Final = 20.0
_MOST_LOG_BYTES: Final = 1 << 20
_MOST_TOLD_BYTES: Final = 64 << 10

log = structlog.get_logger()


class Built(NamedTuple):
    """A result of a build: its key on the node, and the lock of its packages ("": it has none)."""

    key: str
    lock: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A request for a build: its user, registry logins, and callbacks. Times are Unix seconds."""

    owner: str
    say: Say
    cancelled: threading.Event
    waits: Waits
    built_after: float
    built: Callable[[float], object]
    logins: Mapping[str, Login] = field(default_factory=dict, repr=False)


class Provide(Protocol):
    """Builds environments as for sessions on this node. Blocking."""

    in_containers: bool
    """Whether it builds images: packages may be built from source there, and the base image has packages already."""

    def __call__(self, wanted: Requirements, asked: Asked) -> Built:
        """Build as for a session with these requirements."""
        ...

    def from_dockerfile(self, files: pb.EnvironmentFiles, asked: Asked) -> Built:
        """The image that a session with this Dockerfile gets. Raises EnvironmentFailed where there are no containers."""
        ...


class OnMachine:
    """Environments of a node without containers."""

    in_containers = False

    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    def uses(self) -> frozenset[str]:
        """See InImages: an environment that is being built is protected by its own lock."""
        return frozenset()

    def __call__(self, wanted: Requirements, asked: Asked) -> Built:
        """See Provide."""
        check_python(wanted)
        for note in (*wanted.notes, *not_honoured(wanted)):
            asked.say(f"note: {note}\n".encode())
        made = self._environments.provide(
            wanted,
            asked.say,
            asked.cancelled,
            owner=asked.owner,
            waits=asked.waits,
            built_after=asked.built_after,
            built=asked.built,
        )
        return Built(made.folder.name, lock_of(made.folder))

    def from_dockerfile(self, files: pb.EnvironmentFiles, asked: Asked) -> Built:
        """See Provide."""
        del files, asked
        raise EnvironmentFailed("this node runs programs without containers, and builds no images")


class InImages:
    """Images of a node with containers: the packages on the image that the code or the site names."""

    in_containers = True

    def __init__(self, images: Images) -> None:
        self._images = images
        self._held: dict[object, list[str]] = {}
        """The keys of images, by the build that needs them."""

    def uses(self) -> frozenset[str]:
        """Images that running builds need, in the format of `used_things`; thread-safe."""
        return frozenset(f"image {key}" for held in list(self._held.values()) for key in list(held))

    def __call__(self, wanted: Requirements, asked: Asked) -> Built:
        """See Provide."""
        reference, note = self._images.resolve("", wanted.image)
        for one in (*wanted.notes, *([note] if note else [])):
            asked.say(f"note: {one}\n".encode())
        locks: list[str] = []
        held = self._held[asked] = []
        try:
            image = self._images.provide(
                reference,
                wanted,
                asked.say,
                asked.cancelled,
                owner=asked.owner,
                waits=asked.waits,
                use=held.append,
                built_after=asked.built_after,
                built=asked.built,
                installed=locks.append,
                logins=asked.logins,
                has_default_packages=self._images.has_default_packages("", wanted.image),
            )
        finally:
            del self._held[asked]
        return Built(image, *locks)

    def from_dockerfile(self, files: pb.EnvironmentFiles, asked: Asked) -> Built:
        """See Provide."""
        held = self._held[asked] = []
        try:
            with self._images.context_folder() as folder:
                _write_context(folder, files.context)
                image = self._images.provide_built(
                    Recipe(
                        folder=folder,
                        path=files.dockerfile,
                        arguments=dict(files.build_arguments),
                    ),
                    asked.say,
                    asked.cancelled,
                    owner=asked.owner,
                    waits=asked.waits,
                    use=held.append,
                    built_after=asked.built_after,
                    built=asked.built,
                    logins=asked.logins,
                )
        finally:
            del self._held[asked]
        return Built(image)


def _write_context(folder: Path, files: Iterable[pb.ContextFile]) -> None:
    """Write the files of a Dockerfile's folder, with the modes that a session's code has. Raises EnvironmentFailed, OSError."""
    for file in files:
        if not is_path(file.path):
            raise EnvironmentFailed(f"{file.path[:80]!r} is not the path of a file in a folder")
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)


@dataclass(slots=True, eq=False, kw_only=True)
class _Build(Work[pb.EnvironmentBuild]):
    """A build for one user."""

    build_id: str
    began_at: float = field(default_factory=time.time)
    log: bytearray = field(default_factory=bytearray)
    forgotten: int = 0
    """Bytes dropped from the log's start."""
    words: str = ""
    built_at: float = 0.0
    turn: threading.Lock = field(default_factory=threading.Lock)

    def say(self, piece: bytes) -> None:
        """Take a piece of output; from any thread."""
        with self.turn:
            self.log += piece
            over = len(self.log) - _MOST_LOG_BYTES
            if over > 0:
                del self.log[:over]
                self.forgotten += over

    def wait(self, reason: str) -> None:
        self.words = reason

    def note_built(self, at: float) -> None:
        self.built_at = at

    def told(self, known: int) -> pb.EnvironmentBuild:
        """Its status, with its log from byte `known` on."""
        message = pb.EnvironmentBuild(state=pb.ENVIRONMENT_BUILD_STATE_RUNNING, words=self.words)
        # before the log: once there is a result, the log is complete
        if self.result is not None:
            message.CopyFrom(self.result)
        with self.turn:
            begin = max(known - self.forgotten, 0)
            piece = bytes(self.log[begin : begin + _MOST_TOLD_BYTES])
            message.log, message.log_offset = piece, self.forgotten + begin
            has_more = begin + len(piece) < len(self.log)
        if has_more:
            # the end is reported with the end of the log
            message.state = pb.ENVIRONMENT_BUILD_STATE_RUNNING
            message.ClearField("lock")
        message.build_id = self.build_id
        return message


class EnvironmentBuilds:
    """Builds requested by users. A context manager: leaving it cancels running builds.

    Args:
        most: the limits of concurrent builds of this kind: on the node, and of one user.
        reader: of users' files.
    """

    def __init__(
        self,
        provide: Provide,
        *,
        most: tuple[int, int],
        reader: MakeReaders,
        clock: Clock,
        run_long: Offload,
    ) -> None:
        self._provide = provide
        self._reader = reader
        self._builds = ClientWork[_Build](
            ("builds", "environment"),
            most=most,
            abandoned_after_s=_ABANDONED_AFTER_S,
            clock=clock,
            run_long=run_long,
        )

    async def __aenter__(self) -> Self:
        """Begin."""
        await self._builds.__aenter__()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """End all builds."""
        await self._builds.__aexit__(None, None, None)

    def start(
        self,
        owner: str,
        build_id: str,
        files: pb.EnvironmentFiles,
        logins: Mapping[str, Login] = MappingProxyType({}),
    ) -> pb.EnvironmentBuild:
        """Start one, with its owner's registry logins; return its status."""
        if refusal := self._builds.refusal(owner):
            return _failed(refusal)
        build = _Build(build_id=build_id, asked_at=self._builds.now())
        self._builds.start(
            owner,
            build_id,
            build,
            partial(self._made, build, owner, files, logins),
            failed=_failed,
        )
        return build.told(0)

    def cancel(self, owner: str, build_id: str) -> None:
        """Cancel one, if it runs."""
        build = self._builds.find(owner, build_id)
        if build is not None:
            build.cancelled.set()

    def look(self, owner: str, build_id: str, known: int) -> pb.EnvironmentBuild:
        """The status of one, with its log from byte `known` on."""
        build = self._builds.find(owner, build_id)
        if build is None:
            return pb.EnvironmentBuild(state=pb.ENVIRONMENT_BUILD_STATE_UNKNOWN)
        return build.told(known)

    def _made(
        self,
        build: _Build,
        owner: str,
        files: pb.EnvironmentFiles,
        logins: Mapping[str, Login],
    ) -> pb.EnvironmentBuild:
        """Read the files as those of a session, and build. Blocking."""
        asked = Asked(
            owner=owner,
            say=build.say,
            cancelled=build.cancelled,
            waits=build.wait,
            built_after=build.began_at if files.refresh else 0.0,
            built=build.note_built,
            logins=logins,
        )
        if files.dockerfile:
            return _done(build, owner, self._provide.from_dockerfile(files, asked))
        readers = self._reader(owner=owner, waits=build.wait, cancelled=build.cancelled)

        def text(name: str) -> str | None:
            content = files.texts.get(name)
            return None if content is None else as_text(name, content.encode())

        wanted = read_requirements(
            text,
            entry=files.entry,
            files=sorted(filter(is_other_list, files.texts)),
            may_build=self._provide.in_containers,
            has_image=self._provide.in_containers,
            readers=readers,
        )
        return _done(build, owner, self._provide(wanted, asked))


def _done(build: _Build, owner: str, made: Built) -> pb.EnvironmentBuild:
    log.info("environment.built_ahead", key=made.key, owner=owner)
    return pb.EnvironmentBuild(
        state=pb.ENVIRONMENT_BUILD_STATE_DONE,
        key=made.key,
        was_there=0 < build.built_at < build.began_at,
        lock=made.lock,
    )


def _failed(words: str) -> pb.EnvironmentBuild:
    return pb.EnvironmentBuild(state=pb.ENVIRONMENT_BUILD_STATE_FAILED, words=words)
