"""Derived images: requirements and system packages on a base, and images of Dockerfiles.

```
nsml-env:<key>          an image on the engine, once for all its agents
<folder>/<key>.build/   input of the running build, with the configuration of pip and apt
```

Packages may run code during a build: in a container without privileges, with nothing of the machine but the
configuration of pip and apt, without which nothing can be fetched.
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
from nodeagent.environments.default_images import DefaultImage
from nodeagent.environments.dockerfile_builds import Context, DockerfileBuild, build_key
from nodeagent.environments.errors import DefaultsUnfit, EnvironmentFailed
from nodeagent.environments.generations import SUFFIX, last_of, next_of
from nodeagent.environments.hostconfig import apt_configuration
from nodeagent.environments.image_records import DERIVED, tag_of
from nodeagent.environments.recipe import PLACE, LockTaken, LockUse, recipe_key, write_recipe
from nsml.packages.locks import LockRefused, locked
from nsml.packages.requirements import Requirements

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
    from nodeagent.environments.image_rights import ImageRights
    from nodeagent.environments.image_settings import ImageRequest, ImageSettings

_KEY = re.compile(rf"[0-9a-f]{{32}}{SUFFIX}(?:-[a-z0-9]+)?")
"""Key of a derived image; followed by an agent's mark while its name is temporary."""


