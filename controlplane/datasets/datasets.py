"""Datasets: names for immutable, numbered versions of content."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from controlplane.content.content import SEND_IT
from controlplane.core.paging import page_size
from controlplane.datasets.dataset_parts import check_divided, check_parts, divided, no_files
from controlplane.domain.errors import (
    Denied,
    InvalidRequest,
    LimitReached,
    MissingBlobs,
    NotFound,
    StateConflict,
    TooLarge,
    Unavailable,
)
from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.names import check_dataset, check_digest, check_user
from controlplane.domain.policy import ALLOW, CHANGE, SEE, check_visibility, may
from controlplane.domain.values import DatasetVersion, Visibility
from controlplane.history.sql.dataset_parts import PartsChanged
from controlplane.history.sql.datasets import MOST_TAGS, Restored
from controlplane.history.values import Dataset, DatasetListing
from nsml.common.units import ago, duration_text, size_text
from nsml.content.in_place import LIST_NAME, MOST_LIST_BYTES
from nsml.spec.dataset_names import TAG_RULE, is_dataset_name, is_tag
from nsml.spec.in_place_paths import is_plain, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from controlplane.content.content import Content
    from controlplane.content.manifests import Listing
    from controlplane.domain.values import PartAccess, Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import DatasetVersion as StoredVersion
    from nsml.common.clock import Clock

MOST_MESSAGE_BYTES: Final = 4 << 10
MOST_PLACE_BYTES: Final = 1 << 10
"""Of the path of a version in place."""
MOST_DESCRIPTION_BYTES: Final = 4 << 10
MOST_GLOB_CHARS: Final = 512
MOST_WORDS: Final = 16
MOST_WORD_CHARS: Final = 256
USERS_NAMED: Final = 10
"""Live sessions that a use names."""

FREELY_REPEATED_BYTES = 64 << 30
MOST_REPEATED = 8
"""A version over that size has at most so many times the bytes that were sent for it.

