"""The permanent screens, by their names in `frame.NAMES`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tui.screens.boards import BoardsScreen
from tui.screens.datasets import DatasetsScreen
from tui.screens.events import EventsScreen
from tui.screens.nodes import NodesScreen
from tui.screens.projects import ProjectsScreen
from tui.screens.queue import QueueScreen
from tui.screens.sessions import SessionsScreen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tui.screens.frame import Frame

SCREENS: Final[Mapping[str, type[Frame]]] = {
    "sessions": SessionsScreen,
    "queue": QueueScreen,
    "nodes": NodesScreen,
    "datasets": DatasetsScreen,
    "events": EventsScreen,
    "projects": ProjectsScreen,
    "boards": BoardsScreen,
}
