"""Images of sessions on a node that runs containers: which one, pulled, and what is built upon it.

```
<agent data>/images/<key>.json    an image that it pulled, or made or found made; its mtime is the last use
<agent data>/images/<id>.rights   of an image that was pulled with a user's login: who may use it
<agent data>/images/<key>.pulling what is being pulled; with a mark of the user behind the key where that is with a login
<agent data>/images/<key>.packages  the id of an image that it made, and the lock of what that has
<agent data>/images/<key>.build/  what the build at hand reads, its configuration of pip and apt too
```

The base is what the session names, else its code (`#nsml:`), else the site's default; names that are
retired lead elsewhere. Requirements and system packages make a derived image `nsml-env:<key>` of it,
once for all agents of the engine. That keeps when each was last used, and any agent removes what nobody
uses, also after one that is gone. Packages may run code while they are built: in a container without privileges, with
nothing of the machine but the configuration of pip and apt that it needs to fetch anything at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from nodeagent.engine.client import EngineError, EngineRefused, EngineUnreachable
from nodeagent.engine.containers import remove_container
from nodeagent.engine.images import (
    FOR_APT,
    FOR_PIP,
    BuildContainer,
    StoredImage,
    builds_named,
    commit_build,
    find_image,
    image_sizes,
    image_used_at,
    name_image,
    put_archive,
    refuse_large_configuration,
    remove_image,
    run_build,
    stored_image,
    tags_of,
    touch_image,
    written_bytes,
)
from nodeagent.engine.pulls import ask_registry, pull_image
from nodeagent.environments.allowed import ANY, AllowedImages
from nodeagent.environments.build_queue import BuildQueue, QueueLimits
from nodeagent.environments.builds import Builds, LastWords, WithoutPlaces
from nodeagent.environments.dockerfile_builds import Context, DockerfileBuild, build_key
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.environments.generations import SUFFIX, last_of, next_of
from nodeagent.environments.hostconfig import apt_configuration
from nodeagent.environments.image_rights import ImageRights
from nodeagent.environments.recipe import PLACE, LockTaken, recipe_key, write_recipe
from nodeagent.folders import write_atomically
from nodeagent.storage.eviction import NoRoom
from nsml.common.units import size_text
from nsml.packages.locks import LockRefused, locked
from nsml.spec.images import (
    full_name,
    is_made_here,
    is_reference,
    parts_of,
    registry_of,
    whole_reference,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import Mounted
    from nodeagent.engine.pulls import Login
    from nodeagent.environments.build_queue import Turn, Waits
    from nodeagent.environments.builds import Say
    from nodeagent.environments.dockerfile_builds import Layers, Recipe, StepRun
    from nodeagent.environments.hostconfig import AptConfiguration
    from nsml.packages.requirements import Requirements

DERIVED = "nsml-env"
"""The repository of derived images; no session may name it."""
_RETIRED = "nsml/default_ml"
"""What NSML called its default image."""
_TELL_EVERY_S = 2.0
_NOTE_EVERY_S = 600.0
"""How often the engine is told that an image is still used: it tells all who listen to its events."""
_ABOUT_TO_START_S = 600.0
"""So long another agent may take from its last look at an image to its container, which keeps it."""
_MEASURE_EVERY_S = 2.0
_MEASURE_SHARE = 0.1
"""Most of the time that an engine spends on measuring one build."""
_NO_NETWORK = "none"
_UNREACHED = (
    "No matching distribution",
    "client error",
    "dns error",
    "Temporary failure",
    "Unable to locate",
    "resolve",
    "connection",
)
_KEY = re.compile(rf"[0-9a-f]{{32}}{SUFFIX}(?:-[a-z0-9]+)?")
"""Of a derived image; with a mark behind it of one that an agent was about to give its name."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """A site's rules. Times are seconds; `credentials` is a docker `config.json`.

    `aliases` lead from names that are retired, with their tag, to others. `always_pulls`: also what is
    here already. `allowed`: patterns as in `allowed.py`. `network`: the engine's network of builds.
    `image_bytes` is the most that a pulled image may have, `disk_bytes` the most that a build may write.
    """

    default: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    always_pulls: bool = False
    credentials: Path | None = None
    allowed: Sequence[str] = (ANY,)
    network: str = _NO_NETWORK
    memory_bytes: int = 8 << 30
    cpus: float = 4.0
    time_limit_s: float = 3600.0
    disk_bytes: int = 50_000_000_000
    image_bytes: int = 100_000_000_000
    pull_time_limit_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asker:
    """Who waits for an image; see Images.provide."""

    owner: str
    say: Say
    cancelled: threading.Event
    waits: Waits
    use: Callable[[str], object]
    built_after: float = 0.0
    built: Callable[[float], object] = lambda _: None
    lock: str = ""
    installed: Callable[[str], object] = lambda _: None
    logins: Mapping[str, Login] = field(default_factory=dict, repr=False)


class Images:
    """The images of one agent; `mark` is its own on the engine. Blocking; safe from many threads.

    Builds wait for their turn in `queue`.

    `is_full` says that their disk has too little room for builds and pulls, which ends them: long before
    a session has to end for it.
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
        self._queue = queue or BuildQueue(QueueLimits(), lambda: 1 << 62)
        self._allowed = AllowedImages(
            settings.allowed, (settings.default, *settings.aliases.values())
        )
        self._builds = Builds(folder)
        self._rights = ImageRights(folder)
        self._noted_at: dict[str, float] = {}
        self._marking = threading.Lock()

    def tidy(self) -> None:
        """Remove what builds and pulls of an agent that was killed left: containers, folders, images."""
        for mark in self.folder.glob("*.pulling"):
            with self._builds.unused(mark.stem) as is_free:
                if is_free:
                    self._break_off(mark.stem.partition("-")[0], mark)
        for name in builds_named(self._engine, self._container("")):
            key = name.removeprefix(self._container(""))
            with self._builds.unused(key) as is_free:
                if is_free:
                    remove_container(self._engine, name)
                    shutil.rmtree(self.folder / f"{key}.build", ignore_errors=True)

    def resolve(self, asked: str, wanted: str | None) -> tuple[str, str]:
        """The base image's reference, and a sentence about it where it is not what was named.

        `asked` is the session's own, `wanted` that of its code. Raises EnvironmentFailed.
        """
        named = asked or wanted or self._settings.default
        if not named:
            raise EnvironmentFailed(
                "no image is named, and this node has no default image: name one"
                " (nsml run --image NAME), or the administrator sets default_image"
            )
        if not is_reference(named) or full_name(named).rpartition("/")[2] == DERIVED:
            raise EnvironmentFailed(f"{named[:80]!r} is not an image that a session may name")
        whole = whole_reference(named)
        instead = {whole_reference(old): new for old, new in self._settings.aliases.items()}.get(
            whole
        )
        if instead is None and parts_of(whole)[0] == _RETIRED and self._settings.default:
            instead = self._settings.default
        if instead is None:
            return whole, ""
        return whole_reference(instead), f"image {named} is retired: {instead} takes its place"

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
        installed: Callable[[str], object] = lambda _: None,
        logins: Mapping[str, Login] = MappingProxyType({}),
    ) -> str:
        """The id of the image with `requirements` upon `reference`: found, pulled, built.

        `owner` is the id of the user who asks, `logins` that user's at registries. `say` gets what is to be seen in the session's log, `waits` why a build waits, `use` the key of each image before anybody
        could remove it, `pinned` the base image by its digest. One that this agent pulled before `built_after` is pulled again, and what was built before is built anew, beside that; `built` gets when it was built: Unix
        seconds. With a `lock` it has exactly these packages upon the image; `installed` gets the lock of what it has, "" for none. Raises EnvironmentFailed, EnvironmentCancelled soon after `cancelled` is set,
        EngineUnreachable where the engine does not answer (a build that it was restarted under, too: it can be
        made again), and OSError where this machine lacks something.
        """
        asker = _Asker(
            owner=owner,
            waits=waits,
            say=say,
            cancelled=cancelled,
            use=use,
            built_after=built_after,
            built=built,
            lock=lock,
            installed=installed,
            logins=logins,
        )
        with _engine_errors():
            base = self._base(reference, asker)
            pinned(pinned_name(reference, base))
            if not requirements.lines and not requirements.packages and not lock:
                # whoever else's it is, it was here before
                built(float(self._recorded(self._base_key(reference)).get("pulled_at", 1)))
                return base.id
            return self._derived(base, requirements, asker)

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
        """The id of the image that a Dockerfile makes: found, or built. Arguments and what it raises as `provide`.

        There is no lock of its packages: its steps install them.
        """
        del lock
        asker = _Asker(
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
            return self._from_dockerfile(recipe, asker).id

    def fetch(
        self,
        named: str,
        say: Say,
        cancelled: threading.Event,
        *,
        owner: str,
        logins: Mapping[str, Login] = MappingProxyType({}),
    ) -> tuple[str, int]:
        """Have the image here that a session of `owner` would get by this name: it by its digest, and its bytes.

        `say` and what it raises as `provide`, and EngineError.
        """
        asker = _Asker(
            owner=owner,
            say=say,
            cancelled=cancelled,
            waits=lambda _: None,
            use=lambda _: None,
            logins=logins,
        )
        reference, _ = self.resolve(named, None)
        image = self._base(reference, asker)
        return pinned_name(reference, image), image.size_bytes

    def discard(self, named: str, is_used: Callable[[str], bool]) -> tuple[bool, str]:
        """Remove the image that a session would get by this name: whether it is gone, and why not.

        `is_used` says whether somebody needs a key. Not there in the first place: (True, ""). Raises EnvironmentFailed, EngineError.
        """
        reference = self.resolve(named, None)[0]
        key = self._base_key(reference)
        image = find_image(self._engine, reference)
        if image is not None and not self._has_pulled(key, image):
            return False, "this agent did not pull it: docker rmi on the node removes it"
        if not self.remove(key, lambda: is_used(key)):
            return False, "a session or container uses it, or it is being pulled"
        return True, "" if image is None else "removed"

    def stored(self) -> dict[str, float]:
        """When each that may be removed was last used: Unix seconds by key."""
        found = {record.stem: self._used_at(record.stem) for record in self.folder.glob("*.json")}
        with suppress(EngineError):
            for key in filter(_KEY.fullmatch, tags_of(self._engine, DERIVED)):
                found[key] = max(self._used_at(key), image_used_at(self._engine, _tag(key)))
        return found

    def listed(self) -> dict[str, int]:
        """Bytes of the images here that a session may name, by whole reference. Raises EngineError."""
        found = {
            whole_reference(name): size
            for name, size in image_sizes(self._engine).items()
            if is_reference(name) and parts_of(name)[0] != DERIVED
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

    def _private_names(self) -> set[str]:
        """Names, without tag and digest, of images that some users may use and others may not know of."""
        private = self._rights.private_images()
        records = (self._recorded(record.stem) for record in self.folder.glob("*.json") if private)
        named = ((one.get("id"), full_name(one["reference"])) for one in records)
        return {name for image, name in named if name not in private.get(image or "", [name])}

    def touch(self, key: str) -> None:
        """It is used now."""
        if time.monotonic() >= self._noted_at.get(key, 0.0) + _NOTE_EVERY_S:
            with suppress(EngineError):
                self._note_use(key)
        # by the clock that the engine has: the one that files get by themselves lags behind it
        now = time.time_ns()
        with suppress(FileNotFoundError):
            os.utime(self._record(key), ns=(now, now))

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove one that nobody uses or builds; whether it is gone. Raises EngineError."""
        with ExitStack() as held:
            # also those of users who pulled it with logins of their own
            turns = [key, *(lock.stem for lock in self.folder.glob(f"{key}-*.lock"))]
            are_free = all(held.enter_context(self._builds.unused(turn)) for turn in turns)
            if not are_free or is_used() or self._is_anothers(key):
                return False
            if not self._is_renamed(key) and not remove_image(self._engine, self._reference(key)):
                return False
            if image_id := self._recorded(key).get("id"):
                self._forget_rights(image_id)
            self._record(key).unlink(missing_ok=True)
            self._packages(key).unlink(missing_ok=True)
            self._noted_at.pop(key, None)
            for turn in turns:
                self._builds.forget(turn)
        return True

    def _forget_rights(self, image_id: str) -> None:
        """Who may use an image is of no account once it is gone; while it is here by another name it is."""
        if find_image(self._engine, image_id) is None:
            self._rights.forget(image_id)

    def _is_anothers(self, key: str) -> bool:
        """Whether another agent may be about to start it."""
        used_at = image_used_at(self._engine, _tag(key))
        return used_at > max(self._used_at(key), time.time() - _ABOUT_TO_START_S)

    def _note_use(self, key: str) -> None:
        """Tell other agents, by the engine, that a derived image is used; nothing where there is none."""
        touch_image(self._engine, _tag(key))
        self._noted_at[key] = time.monotonic()

    def _used_at(self, key: str) -> float:
        """When this agent last used it; 0: never."""
        with suppress(FileNotFoundError):
            return self._record(key).stat().st_mtime
        return 0.0

    def _reference(self, key: str) -> str:
        return self._recorded(key).get("reference", _tag(key))

    def _recorded(self, key: str) -> dict[str, str]:
        """What is noted of an image; records of earlier versions have no `id` and no `pulled_at` (Unix seconds)."""
        with suppress(FileNotFoundError):
            return dict(json.loads(self._record(key).read_bytes()))
        return {}

    def _has_pulled(self, key: str, image: StoredImage) -> bool:
        """Whether the image is the one that this agent pulled under that name, not another since."""
        record = self._recorded(key)
        return bool(record) and record.get("id", image.id) == image.id

    def _is_renamed(self, key: str) -> bool:
        """Whether somebody gave the name of what this agent pulled to an image of their own."""
        if "id" not in (record := self._recorded(key)):
            return False
        image = find_image(self._engine, record["reference"])
        return image is not None and image.id != record["id"]

    def _base(self, reference: str, asker: _Asker) -> StoredImage:
        """The image that `reference` names, pulled where it is missing or always is.

        One that is here and was not pulled for sessions is somebody's own: it is used where the site
        allows that, or its registry lets this node have it too.
        """
        key = self._base_key(reference)
        login = asker.logins.get(registry_of(reference))
        # nobody's failure is another's who has a login of their own
        user = "" if login is None else f"-{hashlib.sha256(asker.owner.encode()).hexdigest()[:16]}"
        turn = f"{key}{user}"
        found: list[StoredImage] = []
        is_due = self._settings.always_pulls and not is_made_here(reference)

        def is_there() -> bool:
            image = None if is_due else self._finished(key, turn, reference)
            if image is not None and self._is_old(key, image, asker.built_after):
                image = None
            found[:] = [] if image is None else [image]
            return image is not None and self._may_use(key, reference, image, asker, login)

        def pull(tell: Say) -> None:
            nonlocal is_due
            self._fetch(key, turn, reference, replace(asker, say=tell), login, is_due=is_due)
            is_due = False
            if not is_there():
                raise EnvironmentFailed(f"image {reference} was replaced while it was pulled")

        self._builds.provide(
            turn,
            is_there=is_there,
            build=pull,
            say=asker.say,
            use=lambda: asker.use(key),
            cancelled=asker.cancelled,
        )
        self.touch(key)
        return found[0]

    def _fetch(
        self,
        key: str,
        turn: str,
        reference: str,
        asker: _Asker,
        login: Login | None,
        *,
        is_due: bool,
    ) -> None:
        """Pull an image, or have its registry say whether this user may have the one that is here; within `turn`."""
        image = self._finished(key, turn, reference)
        # One that was there before is not ours to remove, also when it is asked for again.
        is_ours = image is None or self._has_pulled(key, image)
        # What is ours stays what it is while its registry is asked who may have it.
        is_new = image is None or is_due or self._is_old(key, image, asker.built_after)
        pinned = reference if is_ours and is_new else self._pinned(reference, image)
        # By its own name it would become what the registry has by now: whoever made it needs it.
        wanted = reference if is_due else pinned
        if pinned and parts_of(wanted)[2]:
            self._ask_registry(wanted, asker, login)
        is_pulled = bool(pinned) and is_new
        before = "" if image is None else image.id
        with self._pulled(key, turn, reference, before) if is_pulled else nullcontext():
            if is_pulled:
                self._pull(wanted, asker, login)
                self._mark_pull(turn, reference, before, is_ours=is_ours)
            image = find_image(self._engine, reference)
            if image is None:
                raise EnvironmentFailed(f"image {reference} was pulled, but does not exist")
            if is_ours and is_new:
                self._refuse_large(reference, image)
            is_everybodys = login is None or self._is_everybodys(reference, image.id)
            if pinned:
                version = None if is_everybodys or login is None else login.version
                self._rights.grant(image.id, full_name(reference), asker.owner, version)
            if is_ours and is_new:
                self._remember(key, reference, image.id)
            elif pinned and not is_ours and is_everybodys:
                self._confirm(key, image)

    def _is_everybodys(self, reference: str, image_id: str) -> bool:
        """Whether all may use an image that is here already, by another name: no login makes it less than that."""
        if self._rights.has_any(image_id):
            return not self._rights.is_private(image_id, full_name(reference))
        settings = self._settings
        named = (
            find_image(self._engine, one)
            for one in (settings.default, *settings.aliases.values())
            if one
        )
        if any(one is not None and one.id == image_id for one in named):
            return True
        return any(
            self._recorded(record.stem).get("id") == image_id
            for record in self.folder.glob("*.json")
        )

    @contextmanager
    def _pulled(self, key: str, turn: str, reference: str, before: str) -> Iterator[None]:
        """Around a pull, until it is on record: what comes of one that is broken off, or killed, is nobody's to use."""
        self._mark_pull(turn, reference, before, is_ours=False)
        try:
            yield
        except BaseException:
            with suppress(EngineError):  # then the next who asks for the image breaks it off
                self._break_off(key, self._mark_of(turn))
            raise
        self._mark_of(turn).unlink()

    def _mark_pull(self, turn: str, reference: str, before: str, *, is_ours: bool) -> None:
        """Note a pull: the id of the image `before`, and whether the one that is there now is the agent's to remove."""
        noted = {"reference": reference, "before": before, "is_ours": is_ours}
        with self._marking:
            write_atomically(self._mark_of(turn), json.dumps(noted).encode(), is_durable=True)

    def _break_off(self, key: str, mark: Path) -> None:
        """Let nobody have what a pull left that did not end, unless it is on record by now.

        It is removed where the pull made it. Until the engine has said so, anybody else may have: an administrator,
        another agent. Then it stays, and is used as any image that is here; if the pull had a login, by those
        whom the registry gives it.
        """
        with self._marking, suppress(FileNotFoundError):  # somebody else has done it
            noted = json.loads(mark.read_bytes())
            reference = noted["reference"]
            image = find_image(self._engine, reference)
            if image is not None and image.id != noted["before"] and not self._is_known(key, image):
                others = (other for other in self._marks(key) if other != mark)
                if noted.get("is_ours") and not any(map(self._goes_on, others)):
                    remove_image(self._engine, reference)
                elif (
                    mark.stem != key
                    and pinned_name(reference, image) != image.id  # else no registry gave it
                    and not self._is_everybodys(reference, image.id)
                ):
                    self._rights.withhold(image.id)
            mark.unlink()

    def _finished(self, key: str, turn: str, reference: str) -> StoredImage | None:
        """The image of that name; None also where it came of a pull that has not ended.

        Whoever asks has `turn`: a mark of that turn was left by a pull that was killed.
        """
        going_on = []
        for mark in self._marks(key):  # before the image: its pull removes its mark last
            with self._builds.idle(mark.stem) as is_left:
                if is_left or mark == self._mark_of(turn):
                    self._break_off(key, mark)
                else:
                    going_on.append(mark)
        image = find_image(self._engine, reference)
        if image is None or self._is_known(key, image):
            return image
        for mark in going_on:
            with suppress(FileNotFoundError):
                if json.loads(mark.read_bytes())["before"] != image.id:
                    return None
        return image

    def _is_known(self, key: str, image: StoredImage) -> bool:
        """Whether it is on record who may use it."""
        return (
            self._has_pulled(key, image)
            or self._rights.has_any(image.id)
            or self._is_confirmed(key, image)
        )

    def _marks(self, key: str) -> list[Path]:
        """Of pulls by all users that have not ended, or were killed."""
        return [*self.folder.glob(f"{key}.pulling"), *self.folder.glob(f"{key}-*.pulling")]

    def _mark_of(self, turn: str) -> Path:
        return self.folder / f"{turn}.pulling"

    def _goes_on(self, mark: Path) -> bool:
        """Whether somebody pulls, and the mark was not left by one that was killed."""
        with self._builds.idle(mark.stem) as is_left:
            return not is_left

    def _is_old(self, key: str, image: StoredImage, pulled_after: float) -> bool:
        """Whether this agent pulled the image, and before that."""
        pulled_at = float(self._recorded(key).get("pulled_at", 0))
        return pulled_at < pulled_after and self._has_pulled(key, image)

    def _base_key(self, reference: str) -> str:
        return hashlib.sha256(f"{self._mark} {reference}".encode()).hexdigest()[:32]

    def _may_use(
        self,
        key: str,
        reference: str,
        image: StoredImage,
        asker: _Asker,
        login: Login | None,
    ) -> bool:
        """Whether a user may use an image that is here: everybody may, or its registry gave it to this login."""
        if self._rights.is_private(image.id, full_name(reference)):
            return self._rights.has(image.id, asker.owner, login.version if login else None)
        if self._has_pulled(key, image) or self._allowed.is_local_allowed(reference):
            return True
        return self._is_confirmed(key, image)

    def _pinned(self, reference: str, image: StoredImage | None) -> str:
        """The reference by digest, at its registry, of an image that is here; "" where none is to be asked.

        Raises EnvironmentFailed.
        """
        if image is not None and (known := pinned_name(reference, image)) != image.id:
            return whole_reference(known)
        if self._allowed.is_local_allowed(reference):
            return ""
        raise EnvironmentFailed(
            f"image {reference} is on this node and came from no registry: sessions use it only where"
            f" allowed_images has local:{reference} (the agent's settings)"
        )

    def _refuse_large(self, reference: str, image: StoredImage) -> None:
        """Raises EnvironmentFailed where what was just pulled is larger than images may be."""
        try:
            refuse_large_configuration(image)
        except EngineRefused as error:
            raise EnvironmentFailed(f"image {reference} cannot be used: {error}") from None
        most = self._settings.image_bytes
        if image.size_bytes > most:
            raise EnvironmentFailed(
                f"image {reference} has {size_text(image.size_bytes)}: at most {size_text(most)} on"
                " this node (image_bytes in the agent's settings)"
            )

    def _ask_registry(self, pinned: str, asker: _Asker, login: Login | None) -> None:
        """Raises EnvironmentFailed if the registry does not give this user an image by its digest."""
        self._allowed.check_registry(pinned)
        ends_at = time.monotonic() + self._settings.pull_time_limit_s

        def look() -> None:
            self._look(asker)
            if time.monotonic() > ends_at:
                raise EnvironmentFailed(f"the registry of image {pinned} does not answer")

        try:
            ask_registry(
                self._engine,
                pinned,
                credentials=self._settings.credentials,
                login=login,
                look=look,
            )
        except EngineRefused as error:
            raise EnvironmentFailed(f"image {pinned} cannot be pulled: {error}") from None

    def _pull(self, reference: str, asker: _Asker, login: Login | None) -> None:
        say = asker.say
        if is_made_here(reference):
            raise EnvironmentFailed(
                f"image {reference} is not on this node, and no registry is asked for that name: its"
                " administrator makes it (deploy/image/build), or another is asked for with --image"
            )
        self._allowed.check_registry(reference)
        say(f"Pulling image {reference}\n".encode())
        told_at, told = time.monotonic(), ""
        ends_at = told_at + self._settings.pull_time_limit_s

        def look() -> None:
            self._look(asker)
            if time.monotonic() > ends_at:
                limit = self._settings.pull_time_limit_s
                raise EnvironmentFailed(f"image {reference} was not pulled within {limit:g} s")

        try:
            for progress in pull_image(
                self._engine,
                reference,
                credentials=self._settings.credentials,
                login=login,
                look=look,
                most_bytes=self._settings.image_bytes,
            ):
                text = progress.text()
                if time.monotonic() > told_at + _TELL_EVERY_S and text != told:
                    told_at, told = time.monotonic(), text
                    say(f"Pulling image {reference}: {text}\n".encode())
        except EngineRefused as error:
            raise EnvironmentFailed(f"image {reference} cannot be pulled: {error}") from None

    def _derived(self, base: StoredImage, requirements: Requirements, asker: _Asker) -> str:
        apt = apt_configuration()

        def named(wanted: Requirements, built_after: float, *, is_locked: bool = False) -> str:
            key = recipe_key(
                base_id=base.id,
                requirements=wanted,
                environ=os.environ,
                apt=apt,
                owner=asker.owner,
                is_locked=is_locked,
            )
            return self._current(key, built_after)

        def made(key: str, wanted: Requirements, asker: _Asker) -> tuple[str, str]:
            image = self._provided(
                key,
                asker,
                lambda key, asker, turn: self._build(key, base, wanted, apt, asker, turn=turn),
            )
            return image.id, self._packages_of(key, image)

        lock = asker.lock
        if not lock:
            key = named(requirements, asker.built_after)
            image_id, installed = made(key, requirements, asker)
            asker.installed(installed)
            return image_id
        found = named(requirements, 0.0)
        if self._packages_of(found, find_image(self._engine, _tag(found))) == lock:
            image_id, installed = made(found, requirements, replace(asker, lock=""))
            if installed == lock:  # it was not removed meanwhile
                asker.installed(lock)
                return image_id
        whole = _locked(requirements, lock)
        is_locked = whole is not requirements
        key = named(whole, asker.built_after, is_locked=is_locked)
        image_id, installed = made(key, whole, replace(asker, lock=lock if is_locked else ""))
        asker.installed(lock if is_locked else installed)
        return image_id

    def _from_dockerfile(self, recipe: Recipe, asker: _Asker) -> StoredImage:
        """Build upon images that a session of the same user could name, each looked at as for such a session."""
        dockerfile, context = recipe.read(), Context(recipe, asker.cancelled)
        for note in dockerfile.notes:
            asker.say(f"note: {note}\n".encode())
        bases = {name: self._base(self.resolve(name, None)[0], asker) for name in dockerfile.images}

        def made(key: str, asker: _Asker, layers: Layers) -> DockerfileBuild:
            return DockerfileBuild(
                recipe,
                dockerfile,
                context,
                bases,
                layers,
                engine=self._engine,
                owner=asker.owner,
                name=f"{self._container(key)}-from",
                mark=self._mark,
                say=asker.say,
            )

        def build(key: str, asker: _Asker, turn: Turn) -> None:
            run = self._run(key, asker, turn)
            layers = _StepLayers(run, partial(self._step, asker, run))
            image = made(key, asker, layers).run()
            name_image(self._engine, image.id, _tag(key))

        key = build_key(recipe, bases, context, owner=asker.owner)
        return self._provided(self._current(key, asker.built_after), asker, build)

    def _provided(
        self, key: str, asker: _Asker, make: Callable[[str, _Asker, Turn], None]
    ) -> StoredImage:
        """The image of a key: found, or made when it is its turn, once for all who wait."""
        tag = _tag(key)
        found: list[StoredImage] = []

        def is_there() -> bool:
            self._note_use(key)  # before we look: whoever would remove it looks at that
            image = find_image(self._engine, tag)
            found[:] = [] if image is None else [image]
            return image is not None

        def build(tell: Say) -> None:
            make(key, replace(asker, say=tell), ticket.granted())
            if not is_there():
                raise EnvironmentFailed("the image was built, but does not exist")

        settings = self._settings
        with self._queue.ticket(
            asker.owner,
            memory_bytes=settings.memory_bytes,
            disk_bytes=settings.disk_bytes,
            waits=asker.waits,
        ) as ticket:
            self._builds.provide(
                key,
                is_there=is_there,
                build=build,
                say=asker.say,
                use=lambda: asker.use(key),
                cancelled=asker.cancelled,
                ticket=ticket,
            )
        if not self._record(key).exists():
            self._remember(key, tag)
        self.touch(key)
        asker.built(found[0].created_at)
        return found[0]

    def _packages_of(self, key: str, image: StoredImage | None) -> str:
        """The lock of the image that has the name of a derived one by now; "" where this agent did not make just that."""
        with suppress(FileNotFoundError):
            image_id, _, lock = self._packages(key).read_text().partition("\n")
            return lock if image is not None and image.id == image_id else ""
        return ""

    def _current(self, key: str, built_after: float) -> str:
        """The generation to use: the last one, or the next where that is too old, or there is none."""
        last = last_of(key, tags_of(self._engine, DERIVED))
        image = None if last is None else find_image(self._engine, _tag(last))
        is_good = image is not None and image.created_at >= built_after
        return last if last is not None and is_good else next_of(key, last)

    def _build(
        self,
        key: str,
        base: StoredImage,
        requirements: Requirements,
        apt: AptConfiguration,
        asker: _Asker,
        *,
        turn: Turn,
    ) -> None:
        folder = self.folder / f"{key}.build"
        run = self._run(key, asker, turn)
        heard: list[LockTaken] = []

        def hear(say: Say) -> LockTaken:
            heard[:] = [LockTaken(say)]
            return heard[0]

        def describe(image: StoredImage) -> None:
            lock = asker.lock or heard[0].lock
            write_atomically(self._packages(key), f"{image.id}\n{lock}".encode())

        def keep(made: str) -> None:
            self._keep(made, base, key, run.written, describe)

        try:
            container = self._build_container(
                key,
                turn,
                argv=("/bin/sh", f"{PLACE}/build.sh"),
                mounts=write_recipe(
                    folder, requirements, os.environ, apt, is_locked=bool(asker.lock)
                ),
                capabilities=FOR_APT if requirements.packages else FOR_PIP,
            )
            run.to_end(container, base, keep=keep, hear=hear)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, key: str, asker: _Asker, turn: Turn) -> _Run:
        return _Run(
            self._engine,
            self._container(key),
            key,
            turn,
            settings=self._settings,
            say=asker.say,
            look=partial(self._look, asker),
        )

    def _step(
        self, asker: _Asker, run: _Run, key: str, base: StoredImage, step: StepRun
    ) -> StoredImage:
        """The image of a step of a build: found under its own key, or made."""
        key = self._current(key, asker.built_after)
        asker.use(key)
        self._note_use(key)
        found = find_image(self._engine, _tag(key))
        if found is not None:
            asker.say(b"  made before\n")
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
            found = stored_image(self._engine, _tag(key))
        if not self._record(key).exists():
            self._remember(key, _tag(key))
        self.touch(key)
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
        written: _Written,
        describe: Callable[[StoredImage], object] = lambda _: None,
    ) -> None:
        """Make the image of what a build left, unless another agent did meanwhile.

        Under a name of our own at first: an image whose name is given to another would stay for good. `describe` gets
        it before it is there for others.
        """
        written.check()
        tag, ours = _tag(key), _tag(f"{key}-{self._mark}")
        commit_build(self._engine, made, base, ours)
        if find_image(self._engine, tag) is None:
            describe(stored_image(self._engine, ours))
            name_image(self._engine, ours, tag)
        remove_image(self._engine, ours)

    def _look(self, asker: _Asker) -> None:
        """Raise when what is being made is not wanted any more, or has no room."""
        if asker.cancelled.is_set():
            raise EnvironmentCancelled
        if self._is_full():
            raise EnvironmentFailed(
                "the node's disk has too little room to make or pull images: pulls and builds end"
                " before sessions have to"
            )

    def _container(self, key: str) -> str:
        return f"{build_prefix(self._mark)}{key}"

    def _record(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _packages(self, key: str) -> Path:
        return self.folder / f"{key}.packages"

    def _confirmed(self, key: str) -> Path:
        """Names the image that its registry lets this node have; the image is not the agent's own."""
        return self.folder / f"{key}.confirmed"

    def _is_confirmed(self, key: str, image: StoredImage) -> bool:
        with suppress(FileNotFoundError):
            return self._confirmed(key).read_text() == image.id
        return False

    def _confirm(self, key: str, image: StoredImage) -> None:
        write_atomically(self._confirmed(key), image.id.encode(), is_durable=True)

    def _remember(self, key: str, reference: str, image_id: str | None = None) -> None:
        record = (
            {"reference": reference}
            if image_id is None
            else {"reference": reference, "id": image_id, "pulled_at": f"{time.time():.3f}"}
        )
        content = json.dumps(record).encode()
        write_atomically(self._record(key), content, is_durable=True)


def build_prefix(mark: str) -> str:
    """How the names of containers begin that an agent makes for images; those of one that is gone are removed."""
    return f"nsml-build-{mark}-"


def pinned_name(reference: str, image: StoredImage) -> str:
    """The image so that it can be named again: NAME@DIGEST, or its id where it came from no registry."""
    name = full_name(reference)
    known = (one for one in image.sources if is_reference(one) and full_name(one) == name)
    return next(known, image.id)


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Errors of the engine as EnvironmentFailed. EngineUnreachable stays: it is no fault of the environment's."""
    try:
        yield
    except EngineUnreachable:
        raise
    except EngineError as error:
        raise EnvironmentFailed(f"the container engine of this node: {error}") from error


def _locked(requirements: Requirements, lock: str) -> Requirements:
    """Raises EnvironmentFailed where it cannot be the lock of these requirements."""
    try:
        return locked(requirements, lock)
    except LockRefused as error:
        raise EnvironmentFailed(f"the lock of its packages cannot be used: {error}") from None


class _Run:
    """The containers of one build, one after the other, within its turn and the time of builds."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        key: str,
        turn: Turn,
        *,
        settings: ImageSettings,
        say: Say,
        look: Callable[[], object],
    ) -> None:
        self._engine = engine
        self.key, self.turn = key, turn
        self._settings = settings
        self._say = say
        self._look = look
        self._ends_at = time.monotonic() + settings.time_limit_s
        self.written = _Written(engine, container, turn)

    def look(self) -> None:
        """Raise when it is to end."""
        self._look()
        self.written.look()
        if time.monotonic() > self._ends_at:
            limit = self._settings.time_limit_s
            raise EnvironmentFailed(f"the build took longer than {limit:g} s")

    def to_end(
        self,
        container: BuildContainer,
        base: StoredImage,
        *,
        keep: Callable[[str], object],
        fill: Callable[[str], object] = lambda _: None,
        hear: Callable[[Say], LockTaken] | None = None,
    ) -> None:
        """Run one upon `base`, to be kept if it ends well. Raises EnvironmentFailed, EngineError.

        `hear` makes what gets its output first, and passes on what is to be said.
        """
        words = LastWords(self._say)
        said = WithoutPlaces(words)
        heard = said if hear is None else hear(said)
        code, is_out_of_memory = run_build(
            self._engine, container, base, say=heard, look=self.look, keep=keep, fill=fill
        )
        heard.end()
        said.end()
        settings, turn = self._settings, self.turn
        if is_out_of_memory:
            is_own = turn.memory_bytes == settings.memory_bytes
            setting = "build_memory_bytes" if is_own else "builds_memory_bytes"
            raise EnvironmentFailed(
                f"the build needs more than {size_text(turn.memory_bytes)} of memory ({setting} in the"
                " agent's settings)"
            )
        if code:
            reason = words.reason(f"the build ended with {code}")
            raise EnvironmentFailed(reason + _hint(reason, settings.network))

    def put(self, container: str, folder: str, pieces: Iterable[bytes]) -> None:
        """Unpack an archive in a container that is not started yet."""
        put_archive(self._engine, container, folder, self._counted(pieces), self.look)

    def _counted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        count = 0
        for piece in pieces:
            count += len(piece)
            self.written.refuse(count)
            yield piece


class _StepLayers:
    """The steps of a Dockerfile's build; see Layers."""

    def __init__(self, run: _Run, step: Callable[[str, StoredImage, StepRun], StoredImage]) -> None:
        self.step, self.put, self.look = step, run.put, run.look


class _Written:
    """Keeps what one build writes within its turn's bytes, by asking the engine, which takes a walk."""

    def __init__(self, engine: Engine, container: str, turn: Turn) -> None:
        self._engine = engine
        self._container = container
        self._turn = turn
        self._next_at = time.monotonic() + _MEASURE_EVERY_S
        self._before = self._last = 0

    def next_step(self) -> None:
        """What was written is kept; another container follows."""
        self._before += self._last
        self._last = 0

    def look(self) -> None:
        """Ask if it is time to. Raises EnvironmentFailed or NoRoom when it is too much."""
        if time.monotonic() < self._next_at:
            return
        began = time.monotonic()
        # an engine that does not answer keeps nobody from looking at the rest
        with suppress(EngineError):
            self.check()
        ended = time.monotonic()
        self._next_at = ended + max(_MEASURE_EVERY_S, (ended - began) / _MEASURE_SHARE)

    def check(self) -> None:
        """Raises EnvironmentFailed or NoRoom when it is too much, EngineError."""
        self._last = written_bytes(self._engine, self._container)
        self.refuse(self._last)

    def refuse(self, here: int) -> None:
        """Take how many bytes the container has. Raises EnvironmentFailed or NoRoom when it is too much."""
        turn, found = self._turn, self._before + here
        turn.written_bytes = found
        if found <= turn.disk_bytes:
            return
        words = f"the build wrote {size_text(found)}: at most {size_text(turn.disk_bytes)}"
        if turn.is_disk_short:
            raise NoRoom(f"{words}, its share of the disk space left for builds")
        raise EnvironmentFailed(f"{words} on this node (build_disk_bytes in the agent's settings)")


def _tag(key: str) -> str:
    """The name of a derived image."""
    return f"{DERIVED}:{key}"


def _hint(reason: str, network: str) -> str:
    """What to try, where a package needed a compiler that the image does not have, or a network."""
    if network == _NO_NETWORK and any(sign in reason for sign in _UNREACHED):
        return (
            " (builds have no network on this node, whose engine has none that keeps them apart: its"
            " administrator sets build_network)"
        )
    signs = ("gcc", "g++", "cc'", "compiler", "Python.h", "CMake")
    if any(sign in reason for sign in signs):
        return " (a compiler: name build-essential and python3-dev in nsml_package.txt)"
    return ""
