"""The machines, and every device of the one under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from nsml.view.nodes import COLUMNS, DEVICE_COLUMNS, devices
from tui.screens.frame import Frame
from tui.sources import Topic
from tui.widgets.table import Table

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from nsml.v1.nodes_pb2 import Node
    from nsml.view.nodes import NodeDevice


class NodesScreen(Frame):
    """Nodes above, devices below."""

    name_of = "nodes"
    topics = (Topic.NODES,)
    DEFAULT_CSS: ClassVar[str] = "NodesScreen #devices { height: 50%; border-top: solid $rule; }"

    def body(self) -> ComposeResult:
        """The two lists."""
        clock = self.dashboard.clock.time
        yield Table(COLUMNS, key=lambda node: node.name, clock=clock, id="nodes")
        yield Table(
            DEVICE_COLUMNS,
            key=lambda item: f"{item.node.name} {item.use.device.uuid}",
            clock=clock,
            id="devices",
        )

    def on_mount(self) -> None:
        """Keys are for the nodes first."""
        super().on_mount()
        self.nodes.focus()

    @property
    def nodes(self) -> Table[Node]:
        """The upper list."""
        return self.query_one("#nodes", Table)

    @property
    def devices(self) -> Table[NodeDevice]:
        """The lower list."""
        return self.query_one("#devices", Table)

    def draw(self) -> None:
        """Show both."""
        self.nodes.none = self.none(Topic.NODES, "no nodes yet · nsml join adds this machine")
        self.nodes.show(self.model.nodes)
        self._devices()

    def on_table_moved(self) -> None:
        """Show the devices of that node."""
        self._devices()

    def _devices(self) -> None:
        node = self.nodes.current
        self.devices.none = "" if node is None else "it has no GPU"
        self.devices.show(devices([node]) if node is not None else ())
