"""Derived images: requirements and system packages upon a base, and what Dockerfiles make.

```
nsml-env:<key>          an image on the engine, once for all its agents
<folder>/<key>.build/   what the build at hand reads, its configuration of pip and apt too
```

Packages may run code while they are built: in a container without privileges, with nothing of the machine but the
configuration of pip and apt that it needs to fetch anything at all.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.engine.containers import remove_container
from nodeagent.engine.images import (
    FOR_APT,
    FOR_PIP,
    BuildContainer,
    builds_named,
    commit_build,
    find_image,
    name_image,
    remove_image,
    stored_image,
    tags_of,
)
from nodeagent.environments.build_runs import BuildRun
from nodeagent.environments.dockerfile_builds import Context, DockerfileBuild, build_key
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.generations import SUFFIX, last_of, next_of
from nodeagent.environments.hostconfig import apt_configuration
from nodeagent.environments.image_records import DERIVED, tag_of
from nodeagent.environments.recipe import PLACE, LockTaken, LockUse, recipe_key, write_recipe
from nsml.packages.locks import LockRefused, locked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import Mounted, StoredImage
    from nodeagent.environments.build_queue import BuildQueue, Turn
    from nodeagent.environments.build_runs import Written
    from nodeagent.environments.builds import Builds, Say
    from nodeagent.environments.dockerfile_builds import Layers, Recipe, StepRun
    from nodeagent.environments.hostconfig import AptConfiguration
    from nodeagent.environments.image_records import ImageRecords
    from nodeagent.environments.image_settings import ImageRequest, ImageSettings
    from nsml.packages.requirements import Requirements

_KEY = re.compile(rf"[0-9a-f]{{32}}{SUFFIX}(?:-[a-z0-9]+)?")
"""Of a derived image; with a mark behind it of one that an agent was about to give its name."""


class ImageBuilds:
    """The builds of one agent; `mark` is its own on the engine. Blocking; safe from many threads.

    `base` gives the image that a user names in a Dockerfile, `look` raises when what is asked for is not wanted any
    more, or has no room.
    """

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        settings: ImageSettings,
        *,
        mark: str,
        builds: Builds,
        queue: BuildQueue,
        records: ImageRecords,
        base: Callable[[str, ImageRequest], StoredImage],
        look: Callable[[ImageRequest], object],
    ) -> None:
        self._folder = folder
        self._engine = engine
        self._settings = settings
        self._mark = mark
        self._builds = builds
        self._queue = queue
        self._records = records
        self._base = base
        self._look = look

    def tidy(self) -> None:
        """Remove what builds of an agent that was killed left: containers, folders, images."""
        for name in builds_named(self._engine, self._container("")):
            key = name.removeprefix(self._container(""))
            with self._builds.unused(key) as is_free:
                if is_free:
                    remove_container(self._engine, name)
                    shutil.rmtree(self._folder / f"{key}.build", ignore_errors=True)

    def all_keys(self) -> list[str]:
        """Of all derived images on the engine, also those of other agents. Raises EngineError."""
        return list(filter(_KEY.fullmatch, tags_of(self._engine, DERIVED)))

    def derived(self, base: StoredImage, requirements: Requirements, request: ImageRequest) -> str:
        """The id of the image with `requirements` upon `base`; see Images.provide."""
        apt = apt_configuration()

        def named(wanted: Requirements, built_after: float, use: LockUse | None = None) -> str:
            key = recipe_key(
                base_id=base.id,
                requirements=wanted,
                environ=os.environ,
                apt=apt,
                owner=request.owner,
                lock=use,
            )
            return self._current(key, built_after)

        def made(key: str, wanted: Requirements, use: LockUse | None = None) -> tuple[str, str]:
            def make(key: str, request: ImageRequest, turn: Turn) -> None:
                self._build(key, base, wanted, apt, request, use=use, turn=turn)

            image = self._provided(key, request, make)
            return image.id, self._records.packages_of(key, image)

        lock = request.lock
        if not lock:
            key = named(requirements, request.built_after)
            image_id, installed = made(key, requirements)
            request.installed(installed)
            return image_id
        found = named(requirements, 0.0)
        if self._records.packages_of(found, find_image(self._engine, tag_of(found))) == lock:
            image_id, installed = made(found, requirements)
            if installed == lock:  # it was not removed meanwhile
                request.installed(lock)
                return image_id
        whole = _locked(requirements, lock)
        use = None
        if whole is not requirements:
            use = LockUse(requirements.lines, request.keeps_whole_lock)
        image_id, installed = made(named(whole, request.built_after, use), whole, use)
        # of an image that another agent has made it is not known which of its packages it kept
        is_known = use is not None and use.keeps_all
        request.installed(lock if is_known else installed)
        return image_id

    def from_dockerfile(self, recipe: Recipe, request: ImageRequest) -> StoredImage:
        """Build upon images that a session of the same user could name, each looked at as for such a session."""
        dockerfile, context = recipe.read(), Context(recipe, request.cancelled)
        for note in dockerfile.notes:
            request.say(f"note: {note}\n".encode())
        bases = {name: self._base(name, request) for name in dockerfile.images}

        def made(key: str, request: ImageRequest, layers: Layers) -> DockerfileBuild:
            return DockerfileBuild(
                recipe,
                dockerfile,
                context,
                bases,
                layers,
                engine=self._engine,
                owner=request.owner,
                name=f"{self._container(key)}-from",
                mark=self._mark,
                say=request.say,
            )

        def build(key: str, request: ImageRequest, turn: Turn) -> None:
            run = self._run(key, request, turn)
            layers = _StepLayers(run, partial(self._step, request, run))
            image = made(key, request, layers).run()
            name_image(self._engine, image.id, tag_of(key))

        key = build_key(recipe, bases, context, owner=request.owner)
        return self._provided(self._current(key, request.built_after), request, build)

    def _provided(
        self, key: str, request: ImageRequest, make: Callable[[str, ImageRequest, Turn], None]
    ) -> StoredImage:
        """The image of a key: found, or made when it is its turn, once for all who wait."""
        tag = tag_of(key)
        found: list[StoredImage] = []

        def is_there() -> bool:
            self._records.note_use(key)  # before we look: whoever would remove it looks at that
            image = find_image(self._engine, tag)
            found[:] = [] if image is None else [image]
            return image is not None

        def build(tell: Say) -> None:
            make(key, replace(request, say=tell), ticket.granted())
            if not is_there():
                raise EnvironmentFailed("the image was built, but does not exist")

        settings = self._settings
        with self._queue.ticket(
            request.owner,
            memory_bytes=settings.memory_bytes,
            disk_bytes=settings.disk_bytes,
            waits=request.waits,
        ) as ticket:
            self._builds.provide(
                key,
                is_there=is_there,
                build=build,
                say=request.say,
                use=lambda: request.use(key),
                cancelled=request.cancelled,
                ticket=ticket,
            )
        if not self._records.has(key):
            self._records.remember(key, tag)
        self._records.touch(key)
        request.built(found[0].created_at)
        return found[0]

    def _current(self, key: str, built_after: float) -> str:
        """The generation to use: the last one, or the next where that is too old, or there is none."""
        last = last_of(key, tags_of(self._engine, DERIVED))
        image = None if last is None else find_image(self._engine, tag_of(last))
        is_good = image is not None and image.created_at >= built_after
        return last if last is not None and is_good else next_of(key, last)

    def _build(
        self,
        key: str,
        base: StoredImage,
        requirements: Requirements,
        apt: AptConfiguration,
        request: ImageRequest,
        *,
        use: LockUse | None,
        turn: Turn,
    ) -> None:
        folder = self._folder / f"{key}.build"
        run = self._run(key, request, turn)
        heard: list[LockTaken] = []

        def hear(say: Say) -> LockTaken:
            heard[:] = [LockTaken(say)]
            return heard[0]

        def describe(image: StoredImage) -> None:
            self._records.remember_packages(key, image, heard[0].lock)

        def keep(made: str) -> None:
            self._keep(made, base, key, run.written, describe)

        try:
            container = self._build_container(
                key,
                turn,
                argv=("/bin/sh", f"{PLACE}/build.sh"),
                mounts=write_recipe(folder, requirements, os.environ, apt, lock=use),
                capabilities=FOR_APT if requirements.packages else FOR_PIP,
            )
            run.to_end(container, base, keep=keep, hear=hear)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, key: str, request: ImageRequest, turn: Turn) -> BuildRun:
        return BuildRun(
            self._engine,
            self._container(key),
            key,
            turn,
            settings=self._settings,
            say=request.say,
            look=partial(self._look, request),
        )

    def _step(
        self, request: ImageRequest, run: BuildRun, key: str, base: StoredImage, step: StepRun
    ) -> StoredImage:
        """The image of a step of a build: found under its own key, or made."""
        key = self._current(key, request.built_after)
        request.use(key)
        self._records.note_use(key)
        found = find_image(self._engine, tag_of(key))
        if found is not None:
            request.say(b"  made before\n")
        else:
            container = self._build_container(
                run.key,
                run.turn,
                argv=step.argv,
                capabilities=FOR_APT,
                user=step.user,
                environment=step.environment,
            )
            run.to_end(
                container,
                base,
                keep=lambda made: self._keep(made, base, key, run.written),
                fill=step.fill,
            )
            run.written.next_step()
            found = stored_image(self._engine, tag_of(key))
        if not self._records.has(key):
            self._records.remember(key, tag_of(key))
        self._records.touch(key)
        return found

    def _build_container(
        self,
        key: str,
        turn: Turn,
        *,
        argv: Sequence[str],
        capabilities: Sequence[str],
        mounts: Sequence[Mounted] = (),
        user: str = "0:0",
        environment: Mapping[str, str] | None = None,
    ) -> BuildContainer:
        """A container of the build `key`, within the site's limits and its turn's."""
        return BuildContainer(
            name=self._container(key),
            mark=self._mark,
            argv=argv,
            mounts=mounts,
            network=self._settings.network,
            capabilities=capabilities,
            memory_bytes=turn.memory_bytes,
            cpus=min(self._settings.cpus, os.cpu_count() or 1),
            user=user,
            environment=environment or {},
        )

    def _keep(
        self,
        made: str,
        base: StoredImage,
        key: str,
        written: Written,
        describe: Callable[[StoredImage], object] = lambda _: None,
    ) -> None:
        """Make the image of what a build left, unless another agent did meanwhile.

        Under a name of our own at first: an image whose name is given to another would stay for good. `describe` gets
        it before it is there for others.
        """
        written.check()
        tag, ours = tag_of(key), tag_of(f"{key}-{self._mark}")
        commit_build(self._engine, made, base, ours)
        if find_image(self._engine, tag) is None:
            describe(stored_image(self._engine, ours))
            name_image(self._engine, ours, tag)
        remove_image(self._engine, ours)

    def _container(self, key: str) -> str:
        return f"{build_prefix(self._mark)}{key}"


class _StepLayers:
    """The steps of a Dockerfile's build; see Layers."""

    def __init__(
        self, run: BuildRun, step: Callable[[str, StoredImage, StepRun], StoredImage]
    ) -> None:
        self.step, self.put, self.look = step, run.put, run.look


def build_prefix(mark: str) -> str:
    """How the names of containers begin that an agent makes for images; those of one that is gone are removed."""
    return f"nsml-build-{mark}-"


def _locked(requirements: Requirements, lock: str) -> Requirements:
    """Raises EnvironmentFailed where it cannot be the lock of these requirements."""
    try:
        return locked(requirements, lock)
    except LockRefused as error:
        raise EnvironmentFailed(f"the lock of its packages cannot be used: {error}") from None
