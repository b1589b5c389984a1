"""Images of sessions on a node with containers: resolved, pulled, and derived.

The base is named by the session, else by its code (`#nsml:`), else it is the site's default; retired
names map to others. Requirements and system packages make a derived image `nsml-env:<key>` of it,
once for all agents of the engine; on the site's default they are added to the site's default packages, a
derived image themselves (`default_images.py`). The engine records when each was last used, and any agent removes
unused ones, also those of an agent that is gone.

Files are below `<agent data>/images/`, as described in `image_records.py`, `image_rights.py`, `image_pulls.py`,
`image_builds.py` and `builds.py`.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from nodeagent.engine.client import EngineError, EngineUnreachable
from nodeagent.engine.images import find_image, image_used_at, listed_images
from nodeagent.engine.private_images import PRIVATE, is_marked_private, remove_private
from nodeagent.environments.allowed import AllowedImages
from nodeagent.environments.build_queue import BuildQueue, QueueLimits
from nodeagent.environments.builds import Builds
from nodeagent.environments.default_images import RETIRED, means_default
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.environments.image_builds import ImageBuilds
from nodeagent.environments.image_pulls import ImagePulls, pinned_name
from nodeagent.environments.image_records import DERIVED, ImageRecords, tag_of
from nodeagent.environments.image_rights import ImageRights
from nodeagent.environments.image_settings import ImageRequest
from nodeagent.safe_paths import remove_tree
from nsml.spec.images import full_name, is_reference, parts_of, whole_reference

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import ListedImage, StoredImage
    from nodeagent.engine.pulls import Login
    from nodeagent.environments.build_queue import Waits
    from nodeagent.environments.builds import Say
    from nodeagent.environments.dockerfile_builds import Recipe
    from nodeagent.environments.image_settings import ImageSettings
    from nsml.packages.requirements import Requirements

_CONTEXT = ".context"
_OURS = frozenset({DERIVED, PRIVATE})
"""Repositories reserved for agents; no session may name them."""


class Images:
    """The images of one agent; `mark` identifies it on the engine. Blocking; thread-safe.

    Builds wait for their turn in `queue`.

    `is_full`: the disk has too little room for builds and pulls, which then end, long before sessions
    have to.
    """

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        settings: ImageSettings,
        *,
        mark: str,
        is_full: Callable[[], bool] = lambda: False,
        queue: BuildQueue | None = None,
    ) -> None:
        self.folder = folder
        self._engine = engine
        self._settings = settings
        self._mark = mark
        self._is_full = is_full
        self._allowed = AllowedImages(
            settings.allowed, (settings.default, *settings.aliases.values())
        )
        self._builds = Builds(folder)
        self._records = ImageRecords(folder, engine)
        self._rights = ImageRights(folder)
        self._pulls = ImagePulls(
            folder,
            engine,
            settings,
            mark=mark,
            allowed=self._allowed,
            builds=self._builds,
            records=self._records,
            rights=self._rights,
            look=self._look,
        )
        self._image_builds = ImageBuilds(
            folder,
            engine,
            settings,
            mark=mark,
            builds=self._builds,
            queue=queue or BuildQueue(QueueLimits(), lambda: 1 << 62),
            records=self._records,
            rights=self._rights,
            base=lambda named, request: self._pulls.provide(self.resolve(named, None)[0], request),
            look=self._look,
        )

    def tidy(self) -> None:
        """Remove containers, folders and images left by builds and pulls of a killed agent."""
        self._pulls.tidy()
        self._image_builds.tidy()
        for folder in self.folder.glob(f"*{_CONTEXT}"):
            remove_tree(folder)

    @contextmanager
    def context_folder(self) -> Iterator[Path]:
        """A temporary folder for the files of a Dockerfile."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(suffix=_CONTEXT, dir=self.folder))
        try:
            yield folder
        finally:
            remove_tree(folder)

    def resolve(self, asked: str, wanted: str | None) -> tuple[str, str]:
        """The base image's reference, and a note if another image was named, else "".

        `asked` is named by the session, `wanted` by its code. Raises EnvironmentFailed.
        """
        named = asked or wanted or self._settings.default
        if not named:
            raise EnvironmentFailed(
                "no image is named, and this node has no default image: name one"
                " (nsml run --image NAME), or the administrator sets default_image"
            )
        if not is_reference(named) or full_name(named).rpartition("/")[2] in _OURS:
            raise EnvironmentFailed(f"{named[:80]!r} is not an image that a session may name")
        whole = whole_reference(named)
        instead = {whole_reference(old): new for old, new in self._settings.aliases.items()}.get(
            whole
        )
        if instead is None and parts_of(whole)[0] == RETIRED and self._settings.default:
            instead = self._settings.default
        if instead is None:
            return whole, ""
        return whole_reference(instead), f"image {named} is retired: {instead} takes its place"

    def has_default_packages(self, asked: str, wanted: str | None) -> bool:
        """Whether a session has the site's default packages: it uses the default image. Arguments and errors as `resolve`."""
        reference, settings = self.resolve(asked, wanted)[0], self._settings
        return bool(settings.default_packages) and means_default(
            asked or wanted or "", reference, settings.default
        )

    def build_default(self, say: Say, cancelled: threading.Event, *, built_after: float) -> None:
        """Build the image with the default packages before anybody waits for it. Raises as `provide`."""
        request = ImageRequest(
            owner="", say=say, cancelled=cancelled, waits=lambda _: None, use=lambda _: None
        )
        with _engine_errors():
            base = self._pulls.provide(self.resolve("", None)[0], request)
            self._image_builds.default(base, request, built_after=built_after)

    def provide(
        self,
        reference: str,
        requirements: Requirements,
        say: Say,
        cancelled: threading.Event,
        *,
        owner: str,
        waits: Waits = lambda _: None,
        use: Callable[[str], object],
        pinned: Callable[[str], object] = lambda _: None,
        built_after: float = 0.0,
        built: Callable[[float], object] = lambda _: None,
        lock: str = "",
        keeps_whole_lock: bool = False,
        installed: Callable[[str], object] = lambda _: None,
        logins: Mapping[str, Login] = MappingProxyType({}),
        has_default_packages: bool = False,
    ) -> str:
        """The id of the image with `requirements` on `reference`: cached, pulled or built.

        `has_default_packages`: with the default packages, unless these cannot be installed or conflict with the requirements.

        `owner` is the requesting user's id, `logins` this user's registry logins. `say` gets output for the session's log, `waits` why a build waits, `use` the key of each image before anybody
        could remove it, `pinned` the base image by its digest. One that this agent pulled before `built_after` is pulled again, and one built before is rebuilt, beside the old one; `built` gets the build time: Unix
        seconds. With a `lock` it has the lock's packages that `requirements` need on the image, and with `keeps_whole_lock` all; `installed` gets the lock of its packages, "" for none. Raises EnvironmentFailed, EnvironmentCancelled soon after `cancelled` is set,
        EngineUnreachable if the engine does not answer (or restarted during a build, which can be repeated),
        and OSError where this machine lacks something.
        """
        request = ImageRequest(
            owner=owner,
            waits=waits,
            say=say,
            cancelled=cancelled,
            use=use,
            built_after=built_after,
            built=built,
            lock=lock,
            keeps_whole_lock=keeps_whole_lock,
            installed=installed,
            logins=logins,
        )
        with _engine_errors():
            base = self._pulls.provide(reference, request)
            pinned(pinned_name(reference, base))
            # code with hashes gets exactly what it names
            has_default_packages = has_default_packages and not requirements.are_hashed
            default = self._image_builds.default_of(base, request) if has_default_packages else None
            if not requirements.lines and not requirements.packages:
                if default is not None and lock in {"", default.lock}:
                    built(default.image.created_at)
                    installed(default.lock)
                    return default.image.id
                if not lock:
                    # not pulled by this agent: it was here before
                    key = self._pulls.key_of(reference)
                    built(float(self._records.read(key).get("pulled_at", 1)))
                    return base.id
            site = self._settings.default_packages if has_default_packages else ()
            return self._image_builds.derived(base, requirements, request, default, site)

    def provide_built(
        self,
        recipe: Recipe,
        say: Say,
        cancelled: threading.Event,
        *,
        owner: str,
        waits: Waits = lambda _: None,
        use: Callable[[str], object],
        built_after: float = 0.0,
        built: Callable[[float], object] = lambda _: None,
        lock: str = "",
        logins: Mapping[str, Login] = MappingProxyType({}),
    ) -> str:
        """The id of the image of a Dockerfile: cached or built. Arguments and errors as `provide`.

        It has no lock of its packages: its steps install them.
        """
        del lock
        request = ImageRequest(
            owner=owner,
            waits=waits,
            say=say,
            cancelled=cancelled,
            use=use,
            built_after=built_after,
            built=built,
            logins=logins,
        )
        with _engine_errors():
            return self._image_builds.from_dockerfile(recipe, request).id

    def fetch(
        self,
        named: str,
        say: Say,
        cancelled: threading.Event,
        *,
        owner: str,
        logins: Mapping[str, Login] = MappingProxyType({}),
    ) -> tuple[str, int]:
        """Pull the image that a session of `owner` would get by this name; return it by digest, and its bytes.

        `say` and errors as `provide`, and EngineError.
        """
        request = ImageRequest(
            owner=owner,
            say=say,
            cancelled=cancelled,
            waits=lambda _: None,
            use=lambda _: None,
            logins=logins,
        )
        reference, _ = self.resolve(named, None)
        image = self._pulls.provide(reference, request)
        return pinned_name(reference, image), image.size_bytes

    def discard(self, named: str, is_used: Callable[[str], bool]) -> tuple[bool, str]:
        """Remove the image that a session would get by this name: whether it is gone, and why not.

        `is_used`: whether a key is needed. Without such an image: (True, ""). Raises EnvironmentFailed, EngineError.
        """
        reference = self.resolve(named, None)[0]
        key = self._pulls.key_of(reference)
        image = find_image(self._engine, reference)
        if image is not None and not self._records.has_pulled(key, image):
            return False, "this agent did not pull it: docker rmi on the node removes it"
        if not self.remove(key, lambda: is_used(key)):
            return False, "a session or container uses it, or it is being pulled"
        return True, "" if image is None else "removed"

    def stored(self) -> dict[str, float]:
        """When each removable image was last used: Unix seconds by key."""
        found = {key: self._records.used_at(key) for key in self._records.all_keys()}
        with suppress(EngineError):
            found |= self.derived()
        return found

    def derived(self) -> dict[str, float]:
        """The same for derived images, also those of other agents. Raises EngineError."""
        return {
            key: max(self._records.used_at(key), image_used_at(self._engine, tag_of(key)))
            for key in self._image_builds.all_keys()
        }

    def found(self, key: str) -> StoredImage | None:
        """A derived image; None: it is gone. Raises EngineError."""
        return find_image(self._engine, tag_of(key))

    def listed(self) -> dict[str, int]:
        """Bytes of the images here that a session may name, by whole reference. Raises EngineError."""
        found = {
            whole_reference(name): one.size_bytes
            for one in listed_images(self._engine)
            for name in self._listed_names(one)
            if is_reference(name) and parts_of(name)[0] not in _OURS
        }
        private = self._private_names()
        found = {
            name: size
            for name, size in found.items()
            if self._allowed.may_list(name) and full_name(name) not in private
        }
        for old, new in self._settings.aliases.items():
            if (size := found.get(whole_reference(new))) is not None:
                found[whole_reference(old)] = size
        return found

    def _listed_names(self, image: ListedImage) -> Iterable[str]:
        """The names of an image, without those that agents of the engine restrict to some users."""
        if not is_marked_private(image.names):
            return image.names
        public = self._rights.private_images().get(image.id)
        if public is None:
            records = map(self._records.read, self._records.all_keys())
            public = [full_name(one["reference"]) for one in records if one.get("id") == image.id]
        return [name for name in image.names if is_reference(name) and full_name(name) in public]

    def _private_names(self) -> set[str]:
        """Names, without tag and digest, of images that are hidden from some users."""
        private = self._rights.private_images()
        records = map(self._records.read, self._records.all_keys() if private else ())
        named = ((one.get("id"), full_name(one["reference"])) for one in records)
        return {name for image, name in named if name not in private.get(image or "", [name])}

    def touch(self, key: str) -> None:
        """Mark it used."""
        self._records.touch(key)

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove it unless it is used or being built; whether it is gone. Raises EngineError."""
        with ExitStack() as held:
            # also the turns of pulls with users' own logins
            turns = [key, *(lock.stem for lock in self.folder.glob(f"{key}-*.lock"))]
            are_free = all(held.enter_context(self._builds.unused(turn)) for turn in turns)
            if not are_free or is_used() or self._records.is_anothers(key):
                return False
            reference = self._records.reference(key)
            image_id = self._records.read(key).get("id", "")
            if not self._records.is_renamed(key) and not remove_private(
                self._engine, reference, image_id, work=key, mark=self._mark
            ):
                return False
            if image_id:
                self._forget_rights(image_id)
            self._records.forget(key)
            for turn in turns:
                self._builds.forget(turn)
        return True

    def _forget_rights(self, image_id: str) -> None:
        """Forget the rights to a removed image, unless it is still here by another name."""
        if find_image(self._engine, image_id) is None:
            self._rights.forget(image_id)

    def _look(self, request: ImageRequest) -> None:
        """Raise if the request is cancelled, or the disk is too full."""
        if request.cancelled.is_set():
            raise EnvironmentCancelled
        if self._is_full():
            raise EnvironmentFailed(
                "the node's disk has too little room to make or pull images: pulls and builds end"
                " before sessions have to"
            )


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Convert EngineError to EnvironmentFailed, except EngineUnreachable: the environment is not at fault."""
    try:
        yield
    except EngineUnreachable:
        raise
    except EngineError as error:
        raise EnvironmentFailed(f"the container engine of this node: {error}") from error