One chunk that a manifest lists again and again is laid out again and again on nodes. Data of people repeats
little: copies, augmented sets, files of zeros, and those of zeros seldom over this size.
"""

TRIES: Final = 8
"""How often a version is divided again when others changed who reads its parts meanwhile."""

NO_PARTS: Final[Mapping[str, PartAccess]] = MappingProxyType({})

_WAITING: Final = frozenset({SessionState.QUEUED, SessionState.HELD})


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReference:
    """A dataset as a submission names it: owner "" is the caller first, version 0 and tag "" the newest, digest "" any.

    `folder`: of /data, where a session has it; "": its name.
    """

    name: str
    owner: str = ""
    version: int = 0
    digest: str = ""
    tag: str = ""
    streamed: bool = False
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """Files that nodes have themselves: the folder, and how many files of how many bytes its user says it has."""

    path: str
    size_bytes: int
    file_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Which sessions use a dataset, or one version of it.

    Attributes:
        live, queued: live sessions, and those of them that are queued or held.
        names: of live ones that the caller sees: the first few.
        ended: ended sessions that are not removed.
    """

    live: int
    queued: int
    names: tuple[str, ...]
    ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What was removed.

    Attributes:
        versions: how many.
        live: live sessions that use content that nothing else names.
        restorable_until: Unix seconds; None: without end.
    """

    versions: int
    live: int
    restorable_until: float | None


def parse_dataset(
    text: str,
    version: int = 0,
    digest: str = "",
    tag: str = "",
    *,
    streamed: bool = False,
    folder: str = "",
) -> DatasetReference:
    """Understand NAME or OWNER/NAME."""
    owner, slash, name = text.rpartition("/")
    if slash:
        check_user(owner)
    if tag and version:
        raise InvalidRequest("a version is named by its number or by a tag, not by both")
    if folder and not is_dataset_name(folder):
        raise InvalidRequest(
            f"{folder[:80]!r} is no folder for a dataset", why="it has the form of a dataset's name"
        )
    return DatasetReference(
        name=check_dataset(name),
        owner=owner,
        version=version,
        digest=digest,
        tag=tag,
        streamed=streamed,
        folder=folder,
    )


def cursor_behind(listing: DatasetListing) -> str:
    """The cursor of a page that ended with this dataset."""
    return f"{listing.dataset.owner}/{listing.dataset.name}"


def _after(cursor: str) -> tuple[str, str]:
    """Name and owner of the last dataset of the page before."""
    last = parse_dataset(cursor)
    return last.name, last.owner


def cursor_behind_version(listing: DatasetListing) -> str:
    """The cursor of a page of versions of several datasets that ended with this one."""
    return f"{cursor_behind(listing)}@{listing.version.number}"


def _after_version(cursor: str) -> tuple[str, str, int]:
    """Name, owner and number of the last version of the page before."""
    name, _, number = cursor.partition("@")
    return *_after(name), _before(number)


def _before(cursor: str) -> int:
    """The number of the last version of the page before."""
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 10 and int(cursor)):
        raise InvalidRequest(f"{cursor[:80]!r} is no cursor of this list")
    return int(cursor)


class Datasets:
    """Making, finding, changing and removing them.

    Args:
        live: the live sessions.
        grace_s: how long removed versions can be restored; 0: without end.
        in_place_roots: folders below which every user may add versions in place.
    """

    def __init__(
        self,
        *,
        history: History,
        content: Content,
        clock: Clock,
        live: Callable[[], Iterable[Session]] = tuple,
        grace_s: float = 86_400.0,
        in_place_roots: Sequence[str] = (),
    ) -> None:
        self._in_place_roots = in_place_roots
        self._history = history
        self._live = live
        self._content = content
        self._clock = clock
        self._grace_s = grace_s

    def check(
        self,
        caller: UserCaller,
        name: str,
        visibility: Visibility | None,
        message: str,
        *,
        parts: Mapping[str, PartAccess] = NO_PARTS,
        in_place: InPlace | None = None,
    ) -> None:
        """Raise what `create_version` would, as far as it does not lie in the content."""
        check_dataset(name)
        check_parts(parts)
        if in_place is not None:
            self._check_place(caller, in_place)
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
        parts: Mapping[str, PartAccess] = NO_PARTS,
        in_place: InPlace | None = None,
    ) -> tuple[DatasetListing, bool]:
        """Make content the newest version of the caller's dataset; False when it was already.

        `parts`: who reads which, in all versions; others of the dataset stay as they are.
        `in_place`: the content is the list of files that nodes have themselves.

        Raises:
            Denied: it is in place, and nowhere that the caller may add datasets from.
            MissingBlobs: not all of it has been sent, or not by the caller.
            TooLarge: it repeats little data many times.
            InvalidRequest: it has no files, none of such a part, or none that is open; or it is in place, and no list.
        """
        self.check(caller, name, visibility, message, parts=parts, in_place=in_place)
        check_digest(digest)
        if not await self._content.may_use(caller, digest) or await self._content.is_incomplete(
            caller, digest
        ):
            raise MissingBlobs("the dataset has not been sent completely", attempt=SEND_IT)
        listing = await self._content.listing(caller, digest)
        await self._content.borrow(caller, digest)
        if not listing.file_count:
            raise InvalidRequest("a dataset has at least one file")
        if in_place is not None:
            await self._check_list(caller, digest, listing)
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
        version, created = await self._put(
            caller, dataset, digest, listing, message=message, parts=parts, in_place=in_place
        )
        found = await self._history.catalogue.dataset(owner.name, name, version.number)
        return found or DatasetListing(dataset, version), created

    async def _put(
        self,
        caller: UserCaller,
        dataset: Dataset,
        digest: str,
        listing: Listing,
        *,
        message: str,
        parts: Mapping[str, PartAccess],
        in_place: InPlace | None,
    ) -> tuple[StoredVersion, bool]:
        """Divide a tree into the parts of its dataset, where that has some, and make it the newest version."""
        catalogue, owner, name = self._history.catalogue, dataset.owner, dataset.name
        for _ in range(TRIES):
            known = await catalogue.part_access(owner, name)
            access = {**known, **parts}
            if in_place is not None and access:
                raise _undivided(dataset)
            made = await divided(self._content, caller, digest, access)
            check_divided(made, parts)
            if access != known and await catalogue.whole_roots(owner, name):
                await self._set_access(caller, dataset, parts, is_pushed=True)
                continue
            opened, further = made or (None, None)
            extent = opened or in_place
            with suppress(PartsChanged):
                return await catalogue.put_dataset_version(
                    dataset,
                    digest=opened.digest if opened else digest,
                    size_bytes=extent.size_bytes if extent else listing.size,
                    file_count=extent.file_count if extent else listing.file_count,
                    message=message,
                    in_place=in_place.path if in_place else "",
                    parts=further,
                    access_before=known,
                )
        raise _too_many_changes(dataset)

    async def _set_access(
        self,
        caller: UserCaller,
        dataset: Dataset,
        parts: Mapping[str, PartAccess],
        *,
        is_pushed: bool = False,
    ) -> None:
        """Change who reads parts of a dataset, in all its versions, removed ones, too.

        `is_pushed`: a version is to follow that has files of all of them.

        Raises:
            InvalidRequest: a part is new, and no version has files of it.
        """
        catalogue, owner, name = self._history.catalogue, dataset.owner, dataset.name
        for _ in range(TRIES):
            known = await catalogue.part_access(owner, name)
            access = {**known, **parts}
            if access == known:
                return
            whole = await catalogue.whole_roots(owner, name)
            before = await catalogue.dataset_versions(owner, name, with_removed=True)
            if any(one.version.in_place for one in before):
                raise _undivided(dataset)
            versions = {
                number: await divided(self._content, caller, root, access)
                for number, root in whole.items()
            }
            found = {one.path for made in versions.values() if made for one, _ in made[1].parts()}
            for path in sorted(parts.keys() - known.keys() - found):
                if not is_pushed:
                    raise no_files(path)
            with suppress(PartsChanged):
                await catalogue.set_part_access(owner, name, access, versions, before=known)
                self._content.withdraw(
                    {digest for one in before for digest in (one.version.digest, one.owner_digest)}
                )
                return
        raise _too_many_changes(dataset)

    def _check_place(self, caller: UserCaller, in_place: InPlace) -> None:
        """Raise unless the caller may have nodes mount this folder, which exposes their files."""
        if not is_plain(in_place.path) or len(in_place.path.encode()) > MOST_PLACE_BYTES:
            raise InvalidRequest(
                f"{in_place.path[:80]!r} is no place for a dataset",
                why=f"it takes an absolute path of at most {MOST_PLACE_BYTES} bytes, without . and ..",
            )
        if caller.user.role is Role.ADMIN or place_of(in_place.path, self._in_place_roots):
            return
        roots = ", ".join(self._in_place_roots)
        raise Denied(
            f"only administrators add datasets in place at {in_place.path}",
            why=f"others may below {roots}" if roots else "this platform has no in_place_roots",
            attempt="nsml dataset push NAME PATH    sends the files",
        )

    async def _check_list(self, caller: UserCaller, digest: str, listing: Listing) -> None:
        """Raise unless a tree is the list of a dataset in place: agents read it whenever a session starts."""
        if listing.file_count == 1 and listing.size <= MOST_LIST_BYTES:
            found = await self._content.listing(caller, digest, is_with_sizes=True)
            if found.sizes is not None and list(found.sizes) == [LIST_NAME]:
                return
        raise InvalidRequest(
            "the content is not the list of a dataset in place",
            why=f"that is one file {LIST_NAME} of at most {size_text(MOST_LIST_BYTES)}",
            attempt="nsml dataset add NAME --in-place PATH",
        )

    async def update(
        self,
        caller: UserCaller,
        reference: DatasetReference,
        *,
        visibility: Visibility | None,
        description: str | None,
        parts: Mapping[str, PartAccess] = NO_PARTS,
    ) -> DatasetListing:
        """Change who sees a dataset, or its parts, or its description; None: as it is.

        Raises:
            NotFound, Denied: as `_changeable`.
            InvalidRequest: for a team, and the owner has none; no version has files of a part.
            TooLarge: the description is.
        """
        check_parts(parts)
        if description is not None and len(description.encode()) > MOST_DESCRIPTION_BYTES:
            raise TooLarge(f"a description has at most {MOST_DESCRIPTION_BYTES} bytes")
        found = (await self._changeable(caller, reference)).dataset
        team = caller.user.team if found.owner == caller.user.name else found.team
        if visibility is not None:
            check_visibility(visibility, team)
        if parts:
            await self._set_access(caller, found, parts)
        if not await self._history.catalogue.update_dataset(
            found.owner,
            found.name,
            visibility=visibility,
            team=team if visibility is not None else None,
            description=description,
        ):
            raise NotFound(f"there is no dataset {found.owner}/{found.name}")
        return await self.find(caller, _full(found))

    async def tag(
        self, caller: UserCaller, reference: DatasetReference, tag: str
    ) -> tuple[DatasetListing, int]:
        """Have a tag name this version; the version that it named before, 0 for none.

        Raises:
            NotFound, Denied: as `_changeable`.
            InvalidRequest: it is not the name of a tag.
            LimitReached: the dataset has as many as it may have.
        """
        if not is_tag(tag):
            raise InvalidRequest(f"{tag[:80]!r} is not the name of a tag", why=TAG_RULE)
        found = await self._changeable(caller, reference)
        owner, name, number = found.dataset.owner, found.dataset.name, found.version.number
        done = await self._history.catalogue.tag_dataset(owner, name, number, tag)
        if done.is_full:
            raise LimitReached(
                f"{owner}/{name} has {MOST_TAGS} tags, which is the most",
                attempt=f"nsml dataset untag {owner}/{name} TAG",
            )
        if not done.is_set:
            raise NotFound(f"there is no version {number} of {owner}/{name}")
        reference = replace(_full(found.dataset), version=number)
        return await self.find(caller, reference), done.before

    async def untag(self, caller: UserCaller, reference: DatasetReference, tag: str) -> int:
        """Remove a tag; the version that it named.

        Raises:
            NotFound, Denied: as `_changeable`; NotFound also without such a tag.
        """
        found = (await self._changeable(caller, reference)).dataset
        number = await self._history.catalogue.untag_dataset(found.owner, found.name, tag)
        if not number:
            raise _no_tag(found, tag)
        return number

    async def remove(self, caller: UserCaller, reference: DatasetReference) -> Removed:
        """Remove a version, or all.

        Raises:
            NotFound, Denied: as `_changeable`.
        """
        listing = await self._changeable(caller, reference)
        found, now = listing.dataset, self._clock.time()
        is_one = reference.version or reference.tag
        gone = await self._history.catalogue.remove_dataset(
            found.owner, found.name, listing.version.number if is_one else 0, at=now
        )
        if not gone:
            raise NotFound(f"there is no dataset {found.owner}/{found.name}")
        numbers = {one.number for one in gone}
        theirs = [
            {
                one.digest
                for one in each.spec.datasets
                if (one.owner, one.name) == (found.owner, found.name) and one.version in numbers
            }
            for each in self._live()
        ]
        there = await self._history.catalogue.versions_among(set().union(*theirs))
        live = sum(bool(digests - there) for digests in theirs)
        return Removed(versions=len(gone), live=live, restorable_until=self.restorable_until(now))

    def restorable_until(self, removed_at: float) -> float | None:
        """Until when what was removed at that time can be restored; None: without end."""
        return removed_at + self._grace_s if self._grace_s else None

    async def restore(
        self, caller: UserCaller, reference: DatasetReference
    ) -> tuple[DatasetListing, tuple[int, ...]]:
        """Restore a removed version, or all that were removed last at once (0); their numbers.

        All of their content is there: until they are purged they refer to it.

        Raises:
            NotFound: there is nothing to restore, or it is somebody else's.
            StateConflict: more users would see them than could before.
            LimitReached: more than the caller may keep.
        """
        owner, name = reference.owner or caller.user.name, reference.name
        wanted = owner, name, reference.version
        catalogue, since = self._history.catalogue, self._restorable_since()
        found = (
            await catalogue.removed_versions(*wanted, since=since)
            if _is_theirs(caller, owner)
            else ()
        )
        if owner == caller.user.name:
            whole = await catalogue.whole_roots(owner, name)
            digests = {whole.get(one.number, one.digest) for one in found}
            await self._count_again(caller, name, digests)
        done = await catalogue.restore_dataset(*wanted, since=since) if found else Restored()
        if done.is_wider:
            raise StateConflict(
                f"more users see {owner}/{name} now than saw what was removed",
                why="they would see what is restored, too",
                attempt=f"nsml dataset share {owner}/{name} --private    and the same again",
            )
        if not done.numbers:
            version = f"@{reference.version}" if reference.version else ""
            raise NotFound(
                f"there is nothing to restore of {owner}/{name}{version}",
                why=f"removed versions are kept for {duration_text(self._grace_s)}"
                if self._grace_s
                else "",
                attempt="nsml dataset ls",
            )
        return await self.find(caller, DatasetReference(owner=owner, name=name)), done.numbers

    async def _count_again(self, caller: UserCaller, name: str, digests: set[str]) -> None:
        """Count for the caller what is restored; raises LimitReached.

        What was removed since the last count is in that still, so that a removal can be undone at once.
        """
        counted = digests - await self._history.kept.released_among(caller.user.name, digests)
        if counted:
            there = await self._history.catalogue.dataset(caller.user.name, name)
            beside = [there.whole_digest] if there else []
            await self._content.borrow_trees(caller, sorted(counted), beside=beside)

    def _restorable_since(self) -> float:
        return self._clock.time() - self._grace_s if self._grace_s else 0.0

    async def purge(self) -> int:
        """Remove for good what cannot be restored any more; how many versions."""
        purged = 0
        while some := await self._history.catalogue.purge_datasets(self._restorable_since()):
            purged += some
        return purged

    async def use(self, caller: UserCaller, listing: DatasetListing, version: int) -> Use | None:
        """Which sessions use a version of a dataset, or any (0); None for others than its owner and administrators."""
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
            queued=sum(one.state in _WAITING for one in users),
            names=tuple(seen[:USERS_NAMED]),
            ended=await self._history.catalogue.ended_uses(found.owner, found.name, version),
        )

    def live_uses(self) -> Counter[tuple[str, str]]:
        """How many live sessions use each dataset, by owner and name."""
        return Counter(
            use
            for session in self._live()
            for use in {(one.owner, one.name) for one in session.spec.datasets}
        )

    async def versions(
        self,
        caller: UserCaller,
        reference: DatasetReference,
        *,
        with_removed: bool,
        size: int,
        cursor: str,
    ) -> tuple[tuple[DatasetListing, ...], str]:
        """Versions of a dataset, the newest first, and the cursor of the next page.

        Removed ones, as long as they can be restored, are its owner's and administrators' to see.

        Raises:
            NotFound: as `find`; a dataset of which all versions are removed is there `with_removed`.
            InvalidRequest: the cursor is none of ours.
        """
        before, size = _before(cursor), page_size(size)
        if with_removed and not reference.owner and await self._is_removed(caller, reference.name):
            reference = replace(reference, owner=caller.user.name)
        named = await self._named(caller, reference)
        owner = reference.owner or caller.user.name
        if named is None and with_removed and _is_theirs(caller, owner):
            is_own, name = True, reference.name
        else:
            found = (await self.find(caller, reference)).dataset
            is_own, owner, name = may(caller, CHANGE, found) is ALLOW, found.owner, found.name
        page = await self._history.catalogue.dataset_versions(
            owner, name, with_removed=with_removed and is_own, before=before, limit=size + 1
        )
        if named is None and not page:
            raise await self._not_there(caller, reference)
        since = self._restorable_since()
        shown = tuple(
            one
            for one in page[:size]
            if not one.version.removed_at or one.version.removed_at >= since
        )
        return shown, str(page[size - 1].version.number) if len(page) > size else ""

    async def _changeable(self, caller: UserCaller, reference: DatasetReference) -> DatasetListing:
        """What the caller may change.

        Raises:
            NotFound, InvalidRequest: as `find`.
            Denied: the caller sees it, but it is somebody else's.
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
        """Those that the caller may see, by name and owner, and the cursor of the next page; with all of the words.

        Raises:
            InvalidRequest: the cursor is none of ours.
            TooLarge: the pattern is, or the words are.
        """
        if len(name_glob) > MOST_GLOB_CHARS:
            raise TooLarge(f"a pattern has at most {MOST_GLOB_CHARS} characters")
        if len(words) > MOST_WORDS or any(len(word) > MOST_WORD_CHARS for word in words):
            raise TooLarge(
                f"at most {MOST_WORDS} words of at most {MOST_WORD_CHARS} characters each"
            )
        after = _after(cursor) if cursor else ("", "")
        size = page_size(size)
        found = await self._history.catalogue.datasets(
            caller.user, name_glob=name_glob, words=words, after=after, limit=size + 1
        )
        page = found[:size]
        return page, cursor_behind(page[-1]) if len(found) > size else ""

    async def removed_page(
        self, caller: UserCaller, name_glob: str, *, size: int, cursor: str
    ) -> tuple[tuple[DatasetListing, ...], str]:
        """Removed versions that the caller may restore, by name, owner and number; administrators get everybody's.

        Raises as `page`.
        """
        if len(name_glob) > MOST_GLOB_CHARS:
            raise TooLarge(f"a pattern has at most {MOST_GLOB_CHARS} characters")
        after, size = _after_version(cursor) if cursor else ("", "", 0), page_size(size)
        found = await self._history.catalogue.every_removed_version(
            "" if caller.user.role is Role.ADMIN else caller.user.name,
            since=self._restorable_since(),
            name_glob=name_glob,
            after=after,
            limit=size + 1,
        )
        page = found[:size]
        return page, cursor_behind_version(page[-1]) if len(found) > size else ""

    async def find(self, caller: UserCaller, reference: DatasetReference) -> DatasetListing:
        """The caller's own, else one that he may see and that is the only one so named.

        Raises:
            NotFound: there is none, or not in the version that is asked for.
            InvalidRequest: several people have one so named, or another one where the caller's own can be restored.
        """
        named = await self._named(caller, reference)
        if named is None or may(caller, SEE, named.dataset) is not ALLOW:
            raise await self._not_there(caller, reference)
        owner, name = named.dataset.owner, named.dataset.name
        number = reference.version
        if reference.tag:
            number = await self._history.catalogue.tagged(owner, name, reference.tag)
            if not number:
                raise _no_tag(named.dataset, reference.tag)
        if number in {0, named.version.number}:
            return named
        found = await self._history.catalogue.dataset(owner, name, number)
        if found is None:
            raise await self._no_version(caller, named, number)
        return found

    async def _no_version(
        self, caller: UserCaller, newest: DatasetListing, number: int
    ) -> NotFound:
        """What is said of a version that is not there, or removed."""
        owner, name = newest.dataset.owner, newest.dataset.name
        why = f"the newest is {newest.version.number}"
        attempt = f"nsml dataset versions {owner}/{name}"
        if may(caller, CHANGE, newest.dataset) is ALLOW:
            since = self._restorable_since()
            gone = await self._history.catalogue.removed_versions(owner, name, number, since=since)
            for one in gone:
                why = f"it was removed {ago(self._clock.time() - one.removed_at)}"
                attempt = f"nsml dataset restore {owner}/{name}@{number}"
        return NotFound(f"there is no version {number} of {owner}/{name}", why=why, attempt=attempt)

    async def _not_there(self, caller: UserCaller, reference: DatasetReference) -> NotFound:
        """What is said of a dataset that is not there, or not visible."""
        wanted = f"{reference.owner}/{reference.name}" if reference.owner else reference.name
        if reference.owner in {"", caller.user.name}:
            gone = await self._history.catalogue.removed_versions(
                caller.user.name, reference.name, since=self._restorable_since()
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
        """The dataset that a name means, in its newest version; visible or not."""
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
        """Whether versions of a dataset of the caller's can be restored."""
        since = self._restorable_since()
        found = await self._history.catalogue.removed_versions(caller.user.name, name, since=since)
        return bool(found)

    async def resolve(self, user: User, reference: DatasetReference) -> DatasetVersion:
        """The version that a session of this user gets, without the parts that the user's sessions may not have.

        A digest says which version it was in another session: also in one whose user may have more of it.

        Raises:
            NotFound: it is not there, not visible, or has another content than the reference says.
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
        is_theirs = may(UserCaller(user=user), CHANGE, found.dataset) is ALLOW
        return DatasetVersion(
            owner=found.dataset.owner,
            name=found.dataset.name,
            version=found.version.number,
            digest=found.owner_digest if is_theirs else found.version.digest,
            streamed=reference.streamed,
            folder=reference.folder,
            in_place=found.version.in_place,
        )


def _undivided(dataset: Dataset) -> InvalidRequest:
    return InvalidRequest(
        f"{dataset.owner}/{dataset.name} cannot have both versions in place and parts",
        why="sessions have the whole folder of a version in place",
        attempt="another name for one of them",
    )


def _too_many_changes(dataset: Dataset) -> Unavailable:
    return Unavailable(
        f"{dataset.owner}/{dataset.name} is changed by others at the same moment",
        attempt="the same again",
    )


def _full(dataset: Dataset) -> DatasetReference:
    return DatasetReference(owner=dataset.owner, name=dataset.name)


def _no_tag(dataset: Dataset, tag: str) -> NotFound:
    full = f"{dataset.owner}/{dataset.name}"
    return NotFound(f"{full} has no tag {tag[:80]!r}", attempt=f"nsml dataset versions {full}")


def _is_theirs(caller: UserCaller, owner: str) -> bool:
    """Whether the caller may change what an owner has, of which nothing else may be there any more."""
    return owner == caller.user.name or caller.user.role is Role.ADMIN