class ImageBuilds:
    """The builds of one agent; `mark` identifies it on the engine. Blocking; thread-safe.

    `base` returns the image that a user names in a Dockerfile, `look` raises if the request is cancelled, or the
    disk is too full.
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
        rights: ImageRights,
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
        self._rights = rights
        self._base = base
        self._look = look

    def tidy(self) -> None:
        """Remove containers and folders left by builds of a killed agent."""
        for name in builds_named(self._engine, self._container("")):
            key = name.removeprefix(self._container(""))
            with self._builds.unused(key) as is_free:
                if is_free:
                    remove_container(self._engine, name)
                    shutil.rmtree(self._folder / f"{key}.build", ignore_errors=True)

    def all_keys(self) -> list[str]:
        """Keys of all derived images on the engine, also of other agents. Raises EngineError."""
        return list(filter(_KEY.fullmatch, tags_of(self._engine, DERIVED)))

    def default_of(self, base: StoredImage, request: ImageRequest) -> DefaultImage | None:
        """The image with the default packages; None: building it failed, or it is missing and the request has a lock."""
        if request.lock and find_image(self._engine, tag_of(self._default_key(base, 0.0))) is None:
            return None
        try:
            # no user may have it rebuilt for all others
            return self.default(base, request, built_after=0.0)
        except EnvironmentFailed as error:
            request.say(f"nsml: note: without the node's default packages: {error}\n".encode())
            return None

    def default(
        self, base: StoredImage, request: ImageRequest, *, built_after: float
    ) -> DefaultImage:
        """The image with the default packages: cached or built."""
        wanted = Requirements(lines=self._settings.default_packages)
        apt = apt_configuration()

        def build(key: str, request: ImageRequest, turn: Turn) -> None:
            self._build(key, base, wanted, apt, request, turn=turn)

        key = self._default_key(base, built_after)
        image = self._provided(key, replace(request, built=lambda _: None), build)
        lock = self._records.packages_of(key, image)
        return DefaultImage(image=image, lines=wanted.lines, lock=lock)

    def _default_key(self, base: StoredImage, built_after: float) -> str:
        key = recipe_key(
            base_id=base.id,
            requirements=Requirements(lines=self._settings.default_packages),
            environ=os.environ,
            apt=apt_configuration(),
            owner="",
        )
        return self._current(key, built_after)

    def derived(
        self,
        base: StoredImage,
        requirements: Requirements,
        request: ImageRequest,
        default: DefaultImage | None,
        site: Sequence[str],
    ) -> str:
        """The id of the image with `requirements` on `base`; see Images.provide.

        On `default`, which is derived from that, if they are compatible with its packages. `site`: lines with sources
        for the packages of a lock, in addition to those of the requirements.
        """
        apt = apt_configuration()
        # also if the site names them too
        source = request.owner if requirements.has_own_sources else ""
        owner = request.owner if self._rights.has_any(base.id) else source

        def named(
            upon: StoredImage,
            wanted: Requirements,
            built_after: float,
            use: LockUse | None = None,
        ) -> str:
            key = recipe_key(
                base_id=upon.id,
                requirements=wanted,
                environ=os.environ,
                apt=apt,
                owner=source,
                lock=use,
            )
            return self._current(key, built_after)

        def made(
            key: str,
            upon: StoredImage,
            wanted: Requirements,
            *,
            use: LockUse | None = None,
            default: DefaultImage | None = None,
        ) -> tuple[str, str]:
            def make(key: str, request: ImageRequest, turn: Turn) -> None:
                self._build(
                    key,
                    upon,
                    wanted,
                    apt,
                    request,
                    turn=turn,
                    use=use,
                    default=default,
                    owner=owner,
                )

            image = self._provided(key, request, make)
            return image.id, self._records.packages_of(key, image)

        lock, upon = request.lock, base if default is None else default.image
        if not lock:
            key = named(upon, requirements, request.built_after)
            image_id, installed = made(key, base, requirements, default=default)
            request.installed(installed)
            return image_id
        found = named(upon, requirements, 0.0)
        if self._records.packages_of(found, find_image(self._engine, tag_of(found))) == lock:
            image_id, installed = made(found, base, requirements, default=default)
            if installed == lock:  # it was not removed meanwhile
                request.installed(lock)
                return image_id
        whole = _locked(requirements, lock, site)
        use = None
        if whole is not requirements:
            use = LockUse(requirements.lines, request.keeps_whole_lock)
        if default is None or not default.takes(lock):
            upon = base
        key = named(upon, whole, request.built_after, use)
        image_id, installed = made(key, upon, whole, use=use)
        # unknown for an image built by another agent: which packages of the lock it has
        is_known = use is not None and use.keeps_all
        request.installed(lock if is_known else installed)
        return image_id

    def from_dockerfile(self, recipe: Recipe, request: ImageRequest) -> StoredImage:
        """Build on images that a session of the same user could name, each checked as for such a session."""
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
        """The image of a key: cached, or built in its turn, once for all waiting callers."""
        tag = tag_of(key)
        found: list[StoredImage] = []

        def is_there() -> bool:
            self._records.note_use(key)  # before the lookup: removal checks the last use
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
        """The generation to use: the last one, or the next if that is too old or missing."""
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
        turn: Turn,
        use: LockUse | None = None,
        default: DefaultImage | None = None,
        owner: str = "",
    ) -> None:
        """Build on `default` if the requirements are compatible, else on `base`; `owner`: the user's id, "": everybody's."""
        run = self._run(key, request, turn)
        install = partial(self._install, key, apt=apt, run=run, owner=owner)
        try:
            if default is not None:
                try:
                    return install(default.image, requirements, use=use, default=default)
                except DefaultsUnfit as error:
                    request.say(f"note: without the node's default packages: {error}\n".encode())
            install(base, requirements, use=use, default=None)
        finally:
            shutil.rmtree(self._folder / f"{key}.build", ignore_errors=True)

    def _install(
        self,
        key: str,
        base: StoredImage,
        requirements: Requirements,
        *,
        apt: AptConfiguration,
        run: BuildRun,
        owner: str,
        use: LockUse | None,
        default: DefaultImage | None,
    ) -> None:
        """Build on `base`, which has the packages of `default`. Raises DefaultsUnfit if these conflict with others."""
        heard: list[LockTaken] = []
        named = requirements.count + len(requirements.packages)

        def hear(say: Say) -> LockTaken:
            heard[:] = [LockTaken(say)]
            return heard[0]

        def describe(image: StoredImage) -> None:
            lock = heard[0].lock
            if default is not None and not requirements.lines:
                lock = default.lock
            about = {
                "owner": owner,
                "base_bytes": base.size_bytes,
                "package_count": lock.count("\n") or named,
            }
            self._records.remember_packages(key, image, lock, about)

        container = self._build_container(
            key,
            run.turn,
            argv=("/bin/sh", f"{PLACE}/build.sh"),
            mounts=write_recipe(
                self._folder / f"{key}.build",
                requirements,
                os.environ,
                apt,
                lock=use,
                default=() if default is None else default.left_beside(requirements),
                default_lock="" if default is None else default.lock,
            ),
            capabilities=FOR_APT if requirements.packages else FOR_PIP,
        )
        run.to_end(
            container,
            base,
            keep=lambda made: self._keep(made, base, key, run.written, describe),
            hear=hear,
        )

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
        """The image of a step of a build: cached under its own key, or built."""
        key = self._current(key, request.built_after)
        request.use(key)
        self._records.note_use(key)
        found = find_image(self._engine, tag_of(key))
        if found is not None:
            if step.shown:
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
        """Commit a build's container as an image, unless another agent did meanwhile.

        It has a temporary name at first: an image whose name is given to another would stay forever. `describe` gets
        it before others can use it.
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
    """Prefix of the names of an agent's build containers; those of an agent that is gone are removed."""
    return f"nsml-build-{mark}-"


def _locked(requirements: Requirements, lock: str, site: Sequence[str]) -> Requirements:
    """Raises EnvironmentFailed if the lock does not fit the requirements."""
    try:
        return locked(requirements, lock, site)
    except LockRefused as error:
        raise EnvironmentFailed(f"the lock of its packages cannot be used: {error}") from None
