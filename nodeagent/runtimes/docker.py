"""The Docker runtime: programs in containers of an engine on this machine."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from nodeagent.engine.client import EngineError, EngineRefused, EngineUnreachable, NotThere
from nodeagent.engine.containers import containers_of, end_container, remove_container
from nodeagent.engine.images import stored_image
from nodeagent.folders import ReplicaId
from nodeagent.runtimes.account_names import write_names
from nodeagent.runtimes.container import (
    OWN_PROCESSES,
    ContainerPlace,
    container_config,
    container_name,
    late_variables,
    session_volumes,
)
from nodeagent.runtimes.interface import EngineGone, ImageGone, Isolation, NodeRefused, StartRefused
from nodeagent.runtimes.launch import limits_of
from nodeagent.runtimes.records import read_claim
from nodeagent.runtimes.shims import ShimDriver, is_alive, refuse_unsound

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import StoredImage
    from nodeagent.folders import ReplicaFolder, ReplicaFolders
    from nodeagent.runtimes.interface import ReplicaSpec
    from nodeagent.runtimes.launch import Machine
    from nodeagent.runtimes.launcher import Launcher
    from nodeagent.shim.cgroups import Group
    from nsml.common.clock import Clock, Offload

BEGINS_WITHIN_S = 20.0
"""Time for the shell of a container to read its first commands, in seconds."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """The engine for containers, its API's version, and their shared configuration.

    `default_image` is for sessions that name none. `root` is the engine's folder of images.
    `own_network` is that of sessions and builds if the site names none; `network_reason` explains why it
    does not isolate them.
    """

    engine: Engine
    api: str
    container: ContainerPlace
    default_image: str | None
    root: Path
    own_network: str = "none"
    network_reason: str = ""


class DockerDriver(ShimDriver):
    """`RuntimeDriver` over shims that start containers.

    Replicas started by an earlier agent in another way are adopted, awaited and stopped like its own.
    """

    def __init__(
        self,
        folders: ReplicaFolders,
        *,
        machine: Machine,
        place: EnginePlace,
        launcher: Launcher,
        clock: Clock,
        run: Offload,
        run_long: Offload,
    ) -> None:
        super().__init__(
            folders,
            machine=machine,
            launcher=launcher,
            clock=clock,
            run=run,
            run_long=run_long,
        )
        self._place = place
        self._images: dict[ReplicaId, StoredImage] = {}
        self._sweeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Also remove this agent's orphaned containers."""
        await super().__aenter__()
        if left := await self._run_long(self._sweep):
            # A busy engine sometimes refuses. Orphans must not run on until the next start.
            log.warning("containers.not_swept", left=left)
            self._sweeping = asyncio.create_task(
                self._insist("containers.not_swept", self._sweep), name="containers.sweep"
            )
        return self

    async def __aexit__(self, *exception: object) -> None:
        """See `ShimDriver`."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await super().__aexit__(*exception)

    async def _refuse_unless_possible(self, spec: ReplicaSpec) -> None:
        if spec.isolation is not Isolation.CONTAINER:
            raise NodeRefused(f"isolation {spec.isolation.value!r} is not available on this node")
        refuse_unsound(spec)
        if not self._image(spec):
            raise StartRefused("the session names no image, and this node has no default_image")
        # cached for `_content`, called next: a busy engine is slow
        self._images[spec.replica_id] = await self._run_long(lambda: self._stored_image(spec))

    def _content(self, spec: ReplicaSpec, folder: ReplicaFolder) -> Mapping[str, Any]:
        image = self._images.pop(spec.replica_id, None) or self._stored_image(spec)
        try:
            return container_content(spec, folder, self._machine, self._place, image)
        except EngineRefused as error:
            raise StartRefused(
                f"image {self._shown_image(spec)} cannot be used: {error}"
            ) from error

    async def _clear(self, replica_id: ReplicaId, folder: ReplicaFolder) -> None:
        await super()._clear(replica_id, folder)
        claim = read_claim(folder)
        if claim is not None and claim.boot_id != self._boot_id:
            return  # its container has not run since the machine restarted
        name = container_name(replica_id, self._place.container.mark)
        engine = self._place.engine
        await self._insist(
            "container.not_ended", lambda: _unended(engine, name), replica=str(replica_id)
        )

    def _is_enclosed(self, group: Group | None) -> bool:  # noqa: ARG002 - all of them are
        """True: a container's processes end with its first."""
        return True

    async def remove(self, replica_id: ReplicaId) -> None:
        """See `RuntimeDriver.remove`."""
        await super().remove(replica_id)
        await self._remove_container(replica_id)

    async def _remove_container(self, replica_id: ReplicaId) -> None:
        """Delete a container without processes; `_sweep` handles failures."""
        name = container_name(replica_id, self._place.container.mark)
        try:
            await self._run_long(lambda: remove_container(self._place.engine, name))
        except EngineError as error:
            log.warning("container.not_removed", container=name, error=str(error))

    def _image(self, spec: ReplicaSpec) -> str:
        return spec.image or self._place.default_image or ""

    def _shown_image(self, spec: ReplicaSpec) -> str:
        return spec.image_name or self._image(spec)

    def _stored_image(self, spec: ReplicaSpec) -> StoredImage:
        try:
            return stored_image(self._place.engine, self._image(spec))
        except NotThere as error:
            raise ImageGone(f"image {self._shown_image(spec)} is not on this node") from error
        except EngineUnreachable as error:
            raise EngineGone(str(error)) from error
        except EngineError as error:
            raise StartRefused(str(error)) from error

    def _sweep(self) -> list[str]:
        """Remove orphaned containers; return those that failed, and why."""
        left = []
        try:
            every = containers_of(self._place.engine, self._place.container.mark)
        except EngineError as error:
            return [str(error)]
        for found in every:
            replica_id = ReplicaId.parse(found.replica)
            if replica_id is not None and self._is_wanted(self._folders.of(replica_id)):
                continue
            try:
                remove_container(self._place.engine, found.name)
            except EngineError as error:
                left.append(f"{found.name}: {error}")
            else:
                log.info("container.swept", container=found.name)
        return left

    def _is_wanted(self, folder: ReplicaFolder) -> bool:
        """Whether its shim lives, or its end has yet to be settled."""
        claim = read_claim(folder)
        if claim is None:
            return False
        return is_alive(claim, self._machine.boot_id) or not folder.exit.exists()


