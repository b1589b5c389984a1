"""Nodes: as a list or as a map of all devices; the devices of the one under the cursor; and the platform."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar, Final

from rich.text import Text
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from nsml.common.text import visible
from nsml.common.units import duration_text, short_moment
from nsml.v1.sessions_pb2 import EPISODE_KIND_ZOMBIE
from nsml.view.heat_map import Heat, Holder, Measure, owners_of
from nsml.view.nodes import COLUMNS, DEVICE_COLUMNS, cluster_lines, devices
from nsml.view.times import seconds_of
from tui.screens.frame import Frame
from tui.sources import Topic
from tui.widgets.heat_map import HeatMap
from tui.widgets.static import set_text
from tui.widgets.table import Table

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.nodes_pb2 import Node
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.nodes import NodeDevice

_MEASURES: Final = (None, *Measure)
"""Views behind `h`; None: the list."""


class NodesScreen(Frame):
    """Nodes above, devices of one of them or the platform below."""

    name_of = "nodes"
    topics = (Topic.NODES,)
    DEFAULT_CSS: ClassVar[str] = """
    NodesScreen {
        #devices { height: 50%; border-top: solid $rule; }
        #platform-pane { height: 50%; border-top: solid $rule; padding: 0 1; display: none; }
        #legend { height: auto; max-height: 3; color: $text-muted; }
        #legend, HeatMap { display: none; }
        &.-map #devices, &.-map #platform-pane { height: 40%; max-height: 11; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h", "heat", "Heat map", id="nodes.heat"),
        Binding("i", "platform", "Platform", id="nodes.platform"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._measure: Measure | None = None
        self._shows_platform = False

    def body(self) -> ComposeResult:
        """The two lists, and the views that replace them."""
        clock = self.dashboard.clock.time
        yield Table(COLUMNS, key=lambda node: node.name, clock=clock, id="nodes")
        yield Static(id="legend")
        yield HeatMap(id="heat")
        yield Table(
            DEVICE_COLUMNS,
            key=lambda item: f"{item.node.name} {item.use.device.uuid}",
            clock=clock,
            id="devices",
        )
        with VerticalScroll(id="platform-pane"):
            yield Static(id="platform-lines")

    def on_mount(self) -> None:
        """Focus the nodes."""
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

    @property
    def heat(self) -> HeatMap:
        """The map."""
        return self.query_one(HeatMap)

    @property
    def node(self) -> Node | None:
        """The node under the cursor."""
        return self.nodes.current if self._measure is None else self.heat.current

    def command(self) -> tuple[str, str]:
        """The equivalent command."""
        if self._shows_platform:
            return "nsml status", ""
        return ("nsml node ls", "") if self._measure is None else ("nsml gpustat", "")

    def draw(self) -> None:
        """Show the chosen views."""
        self.nodes.none = self.none(Topic.NODES, "no nodes yet · nsml join adds this machine")
        self.nodes.show(self.model.nodes)
        if self._measure is not None:
            self._map(self._measure)
        self._below()

    def _map(self, measure: Measure) -> None:
        now = self.dashboard.clock.time()
        holders = {
            row.session.name: _holder(row.session)
            for row in self.model.every_row()
            if row.session.replicas and not row.session.HasField("ended_at")
        }
        heat = Heat(measure=measure, now=now, holders=holders, letters=owners_of(holders))
        self.heat.show(self.model.nodes, heat)
        set_text(
            self.query_one("#legend", Static), Text(f" {visible(heat.legend(self.heat.each))}")
        )

    def _below(self) -> None:
        devices_shown = self.devices
        devices_shown.display = not self._shows_platform
        self.query_one("#platform-pane").display = self._shows_platform
        node = self.node
        devices_shown.none = "" if node is None else "it has no GPU"
        devices_shown.show(devices([node]) if node is not None else ())
        if self._shows_platform:
            text = "\n".join(map(visible, self._platform_lines()))
            set_text(self.query_one("#platform-lines", Static), Text(text))

    def _platform_lines(self) -> list[str]:
        """The lines of `nsml status`, and more on the agents and the leader."""
        cluster, now = self.model.cluster, self.dashboard.clock.time()
        if cluster is None:
            return [self.none(Topic.CLUSTER, "")]
        lines = cluster_lines(cluster, server=self.dashboard.platform)
        for member in cluster.members:
            up = duration_text(max(now - seconds_of(member.started_at), 0.0))
            leads = f"leads term {cluster.term}" if member.is_leader else "stands by"
            lines.append(f"member    {member.name} · {leads} · version {member.version} · up {up}")
        versions = Counter(node.agent_version or "unknown" for node in self.model.nodes)
        versions_text = ", ".join(
            f"{count} of version {one}" for one, count in versions.most_common()
        )
        oldest = min(
            self.model.nodes, key=lambda node: seconds_of(node.last_contact_at), default=None
        )
        if oldest is not None:
            silent = duration_text(max(now - seconds_of(oldest.last_contact_at), 0.0))
            lines += [
                f"agents    {versions_text}",
                f"contact   all within {silent}; oldest: {oldest.name}",
            ]
        leaders = [one for one in self.model.turns if one.what == "leader"]
        if leaders:
            last = leaders[-1]
            when = short_moment(last.at, now, has_seconds=True)
            lines.append(f"failover  {when}: {last.subject} {last.words}")
        else:
            lines.append("failover  none since the dashboard is open")
        return lines

    # Key actions

    def on_table_moved(self) -> None:
        """Show its devices."""
        self._below()

    def on_table_chosen(self) -> None:
        """Go from a node to its devices, and from a device to its session."""
        if self.nodes.has_focus:
            if not self._shows_platform:
                self.devices.focus()
            return
        held = self.devices.current
        names = () if held is None else held.use.sessions
        found = [row.session for row in self.model.every_row() if row.session.name in names]
        if found:
            self.dashboard.open_session(found[0])

    def on_heat_map_resized(self) -> None:
        """Redraw the map."""
        if self._measure is not None:
            self._map(self._measure)

    def on_heat_map_moved(self) -> None:
        """Show its devices."""
        self._below()

    def action_heat(self) -> None:
        """Switch list and map, by measure."""
        node = self.node
        place = _MEASURES.index(self._measure)
        self._measure = _MEASURES[(place + 1) % len(_MEASURES)]
        is_map = self._measure is not None
        self.nodes.display, self.heat.display = not is_map, is_map
        self.query_one("#legend").display = is_map
        self.set_class(is_map, "-map")
        if is_map and node is not None:
            self.heat.choose(node.name)
        (self.heat if is_map else self.nodes).focus()
        self.redraw()

    def action_platform(self) -> None:
        """Show the platform instead of the devices, or these again."""
        self._shows_platform = not self._shows_platform
        self._below()


def _holder(session: Session) -> Holder:
    last = session.episodes[-1] if session.episodes else None
    stands = last is not None and not last.HasField("until")
    is_zombie = stands and last is not None and last.kind == EPISODE_KIND_ZOMBIE
    since = session.started_at if session.HasField("started_at") else session.created_at
    return Holder(session.owner, seconds_of(since), is_zombie)
