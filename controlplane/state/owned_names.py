"""Things still owned by a user: until they are gone, nobody else gets the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.stored import etcd_codec
from nsml.common.units import counted

if TYPE_CHECKING:
    from controlplane.history.sql.history import History
    from controlplane.state.live_state import LiveState
    from controlplane.store.interface import KeyValueStore


class Holdings:
    """Finds sessions, datasets, boards, competitions, projects and nodes of a name, whether or not such a user exists."""

    def __init__(self, *, store: KeyValueStore, state: LiveState, history: History) -> None:
        self._store = store
        self._state = state
        self._history = history

    async def of(self, name: str) -> list[str]:
        """Describe things owned under a name, by kind; [] for none.

        Raises:
            StoreError, HistoryUnavailable: it cannot be looked up.
        """
        # Another control plane may have written the newest ones.
        await self._state.catch_up((await self._store.list(etcd_codec.CLUSTER)).revision)
        live = [one for one in self._state.sessions.values() if one.value.owner == name]
        nodes = [one for one in self._state.nodes.values() if one.value.owner == name]
        # A session that ends meanwhile is in the catalogue before it leaves the store.
        owned = await self._history.catalogue.owned_by(name)
        boards = await self._history.boards.count_of(name)
        competitions = await self._history.competitions.count_of(name)
        counts = (
            (len(live), "live session", ""),
            (owned.sessions, "ended session", ""),
            (owned.datasets, "dataset", ""),
            (owned.removed_datasets, "removed dataset", ""),
            (boards, "board", ""),
            (competitions, "competition", ""),
            (len(nodes), "node of their own", "nodes of their own"),
        )
        return [counted(count, one, many) for count, one, many in counts if count]
