"""Creates versions of datasets; sets access to parts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from controlplane.content.content import SEND_IT
from controlplane.datasets.dataset_parts import check_divided, check_parts, divided, no_files
from controlplane.domain.errors import Denied, InvalidRequest, MissingBlobs, TooLarge, Unavailable
from controlplane.domain.identity import Role
from controlplane.domain.names import check_dataset, check_digest
from controlplane.domain.policy import check_visibility
from controlplane.domain.values import Visibility
from controlplane.history.sql.dataset_parts import PartsChanged
from controlplane.history.values import Dataset, DatasetListing
from nsml.common.units import size_text
from nsml.content.in_place import LIST_NAME, MOST_LIST_BYTES
from nsml.spec.in_place_paths import is_plain, place_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from controlplane.content.content import Content
    from controlplane.content.manifests import Listing
    from controlplane.datasets.queued_sessions import QueuedSessions
    from controlplane.domain.identity import UserCaller
    from controlplane.domain.values import PartAccess
    from controlplane.history.sql.history import History
    from controlplane.history.values import DatasetLineage
    from controlplane.history.values import DatasetVersion as StoredVersion
    from nsml.common.clock import Clock

MOST_MESSAGE_BYTES: Final = 4 << 10
MOST_PLACE_BYTES: Final = 1 << 10
"""Limit of the path of an in-place version."""

FREELY_REPEATED_BYTES = 64 << 30
MOST_REPEATED = 8
"""Over FREELY_REPEATED_BYTES, a version has at most this many times its distinct bytes.

Nodes write a chunk as often as the manifest lists it. Real data repeats little: copies, augmented sets,
files of zeros, which seldom exceed this size.
"""

TRIES: Final = 8
"""Attempts to divide a version while others change the access to its parts."""

NO_PARTS: Final[Mapping[str, PartAccess]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """A folder on the nodes, with its number of files and bytes as reported by the user."""

    path: str
    size_bytes: int
    file_count: int


class DatasetPushes:
    """Creates versions.

    Args:
        in_place_roots: folders below which every user may add versions in place.
        queued: renews queued sessions; None: there are none.
    """

    def __init__(
        self,
        *,
        history: History,
        content: Content,
        clock: Clock,
        in_place_roots: Sequence[str] = (),
        queued: QueuedSessions | None = None,
    ) -> None:
        self._queued = queued
        self._history = history
        self._content = content
        self._clock = clock
        self._in_place_roots = in_place_roots

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
        """Raise the errors of `create_version` that do not depend on the content."""
        check_dataset(name)
        check_parts(parts)
        if in_place is not None:
            self._check_place(caller, in_place)
        if visibility is not None:
            check_visibility(visibility, caller.user.team)
        if len(message.encode()) > MOST_MESSAGE_BYTES:
            raise TooLarge(f"a message has at most {MOST_MESSAGE_BYTES} bytes")
        self._content.check_project_full(caller.user.name)

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
        lineage: DatasetLineage | None = None,
    ) -> tuple[DatasetListing, bool]:
        """Make content the newest version of the caller's dataset; False if it already was.

        `parts`: access by part, for all versions; other parts of the dataset are unchanged.
        `in_place`: the content is the list of files in a folder on the nodes. `lineage`: the session that made it, never
        from a request.

        Raises:
            Denied: it is in place, in a folder not allowed to the caller.
            MissingBlobs: it was not sent completely, or not by the caller.
            TooLarge: it repeats little data many times.
            InvalidRequest: it has no files, none in a given part, or none left open; or it is in place but no list.
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
        if known is None or known.whole_digest != digest:
            beside = [known.whole_digest] if known else []
            await self._content.count_for_project(caller, owner.name, [digest], beside=beside)
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
            caller,
            dataset,
            digest,
            listing,
            message=message,
            parts=parts,
            in_place=in_place,
            lineage=lineage,
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
        lineage: DatasetLineage | None,
    ) -> tuple[StoredVersion, bool]:
        """Divide a tree into the parts of its dataset, if any, and make it the newest version."""
        catalogue, owner, name = self._history.catalogue, dataset.owner, dataset.name
        for _ in range(TRIES):
            known = await catalogue.part_access(owner, name)
            access = {**known, **parts}
            if in_place is not None and access:
                raise _undivided(dataset)
            made = await divided(self._content, caller, digest, access)
            check_divided(made, parts)
            if access != known and await catalogue.whole_roots(owner, name):
                await self.set_access(caller, dataset, parts, is_pushed=True)
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
                    lineage=lineage,
                )
        raise _too_many_changes(dataset)

    async def set_access(
        self,
        caller: UserCaller,
        dataset: Dataset,
        parts: Mapping[str, PartAccess],
        *,
        is_pushed: bool = False,
    ) -> None:
        """Change the access to parts of a dataset, in all versions, including removed ones.

        `is_pushed`: a version with files in all these parts follows.

        Raises:
            InvalidRequest: a new part has no files in any version.
        """
        catalogue, owner, name = self._history.catalogue, dataset.owner, dataset.name
        for _ in range(TRIES):
            known = await catalogue.part_access(owner, name)
            access = {**known, **parts}
            if access == known:
                # An aborted call may have stored it without the rest.
                await self._access_changed(owner, name, ())
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
            # Count before, too: if this call is aborted, sessions that start from now on still check for a change.
            await self._content.withdraw(owner, ())
            with suppress(PartsChanged):
                await catalogue.set_part_access(owner, name, access, versions, before=known)
                shown = {
                    digest for one in before for digest in (one.version.digest, one.owner_digest)
                }
                await self._access_changed(owner, name, shown)
                return
        raise _too_many_changes(dataset)

    async def _access_changed(self, owner: str, name: str, shown: Collection[str]) -> None:
        """Withdraw the shown manifests, so that access is checked again, and renew queued sessions."""
        await self._content.withdraw(owner, shown)
        if self._queued is not None:
            await self._queued.renew_all(owner, name)

    def _check_place(self, caller: UserCaller, in_place: InPlace) -> None:
        """Raise unless the caller may add this folder: mounting it exposes files of the nodes."""
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
        """Raise unless a tree is the list of an in-place dataset: agents read it at each session start."""
        if listing.file_count == 1 and listing.size <= MOST_LIST_BYTES:
            found = await self._content.listing(caller, digest, is_with_sizes=True)
            if found.sizes is not None and list(found.sizes) == [LIST_NAME]:
                return
        raise InvalidRequest(
            "the content is not the list of a dataset in place",
            why=f"that is one file {LIST_NAME} of at most {size_text(MOST_LIST_BYTES)}",
            attempt="nsml dataset add NAME --in-place PATH",
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
