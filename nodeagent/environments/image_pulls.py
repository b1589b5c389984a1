"""Images of registries: pulled if they are missing, for users with access.

```
<folder>/<key>.pulling    a running pull; if it has a login, a hash of the user follows the key
<folder>/<key>.confirmed  the id of an image that was here before, and that its registry serves to this node
```
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.engine import private_images
from nodeagent.engine.client import EngineError, EngineRefused
from nodeagent.engine.images import find_image, refuse_large_configuration
from nodeagent.engine.pulls import PullFailed, PullProblem, ask_registry, pull_image
from nodeagent.environments.errors import EnvironmentFailed, ImageUnavailable
from nodeagent.folders import write_atomically
from nsml.common.units import size_text
from nsml.spec.images import (
    full_name,
    is_made_here,
    is_reference,
    parts_of,
    registry_of,
    whole_reference,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import StoredImage
    from nodeagent.engine.pulls import Login
    from nodeagent.environments.allowed import AllowedImages
    from nodeagent.environments.builds import Builds, Say
    from nodeagent.environments.image_records import ImageRecords
    from nodeagent.environments.image_rights import ImageRights
    from nodeagent.environments.image_settings import ImageRequest, ImageSettings

_TELL_EVERY_S = 2.0
_LASTING = frozenset({PullProblem.ABSENT, PullProblem.PLATFORM, PullProblem.UNANSWERED})
"""Problems of an image that trying again does not solve."""


class ImagePulls:
    """The pulls of one agent; `mark` identifies it on the engine. Blocking; thread-safe.

    `look` raises if the request is cancelled, or the disk is too full.
    """

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        settings: ImageSettings,
        *,
        mark: str,
        allowed: AllowedImages,
        builds: Builds,
        records: ImageRecords,
        rights: ImageRights,
        look: Callable[[ImageRequest], object],
    ) -> None:
        self._folder = folder
        self._engine = engine
        self._settings = settings
        self._mark = mark
        self._allowed = allowed
        self._builds = builds
        self._records = records
        self._rights = rights
        self._look = look
        self._marking = threading.Lock()

    def tidy(self) -> None:
        """Abort pulls of a killed agent, and mark private images on the engine for other agents."""
        for mark in self._folder.glob("*.pulling"):
            with self._builds.unused(mark.stem) as is_free:
                if is_free:
                    self._break_off(mark.stem.partition("-")[0], mark)
        private = self._rights.private_images()
        for key in self._records.all_keys() if private else ():
            if (image_id := self._records.read(key).get("id", "")) in private:
                private_images.make_private(self._engine, image_id)
        for work in private_images.begun(self._engine, self._mark):
            with self._builds.unused(work) as is_free:
                if is_free:
                    private_images.end(self._engine, work, self._mark)
        # old images of renewed tags, also by earlier versions
        for image_id in filter(None, private):
            self._keep_untagged(image_id)

    def provide(self, reference: str, request: ImageRequest) -> StoredImage:
        """The image that `reference` names, pulled if it is missing or always pulled.

        One that is here and was not pulled for sessions is somebody's own: it is used if the site
        allows that, or its registry serves it to this node too.
        """
        key = self.key_of(reference)
        login = request.logins.get(registry_of(reference))
        # a failed pull must not fail users with logins of their own
        user = (
            "" if login is None else f"-{hashlib.sha256(request.owner.encode()).hexdigest()[:16]}"
        )
        turn = f"{key}{user}"
        found: list[StoredImage] = []
        is_due = self._settings.always_pulls and not is_made_here(reference)

        def is_there() -> bool:
            image = None if is_due else self._finished(key, turn, reference)
            if image is not None and self._is_old(key, image, request.built_after):
                image = None
            found[:] = [] if image is None else [image]
            if image is not None and (digest := pinned_name(reference, image)) != image.id:
                # its key if its tag is renewed before there is a container
                request.use(self.key_of(whole_reference(digest)))
            return image is not None and self._may_use(key, reference, image, request, login)

        def pull(tell: Say) -> None:
            nonlocal is_due
            self._fetch(key, turn, reference, replace(request, say=tell), login, is_due=is_due)
            is_due = False
            if not is_there():
                raise EnvironmentFailed(f"image {reference} was replaced while it was pulled")

        self._builds.provide(
            turn,
            is_there=is_there,
            build=pull,
            say=request.say,
            use=lambda: request.use(key),
            cancelled=request.cancelled,
        )
        self._records.touch(key)
        return found[0]

    def _fetch(
        self,
        key: str,
        turn: str,
        reference: str,
        request: ImageRequest,
        login: Login | None,
        *,
        is_due: bool,
    ) -> None:
        """Pull an image, or ask its registry whether this user may use the present one; within `turn`."""
        image = self._finished(key, turn, reference)
        # One that was there before is not ours to remove, even if it is pulled again.
        is_ours = image is None or self._records.has_pulled(key, image)
        # Our image stays the same while its registry is only asked about access.
        is_new = image is None or is_due or self._is_old(key, image, request.built_after)
        pinned = (
            reference if image is None or (is_ours and is_new) else self._pinned(reference, image)
        )
        # A pull by tag would replace it by the registry's current image: its maker needs it.
        wanted = reference if is_due else pinned
        if pinned and parts_of(wanted)[2]:
            self._ask_registry(wanted, request, login)
        is_pulled = bool(pinned) and is_new
        before = "" if image is None else image.id
        with self._pulled(key, turn, reference, before) if is_pulled else nullcontext():
            if is_pulled:
                self._pull(wanted, request, login)
                self._mark_pull(turn, reference, before, is_ours=is_ours)
            image = find_image(self._engine, reference)
            if image is None:
                raise EnvironmentFailed(f"image {reference} was pulled, but does not exist")
            if is_ours and is_new:
                self._refuse_large(reference, image)
            is_everybodys = login is None or self._is_everybodys(reference, image.id)
            if pinned:
                version = None if is_everybodys or login is None else login.version
                if version is not None and is_pulled and image.id != before:
                    private_images.make_private(self._engine, image.id)
                self._rights.grant(image.id, full_name(reference), request.owner, version)
            if is_pulled and before not in {"", image.id}:
                # before the new one is recorded: an agent that is killed here has both
                self._keep_untagged(before, reference, is_ours=is_ours)
            if is_ours and is_new:
                self._records.remember(key, reference, image.id)
            elif pinned and not is_ours and is_everybodys:
                self._confirm(key, image)

    def _keep_untagged(self, image_id: str, renewed: str = "", *, is_ours: bool = False) -> None:
        """Record an image by digest once its tag is another's, so that it is evicted when the disk needs the room.

        It may be removed if the agent pulled it: with `is_ours`, or if it is private to users of this agent. An image
        private to another agent's users is not recorded: without rights here, a record would make it everybody's.
        `renewed`: the tag; its repository's digests are recorded, or all digests if it has none, or the image is private.
        Sessions in preparation and containers keep the image.
        """
        image = find_image(self._engine, image_id)
        if image is None:
            self._rights.forget(image_id)
            return
        key = self.key_of(renewed)
        others = (self._records.read(one) for one in self._records.all_keys() if one != key)
        if private_images.has_other_name(image) or any(one.get("id") == image_id for one in others):
            return
        is_private = private_images.is_marked_private(image.names) and self._rights.has_any(
            image_id
        )
        if not is_ours and not is_private:
            return
        digests = [one for one in image.sources if is_reference(one)]
        if renewed and not is_private:  # other names may be an administrator's
            name = full_name(renewed)
            digests = [one for one in digests if full_name(one) == name] or digests
        for reference in map(whole_reference, digests) if digests else image.names[:1]:
            self._records.remember(self.key_of(reference), reference, image_id)

    def _is_everybodys(self, reference: str, image_id: str) -> bool:
        """Whether an image that is here by another name is already everybody's: a login does not restrict it."""
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
            self._records.read(key).get("id") == image_id for key in self._records.all_keys()
        )

    @contextmanager
    def _pulled(self, key: str, turn: str, reference: str, before: str) -> Iterator[None]:
        """Context of a pull, until it is recorded: nobody may use the result of one that is aborted or killed."""
        self._mark_pull(turn, reference, before, is_ours=False)
        try:
            if turn != key:  # with a login
                private_images.begin(self._engine, full_name(reference), turn, self._mark)
            yield
        except BaseException:
            with suppress(EngineError):  # then the next request for the image aborts it
                self._break_off(key, self._mark_of(turn))
            raise
        with suppress(EngineError):  # then its mark stays, and is aborted
            if turn != key:
                private_images.end(self._engine, turn, self._mark)
            self._mark_of(turn).unlink()

    def _mark_pull(self, turn: str, reference: str, before: str, *, is_ours: bool) -> None:
        """Record a pull: the id of the image `before`, and whether the agent may remove the current one."""
        noted = {"reference": reference, "before": before, "is_ours": is_ours}
        with self._marking:
            write_atomically(self._mark_of(turn), json.dumps(noted).encode(), is_durable=True)

    def _break_off(self, key: str, mark: Path) -> None:
        """Abort an unfinished pull: nobody may use its image, unless that is recorded by now.

        It is removed if the pull made it. Until the engine has reported that, others may have made it: an
        administrator, another agent. Then it stays, and is used like any present image; after a pull with a
        login, by users to whom the registry serves it.
        """
        with self._marking, suppress(FileNotFoundError):  # already aborted
            noted = json.loads(mark.read_bytes())
            reference = noted["reference"]
            image = find_image(self._engine, reference)
            if image is not None and image.id != noted["before"] and not self._is_known(key, image):
                others = (other for other in self._marks(key) if other != mark)
                if noted.get("is_ours") and not any(map(self._goes_on, others)):
                    private_images.remove_private(
                        self._engine, reference, work=mark.stem, mark=self._mark
                    )
                elif (
                    mark.stem != key
                    and pinned_name(reference, image) != image.id  # else of no registry
                    and not self._is_everybodys(reference, image.id)
                ):
                    private_images.make_private(self._engine, image.id)
                    self._rights.withhold(image.id)
            if mark.stem != key:
                private_images.end(self._engine, mark.stem, self._mark)
            mark.unlink()

    def _finished(self, key: str, turn: str, reference: str) -> StoredImage | None:
        """The image of that name; None also if it comes from a pull that has not ended.

        The caller has `turn`: a mark of that turn was left by a killed pull.
        """
        going_on = []
        for mark in self._marks(key):  # before the image: a pull removes its mark last
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
        """Whether rights to it are recorded."""
        return (
            self._records.has_pulled(key, image)
            or self._rights.has_any(image.id)
            or self._is_confirmed(key, image)
        )

    def _marks(self, key: str) -> list[Path]:
        """Marks of all users' running or killed pulls."""
        return [*self._folder.glob(f"{key}.pulling"), *self._folder.glob(f"{key}-*.pulling")]

    def _mark_of(self, turn: str) -> Path:
        return self._folder / f"{turn}.pulling"

    def _goes_on(self, mark: Path) -> bool:
        """Whether the mark's pull is running, not killed."""
        with self._builds.idle(mark.stem) as is_left:
            return not is_left

    def _is_old(self, key: str, image: StoredImage, pulled_after: float) -> bool:
        """Whether this agent pulled the image before `pulled_after`."""
        pulled_at = float(self._records.read(key).get("pulled_at", 0))
        return pulled_at < pulled_after and self._records.has_pulled(key, image)

    def key_of(self, reference: str) -> str:
        """This agent's key of an image that is pulled by that name."""
        return hashlib.sha256(f"{self._mark} {reference}".encode()).hexdigest()[:32]

    def _may_use(
        self,
        key: str,
        reference: str,
        image: StoredImage,
        request: ImageRequest,
        login: Login | None,
    ) -> bool:
        """Whether a user may use a present image: everybody may, or its registry accepted this login."""
        if self._rights.is_private(image.id, full_name(reference)):
            return self._rights.has(image.id, request.owner, login.version if login else None)
        if self._records.has_pulled(key, image) or self._is_local(reference, image):
            return True
        return self._is_confirmed(key, image)

    def _is_local(self, reference: str, image: StoredImage) -> bool:
        """Whether everybody may use a present image as one made on this machine.

        One that another agent of the engine pulled with a user's login is none, unless this site's settings name it.
        """
        if self._allowed.is_named(reference):
            return True
        name = full_name(reference)
        return (
            self._allowed.is_local_allowed(reference)
            and not self._rights.is_private(image.id, name)
            and not private_images.is_private(self._engine, image.id, name)
        )

    def _pinned(self, reference: str, image: StoredImage) -> str:
        """The reference by digest, at its registry, of a present image; "" if no registry is to be asked.

        Raises EnvironmentFailed.
        """
        if (known := pinned_name(reference, image)) != image.id:
            return whole_reference(known)
        if self._is_local(reference, image):
            return ""
        if self._allowed.is_local_allowed(reference):
            raise EnvironmentFailed(
                f"image {reference} was pulled with a user's login: it is used by the name that its"
                " registry has, for those to whose login the registry gives it"
            )
        raise EnvironmentFailed(
            f"image {reference} is on this node and came from no registry: sessions use it only where"
            f" allowed_images has local:{reference} (the agent's settings)"
        )

    def _refuse_large(self, reference: str, image: StoredImage) -> None:
        """Raises EnvironmentFailed if the pulled image is larger than allowed."""
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

    def _ask_registry(self, pinned: str, request: ImageRequest, login: Login | None) -> None:
        """Raises EnvironmentFailed if the registry does not serve an image by its digest to this user."""
        self._allowed.check_registry(pinned)
        ends_at = time.monotonic() + self._settings.pull_time_limit_s

        def look() -> None:
            self._look(request)
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
            raise _not_pulled(pinned, error) from None

    def _pull(self, reference: str, request: ImageRequest, login: Login | None) -> None:
        say = request.say
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
            self._look(request)
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
            raise _not_pulled(reference, error) from None

    def _confirmed(self, key: str) -> Path:
        """File with the id of an image that its registry serves, and that is not the agent's own."""
        return self._folder / f"{key}.confirmed"

    def _is_confirmed(self, key: str, image: StoredImage) -> bool:
        with suppress(FileNotFoundError):
            return self._confirmed(key).read_text() == image.id
        return False

    def _confirm(self, key: str, image: StoredImage) -> None:
        write_atomically(self._confirmed(key), image.id.encode(), is_durable=True)


def _not_pulled(reference: str, error: EngineRefused) -> EnvironmentFailed:
    is_lasting = isinstance(error, PullFailed) and error.problem in _LASTING
    kind = ImageUnavailable if is_lasting else EnvironmentFailed
    return kind(f"image {reference} cannot be pulled: {error}")


def pinned_name(reference: str, image: StoredImage) -> str:
    """A permanent name of the image: NAME@DIGEST, or its id if it came from no registry."""
    name = full_name(reference)
    known = (one for one in image.sources if is_reference(one) and full_name(one) == name)
    return next(known, image.id)
