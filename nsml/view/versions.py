"""Comparison of the versions of a platform's programs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsml.v1.nodes_pb2 import GetClusterResponse, Node

_MOST_NAMES = 3


def lines(client: str, cluster: GetClusterResponse, nodes: Iterable[Node]) -> list[str]:
    """Return the versions of this program, of each control plane and of the agents, and the differences."""
    agents = _agents(nodes)
    rows = [("client", client)]
    rows += [("control", f"{one.version}  {one.name}") for one in cluster.members] or [
        ("control", cluster.version)
    ]
    rows += [("agents", f"{version}  {_named(names)}") for version, names in agents.items()]
    shown, last = [], ""
    for title, text in rows:
        shown.append(f"{'' if title == last else title:<9}{text}")
        last = title
    return shown + [f"note     {note}" for note in notes(client, cluster, agents)]


def notes(client: str, cluster: GetClusterResponse, agents: Mapping[str, list[str]]) -> list[str]:
    """Describe programs with another version than the responding control plane; each with advice."""
    found = []
    if client != cluster.version:
        found.append("this program and the control plane are of different versions")
    if others := [one.name for one in cluster.members if one.version != cluster.version]:
        found.append(
            f"control planes of another version: {', '.join(others)}; stop, then start them"
        )
    behind = sum(len(names) for version, names in agents.items() if version != cluster.version)
    if behind:
        found.append(f"{counted(behind, 'agent')} of another version; restart after an upgrade")
    return found


def record(client: str, cluster: GetClusterResponse, nodes: Iterable[Node]) -> dict[str, Any]:
    """Return the same in raw values."""
    agents = _agents(nodes)
    return {
        "client": client,
        "server": cluster.version,
        "control_planes": {one.name: one.version for one in cluster.members},
        "agents": {name: version for version, names in agents.items() for name in names},
        "differ": notes(client, cluster, agents),
    }


def _agents(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Return the names of nodes by agent version."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        found[node.agent_version].append(node.name)
    return dict(sorted(found.items(), reverse=True))


def _named(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
