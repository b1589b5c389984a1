"""The lineage of dataset versions, limited to the caller's access."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.domain.policy import ALLOW, CHANGE, SEE, may
from controlplane.history.values import DatasetLineage, SeenLineage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from controlplane.domain.identity import UserCaller
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import DatasetListing

_HIDDEN = DatasetLineage(session_id="", session="", attempt=0, code="", environment_lock="")


class Lineages:
    """Looks up visible lineages.

    Args:
        live: returns a live session by ID.
    """

    def __init__(self, *, history: History, live: Callable[[str], Session | None]) -> None:
        self._history = history
        self._live = live

    async def seen(
        self, caller: UserCaller, listings: Sequence[DatasetListing]
    ) -> list[SeenLineage | None]:
        """Return the lineage of each version, in order; None for pushed versions.

        Callers with the right to change a dataset see its session, even if removed: it was the owner's.
        """
        made = [one for one in listings if one.lineage is not None]
        if not made:
            return [None] * len(listings)
        sessions = await self._sessions(
            caller,
            {one.lineage.session_id for one in made if one.lineage and not _owns(caller, one)},
        )
        sources = {
            (use.owner, use.name) for one in made if one.lineage for use in one.lineage.datasets
        }
        datasets = (
            await self._history.catalogue.seen_datasets(sources, caller.user) if sources else set()
        )

        def seen(one: DatasetListing) -> SeenLineage | None:
            if (lineage := one.lineage) is None:
                return None
            is_seen = _owns(caller, one) or lineage.session_id in sessions
            shown = tuple(use for use in lineage.datasets if (use.owner, use.name) in datasets)
            return SeenLineage(
                lineage=replace(lineage if is_seen else _HIDDEN, datasets=shown),
                withheld=len(lineage.datasets) - len(shown),
            )

        return [seen(one) for one in listings]

    async def _sessions(self, caller: UserCaller, ids: Iterable[str]) -> set[str]:
        """Return the visible session IDs."""
        found, ended = set[str](), set[str]()
        for one in ids:
            session = self._live(one)
            if session is None:
                ended.add(one)
            elif may(caller, SEE, session) is ALLOW:
                found.add(one)
        if ended:
            found |= await self._history.catalogue.seen_sessions(ended, caller.user)
        return found


def _owns(caller: UserCaller, listing: DatasetListing) -> bool:
    return may(caller, CHANGE, listing.dataset) is ALLOW
