"""Projects: limits, current and past usage; and usage by user of the one under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.common.units import counted
from nsml.view.projects import COLUMNS, lines, own_lines, shown_lines
from tui.screens.listing import Listing
from tui.sources import Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.v1.projects_pb2 import Project
    from nsml.view.tables import Column
    from tui.feed import Feed


class ProjectsScreen(Listing["Project"]):
    """The list of projects."""

    name_of = "projects"
    topics = (Topic.PROJECTS,)
    shown_by = "nsml project ls"

    def columns(self) -> Sequence[Column[Project]]:
        """Those of `nsml project ls`."""
        return COLUMNS

    def key(self, item: Project) -> str:
        """Its name."""
        return item.name

    def items(self) -> Sequence[Project]:
        """All of them."""
        return self.model.projects

    def texts(self, item: Project) -> Sequence[str]:
        """Name and owner."""
        return item.name, item.settings.owner

    def nothing(self) -> str:
        """What having none means."""
        return self.none(
            Topic.PROJECTS, "no projects: your sessions count for you alone, without a limit"
        )

    def counts(self, shown: int, known: int) -> str:
        """How many there are."""
        return f"{shown:,} of {counted(known, 'project')}"

    def inspect(self, item: Project) -> None:
        """Receive usage by user."""
        name = item.name

        async def receive(feed: Feed) -> None:
            await feed.project(name)

        self.dashboard.inspect((Topic.PROJECT, name, receive))

    def lines(self, item: Project) -> Sequence[str]:
        """Its limits and usage, its users, and the user's remaining share."""
        received = self.model.project
        if received is None or received.answer.project.name != item.name:
            return [*lines(item), "", self.none(Topic.PROJECT, "")]
        own = own_lines(received.answer, self.dashboard.user)
        return [*shown_lines(received.answer), "", *own]

    def on_table_chosen(self) -> None:
        """Show its sessions."""
        if (item := self.table.current) is not None:
            self.dashboard.show_sessions(f"project:{item.name}")
