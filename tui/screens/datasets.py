"""Datasets: their sizes and uses; and the files of the one under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from nsml.client.streams import ENDED_STATES
from nsml.common.units import counted
from nsml.view.datasets import (
    USE_COLUMNS,
    DatasetUse,
    filter_of,
    full_name,
    names_in,
    tree_lines,
    use_lines,
)
from nsml.view.sessions import visibility_word
from tui.screens.listing import Listing
from tui.sources import Topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsml.v1.sessions_pb2 import Session
    from nsml.view.tables import Column
    from tui.feed import Feed

COUNTED_EVERY_S: Final = 1.0
"""How often uses by all sessions are counted."""
Uses: TypeAlias = "Mapping[str, tuple[int, int, Sequence[str]]]"
"""By full name of a dataset: its live and ended sessions, and the nodes of the live ones."""


class DatasetsScreen(Listing[DatasetUse]):
    """The list of datasets."""

    name_of = "datasets"
    topics = (Topic.DATASETS,)
    shown_by = "nsml dataset ls"

    def __init__(self) -> None:
        super().__init__()
        self._uses: Uses = {}
        self._counted_at = -COUNTED_EVERY_S

    def columns(self) -> Sequence[Column[DatasetUse]]:
        """Of datasets."""
        return USE_COLUMNS

    def key(self, item: DatasetUse) -> str:
        """Its full name."""
        return full_name(item.dataset)

    def items(self) -> Sequence[DatasetUse]:
        """All of them, with their sessions."""
        now = self.dashboard.clock.monotonic()
        if now - self._counted_at >= COUNTED_EVERY_S:
            self._counted_at = now
            self._uses = _uses(row.session for row in self.model.every_row())
        return [DatasetUse(one, *self._uses.get(full_name(one), ())) for one in self.model.datasets]

    def texts(self, item: DatasetUse) -> Sequence[str]:
        """Name, owner, message, visibility, nodes."""
        one = item.dataset
        return full_name(one), one.message, visibility_word(one.visibility), *item.nodes

    def nothing(self) -> str:
        """How to create one."""
        return self.none(Topic.DATASETS, "no datasets yet · nsml dataset push NAME PATH makes one")

    def counts(self, shown: int, known: int) -> str:
        """How many there are."""
        return f"{shown:,} of {counted(known, 'dataset')}"

    def inspect(self, item: DatasetUse) -> None:
        """Its files."""

        async def receive(feed: Feed) -> None:
            await feed.tree(item.dataset)

        self.dashboard.inspect((Topic.TREE, item.dataset.digest, receive))

    def lines(self, item: DatasetUse) -> Sequence[str]:
        """Its properties, and its files."""
        files = self.model.tree
        if files is not None and files.digest == item.dataset.digest:
            tree = tree_lines(files.files)
        else:
            tree = [self.none(Topic.TREE, "")]
        return [*use_lines(item, self.dashboard.clock.time()), "", *tree]

    def on_table_chosen(self) -> None:
        """Show its sessions."""
        if (item := self.table.current) is not None:
            self.dashboard.show_sessions(filter_of(item.dataset))


def _uses(sessions: Iterable[Session]) -> Uses:
    counts: dict[str, tuple[int, int]] = {}
    nodes: dict[str, set[str]] = {}
    for session in sessions:
        has_ended = session.state in ENDED_STATES
        for name in names_in(session):
            live, ended = counts.get(name, (0, 0))
            counts[name] = (live + (not has_ended), ended + has_ended)
            if not has_ended:
                nodes.setdefault(name, set()).update(one.node for one in session.replicas)
    return {name: (*pair, sorted(nodes.get(name, ()))) for name, pair in counts.items()}
