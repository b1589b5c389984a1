"""Datasets: names for immutable, numbered versions of content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.content.content import SEND_IT
from controlplane.core.paging import page_size
from controlplane.domain.errors import Denied, InvalidRequest, MissingBlobs, NotFound, TooLarge
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.names import check_dataset, check_digest, check_user
from controlplane.domain.policy import ALLOW, CHANGE, SEE, check_visibility, may
from controlplane.domain.values import DatasetVersion, Visibility
from controlplane.history.values import Dataset, DatasetListing
from nsml.common.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from controlplane.content.content import Content
    from controlplane.history.sql.history import History
    from nsml.common.clock import Clock

MOST_MESSAGE_BYTES = 4 << 10
MOST_GLOB_CHARS = 512

FREELY_REPEATED_BYTES = 64 << 30
MOST_REPEATED = 8
"""A version over that size has at most so many times the bytes that were sent for it.

One chunk that a manifest lists again and again is laid out again and again on nodes. Data of people repeats
little: copies, augmented sets, files of zeros, and those of zeros seldom over this size.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReference:
    """A dataset as a submission names it: owner "" is the caller first, version 0 the newest, digest "" any."""

    name: str
    owner: str = ""
    version: int = 0
    digest: str = ""


def parse_dataset(text: str, version: int = 0, digest: str = "") -> DatasetReference:
    """Understand NAME or OWNER/NAME."""
    owner, slash, name = text.rpartition("/")
    if slash:
        check_user(owner)
    return DatasetReference(name=check_dataset(name), owner=owner, version=version, digest=digest)


def cursor_behind(listing: DatasetListing) -> str:
    """The cursor of a page that ended with this dataset."""
    return f"{listing.dataset.owner}/{listing.dataset.name}"


def _after(cursor: str) -> tuple[str, str]:
    """Name and owner of the last dataset of the page before."""
    last = parse_dataset(cursor)
    return last.name, last.owner


