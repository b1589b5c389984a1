"""Changing, removing and restoring datasets: names for immutable, numbered versions of content."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.datasets.dataset_parts import check_parts
from controlplane.datasets.lineage import Lineages
from controlplane.datasets.lookup import DatasetLookup, is_theirs, no_tag
from controlplane.datasets.pushes import NO_PARTS, DatasetPushes
from controlplane.datasets.references import DatasetReference
from controlplane.domain.errors import (
    InvalidRequest,
    LimitReached,
    NotFound,
    StateConflict,
    TooLarge,
)
from controlplane.domain.policy import check_visibility
from controlplane.history.sql.datasets import MOST_TAGS, Restored
from nsml.common.units import duration_text
from nsml.spec.dataset_names import TAG_RULE, is_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from controlplane.content.content import Content
    from controlplane.datasets.queued_sessions import QueuedSessions
    from controlplane.domain.identity import UserCaller
    from controlplane.domain.values import PartAccess, Session, Visibility
    from controlplane.history.sql.history import History
    from controlplane.history.values import Dataset, DatasetListing
    from nsml.common.clock import Clock

MOST_DESCRIPTION_BYTES: Final = 4 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Result of a removal.

    Attributes:
        versions: how many.
        live: live sessions with content that no version has any more.
        restorable_until: Unix seconds; None: unlimited.
    """

    versions: int
    live: int
    restorable_until: float | None


