"""Finds and lists datasets and versions visible to a caller, and the sessions that use them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.core.paging import page_size
from controlplane.datasets.queued_datasets import WAITING
from controlplane.datasets.queued_sessions import session_digest
from controlplane.datasets.references import (
    DatasetReference,
    after,
    after_version,
    before_number,
    cursor_behind,
    cursor_behind_version,
)
from controlplane.domain.errors import Denied, InvalidRequest, NotFound, TooLarge
from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.names import check_dataset
from controlplane.domain.policy import ALLOW, CHANGE, SEE, may
from controlplane.domain.values import DatasetVersion
from nsml.common.units import ago

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import Dataset, DatasetListing
    from nsml.common.clock import Clock

MOST_GLOB_CHARS: Final = 512
MOST_WORDS: Final = 16
MOST_WORD_CHARS: Final = 256
USERS_NAMED: Final = 10
"""Limit of each list of names in a Use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The sessions that use a dataset, or one version of it.

    Attributes:
        live, queued: live sessions, and queued or held ones among them.
        names: the first few visible live sessions.
        ended: ended sessions that are not removed.
        ended_names: the last few visible ended sessions.
    """

    live: int
    queued: int
    names: tuple[str, ...]
    ended: int
    ended_names: tuple[str, ...] = ()


class DatasetLookup:
    """Finds and lists datasets.

    Args:
        live: returns the live sessions.
        grace_s: how long removed versions can be restored; 0: unlimited.
    """

    def __init__(
        self,
        *,
        history: History,
        clock: Clock,
        live: Callable[[], Iterable[Session]],
        grace_s: float,
    ) -> None:
        self._history = history
        self._clock = clock
        self._live = live
        self._grace_s = grace_s

    async def find(self, caller: UserCaller, reference: DatasetReference) -> DatasetListing:
        """Find the caller's own dataset, else the only visible one with this name.

        Raises:
            NotFound: no such dataset or version.
            InvalidRequest: ambiguous: several users have one, or the caller's own is removed but restorable.
        """
        named = await self._named(caller, reference)
        if named is None or may(caller, SEE, named.dataset) is not ALLOW:
            raise await self._not_there(caller, reference)
        owner, name = named.dataset.owner, named.dataset.name
        number = reference.version
        if reference.tag:
            number = await self._history.catalogue.tagged(owner, name, reference.tag)
            if not number:
                raise no_tag(named.dataset, reference.tag)
        if number in {0, named.version.number}:
            return named
        found = await self._history.catalogue.dataset(owner, name, number)
        if found is None:
            raise await self._no_version(caller, named, number)
        return found

    async def resolve(self, user: User, reference: DatasetReference) -> DatasetVersion:
        """Return the version for a session of this user, with only the parts allowed to the user's sessions.

        A digest pins the content of another session, even if its user has access to more parts.

        Raises:
            NotFound: it is missing, not visible, or has other content than the reference's digest.
        """
        check_dataset(reference.name)
        found = await self.find(UserCaller(user=user), reference)
        if reference.digest and reference.digest not in {
            found.version.digest,
            found.owner_digest,
        }:
            full = f"{found.dataset.owner}/{found.dataset.name}"
            raise NotFound(
                f"{full}@{found.version.number} has another content than it had",
                why="who reads its parts was changed since"
                if found.parts
                else "the dataset was removed and pushed again under its name",
                attempt=f"nsml run -d {full} ...    to take the new one",
            )
        if reference.streamed and found.version.in_place:
            raise InvalidRequest(
                f"{found.dataset.owner}/{found.dataset.name} is in place, and cannot be streamed",
                why="its files are on the nodes",
                attempt=f"nsml run -d {found.dataset.owner}/{found.dataset.name} ...",
            )
        return DatasetVersion(
            owner=found.dataset.owner,
            name=found.dataset.name,
            version=found.version.number,
            digest=session_digest(user, found),
            streamed=reference.streamed,
            folder=reference.folder,
            in_place=found.version.in_place,
            size_bytes=found.version.size_bytes,
        )

    async def changeable(self, caller: UserCaller, reference: DatasetReference) -> DatasetListing:
        """Find a dataset that the caller may change.

        Raises:
            NotFound, InvalidRequest: as `find`.
            Denied: it is visible, but another user's.
        """
        listing = await self.find(caller, reference)
        found = listing.dataset
        if may(caller, CHANGE, found) is not ALLOW:
            raise Denied(
                f"dataset {found.owner}/{found.name} is {found.owner}'s",
                why="only its owner and administrators change it",
            )
        return listing

    async def page(
        self,
        caller: UserCaller,
        name_glob: str,
        *,
        size: int,
        cursor: str,
        words: Sequence[str] = (),
    ) -> tuple[tuple[DatasetListing, ...], str]:
        """Return visible datasets that match all words, by name and owner, and the cursor of the next page.

        Raises:
            InvalidRequest: the cursor is invalid.
            TooLarge: the pattern or words are.
        """
        if len(name_glob) > MOST_GLOB_CHARS:
            raise TooLarge(f"a pattern has at most {MOST_GLOB_CHARS} characters")
        if len(words) > MOST_WORDS or any(len(word) > MOST_WORD_CHARS for word in words):
            raise TooLarge(
                f"at most {MOST_WORDS} words of at most {MOST_WORD_CHARS} characters each"
            )
        last = after(cursor) if cursor else ("", "")
        size = page_size(size)
        found = await self._history.catalogue.datasets(
            caller.user, name_glob=name_glob, words=words, after=last, limit=size + 1
        )
        page = found[:size]
        return page, cursor_behind(page[-1]) if len(found) > size else ""

    async def removed_page(
        self, caller: UserCaller, name_glob: str, *, size: int, cursor: str
    ) -> tuple[tuple[DatasetListing, ...], str]:
        """Return removed versions that the caller may restore, by name, owner and number; administrators get all.

        Raises as `page`.
        """
        if len(name_glob) > MOST_GLOB_CHARS:
            raise TooLarge(f"a pattern has at most {MOST_GLOB_CHARS} characters")
        last, size = after_version(cursor) if cursor else ("", "", 0), page_size(size)
        found = await self._history.catalogue.every_removed_version(
            "" if caller.user.role is Role.ADMIN else caller.user.name,
            since=self.restorable_since(),
            name_glob=name_glob,
            after=last,
            limit=size + 1,
        )
        page = found[:size]
        return page, cursor_behind_version(page[-1]) if len(found) > size else ""

    async def versions(
        self,
        caller: UserCaller,
        reference: DatasetReference,
        *,
        with_removed: bool,
        size: int,
        cursor: str,
    ) -> tuple[tuple[DatasetListing, ...], str]:
        """Return versions of a dataset, newest first, and the cursor of the next page.

        Only its owner and administrators see removed versions, while they can be restored.

        Raises:
            NotFound: as `find`; `with_removed` also finds datasets with only removed versions.
            InvalidRequest: the cursor is invalid.
        """
        before, size = before_number(cursor), page_size(size)
        if with_removed and not reference.owner and await self._is_removed(caller, reference.name):
            reference = replace(reference, owner=caller.user.name)
        named = await self._named(caller, reference)
        owner = reference.owner or caller.user.name
        if named is None and with_removed and is_theirs(caller, owner):
            is_own, name = True, reference.name
        else:
            found = (await self.find(caller, reference)).dataset
            is_own, owner, name = may(caller, CHANGE, found) is ALLOW, found.owner, found.name
        page = await self._history.catalogue.dataset_versions(
            owner, name, with_removed=with_removed and is_own, before=before, limit=size + 1
        )
        if named is None and not page:
            raise await self._not_there(caller, reference)
        since = self.restorable_since()
        shown = tuple(
            one
            for one in page[:size]
            if not one.version.removed_at or one.version.removed_at >= since
        )
        return shown, str(page[size - 1].version.number) if len(page) > size else ""

    async def use(self, caller: UserCaller, listing: DatasetListing, version: int) -> Use | None:
        """Return the use of a version, or of all (0); None unless the caller is its owner or an administrator."""
        found = listing.dataset
        if may(caller, CHANGE, found) is not ALLOW:
            return None
        users = [
            session
            for session in self._live()
            if any(
                (one.owner, one.name) == (found.owner, found.name) and version in {0, one.version}
                for one in session.spec.datasets
            )
        ]
        seen = [one.name for one in users if may(caller, SEE, one) is ALLOW]
        return Use(
            live=len(users),
            queued=sum(one.state in WAITING for one in users),
            names=tuple(seen[:USERS_NAMED]),
            ended=await self._history.catalogue.ended_uses(found.owner, found.name, version),
            ended_names=await self._history.catalogue.ended_users(
                found.owner, found.name, version, caller.user, limit=USERS_NAMED
            ),
        )

    def live_uses(self) -> Counter[tuple[str, str]]:
        """Count the live sessions of each dataset, by owner and name."""
        return Counter(
            use
            for session in self._live()
            for use in {(one.owner, one.name) for one in session.spec.datasets}
        )

    def restorable_until(self, removed_at: float) -> float | None:
        """Return when a version removed at that time stops being restorable; None: never."""
        return removed_at + self._grace_s if self._grace_s else None

    def restorable_since(self) -> float:
        """Versions removed since this time can be restored."""
        return self._clock.time() - self._grace_s if self._grace_s else 0.0

    async def _no_version(
        self, caller: UserCaller, newest: DatasetListing, number: int
    ) -> NotFound:
        """Return the error for a missing or removed version."""
        owner, name = newest.dataset.owner, newest.dataset.name
        why = f"the newest is {newest.version.number}"
        attempt = f"nsml dataset versions {owner}/{name}"
        if may(caller, CHANGE, newest.dataset) is ALLOW:
            since = self.restorable_since()
            gone = await self._history.catalogue.removed_versions(owner, name, number, since=since)
            for one in gone:
                why = f"it was removed {ago(self._clock.time() - one.removed_at)}"
                attempt = f"nsml dataset restore {owner}/{name}@{number}"
        return NotFound(f"there is no version {number} of {owner}/{name}", why=why, attempt=attempt)

    async def _not_there(self, caller: UserCaller, reference: DatasetReference) -> NotFound:
        """Return the error for a missing or invisible dataset."""
        wanted = f"{reference.owner}/{reference.name}" if reference.owner else reference.name
        if reference.owner in {"", caller.user.name}:
            gone = await self._history.catalogue.removed_versions(
                caller.user.name, reference.name, since=self.restorable_since()
            )
            if gone:
                removed = ago(self._clock.time() - gone[-1].removed_at)
                return NotFound(
                    f"there is no dataset {wanted}",
                    why=f"it was removed {removed}",
                    attempt=f"nsml dataset restore {wanted}",
                )
        push = "" if reference.owner else f"\nnsml dataset push {wanted} PATH    adds it"
        return NotFound(f"there is no dataset {wanted}", attempt=f"nsml dataset ls{push}")

    async def _named(
        self, caller: UserCaller, reference: DatasetReference
    ) -> DatasetListing | None:
        """Find a dataset by name, in its newest version; visible or not."""
        catalogue = self._history.catalogue
        found = await catalogue.dataset(reference.owner or caller.user.name, reference.name)
        if found is not None or reference.owner:
            return found
        others = await catalogue.datasets(caller.user, name=reference.name)
        if len(others) > 1:
            raise InvalidRequest(
                f"{len(others)} users have a dataset {reference.name!r}",
                why=", ".join(f"{o.dataset.owner}/{reference.name}" for o in others[:5]),
                attempt="\n".join(
                    f"nsml dataset info {o.dataset.owner}/{reference.name}" for o in others[:5]
                ),
            )
        if others and await self._is_removed(caller, reference.name):
            other = f"{others[0].dataset.owner}/{reference.name}"
            raise InvalidRequest(
                f"your dataset {reference.name} is removed, and {other} is another one",
                attempt=f"nsml dataset restore {reference.name}\nnsml dataset info {other}    names the other one",
            )
        return others[0] if others else None

    async def _is_removed(self, caller: UserCaller, name: str) -> bool:
        """Whether the caller can restore versions of their dataset `name`."""
        since = self.restorable_since()
        found = await self._history.catalogue.removed_versions(caller.user.name, name, since=since)
        return bool(found)


def no_tag(dataset: Dataset, tag: str) -> NotFound:
    """Return the error for a missing tag."""
    full = f"{dataset.owner}/{dataset.name}"
    return NotFound(f"{full} has no tag {tag[:80]!r}", attempt=f"nsml dataset versions {full}")


def is_theirs(caller: UserCaller, owner: str) -> bool:
    """Whether the caller may change an owner's datasets, even those with only removed versions."""
    return owner == caller.user.name or caller.user.role is Role.ADMIN