class Datasets:
    """Making, finding and removing them.

    Args:
        users_of: how many live sessions use one of several contents.
    """

    def __init__(
        self,
        *,
        history: History,
        content: Content,
        clock: Clock,
        users_of: Callable[[Collection[str]], int] = lambda _: 0,
    ) -> None:
        self._history = history
        self._users_of = users_of
        self._content = content
        self._clock = clock

    def check(
        self, caller: UserCaller, name: str, visibility: Visibility | None, message: str
    ) -> None:
        """Raise what `create_version` would, as far as it does not lie in the content."""
        check_dataset(name)
        if visibility is not None:
            check_visibility(visibility, caller.user.team)
        if len(message.encode()) > MOST_MESSAGE_BYTES:
            raise TooLarge(f"a message has at most {MOST_MESSAGE_BYTES} bytes")

    async def create_version(
        self,
        caller: UserCaller,
        *,
        name: str,
        digest: str,
        visibility: Visibility | None,
        message: str,
    ) -> tuple[DatasetListing, bool]:
        """Make content the newest version of the caller's dataset; False when it was already.

        Raises:
            MissingBlobs: not all of it has been sent, or not by the caller.
            TooLarge: it repeats little data many times.
        """
        self.check(caller, name, visibility, message)
        check_digest(digest)
        if not await self._content.may_use(caller, digest) or await self._content.is_incomplete(
            caller, digest
        ):
            raise MissingBlobs("the dataset has not been sent completely", attempt=SEND_IT)
        listing = await self._content.listing(caller, digest)
        await self._content.borrow(caller, digest)
        if not listing.file_count:
            raise InvalidRequest("a dataset has at least one file")
        if listing.size > max(FREELY_REPEATED_BYTES, MOST_REPEATED * listing.different):
            raise TooLarge(
                f"the dataset has {size_text(listing.size)} of files, and"
                f" {size_text(listing.different)} of different data: over"
                f" {size_text(FREELY_REPEATED_BYTES)} at most {MOST_REPEATED} times as much",
                why="nodes write all of it to disk",
                attempt="the repeated data once, and have programs repeat it",
            )
        owner = caller.user
        known = await self._history.catalogue.dataset(owner.name, name)
        if visibility is None:
            visibility = known.dataset.visibility if known else Visibility.PRIVATE
        dataset = Dataset(
            owner=owner.name,
            name=name,
            created_at=self._clock.time(),
            team=owner.team,
            visibility=visibility,
        )
        version, created = await self._history.catalogue.put_dataset_version(
            dataset,
            digest=digest,
            size_bytes=listing.size,
            file_count=listing.file_count,
            message=message,
        )
        return DatasetListing(dataset, version), created

    async def remove(self, caller: UserCaller, reference: DatasetReference) -> tuple[int, int]:
        """Remove a version, or all (0); how many are gone, and how many live sessions use them.

        Raises:
            NotFound: as `find`.
            Denied: the caller sees it, but it is somebody else's.
        """
        found = (await self.find(caller, reference)).dataset
        if may(caller, CHANGE, found) is not ALLOW:
            raise Denied(
                f"dataset {found.owner}/{found.name} is {found.owner}'s",
                why="only its owner and administrators remove it",
            )
        gone = await self._history.catalogue.delete_dataset(
            found.owner, found.name, reference.version
        )
        if not gone:
            raise NotFound(f"there is no dataset {found.owner}/{found.name}")
        left = set(gone) - await self._history.catalogue.versions_among(gone)
        return len(gone), self._users_of(left)

    async def page(
        self, caller: UserCaller, name_glob: str, *, size: int, cursor: str
    ) -> tuple[tuple[DatasetListing, ...], str]:
        """Those that the caller may see, by name and owner, and the cursor of the next page.

        Raises:
            InvalidRequest: the cursor is none of ours.
            TooLarge: the pattern is.
        """
        if len(name_glob) > MOST_GLOB_CHARS:
            raise TooLarge(f"a pattern has at most {MOST_GLOB_CHARS} characters")
        after = _after(cursor) if cursor else ("", "")
        size = page_size(size)
        found = await self._history.catalogue.datasets(
            caller.user, name_glob=name_glob, after=after, limit=size + 1
        )
        page = found[:size]
        return page, cursor_behind(page[-1]) if len(found) > size else ""

    async def find(self, caller: UserCaller, reference: DatasetReference) -> DatasetListing:
        """The caller's own, else one that he may see and that is the only one so named.

        Raises:
            NotFound: there is none, or not in the version that is asked for.
            InvalidRequest: several people have one so named.
        """
        named = await self._named(caller, reference)
        if named is None or may(caller, SEE, named.dataset) is not ALLOW:
            wanted = f"{reference.owner}/{reference.name}" if reference.owner else reference.name
            push = (
                f"\nnsml dataset push {reference.name} PATH    adds it"
                if not reference.owner
                else ""
            )
            raise NotFound(f"there is no dataset {wanted}", attempt=f"nsml dataset ls{push}")
        if reference.version in {0, named.version.number}:
            return named
        owner, name = named.dataset.owner, named.dataset.name
        found = await self._history.catalogue.dataset(owner, name, reference.version)
        if found is None:
            raise NotFound(
                f"there is no version {reference.version} of {owner}/{name}",
                why=f"the newest is {named.version.number}",
                attempt=f"nsml dataset info {owner}/{name}",
            )
        return found

    async def _named(
        self, caller: UserCaller, reference: DatasetReference
    ) -> DatasetListing | None:
        """The dataset that a name means, in its newest version; visible or not."""
        catalogue = self._history.catalogue
        found = await catalogue.dataset(reference.owner or caller.user.name, reference.name)
        if found is not None or reference.owner:
            return found
        others = await catalogue.datasets(caller.user, name=reference.name)
        if len(others) > 1:
            raise InvalidRequest(
                f"{len(others)} users have a dataset {reference.name!r}",
                attempt=", ".join(f"{o.dataset.owner}/{reference.name}" for o in others[:5]),
            )
        return others[0] if others else None

    async def resolve(self, user: User, reference: DatasetReference) -> DatasetVersion:
        """The version that a session of this user gets.

        Raises:
            NotFound: it is not there, not visible, or has another content than the reference says.
        """
        check_dataset(reference.name)
        found = await self.find(UserCaller(user=user), reference)
        if reference.digest and reference.digest != found.version.digest:
            full = f"{found.dataset.owner}/{found.dataset.name}"
            raise NotFound(
                f"{full}@{found.version.number} has another content than it had",
                why="the dataset was removed and pushed again under its name",
                attempt=f"nsml run --rerun SESSION -d {full}    to take the new one",
            )
        return DatasetVersion(
            owner=found.dataset.owner,
            name=found.dataset.name,
            version=found.version.number,
            digest=found.version.digest,
        )