def _unended(engine: Engine, name: str) -> list[str]:
    """End the container; return the failure, if any."""
    try:
        end_container(engine, name)
    except EngineError as error:
        return [f"{name}: {error}"]
    return []


def container_content(
    spec: ReplicaSpec,
    folder: ReplicaFolder,
    machine: Machine,
    place: EnginePlace,
    image: StoredImage,
) -> dict[str, Any]:
    """Return the content of `spec.json` for a container; also creates the folders of its image's volumes.

    Raises EngineRefused for an image that can run no program.
    """
    config = container_config(spec, folder, place.container, image=image)
    uid, gid = map(int, config["User"].split(":"))
    write_names(folder, spec.names, uid, gid)
    owner = None if spec.uid is None or spec.gid is None else (spec.uid, spec.gid)
    if volumes := session_volumes(spec, folder, image):
        folder.create_volumes(len(volumes), owner)
    given, lost = late_variables(spec, folder, image)
    return {
        **limits_of(spec, machine),
        "container": {
            "socket": os.fspath(place.engine.socket),
            "api": place.api,
            "name": container_name(spec.replica_id, place.container.mark),
            "image": spec.image_name or spec.image or place.default_image,
            "outlives_engine": place.engine.keeps_containers is not False,
            "config": config,
            "own_processes": OWN_PROCESSES,
            "begins_within_s": BEGINS_WITHIN_S,
            "environment": given,
            "unset": lost,
        },
    }
