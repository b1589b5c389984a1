"""Images as registries have them: pulled where they are missing, for those who may have them.

```
<folder>/<key>.pulling    what is being pulled; with a mark of the user behind the key where that is with a login
<folder>/<key>.confirmed  the id of an image that was here before, and that its registry lets this node have
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
from nodeagent.engine.pulls import ask_registry, pull_image
from nodeagent.environments.errors import EnvironmentFailed
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


class ImagePulls:
    """The pulls of one agent; `mark` is its own on the engine. Blocking; safe from many threads.

    `look` raises when what is asked for is not wanted any more, or has no room.
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
        """Break off what an agent that was killed pulled, and tell others of the engine what is private."""
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
        # of tags that were renewed, also by earlier versions
        for image_id in filter(None, private):
            self._keep_untagged(image_id)

    def provide(self, reference: str, request: ImageRequest) -> StoredImage:
        """The image that `reference` names, pulled where it is missing or always is.

        One that is here and was not pulled for sessions is somebody's own: it is used where the site
        allows that, or its registry lets this node have it too.
        """
        key = self.key_of(reference)
        login = request.logins.get(registry_of(reference))
        # nobody's failure is another's who has a login of their own
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
                # what it is known by when its tag is renewed before there is a container
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
        """Pull an image, or have its registry say whether this user may have the one that is here; within `turn`."""
        image = self._finished(key, turn, reference)
        # One that was there before is not ours to remove, also when it is asked for again.
        is_ours = image is None or self._records.has_pulled(key, image)
        # What is ours stays what it is while its registry is asked who may have it.
        is_new = image is None or is_due or self._is_old(key, image, request.built_after)
        pinned = (
            reference if image is None or (is_ours and is_new) else self._pinned(reference, image)
        )
        # By its own name it would become what the registry has by now: whoever made it needs it.
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
                # before the new one is on record: an agent that is killed here has both
                self._keep_untagged(before, reference, is_ours=is_ours)
            if is_ours and is_new:
                self._records.remember(key, reference, image.id)
            elif pinned and not is_ours and is_everybodys:
                self._confirm(key, image)

    def _keep_untagged(self, image_id: str, renewed: str = "", *, is_ours: bool = False) -> None:
        """Have an image whose tag is another's by now on record by its digest: then it goes when the disk needs the room.

        It may be removed where the agent pulled it: with `is_ours`, or where it is private to users of this agent. What is
        private to another agent's stays off the record: without rights here, a record would make it everybody's.
        `renewed`: the tag, whose repository's digests are recorded; all digests where it has none, or the image is private.
        Somebody who prepares a session with it keeps it, and so does a container.
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
        if renewed and not is_private:  # others may be an administrator's
            name = full_name(renewed)
            digests = [one for one in digests if full_name(one) == name] or digests
        for reference in map(whole_reference, digests) if digests else image.names[:1]:
            self._records.remember(self.key_of(reference), reference, image_id)

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
            self._records.read(key).get("id") == image_id for key in self._records.all_keys()
        )

    @contextmanager
    def _pulled(self, key: str, turn: str, reference: str, before: str) -> Iterator[None]:
        """Around a pull, until it is on record: what comes of one that is broken off, or killed, is nobody's to use."""
        self._mark_pull(turn, reference, before, is_ours=False)
        try:
            if turn != key:  # with a login
                private_images.begin(self._engine, full_name(reference), turn, self._mark)
            yield
        except BaseException:
            with suppress(EngineError):  # then the next who asks for the image breaks it off
                self._break_off(key, self._mark_of(turn))
            raise
        with suppress(EngineError):  # then its mark stays, which is broken off
            if turn != key:
                private_images.end(self._engine, turn, self._mark)
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
                    private_images.remove_private(
                        self._engine, reference, work=mark.stem, mark=self._mark
                    )
                elif (
                    mark.stem != key
                    and pinned_name(reference, image) != image.id  # else no registry gave it
                    and not self._is_everybodys(reference, image.id)
                ):
                    private_images.make_private(self._engine, image.id)
                    self._rights.withhold(image.id)
            if mark.stem != key:
                private_images.end(self._engine, mark.stem, self._mark)
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
            self._records.has_pulled(key, image)
            or self._rights.has_any(image.id)
            or self._is_confirmed(key, image)
        )

    def _marks(self, key: str) -> list[Path]:
        """Of pulls by all users that have not ended, or were killed."""
        return [*self._folder.glob(f"{key}.pulling"), *self._folder.glob(f"{key}-*.pulling")]

    def _mark_of(self, turn: str) -> Path:
        return self._folder / f"{turn}.pulling"

    def _goes_on(self, mark: Path) -> bool:
        """Whether somebody pulls, and the mark was not left by one that was killed."""
        with self._builds.idle(mark.stem) as is_left:
            return not is_left

    def _is_old(self, key: str, image: StoredImage, pulled_after: float) -> bool:
        """Whether this agent pulled the image, and before that."""
        pulled_at = float(self._records.read(key).get("pulled_at", 0))
        return pulled_at < pulled_after and self._records.has_pulled(key, image)

    def key_of(self, reference: str) -> str:
        """Under which this agent notes an image that is pulled by that name."""
        return hashlib.sha256(f"{self._mark} {reference}".encode()).hexdigest()[:32]

    def _may_use(
        self,
        key: str,
        reference: str,
        image: StoredImage,
        request: ImageRequest,
        login: Login | None,
    ) -> bool:
        """Whether a user may use an image that is here: everybody may, or its registry gave it to this login."""
        if self._rights.is_private(image.id, full_name(reference)):
            return self._rights.has(image.id, request.owner, login.version if login else None)
        if self._records.has_pulled(key, image) or self._is_local(reference, image):
            return True
        return self._is_confirmed(key, image)

    def _is_local(self, reference: str, image: StoredImage) -> bool:
        """Whether all may use an image that is here as one that somebody made on this machine.

        What another agent of the engine has pulled with a user's login is none, unless this site's settings name it.
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
        """The reference by digest, at its registry, of an image that is here; "" where none is to be asked.

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

    def _ask_registry(self, pinned: str, request: ImageRequest, login: Login | None) -> None:
        """Raises EnvironmentFailed if the registry does not give this user an image by its digest."""
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
            raise EnvironmentFailed(f"image {pinned} cannot be pulled: {error}") from None

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
            raise EnvironmentFailed(f"image {reference} cannot be pulled: {error}") from None

    def _confirmed(self, key: str) -> Path:
        """Names the image that its registry lets this node have; the image is not the agent's own."""
        return self._folder / f"{key}.confirmed"

    def _is_confirmed(self, key: str, image: StoredImage) -> bool:
        with suppress(FileNotFoundError):
            return self._confirmed(key).read_text() == image.id
        return False

    def _confirm(self, key: str, image: StoredImage) -> None:
        write_atomically(self._confirmed(key), image.id.encode(), is_durable=True)


def pinned_name(reference: str, image: StoredImage) -> str:
    """The image so that it can be named again: NAME@DIGEST, or its id where it came from no registry."""
    name = full_name(reference)
    known = (one for one in image.sources if is_reference(one) and full_name(one) == name)
    return next(known, image.id)