class Datasets:
    """Changes, removes and restores datasets.

    Args:
        live: the live sessions; `live_session` one of them by its ID.
        grace_s: how long removed versions can be restored; 0: unlimited.
        in_place_roots: folders below which every user may add versions in place.

    Attributes:
        lookup: finds and lists datasets.
        pushes: creates versions.
        lineages: looks up their origin.
        queued: renews queued sessions; None: there are none.
    """

    def __init__(
        self,
        *,
        history: History,
        content: Content,
        clock: Clock,
        live: Callable[[], Iterable[Session]] = tuple,
        live_session: Callable[[str], Session | None] = lambda _: None,
        grace_s: float = 86_400.0,
        in_place_roots: Sequence[str] = (),
        queued: QueuedSessions | None = None,
    ) -> None:
        self.queued = queued
        self.lookup = DatasetLookup(history=history, clock=clock, live=live, grace_s=grace_s)
        self.pushes = DatasetPushes(
            history=history,
            content=content,
            clock=clock,
            in_place_roots=in_place_roots,
            queued=queued,
        )
        self.lineages = Lineages(history=history, live=live_session)
        self._history = history
        self._live = live
        self._content = content
        self._clock = clock
        self._grace_s = grace_s

    async def update(
        self,
        caller: UserCaller,
        reference: DatasetReference,
        *,
        visibility: Visibility | None,
        description: str | None,
        parts: Mapping[str, PartAccess] = NO_PARTS,
    ) -> DatasetListing:
        """Change visibility, access to parts, or description; None: unchanged.

        Raises:
            NotFound, Denied: as `DatasetLookup.changeable`.
            InvalidRequest: for a team, but the owner has none; no version has files of a part.
            TooLarge: the description is too long.
        """
        check_parts(parts)
        if description is not None and len(description.encode()) > MOST_DESCRIPTION_BYTES:
            raise TooLarge(f"a description has at most {MOST_DESCRIPTION_BYTES} bytes")
        found = (await self.lookup.changeable(caller, reference)).dataset
        team = caller.user.team if found.owner == caller.user.name else found.team
        if visibility is not None:
            check_visibility(visibility, team)
        if parts:
            await self.pushes.set_access(caller, found, parts)
        if not await self._history.catalogue.update_dataset(
            found.owner,
            found.name,
            visibility=visibility,
            team=team if visibility is not None else None,
            description=description,
        ):
            raise NotFound(f"there is no dataset {found.owner}/{found.name}")
        return await self.lookup.find(caller, _full(found))

    async def tag(
        self, caller: UserCaller, reference: DatasetReference, tag: str
    ) -> tuple[DatasetListing, int]:
        """Move a tag to this version; return the version that had it before, 0 for none.

        Raises:
            NotFound, Denied: as `DatasetLookup.changeable`.
            InvalidRequest: the tag name is invalid.
            LimitReached: the dataset has MOST_TAGS tags.
        """
        if not is_tag(tag):
            raise InvalidRequest(f"{tag[:80]!r} is not the name of a tag", why=TAG_RULE)
        found = await self.lookup.changeable(caller, reference)
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
        return await self.lookup.find(caller, reference), done.before

    async def untag(self, caller: UserCaller, reference: DatasetReference, tag: str) -> int:
        """Remove a tag; return the version that had it.

        Raises:
            NotFound, Denied: as `DatasetLookup.changeable`; NotFound also without such a tag.
        """
        found = (await self.lookup.changeable(caller, reference)).dataset
        number = await self._history.catalogue.untag_dataset(found.owner, found.name, tag)
        if not number:
            raise no_tag(found, tag)
        return number

    async def remove(self, caller: UserCaller, reference: DatasetReference) -> Removed:
        """Remove one version, or all of them.

        Raises:
            NotFound, Denied: as `DatasetLookup.changeable`.
        """
        listing = await self.lookup.changeable(caller, reference)
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
        return Removed(
            versions=len(gone), live=live, restorable_until=self.lookup.restorable_until(now)
        )

    async def restore(
        self, caller: UserCaller, reference: DatasetReference
    ) -> tuple[DatasetListing, tuple[int, ...]]:
        """Restore a removed version, or with version 0 those removed last together; also return their numbers.

        Their content is complete: they reference it until purged.

        Raises:
            NotFound: nothing to restore, or it is another user's.
            StateConflict: more users would see them than before the removal, or they are not removed.
            LimitReached: over the caller's storage limit.
        """
        owner, name = reference.owner or caller.user.name, reference.name
        wanted = owner, name, reference.version
        catalogue, since = self._history.catalogue, self.lookup.restorable_since()
        found = (
            await catalogue.removed_versions(*wanted, since=since)
            if is_theirs(caller, owner)
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
            await self._check_removed(caller, owner, reference)
            version = f"@{reference.version}" if reference.version else ""
            raise NotFound(
                f"there is nothing to restore of {owner}/{name}{version}",
                why=f"removed versions are kept for {duration_text(self._grace_s)}"
                if self._grace_s
                else "",
                attempt="nsml dataset ls",
            )
        return await self.lookup.find(
            caller, DatasetReference(owner=owner, name=name)
        ), done.numbers

    async def _check_removed(
        self, caller: UserCaller, owner: str, reference: DatasetReference
    ) -> None:
        """Raise StateConflict if the dataset or version is not removed."""
        name, number = reference.name, reference.version
        there = await self._history.catalogue.dataset(owner, name, number)
        if there is None or not is_theirs(caller, owner):
            return
        full = f"{owner}/{name}@{number}" if number else f"{owner}/{name}"
        raise StateConflict(
            f"{full} is there: it was not removed",
            attempt=f"nsml dataset info {full}\nnsml dataset versions {owner}/{name} --removed",
        )

    async def _count_again(self, caller: UserCaller, name: str, digests: set[str]) -> None:
        """Count restored content for the caller; raises LimitReached.

        Content removed since the last count is still counted, so that a removal can be undone at once.
        """
        counted = digests - await self._history.kept.released_among(caller.user.name, digests)
        if counted:
            there = await self._history.catalogue.dataset(caller.user.name, name)
            beside = [there.whole_digest] if there else []
            await self._content.borrow_trees(caller, sorted(counted), beside=beside)
            await self._content.count_for_project(
                caller, caller.user.name, sorted(counted), beside=beside
            )

    async def purge(self, before: float) -> int:
        """Delete versions that were removed before a Unix time and are no longer restorable; return how many."""
        purged, before = 0, min(before, self.lookup.restorable_since())
        while some := await self._history.catalogue.purge_datasets(before):
            purged += some
        return purged


def _full(dataset: Dataset) -> DatasetReference:
    return DatasetReference(owner=dataset.owner, name=dataset.name)
